//! Reads the open turns of a dead engine from its brain, without changing it.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

/// A turn that had not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenTurn {
    /// Its id.
    pub(crate) turn_id: String,
    /// How many steps it has.
    pub(crate) steps: usize,
    /// The kind of its last step.
    pub(crate) last_step: String,
    /// How many of its calls were started and have no result.
    pub(crate) intents_without_result: usize,
}

/// Returns the open turns in `brain`; none if the brain does not exist yet.
pub(crate) fn open_turns(brain: &Path) -> anyhow::Result<Vec<OpenTurn>> {
    let Ok(reader) = open_read_only(brain) else { return Ok(Vec::new()) };
    let table_exists = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'steps')";
    if !reader.query_row(table_exists, [], |row| row.get::<_, bool>(0)).context("the brain cannot be read")? {
        return Ok(Vec::new());
    }
    let mut turns = reader.prepare("SELECT task, turn, turn_id FROM turns WHERE ended_at IS NULL")?;
    let mut steps = reader.prepare("SELECT body FROM steps WHERE task = ?1 AND turn = ?2 ORDER BY step")?;
    let open = turns
        .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?)))?;
    open.map(|turn| {
        let (task, turn, turn_id) = turn?;
        let bodies = steps.query_map([task, turn], |row| row.get::<_, String>(0))?;
        summarize_turn(turn_id, &bodies.collect::<Result<Vec<_>, _>>()?)
    })
    .collect()
}

/// Whether SQLite's integrity check succeeds.
pub(crate) fn is_intact(brain: &Path) -> anyhow::Result<bool> {
    let found: String = open_read_only(brain)?.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    Ok(found == "ok")
}

/// Counts, for each open turn, consecutive ends of the engine without a new step.
#[derive(Debug, Default)]
pub(crate) struct StallTracker(Mutex<HashMap<String, (usize, u64)>>);

impl StallTracker {
    /// Records that the engine ended with these turns open.
    pub(crate) fn record(&self, open: &[OpenTurn]) {
        let mut turns = self.0.lock();
        for OpenTurn { turn_id, steps, .. } in open {
            let (known, ends) = turns.entry(turn_id.clone()).or_default();
            *ends = if known == steps { *ends + 1 } else { 1 };
            *known = *steps;
        }
    }

    /// How many ends of the engine in a row left the turn without a new step, when it was last open.
    pub(crate) fn restarts_without_progress(&self, turn_id: &str) -> u64 {
        let turns = self.0.lock();
        turns.get(turn_id).map_or(0, |(_, ends)| *ends)
    }
}

fn open_read_only(brain: &Path) -> anyhow::Result<Connection> {
    let reader = Connection::open_with_flags(brain, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    reader.busy_timeout(Duration::from_secs(1))?;
    Ok(reader)
}

fn summarize_turn(turn_id: String, bodies: &[String]) -> anyhow::Result<OpenTurn> {
    let mut last_step = "none".to_owned();
    let mut intents = BTreeSet::new();
    let mut progress_steps = 0;
    for body in bodies {
        let body: Value = serde_json::from_str(body).context("a step is not JSON")?;
        let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        last_step = text("step");
        // These are written while a step is under way, and are no progress of the turn.
        progress_steps += usize::from(!matches!(last_step.as_str(), "steered" | "spent"));
        match last_step.as_str() {
            "intended" => _ = intents.insert(text("call_id")),
            "resulted" => _ = intents.remove(&text("call_id")),
            _ => {}
        }
    }
    Ok(OpenTurn { turn_id, steps: progress_steps, last_step, intents_without_result: intents.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_stands_at_its_last_step() {
        let steps = [
            r#"{"step":"opened"}"#,
            r#"{"step":"answered"}"#,
            r#"{"step":"intended","call_id":"a"}"#,
            r#"{"step":"intended","call_id":"b"}"#,
            r#"{"step":"resulted","call_id":"a"}"#,
        ];
        let open_turn = summarize_turn("t".into(), &steps.map(str::to_owned)).unwrap();
        assert_eq!(
            open_turn,
            OpenTurn {
                turn_id: "t".into(),
                steps: 5,
                last_step: "resulted".into(),
                intents_without_result: 1
            }
        );
    }

    #[test]
    fn a_turn_stalls_until_it_has_a_new_step() {
        let stalls = StallTracker::default();
        let open = |steps| {
            [OpenTurn { turn_id: "t".into(), steps, last_step: "x".into(), intents_without_result: 0 }]
        };
        for (steps, ends) in [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)] {
            stalls.record(&open(steps));
            assert_eq!(stalls.restarts_without_progress("t"), ends);
        }
        assert_eq!(stalls.restarts_without_progress("another"), 0);
    }

    #[test]
    fn a_brain_that_was_not_made_has_no_open_turn() {
        assert_eq!(open_turns(Path::new("/nowhere/brain.sqlite")).unwrap(), []);
    }
}
