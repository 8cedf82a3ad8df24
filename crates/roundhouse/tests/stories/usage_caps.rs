//! Caps on usage: clients are warned before the end and told at it, once each, whatever is killed; then no turn
//! begins, until the day ends.

use std::fs;

use mock_llm::{Gate, MockProvider, Reply, Usage};
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, wait_gate_reached};
use crate::support::turn::{assert_completed, assert_errored, of_kind};
use crate::support::{EngineFixture, Event, StandaloneEngine, eventually};

fn used(input: u64, output: u64) -> Usage {
    Usage { input: Some(input), output: Some(output), ..Usage::default() }
}

fn reply(input: u64) -> Reply {
    Reply::from_text("Done.").usage(used(input, 0))
}

/// An engine with these caps in `gateway.json` and these variables. Its model costs a dollar per million tokens.
async fn capped(caps: Value, env: &[(&'static str, &str)], replies: Vec<Reply>) -> EngineFixture {
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    provider.enqueue_all(replies);
    let gateway = json!({
        "models": {"main": {
            "provider": "anthropic", "model": "claude-sonnet-4-5", "base_url": provider.base_url(),
            "context_window": 200_000, "max_output": 4_000,
            "prices": {"input": 1, "output": 1, "cache_write": 1, "cache_read": 1},
        }},
        "default": "main", "caps": caps,
    });
    let setup = StandaloneEngine::new().with_env("ANTHROPIC_API_KEY", "sk".to_owned());
    let setup = env.iter().fold(setup, |setup, (name, value)| setup.with_env(name, (*value).to_owned()));
    fs::write(setup.test_env.path().join("catalog/gateway.json"), gateway.to_string()).unwrap();
    let (program, engine) = setup.start().await;
    EngineFixture { provider, setup, program, engine }
}

/// Level, scope and unit of each `usage_cap` event of these tasks.
async fn told(fixture: &EngineFixture, tasks: &[&str]) -> Vec<String> {
    let mut told = Vec::new();
    for task in tasks {
        let events = fixture.engine.replay(task, 0).await.collect().await;
        let words = |event: &Event| {
            ["level", "scope", "unit"].map(|field| event.data[field].as_str().unwrap().to_owned()).join(" ")
        };
        told.extend(of_kind(&events, "usage_cap").into_iter().map(words));
    }
    told
}

async fn caps(fixture: &EngineFixture, query: &str) -> Value {
    fixture.engine.get(&format!("/usage/caps{query}")).await.assert_ok("caps:array")["caps"].clone()
}

#[tokio::test]
async fn a_day_warns_then_ends_and_a_repeated_request_is_still_answered() {
    let cap = json!({"tokens_per_day": 100_000});
    let fixture = capped(cap, &[], vec![reply(70_000), reply(15_000), reply(5_000), reply(12_000)]).await;
    let state = &caps(&fixture, "").await[0];
    assert_eq!(
        (&state["scope"], &state["unit"], &state["limit"], &state["remaining"]),
        (&json!("day"), &json!("tokens"), &json!(100_000.0), &json!(100_000.0))
    );
    let last = with_fields(direct_message("four", "Go."), json!({"client_request_id": "four"}));
    for task in ["one", "two", "three"] {
        assert_completed(&fixture.engine.run_turn(task, "Go.").await);
    }
    assert_completed(&fixture.engine.run_turn_with(&last).await);
    let (warned, reached) = (["warning day tokens"], ["reached day tokens"]);
    assert_eq!(told(&fixture, &["one", "two"]).await, warned);
    assert_eq!(told(&fixture, &["three", "four"]).await, reached);
    let state = &caps(&fixture, "").await[0];
    assert!(state["used"].as_f64().unwrap() >= 102_000.0, "{state}");
    assert_eq!(state["remaining"], json!(0.0));
    assert!(state["resets_at"].as_str().unwrap().ends_with("T00:00:00.000Z"), "{state}");

    let refused = fixture.engine.post_execute(&direct_message("five", "Go.")).await;
    assert!(refused.assert_error(429, "USAGE_CAP_REACHED").contains("tokens for a day"));
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=86_400).contains(&retry_after), "{retry_after}");
    // The answer to a request that has had its turn is there for good.
    assert_completed(&fixture.engine.run_turn_with(&last).await);
    assert_eq!(fixture.model_calls(), 4);
    // What was told stays told, and the cap holds, after a kill.
    let fixture = fixture.kill_and_start().await;
    let refused = fixture.engine.post_execute(&direct_message("one", "Go.")).await;
    refused.assert_error(429, "USAGE_CAP_REACHED");
    assert_eq!(told(&fixture, &["one", "two", "three", "four"]).await.len(), 2);
}

#[tokio::test]
async fn a_call_that_a_cap_does_not_leave_room_for_is_not_made() {
    let fixture = capped(
        json!({"tokens_per_task": 50_000}),
        &[],
        vec![Reply::new().memory_set("a", "1").usage(used(49_990, 0))],
    )
    .await;
    let events = fixture.engine.run_turn("task", "Go.").await;
    assert_eq!(of_kind(&events, "thread_lifecycle").last().unwrap().data["stop_reason"], "budget");
    let expected = ["warning task tokens", "reached task tokens"];
    assert_eq!(told(&fixture, &["task"]).await, expected);
    assert_eq!(fixture.model_calls(), 1);
    // Other tasks go on, and the cap of a task has no end of the day.
    fixture.provider.enqueue(reply(100));
    assert_completed(&fixture.engine.run_turn("other", "Hello!").await);
    let states = caps(&fixture, "?task_id=task").await;
    assert_eq!((&states[0]["scope"], &states[0]["resets_at"]), (&json!("task"), &Value::Null));
    assert!(states[0]["used"].as_f64().unwrap() >= 49_990.0, "{states}");
    // Without a task, only the cap is known.
    let states = caps(&fixture, "").await;
    assert_eq!((&states[0]["limit"], &states[0]["used"]), (&json!(50_000.0), &Value::Null));
    fixture.engine.get("/usage/caps?task_id=none").await.assert_error(404, "TASK_NOT_FOUND");
}

#[tokio::test]
async fn the_lower_one_of_the_operators_and_the_products_caps_counts() {
    let env = [("ENGINE_USAGE_MAX_USD_PER_DAY", "0.05"), ("ENGINE_USAGE_MAX_TOKENS_PER_DAY", "900000")];
    let product = json!({"usd_per_day": 3.5, "tokens_per_day": 800_000});
    let fixture = capped(product, &env, vec![reply(41_000)]).await;
    assert_completed(&fixture.engine.run_turn("task", "Go.").await);
    let states = caps(&fixture, "").await;
    assert_eq!((&states[0]["unit"], &states[0]["limit"]), (&json!("tokens"), &json!(800_000.0)));
    assert_eq!((&states[1]["unit"], &states[1]["limit"]), (&json!("usd"), &json!(0.05)));
    assert!((states[1]["used"].as_f64().unwrap() - 0.041).abs() < 0.001, "{states}");
    assert_eq!(told(&fixture, &["task"]).await, ["warning day usd"]);
    // The rest pays for 9,000 tokens, so an answer is cut to what is left.
    fixture.provider.enqueue(reply(1_000));
    assert_completed(&fixture.engine.run_turn("other", &"word ".repeat(4_200)).await);
    let request = fixture.provider.requests().pop().unwrap();
    let max = request.body["max_tokens"].as_u64().unwrap();
    assert!((256..4_000).contains(&max), "{max}");
}

#[tokio::test]
async fn what_is_told_with_an_answer_is_told_once_over_kills() {
    let gate = Gate::new();
    let tool = Reply::new().memory_set("a", "1").usage(used(6_000, 0));
    let held = Reply::from_text("Held.").usage(used(1_000, 0)).hold(1, &gate);
    let fixture = capped(json!({"tokens_per_day": 100_000}), &[], vec![reply(75_000), tool, held]).await;
    assert_completed(&fixture.engine.run_turn("before", "Go.").await);
    let _stream = fixture.engine.execute("task", "Go.").await;
    // The answer that crosses the line is stored, and the next call is under way.
    wait_gate_reached(&gate).await;
    let fixture = fixture.kill_and_start().await;
    gate.release();
    fixture.provider.enqueue(reply(1_000));
    eventually("the turn ends", async || (fixture.engine.task_status("task").await == "idle").then_some(()))
        .await;
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_completed(&events);
    assert_eq!(told(&fixture, &["task"]).await, ["warning day tokens"]);
}

#[tokio::test]
async fn concurrent_turns_share_a_cap_and_its_announcement() {
    let gates: Vec<Gate> = (0..4).map(|_| Gate::new()).collect();
    let held = |gate: &Gate| Reply::from_text("Held.").usage(used(21_000, 0)).hold(1, gate);
    let fixture = capped(json!({"tokens_per_day": 100_000}), &[], gates.iter().map(held).collect()).await;
    let mut streams = Vec::new();
    for (number, gate) in gates.iter().enumerate() {
        streams.push(fixture.engine.execute(&format!("task-{number}"), "Go.").await);
        wait_gate_reached(gate).await;
    }
    gates.iter().for_each(Gate::release);
    for stream in streams {
        assert_completed(&stream.collect().await);
    }
    let all = told(&fixture, &["task-0", "task-1", "task-2", "task-3"]).await;
    assert_eq!(all, ["warning day tokens"]);
}

#[tokio::test]
async fn a_queued_message_fails_visibly_under_a_cap_that_was_reached_before_it() {
    let gate = Gate::new();
    let held = Reply::from_text("Held.").usage(used(102_000, 0)).hold(1, &gate);
    let fixture = capped(json!({"tokens_per_day": 100_000}), &[], vec![held]).await;
    let stream = fixture.engine.execute("task", "Go.").await;
    wait_gate_reached(&gate).await;
    let (queued, _) = fixture.engine.queue_message("task", "And then?").await;
    gate.release();
    assert_completed(&stream.collect().await);
    let events = queued.collect().await;
    let begun = events.iter().position(|event| event.phase() == Some("started")).unwrap();
    let error = assert_errored(&events[begun..]);
    assert_eq!((&error["code"], &error["retryable"]), (&json!("USAGE_CAP_REACHED"), &json!(true)));
    assert_eq!(fixture.model_calls(), 1);
}

#[tokio::test]
async fn under_a_cap_on_costs_a_model_needs_prices() {
    // Faulty caps reject the configuration, with the path of each fault.
    let fixture = EngineFixture::new([]).await;
    let mut config = fixture.engine.control("get_config", json!({})).await.body["result"]["config"].clone();
    for (caps, path) in [
        (json!({"tokens_per_day": 0}), "config.caps.tokens_per_day"),
        (json!({"tokens_per_day": 1.5}), "config.caps.tokens_per_day"),
        (json!({"usd_per_task": "much"}), "config.caps.usd_per_task"),
        (json!({"usd_per_day": -1}), "config.caps.usd_per_day"),
        (json!({"tokens": 5}), "config.caps.tokens"),
        (json!([]), "config.caps"),
    ] {
        config["caps"] = caps;
        let answer = fixture.engine.control("set_config", json!({"config": config})).await;
        let message = answer.assert_flat_error(400, "INVALID_REQUEST");
        assert!(message.contains(path), "{path}: {message}");
    }
    // The operator's cap meets a model without prices in its turn.
    let cap = |setup: StandaloneEngine| setup.with_env("ENGINE_USAGE_MAX_USD_PER_DAY", "1".to_owned());
    let fixture = EngineFixture::with_setup("anthropic", [Reply::from_text("Free?")], cap).await;
    let events = fixture.engine.execute("task", "Hello!").await.collect().await;
    let error = assert_errored(&events);
    assert_eq!(error["code"], "PROVIDER_NOT_CONFIGURED");
    assert!(error["message"].as_str().unwrap().contains("`prices`"), "{error}");
    assert_eq!(fixture.model_calls(), 0);
}
