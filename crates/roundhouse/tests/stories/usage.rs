//! Tokens, costs and the time of tools can be read by day, task, model, agent and purpose, and add up to what the
//! journal says, also after kills.

use std::fs;

use mock_llm::{Gate, MockProvider, Reply, Usage};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{ReplyExt as _, wait_gate_reached};
use crate::support::http::send;
use crate::support::{Engine, EngineFixture, StandaloneEngine, eventually};

const REPORT: &str = "rows:array total:object next:text|null";

fn used(input: u64, output: u64) -> Usage {
    Usage { input: Some(input), output: Some(output), ..Usage::default() }
}

/// An engine whose model costs 3 dollars a million prompt tokens and 15 a million output tokens.
async fn priced_fixture(replies: impl IntoIterator<Item = Reply>) -> EngineFixture {
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    provider.enqueue_all(replies);
    let gateway = json!({
        "models": {"main": {
            "provider": "anthropic", "model": "claude-sonnet-4-5", "base_url": provider.base_url(),
            "context_window": 200_000, "prices": {"input": 3, "output": 15, "cache_write": 3},
        }},
        "default": "main",
    });
    let setup = StandaloneEngine::new().with_env("ANTHROPIC_API_KEY", "sk".to_owned());
    fs::write(setup.test_env.path().join("catalog/gateway.json"), gateway.to_string()).unwrap();
    let (program, engine) = setup.start().await;
    EngineFixture { provider, setup, program, engine }
}

async fn usage(engine: &Engine, query: &str) -> Value {
    engine.get(&format!("/usage{query}")).await.assert_ok(REPORT)
}

/// The input and output tokens of all model calls in the journals of all tasks, and the number of calls.
async fn journaled(engine: &Engine) -> [u64; 3] {
    let document: Value = send(engine.request(Method::GET, "/memory/export")).await.body;
    let mut sums = [0; 3];
    for step in document["steps"].as_array().unwrap() {
        let mut step = &step["step"];
        while step["step"] == "delegated" {
            step = &step["did"];
        }
        let tokens = match step["step"].as_str().unwrap() {
            "answered" => &step["answer"]["usage"],
            "spent" => &step["tokens"],
            _ => continue,
        };
        sums[0] += tokens["input"].as_u64().unwrap();
        sums[1] += tokens["output"].as_u64().unwrap();
        sums[2] += 1;
    }
    sums
}

async fn assert_as_journaled(engine: &Engine) {
    let total = usage(engine, "").await["total"].clone();
    let counted = ["input_tokens", "output_tokens", "calls"].map(|field| total[field].as_u64().unwrap());
    assert_eq!(counted, journaled(engine).await, "{total}");
}

#[tokio::test]
async fn usage_is_read_in_any_combination_of_groups() {
    let fixture = priced_fixture([
        Reply::new().memory_set("a", "1").usage(used(1_000, 100)),
        Reply::from_text("Done.").usage(used(2_000, 200)),
        Reply::from_text("Hello.").usage(used(500, 50)),
    ])
    .await;
    fixture.engine.run_turn("first", "Go.").await;
    fixture.engine.run_turn("second", "Hello!").await;
    let report = usage(&fixture.engine, "?group_by=task,model,agent,purpose").await;
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{report}");
    assert_eq!(
        (&rows[0]["task_id"], &rows[0]["model"], &rows[0]["agent"], &rows[0]["purpose"], rows[0].get("day")),
        (&json!("first"), &json!("claude-sonnet-4-5"), &Value::Null, &json!("turn"), None)
    );
    let first = &rows[0]["usage"];
    assert_eq!(
        (&first["calls"], &first["input_tokens"], &first["output_tokens"]),
        (&json!(2), &json!(3_000), &json!(300))
    );
    assert_eq!((&first["tool_calls"], &first["tools"][0]["tool"]), (&json!(1), &json!("working_memory_set")));
    assert!((first["cost_usd"].as_f64().unwrap() - 0.0135).abs() < 1e-9, "{first}");
    assert_eq!((&report["total"]["calls"], &report["total"]["input_tokens"]), (&json!(3), &json!(3_500)));
    let short = fixture.engine.get("/tasks/first/usage").await.assert_ok("task_id:text usage:object");
    assert_eq!(&short["usage"], first);
    assert_as_journaled(&fixture.engine).await;

    // Page by page, and by day in any time zone.
    let page = usage(&fixture.engine, "?group_by=task&limit=1").await;
    let cursor = page["next"].as_str().unwrap();
    assert_eq!((&page["rows"][0]["task_id"], &page["total"]), (&json!("first"), &report["total"]));
    let page = usage(&fixture.engine, &format!("?group_by=task&limit=1&after={cursor}")).await;
    assert_eq!((&page["rows"][0]["task_id"], &page["next"]), (&json!("second"), &Value::Null));
    for offset in [-840, -300, 0, 330, 345, 840] {
        let report = usage(&fixture.engine, &format!("?utc_offset_minutes={offset}")).await;
        let day = report["rows"][0]["day"].as_str().unwrap();
        let of_day =
            usage(&fixture.engine, &format!("?utc_offset_minutes={offset}&from={day}&to={day}")).await;
        assert_eq!(of_day["rows"][0], report["rows"][0], "{offset}");
    }
    assert_eq!(usage(&fixture.engine, "?to=2020-01-01").await["rows"], json!([]));

    // A deleted task leaves its sums.
    send(fixture.engine.request(Method::DELETE, "/tasks/first")).await;
    let after = usage(&fixture.engine, "?group_by=task").await;
    assert_eq!((&after["total"], &after["rows"][0]["task_id"]), (&report["total"], &Value::Null));
    fixture.engine.get("/tasks/first/usage").await.assert_error(404, "TASK_NOT_FOUND");
}

#[tokio::test]
async fn what_cannot_be_read_is_refused() {
    let fixture = EngineFixture::new([]).await;
    for (query, field) in [
        ("from=yesterday", "from"),
        ("from=2026-13-01", "from"),
        ("from=2026-11-02&to=2026-11-01", "from"),
        ("group_by=", "group_by"),
        ("group_by=day,hour", "group_by"),
        ("group_by=day,day", "group_by"),
        ("utc_offset_minutes=7", "utc_offset_minutes"),
        ("utc_offset_minutes=900", "utc_offset_minutes"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("after=zz", "after"),
        ("task_id=", "task_id"),
    ] {
        let answer = fixture.engine.get(&format!("/usage?{query}")).await;
        let message = answer.assert_error(400, "INVALID_REQUEST");
        assert!(message.contains(field), "{query}: {message}");
    }
    fixture.engine.get("/usage?task_id=none").await.assert_error(404, "TASK_NOT_FOUND");
    fixture.engine.get("/tasks/none/usage").await.assert_error(404, "TASK_NOT_FOUND");
    // A model at another address than its vendor's has no price, which is not 0.
    fixture.provider.enqueue(Reply::from_text("Hello.").usage(used(10, 1)));
    fixture.engine.run_turn("task", "Hello!").await;
    let total = usage(&fixture.engine, "").await["total"].clone();
    assert_eq!((&total["cost_usd"], &total["unpriced_calls"]), (&Value::Null, &json!(1)));
}

#[tokio::test]
async fn a_call_counts_once_whenever_the_engine_is_killed() {
    let mut fixture = priced_fixture([]).await;
    for round in 0..3_u64 {
        let gate = Gate::new();
        fixture.provider.enqueue_all([
            Reply::new().memory_set("a", &round.to_string()).usage(used(100, 10)),
            Reply::from_text("This answer is cut off.").hold(1, &gate),
        ]);
        let task = format!("task-{round}");
        let stream = fixture.engine.execute_with(&direct_message(&task, "Go.")).await;
        wait_gate_reached(&gate).await;
        drop(stream);
        fixture.provider.enqueue(Reply::from_text("Done.").usage(used(200, 20)));
        fixture = fixture.kill_and_start().await;
        eventually("the turn ends", async || {
            (fixture.engine.task_status(&task).await == "idle").then_some(())
        })
        .await;
        assert_as_journaled(&fixture.engine).await;
        let calls = usage(&fixture.engine, "").await["total"]["calls"].clone();
        assert_eq!(calls, json!(2 * (round + 1)));
    }
}

#[tokio::test]
async fn usage_moves_with_its_tasks_and_counts_nothing_twice() {
    let fixture = priced_fixture([Reply::from_text("Hello.").usage(used(500, 50))]).await;
    fixture.engine.run_turn("task", "Hello!").await;
    let before = usage(&fixture.engine, "?group_by=day,task,model,purpose").await;
    let document = send(fixture.engine.request(Method::GET, "/memory/export")).await.body;
    let other = EngineFixture::new([]).await;
    for mode in ["merge", "merge", "replace"] {
        let path = format!("/memory/import?mode={mode}");
        send(other.engine.request(Method::POST, &path).json(&document))
            .await
            .assert_ok("status:text mode:text counts:object");
        assert_eq!(usage(&other.engine, "?group_by=day,task,model,purpose").await, before, "{mode}");
        assert_eq!(send(other.engine.request(Method::GET, "/memory/export")).await.body, document);
    }
    let mut bad = document;
    bad["usage"][0]["figures"][0] = json!(-1);
    let answer = send(other.engine.request(Method::POST, "/memory/import").json(&bad)).await;
    let message = answer.assert_error(400, "INVALID_REQUEST");
    assert!(message.contains("usage[0]"), "{message}");
}
