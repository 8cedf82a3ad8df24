//! Writes that fail because the engine is in its own way: while deleted data is erased, the write-ahead log is
//! truncated, and meanwhile nobody else may write.

use std::time::Duration;

use mock_llm::Wire;
use rusqlite::Connection;
use serde_json::json;

use crate::agent::harness::AgentHarness;

const ATTEMPTS: usize = 5;

#[tokio::test]
async fn regression_e19_what_is_written_while_the_log_is_truncated_waits() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let (reader, other) = (harness.open_connection(), harness.open_connection());
    other.busy_timeout(Duration::ZERO).unwrap();
    for number in 0..ATTEMPTS {
        // A reader keeps the log from being truncated, so the attempt holds the write lock for as long as it may.
        reader.execute_batch("BEGIN; SELECT COUNT(*) FROM schedules").unwrap();
        let brain = harness.brain.clone();
        let attempt = std::thread::spawn(move || brain.truncate_wal().unwrap());
        while is_writable(&other) {
            assert!(!attempt.is_finished(), "the attempt did not take the lock");
        }
        // It counts the schedules before it writes.
        let schedule = json!({
            "id": format!("n{number}"), "name": "Far", "message": "Report.", "when": {"every_seconds": 315_360_000},
        });
        harness.agent.create_schedule(serde_json::from_value(schedule).unwrap()).await.unwrap();
        assert!(!attempt.join().unwrap(), "the reader was not in the way");
        reader.execute_batch("COMMIT").unwrap();
    }
}

fn is_writable(connection: &Connection) -> bool {
    connection
        .execute_batch("BEGIN IMMEDIATE")
        .map(|()| connection.execute_batch("ROLLBACK").unwrap())
        .is_ok()
}
