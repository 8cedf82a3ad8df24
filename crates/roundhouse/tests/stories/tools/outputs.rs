//! Tool output that is too long for the model, loops of repeated calls, and turns with many calls.

use std::fs;

use mock_llm::Reply;
use serde_json::json;

use crate::support::EngineFixture;
use crate::support::tool_programs::{done_reply, shell_reply, stop_reason, tool_reply, tool_results};
use crate::support::turn::{assert_completed, of_kind};

/// The most of one result that is sent to the model.
const MAX_INLINE_OUTPUT_BYTES: usize = 64 * 1024;

/// The path of the spill file that a result names.
fn file_of(result: &str) -> &str {
    let from = result.find("tool-output/").unwrap_or_else(|| panic!("no file is named in: {result}"));
    result[from..].split('`').next().unwrap()
}

#[tokio::test]
async fn long_output_is_kept_in_a_file_and_read_on() {
    let fixture = EngineFixture::allowing_all_tools([shell_reply("seq 1 40000"), done_reply()]).await;
    let events = fixture.engine.run_turn("task", "Count.").await;
    let output = tool_results(&events)[0].unwrap().to_owned();
    assert!(output.len() <= MAX_INLINE_OUTPUT_BYTES, "{} bytes", output.len());
    assert!(output.starts_with("1\n2\n3\n") && output.contains("40000"), "the head and the tail: {output}");
    let file = file_of(&output);
    let spilled = fs::read_to_string(fixture.setup.workspace().join(file)).unwrap();
    let all = (1..=40_000).fold(String::new(), |all, number| all + &number.to_string() + "\n");
    assert!(spilled.starts_with(&all), "the complete output, in order");

    fixture.provider.enqueue_all([
        tool_reply("read_file", json!({"path": file, "offset": 20_000, "limit": 2})),
        done_reply(),
    ]);
    let events = fixture.engine.run_turn("task", "And the middle?").await;
    let middle = tool_results(&events)[0].unwrap();
    assert!(middle.contains("20000") && !middle.contains("20003"), "{middle}");
}

#[tokio::test]
async fn output_that_fits_is_told_whole() {
    let fixture = EngineFixture::allowing_all_tools([
        shell_reply("head -c 60000 /dev/zero | tr '\\0' x"),
        done_reply(),
    ])
    .await;
    let events = fixture.engine.run_turn("task", "Write.").await;
    assert!(tool_results(&events)[0].unwrap().starts_with(&"x".repeat(60_000)));
    assert!(!fixture.setup.workspace().join("tool-output").exists());
}

#[tokio::test]
async fn a_call_that_gives_the_same_again_and_again_ends_the_turn() {
    let fixture = EngineFixture::allowing_all_tools((0..20).map(|_| shell_reply("echo still waiting"))).await;
    let events = fixture.engine.run_turn("task", "Wait.").await;
    assert_eq!((stop_reason(&events), tool_results(&events).len(), fixture.model_calls()), ("loop", 5, 5));
    let requests = fixture.all_messages();
    // From the third repetition on, the result is sent with a warning.
    assert!(!requests[2].0.contains("3 times") && requests[3].0.contains("3 times"), "{:?}", requests[3]);
    // The task can continue.
    fixture.provider.take_refusals();
    let engine = &fixture.engine;
    let again = engine.run_turn("task", "And now?").await;
    assert_eq!(stop_reason(&again), "loop", "the mock model repeats its calls again");
    assert_eq!(engine.task_status("task").await, "idle");
}

#[tokio::test]
async fn a_call_whose_result_changes_is_no_loop() {
    let poll = || shell_reply("echo x >> polls; wc -l < polls");
    let fixture = EngineFixture::allowing_all_tools((0..12).map(|_| poll()).chain([done_reply()])).await;
    let events = fixture.engine.run_turn("task", "Wait.").await;
    assert_eq!(
        (assert_completed(&events), stop_reason(&events), tool_results(&events).len()),
        ("Done.", "end_turn", 12)
    );
}

#[tokio::test]
async fn a_turn_runs_a_hundred_commands() {
    let round = |round: usize| {
        let commands =
            (0..10).map(|index| format!("echo number {round}-{index}; echo {round}-{index} >> all"));
        commands.fold(Reply::new(), |reply, command| reply.tool_use("shell", json!({"command": command})))
    };
    let fixture = EngineFixture::allowing_all_tools((0..10).map(round).chain([done_reply()])).await;
    let events = fixture.engine.run_turn("task", "Do them all.").await;
    assert_eq!(
        (assert_completed(&events), stop_reason(&events), fixture.model_calls()),
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
    let all = fs::read_to_string(fixture.setup.workspace().join("all")).unwrap();
    assert_eq!(all.lines().count(), 100, "each ran once");
}
