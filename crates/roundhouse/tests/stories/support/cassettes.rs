//! Cassettes of turns, and their runs.

use std::collections::BTreeMap;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use super::http::path_segment;
use super::{EngineFixture, Event, StandaloneEngine, assert_fields};

/// The fields of a cassette.
const CASSETTE: &str = "format:text version:int task_id:text turn_id:turn started_at:time ended_at:time \
                        incomplete?:array prompt:object steps:array outcome:object expect?:array";
/// The fields of a report.
pub(crate) const REPORT: &str = "task_id:text turn_id:turn incomplete:array recorded_models:array model:text \
                                 end:object steps:array missing_calls:array calls:object step_counts:object \
                                 text:object usage:object expectations:array scores:object";

/// The turn of these events.
pub(crate) fn turn_of(events: &[Event]) -> &str {
    events[0].data["turn_id"].as_str().unwrap()
}

/// A cassette with rules.
pub(crate) fn with_rules(mut cassette: Value, rules: Value) -> Value {
    cassette["expect"] = rules;
    cassette
}

impl EngineFixture {
    /// The cassette of a turn.
    pub(crate) async fn cassette(&self, task: &str, turn: &str) -> Value {
        let path = format!("/tasks/{}/turns/{turn}/cassette", path_segment(task));
        let cassette = self.engine.get(&path).await.assert_ok(CASSETTE);
        assert_eq!((&cassette["format"], &cassette["version"]), (&json!("roundhouse.cassette"), &json!(1)));
        cassette
    }

    /// Runs a cassette.
    pub(crate) async fn replay(&self, cassette: &Value, with: Value) -> Value {
        let body = json!({"cassette": cassette, "with": with});
        let report = self.engine.post("/cassettes/run", &body).await.assert_ok(REPORT);
        assert_fields(&report["scores"], "tools:number text:number expectations:number|null total:number");
        report
    }

    /// The refusal of a run.
    pub(crate) async fn refused_replay(&self, cassette: &Value, with: Value) -> String {
        let body = json!({"cassette": cassette, "with": with});
        let answer = self.engine.post("/cassettes/run", &body).await;
        answer.assert_error(400, "INVALID_REQUEST").to_owned()
    }
}

/// What turns, tools and people leave in a brain: tables and their columns. Usage is not among it, nor what is indexed
/// in the background.
const TABLES: [(&str, &str); 16] = [
    ("tasks", "task_id, created_at, message_count, updated_at"),
    ("turns", "turn_id, task, message_id, opened_at, ended_at, starts"),
    ("steps", "*"),
    ("events", "*"),
    ("working_memory", "*"),
    ("pending", "*"),
    ("grants", "*"),
    ("media", "*"),
    ("knowledge", "*"),
    ("skills", "*"),
    ("approvals", "*"),
    ("connections", "*"),
    ("queued_turns", "*"),
    ("conversations", "*"),
    ("feedback", "*"),
    ("lessons", "*"),
];

/// The rows of these tables.
pub(crate) fn brain_rows(setup: &StandaloneEngine) -> BTreeMap<&'static str, Vec<String>> {
    let brain = Connection::open_with_flags(setup.brain(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let rows = TABLES.into_iter().map(|(table, columns)| {
        let mut query = brain.prepare(&format!("SELECT {columns} FROM {table}")).unwrap();
        let columns = query.column_count();
        let rows = query.query_map([], |row| {
            let values = (0..columns).map(|column| match row.get_ref(column).unwrap() {
                ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                other => format!("{other:?}"),
            });
            Ok(values.collect::<Vec<_>>().join("|"))
        });
        let rows = rows.unwrap().map(Result::unwrap).collect();
        (table, rows)
    });
    rows.collect()
}
