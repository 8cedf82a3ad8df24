//! The index of what is remembered: the terms of single messages and of records of knowledge. Episodes are not in it:
//! the messages of their turns are.
//!
//! Triggers note in the table `to_index` what is not in the index yet, and take out what is withdrawn, whichever
//! version of the engine writes. A commit that adds to memory indexes what it added. What an earlier version left
//! is indexed bit by bit, the newest first; meanwhile what is indexed is found.

use std::ops::RangeInclusive;

use api::Timestamp;
use resources::text::shorten_to_bytes;
use retrieval::{Place, index_text};
use rusqlite::{Connection, Error, OptionalExtension as _, params};

use super::knowledge::parse_tags;
use super::message_text::MessageText;
use super::queries::timestamp;
use super::{StoreError, TaskRow, WriteTx};

/// The part of a message that a result shows, in bytes.
pub(super) const MAX_SHOWN_MESSAGE_BYTES: usize = 1_000;
/// The part of a message that is indexed, in bytes.
pub(super) const MAX_INDEXED_BYTES: usize = 8 * 1024;
/// A search of fewer places takes some tens of microseconds.
const FEW_PLACES: i64 = 500;
const MILLISECONDS_PER_DAY: i64 = 24 * 60 * 60 * 1_000;

/// The number of the task that the record 0 of knowledge is. Those of tasks are below it.
const FIRST_KNOWLEDGE: i64 = 1 << 41;

/// What a place in the index stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Indexed {
    /// A message of a task: the `nth` of those with text.
    Message { task: i64, nth: i64 },
    /// A record of knowledge.
    Knowledge(i64),
}

impl Indexed {
    /// What the message `index` of a task of the index stands for.
    pub(super) fn new(task: i64, index: i64) -> Self {
        match task {
            FIRST_KNOWLEDGE.. => Self::Knowledge(task - FIRST_KNOWLEDGE),
            task => Self::Message { task, nth: index },
        }
    }

    fn at(place: i64) -> Self {
        let place = Place(u64::try_from(place).unwrap_or_default());
        Self::new(i64::try_from(place.task()).unwrap_or_default(), i64::from(place.index()))
    }

    pub(super) fn place(self) -> Place {
        let (task, index) = match self {
            Self::Message { task, nth } => (task, nth),
            Self::Knowledge(record) => (FIRST_KNOWLEDGE + record, 0),
        };
        Place::new(u64::try_from(task).unwrap_or_default(), u32::try_from(index).unwrap_or(u32::MAX))
    }
}

/// All places.
pub(super) const ALL_PLACES: RangeInclusive<i64> = 0..=i64::MAX;
/// The places of messages.
pub(super) const MESSAGE_PLACES: RangeInclusive<i64> = 0..=(FIRST_KNOWLEDGE << 20) - 1;
/// The places of knowledge.
pub(super) const KNOWLEDGE_PLACES: RangeInclusive<i64> = FIRST_KNOWLEDGE << 20..=i64::MAX;

/// The number of a place, by which SQLite knows it.
pub(super) fn rowid(place: Place) -> i64 {
    i64::try_from(place.0).unwrap_or(i64::MAX)
}

/// What is indexed of a message or a record.
struct Text {
    text: String,
    /// The number of characters that a result shows.
    characters: usize,
    at: Timestamp,
}

impl WriteTx<'_> {
    /// Indexes at most `limit` of the messages and records that are not indexed yet, the newest first.
    pub fn index_backlog(&self, limit: usize) -> Result<(), StoreError> {
        self.index_pending(&ALL_PLACES, limit)
    }

    /// Indexes the messages of a task that are not indexed yet, at most `limit`.
    pub(super) fn index_messages(&self, TaskRow(task): TaskRow, limit: usize) -> Result<(), StoreError> {
        let first = Indexed::Message { task, nth: 0 }.place();
        let last = Indexed::Message { task, nth: i64::from(Place::MAX_INDEX) }.place();
        self.index_pending(&(rowid(first)..=rowid(last)), limit)
    }

    /// Indexes the knowledge that is not indexed yet, at most `limit` records.
    pub(super) fn index_knowledge(&self, limit: usize) -> Result<(), StoreError> {
        self.index_pending(&KNOWLEDGE_PLACES, limit)
    }

    fn index_pending(&self, places: &RangeInclusive<i64>, limit: usize) -> Result<(), StoreError> {
        let mut pending = self.transaction.prepare_cached(
            "SELECT place FROM to_index WHERE place BETWEEN ?1 AND ?2 ORDER BY place DESC LIMIT ?3",
        )?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let pending = pending.query_map(params![places.start(), places.end(), limit], |row| row.get(0))?;
        for place in pending.collect::<Result<Vec<i64>, _>>()? {
            self.index_place(place)?;
        }
        Ok(())
    }

    fn index_place(&self, place: i64) -> Result<(), StoreError> {
        self.execute("DELETE FROM to_index WHERE place = ?1", [place])?;
        // What has no text any more is left out, like a message without words.
        let Some(Text { text, characters, at }) = load_text(self.transaction, Indexed::at(place))? else {
            return Ok(());
        };
        let terms = index_text(&shorten_to_bytes(&text, MAX_INDEXED_BYTES));
        self.execute("INSERT INTO terms (rowid, content) VALUES (?1, ?2)", params![place, terms])?;
        let characters = i64::try_from(characters).unwrap_or(i64::MAX);
        let day = at.unix_ms().div_euclid(MILLISECONDS_PER_DAY);
        self.execute(
            "INSERT INTO indexed (place, characters, day) VALUES (?1, ?2, ?3)",
            [place, characters, day],
        )
    }
}

/// Whether so much is indexed that a search takes longer than waking a thread for it.
pub(super) fn has_many_places(reader: &Connection) -> Result<bool, Error> {
    let sql = "SELECT COALESCE(SUM(places), 0) >= ?1 FROM indexed_counts";
    reader.prepare_cached(sql)?.query_row([FEW_PLACES], |row| row.get(0))
}

/// Whether there is something that is not indexed yet.
pub(super) fn has_backlog(reader: &Connection) -> Result<bool, Error> {
    reader.prepare_cached("SELECT EXISTS (SELECT 1 FROM to_index)")?.query_row([], |row| row.get(0))
}

fn load_text(reader: &Connection, indexed: Indexed) -> Result<Option<Text>, Error> {
    match indexed {
        Indexed::Message { task, nth } => {
            let sql = "SELECT body, at FROM said JOIN steps USING (step) WHERE said.task = ?1 AND nth = ?2";
            let found = reader.prepare_cached(sql)?.query_row([task, nth], |row| {
                let message = MessageText::from_stored(row.get_ref(0)?.as_str()?);
                Ok((message, timestamp(row, 1)?))
            });
            Ok(found.optional()?.and_then(|(message, at)| {
                let text = message?.text;
                let characters = shorten_to_bytes(&text, MAX_SHOWN_MESSAGE_BYTES).chars().count();
                Some(Text { text, characters, at })
            }))
        }
        Indexed::Knowledge(record) => {
            let sql = "SELECT content, tags, created_at FROM knowledge WHERE record = ?1";
            let found = reader.prepare_cached(sql)?.query_row([record], |row| {
                let content: String = row.get(0)?;
                let characters = content.chars().count();
                // The tags are searched too.
                let parts: Vec<String> = [content].into_iter().chain(parse_tags(row, 1)?).collect();
                Ok(Text { text: parts.join("\n"), characters, at: timestamp(row, 2)? })
            });
            found.optional()
        }
    }
}
