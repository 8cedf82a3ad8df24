//! Approvals: the user sees what the agent wants to run, and decides.

use std::fs;

use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::WIRES;
use crate::support::tool_programs::{done_reply, shell_reply, tool_reply, tool_results};
use crate::support::turn::{assert_completed, of_kind};
use crate::support::{EngineFixture, Event, StandaloneEngine};

/// Runs a turn with a shell command, and answers the approval prompt with `answer`. Returns the prompt, if any.
async fn run_command(fixture: &EngineFixture, task: &str, command: &str, answer: Value) -> Option<String> {
    fixture.provider.enqueue_all([shell_reply(command), done_reply()]);
    let mut stream = fixture.engine.execute_with(&direct_message(task, "Run it.")).await;
    let asked_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let first = stream.read_until("a request or a result", asked_or_done).await;
    let prompt = (first.kind == "hitl_request").then(|| first.data["question"].as_str().unwrap().to_owned());
    if prompt.is_some() {
        let body = with_fields(json!({"task_id": task}), answer);
        fixture.engine.respond_with(&body).await.assert_ok("status:text request_id:hitl");
    }
    assert_completed(&stream.collect().await);
    prompt
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
        let fixture = EngineFixture::with_setup(
            wire,
            [shell_reply(command), done_reply()],
            StandaloneEngine::allowing_unconfined,
        )
        .await;
        let (stream, request) =
            fixture.engine.run_until_hitl_request(&direct_message("task", "Greet.")).await;
        let question = request.data["question"].as_str().unwrap();
        assert!(question.contains(command) && question.contains("without the network"), "{question}");
        let file = fixture.setup.workspace().join("greeting.txt");
        assert!(!file.exists(), "{wire}: the command ran before the approval");

        fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
        let events = stream.collect().await;
        assert_eq!(assert_completed(&events), "Done.");
        let result = tool_results(&events)[0].expect("a command that fails is no failure of the tool");
        assert!(result.contains("hello") && result.contains("exit code 3"), "{result}");
        fixture.last_messages().assert_contains(&["hello", "exit code 3"]);
        assert_eq!(fs::read_to_string(file).unwrap(), "hello");
    }
}

#[tokio::test]
async fn what_is_refused_is_not_run_and_the_model_hears_why() {
    let fixture = EngineFixture::allowing_unconfined([]).await;
    let answer = with_fields(no_answer(), json!({"feedback": "Not on a Sunday."}));
    let prompt = run_command(&fixture, "task", "touch ran", answer).await;
    assert!(prompt.is_some());
    assert!(!fixture.setup.workspace().join("ran").exists());
    fixture.last_messages().assert_contains(&["Not on a Sunday."]);
}

#[tokio::test]
async fn what_could_hide_is_shown() {
    let fixture = EngineFixture::allowing_unconfined([]).await;
    let prompt =
        run_command(&fixture, "task", "echo safe #\u{202e}\u{1b}[2K\r rm -r x", no_answer()).await.unwrap();
    for hidden in ['\u{202e}', '\u{1b}', '\r'] {
        assert!(!prompt.contains(hidden), "{prompt:?}");
    }
    assert!(prompt.contains("202e") && prompt.contains("1b") && prompt.contains("rm -r x"), "{prompt:?}");
}

#[tokio::test]
async fn always_covers_what_begins_so_and_nothing_that_rides_along() {
    let fixture = EngineFixture::allowing_unconfined([]).await;
    let prompt = run_command(&fixture, "task", "git status", always_answer("task")).await.unwrap();
    assert!(
        prompt.contains("begin with `git status`"),
        "the prompt says what `always` would cover: {prompt}"
    );
    for covered in ["git status", "git status -s", "git status --short ."] {
        assert_eq!(run_command(&fixture, "task", covered, no_answer()).await, None, "{covered}");
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
        let prompt = run_command(&fixture, "task", other, no_answer()).await;
        assert!(prompt.is_some(), "`always` for `git status` let this run: {other}");
    }
    assert!(!fixture.setup.workspace().join("ran").exists());
    assert!(
        run_command(&fixture, "other", "git status", no_answer()).await.is_some(),
        "the grant does not apply to another task"
    );
}

#[tokio::test]
async fn always_for_what_does_more_than_it_begins_with_covers_that_alone() {
    let fixture = EngineFixture::allowing_unconfined([]).await;
    for (number, command) in
        ["echo one; echo two", "ls", "sudo ls x", "python3 -c 'print(1)'", "find . -name x"]
            .into_iter()
            .enumerate()
    {
        let task = format!("task-{number}");
        let prompt = run_command(&fixture, &task, command, always_answer("task")).await.unwrap();
        assert!(prompt.contains("exactly this command"), "{prompt}");
        assert_eq!(run_command(&fixture, &task, command, no_answer()).await, None, "{command}");
        assert!(
            run_command(&fixture, &task, &format!("{command} more"), no_answer()).await.is_some(),
            "{command} more"
        );
    }
}

#[tokio::test]
async fn what_was_allowed_is_listed_and_taken_back() {
    let fixture = EngineFixture::allowing_unconfined([]).await;
    assert!(run_command(&fixture, "task", "git status", always_answer("task")).await.is_some());
    assert!(run_command(&fixture, "task", "echo hello > greeting", always_answer("engine")).await.is_some());
    let grants = fixture.engine.grants().await;
    let [status_grant, greeting_grant] = grants.as_slice() else { panic!("two grants, not {grants:?}") };
    assert_eq!((&status_grant["tool"], &status_grant["scope"]), (&json!("shell"), &json!("task")));
    assert_eq!((&status_grant["task_id"], &status_grant["prefix"]), (&json!("task"), &json!("git status")));
    assert_eq!((&greeting_grant["scope"], greeting_grant.get("task_id")), (&json!("engine"), None));
    assert_eq!(greeting_grant["prefix"], "echo hello > greeting");

    // Grants survive a restart.
    let fixture = fixture.kill_and_start().await;
    assert_eq!(fixture.engine.grants().await, grants);
    assert_eq!(run_command(&fixture, "task", "git status -s", no_answer()).await, None);
    assert_eq!(run_command(&fixture, "other", "echo hello > greeting", no_answer()).await, None);

    let path = format!("/hitl/grants/{}", status_grant["id"].as_str().unwrap());
    assert_eq!(fixture.engine.delete(&path).await.assert_ok("status:text"), json!({"status": "deleted"}));
    assert!(
        run_command(&fixture, "task", "git status -s", no_answer()).await.is_some(),
        "the user is asked again"
    );
    assert_eq!(
        run_command(&fixture, "task", "echo hello > greeting", no_answer()).await,
        None,
        "the other grant still applies"
    );
}

#[tokio::test]
async fn a_write_shows_the_difference_that_it_makes() {
    let old = "first\na red apple\nlast\n";
    let new = json!({"path": "fruit.txt", "content": "first\na green apple\nlast\n"});
    let edit = json!({"path": "fruit.txt", "old": "red", "new": "green"});
    for reply in [tool_reply("write_file", new), tool_reply("edit_file", edit)] {
        let fixture = EngineFixture::new([reply, done_reply()]).await;
        fs::create_dir_all(fixture.setup.workspace()).unwrap();
        let file = fixture.setup.workspace().join("fruit.txt");
        fs::write(&file, old).unwrap();
        let (stream, request) =
            fixture.engine.run_until_hitl_request(&direct_message("task", "Paint.")).await;
        let prompt = request.data["question"].as_str().unwrap();
        for part in ["fruit.txt", "-a red apple", "+a green apple"] {
            assert!(prompt.contains(part), "no {part:?} in: {prompt}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), old);
        fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
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
    let fixture = EngineFixture::allowing_unconfined(replies.into_iter().chain([done_reply()])).await;
    let events = fixture.engine.run_turn("task", "Try.").await;
    assert_eq!(of_kind(&events, "hitl_request").len(), 0);
    for (result, (tool, input, field)) in tool_results(&events).into_iter().zip(&calls) {
        let error = result.expect_err("it is refused");
        assert!(error.contains(field), "{tool} {input}: {error}");
        fixture.last_messages().assert_contains(&[field]);
    }
    assert_eq!(tool_results(&events).len(), calls.len());
    assert!(!fixture.setup.workspace().join("ran").exists());
}
