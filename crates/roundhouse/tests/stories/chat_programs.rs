//! `roundhouse chat` for programs: one message with `-p`, piped messages, events as JSON, and exit codes.

use mock_llm::{Fault, Gate, MockProvider, Refusal, Reply};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Fleet, ProgramExit, RunningUp, processes};

async fn fleet(replies: impl IntoIterator<Item = Reply>) -> (Fleet, RunningUp, MockProvider) {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue_all(replies);
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    (fleet, up, provider)
}

/// The command, for a shell.
fn chat(fleet: &Fleet) -> String {
    format!("{} chat --user ada --dir {}", env!("CARGO_BIN_EXE_roundhouse"), fleet.folder().display())
}

async fn shell(fleet: &Fleet, line: &str) -> ProgramExit {
    fleet.test_env.run_shell(line).wait().await
}

/// The lines of JSON in an output.
fn json_lines(output: &str) -> Vec<Value> {
    output.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

#[tokio::test]
async fn one_message_is_answered_with_the_answer_alone() {
    let (fleet, _up, provider) = fleet([
        Reply::new()
            .thinking("Hm.")
            .text("I note it.")
            .tool_use("working_memory_set", json!({"key": "colour", "value": "green"})),
        Reply::new().thinking("Done.").text("Noted:\ngrün \u{1b}[2J."),
        Reply::from_text("I read it."),
    ])
    .await;
    let chat = chat(&fleet);
    let output = shell(&fleet, &format!("{chat} -p 'my colour is green'")).await.assert_success();
    assert_eq!(output, "Noted:\ngrün \\u{1b}[2J.\n");
    let text = format!("first line\n{}\nlast line without an end", "x".repeat(100_000));
    let line = format!("{chat} --task other -p -");
    let output = fleet.test_env.run_shell_with_input(&line, &text).wait().await.assert_success();
    assert_eq!(output, "I read it.\n");
    let messages = provider.requests().last().unwrap().body["messages"].to_string();
    assert!(messages.contains(&Value::from(text).to_string()), "every byte of it is sent");
}

#[tokio::test]
async fn the_exit_code_says_how_the_turn_ended() {
    let gate = Gate::new();
    let (fleet, up, provider) = fleet([]).await;
    let chat = chat(&fleet);

    shell(&fleet, &format!("{chat} -p ' '")).await.assert_failure(2, &["the message is empty"]);
    shell(&fleet, &format!("{chat} --no-such-option")).await.assert_failure(2, &["--no-such-option"]);
    shell(&fleet, &format!("printf 'h\\377' | {chat} -p -"))
        .await
        .assert_failure(2, &["not UTF-8, from byte 1"]);
    assert_eq!(provider.requests().len(), 0, "nothing was sent");

    provider.enqueue(Reply::from_fault(Fault::Refuse { refusal: Refusal::Unauthorized }));
    shell(&fleet, &format!("{chat} -p 'fail'")).await.assert_failure(3, &["401"]);
    provider.take_refusals();

    provider.enqueue(Reply::from_text("one two three four").deltas(4).hold(2, &gate));
    let folder = fleet.folder().to_str().unwrap();
    let arguments = ["chat", "--user", "ada", "--dir", folder, "-p", "count"];
    let mut program = fleet.test_env.run(&arguments, &fleet.variables);
    gate.reached().await;
    processes::signal(program.pid(), Signal::INT);
    program.wait_for_output("Cancelling the turn").await.unwrap();
    program.wait().await.assert_failure(4, &[]);

    let question = json!({"question": "Which colour?", "options": ["red", "green"]});
    provider.enqueue(Reply::new().tool_use("ask_user", question));
    shell(&fleet, &format!("{chat} -p 'ask'")).await.assert_failure(5, &["is waiting for an answer"]);
    // The question still waits, so another message cannot be sent.
    shell(&fleet, &format!("{chat} -p 'again'")).await.assert_failure(5, &["is waiting for an answer"]);
    provider.enqueue(Reply::from_text("Green it is."));
    let output = shell(&fleet, &format!("printf 'green\\n' | {chat}")).await.assert_success();
    assert!(output.contains("Green it is."), "{output}");

    up.signal_and_wait(Signal::TERM).await.assert_success();
    shell(&fleet, &format!("{chat} -p 'hello'")).await.assert_failure(1, &["roundhouse up"]);
}

#[tokio::test]
async fn events_are_lines_of_json_for_one_message_and_for_piped_ones() {
    let question = json!({"question": "Which colour?", "options": ["red", "green"]});
    let (fleet, _up, _provider) = fleet([
        Reply::new().thinking("Hm.").text("All \u{9b}31m\nis well."),
        Reply::new().tool_use("ask_user", question),
        Reply::from_text("Green it is."),
    ])
    .await;
    let chat = chat(&fleet);
    let output = shell(&fleet, &format!("{chat} --json -p 'is all well?'")).await.assert_success();
    assert!(!output.contains('\u{9b}'), "{output:?}");
    let events = json_lines(&output);
    assert!(events.iter().all(|event| event["data"]["ts"].is_i64()), "{output}");
    let text: String = events
        .iter()
        .filter(|event| event["event"] == "text_delta")
        .map(|event| event["data"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, "All \u{9b}31m\nis well.");
    assert_eq!(events.last().unwrap()["data"]["phase"], "completed", "{output}");

    let line = format!("printf 'ask me\\n2\\n' | {chat} --json 2>/dev/null");
    let output = shell(&fleet, &line).await.assert_success();
    let events = json_lines(&output);
    let kinds: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"hitl_request") && kinds.contains(&"hitl_resolved"), "{kinds:?}");
    assert_eq!(events.last().unwrap()["data"]["text"], "Green it is.");
}

#[tokio::test]
async fn a_killed_engine_costs_no_event_and_repeats_none() {
    let words: Vec<String> = (0..40).map(|number| format!("word{number}")).collect();
    let script = format!("rules: [{{answers: [{{text: {}, delay_ms: 40}}]}}]", words.join(" "));
    let fleet = Fleet::new().with_script(&script);
    let _up = fleet.start_up().await;
    let folder = fleet.folder().to_str().unwrap();
    let arguments = ["chat", "--user", "ada", "--dir", folder, "--json", "-p", "count"];
    let mut program = fleet.test_env.run(&arguments, &fleet.variables);
    program.wait_for_output("word9").await.unwrap();
    processes::signal(fleet.engine_process(), Signal::KILL);
    let output = program.wait().await.assert_success();
    assert!(output.contains("reconnecting …"), "{output}");
    let lines: Vec<&str> = output.lines().filter(|line| line.starts_with('{')).collect();
    let events = json_lines(&lines.join("\n"));
    let stamps: Vec<i64> = events.iter().map(|event| event["data"]["ts"].as_i64().unwrap()).collect();
    assert!(stamps.is_sorted_by(|one, next| one < next), "{stamps:?}");
    let text: String = events
        .iter()
        .filter(|event| event["event"] == "text_delta")
        .map(|event| event["data"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, words.join(" "));
}

#[tokio::test]
async fn the_turn_before_decides_neither_the_answer_nor_the_exit_code() {
    let gate = Gate::new();
    let (fleet, up, provider) = fleet([
        Reply::from_text("one two three four").deltas(4).hold(2, &gate),
        Reply::from_text("My own answer."),
    ])
    .await;
    let engine = up.product().engine("ada").await;
    let other = engine.execute("chat", "count").await;
    gate.reached().await;
    let folder = fleet.folder().to_str().unwrap();
    let arguments = ["chat", "--user", "ada", "--dir", folder, "-p", "hello"];
    let mut program = fleet.test_env.run(&arguments, &fleet.variables);
    program.wait_for_output("The rest of the previous turn:").await.unwrap();
    engine.cancel("chat").await.assert_ok("status:text turn_id:turn");
    let output = program.wait().await.assert_success();
    assert!(output.ends_with("My own answer.\n") && !output.contains("one two"), "{output}");
    assert_eq!(provider.requests().len(), 2);
    other.collect().await;
}

#[tokio::test]
async fn the_proxy_leads_to_the_engine_also_after_it_was_killed() {
    let fleet = Fleet::new().with_script("rules: [{answers: [{text: Here I am.}]}]");
    let _up = fleet.start_up().await;
    let line = format!("{} --proxy -p 'are you there?'", chat(&fleet));
    for _ in 0..2 {
        assert_eq!(shell(&fleet, &line).await.assert_success(), "Here I am.\n");
        processes::signal(fleet.engine_process(), Signal::KILL);
    }
}

#[tokio::test]
async fn piped_lines_of_any_length_are_messages_also_those_that_look_like_commands() {
    let (fleet, _up, provider) =
        fleet([Reply::from_text("One."), Reply::from_text("Two."), Reply::from_text("Three.")]).await;
    let long = "x".repeat(200_000);
    let input = format!("{long}\n/quit\nthe last one, without an end");
    let line = chat(&fleet);
    let output = fleet.test_env.run_shell_with_input(&line, &input).wait().await.assert_success();
    assert!(output.contains("One.\nTwo.\nThree.\n"), "{output}");
    let requests = provider.requests();
    for (request, message) in requests.iter().zip([long.as_str(), "/quit", "the last one, without an end"]) {
        assert!(request.body["messages"].to_string().contains(message));
    }
}
