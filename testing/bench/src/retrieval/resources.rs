//! What searching costs besides time: the size of the index, the memory of searches, and the writer's time to
//! take a turn in.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use api::{MessageId, TaskId, Timestamp};
use clap::Args;
use rusqlite::{Connection, OpenFlags};
use serde::{Deserialize, Serialize};
use store::{Brain, WriteTx};

use super::conversations::Conversation;
use super::filled_brain::{FilledBrain, PendingTurn, search};
use super::fts_baseline::TOKENIZER;
use super::score::FIRST;
use crate::binary;
use crate::stats::median;

/// The tables of the engine's index.
const INDEX_TABLES: [&str; 7] =
    ["terms_data", "terms_idx", "terms_docsize", "terms_config", "indexed", "indexed_counts", "to_index"];
/// The number of turns that are written to measure what one costs.
const TIMED_TURNS: usize = 200;
/// The most questions that are searched for in a process of their own, to measure what one search takes.
const MAX_SINGLE_SEARCHES: usize = 40;

/// The costs of one brain.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Resources {
    pub(crate) seed: u64,
    pub(crate) messages: usize,
    /// The size that the conversation was asked to have.
    #[serde(skip)]
    pub(crate) requested_messages: usize,
    pub(crate) index_bytes: u64,
    /// The indexes of the engine before it: of windows, with the words and their positions, and of episodes.
    pub(crate) older_index_bytes: Option<u64>,
    /// The most that one search takes.
    pub(crate) one_search: Growth,
    /// What the searches for all questions take in a row, with what the allocators keep between them.
    pub(crate) all_searches: Growth,
    /// The median time of the commit that ends a turn, with which memory takes it in.
    pub(crate) turn_ms: f64,
}

/// The most memory of a process that searches, above the same process before its first search, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Growth {
    /// With the pages of files, most of which are code that all engines of a host share.
    pub(crate) total_kib: i64,
    /// Memory without a file behind it.
    pub(crate) anonymous_kib: i64,
}

/// The arguments of the hidden command that searches in a process of its own.
#[derive(Args)]
pub(crate) struct SearchMemory {
    /// The brain.
    file: PathBuf,
}

impl SearchMemory {
    /// Searches for each line of the standard input, and prints as JSON how much the process grew at most.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let mut questions = String::new();
        std::io::stdin().lock().read_to_string(&mut questions)?;
        let brain = Brain::open(&self.file)?;
        // The kernel counts the peak from here on: see `proc_pid_clear_refs(5)`.
        fs::write("/proc/self/clear_refs", "5").context("the peak of the memory cannot be reset")?;
        let (before, files_before) = (memory_kib("VmRSS:")?, memory_kib("RssFile:")?);
        for question in questions.lines() {
            search(&brain, question, FIRST[1])?;
        }
        let total_kib = memory_kib("VmHWM:")? - before;
        // Mapped pages of files only become more.
        let anonymous_kib = total_kib - (memory_kib("RssFile:")? - files_before);
        let growth = serde_json::to_string(&Growth { total_kib, anonymous_kib })?;
        Ok(writeln!(std::io::stdout().lock(), "{growth}")?)
    }
}

fn memory_kib(name: &str) -> anyhow::Result<i64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()).context("the memory is not known")?;
    Ok(number.parse()?)
}

/// Measures the costs of a filled brain, into which it writes some more turns.
pub(crate) async fn measure(
    (seed, requested_messages): (u64, usize),
    filled: FilledBrain,
    conversation: &Conversation,
    windows_bytes: Option<u64>,
) -> anyhow::Result<Resources> {
    let file = filled.brain.file().to_owned();
    let reader = Connection::open_with_flags(&file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let index_bytes = table_bytes(&reader, &INDEX_TABLES)?;
    let older_index_bytes = match windows_bytes {
        Some(windows) => Some(windows + episode_index_bytes(&file)?),
        None => None,
    };
    drop(reader);
    let turn_ms = time_turns(&filled.brain, conversation).await?;
    filled.brain.close().await;
    let questions: Vec<&str> = conversation.questions.iter().map(|question| question.text.as_str()).collect();
    let all_searches = measure_memory(&file, &questions)?;
    let mut one_search = Growth::default();
    for question in questions.iter().copied().step_by(questions.len().div_ceil(MAX_SINGLE_SEARCHES).max(1)) {
        let growth = measure_memory(&file, &[question])?;
        if growth.anonymous_kib > one_search.anonymous_kib {
            one_search = growth;
        }
    }
    let messages = conversation.messages.len();
    Ok(Resources {
        seed,
        messages,
        requested_messages,
        index_bytes,
        older_index_bytes,
        one_search,
        all_searches,
        turn_ms,
    })
}

/// The size of tables with their indexes, in bytes; those that do not exist have none.
pub(crate) fn table_bytes(connection: &Connection, tables: &[&str]) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for table in tables {
        let sql = "SELECT COALESCE(SUM(pgsize), 0) FROM dbstat WHERE name = ?1 AND aggregate = TRUE";
        let size: i64 = connection.query_row(sql, [table], |row| row.get(0))?;
        bytes += u64::try_from(size)?;
    }
    Ok(bytes)
}

/// The size of a full-text index of the episodes of a brain.
fn episode_index_bytes(brain: &Path) -> anyhow::Result<u64> {
    let connection = Connection::open(brain.with_file_name("episodes"))?;
    connection.execute("ATTACH ?1 AS brain", [brain.to_str().context("the folder's name is no text")?])?;
    connection.execute_batch(&format!(
        "CREATE VIRTUAL TABLE main.words USING fts5 (content, content = '', tokenize = '{TOKENIZER}');
         INSERT INTO main.words (rowid, content) SELECT episode, content FROM brain.episodes;"
    ))?;
    table_bytes(&connection, &["words_data", "words_idx", "words_docsize"])
}

/// Writes turns one by one, as a running engine does; the median milliseconds of the commits that end them.
async fn time_turns(brain: &Brain, conversation: &Conversation) -> anyhow::Result<f64> {
    let task = brain.reserve_task();
    let at = Timestamp::from_unix_ms(conversation.sessions.last().map_or(0, |session| session.began_ms));
    let task_id = TaskId::new("timed")?;
    brain.write(move |tx: &WriteTx<'_>| tx.insert_task(task, &task_id, at)).await?;
    let mut times_ms = Vec::new();
    for [one, other] in conversation.messages.as_chunks().0.iter().take(TIMED_TURNS) {
        let texts = [one.text.clone(), other.text.clone()];
        let turn = Arc::new(PendingTurn::new([MessageId::new(), MessageId::new()], texts, at));
        let end = turn.clone();
        brain.write(move |tx: &WriteTx<'_>| turn.write_messages(tx, task)).await?;
        let began = Instant::now();
        brain.write(move |tx: &WriteTx<'_>| end.write_end(tx, task)).await?;
        times_ms.push(began.elapsed().as_secs_f64() * 1_000.0);
    }
    Ok(median(&times_ms).unwrap_or_default())
}

/// Searches in a process of its own, so that nothing else takes or frees memory meanwhile.
fn measure_memory(file: &Path, questions: &[&str]) -> anyhow::Result<Growth> {
    let mut child = Command::new(binary::current_program()?)
        .arg("search-memory")
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the process that searches could not be started")?;
    let questions: String = questions.iter().map(|question| question.replace('\n', " ") + "\n").collect();
    let mut input = child.stdin.take().context("the process that searches has no input")?;
    input.write_all(questions.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "the process that searches failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}
