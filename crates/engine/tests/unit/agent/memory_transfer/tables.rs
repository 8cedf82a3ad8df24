//! Each table of a brain, and each column of those that are exported, moves with an export, or is named here with the
//! reason why it does not. A new one makes a test fail until it is decided which of both it is.

use std::collections::{BTreeMap, BTreeSet};

use pretty_assertions::assert_eq;
use rusqlite::Connection;

use super::*;

/// The tables whose content an export has. Of some it has not all rows.
const EXPORTED: [(&str, &str); 20] = [
    ("batches", "ended_at IS NOT NULL"),
    ("conversations", "TRUE"),
    ("episodes", "TRUE"),
    ("events", "kind <> 'text_delta'"),
    ("feedback", "TRUE"),
    ("knowledge", "TRUE"),
    ("lessons", "TRUE"),
    ("media", "TRUE"),
    ("media_uses", "TRUE"),
    ("recalled", "TRUE"),
    ("said", "TRUE"),
    ("schedules", "TRUE"),
    ("skills", "TRUE"),
    ("steps", "TRUE"),
    ("tasks", "TRUE"),
    ("trajectories", "TRUE"),
    ("turns", "TRUE"),
    ("usage", "TRUE"),
    ("user_servers", "TRUE"),
    ("working_memory", "TRUE"),
];

/// The tables that no import brings, with the reason.
const NOT_IMPORTED: [(&str, &str); 29] = [
    ("additions", "the migrations of the brain"),
    ("approvals", "what waits is left out, and what was decided is in the journal"),
    ("authorizations", "credentials"),
    ("cap_use", "days belong to the engine, and tasks are counted from their usage"),
    ("checkpoints", "read from the journal"),
    ("connections", "credentials"),
    ("episode_words", "an index of earlier versions"),
    ("erasures", "what is to be removed from this file"),
    ("first_deltas", "what this engine did"),
    ("grants", "belong to the engine"),
    ("indexed", "an index"),
    ("indexed_counts", "an index"),
    ("knowledge_words", "an index of earlier versions"),
    ("pending", "waits for a person"),
    ("queued_turns", "exported, but an import begins no turn"),
    ("registrations", "credentials"),
    ("schedule_runs", "what this engine did"),
    ("settings", "belong to the engine"),
    ("spending", "budgets belong to the engine"),
    ("terms", "an index"),
    ("title_requests", "an import calls no model"),
    ("to_index", "an index"),
    ("usage_days", "what this engine did"),
    ("usage_days_owner", "what this engine did"),
    ("webhook_deliveries", "what this engine sends"),
    ("webhook_events", "configuration"),
    ("webhook_pause", "what this engine sends"),
    ("window_words", "an index of earlier versions"),
    ("windows", "an index of earlier versions"),
];

/// The columns of exported tables that differ after an import, with the reason. Those of `*` are in any table.
const DIFFERING: [(&str, &str, &str); 15] = [
    ("*", "task", "a row's number"),
    ("*", "turn", "a row's number"),
    ("*", "step", "a row's number"),
    ("*", "batch", "a row's number"),
    ("conversations", "origin", "a row's number"),
    ("episodes", "episode", "a row's number"),
    ("feedback", "feedback", "a row's number"),
    ("knowledge", "record", "a row's number"),
    ("schedules", "schedule", "a row's number"),
    ("user_servers", "server", "a row's number"),
    ("schedules", "next_due_at", "computed anew, because what was due before an import is not made up for"),
    ("tasks", "taken_in", "a row's number"),
    ("turns", "ended_at", "a turn that has not ended ends with its export"),
    ("turns", "starts", "an imported turn is never resumed"),
    ("turns", "folded", "an export has no deltas"),
];

fn strings(connection: &Connection, sql: &str) -> Vec<String> {
    let mut query = connection.prepare(sql).unwrap();
    query.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The columns of a table that are the same after an import.
fn moved_columns(connection: &Connection, table: &str) -> Vec<String> {
    let mut columns = strings(connection, &format!("SELECT name FROM pragma_table_info('{table}')"));
    columns.retain(|column| {
        !DIFFERING.iter().any(|(of, name, _)| (*of == "*" || *of == table) && name == column)
    });
    columns
}

/// The rows that an export has of each table, each as text, without an order.
fn exported_rows(brain: &Brain) -> BTreeMap<&'static str, Vec<String>> {
    let connection = Connection::open(brain.file()).unwrap();
    let rows = EXPORTED.map(|(table, condition)| {
        let columns: Vec<String> = moved_columns(&connection, table)
            .iter()
            .map(|column| {
                format!("'{column}=' || iif(typeof({column}) = 'blob', hex({column}), quote({column}))")
            })
            .collect();
        let columns = if columns.is_empty() { "'a row'".to_owned() } else { columns.join(" || '; ' || ") };
        let sql = format!("SELECT {columns} AS text FROM {table} WHERE {condition} ORDER BY text");
        (table, strings(&connection, &sql))
    });
    rows.into()
}

#[test]
fn every_table_is_in_an_export_or_has_a_reason_not_to_be() {
    let (brain, _folder) = empty_brain();
    let connection = Connection::open(brain.file()).unwrap();
    // The tables that an index consists of are not listed here.
    let tables = "SELECT name FROM pragma_table_list
                  WHERE schema = 'main' AND type IN ('table', 'virtual') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    let found: BTreeSet<String> = strings(&connection, tables).into_iter().collect();
    let known = EXPORTED.iter().chain(&NOT_IMPORTED).map(|(table, _)| (*table).to_owned()).collect();
    assert_eq!(found, known, "a table is neither exported nor named with a reason, or is gone");
}

#[tokio::test]
async fn regression_e20_every_column_of_an_exported_table_is_the_same_after_an_import() {
    let (model, document) = populated_brain().await;
    let connection = Connection::open(model.brain.file()).unwrap();
    for (table, condition) in EXPORTED {
        for column in moved_columns(&connection, table) {
            let filled = format!(
                "SELECT EXISTS (SELECT 1 FROM {table} WHERE {condition}
                 AND {column} IS NOT NULL AND {column} NOT IN (0, '', '{{}}', '[]'))"
            );
            let is_filled: bool = connection.query_row(&filled, [], |row| row.get(0)).unwrap();
            assert!(is_filled, "no row of the tests has a value in `{table}.{column}`: insert one");
        }
    }
    for (of, column, _) in DIFFERING {
        let is_there = |(table, _): &(&str, &str)| {
            let sql = format!("SELECT name FROM pragma_table_info('{table}')");
            strings(&connection, &sql).iter().any(|name| name == column)
        };
        assert!(
            EXPORTED.iter().filter(|(table, _)| of == "*" || of == *table).any(is_there),
            "{of}.{column}"
        );
    }
    let before = exported_rows(&model.brain);
    let (brain, _folder) = empty_brain();
    import(&brain, &document, ImportMode::Merge).await.unwrap();
    assert_eq!(exported_rows(&brain), before);
}
