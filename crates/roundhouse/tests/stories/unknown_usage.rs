//! Budgets bind also where a provider does not tell what a call cost.

use mock_llm::{Fault, Reply, Usage};
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::turn::of_kind;
use crate::support::{EngineFixture, StandaloneEngine};

fn without_usage(reply: Reply) -> Reply {
    reply.usage(Usage { withheld: true, ..Usage::default() })
}

/// An engine that may spend so many tokens in a day.
async fn with_budget(tokens: u64) -> EngineFixture {
    EngineFixture::with_setup("openai", [], |place: StandaloneEngine| {
        let model = place.variables.get("LLM_MODEL").cloned().unwrap_or_else(|| "gpt-5".into());
        let gateway = json!({
            "models": {"main": {"provider": "openai", "model": model, "context_window": 128_000, "max_output": 512}},
            "default": "main",
            "retry": {"max_attempts": 1, "max_seconds": 1},
            "budgets": {"tokens_per_day": tokens},
        });
        place.with_catalog_file("gateway.json", &gateway.to_string())
    })
    .await
}

async fn used_tokens(rig: &EngineFixture) -> u64 {
    let state = rig.engine.post("/rpc", &json!({"subsystem": "telemetry", "op": "quota_state"})).await;
    state.assert_ok("result:object")["result"]["budgets"]["tokens_per_day"]["used"].as_u64().unwrap()
}

#[tokio::test]
async fn an_answer_whose_cost_nobody_tells_is_estimated_and_counts() {
    let rig = with_budget(40_000).await;
    rig.provider.enqueue(without_usage(Reply::from_text("I see. ".repeat(100))));
    let events = rig.engine.run_turn("task", &"word ".repeat(4_000)).await;
    let usage = of_kind(&events, "usage").last().unwrap().data.clone();
    let shown = |field: &str| usage[field].as_u64().unwrap();
    // Four bytes are a token, as near as that can be told.
    assert!((5_000..9_000).contains(&shown("input_tokens")), "{usage}");
    assert!((175..200).contains(&shown("output_tokens")), "{usage}");
    assert_eq!(used_tokens(&rig).await, shown("input_tokens") + shown("output_tokens"));

    // Until nothing is left.
    let last = loop {
        rig.provider.enqueue(without_usage(Reply::from_text("I see.")));
        let events = rig.engine.run_turn("task", &"word ".repeat(4_000)).await;
        let last = events.last().unwrap().data.clone();
        assert!(rig.model_calls() < 10, "the budget binds: {last}");
        if last["stop_reason"] != "end_turn" {
            break last;
        }
    };
    assert_eq!(last["stop_reason"], Value::from("budget"));
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_estimated_and_counts() {
    let rig = with_budget(1_000_000).await;
    let broken = Reply::from_text("I see. ".repeat(100)).fault(Fault::CutAfter { deltas: 10 });
    rig.provider.enqueue(without_usage(broken));
    let events =
        rig.engine.execute_with(&direct_message("task", &"word ".repeat(4_000))).await.collect().await;
    assert_eq!(events.last().unwrap().kind, "error", "{events:#?}");
    let used = used_tokens(&rig).await;
    assert!((5_000..9_000).contains(&used), "{used}");
}
