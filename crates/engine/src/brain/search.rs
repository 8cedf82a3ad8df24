//! Search over all that is remembered: knowledge, episodes, and messages in overlapping windows.

use std::collections::HashMap;
use std::ops::{BitOr, Range};
use std::time::Instant;

use contract::memory::{MemoryKind, Source};
use contract::{MessageId, TaskId, Timestamp};
use rusqlite::{Connection, Error, OptionalExtension as _, params};

use super::TaskRow;
use super::asking::{Ask, Uses};
use super::common::CommonWords;
use super::knowledge::tags;
use super::ranking::{Shows, fuse, spread};
use super::read::{parsed, task_id, timestamp};
use super::steps::Base;
use super::taking_in::{clipped, step_of};
use super::terms::{Coverage, Terms};
use super::words::{Speaker, Words};

/// How many candidates of each kind an index gives.
const CANDIDATES: i64 = 20;
/// How many of them are read, those first that several indexes name.
const FETCHED: usize = 60;
/// How much the order counts by what has most of the query, and by what is new.
const BY_COVERAGE: f64 = 2.0;
const BY_AGE: f64 = 1.0;
/// How much of a message a result shows, in bytes.
const MAX_SHOWN: usize = 1_000;
/// How many instructions of SQLite's machine pass before the clock is looked at: some tens of microseconds.
const BETWEEN_LOOKS: i32 = 1_000;

/// What is looked for.
#[derive(Clone, Debug)]
pub struct MemoryQuery {
    /// Any text.
    pub text: String,
    /// The kinds that are wanted.
    pub kinds: &'static [MemoryKind],
    /// How many results at most.
    pub limit: usize,
    /// The conversation at hand: what it shows is left out.
    pub at_hand: Option<(TaskRow, Base)>,
    /// When to give up, with an error.
    pub until: Instant,
}

/// Something remembered that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// What it is.
    pub kind: MemoryKind,
    /// Its id: that of the first message of a window.
    pub id: String,
    /// What is remembered.
    pub content: String,
    /// What of it answers the query best: of a window one message and the one beside it.
    pub excerpt: String,
    /// Where it came from; none for messages.
    pub source: Option<Source>,
    /// Words that it was filed under.
    pub tags: Vec<String>,
    /// When it was saved, or the last of the messages was said.
    pub created_at: Timestamp,
    /// The task that it is of; none for knowledge.
    pub task_id: Option<TaskId>,
    /// The messages of a window.
    pub message_ids: Vec<MessageId>,
    /// How well it fits, to compare the results of one search.
    pub score: f64,
    /// Whether it is worth showing to somebody who did not ask for it.
    pub is_relevant: bool,
}

/// What is left out because a conversation shows it, or is about to lose it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    pub(super) task: Option<i64>,
    /// What is of the task from this step on.
    pub(super) from: i64,
    /// What it was told before this step.
    pub(super) recalled_before: i64,
}

impl Shown {
    pub(super) fn of(reader: &Connection, at_hand: Option<(TaskRow, Base)>) -> Result<Self, Error> {
        let Some((TaskRow(task), base)) = at_hand else { return Ok(Self::default()) };
        // A shortened conversation begins behind what was left out of it.
        let sql = "SELECT COALESCE((
                       SELECT step FROM said JOIN tasks USING (task)
                       WHERE said.task = ?1 AND covered > 0 AND place >= covered ORDER BY place LIMIT 1
                   ), 0)";
        let from = reader.prepare_cached(sql)?.query_row([task], |row| row.get(0))?;
        let recalled_before = match base {
            Base::Edit { message_id } => {
                step_of(reader, task, &message_id.to_string())?.map(|(step, _)| step)
            }
            Base::End | Base::Retry { .. } => None,
        };
        Ok(Self { task: Some(task), from, recalled_before: recalled_before.unwrap_or(i64::MAX) })
    }
}

/// The place of a candidate: its kind and its row.
type Key = (MemoryKind, i64);

/// Searches. Only what is in force is found.
pub(super) fn search(
    reader: &Connection,
    known: &CommonWords,
    query: &MemoryQuery,
) -> Result<Vec<Found>, Error> {
    let until = query.until;
    reader.progress_handler(BETWEEN_LOOKS, Some(move || Instant::now() >= until))?;
    // All of it in one snapshot, and with one lock.
    let found = reader.unchecked_transaction().and_then(|snapshot| ranked(&snapshot, known, query));
    reader.progress_handler(0, None::<fn() -> bool>)?;
    found
}

fn ranked(reader: &Connection, known: &CommonWords, query: &MemoryQuery) -> Result<Vec<Found>, Error> {
    let mut terms = Terms::of(&query.text);
    // Who asks for something gets it. A turn is told what bears on it, or nothing.
    if query.at_hand.is_none() {
        terms = terms.or_all(&query.text);
    }
    if terms.is_empty() {
        return Ok(Vec::new());
    }
    let shown = Shown::of(reader, query.at_hand)?;
    let mut lists = Vec::new();
    let mut weights: HashMap<MemoryKind, Vec<f64>> = HashMap::new();
    for kind in query.kinds {
        let Some(uses) = Uses::of(reader, known, *kind, &terms)? else { continue };
        for Ask { expression, time, weight } in uses.worth_asking(&terms, query.at_hand.is_some()) {
            lists.push((weight, candidates(reader, *kind, &expression, time, shown)?));
        }
        weights.insert(*kind, uses.weights());
    }
    let mut candidates: Vec<Candidate> = Vec::new();
    for (key, _) in fuse(&lists).into_iter().take(FETCHED) {
        candidates.extend(fetch(reader, key, &terms, &weights)?);
    }
    // What has more of the query comes first, over all kinds; of the same, what an index thinks better.
    candidates.sort_by(|one, other| other.weight.total_cmp(&one.weight));
    lists.push((BY_COVERAGE, candidates.iter().map(|candidate| candidate.key).collect()));
    // Of what fits as well the newer one is more likely to be so still.
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.found.created_at));
    lists.push((BY_AGE, candidates.iter().map(|candidate| candidate.key).collect()));
    let scores: HashMap<Key, f64> = fuse(&lists).into_iter().collect();
    let (placed, found): (Vec<_>, Vec<_>) = candidates
        .into_iter()
        .map(|Candidate { key, found, coverage, shows, .. }| {
            let is_relevant = terms.is_relevant(coverage);
            ((scores.get(&key).copied().unwrap_or(0.0), shows), Some(Found { is_relevant, ..found }))
        })
        .unzip();
    let mut found: Vec<Option<Found>> = found;
    let ordered = spread(&placed).into_iter().filter_map(|(number, score)| {
        let found = found.get_mut(number)?.take()?;
        Some(Found { score, ..found })
    });
    Ok(ordered.take(query.limit).collect())
}

/// The best candidates of a kind for an index's expression, the best first.
fn candidates(
    reader: &Connection,
    kind: MemoryKind,
    expression: &str,
    time: Option<Range<i64>>,
    shown: Shown,
) -> Result<Vec<Key>, Error> {
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
    let Shown { task, from, recalled_before } = shown;
    let (begin, end) = time.map(|time| (time.start, time.end)).unzip();
    let mut query = reader.prepare_cached(sql)?;
    let values = params![expression, task, from, recalled_before, CANDIDATES, begin, end];
    let rows = query.query_map(values, |row| Ok((kind, row.get(0)?)))?;
    rows.collect()
}

/// Something that was found, with how much it has of what is looked for.
struct Candidate {
    key: Key,
    found: Found,
    coverage: Coverage,
    weight: f64,
    shows: Shows,
}

fn fetch(
    reader: &Connection,
    key: Key,
    terms: &Terms,
    weights: &HashMap<MemoryKind, Vec<f64>>,
) -> Result<Option<Candidate>, Error> {
    let (kind, row) = key;
    let has = |found: Found, shows: Shows| {
        let tags = found.tags.iter().map(|tag| terms.coverage(tag));
        let coverage = tags.fold(terms.coverage(&found.content), BitOr::bitor);
        (found, coverage, shows)
    };
    let found = match kind {
        MemoryKind::Knowledge => record(reader, row)?.map(|found| has(found, Shows::Nothing)),
        MemoryKind::Episode => episode(reader, row)?.map(|(found, turn)| has(found, Shows::Turn(turn))),
        MemoryKind::Message => window(reader, row, terms)?,
    };
    Ok(found.map(|(found, coverage, shows)| {
        let weight = terms.weight(coverage, weights.get(&kind).map_or(&[], Vec::as_slice));
        Candidate { key, found, coverage, weight, shows }
    }))
}

fn record(reader: &Connection, record: i64) -> Result<Option<Found>, Error> {
    let sql = "SELECT id, content, source, tags, created_at FROM knowledge WHERE record = ?1";
    let mut query = reader.prepare_cached(sql)?;
    let found = query.query_row([record], |row| {
        Ok(Found {
            kind: MemoryKind::Knowledge,
            id: row.get(0)?,
            content: row.get(1)?,
            excerpt: row.get(1)?,
            source: Some(parsed(row, 2)?),
            tags: tags(row, 3)?,
            created_at: timestamp(row, 4)?,
            task_id: None,
            message_ids: Vec::new(),
            score: 0.0,
            is_relevant: false,
        })
    });
    found.optional()
}

fn episode(reader: &Connection, episode: i64) -> Result<Option<(Found, i64)>, Error> {
    let sql =
        "SELECT id, content, source, episodes.created_at, task_id, turn FROM episodes JOIN tasks USING (task)
               WHERE episode = ?1";
    let mut query = reader.prepare_cached(sql)?;
    let found = query.query_row([episode], |row| {
        let found = Found {
            kind: MemoryKind::Episode,
            id: row.get(0)?,
            content: row.get(1)?,
            excerpt: row.get(1)?,
            source: Some(parsed(row, 2)?),
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

fn window(
    reader: &Connection,
    window: i64,
    terms: &Terms,
) -> Result<Option<(Found, Coverage, Shows)>, Error> {
    let sql = "SELECT steps.body, steps.at, task_id,
                      EXISTS (SELECT 1 FROM episodes WHERE episodes.task = windows.task
                              AND episodes.turn <= steps.turn AND source = 'tool'), steps.turn
               FROM windows JOIN tasks USING (task)
               JOIN said ON said.task = windows.task AND nth >= first AND nth < first + 6
               JOIN steps ON steps.step = said.step WHERE window = ?1 ORDER BY nth";
    let mut query = reader.prepare_cached(sql)?;
    let rows = query.query_map([window], |row| {
        let words = Words::stored(row.get_ref(0)?.as_str()?);
        Ok((words, timestamp(row, 1)?, task_id(row, 2)?, row.get::<_, bool>(3)?, row.get::<_, i64>(4)?))
    })?;
    let (mut lines, mut turns) = (Vec::new(), Vec::new());
    let mut found: Option<Found> = None;
    for row in rows {
        let (words, at, task_id, tainted, turn) = row?;
        let Some(Words { message_id, speaker, text }) = words else { continue };
        let who = match speaker {
            Speaker::User => "The user",
            Speaker::Agent => "The agent",
        };
        turns.push(turn);
        lines.push(format!("{who}: {}", clipped(text, MAX_SHOWN)));
        let found = found.get_or_insert_with(|| Found {
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
            found.source = Some(Source::Tool);
        }
        found.message_ids.push(message_id);
        found.created_at = at;
    }
    let has: Vec<Coverage> = lines.iter().map(|line| terms.coverage(line)).collect();
    let coverage = has.iter().copied().fold(Coverage::default(), BitOr::bitor);
    let excerpt = best_pair(&lines, &has, terms);
    Ok(found.map(|found| {
        let matched = found.message_ids.iter().zip(&has).filter(|(_, has)| !has.is_empty());
        let shows = Shows::Messages { turns, matched: matched.map(|(id, _)| *id).collect() };
        (Found { excerpt, content: lines.join("\n"), ..found }, coverage, shows)
    }))
}

/// Of two messages next to each other those that have most of what is looked for; `has` is how much each has.
fn best_pair(lines: &[String], has: &[Coverage], terms: &Terms) -> String {
    let together = |pair: &[Coverage]| {
        let both = pair.iter().copied().fold(Coverage::default(), BitOr::bitor);
        terms.count(both)
    };
    let width = lines.len().clamp(1, 2);
    // Of equals the last: it is the newest.
    let best = lines.windows(width).zip(has.windows(width)).max_by_key(|(_, has)| together(has));
    best.map(|(pair, _)| pair.join("\n")).unwrap_or_default()
}
