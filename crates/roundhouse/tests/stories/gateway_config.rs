//! Story 4: the model of an engine is changed while it runs, and its keys are sent to no other address.

use std::fs;

use mock_llm::{MockProvider, Reply};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::test_env::Program;
use crate::support::turn::assert_completed;
use crate::support::{Engine, Event, Fleet, StandaloneEngine, assert_fields};

const BUDGET: &str = "limit:int|null used:int remaining:int|null frees_at:time|null";

/// A configuration with one model of `provider` at `base`.
fn one_model(provider: &str, base: &str, more: &Value) -> Value {
    let mut model = json!({"provider": provider, "model": "m", "base_url": base, "context_window": 100_000});
    for (field, value) in more.as_object().unwrap() {
        model[field] = value.clone();
    }
    json!({"models": {"one": model}, "default": "one", "budgets": {"tokens_per_hour": 1_000_000}})
}

async fn provider(text: &str) -> MockProvider {
    let provider = MockProvider::start().await.unwrap();
    provider.set_default_reply(Reply::from_text(text));
    provider
}

fn write_file(setup: &StandaloneEngine, text: &str) {
    fs::write(setup.test_env.path().join("catalog/gateway.json"), text).unwrap();
}

async fn restart(setup: &StandaloneEngine, program: Program) -> (Program, Engine) {
    program.signal_and_wait(Signal::TERM).await.assert_success();
    setup.start().await
}

async fn control_ok(engine: &Engine, op: &str, parameters: Value) {
    assert_eq!(engine.control(op, parameters).await.assert_ok("result:object")["result"], json!({}));
}

async fn config(engine: &Engine) -> Value {
    engine.control("get_config", json!({})).await.assert_ok("result:object")["result"]["config"].clone()
}

async fn telemetry(engine: &Engine, op: &str) -> Value {
    let call = json!({"subsystem": "telemetry", "op": op});
    engine.post("/rpc", &call).await.assert_ok("result:object")["result"].clone()
}

async fn run_turn_text(engine: &Engine) -> String {
    let events: Vec<Event> = engine.run_turn("task", "Hello!").await;
    assert_completed(&events).to_owned()
}

#[tokio::test]
async fn a_configuration_that_was_set_outlives_a_restart_until_reload_drops_it() {
    let (file, local) = (provider("From the file.").await, provider("From the local server.").await);
    let setup = StandaloneEngine::new().with_env("LLM_API_KEY", "the-secret-key");
    let file_config =
        one_model("openai-compatible", &file.openai_base_url(), &json!({"api_key_env": "LLM_API_KEY"}));
    write_file(&setup, &file_config.to_string());
    let (program, engine) = setup.start().await;
    assert_eq!(run_turn_text(&engine).await, "From the file.");
    assert_eq!(config(&engine).await, file_config);

    // A local server, which is sent no key.
    let local_config =
        one_model("openai-compatible", &local.openai_base_url(), &json!({"api_key_env": "none"}));
    control_ok(&engine, "set_config", json!({"config": local_config})).await;
    assert_eq!(
        (run_turn_text(&engine).await.as_str(), config(&engine).await),
        ("From the local server.", local_config.clone())
    );
    let keys: Vec<Option<String>> =
        local.requests().iter().map(|request| request.headers.get("authorization").cloned()).collect();
    assert_eq!(keys, [Some("Bearer none".to_owned())]);
    let (program, engine) = restart(&setup, program).await;
    assert_eq!(
        (run_turn_text(&engine).await.as_str(), config(&engine).await),
        ("From the local server.", local_config.clone())
    );

    // A faulty file is refused completely.
    write_file(&setup, "{\"models\": {}, \"bugdets\": {}}");
    let answer = engine.control("reload", json!({})).await;
    let refused = answer.assert_flat_error(400, "INVALID_REQUEST");
    assert!(refused.contains("gateway.json.bugdets"), "{refused}");
    assert_eq!(config(&engine).await, local_config);
    write_file(&setup, &file_config.to_string());
    control_ok(&engine, "reload", json!({})).await;
    assert_eq!(
        (run_turn_text(&engine).await.as_str(), config(&engine).await),
        ("From the file.", file_config.clone())
    );
    let (_program, engine) = restart(&setup, program).await;
    assert_eq!(config(&engine).await, file_config);
}

#[tokio::test]
async fn a_key_is_sent_nowhere_that_a_caller_names() {
    let (vendor, attacker) = (provider("From the vendor.").await, provider("From the attacker.").await);
    let setup =
        StandaloneEngine::new().with_provider("anthropic", &vendor).with_env("OTHER_API_KEY", "another-key");
    let (_program, engine) = setup.start().await;
    let before = config(&engine).await;
    let port = attacker.base_url().rsplit(':').next().unwrap().to_owned();
    for (base, more) in [
        (attacker.base_url(), json!({})),
        (format!("{}/", attacker.base_url()), json!({"api_key_env": "LLM_API_KEY"})),
        (format!("http://localhost:{port}"), json!({"api_key_env": "OTHER_API_KEY"})),
        (format!("{}/{}", attacker.base_url(), vendor.base_url()), json!({})),
        ("http://api.anthropic.com".to_owned(), json!({})),
    ] {
        let answer =
            engine.control("set_config", json!({"config": one_model("anthropic", &base, &more)})).await;
        let refused = answer.assert_flat_error(400, "INVALID_REQUEST");
        assert!(refused.contains("config.models.one.base_url"), "{refused}");
    }
    let userinfo = format!("{}@127.0.0.1:{port}", vendor.base_url());
    for (base, more, path) in [
        (userinfo, json!({}), "config.models.one.base_url"),
        (vendor.base_url(), json!({"api_key_env": "ENGINE_KEY_HASH"}), "config.models.one.api_key_env"),
    ] {
        let answer =
            engine.control("set_config", json!({"config": one_model("anthropic", &base, &more)})).await;
        let refused = answer.assert_flat_error(400, "INVALID_REQUEST");
        assert!(refused.contains(path), "{refused}");
    }
    assert_eq!(config(&engine).await, before);
    assert_eq!(run_turn_text(&engine).await, "From the vendor.");
    assert_eq!(attacker.requests().len(), 0);
    assert!(!before.to_string().contains("provider-key"));
}

#[tokio::test]
async fn what_is_left_of_a_budget_is_told_also_after_a_restart() {
    let vendor = provider("Hello.").await;
    let setup = StandaloneEngine::new().with_provider("anthropic", &vendor);
    let prices = json!({"prices": {"input": 3, "output": 15}});
    write_file(&setup, &one_model("anthropic", &vendor.base_url(), &prices).to_string());
    let (program, engine) = setup.start().await;
    run_turn_text(&engine).await;
    let state = telemetry(&engine, "quota_state").await;
    assert_fields(&state, "budgets:object models:array spent:array");
    let hour = &state["budgets"]["tokens_per_hour"];
    assert_fields(hour, BUDGET);
    let used = hour["used"].as_u64().unwrap();
    assert!(used > 0 && hour["remaining"] == 1_000_000 - used, "{hour}");
    assert!(state["spent"][0]["cost_usd"].as_f64().unwrap() > 0.0, "{state}");
    assert_eq!(telemetry(&engine, "cache_state").await["total"]["calls"], 1);

    let (_program, engine) = restart(&setup, program).await;
    assert_eq!(telemetry(&engine, "quota_state").await["budgets"]["tokens_per_hour"], *hour);
}

#[tokio::test]
async fn up_refuses_a_catalog_whose_configuration_cannot_work() {
    let fleet = Fleet::new();
    let catalog = fleet.folder().join("catalog");
    fs::create_dir_all(&catalog).unwrap();
    for (text, named) in [
        ("{".to_owned(), "gateway.json"),
        (
            one_model("anthropic", "https://api.anthropic.com", &json!({})).to_string(),
            "ANTHROPIC_API_KEY is not set",
        ),
    ] {
        fs::write(catalog.join("gateway.json"), text).unwrap();
        fleet.run_failing_up().await.assert_failure(2, &[named]);
    }
}
