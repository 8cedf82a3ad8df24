//! Stores that bloat. What a turn writes grows with the turn and not with the thread.

use std::ops::RangeInclusive;

use mock_llm::{Reply, Usage, Wire};
use rusqlite::Connection;
use serde_json::json;

use crate::agent::harness::{AgentHarness, final_text};

/// The turns that are measured, all alike: some early ones and some late ones.
const MEASURED_TURNS: [RangeInclusive<u32>; 2] = [10..=19, 191..=200];
/// How much more a late turn may write than an early one.
const MAX_GROWTH_RATIO: f64 = 1.2;
/// The same for whole pages of the WAL. How events share commits is a matter of chance, so this only detects a
/// store that writes its thread again; `bench bytes-per-turn` measures it when nothing else runs.
const MAX_WAL_GROWTH_RATIO: f64 = 3.0;

/// Returns the size of everything stored, in bytes.
fn stored_bytes(brain: &Connection) -> u32 {
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let mut tables = brain.prepare(tables).unwrap();
    let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let bytes = |table: &String| {
        let columns = format!("SELECT name FROM pragma_table_info('{table}')");
        let mut columns = brain.prepare(&columns).unwrap();
        let columns: Vec<String> =
            columns.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let sum: Vec<String> =
            columns.iter().map(|column| format!("COALESCE(LENGTH(CAST({column} AS BLOB)), 0)")).collect();
        let sum = format!("SELECT COALESCE(SUM({}), 0) FROM {table}", sum.join(" + "));
        brain.query_row(&sum, [], |row| row.get::<_, u32>(0)).unwrap()
    };
    tables.iter().map(bytes).sum()
}

/// Returns the size of the WAL in bytes, then checkpoints and empties it.
fn wal_bytes(harness: &AgentHarness, brain: &Connection) -> u32 {
    let mut log = harness.brain.file().as_os_str().to_owned();
    log.push("-wal");
    let bytes = std::fs::metadata(log).unwrap().len();
    brain.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    u32::try_from(bytes).unwrap()
}

/// Runs a turn with a call, a change of working memory, and an answer.
async fn run_turn(harness: &AgentHarness) {
    let usage = Usage { input: Some(1_000), output: Some(100), ..Usage::default() };
    let call = Reply::new().text("I keep it.").deltas(1);
    harness.provider.enqueue_all([
        call.tool_use("working_memory_set", json!({"key": "k", "value": "the same"})).usage(usage),
        Reply::from_text("Always the same words. ".repeat(20)).deltas(1).usage(usage),
    ]);
    final_text(&harness.send("The same question again. Do you keep it?").await);
}

#[tokio::test]
async fn regression_e11_a_late_turn_writes_what_an_early_one_wrote() {
    let harness = AgentHarness::new(Wire::OpenAiChat).await;
    let outside = harness.open_connection();
    let (mut stored, mut written) = ([0, 0], [u32::MAX, u32::MAX]);
    for number in 1..=200 {
        let Some(window) = MEASURED_TURNS.iter().position(|window| window.contains(&number)) else {
            harness.send("And?").await;
            continue;
        };
        let before = stored_bytes(&outside);
        wal_bytes(&harness, &outside);
        run_turn(&harness).await;
        written[window] = written[window].min(wal_bytes(&harness, &outside));
        stored[window] += stored_bytes(&outside) - before;
    }
    let ratio = |[early, late]: [u32; 2]| f64::from(late) / f64::from(early);
    assert!(ratio(stored) < MAX_GROWTH_RATIO, "stored early and late: {stored:?} bytes");
    assert!(ratio(written) < MAX_WAL_GROWTH_RATIO, "written early and late: {written:?} bytes");
}
