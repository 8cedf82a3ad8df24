//! Turns whose tools run programs. Whatever these do, the turn continues, and so does the next one.

use std::sync::Arc;
use std::time::Duration;

use fetch::WebAllowlist;
use mock_llm::{Reply, Wire};
use serde_json::{Value, json};
use store::testing::next_events;
use testkit::wait_for_exit;
use testkit::{SseEvent, task_id, with_deadline};
use tools::{ToolDeps, Toolbox};

use super::harness::{AgentHarness, check_turn, final_text};

/// A harness that runs programs, with these files in its catalog. Shell and skill scripts are allowed.
async fn harness(files: &[(&str, Value)]) -> AgentHarness {
    let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let write_file = |path: &str, text: String| {
        let path = harness.catalog_folder().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write_file(
        "permissions.json",
        json!({"tools": {"shell": "allow", "run_skill_script": "allow"}}).to_string(),
    );
    for (path, content) in files {
        write_file(path, content.as_str().map_or_else(|| content.to_string(), str::to_owned));
    }
    harness.reload_catalog().await;
    assert_eq!(harness.catalog.warnings, [""; 0]);
    harness
}

/// A catalog tool that runs this script.
fn tool(script: &str) -> Value {
    json!({
        "description": "Runs.", "permission": "allow", "command": ["/bin/sh", "-c", script],
        "input_schema": {"type": "object", "properties": {"number": {"type": "integer"}}},
    })
}

/// Runs a turn to its end and answers each approval request with `always`.
async fn run(harness: &AgentHarness, message: &str) -> Vec<SseEvent> {
    let mut reader = harness.begin(json!({"task_id": "t", "message": message})).await.unwrap();
    let mut all = Vec::new();
    while let Some(events) = next_events(&mut reader).await {
        for _ in events.iter().filter(|event| event.kind == "hitl_request") {
            let always = json!({"task_id": "t", "answer": "always"});
            with_deadline(harness.agent.respond(serde_json::from_value(always).unwrap())).await.unwrap();
        }
        all.extend(events);
    }
    assert_eq!(check_turn(&all), Ok(()), "{all:#?}");
    all
}

/// The results of the calls in order of completion: outputs or errors.
fn results(events: &[SseEvent]) -> Vec<(&str, &str)> {
    let ended = events.iter().filter(|event| event.kind == "tool_result");
    ended
        .map(|event| {
            let text = event.data["error"].as_str().unwrap_or_else(|| event.data["output"].as_str().unwrap());
            (event.data["tool"].as_str().unwrap(), text)
        })
        .collect()
}

#[tokio::test]
async fn a_turn_runs_a_hundred_commands() {
    let harness = harness(&[]).await;
    // Each command differs: the same one with the same result would be a loop.
    let command = |number: usize| json!({"command": format!("echo {number} >> log; wc -l < log")});
    for answer in 0..20 {
        let calls = (0..5).fold(Reply::new(), |reply, at| reply.tool_use("shell", command(5 * answer + at)));
        harness.provider.enqueue(calls);
    }
    harness.provider.enqueue(Reply::from_text("All run."));
    let events = run(&harness, "go").await;
    assert_eq!(final_text(&events), "All run.");
    let results = results(&events);
    assert!(results.len() == 100 && results.iter().all(|(_, text)| text.ends_with("[exit code 0]")));
    let log = std::fs::read_to_string(harness.workspace().join("log")).unwrap();
    assert_eq!(log.lines().count(), 100);
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn how_far_programs_are_confined_is_told() {
    let harness = harness(&[]).await;
    let level = harness.agent.services.sandbox.as_ref().unwrap().confinement().level.clone();
    assert_eq!(harness.agent.activity().unwrap().confinement, level);
}

#[tokio::test]
async fn whatever_programs_do_the_turn_goes_on() {
    let skill = "---\nname: forms\ndescription: Fills in forms.\n---\nDo.";
    let harness = harness(&[
        ("tools/crash.json", tool("kill -SEGV $$")),
        ("tools/fail.json", tool("echo 'no such city' >&2; exit 1")),
        (
            "tools/flood.json",
            tool("head -c 3000000 /dev/zero | tr '\\0' x; echo; head -c 3000000 /dev/zero >&2"),
        ),
        ("tools/lie.json", tool("printf '\\377\\376{\"tool_use_id\": \"x\", \"error\": null'")),
        (
            "tools/gone.json",
            json!({"description": "x", "permission": "allow", "command": ["no-such-program"]}),
        ),
        ("skills/forms/SKILL.md", json!(skill)),
        ("skills/forms/scripts/crash.sh", json!("kill -ABRT $$")),
        ("skills/forms/scripts/flood.sh", json!("head -c 3000000 /dev/urandom")),
        ("skills/forms/scripts/lie.sh", json!("echo '[exit code 0]'; exit 3")),
    ])
    .await;
    let script = |name: &str| json!({"skill": "forms", "script": name});
    let mut reply = Reply::new();
    for (name, input) in [
        ("crash", json!({})),
        ("fail", json!({})),
        ("flood", json!({})),
        ("lie", json!({})),
        ("gone", json!({})),
        ("run_skill_script", script("crash.sh")),
        ("run_skill_script", script("flood.sh")),
        ("run_skill_script", script("lie.sh")),
        ("load_skill", json!({"skill": "forms", "file": "../../tools/crash.json"})),
        ("shell", json!({"command": "echo begun; sleep 1000", "timeout_s": 1})),
        ("shell", json!({"command": "kill -KILL $$"})),
        ("shell", json!({"command": "head -c 9000000 /dev/urandom; exec >&-"})),
    ] {
        reply = reply.tool_use(name, input);
    }
    harness.provider.enqueue_all([reply, Reply::from_text("That went badly.")]);
    let events = run(&harness, "go").await;
    assert_eq!(final_text(&events), "That went badly.");
    let results = results(&events);
    assert_eq!(results.len(), 12);
    for (tool, expected) in [
        ("crash", "it was ended by signal"),
        ("fail", "it failed with exit code 1.\n\nIts error output ends:\nno such city"),
        ("flood", "3000001 bytes came; all of it is in the file `tool-output/call_"),
        ("lie", "\u{fffd}\u{fffd}{\"tool_use_id\": \"x\", \"error\": null"),
        ("run_skill_script", "it was ended by signal"),
        ("run_skill_script", "3000000 bytes came"),
        ("run_skill_script", "it failed with exit code 3"),
        ("load_skill", "has no file"),
        ("shell", "it was stopped after 1 s"),
        ("shell", "it was ended by signal 9"),
        ("shell", "9000000 bytes came"),
    ] {
        let found = results.iter().any(|(name, text)| *name == tool && text.contains(expected));
        assert!(found, "{tool}: {expected}: {:?}", results.iter().map(|(name, _)| name).collect::<Vec<_>>());
    }
    assert!(results.iter().all(|(_, text)| text.len() < 64 * 1024));

    harness.provider.enqueue_all([
        Reply::new().tool_use("shell", json!({"command": "echo well"})),
        Reply::from_text("Now it is well."),
    ]);
    assert_eq!(final_text(&run(&harness, "again").await), "Now it is well.");
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn long_output_is_read_on_from_its_file() {
    let harness = harness(&[("tools/long.json", tool("seq -f 'line %.0f' 100000"))]).await;
    harness.provider.enqueue_all([Reply::new().tool_use("long", json!({})), Reply::from_text("Long.")]);
    let events = run(&harness, "go").await;
    let (_, output) = results(&events)[0];
    assert!(output.starts_with("line 1\n") && output.ends_with("line 100000\n"), "{output}");
    let path = output.split('`').nth(1).unwrap();
    harness.provider.enqueue_all([
        Reply::new().tool_use("read_file", json!({"path": path, "offset": 100_000, "limit": 30})),
        Reply::from_text("Read."),
    ]);
    let events = run(&harness, "read on").await;
    let (_, output) = results(&events)[0];
    assert!(output.contains("\nline ") && output.contains("[cut: bytes 100000 to 100030 of"), "{output}");
}

#[tokio::test]
async fn cancelled_its_programs_end() {
    let harness = harness(&[("tools/hang.json", tool("echo $$ > pid; while :; do sleep 0.05; done"))]).await;
    harness.provider.enqueue(Reply::new().tool_use("hang", json!({})));
    let _reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    let pid = with_deadline(async {
        loop {
            match std::fs::read_to_string(harness.workspace().join("pid")) {
                Ok(pid) if pid.ends_with('\n') => return pid.trim().to_owned(),
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await;
    with_deadline(harness.agent.cancel(&task_id("t"), None)).await.unwrap();
    wait_for_exit(&pid).await;
}

#[tokio::test]
async fn an_input_that_is_not_as_the_schema_says_reaches_neither_the_tool_nor_a_person() {
    let harness = harness(&[("tools/count.json", tool("echo run >> log"))]).await;
    let calls = Reply::new()
        .tool_use("shell", json!({"command": ["rm", "-r"], "timeout_s": 0}))
        .tool_use("count", json!({"number": "one"}))
        .tool_use("write_file", json!({"path": "a"}));
    harness.provider.enqueue_all([calls, Reply::from_text("I see.")]);
    let events = harness.send("go").await;
    assert_eq!(final_text(&events), "I see.");
    assert!(!events.iter().any(|event| event.kind == "hitl_request"));
    let start = "the input does not match its schema:\n";
    let expected = [
        (
            "shell",
            format!(
                "{start}- at `/command`: it is not of type \"string\"\n- at `/timeout_s`: it is less than the minimum of 1"
            ),
        ),
        ("count", format!("{start}- at `/number`: it is not of type \"integer\"")),
        ("write_file", format!("{start}- at `/`: \"content\" is a required property")),
    ];
    let results: Vec<_> =
        results(&events).into_iter().map(|(tool, error)| (tool, error.to_owned())).collect();
    assert_eq!(results, expected);
    assert!(!harness.workspace().join("log").exists());
}

#[tokio::test]
async fn without_a_sandbox_nothing_that_runs_programs_is_offered() {
    let skill = "---\nname: forms\ndescription: Fills in forms.\n---\nDo.";
    let harness = harness(&[
        ("tools/count.json", tool("echo 1")),
        ("skills/forms/SKILL.md", json!(skill)),
        ("skills/forms/scripts/a.sh", json!("echo a")),
    ])
    .await;
    let offered = |toolbox: &Toolbox| {
        ["load_skill", "run_skill_script", "shell", "count"].map(|name| toolbox.find(name).is_some())
    };
    assert_eq!(offered(&harness.agent.services.snapshots.current().toolbox), [true; 4]);
    let without = ToolDeps {
        workspace: harness.workspace(),
        workspace_lock: tools::WorkspaceLock::default(),
        brain: harness.brain.clone(),
        catalog: harness.catalog.clone(),
        sandbox: None,
        skill_dirs: Arc::clone(&harness.agent.services.skill_dirs),
        process_permits: tools::ProcessPermits::default(),
        web_allowlist: WebAllowlist::default(),
        memory_budget: harness.agent.services.memory_budget.clone(),
        documents: harness.agent.services.documents.clone(),
    };
    assert_eq!(offered(&Toolbox::built_in(&without)), [true, false, false, false]);
}
