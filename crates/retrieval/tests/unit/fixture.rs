//! Conversations in memory and in SQLite, behind the same trait.

use jiff::civil::Date;
use rusqlite::{Connection, params};

use crate::{Place, Postings, index_text};

/// Tasks of messages, each with its date in effect.
pub(crate) type Tasks = Vec<Vec<(String, Option<Date>)>>;

/// Tasks of messages without dates.
pub(crate) fn tasks<M: AsRef<str>>(tasks: &[&[M]]) -> Tasks {
    let messages =
        |messages: &&[M]| messages.iter().map(|message| (message.as_ref().to_owned(), None)).collect();
    tasks.iter().map(messages).collect()
}

/// Posting lists computed by going through all messages.
pub(crate) struct Memory {
    pub(crate) tasks: Tasks,
    terms: Vec<Vec<Vec<String>>>,
}

impl Memory {
    pub(crate) fn new(tasks: Tasks) -> Self {
        let terms_of = |text: &str| index_text(text).split(' ').map(str::to_owned).collect::<Vec<String>>();
        let terms =
            tasks.iter().map(|messages| messages.iter().map(|(text, _)| terms_of(text)).collect()).collect();
        Self { tasks, terms }
    }

    pub(crate) fn places(&self, term: &str) -> Vec<Place> {
        let mut places = Vec::new();
        for (task, messages) in (0..).zip(&self.terms) {
            for (index, terms) in (0..).zip(messages) {
                if terms.iter().any(|other| other == term) {
                    places.push(Place::new(task, index));
                }
            }
        }
        places
    }

    pub(crate) fn text(&self, task: u64, index: u32) -> &str {
        &self.tasks[usize::try_from(task).unwrap()][usize::try_from(index).unwrap()].0
    }

    fn messages_from(&self, task: u64, first: u32) -> &[(String, Option<Date>)] {
        &self.tasks[usize::try_from(task).unwrap()][usize::try_from(first).unwrap()..]
    }
}

fn count_characters(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap()
}

fn length(items: usize) -> u64 {
    u64::try_from(items).unwrap()
}

impl Postings for Memory {
    type Error = std::convert::Infallible;

    fn message_count(&self) -> Result<u64, Self::Error> {
        Ok(self.tasks.iter().map(|messages| length(messages.len())).sum())
    }

    fn task_count(&self) -> Result<u64, Self::Error> {
        Ok(length(self.tasks.iter().filter(|messages| !messages.is_empty()).count()))
    }

    fn read_places(&self, term: &str, limit: usize, places: &mut Vec<Place>) -> Result<(), Self::Error> {
        let all = self.places(term);
        places.extend(&all[all.len().saturating_sub(limit)..]);
        Ok(())
    }

    fn task_length(&self, task: u64) -> Result<u32, Self::Error> {
        Ok(u32::try_from(self.tasks[usize::try_from(task).unwrap()].len()).unwrap())
    }

    fn read_characters(&self, task: u64, first: u32, characters: &mut [u32]) -> Result<(), Self::Error> {
        for (characters, (text, _)) in characters.iter_mut().zip(self.messages_from(task, first)) {
            *characters = count_characters(text);
        }
        Ok(())
    }

    fn read_dates(&self, task: u64, first: u32, dates: &mut [Option<Date>]) -> Result<(), Self::Error> {
        for (date, (_, of_message)) in dates.iter_mut().zip(self.messages_from(task, first)) {
            *date = *of_message;
        }
        Ok(())
    }
}

/// Posting lists of FTS5 without text or positions.
pub(crate) struct Sqlite(Connection);

impl Sqlite {
    pub(crate) fn new(tasks: &Tasks) -> Self {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE VIRTUAL TABLE words USING fts5(
                     terms, content='', detail=none, contentless_delete=1, tokenize='ascii');
                 CREATE TABLE messages (place INTEGER PRIMARY KEY, characters INTEGER, date TEXT);",
            )
            .unwrap();
        let store = Self(connection);
        for (task, messages) in (0..).zip(tasks) {
            for (index, (text, date)) in (0..).zip(messages) {
                let place = rowid(Place::new(task, index));
                let mut insert =
                    store.0.prepare_cached("INSERT INTO words (rowid, terms) VALUES (?, ?)").unwrap();
                insert.execute(params![place, index_text(text)]).unwrap();
                let date = date.map(|date| date.to_string());
                let mut insert = store.0.prepare_cached("INSERT INTO messages VALUES (?, ?, ?)").unwrap();
                insert.execute(params![place, count_characters(text), date]).unwrap();
            }
        }
        store
    }

    fn count(&self, sql: &str) -> rusqlite::Result<u64> {
        self.0.prepare_cached(sql)?.query_one([], |row| row.get::<_, i64>(0)).map(unsigned)
    }

    /// Reads a column of the messages of a task from the first one on.
    fn read_column<T: rusqlite::types::FromSql>(
        &self,
        column: &str,
        first: Place,
        values: &mut [T],
    ) -> rusqlite::Result<()> {
        let sql = format!("SELECT place, {column} FROM messages WHERE place >= ?1 AND place < ?1 + ?2");
        let mut statement = self.0.prepare_cached(&sql)?;
        let count = i64::try_from(values.len()).unwrap();
        let mut rows = statement.query([rowid(first), count])?;
        while let Some(row) = rows.next()? {
            let offset = unsigned(row.get(0)?) - first.0;
            values[usize::try_from(offset).unwrap()] = row.get(1)?;
        }
        Ok(())
    }

    /// Takes a message out, which leaves a gap in its task.
    pub(crate) fn erase(&self, place: Place) {
        for table in ["words WHERE rowid", "messages WHERE place"] {
            self.0.execute(&format!("DELETE FROM {table} = ?"), [rowid(place)]).unwrap();
        }
    }
}

fn rowid(place: Place) -> i64 {
    i64::try_from(place.0).unwrap()
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap()
}

impl Postings for Sqlite {
    type Error = rusqlite::Error;

    fn message_count(&self) -> Result<u64, Self::Error> {
        self.count("SELECT count(*) FROM messages")
    }

    fn task_count(&self) -> Result<u64, Self::Error> {
        self.count("SELECT count(DISTINCT place >> 20) FROM messages")
    }

    fn read_places(&self, term: &str, limit: usize, places: &mut Vec<Place>) -> Result<(), Self::Error> {
        let mut statement = self
            .0
            .prepare_cached("SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?")?;
        let start = places.len();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![format!("\"{term}\""), limit], |row| row.get::<_, i64>(0))?;
        for place in rows {
            places.push(Place(unsigned(place?)));
        }
        places[start..].reverse();
        Ok(())
    }

    fn task_length(&self, task: u64) -> Result<u32, Self::Error> {
        let mut statement = self.0.prepare_cached(
            "SELECT coalesce(max(place) + 1 - ?1, 0) FROM messages WHERE place BETWEEN ?1 AND ?2",
        )?;
        let (first, last) = (rowid(Place::new(task, 0)), rowid(Place::new(task, Place::MAX_INDEX)));
        statement.query_one([first, last], |row| row.get(0))
    }

    fn read_characters(&self, task: u64, first: u32, characters: &mut [u32]) -> Result<(), Self::Error> {
        self.read_column("characters", Place::new(task, first), characters)
    }

    fn read_dates(&self, task: u64, first: u32, dates: &mut [Option<Date>]) -> Result<(), Self::Error> {
        let mut texts: Vec<Option<String>> = vec![None; dates.len()];
        self.read_column("date", Place::new(task, first), &mut texts)?;
        for (date, text) in dates.iter_mut().zip(texts) {
            *date = text.map(|text| text.parse().unwrap());
        }
        Ok(())
    }
}
