//! Search over all of memory: knowledge, and messages in runs.
//!
//! [`retrieval`] ranks; here are its posting lists ([`postings`]), what a search leaves out because a conversation
//! shows it, and the texts of the results ([`hits`]).

mod hits;
mod postings;
mod snippets;

use std::collections::HashSet;
use std::ops::Range;
use std::time::Instant;

use api::conversations::ConversationHit;
use api::memory::{MemoryKind, Source};
use api::{MessageId, TaskId, Timestamp};
use retrieval::{Place, Query, Request, RunFilter};
use rusqlite::{Connection, Error, params};

use self::postings::IndexPostings;
use super::memory_ingest::step_of_message;
use super::queries::parse_column;
use super::search_index::Indexed;
use super::steps::TurnBase;
use super::{Brain, StoreError, TaskRow, to_json};

/// The number of SQLite virtual machine instructions between checks of the deadline: some tens of microseconds.
const OPS_BETWEEN_DEADLINE_CHECKS: i32 = 1_000;

/// How many places a search over conversations reads per result if there are forks, which have the same messages.
const CANDIDATES_PER_RESULT: usize = 8;

/// What a search looks through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchScope {
    /// Messages, and the knowledge in force.
    Everything,
    /// The same. Results that leave room on the first page are followed by the episodes of the turns that were
    /// found.
    WithEpisodes,
    /// The knowledge in force.
    Knowledge,
    /// Messages.
    Messages,
}

/// A search of memory.
#[derive(Clone, Debug)]
pub struct MemoryQuery {
    /// The text to search for; any text is valid.
    pub text: String,
    /// What to search.
    pub scope: SearchScope,
    /// How many results to skip.
    pub offset: usize,
    /// The most results, at most 100.
    pub limit: usize,
    /// The current conversation, at the beginning of a turn: what it shows is left out, and only what is relevant
    /// is found, of runs their excerpts. `None` for an explicit search.
    pub conversation: Option<(TaskRow, TurnBase)>,
    /// The time at which the search fails with an error.
    pub deadline: Instant,
}

/// Whether a text has a word to search for, besides words that say nothing, such as those of `what do you know about
/// me?`. A single word is one whatever it is, for it may be a name: `Will`.
pub fn has_searchable_words(text: &str) -> bool {
    let query = Query::parse(text);
    query.has_content || query.words.len() == 1
}

/// Whether a message has words of content. Without any, no memory is relevant to it.
pub fn has_content_words(message: &str) -> bool {
    !retrieval::content_words(message).is_empty()
}

/// A search result.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchHit {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The id of the record; for a run of messages, that of its first one.
    pub id: String,
    /// The full content.
    pub content: String,
    /// The part of the content that matches the query best; of a run, at most three adjacent messages.
    pub excerpt: String,
    /// The origin; `None` for messages, unless they are tainted by a tool.
    pub source: Option<Source>,
    /// The tags of a knowledge record.
    pub tags: Vec<String>,
    /// The time at which it was saved; for a run, that of its last message.
    pub created_at: Timestamp,
    /// The task that it belongs to; `None` for knowledge.
    pub task_id: Option<TaskId>,
    /// The ids of the messages of a run.
    pub message_ids: Vec<MessageId>,
    /// The ids of the messages of the excerpt.
    pub excerpt_ids: Vec<MessageId>,
    /// The relevance, comparable only within one search.
    pub score: f64,
    /// Whether it is relevant enough to be put into a turn unasked.
    pub is_relevant: bool,
}

/// The records that a search leaves out because a conversation shows them already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AlreadyShown {
    pub(super) task: Option<i64>,
    /// Records of the task from this step on are left out.
    pub(super) from_step: i64,
    /// Records that were recalled into the task before this step are left out.
    pub(super) recalled_before_step: i64,
}

impl AlreadyShown {
    /// What a conversation shows when it continues; nothing for an explicit search.
    pub(super) fn load(
        reader: &Connection,
        conversation: Option<(TaskRow, TurnBase)>,
    ) -> Result<Self, Error> {
        let Some((TaskRow(task), base)) = conversation else { return Ok(Self::default()) };
        // A compacted conversation begins after the messages that its summary covers.
        let sql = "SELECT COALESCE((
                       SELECT step FROM said JOIN tasks USING (task)
                       WHERE said.task = ?1 AND covered > 0 AND place >= covered ORDER BY place LIMIT 1
                   ), 0)";
        let from_step = reader.prepare_cached(sql)?.query_row([task], |row| row.get(0))?;
        let recalled_before_step = match base {
            TurnBase::Edit { message_id } => {
                step_of_message(reader, task, &message_id.to_string())?.map(|(step, _)| step)
            }
            TurnBase::End | TurnBase::Retry { .. } => None,
        };
        Ok(Self {
            task: Some(task),
            from_step,
            recalled_before_step: recalled_before_step.unwrap_or(i64::MAX),
        })
    }

    /// The places that are left out, as sorted ranges: the messages that are visible, and the knowledge that was
    /// drawn from them or recalled into them.
    fn hidden_places(self, reader: &Connection) -> Result<Vec<Range<Place>>, Error> {
        let Some(task) = self.task else { return Ok(Vec::new()) };
        let sql = "SELECT MIN(nth) FROM said JOIN tasks USING (task) WHERE task = ?1 AND place >= covered";
        let first: Option<i64> = reader.prepare_cached(sql)?.query_row([task], |row| row.get(0))?;
        let messages = first.map(|nth| {
            Indexed::Message { task, nth }.place()..Indexed::Message { task: task + 1, nth: 0 }.place()
        });
        let sql = "SELECT record FROM knowledge WHERE task = ?1 AND step >= ?2
                   UNION
                   SELECT record FROM recalled JOIN knowledge USING (id)
                   WHERE recalled.task = ?1 AND recalled.step >= ?2 AND recalled.step < ?3
                   ORDER BY record";
        let mut query = reader.prepare_cached(sql)?;
        let records = query.query_map([task, self.from_step, self.recalled_before_step], |row| {
            let record = row.get(0)?;
            Ok(Indexed::Knowledge(record).place()..Indexed::Knowledge(record + 1).place())
        })?;
        messages.map(Ok).into_iter().chain(records).collect()
    }

    /// Which of `found`, messages of other tasks, the conversation shows: they were recalled into it, or it is a fork
    /// or has forks, and has the same ones.
    fn shown_messages(self, reader: &Connection, found: &[SearchHit]) -> Result<HashSet<MessageId>, Error> {
        let ids: Vec<&MessageId> = found.iter().flat_map(|hit| &hit.excerpt_ids).collect();
        if self.task.is_none() || ids.is_empty() {
            return Ok(HashSet::new());
        }
        let sql = "SELECT id FROM recalled WHERE task = ?1 AND step >= ?2 AND step < ?3 AND kind = ?4
                   UNION
                   SELECT message_id FROM said WHERE task = ?1 AND step >= ?2
                   AND message_id IN (SELECT value FROM json_each(?5))
                   AND (SELECT family FROM conversations WHERE task = ?1) IS NOT NULL";
        let mut query = reader.prepare_cached(sql)?;
        let kind = MemoryKind::Message.as_str();
        let values = params![self.task, self.from_step, self.recalled_before_step, kind, to_json(&ids)?];
        query.query_map(values, |row| parse_column(row, 0))?.collect()
    }
}

impl Brain {
    /// Searches the messages of conversations, best results first. It waits for a running search, but not beyond
    /// `deadline`. Blocks.
    pub fn search_conversations(
        &self,
        text: &str,
        limit: usize,
        deadline: Instant,
    ) -> Result<Vec<ConversationHit>, StoreError> {
        let search = |reader: &Connection| search_conversations(reader, text, limit, deadline);
        Ok(self.shared.read_pool.search(deadline, search)?)
    }
}

/// Searches the messages of conversations; the best results first.
fn search_conversations(
    reader: &Connection,
    text: &str,
    limit: usize,
    deadline: Instant,
) -> Result<Vec<ConversationHit>, Error> {
    within_deadline(reader, deadline, |reader| {
        let asked = Query::parse(text);
        let sql = "SELECT EXISTS (SELECT 1 FROM conversations WHERE family IS NOT NULL)";
        let has_forks: bool = reader.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        let candidates = if has_forks { limit.saturating_mul(CANDIDATES_PER_RESULT) } else { limit };
        let page = Request { offset: 0, limit: candidates, hidden: &[], filter: RunFilter::Matched };
        let found = retrieval::search(&IndexPostings::new(reader, SearchScope::Messages), &asked, &page)?;
        let mut results: Vec<(u64, ConversationHit)> = Vec::new();
        for hit in &found {
            let Some(result) = snippets::load(reader, &asked, hit)? else { continue };
            if let Some(shown) = results.iter_mut().find(|(_, other)| other.message_id == result.message_id) {
                // Of equal messages, that of the oldest task.
                if hit.task < shown.0 {
                    *shown = (hit.task, result);
                }
            } else if results.len() < limit {
                results.push((hit.task, result));
            }
        }
        Ok(results.into_iter().map(|(_, result)| result).collect())
    })
}

/// Searches memory. Of knowledge only what is in force is found.
pub(super) fn search(reader: &Connection, query: &MemoryQuery) -> Result<Vec<SearchHit>, Error> {
    within_deadline(reader, query.deadline, |reader| search_snapshot(reader, query))
}

/// Runs a search on one snapshot, or fails at its deadline.
fn within_deadline<T>(
    reader: &Connection,
    deadline: Instant,
    search: impl FnOnce(&Connection) -> Result<T, Error>,
) -> Result<T, Error> {
    reader.progress_handler(OPS_BETWEEN_DEADLINE_CHECKS, Some(move || Instant::now() >= deadline))?;
    // One transaction gives one snapshot, and takes the read lock only once.
    let found = reader.unchecked_transaction().and_then(|snapshot| search(&snapshot));
    reader.progress_handler(0, None::<fn() -> bool>)?;
    found
}

fn search_snapshot(reader: &Connection, query: &MemoryQuery) -> Result<Vec<SearchHit>, Error> {
    let asked = Query::parse(&query.text);
    // An explicit search always gets an answer; a turn gets only what is relevant, or nothing.
    if query.conversation.is_some() && !asked.has_content {
        return Ok(Vec::new());
    }
    let shown = AlreadyShown::load(reader, query.conversation)?;
    let hidden = shown.hidden_places(reader)?;
    // A person waits for the turn: nothing is read that it is not told.
    let only_relevant = query.conversation.is_some();
    let filter = if only_relevant { RunFilter::Relevant } else { RunFilter::Near };
    let page = Request { offset: query.offset, limit: query.limit, hidden: &hidden, filter };
    let mut found = retrieval::search(&IndexPostings::new(reader, query.scope), &asked, &page)?;
    if only_relevant {
        for hit in &mut found {
            (hit.first, hit.last) = (*hit.excerpt.start(), *hit.excerpt.end());
        }
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let mut hits = Vec::with_capacity(found.len());
    for found in &found {
        hits.extend(hits::load(reader, found)?);
    }
    let mut shown = shown.shown_messages(reader, &hits)?;
    hits.retain(|hit| {
        let is_new = hit.excerpt_ids.is_empty() || !hit.excerpt_ids.iter().all(|id| shown.contains(id));
        // Forks have the same messages.
        shown.extend(&hit.excerpt_ids);
        is_new
    });
    if query.scope == SearchScope::WithEpisodes && query.offset == 0 {
        let room = query.limit.saturating_sub(hits.len());
        let episodes = hits::load_episodes(reader, &found, room)?;
        hits.extend(episodes);
    }
    Ok(hits)
}
