//! Tests of the gateway's configuration and telemetry over `/rpc`.

use mock_llm::{Fault, MockProvider, Refusal, Reply};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use testkit::with_deadline;

use super::app::{ENGINE_KEY, TestApp};
use super::rpc_tests::{expect_rpc_error, expect_rpc_result, post_rpc};

fn control_call(op: &str) -> Value {
    json!({"subsystem": "control", "op": op})
}

fn set_config_call(config: &Value) -> Value {
    json!({"subsystem": "control", "op": "set_config", "config": config})
}

async fn config(app: &TestApp) -> Value {
    let mut result = expect_rpc_result(app, ENGINE_KEY, control_call("get_config")).await;
    let config = result["config"].take();
    assert_eq!(result, json!({"config": null}));
    config
}

async fn telemetry(app: &TestApp, op: &str) -> Value {
    expect_rpc_result(app, ENGINE_KEY, json!({"subsystem": "telemetry", "op": op})).await
}

/// Returns a configuration with an Anthropic model at `base`, with budgets and a price.
fn priced_config(base: &str) -> Value {
    json!({
        "models": {"main": {
            "provider": "anthropic", "model": "claude-sonnet-4-5", "base_url": base, "context_window": 200_000,
            "prices": {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75},
        }},
        "default": "main",
        "budgets": {"tokens_per_turn": 50_000, "tokens_per_hour": 100_000},
    })
}

async fn text(app: &TestApp, message: &str) -> Value {
    app.run_turn("t", message).await.last().unwrap().data["text"].clone()
}

#[tokio::test]
async fn a_configuration_is_set_told_kept_and_dropped() {
    let mut app = TestApp::start().await;
    let from_env = config(&app).await;
    let base = app.provider.base_url();
    let expected = json!({
        "models": {"claude-sonnet-4-5": {
            "provider": "anthropic", "model": "claude-sonnet-4-5", "base_url": base,
            "context_window": 200_000, "max_output": 32_000, "thinking": {"budget_tokens": 16_000},
        }},
        "default": "claude-sonnet-4-5",
        "fallbacks": [],
        "retry": {"max_attempts": 5, "max_seconds": 60},
        "budgets": {},
    });
    assert_eq!(from_env, expected);
    // A configuration that was returned can be set, and is returned again.
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, set_config_call(&from_env)).await, json!({}));
    assert_eq!(config(&app).await, from_env);
    assert_eq!(text(&app, "as before").await, "as before");

    let scripted = json!({
        "models": {"s": {"provider": "scripted", "model": "offline", "context_window": 100_000}}, "default": "s",
    });
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, set_config_call(&scripted)).await, json!({}));
    assert_eq!(config(&app).await, scripted);
    assert!(text(&app, "something").await.as_str().unwrap().contains("built-in script"));
    app.restart().await;
    assert_eq!(config(&app).await, scripted);
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, control_call("reload")).await, json!({}));
    assert_eq!(config(&app).await, from_env);

    app.write_gateway_json(&priced_config(&base).to_string());
    assert_eq!(config(&app).await, from_env);
    assert_eq!(expect_rpc_result(&app, ENGINE_KEY, control_call("reload")).await, json!({}));
    assert_eq!(config(&app).await, priced_config(&base));
    app.write_gateway_json("{\"models\": 7}");
    let message = expect_rpc_error(
        post_rpc(&app, ENGINE_KEY, control_call("reload").to_string()).await,
        400,
        "INVALID_REQUEST",
    )
    .await;
    assert!(
        message.contains("gateway.json.models is `7`") && message.contains("gateway.json.default"),
        "{message}"
    );
    assert_eq!(config(&app).await, priced_config(&base));
    app.stop().await;
}

#[tokio::test]
async fn a_faulty_configuration_is_refused_whole() {
    let app = TestApp::start().await;
    let before = config(&app).await;
    let mut invalid = priced_config("http://127.0.0.1:1");
    invalid["budgets"] = json!({"token_per_hour": 5});
    invalid["default"] = json!("other");
    let message = expect_rpc_error(
        post_rpc(&app, ENGINE_KEY, set_config_call(&invalid).to_string()).await,
        400,
        "INVALID_REQUEST",
    )
    .await;
    assert!(
        ["config.budgets.token_per_hour", "config.default is `other`"]
            .iter()
            .all(|part| message.contains(part)),
        "{message}"
    );
    for body in [
        control_call("set_config"),
        set_config_call(&json!("x")),
        set_config_call(&json!([])),
        set_config_call(&Value::Null),
    ] {
        let message =
            expect_rpc_error(post_rpc(&app, ENGINE_KEY, body.to_string()).await, 400, "INVALID_REQUEST")
                .await;
        assert!(message.contains("config"), "{message}");
    }
    assert_eq!(config(&app).await, before);
    assert_eq!(text(&app, "as before").await, "as before");
    app.stop().await;
}

#[tokio::test]
async fn a_key_is_not_sent_where_a_caller_wants_it() {
    let (app, thief) = (TestApp::start().await, MockProvider::start().await.unwrap());
    let before = config(&app).await;
    for (provider, key) in [("anthropic", None), ("openai-compatible", Some("LLM_API_KEY"))] {
        let model = json!({
            "provider": provider, "model": "m", "base_url": thief.base_url(), "api_key_env": key,
            "context_window": 100_000,
        });
        let stolen = json!({"models": {"mine": model}, "default": "mine"});
        let message = expect_rpc_error(
            post_rpc(&app, ENGINE_KEY, set_config_call(&stolen).to_string()).await,
            400,
            "INVALID_REQUEST",
        )
        .await;
        assert!(
            message.contains("config.models.mine.base_url") && message.contains("LLM_API_KEY"),
            "{message}"
        );
    }
    assert_eq!(config(&app).await, before);
    text(&app, "go").await;
    assert_eq!(thief.requests().len(), 0);
    app.stop().await;
}

#[tokio::test]
async fn what_was_spent_and_what_is_left_is_told() {
    let app = TestApp::start().await;
    let base = app.provider.base_url();
    let fresh = telemetry(&app, "quota_state").await;
    let open = json!({"limit": null, "used": 0, "remaining": null, "frees_at": null});
    let model = |name: &str| {
        json!({
            "name": name, "model": "claude-sonnet-4-5", "cool_down_seconds": 0.0, "retry_after_seconds": null,
            "failures_in_a_row": 0, "last_failure": null,
        })
    };
    let expected = json!({
        "budgets": {"tokens_per_turn": null, "tokens_per_hour": open, "tokens_per_day": open},
        "models": [model("claude-sonnet-4-5")],
        "spent": [],
    });
    assert_eq!(fresh, expected);

    expect_rpc_result(&app, ENGINE_KEY, set_config_call(&priced_config(&base))).await;
    let events = app.run_turn("t", "hello").await;
    let usage = &events.iter().rfind(|event| event.kind == "usage").unwrap().data;
    let (input, output) = (usage["input_tokens"].as_u64().unwrap(), usage["output_tokens"].as_u64().unwrap());
    let state = telemetry(&app, "quota_state").await;
    let hour = &state["budgets"]["tokens_per_hour"];
    assert_eq!((hour["limit"].as_u64(), hour["used"].as_u64()), (Some(100_000), Some(input + output)));
    assert_eq!(hour["remaining"], 100_000 - input - output);
    assert!(
        hour["frees_at"].as_str().unwrap() < state["budgets"]["tokens_per_day"]["frees_at"].as_str().unwrap()
    );
    assert_eq!(state["budgets"]["tokens_per_turn"], 50_000);
    let spent = &state["spent"][0];
    assert_eq!((spent["calls"].as_u64(), spent["output_tokens"].as_u64()), (Some(1), Some(output)));
    let least = (f64::from(u32::try_from(output).unwrap())) * 15.0 / 1_000_000.0;
    assert!(spent["cost_usd"].as_f64().unwrap() > least, "{spent}");

    let cache = telemetry(&app, "cache_state").await;
    assert_eq!(cache["total"], cache["models"]["claude-sonnet-4-5"]);
    assert_eq!(
        (cache["total"]["calls"].as_u64(), cache["total"]["input_tokens"].as_u64()),
        (Some(1), Some(input))
    );

    app.provider.enqueue(Reply::from_fault(Fault::refuse(Refusal::Unauthorized)));
    app.run_turn("t", "refused").await;
    let state = telemetry(&app, "quota_state").await;
    let main = &state["models"][0];
    assert_eq!((main["name"].as_str(), main["failures_in_a_row"].as_u64()), (Some("main"), Some(1)));
    assert_eq!(main["last_failure"]["kind"], "auth");
    assert!(main["cool_down_seconds"].as_f64().unwrap() > 0.0);
    app.stop().await;
}

#[tokio::test]
async fn without_a_model_the_engine_says_what_to_set_and_can_be_given_one() {
    let provider = MockProvider::start().await.unwrap();
    let app = TestApp::with_env(provider, &[]).await;
    assert_eq!(config(&app).await, Value::Null);
    let health = || async {
        with_deadline(app.request_without_key("GET", "/health").send())
            .await
            .unwrap()
            .json::<Value>()
            .await
            .unwrap()
    };
    let unhealthy_reason = health().await;
    assert_eq!(unhealthy_reason["status"], "degraded");
    assert!(
        unhealthy_reason["subsystems"]["llm_provider"].as_str().unwrap().contains("LLM_PROVIDER"),
        "{unhealthy_reason}"
    );
    expect_rpc_error(
        post_rpc(&app, ENGINE_KEY, control_call("reload").to_string()).await,
        400,
        "INVALID_REQUEST",
    )
    .await;
    let state = telemetry(&app, "quota_state").await;
    assert_eq!((&state["models"], &state["spent"]), (&json!([]), &json!([])));

    let base = app.provider.openai_base_url();
    let local = json!({"provider": "openai-compatible", "model": "local", "base_url": base, "context_window": 100_000});
    expect_rpc_result(
        &app,
        ENGINE_KEY,
        set_config_call(&json!({"models": {"local": local}, "default": "local"})),
    )
    .await;
    assert_eq!(health().await["status"], "ok");
    app.stop().await;
}
