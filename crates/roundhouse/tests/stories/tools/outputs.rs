//! Output that is too long for the model, calls that repeat, and many of them.

use std::fs;

use mock_llm::Reply;
use serde_json::json;

use crate::support::EngineFixture;
use crate::support::tool_programs::{done_reply, shell_reply, stop_reason, tool_reply, tool_results};
use crate::support::turn::{assert_completed, of_kind};

/// The most that a model is given of one result.
const MAX_INLINE_OUTPUT_BYTES: usize = 64 * 1024;

/// The file that a result names.
fn file_of(result: &str) -> &str {
    let from = result.find("tool-output/").unwrap_or_else(|| panic!("no file is named in: {result}"));
    result[from..].split('`').next().unwrap()
}

#[tokio::test]
async fn long_output_is_kept_in_a_file_and_read_on() {
    let rig = EngineFixture::allowing_all_tools([shell_reply("seq 1 40000"), done_reply()]).await;
    let events = rig.engine.run_turn("task", "Count.").await;
    let told = tool_results(&events)[0].unwrap().to_owned();
    assert!(told.len() <= MAX_INLINE_OUTPUT_BYTES, "{} bytes", told.len());
    assert!(told.starts_with("1\n2\n3\n") && told.contains("40000"), "its head and its tail: {told}");
    let file = file_of(&told);
    let kept = fs::read_to_string(rig.setup.workspace().join(file)).unwrap();
    let all = (1..=40_000).fold(String::new(), |all, number| all + &number.to_string() + "\n");
    assert!(kept.starts_with(&all), "all of it, in its order");

    rig.provider.enqueue_all([
        tool_reply("read_file", json!({"path": file, "offset": 20_000, "limit": 2})),
        done_reply(),
    ]);
    let events = rig.engine.run_turn("task", "And the middle?").await;
    let middle = tool_results(&events)[0].unwrap();
    assert!(middle.contains("20000") && !middle.contains("20003"), "{middle}");
}

#[tokio::test]
async fn output_that_fits_is_told_whole() {
    let rig = EngineFixture::allowing_all_tools([
        shell_reply("head -c 60000 /dev/zero | tr '\\0' x"),
        done_reply(),
    ])
    .await;
    let events = rig.engine.run_turn("task", "Write.").await;
    assert!(tool_results(&events)[0].unwrap().starts_with(&"x".repeat(60_000)));
    assert!(!rig.setup.workspace().join("tool-output").exists());
}

#[tokio::test]
async fn a_call_that_gives_the_same_again_and_again_ends_the_turn() {
    let rig = EngineFixture::allowing_all_tools((0..20).map(|_| shell_reply("echo still waiting"))).await;
    let events = rig.engine.run_turn("task", "Wait.").await;
    assert_eq!((stop_reason(&events), tool_results(&events).len(), rig.model_calls()), ("loop", 5, 5));
    let told = rig.all_messages();
    // The third time it is told, beside the result.
    assert!(!told[2].0.contains("3 times") && told[3].0.contains("3 times"), "{:?}", told[3]);
    // The task goes on.
    rig.provider.take_refusals();
    let engine = &rig.engine;
    let again = engine.run_turn("task", "And now?").await;
    assert_eq!(stop_reason(&again), "loop", "the model of this story does not learn");
    assert_eq!(engine.task_status("task").await, "idle");
}

#[tokio::test]
async fn a_call_whose_result_changes_is_no_loop() {
    let poll = || shell_reply("echo x >> polls; wc -l < polls");
    let rig = EngineFixture::allowing_all_tools((0..12).map(|_| poll()).chain([done_reply()])).await;
    let events = rig.engine.run_turn("task", "Wait.").await;
    assert_eq!(
        (assert_completed(&events), stop_reason(&events), tool_results(&events).len()),
        ("Done.", "end_turn", 12)
    );
}

#[tokio::test]
async fn a_turn_runs_a_hundred_commands() {
    let round = |round: usize| {
        let commands = (0..10).map(|at| format!("echo number {round}-{at}; echo {round}-{at} >> all"));
        commands.fold(Reply::new(), |reply, command| reply.tool_use("shell", json!({"command": command})))
    };
    let rig = EngineFixture::allowing_all_tools((0..10).map(round).chain([done_reply()])).await;
    let events = rig.engine.run_turn("task", "Do them all.").await;
    assert_eq!(
        (assert_completed(&events), stop_reason(&events), rig.model_calls()),
        ("Done.", "end_turn", 11)
    );
    let inputs = of_kind(&events, "tool_call");
    assert_eq!(inputs.len(), 100);
    for result in of_kind(&events, "tool_result") {
        let call =
            inputs.iter().find(|call| call.data["tool_call_id"] == result.data["tool_call_id"]).unwrap();
        let number = call.data["input"]["command"].as_str().unwrap().split([';', ' ']).nth(2).unwrap();
        let output = result.data["output"].as_str().unwrap();
        assert!(output.contains(&format!("number {number}\n")), "the result of another call: {output:?}");
    }
    let all = fs::read_to_string(rig.setup.workspace().join("all")).unwrap();
    assert_eq!(all.lines().count(), 100, "each ran once");
}
