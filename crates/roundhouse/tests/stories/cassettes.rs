//! Cassettes: a turn is exported and run again on another model; recorded results are served, nothing acts, and what
//! is different is told.

use std::fs;

use mock_llm::{Gate, Reply, Usage, Wire};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::cassettes::{brain_rows, turn_of, with_rules};
use crate::support::engine_calls::{answer_id, direct_message, with_fields};
use crate::support::engine_fixture::{
    PNG_BASE64, ReplyExt as _, ask_user_reply, memory_set_reply, wait_gate_reached, wait_provider_idle,
    write_file_reply,
};
use crate::support::http::{client, send};
use crate::support::tool_programs::{done_reply, shell_reply, tool_reply};
use crate::support::turn::{assert_cancelled, assert_errored};
use crate::support::web_server::WebServer;
use crate::support::{EngineFixture, StandaloneEngine, assert_fields, eventually};

/// A model of each wire.
const MODELS: [&str; Wire::COUNT] = ["anthropic", "openai", "responses", "gemini", "ollama"];

async fn fixture(replies: impl IntoIterator<Item = Reply>) -> EngineFixture {
    EngineFixture::with_models(&MODELS, replies, StandaloneEngine::allowing_all_tools).await
}

/// Runs a turn; returns its cassette.
async fn recorded(fixture: &EngineFixture, message: &str) -> Value {
    let events = fixture.engine.run_turn("task", message).await;
    fixture.cassette("task", turn_of(&events)).await
}

fn counts(report: &Value) -> [u64; 4] {
    ["same", "changed", "missing", "extra"].map(|field| report["calls"][field].as_u64().unwrap())
}

fn write(path: &str, content: &str) -> Reply {
    tool_reply("write_file", json!({"path": path, "content": content}))
}

#[tokio::test]
async fn a_turn_is_run_again_on_every_wire_and_nothing_acts() {
    let calls = || {
        let calls = write("notes.txt", "Grüße aus 東京").memory_set("city", "東京");
        [calls, tool_reply("read_file", json!({"path": "missing.txt"})), Reply::from_text("東京は晴れです。")]
    };
    let fixture = fixture(calls()).await;
    let cassette = recorded(&fixture, "Wie ist das Wetter in 東京?").await;
    assert_eq!(cassette.get("incomplete"), None, "all is as it was");
    assert_eq!(cassette["steps"].as_array().unwrap().len(), 3);
    let failed = &cassette["steps"][1]["calls"][0];
    assert_eq!((&failed["tool"], &failed["result"]["is_error"]), (&json!("read_file"), &json!(true)));
    assert_eq!(cassette["outcome"]["text"], "東京は晴れです。");
    let file = fixture.setup.workspace().join("notes.txt");
    fs::remove_file(&file).unwrap();
    let before = brain_rows(&fixture.setup);
    for model in MODELS {
        fixture.provider.enqueue_all(calls());
        let report = fixture.replay(&cassette, json!({"model": model})).await;
        assert_eq!(counts(&report), [3, 0, 0, 0], "{model}: {report}");
        assert_eq!(report["scores"], json!({"tools": 1.0, "text": 1.0, "expectations": null, "total": 1.0}));
        assert_eq!((&report["model"], &report["text"]["equal"]), (&json!(model), &json!(true)));
        assert_eq!(report["end"], json!({"state": "completed", "stop_reason": "end_turn"}));
        assert_eq!(report["recorded_models"], json!(["claude-sonnet-4-5"]));
        let sent = fixture.provider.requests().pop().unwrap().body.to_string();
        for text in ["Wie ist das Wetter", "missing.txt", "no such file"] {
            assert!(sent.contains(text), "{model}: {text} is not in {sent}");
        }
    }
    fixture.provider.assert_no_refusals();
    assert!(!file.exists(), "nothing was written");
    assert_eq!(brain_rows(&fixture.setup), before);
    // The calls are counted, in no task.
    let usage = fixture
        .engine
        .get("/usage?group_by=purpose,task")
        .await
        .assert_ok("rows:array total:object next:text|null");
    let rows = usage["rows"].as_array().unwrap();
    let replay = rows.iter().find(|row| row["purpose"] == "replay").unwrap();
    assert_eq!((&replay["usage"]["calls"], &replay["task_id"]), (&json!(15), &Value::Null));
}

#[tokio::test]
async fn a_changed_call_is_told_and_given_the_recorded_result() {
    let call = |path: &str| tool_reply("read_file", json!({"path": path}));
    let fixture = fixture([]).await;
    fs::create_dir_all(fixture.setup.workspace()).unwrap();
    fs::write(fixture.setup.workspace().join("a.txt"), "The code is 4711.").unwrap();
    fs::write(fixture.setup.workspace().join("b.txt"), "Not to be read.").unwrap();
    fixture.provider.enqueue_all([
        call("a.txt"),
        memory_set_reply("code", "4711"),
        Reply::from_text("The code is 4711."),
    ]);
    let cassette = recorded(&fixture, "Which code?").await;

    let other = [
        call("b.txt").tool_use("shell", json!({"command": "touch ran"})),
        call("b.txt"),
        Reply::from_text("The code is 12."),
    ];
    fixture.provider.enqueue_all(other);
    let report = fixture.replay(&cassette, json!({"model": "openai"})).await;
    assert_eq!(counts(&report), [0, 1, 1, 2], "{report}");
    let calls = report["steps"][0]["calls"].as_array().unwrap();
    assert_eq!(
        (&calls[0]["pairing"], &calls[0]["recorded_input"]),
        (&json!("approximate"), &json!({"path": "a.txt"}))
    );
    assert_eq!((&calls[1]["pairing"], &calls[1]["tool"]), (&json!("not_recorded"), &json!("shell")));
    assert_eq!(report["steps"][1]["calls"][0]["pairing"], "not_recorded", "its only result was given away");
    assert_eq!(
        report["missing_calls"],
        json!([{"tool": "working_memory_set", "input": {"key": "code", "value": "4711"}}])
    );
    assert_eq!(
        report["text"]["diff"],
        json!([
            {"op": "equal", "text": "The code is "}, {"op": "delete", "text": "4711"},
            {"op": "insert", "text": "12"}, {"op": "equal", "text": "."},
        ])
    );
    assert_eq!(report["text"]["similarity"], json!(0.8));
    assert_eq!((&report["scores"]["tools"], &report["scores"]["total"]), (&json!(0.0), &json!(0.4)));
    fixture
        .last_messages()
        .assert_contains(&["The code is 4711.", "not recorded"])
        .assert_lacks(&["Not to be read"]);
    assert!(!fixture.setup.workspace().join("ran").exists(), "nothing ran");
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn what_people_answered_and_changed_is_recorded_and_served() {
    let replies = [
        ask_user_reply("Which colour?"),
        write_file_reply("model.txt"),
        write_file_reply("no.txt"),
        done_reply(),
    ];
    let fixture = EngineFixture::with_models(&MODELS, replies, |setup| setup).await;
    let (mut stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Write it.")).await;
    fixture.engine.respond("task", "grün").await.assert_ok("status:text request_id:hitl");
    stream.next_hitl_request().await;
    let open = fixture.engine.get("/tasks/task/approvals").await.assert_ok("approvals:array");
    let id = open["approvals"][0]["request_id"].as_str().unwrap();
    let input = json!({"path": "person.txt", "content": "mine"});
    let body = json!({"decision": "allow_once", "input": input});
    fixture
        .engine
        .post(&format!("/tasks/task/approvals/{id}"), &body)
        .await
        .assert_ok("request_id:hitl decision:text");
    stream.next_hitl_request().await;
    let deny = json!({"task_id": "task", "answer": "no", "feedback": "not that one"});
    fixture.engine.respond_with(&deny).await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    let cassette = fixture.cassette("task", turn_of(&events)).await;
    let call = |step: usize| &cassette["steps"][step]["calls"][0];
    assert_eq!(
        call(0)["person"],
        json!([{"kind": "question", "question": "Which colour?", "answer": "grün"}])
    );
    assert_eq!((&call(1)["input"]["path"], &call(1)["ran_input"]), (&json!("model.txt"), &input));
    assert_eq!(
        (&call(1)["person"][0]["kind"], &call(1)["person"][0]["answer"]),
        (&json!("permission"), &json!("yes"))
    );
    assert!(call(2)["result"]["text"].as_str().unwrap().contains("not that one"), "{cassette}");

    // A model that writes at once what the person wanted is the same, and nobody is asked.
    let changed = tool_reply("write_file", input);
    fixture.provider.enqueue_all([
        ask_user_reply("Which colour?"),
        changed,
        write_file_reply("no.txt"),
        done_reply(),
    ]);
    let report = fixture.replay(&cassette, json!({"model": "gemini"})).await;
    assert_eq!(counts(&report), [3, 0, 0, 0], "{report}");
    assert!(fixture.engine.pending().await.is_empty());
    let sent = fixture.provider.requests().pop().unwrap().body.to_string();
    assert!(sent.contains("grün") && sent.contains("not that one"), "{sent}");
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn a_sub_agent_and_servers_are_not_called() {
    let server = WebServer::with_text("Sunny.").await;
    let tool = json!({
        "description": "Says the weather.", "permission": "allow",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
        "http": {"method": "POST", "url": server.url()},
    });
    let delegation = || tool_reply("run_agent", json!({"agent": "finder", "task": "Find the key."}));
    let weather = || tool_reply("weather", json!({"city": "Bonn"}));
    let replies = [delegation(), weather(), Reply::from_text("Under the mat."), weather(), done_reply()];
    let fixture = EngineFixture::with_models(&MODELS, replies, |setup| {
        setup
            .allowing_all_tools()
            .with_catalog_file(
                "agents/finder.md",
                "---\nname: finder\ndescription: Finds things.\n---\nYou find things.",
            )
            .with_catalog_file("tools/weather.json", &tool.to_string())
    })
    .await;
    let cassette = recorded(&fixture, "Find it.").await;
    let steps = cassette["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 3, "what the sub-agent did is not a step: {cassette}");
    assert_eq!(steps[0]["calls"][0]["result"]["text"], "Under the mat.");
    assert!(steps[1]["calls"][0]["result"]["text"].as_str().unwrap().contains("Sunny."));
    assert_eq!(server.requests().len(), 2);

    fixture.provider.enqueue_all([delegation(), weather(), done_reply()]);
    let calls_before = fixture.model_calls();
    let report = fixture.replay(&cassette, json!({"model": "ollama"})).await;
    assert_eq!(counts(&report), [2, 0, 0, 0]);
    assert_eq!(fixture.model_calls() - calls_before, 3, "the sub-agent's model is not called");
    assert_eq!(server.requests().len(), 2, "the server is not called");
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn the_soul_the_instructions_and_the_catalog_can_be_replaced() {
    const AGENT: &str =
        "---\nname: poet\ndescription: Writes.\nmodel: openai\ntools: [read_file]\n---\nYou are a poet.";
    let fixture = EngineFixture::with_models(&MODELS, [Reply::from_text("Hello.")], |setup| {
        setup.with_catalog_file("soul.md", "You are the first.").with_catalog_file("agents/poet.md", AGENT)
    })
    .await;
    let cassette = recorded(&fixture, "Hi.").await;
    assert!(cassette["prompt"]["system"].as_str().unwrap().contains("You are the first."));
    let replay = async |with: Value| {
        fixture.provider.enqueue(Reply::from_text("Hello."));
        let report = fixture.replay(&cassette, with).await;
        let sent = fixture.provider.requests().pop().unwrap().body;
        (
            report["model"].as_str().unwrap().to_owned(),
            sent.to_string(),
            sent["tools"].as_array().map_or(0, Vec::len),
        )
    };
    let recorded_tools = cassette["prompt"]["tools"].as_array().unwrap().len();
    let (model, sent, tools) = replay(json!({})).await;
    assert_eq!((model.as_str(), tools), ("anthropic", recorded_tools), "the recorded model is found");
    assert!(sent.contains("You are the first."));
    let (_, sent, _) =
        replay(json!({"soul": "Du bist der Zweite.", "instructions": "Answer in French."})).await;
    assert!(sent.contains("Du bist der Zweite.") && !sent.contains("You are the first."), "{sent}");
    assert!(sent.contains("Answer in French."), "{sent}");
    let (model, sent, tools) = replay(json!({"agent": "poet"})).await;
    assert_eq!((model.as_str(), tools), ("openai", 1));
    assert!(sent.contains("You are a poet."), "{sent}");

    fs::write(fixture.setup.test_env.path().join("catalog/soul.md"), "You are the third.").unwrap();
    let reload = fixture.engine.post("/admin/reload-core-soul", &json!({})).await;
    assert_eq!(reload.status, 200, "{}", reload.body);
    let (_, sent, _) = replay(json!({})).await;
    assert!(sent.contains("You are the first."), "the cassette holds its own: {sent}");
    let (_, sent, _) = replay(json!({"catalog": true})).await;
    assert!(sent.contains("You are the third."), "{sent}");
    // A new export has the soul of now, and says so.
    let later = fixture.cassette("task", cassette["turn_id"].as_str().unwrap()).await;
    assert_eq!(later["incomplete"][0]["part"], "system", "{later}");
    assert_eq!(later["incomplete"].as_array().unwrap().len(), 1);
    fixture.provider.enqueue(Reply::from_text("Hello."));
    let report = fixture.replay(&later, json!({})).await;
    assert_eq!(report["incomplete"], later["incomplete"]);
    for (with, expected) in [
        (json!({"agent": "painter"}), "it has: poet"),
        (json!({"agent": "poet", "catalog": true}), "`with.agent`"),
        (json!({"soul": " "}), "`with.soul`"),
        (json!({"max_turns": 0}), "`with.max_turns`"),
        (json!({"max_turns": 101}), "`with.max_turns`"),
        (json!({"effort": "huge"}), "`with.effort`"),
    ] {
        let message = fixture.refused_replay(&cassette, with.clone()).await;
        assert!(message.contains(expected), "{with}: {message}");
    }
    let body = json!({"cassette": cassette, "with": {"model": "gpt-9"}});
    let refused = fixture.engine.post("/cassettes/run", &body).await;
    assert!(refused.assert_error(400, "MODEL_NOT_PERMITTED").contains("anthropic, gemini"));
}

#[tokio::test]
async fn rules_and_limits_of_a_run() {
    let fixture = fixture([memory_set_reply("a", "b"), Reply::from_text("{\"sum\": 3}")]).await;
    let cassette = recorded(&fixture, "Add.").await;
    let rules = json!([
        {"rule": "json_equals", "value": {"sum": 3.0}}, {"rule": "contains", "text": "sum"},
        {"rule": "matches", "pattern": "^\\{"}, {"rule": "calls", "tool": "shell"},
    ]);
    fixture.provider.enqueue_all([memory_set_reply("a", "b"), Reply::from_text("{\"sum\": 3}")]);
    let report = fixture.replay(&with_rules(cassette.clone(), rules), json!({})).await;
    let passed: Vec<_> =
        report["expectations"].as_array().unwrap().iter().map(|rule| &rule["passed"]).collect();
    assert_eq!(passed, [true, true, true, false]);
    assert_eq!(report["scores"], json!({"tools": 1.0, "text": 1.0, "expectations": 0.75, "total": 0.875}));

    // A model that never ends is stopped.
    fixture.provider.set_default_reply(tool_reply("read_file", json!({"path": "x"})));
    let report = fixture.replay(&cassette, json!({"max_turns": 3})).await;
    assert_eq!(report["end"], json!({"state": "completed", "stop_reason": "max_turns"}));
    assert_eq!(report["step_counts"], json!({"recorded": 2, "run": 3}));
    let many = Usage { input: Some(200_000), output: Some(10), ..Usage::default() };
    fixture.provider.set_default_reply(tool_reply("read_file", json!({"path": "x"})).usage(many));
    let report = fixture.replay(&cassette, json!({"max_tokens": 300_000})).await;
    assert_eq!(report["end"]["stop_reason"], "budget", "{report}");
    assert_eq!(report["step_counts"]["run"], 2);
    let report = fixture.replay(&cassette, json!({"max_tokens": 10})).await;
    assert_eq!((&report["end"]["state"], &report["scores"]["total"]), (&json!("failed"), &json!(0.0)));
}

#[tokio::test]
async fn a_run_counts_towards_the_caps_and_stops_at_them() {
    let used = |input| Usage { input: Some(input), output: Some(0), ..Usage::default() };
    let fixture = EngineFixture::with_models(&MODELS, [Reply::from_text("Hi.").usage(used(10))], |setup| {
        setup.with_env("ENGINE_USAGE_MAX_TOKENS_PER_DAY", "300000")
    })
    .await;
    let cassette = recorded(&fixture, "Hello.").await;
    let endless = tool_reply("read_file", json!({"path": "x"})).usage(used(200_000));
    fixture.provider.set_default_reply(endless);
    let report = fixture.replay(&cassette, json!({})).await;
    assert_eq!(report["end"]["stop_reason"], "budget");
    let body = json!({"cassette": cassette});
    let refused = fixture.engine.post("/cassettes/run", &body).await;
    refused.assert_error(429, "USAGE_CAP_REACHED");
    assert!(refused.header("retry-after").is_some());
}

#[tokio::test]
async fn steering_files_and_earlier_messages_are_in_the_cassette() {
    let gate = Gate::new();
    let held = memory_set_reply("a", "b").text("Thinking.").hold(1, &gate);
    let fixture = fixture([Reply::from_text("One."), held, Reply::from_text("Deux.")]).await;
    fixture.engine.run_turn("task", "First.").await;
    let picture = json!({"type": "image", "media_type": "image/png", "data": PNG_BASE64});
    let body = with_fields(direct_message("task", "Second."), json!({"media": [picture]}));
    let stream = fixture.engine.execute_with(&body).await;
    wait_gate_reached(&gate).await;
    assert_eq!(fixture.engine.steer("task", "En français.").await.status, 200);
    gate.release();
    let events = stream.collect().await;
    let cassette = fixture.cassette("task", turn_of(&events)).await;
    assert_eq!(cassette["steps"][0]["steered"], json!(["En français."]));
    let messages = cassette["prompt"]["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(messages[2].to_string().contains(PNG_BASE64));
    for model in MODELS {
        fixture.provider.enqueue_all([memory_set_reply("a", "b"), Reply::from_text("Deux.")]);
        let report = fixture.replay(&cassette, json!({"model": model})).await;
        assert_eq!(report["scores"]["total"], 1.0, "{model}: {report}");
        let sent = fixture.provider.requests().pop().unwrap().body.to_string();
        for text in ["First.", "One.", "Second.", PNG_BASE64, "En français."] {
            assert!(sent.contains(text), "{model}: {text}");
        }
    }
    // A file that no model takes costs the run nothing else.
    let unknown = cassette.to_string().replace("image/png", "image/x-unknown");
    let unknown = serde_json::from_str(&unknown).unwrap();
    for model in MODELS {
        fixture.provider.enqueue_all([memory_set_reply("a", "b"), Reply::from_text("Deux.")]);
        let report = fixture.replay(&unknown, json!({"model": model})).await;
        assert_eq!(report["scores"]["total"], 1.0, "{model}: {report}");
        let sent = fixture.provider.requests().pop().unwrap().body.to_string();
        assert!(sent.contains("Second.") && !sent.contains(PNG_BASE64), "{model}");
    }
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn an_export_is_the_same_again_after_a_kill_and_holds_no_secret() {
    let fixture = fixture([shell_reply("echo hello"), done_reply()]).await;
    let cassette = recorded(&fixture, "Go.").await;
    let turn = cassette["turn_id"].as_str().unwrap();
    let fixture = fixture.kill_and_start().await;
    assert_eq!(fixture.cassette("task", turn).await, cassette);
    let by_turn = fixture.engine.rpc_result("cassette.export", json!({"turn_id": turn})).await;
    assert_eq!(by_turn, cassette);
    // It moves with the memory.
    let export = fixture.engine.request(Method::GET, "/memory/export").send().await.unwrap();
    let document = export.text().await.unwrap();
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    let importing = fixture.engine.request(Method::POST, "/memory/import?mode=replace").body(document);
    assert_eq!(send(importing).await.status, 200);
    assert_eq!(fixture.cassette("task", turn).await, cassette);
    fixture.provider.enqueue_all([shell_reply("echo hello"), done_reply()]);
    let report = fixture
        .engine
        .rpc_result("cassette.run", json!({"cassette": cassette, "with": {"model": "responses"}}))
        .await;
    assert_fields(&report, crate::support::cassettes::REPORT);
    assert_eq!(report["scores"]["total"], 1.0);
    let text = cassette.to_string() + &report.to_string();
    for secret in ["of ANTHROPIC_API_KEY", "of OPENAI_API_KEY", fixture.engine.key.as_str()] {
        assert!(!text.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn a_retried_turn_is_recorded_as_its_model_saw_it() {
    let fixture = fixture([Reply::from_text("Red."), Reply::from_text("Green.")]).await;
    let first = fixture.engine.run_turn("task", "Which colour?").await;
    let retry =
        json!({"task_id": "task", "message": "", "direct": true, "retry_message_id": answer_id(&first)});
    let second = fixture.engine.run_turn_with(&retry).await;
    for (events, text) in [(&first, "Red."), (&second, "Green.")] {
        let cassette = fixture.cassette("task", turn_of(events)).await;
        assert_eq!(cassette["prompt"]["messages"].as_array().unwrap().len(), 1, "{cassette}");
        assert_eq!(
            (&cassette["outcome"]["text"], &cassette["steps"][0]["text"]),
            (&json!(text), &json!(text))
        );
    }
}

#[tokio::test]
async fn the_form_of_the_answer_holds_for_a_run_too() {
    let (good, bad) = (|| Reply::from_text("{\"city\":\"Köln\"}"), || Reply::from_text("Köln."));
    let schema = json!({
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "name": "place", "schema": schema, "strict": true});
    let body =
        with_fields(direct_message("task", "Wo?"), json!({"model": "openai", "response_format": format}));
    let fixture = fixture([good()]).await;
    let events = fixture.engine.run_turn_with(&body).await;
    let cassette = fixture.cassette("task", turn_of(&events)).await;
    assert_eq!(cassette["prompt"]["options"]["response_format"], format);
    fixture.provider.enqueue_all([bad(), good()]);
    let report = fixture.replay(&cassette, json!({"model": "gemini"})).await;
    assert_eq!((&report["end"]["state"], &report["step_counts"]["run"]), (&json!("completed"), &json!(2)));
    fixture.provider.enqueue_all([bad(), bad()]);
    let report = fixture.replay(&cassette, json!({"model": "openai"})).await;
    assert_eq!((&report["end"]["state"], &report["scores"]["total"]), (&json!("failed"), &json!(0.0)));
    assert!(report["end"]["error"].as_str().unwrap().contains("response_format"), "{report}");
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn turns_that_failed_were_cancelled_or_run_yet() {
    let gate = Gate::new();
    let fixture = fixture([memory_set_reply("a", "b"), Reply::from_text("I begin").hold(1, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Go.")).await;
    wait_gate_reached(&gate).await;
    let turns = fixture.engine.get("/tasks/task/turns").await.assert_ok("turns:array");
    let turn = turns["turns"][0]["turn_id"].as_str().unwrap().to_owned();
    let path = format!("/tasks/task/turns/{turn}/cassette");
    assert!(fixture.engine.get(&path).await.assert_error(409, "TASK_BUSY").contains("not ended"));
    assert_eq!(fixture.engine.cancel("task").await.status, 200);
    assert_cancelled(&stream.collect().await);
    let cassette = fixture.cassette("task", &turn).await;
    assert_eq!(
        (&cassette["outcome"]["state"], cassette["steps"].as_array().unwrap().len()),
        (&json!("cancelled"), 1)
    );

    fixture.provider.enqueue(Reply::from_fault(mock_llm::Fault::refuse(mock_llm::Refusal::Unauthorized)));
    let events = fixture.engine.execute_with(&direct_message("task", "Again.")).await.collect().await;
    assert_errored(&events);
    let failed = fixture.cassette("task", turn_of(&events)).await;
    assert_eq!((&failed["outcome"]["state"], &failed["steps"]), (&json!("failed"), &json!([])));
    assert!(failed["outcome"]["error"].as_str().unwrap().contains("401"), "{failed}");
    // A run on a model that fails says so.
    fixture.provider.enqueue(Reply::from_fault(mock_llm::Fault::refuse(mock_llm::Refusal::Unauthorized)));
    let report = fixture.replay(&failed, json!({})).await;
    assert_eq!(report["end"]["state"], "failed");
    assert!(report["end"]["error"].as_str().unwrap().contains("401"), "{report}");
    // A run that works.
    fixture.provider.enqueue(Reply::from_text("Now it works."));
    assert_eq!(fixture.replay(&failed, json!({"model": "gemini"})).await["text"]["run"], "Now it works.");
}

#[tokio::test]
async fn a_run_ends_with_its_caller_and_leaves_nothing_when_killed() {
    let fixture = fixture([done_reply()]).await;
    let cassette = recorded(&fixture, "Go.").await;
    let body = json!({"cassette": cassette});
    let begin = async || {
        let gate = Gate::new();
        fixture.provider.enqueue(Reply::from_text("a long answer").hold(1, &gate));
        let request = fixture.engine.request(Method::POST, "/cassettes/run").json(&body);
        let running = tokio::spawn(async move { request.send().await });
        wait_gate_reached(&gate).await;
        (running, gate)
    };
    let (running, _gate) = begin().await;
    running.abort();
    wait_provider_idle(&fixture.provider).await;
    // What the provider bills all the same is counted.
    eventually("the cancelled call is counted", async || {
        let usage = fixture.engine.get("/usage?group_by=purpose").await;
        let rows = usage.body["rows"].as_array()?.clone();
        rows.into_iter().find(|row| row["purpose"] == "replay" && row["usage"]["failed_calls"] == 1)
    })
    .await;
    assert!(fixture.engine.quiesce().await, "nothing runs any more");
    fixture.engine.lift_quiesce().await;

    let before = brain_rows(&fixture.setup);
    let (running, _gate) = begin().await;
    assert!(!fixture.engine.quiesce().await, "a run keeps the engine awake");
    let fixture = fixture.kill_and_start().await;
    assert!(running.await.unwrap().is_err());
    assert_eq!(brain_rows(&fixture.setup), before);
    assert_eq!(fixture.engine.activity().await["running_turns"], 0);
    fixture.provider.enqueue(done_reply());
    assert_eq!(fixture.replay(&cassette, json!({})).await["scores"]["total"], 1.0);
    drop(send(client().get(format!("{}/health", fixture.engine.url))).await);
}

#[tokio::test]
async fn a_turn_that_was_given_up_has_a_cassette() {
    let gate = Gate::new();
    let fixture = fixture([memory_set_reply("a", "b"), Reply::from_text("I begin").hold(1, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Go.")).await;
    wait_gate_reached(&gate).await;
    drop(stream);
    let EngineFixture { setup, program, .. } = fixture;
    program.signal_and_wait(rustix::process::Signal::KILL).await;
    let brain = rusqlite::Connection::open(setup.brain()).unwrap();
    brain.execute("UPDATE turns SET ended_at = opened_at", []).unwrap();
    drop(brain);
    let (_program, engine) = setup.start().await;
    let turns = engine.get("/tasks/task/turns").await.assert_ok("turns:array");
    let turn = turns["turns"][0]["turn_id"].as_str().unwrap();
    let cassette = engine.get(&format!("/tasks/task/turns/{turn}/cassette")).await;
    assert_eq!(cassette.status, 200, "{}", cassette.body);
    assert_eq!(cassette.body["steps"].as_array().unwrap().len(), 1, "{}", cassette.body);
}
