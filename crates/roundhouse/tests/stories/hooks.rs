//! `hooks.json` of the catalog: what runs before and after the agent's tools may refuse a call, change its input, add
//! a note for the model, and withhold or replace the result.

use std::fs;
use std::path::Path;

use mock_llm::Reply;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, write_file_reply};
use crate::support::tool_programs::{done_reply, shell_reply, tool_reply, tool_results, write_catalog_file};
use crate::support::turn::{assert_completed, of_kind};
use crate::support::web_server::WebServer;
use crate::support::{EngineFixture, Event, StandaloneEngine};

/// A hook that runs a shell script.
fn script_hook(name: &str, on: &str, tools: &[&str], script: &str) -> Value {
    json!({"name": name, "on": on, "tools": tools, "command": ["sh", "-c", script]})
}

fn say(answer: &Value) -> String {
    format!("echo '{answer}'")
}

/// An engine that needs no approvals, with these hooks and these answers of its model.
async fn fixture(hooks: Value, replies: impl IntoIterator<Item = Reply>) -> EngineFixture {
    EngineFixture::with_setup("anthropic", replies, |setup: StandaloneEngine| {
        setup.allowing_all_tools().with_catalog_file("hooks.json", &json!({"hooks": hooks}).to_string())
    })
    .await
}

async fn run(fixture: &EngineFixture) -> Vec<Event> {
    let events = fixture.engine.run_turn("task", "Go.").await;
    assert_completed(&events);
    fixture.provider.assert_no_refusals();
    events
}

fn read(fixture: &EngineFixture, name: &str) -> String {
    fs::read_to_string(fixture.setup.workspace().join(name)).unwrap_or_default()
}

/// The data of the reports of hooks, without the ids.
fn reports(events: &[Event]) -> Vec<Value> {
    let reports = of_kind(events, "tool_hook").into_iter();
    reports
        .map(|event| {
            let mut data = event.data.clone();
            for field in ["task_id", "turn_id", "ts", "tool_call_id"] {
                assert!(data.as_object_mut().unwrap().remove(field).is_some(), "{field}");
            }
            data
        })
        .collect()
}

#[tokio::test]
async fn a_refused_call_is_not_run_and_its_model_reads_why() {
    let refuse = say(&json!({"decision": "refuse", "reason": "No writing on Thursdays."}));
    let hooks = json!([script_hook("guard", "before", &["write_*"], &refuse)]);
    let replies = [write_file_reply("a.txt").memory_set("k", "v"), done_reply()];
    let fixture = fixture(hooks, replies).await;
    let events = run(&fixture).await;
    let results = tool_results(&events);
    let refusal = "the hook `guard` of the product refused this call: No writing on Thursdays.";
    assert!(results.contains(&Err(refusal)), "{results:?}");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "the other call ran");
    let expected = json!({"tool": "write_file", "hook": "guard", "on": "before", "decision": "refuse",
                          "reason": "No writing on Thursdays."});
    assert_eq!(reports(&events), [expected]);
    assert!(!fixture.setup.workspace().join("a.txt").exists());
    fixture.last_messages().assert_contains(&["No writing on Thursdays."]);
    assert_eq!(of_kind(&events, "tool_call").len(), 2, "clients see the call");
}

#[tokio::test]
async fn a_changed_input_is_what_is_approved_run_shown_and_noted() {
    let change = say(&json!({"decision": "allow", "input": {"path": "safe.txt", "content": "Safe."}}));
    // The second hook sees what the first one made of the input.
    let log = format!("cat > seen.json; {}", say(&json!({"decision": "allow", "note": "Filed."})));
    let hooks = json!([
        script_hook("redirect", "before", &["write_file"], &change),
        script_hook("log", "before", &["*"], &log),
    ]);
    let fixture =
        EngineFixture::with_setup("anthropic", [write_file_reply("risky.txt"), done_reply()], |setup| {
            let setup = setup.allowing_unconfined();
            setup.with_catalog_file("hooks.json", &json!({"hooks": hooks}).to_string())
        })
        .await;
    let body = with_fields(direct_message("task", "Go."), json!({"metadata": {"user": "u-1"}}));
    let (stream, request) = fixture.engine.run_until_hitl_request(&body).await;
    let question = request.data["question"].as_str().unwrap();
    assert!(question.contains("safe.txt") && !question.contains("risky.txt"), "{question}");
    fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    assert_completed(&events);
    assert_eq!(read(&fixture, "safe.txt"), "Safe.");
    assert!(!fixture.setup.workspace().join("risky.txt").exists());
    assert_eq!(of_kind(&events, "tool_call")[0].data["input"]["path"], "safe.txt");
    let reports = reports(&events);
    assert_eq!((&reports[0]["input"]["path"], &reports[1]["note"]), (&json!("safe.txt"), &json!("Filed.")));
    let seen: Value = serde_json::from_str(&read(&fixture, "seen.json")).unwrap();
    assert_eq!(seen["input"]["path"], "safe.txt");
    for (field, value) in [
        ("hook", json!("log")),
        ("on", json!("before")),
        ("tool", json!("write_file")),
        ("task_id", json!("task")),
        ("agent", Value::Null),
        ("metadata", json!({"user": "u-1"})),
        ("call_id", of_kind(&events, "tool_call")[0].data["tool_call_id"].clone()),
        ("turn_id", events[0].data["turn_id"].clone()),
    ] {
        assert_eq!(seen[field], value, "{field}");
    }
    // The model's own words stay, and the result says what really ran.
    fixture.last_messages().assert_contains(&["risky.txt", "`redirect`", "safe.txt", "`log`", "Filed."]);
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn a_result_is_replaced_or_withheld_before_anybody_sees_it() {
    let mask = say(&json!({"decision": "allow", "result": "The key is ***.", "note": "Masked."}));
    let withhold = say(&json!({"decision": "refuse", "reason": "Not for you."}));
    let hooks = json!([
        script_hook("mask", "after", &["shell"], &mask),
        script_hook("withhold", "after", &["list_files"], &withhold),
    ]);
    let calls = shell_reply("printf 'The key is k%dy.' 3").tool_use("list_files", json!({"path": "."}));
    let fixture = fixture(hooks, [calls, done_reply()]).await;
    fs::create_dir_all(fixture.setup.workspace()).unwrap();
    fs::write(fixture.setup.workspace().join("private.txt"), "").unwrap();
    let events = run(&fixture).await;
    let results = tool_results(&events);
    assert!(results.contains(&Ok("The key is ***.")), "{results:?}");
    assert!(results.iter().any(|result| result.is_err_and(|error| error.ends_with("Not for you."))));
    assert_eq!(reports(&events).len(), 2);
    let results: Vec<&Value> = of_kind(&events, "tool_result").iter().map(|event| &event.data).collect();
    let listed = json!(fixture.engine.messages("task").await).to_string();
    for text in [json!(results).to_string(), listed] {
        assert!(text.contains("***") && !text.contains("k3y") && !text.contains("private.txt"), "{text}");
    }
    fixture.last_messages().assert_contains(&["***", "Masked."]).assert_lacks(&["private.txt"]);
}

#[tokio::test]
async fn a_hook_that_misbehaves_refuses_or_is_ignored_as_the_catalog_says() {
    let bad_input = say(&json!({"decision": "allow", "input": {"path": 7}}));
    let cases = [
        ("echo sure", "not a JSON object"),
        ("exit 4", "exit code 4"),
        ("head -c 1000000 /dev/zero", "longer than"),
        ("sleep 60", "0.5 s"),
        (&bad_input, "invalid"),
        (r#"echo '{"decision": "allow", "result": "x"}'"#, "has not run"),
    ];
    for on_failure in ["refuse", "ignore"] {
        let named = cases.iter().enumerate().map(|(number, (script, _))| {
            let mut hook = script_hook(&format!("h{number}"), "before", &["write_file"], script);
            hook["on_failure"] = on_failure.into();
            if script.starts_with("sleep") {
                hook["timeout"] = 0.5.into();
            }
            hook
        });
        let unreachable = json!({"name": "gone", "on": "before", "tools": ["write_file"],
                                 "url": "http://127.0.0.1:1/", "on_failure": on_failure});
        let hooks: Vec<Value> = named.chain([unreachable]).collect();
        if on_failure == "ignore" {
            let fixture = fixture(json!(hooks), [write_file_reply("a.txt"), done_reply()]).await;
            let events = run(&fixture).await;
            assert_eq!(read(&fixture, "a.txt"), "This is a.txt.");
            let reports = reports(&events);
            assert_eq!(reports.len(), cases.len() + 1, "{reports:?}");
            for (report, (_, why)) in reports.iter().zip(&cases) {
                assert_eq!(report["decision"], "allow");
                assert!(report["failure"].as_str().unwrap().contains(why), "{why}: {report}");
            }
            continue;
        }
        let fixture = fixture(json!([]), []).await;
        for hook in hooks {
            let file = json!({"hooks": [hook]}).to_string();
            write_catalog_file(Path::new(&fixture.setup.variables["CATALOG_DIR"]), "hooks.json", &file);
            let reloaded = fixture.engine.post("/admin/reload-catalog", &json!({})).await;
            reloaded.assert_ok("status:text counts:object warnings:array");
            fixture.provider.enqueue_all([write_file_reply("a.txt"), done_reply()]);
            let events = run(&fixture).await;
            let results = tool_results(&events);
            assert!(results[0].is_err_and(|error| error.contains("failed")), "{results:?}");
            assert_eq!(reports(&events)[0]["decision"], "refuse");
            assert!(!fixture.setup.workspace().join("a.txt").exists(), "{file}");
        }
    }
}

#[tokio::test]
async fn a_hook_can_be_a_request_to_the_products_server() {
    let server = WebServer::with_text(r#"{"decision": "refuse", "reason": "Over the limit."}"#).await;
    let url = format!("{}hooks", server.url());
    let hooks = json!([{"name": "quota", "on": "before", "tools": ["shell"], "url": url,
                        "headers": {"x-key": "${HOOK_KEY:-k3y}"}}]);
    let fixture = fixture(hooks, [shell_reply("echo hi"), done_reply()]).await;
    let events = run(&fixture).await;
    assert!(tool_results(&events)[0].is_err_and(|error| error.ends_with("Over the limit.")));
    let request = server.requests().concat();
    assert!(request.starts_with("POST /hooks ") && request.contains("x-key: k3y"), "{request}");
    assert!(request.contains(r#""input":{"command":"echo hi"}"#), "{request}");
    // The key is not among what programs can read.
    let key = "cat ../catalog/hooks.json";
    fixture.provider.enqueue_all([shell_reply(key), done_reply()]);
    assert!(!json!(of_kind(&run(&fixture).await, "tool_result")[0].data).to_string().contains("k3y"));
}

#[tokio::test]
async fn a_model_whose_calls_are_all_refused_ends_as_one_that_repeats_itself() {
    let hooks = json!([script_hook("never", "before", &["*"], &say(&json!({"decision": "refuse"})))]);
    let fixture = fixture(hooks, (0..8).map(|_| tool_reply("list_files", json!({"path": "."})))).await;
    let events = fixture.engine.run_turn("task", "Go.").await;
    assert_eq!(events.last().unwrap().data["stop_reason"], "loop");
    assert_eq!(reports(&events).len(), 5);
}

#[tokio::test]
async fn tools_of_sub_agents_and_of_the_catalog_have_hooks_too() {
    let line = r#"cat >> log; echo >> log; echo '{"decision": "allow", "note": "noted"}'"#;
    let hooks = json!([
        script_hook("log-before", "before", &["*"], line),
        script_hook("log-after", "after", &["*"], line),
    ]);
    let replies = [
        tool_reply("run_agent", json!({"agent": "finder", "task": "Find it."})),
        tool_reply("weather", json!({})),
        Reply::from_text("Found."),
        done_reply(),
    ];
    let weather = json!({"description": "Weather.", "command": ["echo", "sunny"]}).to_string();
    let fixture = EngineFixture::with_setup("anthropic", replies, |setup: StandaloneEngine| {
        setup
            .allowing_all_tools()
            .with_catalog_file("hooks.json", &json!({"hooks": hooks}).to_string())
            .with_catalog_file("agents/finder.md", "---\ndescription: Finds.\n---\nYou find.")
            .with_catalog_file("tools/weather.json", &weather)
    })
    .await;
    let events = run(&fixture).await;
    assert_eq!(tool_results(&events), [Ok("Found.")]);
    let log = read(&fixture, "log");
    let seen: Vec<(String, String, Value)> = log
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let text = |field: &str| line[field].as_str().unwrap().to_owned();
            (text("on"), text("tool"), line["agent"].clone())
        })
        .collect();
    let expected = [
        ("before", "run_agent", Value::Null),
        ("before", "weather", json!("finder")),
        ("after", "weather", json!("finder")),
        ("after", "run_agent", Value::Null),
    ];
    let expected = expected.map(|(on, tool, agent)| (on.to_owned(), tool.to_owned(), agent));
    assert_eq!(seen, expected);
    let inner =
        of_kind(&events, "agent_event").iter().filter(|event| event.data["event"] == "tool_hook").count();
    assert_eq!((inner, reports(&events).len()), (2, 2));
    fixture.last_messages().assert_contains(&["Found.", "noted"]);
}

#[tokio::test]
async fn hooks_that_cannot_be_read_stop_all_tools_at_a_start_and_change_nothing_later() {
    let refuse = say(&json!({"decision": "refuse"}));
    let hooks = json!([script_hook("guard", "before", &["write_file"], &refuse)]);
    let fixture = fixture(hooks, []).await;
    let catalog = Path::new(&fixture.setup.variables["CATALOG_DIR"]).to_owned();
    write_catalog_file(&catalog, "hooks.json", "{\"hooks\": [{}]}");
    let answer = fixture.engine.post("/admin/reload-catalog", &json!({})).await;
    let answer = answer.assert_ok("status:text counts:object warnings:array");
    let warning = answer["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("hooks.json: ") && warning.ends_with("its last good version stays in use"));
    fixture.provider.enqueue_all([write_file_reply("a.txt").memory_set("k", "v"), done_reply()]);
    let errors = tool_results(&run(&fixture).await).iter().filter(|result| result.is_err()).count();
    assert_eq!(errors, 1);
    let fixture = fixture.stop_and_start().await;
    fixture.provider.enqueue_all([write_file_reply("a.txt").memory_set("k", "v"), done_reply()]);
    let events = run(&fixture).await;
    assert!(
        tool_results(&events)
            .iter()
            .all(|result| result.is_err_and(|error| error.contains("cannot be read")))
    );
    fs::remove_file(catalog.join("hooks.json")).unwrap();
    fixture
        .engine
        .post("/admin/reload-catalog", &json!({}))
        .await
        .assert_ok("status:text counts:object warnings:array");
    fixture.provider.enqueue_all([write_file_reply("a.txt"), done_reply()]);
    run(&fixture).await;
    assert_eq!(read(&fixture, "a.txt"), "This is a.txt.");
}
