//! `roundhouse engine journal`: prints the journal of a task for a person to read.

use std::fs;

use mock_llm::{Fault, MockProvider, Refusal, Reply, Usage};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::http::send;
use crate::support::{Engine, Fleet, ProgramExit, StandaloneEngine, eventually};

/// Runs `roundhouse engine journal` for a task, with the environment of its engine.
async fn journal(setup: &StandaloneEngine, task: &str) -> ProgramExit {
    setup.test_env.run(&["engine", "journal", task], &setup.variables).wait().await
}

/// Starts a turn and drops its stream, because the turn may pause for the user.
async fn run_turn(engine: &Engine, message: &str) {
    let body = json!({"task_id": "task", "message": message, "direct": true});
    let answer = engine.request(Method::POST, "/execute").json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

/// Waits until the status of the task is `status`.
async fn wait_for_task_status(engine: &Engine, status: &str) {
    eventually(&format!("the task is {status}"), async || {
        let tasks = send(engine.request(Method::GET, "/tasks")).await.assert_ok("tasks:array total:int");
        (tasks["tasks"][0]["status"] == status).then_some(())
    })
    .await;
}

async fn respond(engine: &Engine, body: &Value) {
    send(engine.request(Method::POST, "/hitl/respond").json(body))
        .await
        .assert_ok("status:text request_id:text");
}

/// Replaces what differs between runs (ids, times and durations) with `X`.
fn normalize(text: &str) -> String {
    let mut normalized = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let words = words.iter().enumerate().map(|(index, word)| {
            let id = ["turn_", "msg_"].into_iter().find(|prefix| word.starts_with(prefix));
            let time = word.len() >= 12 && word.is_ascii() && word.contains(':') && word.contains('.');
            let milliseconds = words.get(index + 1) == Some(&"ms") && word.parse::<u64>().is_ok();
            match id {
                Some(prefix) => format!("{prefix}X"),
                None if (time && word.starts_with(|first: char| first.is_ascii_digit())) || milliseconds => {
                    "X".to_owned()
                }
                None => (*word).to_owned(),
            }
        });
        normalized += &words.collect::<Vec<_>>().join(" ");
        normalized.push('\n');
    }
    normalized
}

#[tokio::test]
async fn a_person_reads_what_happened_also_while_the_engine_runs() {
    let provider = MockProvider::start().await.unwrap();
    let tokens = |reply: Reply| reply.usage(Usage { input: Some(100), output: Some(20), ..Usage::default() });
    provider.enqueue_all([
        tokens(
            Reply::new()
                .text("I look.\u{1b}[2J\nThen I write.")
                .tool_use("read_file", json!({"path": "missing"})),
        ),
        tokens(Reply::new().tool_use("write_file", json!({"path": "a\u{9b}2J", "content": "x".repeat(300)}))),
        tokens(Reply::from_text("Done.")),
        Reply::from_fault(Fault::refuse(Refusal::Unauthorized)),
        tokens(Reply::new().tool_use("ask_user", json!({"question": "Which?", "options": ["one", "two"]}))),
    ]);
    let setup = StandaloneEngine::new().with_provider("anthropic", &provider);
    let (program, engine) = setup.start().await;
    run_turn(&engine, "Write a file.").await;
    wait_for_task_status(&engine, "paused").await;
    respond(&engine, &json!({"task_id": "task", "answer": "no", "feedback": "not that\u{202e} one"})).await;
    wait_for_task_status(&engine, "idle").await;
    run_turn(&engine, "And now?").await;
    wait_for_task_status(&engine, "idle").await;
    run_turn(&engine, "Ask me.").await;
    wait_for_task_status(&engine, "paused").await;

    let running = journal(&setup, "task").await.assert_success();
    insta::assert_snapshot!(normalize(&running), @r#"
    turn_X  opened X  completed (end_turn)
      X  opened    “Write a file.”
      X  answered  claude-sonnet-4-5  100+20 tokens  “I look.\u{1b}[2J\nThen I write.”  read_file {"path":"missing"}
      X  intended  read_file {"path":"missing"}
      X  resulted  read_file  failed: “`missing` cannot be opened: there is no such file or folder”  X ms
      X  answered  claude-sonnet-4-5  100+20 tokens  write_file {"content":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
      X  asked     permission  write_file  “Write the new file "a\u{9b}2J"? It will hold 300 bytes:\n\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…”
      X  resolved  “no”
      X  resulted  write_file  failed: “The person did not allow this call, so it was not run. They said: not that\u{202e} one”  X ms
      X  answered  claude-sonnet-4-5  100+20 tokens  “Done.”
      X  ended     completed  end_turn

    turn_X  opened X  errored (PROVIDER_AUTH)
      X  opened    “And now?”
      X  ended     errored  PROVIDER_AUTH  “the provider answered 401: invalid x-api-key”

    turn_X  opened X  waiting for the user
      X  opened    “Ask me.”
      X  answered  claude-sonnet-4-5  100+20 tokens  ask_user {"options":["one","two"],"question":"Which?"}
      X  intended  ask_user {"options":["one","two"],"question":"Which?"}
      X  asked     question  ask_user  “Which?”  of “one” “two”
    "#);
    program.signal_and_wait(Signal::TERM).await.assert_success();
    assert_eq!(journal(&setup, "task").await.assert_success(), running, "the engine need not be running");
}

#[tokio::test]
async fn a_task_that_there_is_not_is_told_with_those_that_there_are() {
    let setup = StandaloneEngine::new();
    let (program, engine) = setup.start().await;
    let output = journal(&setup, "other").await.assert_failure(1, &["there is no task `other`"]);
    assert!(!output.contains("last that ran"), "{output}");
    for number in 0..11 {
        engine.execute(&format!("task {number}"), "Hello!").await.collect().await;
    }
    engine.execute("odd\n\u{1b}[2J", "Hello!").await.collect().await;
    let listed = journal(&setup, "other")
        .await
        .assert_failure(1, &["last that ran:\n  odd\\n\\u{1b}[2J\n  task 10\n"]);
    assert_eq!(listed.lines().count(), 11, "ten tasks are listed: {listed}");
    // A task is found under its exact id.
    journal(&setup, "odd\n\u{1b}[2J").await.assert_success();
    program.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn what_is_no_brain_is_refused_and_left_as_it_is() {
    let setup = StandaloneEngine::new();
    let brain = setup.brain();
    let missing = journal(&setup, "task").await;
    missing.assert_failure(2, &["brain.sqlite cannot be opened", "No such file"]);
    assert!(!brain.exists(), "no file is created");
    fs::write(&brain, "no database, but long enough to be taken for one".repeat(40)).unwrap();
    journal(&setup, "task").await.assert_failure(1, &["damaged or not a brain"]);
    fs::remove_file(&brain).unwrap();
    rusqlite::Connection::open(&brain).unwrap().execute_batch("CREATE TABLE tasks (id)").unwrap();
    journal(&setup, "task").await.assert_failure(2, &["is not a brain"]);
    let without_brain =
        setup.test_env.run(&["engine", "journal", "task"], &std::collections::BTreeMap::new());
    without_brain.wait().await.assert_failure(2, &["--brain", "--user"]);
    journal(&setup, "").await.assert_failure(2, &["the task: must be 1 to 1,024 bytes"]);
}

#[tokio::test]
async fn the_brain_of_a_user_is_found() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    engine.execute("task", "Hello, journal!").await.collect().await;
    product.stop("ada").await.assert_ok("status:text");
    let folder = fleet.folder().to_str().unwrap();
    let arguments = ["engine", "journal", "task", "--dir", folder, "--user"];
    let journal_of = |user| fleet.test_env.run(&[&arguments[..], &[user]].concat(), &fleet.variables).wait();
    let output = journal_of("ada").await.assert_success();
    assert!(output.contains("“Hello, journal!”") && output.contains("completed (end_turn)"), "{output}");
    assert_eq!(product.status("ada").await, "stopped", "the engine is not woken");
    journal_of("bob").await.assert_failure(1, &["bob's engine cannot be found", "ENGINE_NOT_FOUND"]);

    let brain = fleet.engine_folder(&engine.id).join("brain.sqlite");
    up.signal_and_wait(Signal::TERM).await.assert_success();
    journal_of("ada").await.assert_failure(1, &["roundhouse up", "--brain"]);
    let arguments = ["engine", "journal", "task", "--brain", brain.to_str().unwrap()];
    assert_eq!(fleet.test_env.run(&arguments, &fleet.variables).wait().await.assert_success(), output);
}
