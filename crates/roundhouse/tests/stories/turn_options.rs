//! A request sets the model, the effort, instructions, tools, budgets and metadata of its own turn. They are
//! as durable as the turn, and the next turn has none of them.

use std::fs;

use mock_llm::{Gate, MockProvider, Reply, Usage};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, message_id, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, wait_gate_reached, write_file_reply};
use crate::support::http::send;
use crate::support::turn::{assert_completed, of_kind};
use crate::support::{EngineFixture, Event, StandaloneEngine};

/// An engine with these models: `main`, which has prices and a thinking budget of 8,000 tokens, `small`,
/// which has no prices, and `plain`, which takes no effort.
async fn new_fixture(replies: impl IntoIterator<Item = Reply>) -> EngineFixture {
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    provider.enqueue_all(replies);
    let model = |name: &str, base: String, vendor: &str| {
        let window = 200_000;
        json!({"provider": vendor, "model": name, "base_url": base, "context_window": window})
    };
    let mut main = model("claude-sonnet-4-5", provider.base_url(), "anthropic");
    main["prices"] = json!({"input": 3, "output": 15, "cache_write": 3.75});
    main["thinking"] = json!({"budget_tokens": 8_000});
    let gateway = json!({
        "models": {
            "main": main,
            "small": model("claude-haiku-4-5", provider.base_url(), "anthropic"),
            "plain": model("gpt-4o", provider.openai_base_url(), "openai"),
        },
        "default": "main",
    });
    let keys = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"];
    let setup =
        keys.into_iter().fold(StandaloneEngine::new(), |setup, key| setup.with_env(key, format!("of {key}")));
    fs::write(setup.test_env.path().join("catalog/gateway.json"), gateway.to_string()).unwrap();
    let (program, engine) = setup.start().await;
    EngineFixture { provider, setup, program, engine }
}

fn request(text: &str, fields: Value) -> Value {
    with_fields(direct_message("task", text), fields)
}

async fn run_turn(fixture: &EngineFixture, text: &str, fields: Value) -> Vec<Event> {
    fixture.engine.run_turn_with(&request(text, fields)).await
}

/// The vendors' names of the models that were called, in order.
fn called_models(fixture: &EngineFixture) -> Vec<String> {
    fixture.provider.requests().into_iter().map(|request| request.model).collect()
}

fn stop_reason(events: &[Event]) -> &str {
    events.last().unwrap().data["stop_reason"].as_str().unwrap()
}

/// The metadata of the listed messages, in order.
async fn listed_metadata(fixture: &EngineFixture) -> Vec<Value> {
    let page = fixture.engine.get("/tasks/task/messages").await;
    let page = page.assert_ok("messages:array has_older:bool has_newer:bool");
    page["messages"].as_array().unwrap().iter().map(|message| message["metadata"].clone()).collect()
}

#[tokio::test]
async fn a_turn_is_answered_by_the_model_that_it_names() {
    let fixture = new_fixture([]).await;
    for fields in [json!({}), json!({"model": "small"}), json!({"model": "plain"}), json!({"model": null})] {
        run_turn(&fixture, "Hello!", fields).await;
    }
    let models = ["claude-sonnet-4-5", "claude-haiku-4-5", "gpt-4o", "claude-sonnet-4-5"];
    assert_eq!(called_models(&fixture), models);
    for model in ["claude-haiku-4-5", "", "Main"] {
        let answer = fixture.engine.post_execute(&request("Hello!", json!({"model": model}))).await;
        let message = answer.assert_error(400, "MODEL_NOT_PERMITTED");
        assert!(message.contains("main, plain, small"), "{message}");
    }
    assert_eq!(fixture.model_calls(), 4);
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn an_effort_is_sent_in_the_form_of_the_model_or_refused() {
    let fixture = new_fixture([]).await;
    for (effort, tokens) in [("low", 2_000), ("medium", 4_000), ("high", 8_000), ("max", 8_000)] {
        run_turn(&fixture, "Think.", json!({"effort": effort})).await;
        let sent = fixture.provider.requests().pop().unwrap().body["thinking"].clone();
        assert_eq!(sent, json!({"type": "enabled", "budget_tokens": tokens}), "{effort}");
    }
    run_turn(&fixture, "Do not think.", json!({})).await;
    assert_eq!(fixture.provider.requests().pop().unwrap().body["thinking"], Value::Null);
    let answer =
        fixture.engine.post_execute(&request("Think.", json!({"model": "plain", "effort": "low"}))).await;
    let message = answer.assert_error(400, "INVALID_REQUEST");
    assert!(message.contains("`effort`") && message.contains("gpt-4o"), "{message}");
}

#[tokio::test]
async fn instructions_stand_beside_their_message_and_leave_the_prompt_before_it_as_it_was() {
    let fixture = new_fixture([]).await;
    run_turn(&fixture, "First.", json!({})).await;
    run_turn(&fixture, "Second.", json!({"instructions": "Answer in French."})).await;
    run_turn(&fixture, "Third.", json!({})).await;
    let requests = fixture.provider.requests();
    assert_eq!(requests[0].body["system"], requests[1].body["system"]);
    assert_eq!(requests[0].body["tools"], requests[1].body["tools"]);
    let messages = fixture.all_messages();
    messages[0].assert_lacks(&["French"]);
    messages[1].assert_contains(&["First.", "For this message only", "Answer in French.", "Second."]);
    // They stay where they were, so that the provider's cache still serves the conversation.
    messages[2].assert_contains(&["For this message only", "Answer in French.", "Second.", "Third."]);
    assert_eq!(messages[2].0.matches("French").count(), 1);
    // Nobody said them.
    let listed = Value::from(fixture.engine.messages("task").await).to_string();
    assert!(!listed.contains("French"), "{listed}");
    fixture.provider.assert_no_refusals();
}

#[tokio::test]
async fn metadata_is_listed_with_its_turn_and_no_model_sees_it() {
    let fixture = new_fixture([]).await;
    let metadata = json!({"ticket": "amber-4711", "channel": "mail"});
    let events = run_turn(&fixture, "Hello!", json!({"metadata": metadata})).await;
    run_turn(&fixture, "And now?", json!({"metadata": null})).await;
    assert_eq!(listed_metadata(&fixture).await, [metadata.clone(), Value::Null, Value::Null, Value::Null]);
    // A retry adds no message, so its answer has its metadata.
    let retry = json!({"retry_message_id": message_id(&events), "metadata": {"ticket": "amber-4712"}});
    run_turn(&fixture, "", retry).await;
    let listed = listed_metadata(&fixture).await;
    assert_eq!((&listed[0], listed.last()), (&metadata, Some(&json!({"ticket": "amber-4712"}))));
    for request in fixture.provider.requests() {
        assert!(!String::from_utf8_lossy(&request.raw).contains("amber-47"));
    }
}

#[tokio::test]
async fn only_the_allowed_tools_run() {
    let calls = Reply::new().memory_set("a", "1").tool_use("list_files", json!({}));
    let fixture = new_fixture([calls, Reply::from_text("Done.")]).await;
    let events = run_turn(&fixture, "Go.", json!({"allowed_tools": ["working_memory_*"]})).await;
    let errors: Vec<(&Value, bool)> = of_kind(&events, "tool_result")
        .into_iter()
        .map(|result| (&result.data["tool"], result.data.get("error").is_some()))
        .collect();
    assert!(errors.contains(&(&json!("working_memory_set"), false)), "{errors:?}");
    assert!(errors.contains(&(&json!("list_files"), true)), "{errors:?}");
    let refused =
        of_kind(&events, "tool_result").into_iter().find(|result| result.data["tool"] == "list_files");
    let reason = refused.unwrap().data["error"].as_str().unwrap();
    assert!(reason.contains("may not be called"), "{reason}");
    let requests = fixture.provider.requests();
    fixture.all_messages()[0].assert_contains(&["only these tools may be called", "working_memory_*", "Go."]);

    // Without any tool, and in the next turn again with all of them.
    fixture.provider.enqueue_all([Reply::new().memory_set("a", "1"), Reply::from_text("Not done.")]);
    let events = run_turn(&fixture, "Go on.", json!({"allowed_tools": []})).await;
    assert!(of_kind(&events, "tool_result")[0].data["error"].as_str().unwrap().contains("may not be called"));
    fixture.provider.enqueue_all([Reply::new().memory_set("a", "1"), Reply::from_text("Done.")]);
    let events = run_turn(&fixture, "Go on.", json!({})).await;
    assert_eq!(of_kind(&events, "tool_result")[0].data.get("error"), None);
    // The declarations are the same in all turns, or the provider's cache would be lost.
    let all = fixture.provider.requests();
    assert!(all.iter().all(|request| request.body["tools"] == requests[0].body["tools"]));
}

#[tokio::test]
async fn a_list_of_tools_lifts_no_approval() {
    let fixture = new_fixture([write_file_reply("a.txt"), Reply::from_text("Written.")]).await;
    let body = request("Write.", json!({"allowed_tools": ["*"]}));
    let (stream, _) = fixture.engine.run_until_hitl_request(&body).await;
    fixture.engine.respond("task", "no").await.assert_ok("status:text request_id:hitl");
    assert_completed(&stream.collect().await);
    assert!(!fixture.setup.workspace().join("a.txt").exists());
}

#[tokio::test]
async fn a_budget_of_the_request_ends_the_turn_with_that_reason() {
    let used = |output| Usage { input: Some(1_000), output: Some(output), ..Usage::default() };
    for (fields, calls) in [
        (json!({"max_output_tokens": 600}), 2),
        // Two calls of 1,000 input and 300 output tokens cost 0.015 dollars, and the next prompt about 0.005.
        (json!({"max_cost_usd": 0.02}), 2),
        (json!({"max_tokens": 3_000}), 2),
        (json!({"max_tokens": 100}), 0),
        (
            json!({"max_output_tokens": 100_000, "max_cost_usd": 5, "max_tokens": 1_000_000, "max_turns": 3}),
            3,
        ),
    ] {
        let replies = (0..5).map(|number| {
            Reply::new().text("On.").memory_set("number", &number.to_string()).usage(used(300))
        });
        let fixture = new_fixture(replies).await;
        let events = run_turn(&fixture, "Count.", fields.clone()).await;
        let reason = if calls == 3 { "max_turns" } else { "budget" };
        assert_eq!((stop_reason(&events), fixture.model_calls()), (reason, calls), "{fields}");
        // The next turn has the usual budgets.
        fixture.provider.enqueue_all((0..5).map(|_| Reply::from_text("Done.")));
        run_turn(&fixture, "Go on.", json!({"max_turns": 1})).await;
    }
}

#[tokio::test]
async fn an_answer_has_no_more_room_than_the_budget_leaves() {
    let fixture = new_fixture([]).await;
    run_turn(&fixture, "Hello!", json!({"max_output_tokens": 700})).await;
    assert_eq!(fixture.provider.requests()[0].body["max_tokens"], 700);
    run_turn(&fixture, "Hello!", json!({"max_cost_usd": 0.1})).await;
    let room = fixture.provider.requests()[1].body["max_tokens"].as_u64().unwrap();
    assert!((1_000..6_667).contains(&room), "{room}");
    let unpriced = request("Hello!", json!({"model": "small", "max_cost_usd": 1}));
    let answer = fixture.engine.post_execute(&unpriced).await;
    assert!(answer.assert_error(400, "INVALID_REQUEST").contains("`max_cost_usd`"));
}

#[tokio::test]
async fn a_killed_turn_goes_on_with_its_options() {
    let gate = Gate::new();
    let fixture = new_fixture([Reply::from_text("A part.").hold(1, &gate)]).await;
    let options = json!({
        "model": "small", "effort": "low", "instructions": "Be brief.", "allowed_tools": ["list_files"],
        "max_output_tokens": 9_000, "metadata": {"ticket": "1"},
    });
    let stream = fixture.engine.execute_with(&request("Go.", options)).await;
    wait_gate_reached(&gate).await;
    fixture.provider.enqueue_all([Reply::new().memory_set("a", "1"), Reply::from_text("Refused.")]);
    let fixture = fixture.kill_and_start().await;
    drop(stream);
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_completed(&events);
    assert!(of_kind(&events, "tool_result")[0].data["error"].as_str().unwrap().contains("may not be called"));
    let requests = fixture.provider.requests();
    assert_eq!(called_models(&fixture), ["claude-haiku-4-5"; 3]);
    assert_eq!(requests[1].body["thinking"], requests[0].body["thinking"]);
    assert_eq!(requests[1].body["max_tokens"], 9_000);
    fixture.last_messages().assert_contains(&["Be brief.", "Go."]);
    assert_eq!(listed_metadata(&fixture).await[0], json!({"ticket": "1"}));
    run_turn(&fixture, "Again.", json!({})).await;
    assert_eq!(called_models(&fixture).pop().unwrap(), "claude-sonnet-4-5");
}

#[tokio::test]
async fn a_turn_that_a_person_answers_after_a_kill_goes_on_with_its_options() {
    let fixture = new_fixture([Reply::new().ask_user("Which colour?")]).await;
    let options = json!({"model": "small", "allowed_tools": ["ask_user"]});
    let (stream, _) = fixture.engine.run_until_hitl_request(&request("Paint.", options)).await;
    let fixture = fixture.kill_and_start().await;
    drop(stream);
    fixture.provider.enqueue_all([Reply::new().memory_set("a", "1"), Reply::from_text("Green.")]);
    fixture.engine.respond("task", "Green.").await.assert_ok("status:text request_id:hitl");
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "Green.");
    assert_eq!(called_models(&fixture), ["claude-haiku-4-5"; 3]);
    assert!(events.iter().any(|event| event.kind == "tool_result" && event.data.get("error").is_some()));
}

#[tokio::test]
async fn options_move_with_an_export_and_go_with_their_task() {
    let fixture = new_fixture([]).await;
    let options = json!({"metadata": {"ticket": "heron-4713"}, "instructions": "Mention kestrel-4714."});
    run_turn(&fixture, "Hello!", options).await;
    let document =
        fixture.engine.request(Method::GET, "/memory/export").send().await.unwrap().text().await.unwrap();
    assert!(document.contains("heron-4713") && document.contains("kestrel-4714"));
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    let fixture = fixture.stop_and_start().await;
    for file in fs::read_dir(fixture.setup.test_env.path()).unwrap().map(|entry| entry.unwrap().path()) {
        let bytes = if file.is_file() { fs::read(&file).unwrap() } else { Vec::new() };
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("heron-4713") && !text.contains("kestrel-4714"), "{}", file.display());
    }
    let importing = fixture.engine.request(Method::POST, "/memory/import?mode=replace").body(document);
    assert_eq!(send(importing).await.status, 200);
    assert_eq!(listed_metadata(&fixture).await[0], json!({"ticket": "heron-4713"}));
    run_turn(&fixture, "And now?", json!({})).await;
    fixture.last_messages().assert_contains(&["kestrel-4714", "Hello!", "And now?"]);
}

#[tokio::test]
async fn options_out_of_bounds_are_refused_by_name() {
    let fixture = new_fixture([]).await;
    for (fields, field) in [
        (json!({"model": 7}), "`model`"),
        (json!({"effort": "enormous"}), "`effort`"),
        (json!({"instructions": " "}), "`instructions`"),
        (json!({"instructions": "x".repeat(17_000)}), "`instructions`"),
        (json!({"allowed_tools": "shell"}), "`allowed_tools`"),
        (json!({"allowed_tools": ["list_files", "no_such_tool"]}), "`allowed_tools[1]`"),
        (json!({"allowed_tools": vec!["list_files"; 129]}), "`allowed_tools`"),
        (json!({"max_output_tokens": 0}), "`max_output_tokens`"),
        (json!({"max_tokens": 0.5}), "`max_tokens`"),
        (json!({"max_cost_usd": "much"}), "`max_cost_usd`"),
        (json!({"max_cost_usd": 0}), "`max_cost_usd`"),
        (json!({"metadata": ["a"]}), "`metadata`"),
        (json!({"metadata": {"a": 1}}), "`metadata"),
        (json!({"metadata": {"a": "x".repeat(513)}}), "`metadata`"),
    ] {
        let answer = fixture.engine.post_execute(&request("Hello!", fields.clone())).await;
        let message = answer.assert_error(400, "INVALID_REQUEST");
        assert!(message.contains(field), "{fields}: {message}");
    }
    assert_eq!((fixture.model_calls(), fixture.engine.tasks("").await.1), (0, 0));
}

#[tokio::test]
async fn a_repeated_request_with_other_options_is_another_request() {
    let fixture = new_fixture([]).await;
    let with_model = |model: &str| request("Hello!", json!({"client_request_id": "one", "model": model}));
    let first = fixture.engine.run_turn_with(&with_model("small")).await;
    assert_eq!(fixture.engine.run_turn_with(&with_model("small")).await, first);
    let answer = fixture.engine.post_execute(&with_model("main")).await;
    assert!(answer.assert_error(400, "INVALID_REQUEST").contains("client_request_id"));
    assert_eq!(fixture.model_calls(), 1);
}

#[tokio::test]
async fn a_skill_is_called_with_the_options_of_a_model() {
    let fixture = new_fixture([]).await;
    let skill = json!({"name": "rhyme", "prompt": "You rhyme."});
    assert_eq!(fixture.engine.post("/skills/create", &skill).await.status, 200);
    let call =
        |options: Value| with_fields(json!({"method": "skill.rhyme", "params": {"input": "Sun"}}), options);
    let options =
        json!({"model": "small", "effort": "low", "instructions": "In French.", "max_output_tokens": 3_000});
    let answer = fixture.engine.post("/rpc", &call(options)).await.assert_ok("result:object");
    assert_eq!(answer["result"].as_object().unwrap().len(), 1, "{answer}");
    let sent = fixture.provider.requests().pop().unwrap();
    assert_eq!((sent.model.as_str(), &sent.body["max_tokens"]), ("claude-haiku-4-5", &json!(3_000)));
    fixture.last_messages().assert_contains(&["In French.", "Sun"]);
    for (options, code, field) in [
        (json!({"model": "large"}), "MODEL_NOT_PERMITTED", "main, plain, small"),
        (json!({"model": "plain", "effort": "low"}), "INVALID_REQUEST", "`effort`"),
        (json!({"metadata": {"a": "b"}}), "INVALID_REQUEST", "`metadata`"),
        (json!({"allowed_tools": []}), "INVALID_REQUEST", "`allowed_tools`"),
        (json!({"max_cost_usd": 0.000_001}), "INVALID_REQUEST", "`max_cost_usd`"),
    ] {
        let answer = fixture.engine.post("/rpc", &call(options)).await;
        let message = answer.assert_flat_error(400, code);
        assert!(message.contains(field), "{message}");
    }
    assert_eq!(fixture.model_calls(), 1);
}
