//! Budgets also apply when a provider does not report the usage of a call.

use mock_llm::{Fault, Reply, Usage};
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::turn::of_kind;
use crate::support::{EngineFixture, StandaloneEngine};

fn without_usage(reply: Reply) -> Reply {
    reply.usage(Usage { withheld: true, ..Usage::default() })
}

/// An engine with a budget of `tokens` per day.
async fn with_budget(tokens: u64) -> EngineFixture {
    EngineFixture::with_setup("openai", [], |setup: StandaloneEngine| {
        let model = setup.variables.get("LLM_MODEL").cloned().unwrap_or_else(|| "gpt-5".into());
        let gateway = json!({
            "models": {"main": {"provider": "openai", "model": model, "context_window": 128_000, "max_output": 512}},
            "default": "main",
            "retry": {"max_attempts": 1, "max_seconds": 1},
            "budgets": {"tokens_per_day": tokens},
        });
        setup.with_catalog_file("gateway.json", &gateway.to_string())
    })
    .await
}

async fn used_tokens(fixture: &EngineFixture) -> u64 {
    let state = fixture.engine.post("/rpc", &json!({"subsystem": "telemetry", "op": "quota_state"})).await;
    state.assert_ok("result:object")["result"]["budgets"]["tokens_per_day"]["used"].as_u64().unwrap()
}

#[tokio::test]
async fn an_answer_whose_cost_nobody_tells_is_estimated_and_counts() {
    let fixture = with_budget(40_000).await;
    fixture.provider.enqueue(without_usage(Reply::from_text("I see. ".repeat(100))));
    let events = fixture.engine.run_turn("task", &"word ".repeat(4_000)).await;
    let usage = of_kind(&events, "usage").last().unwrap().data.clone();
    let tokens = |field: &str| usage[field].as_u64().unwrap();
    // The estimate is four bytes per token.
    assert!((5_000..9_000).contains(&tokens("input_tokens")), "{usage}");
    assert!((175..200).contains(&tokens("output_tokens")), "{usage}");
    assert_eq!(used_tokens(&fixture).await, tokens("input_tokens") + tokens("output_tokens"));

    // Until the budget is used up.
    let last = loop {
        fixture.provider.enqueue(without_usage(Reply::from_text("I see.")));
        let events = fixture.engine.run_turn("task", &"word ".repeat(4_000)).await;
        let last = events.last().unwrap().data.clone();
        assert!(fixture.model_calls() < 10, "the budget does not apply: {last}");
        if last["stop_reason"] != "end_turn" {
            break last;
        }
    };
    assert_eq!(last["stop_reason"], Value::from("budget"));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_estimated_and_counts() {
    let fixture = with_budget(1_000_000).await;
    let broken = Reply::from_text("I see. ".repeat(100)).fault(Fault::CutAfter { deltas: 10 });
    fixture.provider.enqueue(without_usage(broken));
    let events =
        fixture.engine.execute_with(&direct_message("task", &"word ".repeat(4_000))).await.collect().await;
    assert_eq!(events.last().unwrap().kind, "error", "{events:#?}");
    let used = used_tokens(&fixture).await;
    assert!((5_000..9_000).contains(&used), "{used}");
}
