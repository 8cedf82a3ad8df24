//! Search over all that is remembered: knowledge, episodes, and messages in overlapping windows.

use std::collections::HashMap;
use std::ops::BitOr;
use std::time::Instant;

use contract::memory::{MemoryKind, Source};
use contract::{MessageId, TaskId, Timestamp};
use rusqlite::{Connection, Error, OptionalExtension as _, params};

use super::TaskRow;
use super::knowledge::tags;
use super::ranking::fuse;
use super::read::{self, parsed, task_id, timestamp};
use super::steps::Base;
use super::taking_in::{Speaker, clipped, said, step_of};
use super::terms::{Coverage, Terms};

/// How many candidates of each kind an index gives.
const CANDIDATES: i64 = 20;
/// A word is common that is in half of the records of its kind, but not in fewer records than the first number, and
/// in any case in so many as the second one.
pub(super) const COMMON: (i64, i64) = (64, 1_000);
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
pub(super) fn search(reader: &Connection, query: &MemoryQuery) -> Result<Vec<Found>, Error> {
    let until = query.until;
    reader.progress_handler(BETWEEN_LOOKS, Some(move || Instant::now() >= until))?;
    // All of it in one snapshot, and with one lock.
    let found = reader.unchecked_transaction().and_then(|snapshot| ranked(&snapshot, query));
    reader.progress_handler(0, None::<fn() -> bool>)?;
    found
}

fn ranked(reader: &Connection, query: &MemoryQuery) -> Result<Vec<Found>, Error> {
    let mut terms = Terms::of(&query.text);
    // Who asks for something gets it. A turn is told what bears on it, or nothing.
    if query.at_hand.is_none() {
        terms = terms.or_all(&query.text);
    }
    if terms.is_empty() {
        return Ok(Vec::new());
    }
    let shown = Shown::of(reader, query.at_hand)?;
    let mut lists: Vec<Vec<Key>> = Vec::new();
    for kind in query.kinds {
        for expression in worth_asking(reader, *kind, &terms, query.at_hand.is_some())? {
            lists.push(candidates(reader, *kind, &expression, shown)?);
        }
    }
    let mut found: HashMap<Key, (Found, Coverage)> = HashMap::new();
    for key in lists.iter().flatten() {
        if !found.contains_key(key)
            && let Some(candidate) = fetch(reader, *key, &terms)?
        {
            found.insert(*key, candidate);
        }
    }
    // What has more of the query comes first, over all kinds; of the same, what an index thinks better.
    let mut by_coverage: Vec<Key> = fuse(&lists).into_iter().map(|(key, _)| key).collect();
    by_coverage.retain(|key| found.contains_key(key));
    by_coverage.sort_by_key(|key| {
        let (_, coverage) =
            found.get(key).map_or((None, Coverage::default()), |(found, has)| (Some(found), *has));
        std::cmp::Reverse((coverage.words() + coverage.names(), coverage.names()))
    });
    lists.push(by_coverage);
    let fused = fuse(&lists).into_iter().filter_map(|(key, score)| {
        let (found, coverage) = found.remove(&key)?;
        Some(Found { score, is_relevant: terms.is_relevant(coverage), ..found })
    });
    Ok(fused.take(query.limit).collect())
}

/// What an index is asked: for what has any of the words, and for what has any of the names. A word that is in very
/// much of it says little and costs much to rank. Where there are no others nobody who did not ask is told anything;
/// who did ask gets what has all of them.
fn worth_asking(
    reader: &Connection,
    kind: MemoryKind,
    terms: &Terms,
    unasked: bool,
) -> Result<Vec<String>, Error> {
    // The last row's number is about how many there are, and costs nothing.
    let (all, sql) = match kind {
        MemoryKind::Knowledge => (
            "SELECT MAX(record) FROM knowledge",
            "SELECT COUNT(*) FROM (SELECT 1 FROM knowledge_words WHERE knowledge_words MATCH ?1 LIMIT ?2)",
        ),
        MemoryKind::Episode => (
            "SELECT MAX(episode) FROM episodes",
            "SELECT COUNT(*) FROM (SELECT 1 FROM episode_words WHERE episode_words MATCH ?1 LIMIT ?2)",
        ),
        MemoryKind::Message => (
            "SELECT MAX(window) FROM windows",
            "SELECT COUNT(*) FROM (SELECT 1 FROM window_words WHERE window_words MATCH ?1 LIMIT ?2)",
        ),
    };
    let all: Option<i64> = reader.prepare_cached(all)?.query_row([], |row| row.get(0))?;
    let Some(all) = all else { return Ok(Vec::new()) };
    let is_common = (all / 2).clamp(COMMON.0, COMMON.1);
    let mut count = reader.prepare_cached(sql)?;
    let (mut rare, mut names, mut common) = (Vec::new(), Vec::new(), Vec::new());
    for (word, is_name) in terms.expressions() {
        let uses: i64 = count.query_row(params![word, is_common], |row| row.get(0))?;
        if uses == is_common {
            common.push(word);
        } else if uses > 0 {
            names.extend(is_name.then(|| word.clone()));
            rare.push(word);
        }
    }
    if rare.is_empty() {
        let asked_for = !unasked && !common.is_empty();
        return Ok(asked_for.then(|| common.join(" AND ")).into_iter().collect());
    }
    let only_names = names.is_empty() || names.len() == rare.len();
    let names = (!only_names).then(|| names.join(" OR "));
    Ok(std::iter::once(rare.join(" OR ")).chain(names).collect())
}

/// The best candidates of a kind for an index's expression, the best first.
fn candidates(
    reader: &Connection,
    kind: MemoryKind,
    expression: &str,
    shown: Shown,
) -> Result<Vec<Key>, Error> {
    let sql = match kind {
        MemoryKind::Knowledge => {
            "SELECT record FROM knowledge_words JOIN knowledge ON record = knowledge_words.rowid
             WHERE knowledge_words MATCH ?1 AND valid_until IS NULL
             AND (?2 IS NULL OR task IS NOT ?2 OR step < ?3) AND NOT EXISTS (
                 SELECT 1 FROM recalled
                 WHERE recalled.task = ?2 AND recalled.id = knowledge.id
                 AND recalled.step >= ?3 AND recalled.step < ?4
             )
             ORDER BY knowledge_words.rank LIMIT ?5"
        }
        MemoryKind::Episode => {
            "SELECT episode FROM episode_words JOIN episodes ON episode = episode_words.rowid
             WHERE episode_words MATCH ?1
             AND (?2 IS NULL OR task <> ?2 OR step < ?3) AND NOT EXISTS (
                 SELECT 1 FROM recalled
                 WHERE recalled.task = ?2 AND recalled.id = episodes.id
                 AND recalled.step >= ?3 AND recalled.step < ?4
             )
             ORDER BY episode_words.rank LIMIT ?5"
        }
        MemoryKind::Message => {
            "SELECT window FROM window_words JOIN windows ON window = window_words.rowid
             WHERE window_words MATCH ?1 AND (?2 IS NULL OR task <> ?2 OR (
                 SELECT MAX(step) FROM said WHERE said.task = ?2 AND nth >= first AND nth < first + 6
             ) < ?3) AND NOT EXISTS (
                 SELECT 1 FROM recalled JOIN said ON said.task = windows.task AND nth = first
                 WHERE recalled.task = ?2 AND recalled.id = said.message_id
                 AND recalled.step >= ?3 AND recalled.step < ?4
             )
             ORDER BY window_words.rank LIMIT ?5"
        }
    };
    let Shown { task, from, recalled_before } = shown;
    let mut query = reader.prepare_cached(sql)?;
    let values = params![expression, task, from, recalled_before, CANDIDATES];
    let rows = query.query_map(values, |row| Ok((kind, row.get(0)?)))?;
    rows.collect()
}

/// A candidate, with how much it has of what is looked for.
fn fetch(reader: &Connection, (kind, row): Key, terms: &Terms) -> Result<Option<(Found, Coverage)>, Error> {
    let has = |found: Found| {
        let tags = found.tags.iter().map(|tag| terms.coverage(tag));
        let coverage = tags.fold(terms.coverage(&found.content), BitOr::bitor);
        (found, coverage)
    };
    match kind {
        MemoryKind::Knowledge => Ok(record(reader, row)?.map(has)),
        MemoryKind::Episode => Ok(episode(reader, row)?.map(has)),
        MemoryKind::Message => window(reader, row, terms),
    }
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

fn episode(reader: &Connection, episode: i64) -> Result<Option<Found>, Error> {
    let sql = "SELECT id, content, source, episodes.created_at, task_id FROM episodes JOIN tasks USING (task)
               WHERE episode = ?1";
    let mut query = reader.prepare_cached(sql)?;
    let found = query.query_row([episode], |row| {
        Ok(Found {
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
        })
    });
    found.optional()
}

fn window(reader: &Connection, window: i64, terms: &Terms) -> Result<Option<(Found, Coverage)>, Error> {
    let sql = "SELECT steps.body, steps.at, task_id,
                      EXISTS (SELECT 1 FROM episodes WHERE episodes.task = windows.task
                              AND episodes.turn <= steps.turn AND source = 'tool')
               FROM windows JOIN tasks USING (task)
               JOIN said ON said.task = windows.task AND nth >= first AND nth < first + 6
               JOIN steps ON steps.step = said.step WHERE window = ?1 ORDER BY nth";
    let mut query = reader.prepare_cached(sql)?;
    let rows = query.query_map([window], |row| {
        let words = read::step(row.get_ref(0)?.as_str()?).ok().and_then(|step| said(&step));
        Ok((words, timestamp(row, 1)?, task_id(row, 2)?, row.get::<_, bool>(3)?))
    })?;
    let mut lines: Vec<String> = Vec::new();
    let mut found: Option<Found> = None;
    for row in rows {
        let (words, at, task_id, tainted) = row?;
        let Some((message_id, speaker, text)) = words else { continue };
        let who = match speaker {
            Speaker::User => "The user",
            Speaker::Agent => "The agent",
        };
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
    let excerpt = best_pair(&lines, &has);
    Ok(found.map(|found| (Found { excerpt, content: lines.join("\n"), ..found }, coverage)))
}

/// Of two messages next to each other those that have most of what is looked for; `has` is how much each has.
fn best_pair(lines: &[String], has: &[Coverage]) -> String {
    let together = |pair: &[Coverage]| {
        let both = pair.iter().copied().fold(Coverage::default(), BitOr::bitor);
        both.words() + both.names()
    };
    let width = lines.len().clamp(1, 2);
    // Of equals the last: it is the newest.
    let best = lines.windows(width).zip(has.windows(width)).max_by_key(|(_, has)| together(has));
    best.map(|(pair, _)| pair.join("\n")).unwrap_or_default()
}
