//! Lines of the engine's contract that no other story covers. `docs/contract.md` lists them all.

use std::collections::BTreeMap;
use std::fs;

use futures::future::join_all;
use mock_llm::{Fault, Gate, Refusal, Reply, Usage};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::http::{send, send_raw};
use crate::support::search_server::{SearchServer, result};
use crate::support::turn::{assert_completed, assert_errored, of_kind, phases};
use crate::support::web_server::WebServer;
use crate::support::{
    Engine, EngineFixture, Event, HttpResponse, StandaloneEngine, assert_fields, eventually,
};

const SKILL: &str = "---
name: counting
description: Counts words.
---

Count the words that you are given.
";
const TOOL: &str = r#"{"description": "Says what it was given.", "permission": "allow", "command": ["cat"]}"#;

/// The fields of prompt cache statistics.
const CACHE_STATS: &str =
    "calls:int input_tokens:int cache_read_tokens:int cache_write_tokens:int share:number|null";
const MODEL_STATE: &str = "name:text model:text cool_down_seconds:number retry_after_seconds:number|null \
                           failures_in_a_row:int last_failure:object|null";

/// The output of a call of a tool or a skill, which must succeed.
async fn output(engine: &Engine, method: &str, params: Value) -> String {
    let result = engine.rpc_result(method, params).await;
    assert_fields(&result, "output:text");
    result["output"].as_str().unwrap().to_owned()
}

async fn telemetry(engine: &Engine, op: &str) -> Value {
    let call = json!({"subsystem": "telemetry", "op": op});
    engine.post("/rpc", &call).await.assert_ok("result:object")["result"].take()
}

/// The listed methods, each with the schema of its parameters.
async fn methods(engine: &Engine) -> BTreeMap<String, Value> {
    let listed = engine.rpc_result("rpc.methods", json!({})).await;
    assert_fields(&listed, "methods:array");
    let listed = listed["methods"].as_array().unwrap();
    let methods = listed.iter().map(|method| {
        assert_fields(method, "method:text params:object");
        assert_eq!(method["params"]["type"], "object", "{method}");
        (method["method"].as_str().unwrap().to_owned(), method["params"].clone())
    });
    let methods: BTreeMap<String, Value> = methods.collect();
    assert_eq!(methods.len(), listed.len(), "each is listed once: {listed:?}");
    methods
}

/// Adds a skill and a tool to an engine's catalog.
fn with_skill_and_tool(setup: StandaloneEngine) -> StandaloneEngine {
    setup
        .allowing_unconfined()
        .with_catalog_file("skills/counting/SKILL.md", SKILL)
        .with_catalog_file("skills/counting/scripts/count.sh", "wc -w")
        .with_catalog_file("tools/say.json", TOOL)
}

#[tokio::test]
async fn every_method_that_is_listed_can_be_called_and_no_other() {
    let fixture = EngineFixture::with_setup("anthropic", [], |setup| {
        let denied = r#"{"tools": {"edit_file": "deny", "shell": "allow"}}"#;
        with_skill_and_tool(setup)
            .with_catalog_file("permissions.json", denied)
            .with_env("OAUTH_REDIRECT_BASE_URL", "https://product.example")
            .with_env("OAUTH_CLIENT_METADATA_URL", "https://product.example/client.json")
    })
    .await;
    let engine = &fixture.engine;
    let rhyme = json!({"name": "rhyme", "prompt": "Rhyme on what you are given."});
    assert_eq!(engine.post("/skills/create", &rhyme).await.status, 200);

    let listed = methods(engine).await;
    for method in
        ["rpc.methods", "tool.read_file", "tool.say", "skill.counting", "skill.rhyme", "memory.search"]
    {
        assert!(listed.contains_key(method), "{method} is not in {listed:?}");
    }
    for (method, params) in &listed {
        let needs = params["required"].as_array().is_some_and(|required| !required.is_empty());
        let answer = engine.rpc(method, json!({})).await;
        if needs {
            let code = if method.starts_with("tool.") { "TOOL_FAILED" } else { "INVALID_REQUEST" };
            answer.assert_flat_error(400, code);
        } else {
            assert_eq!(answer.status, 200, "{method}: {answer:?}");
        }
    }
    // A denied tool is refused with a code of its own, and not listed.
    engine.rpc("tool.edit_file", json!({})).await.assert_flat_error(400, "TOOL_DENIED");
    assert!(!listed.contains_key("tool.edit_file"), "{listed:?}");

    assert_eq!(engine.delete("/skills/rhyme").await.status, 200);
    assert!(!methods(engine).await.contains_key("skill.rhyme"));
    // A method that needs a turn cannot be called without one.
    for method in [
        "skill.rhyme",
        "tool.ask_user",
        "tool.run_agent",
        "tool.working_memory_set",
        "tool.memory_save",
        "tool.memory_forget",
        "tool.schedule_create",
        "tool.schedule_delete",
        "tool.nothing",
        "memory.nothing",
        "rpc.nothing",
        "nothing",
        "",
    ] {
        assert!(!listed.contains_key(method) || method == "skill.rhyme", "{method} is listed");
        engine.rpc(method, json!({})).await.assert_flat_error(404, "METHOD_NOT_FOUND");
    }
    assert_eq!(engine.tasks("").await.1, 0, "none of these was a turn");
}

#[tokio::test]
async fn every_built_in_tool_that_needs_no_turn_does_its_work() {
    let server = WebServer::with_text("A page of the web.").await;
    let search = SearchServer::start(vec![result("Apples", "https://apples.example/", "Red.")]).await;
    let fixture = EngineFixture::with_setup("anthropic", [], |setup| {
        let setup = with_skill_and_tool(setup).with_env("ENGINE_WEB_ALLOW", server.address.to_string());
        search.configure(setup, "searxng")
    })
    .await;
    let engine = &fixture.engine;
    let listed = methods(engine).await;
    let tools: Vec<&str> = listed.keys().filter_map(|method| method.strip_prefix("tool.")).collect();
    let expected = [
        "edit_file",
        "list_files",
        "load_skill",
        "memory_search",
        "read_file",
        "run_skill_script",
        "say",
        "schedule_list",
        "shell",
        "web_fetch",
        "web_search",
        "write_file",
    ];
    assert_eq!(tools, expected);

    let file = fixture.setup.workspace().join("fruit.txt");
    output(engine, "tool.write_file", json!({"path": "fruit.txt", "content": "a red apple"})).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "a red apple");
    output(engine, "tool.edit_file", json!({"path": "fruit.txt", "old": "red", "new": "green"})).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "a green apple");
    assert_eq!(output(engine, "tool.read_file", json!({"path": "fruit.txt"})).await, "a green apple");
    assert!(output(engine, "tool.list_files", json!({"path": "."})).await.contains("fruit.txt"));
    assert!(output(engine, "tool.shell", json!({"command": "wc -c < fruit.txt"})).await.contains("13"));

    engine.rpc("memory.save", json!({"content": "The apple is green."})).await.assert_ok("result:object");
    assert!(output(engine, "tool.schedule_list", json!({})).await.contains("no schedules"));
    assert!(output(engine, "tool.memory_search", json!({"query": "apple"})).await.contains("is green."));
    let loaded = output(engine, "tool.load_skill", json!({"skill": "counting"})).await;
    assert!(loaded.contains("Count the words") && loaded.contains("count.sh"), "{loaded}");
    let script = json!({"skill": "counting", "script": "count.sh", "input": "one two three"});
    assert_eq!(output(engine, "tool.run_skill_script", script).await.trim(), "3");
    let page = output(engine, "tool.web_fetch", json!({"url": server.url()})).await;
    assert!(page.contains("A page of the web."), "{page}");
    let found = output(engine, "tool.web_search", json!({"query": "apples"})).await;
    assert!(found.contains("[1] Apples\nhttps://apples.example/"), "{found}");
    let echoed = output(engine, "tool.say", json!({"word": "hello"})).await;
    assert_eq!(serde_json::from_str::<Value>(&echoed).unwrap(), json!({"word": "hello"}));
    assert_eq!((engine.pending().await, fixture.model_calls()), (vec![], 0), "no approval was requested");
}

#[tokio::test]
async fn refusals_of_calls_are_flat_whatever_was_wrong() {
    let refused = || Reply::from_fault(Fault::refuse(Refusal::Unauthorized));
    let fixture = EngineFixture::with_setup("anthropic", [refused()], with_skill_and_tool).await;
    let engine = &fixture.engine;
    // A failure of the provider is not the caller's fault.
    let failed = engine.rpc("skill.counting", json!({"input": "one two"})).await;
    let message = failed.assert_flat_error(500, "INTERNAL_ERROR");
    assert!(message.contains("401"), "the message gives the reason: {message}");
    let scripts = engine.rpc("skill.counting", json!({"script": "nothing.sh"})).await;
    assert!(scripts.assert_flat_error(400, "TOOL_FAILED").contains("count.sh"));
    engine.rpc("skill.counting", json!({"script": 7})).await.assert_flat_error(400, "INVALID_REQUEST");

    let key = [("x-engine-key", engine.key.as_str())];
    let large = vec![b' '; (32 << 20) + 1];
    send_raw(&engine.url, "POST /rpc", &key, &large).await.assert_flat_error(413, "PAYLOAD_TOO_LARGE");
    send_raw(&engine.url, "POST /rpc", &[], &large).await.assert_flat_error(401, "INVALID_ENGINE_KEY");
    for op in ["set_config", "set_key_hash"] {
        engine.control(op, json!({})).await.assert_flat_error(400, "INVALID_REQUEST");
    }
    // Errors of the path itself use the nested envelope.
    send(engine.request(Method::GET, "/rpc")).await.assert_error(405, "METHOD_NOT_ALLOWED");
}

#[tokio::test]
async fn a_call_that_comes_at_a_bad_moment_is_told_when_to_come_back() {
    const MAX_CONCURRENT_CALLS: usize = 16;
    let fixture = EngineFixture::allowing_unconfined([]).await;
    let engine = &fixture.engine;
    let has_retry_after = |answer: &HttpResponse| {
        answer.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().is_ok())
    };
    assert!(engine.quiesce().await);
    let refused = engine.rpc("tool.shell", json!({"command": "true"})).await;
    refused.assert_flat_error(503, "QUIESCED");
    assert!(has_retry_after(&refused), "{refused:?}");
    engine.lift_quiesce().await;

    let blocking_command = json!({"command": "echo >> begun; until [ -e release ]; do sleep 0.02; done"});
    let calls =
        join_all((0..MAX_CONCURRENT_CALLS).map(|_| engine.rpc("tool.shell", blocking_command.clone())));
    let one_more = async {
        let begun = fixture.setup.workspace().join("begun");
        eventually("all of them run", async || {
            let lines = fs::read_to_string(&begun).unwrap_or_default().lines().count();
            (lines == MAX_CONCURRENT_CALLS).then_some(())
        })
        .await;
        let refused = engine.rpc("tool.read_file", json!({"path": "begun"})).await;
        refused.assert_flat_error(503, "OVERLOADED");
        assert!(has_retry_after(&refused), "{refused:?}");
        fs::write(fixture.setup.workspace().join("release"), "").unwrap();
    };
    let (answers, ()) = futures::join!(calls, one_more);
    for answer in answers {
        answer.assert_ok("result:object");
    }
    engine.rpc_result("tool.read_file", json!({"path": "begun"})).await;
}

#[tokio::test]
async fn the_operations_of_the_gateway_tell_what_was_spent_and_what_the_caches_served() {
    let usage = Usage {
        input: Some(1_000),
        output: Some(50),
        cache_read: 3_000,
        cache_write: 500,
        ..Usage::default()
    };
    let fixture = EngineFixture::new([Reply::from_text("Hello.").usage(usage)]).await;
    let engine = &fixture.engine;
    let fresh = telemetry(engine, "cache_state").await;
    assert_fields(&fresh, "total:object models:object");
    assert_fields(&fresh["total"], CACHE_STATS);
    assert_eq!((&fresh["total"]["calls"], &fresh["models"]), (&json!(0), &json!({})));

    engine.run_turn("task", "Hello!").await;
    let cache = telemetry(engine, "cache_state").await;
    let expected = json!({
        "calls": 1, "input_tokens": 4_500, "cache_read_tokens": 3_000, "cache_write_tokens": 500,
        "share": 3_000.0 / 4_500.0,
    });
    assert_eq!(cache["total"], expected);
    let models = cache["models"].as_object().unwrap();
    assert_eq!((models.len(), models.values().next()), (1, Some(&expected)));

    let quota = telemetry(engine, "quota_state").await;
    assert_fields(&quota, "budgets:object models:array spent:array");
    assert_fields(
        &quota["spent"][0],
        "model:text calls:int input_tokens:int output_tokens:int cost_usd:null",
    );
    assert_eq!(
        (&quota["spent"][0]["input_tokens"], &quota["spent"][0]["output_tokens"]),
        (&json!(4_500), &json!(50))
    );
    assert_fields(&quota["models"][0], MODEL_STATE);
    assert_eq!(
        (&quota["models"][0]["failures_in_a_row"], &quota["models"][0]["last_failure"]),
        (&json!(0), &json!(null))
    );

    // A failing model is reported as such, with the time until its next attempt.
    fixture.provider.enqueue(Reply::from_fault(Fault::refuse(Refusal::Unauthorized)));
    assert_errored(&engine.execute_with(&direct_message("task", "Hello?")).await.collect().await);
    let model = telemetry(engine, "quota_state").await["models"][0].clone();
    assert_eq!(model["failures_in_a_row"], 1, "{model}");
    assert_fields(&model["last_failure"], "kind:text message:text seconds_ago:number");
    assert!(model["cool_down_seconds"].as_f64() > Some(0.0), "{model}");
    // Cache statistics start with the process; usage is kept.
    let fixture = fixture.stop_and_start().await;
    assert_eq!(telemetry(&fixture.engine, "cache_state").await["total"]["calls"], 0);
    assert_eq!(telemetry(&fixture.engine, "quota_state").await["spent"][0]["input_tokens"], 4_500);
}

#[tokio::test]
async fn a_budget_that_is_set_ends_turns_until_it_is_lifted() {
    let fixture = EngineFixture::new([]).await;
    let engine = &fixture.engine;
    fixture.engine.run_turn("task", "Hello!").await;
    let mut config =
        engine.control("get_config", json!({})).await.assert_ok("result:object")["result"]["config"].take();
    config["budgets"] = json!({"tokens_per_hour": 1});
    assert_eq!(engine.control("set_config", json!({"config": config})).await.body, json!({"result": {}}));
    let hour = telemetry(engine, "quota_state").await["budgets"]["tokens_per_hour"].clone();
    assert_eq!((&hour["limit"], &hour["remaining"]), (&json!(1), &json!(0)));
    let events = engine.execute_with(&direct_message("task", "And now?")).await.collect().await;
    assert_eq!(
        (events.last().unwrap().data["stop_reason"].as_str(), fixture.model_calls()),
        (Some("budget"), 1)
    );
    // `reload` restores the configuration of the catalog or the environment.
    assert_eq!(engine.control("reload", json!({})).await.body, json!({"result": {}}));
    let events = engine.run_turn("task", "And now?").await;
    assert_eq!(
        (events.last().unwrap().data["stop_reason"].as_str(), fixture.model_calls()),
        (Some("end_turn"), 2)
    );
}

/// The types of the events of a turn.
fn event_types(events: &[Event]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event.kind.as_str()).collect();
    kinds.dedup();
    kinds
}

#[tokio::test]
async fn what_a_turn_came_to_is_replayed_when_its_deltas_have_had_their_time() {
    let note = Reply::new().thinking("I note it.").text("A moment.");
    let note = note.tool_use("working_memory_set", json!({"key": "colour", "value": "green"}));
    let replies = || [note.clone(), Reply::from_text("Noted.")];
    for (ttl, expires) in [("0.1", true), ("3h", false)] {
        let fixture = EngineFixture::with_setup("anthropic", replies(), |setup| {
            setup.with_env("CHANNEL_STATE_TTL_ACTIVE", ttl)
        })
        .await;
        let before = fixture.engine.run_turn("task", "Note it.").await;
        assert!(event_types(&before).contains(&"text_delta"), "{before:#?}");
        // Turns that ended before are cleaned up when the engine starts.
        let fixture = fixture.stop_and_start().await;
        let replayed = async || fixture.engine.replay("task", 0).await.collect().await;
        if !expires {
            assert_eq!(replayed().await, before, "{ttl}");
            continue;
        }
        let after = eventually("the deltas are gone", async || {
            let after = replayed().await;
            (!event_types(&after).contains(&"text_delta")).then_some(after)
        })
        .await;
        let expiring_kinds = ["text_delta", "thinking_delta", "content_block_start", "content_block_stop"];
        let kept: Vec<Event> =
            before.into_iter().filter(|event| !expiring_kinds.contains(&event.kind.as_str())).collect();
        assert_eq!(after, kept, "all other events are unchanged");
        assert_eq!(after.last().unwrap().text(), "Noted.");
        assert_eq!(of_kind(&after, "tool_result").len(), 1);
    }
}

#[tokio::test]
async fn a_conversation_that_is_too_long_is_shortened_unless_that_is_switched_off() {
    let long = "All this I have to tell you. ".repeat(400);
    for (enabled, compacts) in [("true", true), ("false", false)] {
        let fixture = EngineFixture::with_setup("anthropic", [], |setup| {
            setup.with_env("REACTIVE_COMPACT_ENABLED", enabled)
        })
        .await;
        for number in 0..6 {
            fixture.engine.run_turn("task", &format!("Question {number}. {long}")).await;
        }
        fixture.provider.enqueue_all([
            Reply::from_fault(Fault::refuse(Refusal::PromptTooLong)),
            Reply::from_text("Many questions were asked."),
            Reply::from_text("Forty-two."),
        ]);
        let events = fixture.engine.execute_with(&direct_message("task", "And now?")).await.collect().await;
        let compacted = of_kind(&events, "compaction_event").len();
        if compacts {
            assert_eq!((assert_completed(&events), compacted), ("Forty-two.", 1));
        } else {
            assert_errored(&events);
            assert_eq!((phases(&events), compacted), (vec!["started", "errored"], 0));
            assert_eq!(fixture.provider.pending_replies(), 2, "the model is not called again");
        }
    }
    // Only `true` and `false` are valid.
    let refused = StandaloneEngine::new().with_env("REACTIVE_COMPACT_ENABLED", "1").launch().wait().await;
    refused.assert_failure(2, &["REACTIVE_COMPACT_ENABLED"]);
}

#[tokio::test]
async fn an_engine_with_all_the_turns_that_it_can_take_says_so() {
    const MAX_CONCURRENT_TURNS: usize = 256;
    let gate = Gate::new();
    let fixture = EngineFixture::new([]).await;
    let held = gate.clone();
    fixture.provider.set_responder(move |_| Reply::from_text("Here I am.").hold(0, &held));
    let begin = |number: usize| {
        let engine = fixture.engine.clone();
        async move {
            let body = direct_message(&format!("task-{number}"), "Are you there?");
            // The turn continues without its client.
            engine.request(Method::POST, "/execute").json(&body).send().await.unwrap().status().as_u16()
        }
    };
    let mut statuses = Vec::new();
    for numbers in (0..MAX_CONCURRENT_TURNS).collect::<Vec<_>>().chunks(32) {
        statuses.extend(join_all(numbers.iter().map(|number| begin(*number))).await);
    }
    assert_eq!(statuses, vec![200; MAX_CONCURRENT_TURNS]);
    let refused = fixture.engine.post_execute(&direct_message("one-too-many", "And me?")).await;
    refused.assert_error(503, "OVERLOADED");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(fixture.engine.tasks("").await.1, MAX_CONCURRENT_TURNS as u64, "a refusal creates no task");
    assert_eq!(fixture.engine.health().await["status"], "ok");
    gate.release();
    eventually("there is room again", async || {
        (fixture.engine.activity().await["running_turns"] == 0).then_some(())
    })
    .await;
    fixture.engine.run_turn("one-too-many", "And now?").await;
}

#[tokio::test]
async fn what_a_broken_answer_cost_stays_counted() {
    let tokens = |output| Usage { input: Some(1_000), output: Some(output), ..Usage::default() };
    let broken = Reply::from_text("One two three four five six.").usage(tokens(9)).fault(Fault::cut_after(3));
    for (second_text, is_voided) in [("One two three four five six.", false), ("Something else.", true)] {
        let fixture =
            EngineFixture::new([broken.clone(), Reply::from_text(second_text).usage(tokens(20))]).await;
        let events = fixture.engine.run_turn("task", "Count.").await;
        assert_eq!((assert_completed(&events), fixture.model_calls()), (second_text, 2));
        assert_eq!(phases(&events).contains(&"retrying"), is_voided);
        let usage = &of_kind(&events, "usage").last().unwrap().data;
        assert_eq!(usage["input_tokens"], 2_000, "both prompts are billed: {usage}");
        assert!(usage["output_tokens"].as_u64() >= Some(20), "{usage}");
    }
}
