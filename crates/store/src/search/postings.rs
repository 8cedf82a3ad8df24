//! The posting lists of the index, as [`retrieval`] reads them.

use std::ops::RangeInclusive;

use jiff::Span;
use jiff::civil::Date;
use retrieval::{Place, Postings};
use rusqlite::{Connection, Error, OptionalExtension as _, params};

use super::SearchScope;
use crate::search_index::{ALL_PLACES, KNOWLEDGE_PLACES, MESSAGE_PLACES, rowid};

const EPOCH: Date = Date::constant(1970, 1, 1);

/// The posting lists of what a search looks through.
pub(super) struct IndexPostings<'a> {
    reader: &'a Connection,
    scope: SearchScope,
}

impl<'a> IndexPostings<'a> {
    pub(super) const fn new(reader: &'a Connection, scope: SearchScope) -> Self {
        Self { reader, scope }
    }

    const fn places(&self) -> RangeInclusive<i64> {
        match self.scope {
            SearchScope::Everything | SearchScope::WithEpisodes => ALL_PLACES,
            SearchScope::Knowledge => KNOWLEDGE_PLACES,
            SearchScope::Messages => MESSAGE_PLACES,
        }
    }

    fn count(&self, column: &str) -> Result<u64, Error> {
        let sql = format!("SELECT SUM({column}) FROM indexed_counts WHERE is_knowledge BETWEEN ?1 AND ?2");
        let (least, most) = match self.scope {
            SearchScope::Everything | SearchScope::WithEpisodes => (false, true),
            SearchScope::Knowledge => (true, true),
            SearchScope::Messages => (false, false),
        };
        let count: i64 = self.reader.prepare_cached(&sql)?.query_row([least, most], |row| row.get(0))?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Reads a column of the messages of a task from the index `first` on.
    fn read_column<T>(
        &self,
        column: &str,
        (task, first): (u64, u32),
        values: &mut [T],
        parse: impl Fn(i64) -> T,
    ) -> Result<(), Error> {
        let sql = format!("SELECT place, {column} FROM indexed WHERE place >= ?1 AND place < ?1 + ?2");
        let mut query = self.reader.prepare_cached(&sql)?;
        let start = rowid(Place::new(task, first));
        let mut rows = query.query([start, sql_limit(values.len())])?;
        while let Some(row) = rows.next()? {
            let offset = usize::try_from(row.get::<_, i64>(0)? - start).unwrap_or(usize::MAX);
            if let Some(value) = values.get_mut(offset) {
                *value = parse(row.get(1)?);
            }
        }
        Ok(())
    }
}

impl Postings for IndexPostings<'_> {
    type Error = Error;

    fn message_count(&self) -> Result<u64, Error> {
        self.count("places")
    }

    fn task_count(&self) -> Result<u64, Error> {
        self.count("tasks")
    }

    fn read_places(&self, term: &str, limit: usize, places: &mut Vec<Place>) -> Result<(), Error> {
        let range = self.places();
        let sql = "SELECT rowid FROM terms WHERE terms MATCH ?1 AND rowid BETWEEN ?2 AND ?3
                   ORDER BY rowid DESC LIMIT ?4";
        let mut query = self.reader.prepare_cached(sql)?;
        let mut rows =
            query.query(params![match_expression(term), range.start(), range.end(), sql_limit(limit)])?;
        let start = places.len();
        while let Some(row) = rows.next()? {
            places.extend(u64::try_from(row.get::<_, i64>(0)?).map(Place));
        }
        places.get_mut(start..).unwrap_or_default().reverse();
        Ok(())
    }

    fn task_length(&self, task: u64) -> Result<u32, Error> {
        let sql = "SELECT place FROM indexed WHERE place BETWEEN ?1 AND ?2 ORDER BY place DESC LIMIT 1";
        let range = [rowid(Place::new(task, 0)), rowid(Place::new(task, Place::MAX_INDEX))];
        let last =
            self.reader.prepare_cached(sql)?.query_row(range, |row| row.get::<_, i64>(0)).optional()?;
        Ok(last.and_then(|last| u64::try_from(last).ok()).map_or(0, |last| Place(last).index() + 1))
    }

    fn read_characters(&self, task: u64, first: u32, characters: &mut [u32]) -> Result<(), Error> {
        self.read_column("characters", (task, first), characters, |characters| {
            u32::try_from(characters).unwrap_or(u32::MAX)
        })
    }

    fn read_dates(&self, task: u64, first: u32, dates: &mut [Option<Date>]) -> Result<(), Error> {
        self.read_column("day", (task, first), dates, |day| {
            EPOCH.checked_add(Span::new().try_days(day).ok()?).ok()
        })
    }
}

fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The FTS5 expression for a term, which consists of letters, digits and pictograms.
fn match_expression(term: &str) -> String {
    format!("\"{}\"", term.replace('"', ""))
}
