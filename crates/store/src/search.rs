//! Search over all of memory: knowledge, episodes, and messages in overlapping windows.

use std::collections::HashMap;
use std::ops::{BitOr, Range};
use std::time::Instant;

use api::memory::{MemoryKind, Source};
use api::{MessageId, TaskId, Timestamp};
use resources::text::shorten_to_bytes;
use rusqlite::{Connection, Error, OptionalExtension as _, params};

use super::TaskRow;
use super::doc_freq::CommonWordCache;
use super::knowledge::parse_tags;
use super::memory_ingest::step_of_message;
use super::message_text::{MessageText, Speaker};
use super::queries::{parse_column, task_id, timestamp};
use super::query_plan::{DocFrequencies, IndexQuery};
use super::ranking::{ConversationSpan, diversify, reciprocal_rank_fusion};
use super::steps::TurnBase;
use super::tokenize::{Coverage, QueryTerms};

/// The number of candidates that each query against an index returns.
const CANDIDATES_PER_INDEX: i64 = 20;
/// The number of candidates that are loaded, starting with those that several lists contain.
const MAX_FETCHED_CANDIDATES: usize = 60;
/// The weights of the order by coverage of the query and of the order by recency.
const COVERAGE_WEIGHT: f64 = 2.0;
const RECENCY_WEIGHT: f64 = 1.0;
/// The part of a message that a result shows, in bytes.
const MAX_SHOWN_MESSAGE_BYTES: usize = 1_000;
/// The number of SQLite virtual machine instructions between checks of the deadline: some tens of microseconds.
const OPS_BETWEEN_DEADLINE_CHECKS: i32 = 1_000;

/// A search of memory.
#[derive(Clone, Debug)]
pub struct MemoryQuery {
    /// The text to search for; any text is valid.
    pub text: String,
    /// The kinds of memory to search.
    pub kinds: &'static [MemoryKind],
    /// The most results.
    pub limit: usize,
    /// The current conversation, whose visible content is left out; `None` for an explicit search.
    pub conversation: Option<(TaskRow, TurnBase)>,
    /// The time at which the search fails with an error.
    pub deadline: Instant,
}

/// A search result.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchHit {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The id of the record; for a window, that of its first message.
    pub id: String,
    /// The full content.
    pub content: String,
    /// The part of the content that matches the query best; of a window, two adjacent messages.
    pub excerpt: String,
    /// The origin; `None` for messages, unless they are tainted by a tool.
    pub source: Option<Source>,
    /// The tags of a knowledge record.
    pub tags: Vec<String>,
    /// The time at which it was saved; for a window, that of its last message.
    pub created_at: Timestamp,
    /// The task that it belongs to; `None` for knowledge.
    pub task_id: Option<TaskId>,
    /// The ids of the messages of a window.
    pub message_ids: Vec<MessageId>,
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
}

/// Identifies a candidate: its kind and its row.
type CandidateKey = (MemoryKind, i64);

/// Searches memory. Only active records are found.
pub(super) fn search(
    reader: &Connection,
    common_words: &CommonWordCache,
    query: &MemoryQuery,
) -> Result<Vec<SearchHit>, Error> {
    let deadline = query.deadline;
    reader.progress_handler(OPS_BETWEEN_DEADLINE_CHECKS, Some(move || Instant::now() >= deadline))?;
    // One transaction gives one snapshot, and takes the read lock only once.
    let hits =
        reader.unchecked_transaction().and_then(|snapshot| search_snapshot(&snapshot, common_words, query));
    reader.progress_handler(0, None::<fn() -> bool>)?;
    hits
}

fn search_snapshot(
    reader: &Connection,
    common_words: &CommonWordCache,
    query: &MemoryQuery,
) -> Result<Vec<SearchHit>, Error> {
    let mut terms = QueryTerms::parse(&query.text);
    // An explicit search always gets an answer; a turn gets only what is relevant, or nothing.
    if query.conversation.is_none() {
        terms = terms.or_all_words(&query.text);
    }
    if terms.is_empty() {
        return Ok(Vec::new());
    }
    let shown = AlreadyShown::load(reader, query.conversation)?;
    let mut lists = Vec::new();
    let mut weights: HashMap<MemoryKind, Vec<f64>> = HashMap::new();
    for kind in query.kinds {
        let Some(frequencies) = DocFrequencies::load(reader, common_words, *kind, &terms)? else { continue };
        for IndexQuery { match_expression: expression, time, weight } in
            frequencies.index_queries(&terms, query.conversation.is_some())
        {
            lists.push((weight, match_candidates(reader, *kind, &expression, time, shown)?));
        }
        weights.insert(*kind, frequencies.weights());
    }
    let mut candidates: Vec<Candidate> = Vec::new();
    for (key, _) in reciprocal_rank_fusion(&lists).into_iter().take(MAX_FETCHED_CANDIDATES) {
        candidates.extend(load_candidate(reader, key, &terms, &weights)?);
    }
    // Candidates that cover more of the query come first, over all kinds; the sort is stable, so ties keep the
    // order of the indexes.
    candidates.sort_by(|one, other| other.weight.total_cmp(&one.weight));
    lists.push((COVERAGE_WEIGHT, candidates.iter().map(|candidate| candidate.key).collect()));
    // Among candidates that match equally, the newer one is more likely to be still true.
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.hit.created_at));
    lists.push((RECENCY_WEIGHT, candidates.iter().map(|candidate| candidate.key).collect()));
    let scores: HashMap<CandidateKey, f64> = reciprocal_rank_fusion(&lists).into_iter().collect();
    let (spans, hits): (Vec<_>, Vec<_>) = candidates
        .into_iter()
        .map(|Candidate { key, hit, coverage, span, .. }| {
            let is_relevant = terms.is_relevant(coverage);
            ((scores.get(&key).copied().unwrap_or(0.0), span), Some(SearchHit { is_relevant, ..hit }))
        })
        .unzip();
    let mut hits: Vec<Option<SearchHit>> = hits;
    let ordered = diversify(&spans).into_iter().filter_map(|(index, score)| {
        let hit = hits.get_mut(index)?.take()?;
        Some(SearchHit { score, ..hit })
    });
    Ok(ordered.take(query.limit).collect())
}

/// The best candidates of a kind for an FTS5 expression, best first.
fn match_candidates(
    reader: &Connection,
    kind: MemoryKind,
    expression: &str,
    time: Option<Range<i64>>,
    shown: AlreadyShown,
) -> Result<Vec<CandidateKey>, Error> {
    let sql = match kind {
        MemoryKind::Knowledge => {
            "SELECT record FROM knowledge_words JOIN knowledge ON record = knowledge_words.rowid
             WHERE knowledge_words MATCH ?1 AND valid_until IS NULL
             AND (?6 IS NULL OR created_at >= ?6 AND created_at < ?7)
             AND (?2 IS NULL OR task IS NOT ?2 OR step < ?3) AND (?2 IS NULL OR NOT EXISTS (
                 SELECT 1 FROM recalled
                 WHERE recalled.task = ?2 AND recalled.id = knowledge.id
                 AND recalled.step >= ?3 AND recalled.step < ?4
             ))
             ORDER BY knowledge_words.rank LIMIT ?5"
        }
        MemoryKind::Episode => {
            "SELECT episode FROM episode_words JOIN episodes ON episode = episode_words.rowid
             WHERE episode_words MATCH ?1
             AND (?6 IS NULL OR created_at >= ?6 AND created_at < ?7)
             AND (?2 IS NULL OR task <> ?2 OR step < ?3) AND (?2 IS NULL OR NOT EXISTS (
                 SELECT 1 FROM recalled
                 WHERE recalled.task = ?2 AND recalled.id = episodes.id
                 AND recalled.step >= ?3 AND recalled.step < ?4
             ))
             ORDER BY episode_words.rank LIMIT ?5"
        }
        MemoryKind::Message => {
            "SELECT window FROM window_words JOIN windows ON window = window_words.rowid
             WHERE window_words MATCH ?1 AND (?6 IS NULL OR (
                 SELECT at FROM said JOIN steps USING (step) WHERE said.task = windows.task AND nth = first
             ) BETWEEN ?6 AND ?7 - 1) AND (?2 IS NULL OR task <> ?2 OR (
                 SELECT MAX(step) FROM said WHERE said.task = ?2 AND nth >= first AND nth < first + 6
             ) < ?3) AND (?2 IS NULL OR NOT EXISTS (
                 SELECT 1 FROM recalled JOIN said ON said.task = windows.task AND nth = first
                 WHERE recalled.task = ?2 AND recalled.id = said.message_id
                 AND recalled.step >= ?3 AND recalled.step < ?4
             ))
             ORDER BY window_words.rank LIMIT ?5"
        }
    };
    let AlreadyShown { task, from_step: from, recalled_before_step } = shown;
    let (begin, end) = time.map(|time| (time.start, time.end)).unzip();
    let mut query = reader.prepare_cached(sql)?;
    let values = params![expression, task, from, recalled_before_step, CANDIDATES_PER_INDEX, begin, end];
    let rows = query.query_map(values, |row| Ok((kind, row.get(0)?)))?;
    rows.collect()
}

/// A loaded candidate with its coverage of the query.
struct Candidate {
    key: CandidateKey,
    hit: SearchHit,
    coverage: Coverage,
    weight: f64,
    span: ConversationSpan,
}

fn load_candidate(
    reader: &Connection,
    key: CandidateKey,
    terms: &QueryTerms,
    weights: &HashMap<MemoryKind, Vec<f64>>,
) -> Result<Option<Candidate>, Error> {
    let (kind, row) = key;
    let with_coverage = |hit: SearchHit, span: ConversationSpan| {
        let tags = hit.tags.iter().map(|tag| terms.coverage(tag));
        let coverage = tags.fold(terms.coverage(&hit.content), BitOr::bitor);
        (hit, coverage, span)
    };
    let hit = match kind {
        MemoryKind::Knowledge => {
            load_knowledge(reader, row)?.map(|hit| with_coverage(hit, ConversationSpan::Nothing))
        }
        MemoryKind::Episode => {
            load_episode(reader, row)?.map(|(hit, turn)| with_coverage(hit, ConversationSpan::Turn(turn)))
        }
        MemoryKind::Message => load_window(reader, row, terms)?,
    };
    Ok(hit.map(|(hit, coverage, span)| {
        let weight = terms.weight(coverage, weights.get(&kind).map_or(&[], Vec::as_slice));
        Candidate { key, hit, coverage, weight, span }
    }))
}

fn load_knowledge(reader: &Connection, record: i64) -> Result<Option<SearchHit>, Error> {
    let sql = "SELECT id, content, source, tags, created_at FROM knowledge WHERE record = ?1";
    let mut query = reader.prepare_cached(sql)?;
    let found = query.query_row([record], |row| {
        Ok(SearchHit {
            kind: MemoryKind::Knowledge,
            id: row.get(0)?,
            content: row.get(1)?,
            excerpt: row.get(1)?,
            source: Some(parse_column(row, 2)?),
            tags: parse_tags(row, 3)?,
            created_at: timestamp(row, 4)?,
            task_id: None,
            message_ids: Vec::new(),
            score: 0.0,
            is_relevant: false,
        })
    });
    found.optional()
}

fn load_episode(reader: &Connection, episode: i64) -> Result<Option<(SearchHit, i64)>, Error> {
    let sql =
        "SELECT id, content, source, episodes.created_at, task_id, turn FROM episodes JOIN tasks USING (task)
               WHERE episode = ?1";
    let mut query = reader.prepare_cached(sql)?;
    let found = query.query_row([episode], |row| {
        let found = SearchHit {
            kind: MemoryKind::Episode,
            id: row.get(0)?,
            content: row.get(1)?,
            excerpt: row.get(1)?,
            source: Some(parse_column(row, 2)?),
            tags: Vec::new(),
            created_at: timestamp(row, 3)?,
            task_id: Some(task_id(row, 4)?),
            message_ids: Vec::new(),
            score: 0.0,
            is_relevant: false,
        };
        Ok((found, row.get(5)?))
    });
    found.optional()
}

fn load_window(
    reader: &Connection,
    window: i64,
    terms: &QueryTerms,
) -> Result<Option<(SearchHit, Coverage, ConversationSpan)>, Error> {
    let sql = "SELECT steps.body, steps.at, task_id,
                      EXISTS (SELECT 1 FROM episodes WHERE episodes.task = windows.task
                              AND episodes.turn <= steps.turn AND source = 'tool'), steps.turn
               FROM windows JOIN tasks USING (task)
               JOIN said ON said.task = windows.task AND nth >= first AND nth < first + 6
               JOIN steps ON steps.step = said.step WHERE window = ?1 ORDER BY nth";
    let mut query = reader.prepare_cached(sql)?;
    let rows = query.query_map([window], |row| {
        let message = MessageText::from_stored(row.get_ref(0)?.as_str()?);
        Ok((message, timestamp(row, 1)?, task_id(row, 2)?, row.get::<_, bool>(3)?, row.get::<_, i64>(4)?))
    })?;
    let (mut lines, mut turns) = (Vec::new(), Vec::new());
    let mut hit: Option<SearchHit> = None;
    for row in rows {
        let (message, at, task_id, tainted, turn) = row?;
        let Some(MessageText { message_id, speaker, text }) = message else { continue };
        let speaker_name = match speaker {
            Speaker::User => "The user",
            Speaker::Agent => "The agent",
        };
        turns.push(turn);
        lines.push(format!("{speaker_name}: {}", shorten_to_bytes(&text, MAX_SHOWN_MESSAGE_BYTES)));
        let hit = hit.get_or_insert_with(|| SearchHit {
            kind: MemoryKind::Message,
            id: message_id.to_string(),
            content: String::new(),
            excerpt: String::new(),
            source: None,
            tags: Vec::new(),
            created_at: at,
            task_id: Some(task_id),
            message_ids: Vec::new(),
            score: 0.0,
            is_relevant: false,
        });
        if tainted && speaker == Speaker::Agent {
            hit.source = Some(Source::Tool);
        }
        hit.message_ids.push(message_id);
        hit.created_at = at;
    }
    let coverages: Vec<Coverage> = lines.iter().map(|line| terms.coverage(line)).collect();
    let coverage = coverages.iter().copied().fold(Coverage::default(), BitOr::bitor);
    let excerpt = best_pair(&lines, &coverages, terms);
    Ok(hit.map(|hit| {
        let matched = hit.message_ids.iter().zip(&coverages).filter(|(_, coverage)| !coverage.is_empty());
        let span = ConversationSpan::Messages { turns, matched: matched.map(|(id, _)| *id).collect() };
        (SearchHit { excerpt, content: lines.join("\n"), ..hit }, coverage, span)
    }))
}

/// The two adjacent messages that cover most of the query; `coverages` is the coverage of each message.
fn best_pair(lines: &[String], coverages: &[Coverage], terms: &QueryTerms) -> String {
    let covered_terms = |pair: &[Coverage]| {
        let both = pair.iter().copied().fold(Coverage::default(), BitOr::bitor);
        terms.count(both)
    };
    let width = lines.len().clamp(1, 2);
    // Of equal pairs the last one is selected, which is the newest.
    let best = lines.windows(width).zip(coverages.windows(width)).max_by_key(|(_, pair)| covered_terms(pair));
    best.map(|(pair, _)| pair.join("\n")).unwrap_or_default()
}
