//! The memory of an earlier version is indexed anew in the background: searches work throughout, however often the
//! engine is killed meanwhile, and the index ends whole.
//!
//! `ROUNDHOUSE_TEST_REBUILD_MESSAGES=100000 ROUNDHOUSE_TEST_REBUILD_KILLS=50 cargo test --release --test stories
//! search_rebuild -- --nocapture` is the full size.

use std::time::{Duration, Instant};

use reqwest::{Body, Method};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::support::synthetic_export::{SyntheticExport, TURNS_PER_TASK, name_of_turn};
use crate::support::test_env::BINARY;
use crate::support::{Engine, StandaloneEngine, env_number, processes};
use crate::upgrades::earlier_programs;

/// How long a search may take, however busy the writer is.
const SEARCH_LIMIT: Duration = Duration::from_secs(5);

/// How long the index may take after the last start.
const REBUILD_LIMIT: Duration = Duration::from_mins(10);

/// The tasks in which a text is found.
async fn tasks_with(engine: &Engine, text: &str) -> Vec<String> {
    let started = Instant::now();
    let found = engine.rpc_result("memory.search", json!({"query": text})).await;
    assert!(started.elapsed() < SEARCH_LIMIT, "{:?} for {text}", started.elapsed());
    let results = found["results"].as_array().unwrap().iter();
    let messages = results.filter(|found| found["kind"] == "message" && contains(found, text));
    messages.map(|found| found["task_id"].as_str().unwrap().to_owned()).collect()
}

fn contains(found: &Value, text: &str) -> bool {
    found["content"].as_str().unwrap().contains(text)
}

/// The number of messages and records that are indexed, and that are still to be.
fn progress(setup: &StandaloneEngine) -> (i64, i64) {
    let brain = Connection::open_with_flags(setup.brain(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let count = |table: &str| {
        brain.query_row(&format!("SELECT COUNT(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    (count("indexed"), count("to_index"))
}

#[tokio::test]
async fn what_an_earlier_version_remembered_is_found_again_however_often_the_engine_is_killed() {
    let messages = env_number("ROUNDHOUSE_TEST_REBUILD_MESSAGES", 1_600);
    let kills = env_number("ROUNDHOUSE_TEST_REBUILD_KILLS", 4);
    let Some(earlier) = earlier_programs() else { return };
    let tasks = messages / (2 * TURNS_PER_TASK);
    let document = SyntheticExport::with_tasks(tasks).with_short_messages();

    // The memory as the earlier version leaves it.
    let setup = StandaloneEngine::new().with_program(earlier.last().unwrap());
    let (program, engine) = setup.start().await;
    let body = Body::wrap_stream(futures::stream::iter(document.chunks().map(Ok::<_, std::io::Error>)));
    let imported = engine.request(Method::POST, "/memory/import?mode=merge").body(body).send().await.unwrap();
    assert_eq!(imported.status(), 200, "{}", imported.text().await.unwrap());
    processes::kill(program.pid());

    let setup = setup.with_program(BINARY);
    let mut partly_indexed = 0;
    for kill in 0..kills {
        let (program, engine) = setup.start().await;
        // What is said now is found at once, and what was found stays found.
        engine.run_turn("now", &format!("Marker{kill}x was here.")).await;
        for marker in 0..=kill {
            assert_eq!(tasks_with(&engine, &format!("Marker{marker}x")).await, ["now"], "{marker}");
        }
        tasks_with(&engine, &name_of_turn(kill)).await;
        let (indexed, left) = progress(&setup);
        partly_indexed += usize::from(indexed > 0 && left > 0);
        tokio::time::sleep(Duration::from_millis(u64::try_from(kill * 37 % 400).unwrap())).await;
        processes::kill(program.pid());
    }
    eprintln!("{partly_indexed} of {kills} kills while a part was indexed");

    let (_program, engine) = setup.start().await;
    let began = Instant::now();
    while progress(&setup).1 > 0 {
        assert!(began.elapsed() < REBUILD_LIMIT, "{:?}", progress(&setup));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!("indexed {:?} after the last start", began.elapsed());
    for turn in (0..tasks * TURNS_PER_TASK).step_by(tasks.max(7)) {
        let task = format!("task {}", turn / TURNS_PER_TASK);
        assert_eq!(tasks_with(&engine, &name_of_turn(turn)).await.first(), Some(&task), "turn {turn}");
    }
    let said = i64::try_from(2 * tasks * TURNS_PER_TASK + 2 * kills).unwrap();
    let known = i64::try_from(tasks * TURNS_PER_TASK).unwrap();
    assert_eq!(progress(&setup).0, said + known);
}
