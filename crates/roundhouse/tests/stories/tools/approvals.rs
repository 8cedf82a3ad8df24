//! A person decides what the agent runs, and sees what that is.

use std::fs;

use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::WIRES;
use crate::support::tool_programs::{done_reply, shell_reply, tool_reply, tool_results};
use crate::support::turn::{assert_completed, of_kind};
use crate::support::{EngineFixture, Event, StandaloneEngine};

/// A turn that runs a command; what a person says if they are asked. Gives what they were asked, if they were.
async fn run_command(rig: &EngineFixture, task: &str, command: &str, answer: Value) -> Option<String> {
    rig.provider.enqueue_all([shell_reply(command), done_reply()]);
    let mut stream = rig.engine.execute_with(&direct_message(task, "Run it.")).await;
    let asked_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let first = stream.read_until("a request or a result", asked_or_done).await;
    let asked = (first.kind == "hitl_request").then(|| first.data["question"].as_str().unwrap().to_owned());
    if asked.is_some() {
        let body = with_fields(json!({"task_id": task}), answer);
        rig.engine.respond_with(&body).await.assert_ok("status:text request_id:hitl");
    }
    assert_completed(&stream.collect().await);
    asked
}

fn no_answer() -> Value {
    json!({"answer": "no"})
}

fn always_answer(scope: &str) -> Value {
    json!({"answer": "always", "scope": scope})
}

#[tokio::test]
async fn a_command_is_shown_whole_and_runs_with_leave() {
    for wire in WIRES {
        let command = "printf '%s' hello > greeting.txt; cat greeting.txt; exit 3";
        let rig = EngineFixture::with_setup(
            wire,
            [shell_reply(command), done_reply()],
            StandaloneEngine::allowing_unconfined,
        )
        .await;
        let (stream, request) = rig.engine.run_until_hitl_request(&direct_message("task", "Greet.")).await;
        let question = request.data["question"].as_str().unwrap();
        assert!(question.contains(command) && question.contains("without the network"), "{question}");
        let file = rig.setup.workspace().join("greeting.txt");
        assert!(!file.exists(), "{wire}: it was not waited for the leave");

        rig.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
        let events = stream.collect().await;
        assert_eq!(assert_completed(&events), "Done.");
        let result = tool_results(&events)[0].expect("a command that fails is no failure of the tool");
        assert!(result.contains("hello") && result.contains("exit code 3"), "{result}");
        rig.last_messages().assert_contains(&["hello", "exit code 3"]);
        assert_eq!(fs::read_to_string(file).unwrap(), "hello");
    }
}

#[tokio::test]
async fn what_is_refused_is_not_run_and_the_model_hears_why() {
    let rig = EngineFixture::allowing_unconfined([]).await;
    let answer = with_fields(no_answer(), json!({"feedback": "Not on a Sunday."}));
    let asked = run_command(&rig, "task", "touch ran", answer).await;
    assert!(asked.is_some());
    assert!(!rig.setup.workspace().join("ran").exists());
    rig.last_messages().assert_contains(&["Not on a Sunday."]);
}

#[tokio::test]
async fn what_could_hide_is_shown() {
    let rig = EngineFixture::allowing_unconfined([]).await;
    let asked =
        run_command(&rig, "task", "echo safe #\u{202e}\u{1b}[2K\r rm -r x", no_answer()).await.unwrap();
    for hidden in ['\u{202e}', '\u{1b}', '\r'] {
        assert!(!asked.contains(hidden), "{asked:?}");
    }
    assert!(asked.contains("202e") && asked.contains("1b") && asked.contains("rm -r x"), "{asked:?}");
}

#[tokio::test]
async fn always_covers_what_begins_so_and_nothing_that_rides_along() {
    let rig = EngineFixture::allowing_unconfined([]).await;
    let asked = run_command(&rig, "task", "git status", always_answer("task")).await.unwrap();
    assert!(asked.contains("begin with `git status`"), "it says what `always` would cover: {asked}");
    for covered in ["git status", "git status -s", "git status --short ."] {
        assert_eq!(run_command(&rig, "task", covered, no_answer()).await, None, "{covered}");
    }
    for other in [
        "git status; touch ran",
        "git status && touch ran",
        "git status | tee ran",
        "git status > ran",
        "git status $(touch ran)",
        "git status `touch ran`",
        "git status\ntouch ran",
        "git status & touch ran",
        "git stash",
        "git statusx",
        "git",
        "env git status",
        "PATH=. git status",
    ] {
        let asked = run_command(&rig, "task", other, no_answer()).await;
        assert!(asked.is_some(), "`always` for `git status` let this run: {other}");
    }
    assert!(!rig.setup.workspace().join("ran").exists());
    assert!(run_command(&rig, "other", "git status", no_answer()).await.is_some(), "another task asks");
}

#[tokio::test]
async fn always_for_what_does_more_than_it_begins_with_covers_that_alone() {
    let rig = EngineFixture::allowing_unconfined([]).await;
    for (number, command) in
        ["echo one; echo two", "ls", "sudo ls x", "python3 -c 'print(1)'", "find . -name x"]
            .into_iter()
            .enumerate()
    {
        let task = format!("task-{number}");
        let asked = run_command(&rig, &task, command, always_answer("task")).await.unwrap();
        assert!(asked.contains("exactly this command"), "{asked}");
        assert_eq!(run_command(&rig, &task, command, no_answer()).await, None, "{command}");
        assert!(
            run_command(&rig, &task, &format!("{command} more"), no_answer()).await.is_some(),
            "{command} more"
        );
    }
}

#[tokio::test]
async fn what_was_allowed_is_listed_and_taken_back() {
    let rig = EngineFixture::allowing_unconfined([]).await;
    assert!(run_command(&rig, "task", "git status", always_answer("task")).await.is_some());
    assert!(run_command(&rig, "task", "echo hello > greeting", always_answer("engine")).await.is_some());
    let grants = rig.engine.grants().await;
    let [status, greeting] = grants.as_slice() else { panic!("two grants, not {grants:?}") };
    assert_eq!((&status["tool"], &status["scope"]), (&json!("shell"), &json!("task")));
    assert_eq!((&status["task_id"], &status["prefix"]), (&json!("task"), &json!("git status")));
    assert_eq!((&greeting["scope"], greeting.get("task_id")), (&json!("engine"), None));
    assert_eq!(greeting["prefix"], "echo hello > greeting");

    // They outlive the engine.
    let rig = rig.kill_and_start().await;
    assert_eq!(rig.engine.grants().await, grants);
    assert_eq!(run_command(&rig, "task", "git status -s", no_answer()).await, None);
    assert_eq!(run_command(&rig, "other", "echo hello > greeting", no_answer()).await, None);

    let path = format!("/hitl/grants/{}", status["id"].as_str().unwrap());
    assert_eq!(rig.engine.delete(&path).await.assert_ok("status:text"), json!({"status": "deleted"}));
    assert!(run_command(&rig, "task", "git status -s", no_answer()).await.is_some(), "it asks again");
    assert_eq!(
        run_command(&rig, "task", "echo hello > greeting", no_answer()).await,
        None,
        "the other one stands"
    );
}

#[tokio::test]
async fn a_write_shows_the_difference_that_it_makes() {
    let old = "first\na red apple\nlast\n";
    let new = json!({"path": "fruit.txt", "content": "first\na green apple\nlast\n"});
    let edit = json!({"path": "fruit.txt", "old": "red", "new": "green"});
    for reply in [tool_reply("write_file", new), tool_reply("edit_file", edit)] {
        let rig = EngineFixture::new([reply, done_reply()]).await;
        fs::create_dir_all(rig.setup.workspace()).unwrap();
        let file = rig.setup.workspace().join("fruit.txt");
        fs::write(&file, old).unwrap();
        let (stream, request) = rig.engine.run_until_hitl_request(&direct_message("task", "Paint.")).await;
        let asked = request.data["question"].as_str().unwrap();
        for part in ["fruit.txt", "-a red apple", "+a green apple"] {
            assert!(asked.contains(part), "no {part:?} in: {asked}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), old);
        rig.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
        assert_completed(&stream.collect().await);
        assert_eq!(fs::read_to_string(&file).unwrap(), "first\na green apple\nlast\n");
    }
}

#[tokio::test]
async fn input_that_is_not_as_its_schema_is_refused_without_asking_anybody() {
    let calls = [
        ("shell", json!({"command": 7}), "command"),
        ("shell", json!({"cmd": "touch ran"}), "command"),
        ("shell", json!({"command": "touch ran", "timeout_s": "soon"}), "timeout_s"),
        ("shell", json!({"command": "touch ran", "timeout_s": 0}), "timeout_s"),
        ("write_file", json!({"path": "ran", "content": ["x"]}), "content"),
        ("web_fetch", json!({"url": null}), "url"),
    ];
    let replies = calls.clone().map(|(tool, input, _)| tool_reply(tool, input));
    let rig = EngineFixture::allowing_unconfined(replies.into_iter().chain([done_reply()])).await;
    let events = rig.engine.run_turn("task", "Try.").await;
    assert_eq!(of_kind(&events, "hitl_request").len(), 0);
    for (result, (tool, input, field)) in tool_results(&events).into_iter().zip(&calls) {
        let error = result.expect_err("it is refused");
        assert!(error.contains(field), "{tool} {input}: {error}");
        rig.last_messages().assert_contains(&[field]);
    }
    assert_eq!(tool_results(&events).len(), calls.len());
    assert!(!rig.setup.workspace().join("ran").exists());
}
