//! Memory that grows. Nothing of an ended turn stays in memory.

use std::process::Command;

use futures::future::join_all;
use mock_llm::{Reply, Wire};
use serde_json::json;
use store::testing::read_all;
use testkit::with_deadline;

use crate::agent::harness::AgentHarness;

/// The maximum growth of the process, in bytes.
const MAX_GROWTH_BYTES: i64 = 4 * 1024 * 1024;
const TASKS: usize = 50;
const TURNS: usize = 500;

/// Returns a harness whose model thinks, calls a tool and answers.
async fn fixture() -> AgentHarness {
    let harness = AgentHarness::new(Wire::OpenAiChat).await;
    harness.provider.set_default_reply(Reply::from_text("A dozen words that a model might say to a user."));
    harness
}

/// Runs `turns` turns, ten at a time, spread over tasks named after `name`.
async fn run_turns(harness: &AgentHarness, name: &str, turns: usize) {
    for round in 0..turns / 10 {
        let turn = |number: usize| {
            let task = format!("{name}{}", (10 * round + number) % TASKS);
            harness
                .begin(json!({"task_id": task, "message": "A dozen words that a user might say to a model."}))
        };
        let readers = join_all((0..10).map(turn)).await;
        join_all(readers.into_iter().map(|reader| read_all(reader.unwrap()))).await;
        harness.provider.clear_requests();
    }
    let nothing = async {
        while harness.live_counts() != [0; 3] {
            tokio::task::yield_now().await;
        }
    };
    with_deadline(nothing).await;
}

#[tokio::test]
async fn regression_e10_what_has_ended_is_held_by_nobody() {
    let harness = fixture().await;
    let reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    assert_eq!(harness.live_counts(), [1; 3]);
    read_all(reader).await;
    run_turns(&harness, "t", 200).await;
}

/// Returns the private memory of this process, in bytes.
fn own_memory_bytes() -> i64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).unwrap();
    1024 * line.trim_end_matches("kB").trim().parse::<i64>().unwrap()
}

/// Returns whether this process runs only the test `test`. If not, it runs one that does, and passes on its
/// outcome.
fn run_in_own_process(test: &str) -> bool {
    const MARK: &str = "ROUNDHOUSE_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(MARK, "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "no test is called {test}");
    false
}

#[test]
fn regression_e10_memory_is_as_before_after_many_turns() {
    if cfg!(not(target_os = "linux")) {
        eprintln!("skipped: only Linux tells how much memory a process has for itself");
        return;
    }
    // Other tests of the process would be measured too.
    if !run_in_own_process("regressions::memory_growth::regression_e10_memory_is_as_before_after_many_turns")
    {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let harness = fixture().await;
        // After this the process has allocated what it allocates once and keeps.
        run_turns(&harness, "first", TURNS).await;
        let before = own_memory_bytes();
        run_turns(&harness, "t", TURNS).await;
        let grown = own_memory_bytes() - before;
        assert!(grown < MAX_GROWTH_BYTES, "{TURNS} turns over {TASKS} tasks left {grown} bytes");
    });
}
