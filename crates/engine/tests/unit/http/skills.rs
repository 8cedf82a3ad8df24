//! Tests of `/skills`, and of `skill.<name>` of `/rpc`, with a mock model.

use api::turn_options::TurnOverrides;
use mock_llm::{Fault, Gate, MockProvider, Refusal, Reply, Stop};
use pretty_assertions::assert_eq;
use reqwest::Response;
use serde_json::{Map, Value, json};
use testkit::with_deadline;

use super::app::{ENGINE_KEY, TestApp, expect_error};
use super::rpc_tests::{expect_rpc_error, expect_rpc_result, post_rpc};

async fn send_json(app: &TestApp, method: &str, path: &str, body: Value) -> Response {
    with_deadline(app.request(method, path).json(&body).send()).await.unwrap()
}

async fn create(app: &TestApp, skill: Value) {
    assert_eq!(send_json(app, "POST", "/skills/create", skill).await.status(), 200);
}

fn run_skill_call(skill: &str, params: &Value) -> Value {
    json!({"method": format!("skill.{skill}"), "params": params})
}

#[tokio::test]
async fn a_skill_is_run_in_one_call_of_a_model() {
    let app = TestApp::start().await;
    create(&app, json!({"name": "rhyme", "prompt": "Rhyme on what you are given."})).await;
    for (params, told) in [
        (json!({"input": "a cat"}), "a cat".to_owned()),
        (json!({}), "Go ahead.".to_owned()),
        (json!({"input": " "}), "Go ahead.".to_owned()),
        (json!({"animal": "cat", "lines": 2}), r#"{"animal":"cat","lines":2}"#.to_owned()),
        (json!({"input": ["cat"]}), r#"{"input":["cat"]}"#.to_owned()),
    ] {
        app.provider.clear_requests();
        app.provider.enqueue(Reply::from_text("Sat on a mat."));
        let outcome = expect_rpc_result(&app, ENGINE_KEY, run_skill_call("rhyme", &params)).await;
        assert_eq!(outcome, json!({"output": "Sat on a mat."}));
        let [request] = app.provider.requests().try_into().unwrap();
        assert!(
            request.body["system"].to_string().contains("Rhyme on what you are given."),
            "{}",
            request.body
        );
        assert_eq!(request.body.get("tools"), None);
        let messages = request.body["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 1);
        let said = &messages[0]["content"];
        let said = said.as_str().unwrap_or_else(|| said[0]["text"].as_str().unwrap());
        assert_eq!(said, told);
    }
    // It is billed like any other call.
    let quota =
        expect_rpc_result(&app, ENGINE_KEY, json!({"subsystem": "telemetry", "op": "quota_state"})).await;
    assert_eq!(quota["spent"][0]["calls"], 5, "{quota}");
    app.stop().await;
}

#[tokio::test]
async fn a_call_that_fails_is_tried_again_and_then_told() {
    let app = TestApp::start().await;
    create(&app, json!({"name": "rhyme", "prompt": "Rhyme."})).await;
    app.provider
        .enqueue_all([Reply::from_fault(Fault::refuse(Refusal::Overloaded)), Reply::from_text("Well.")]);
    assert_eq!(
        expect_rpc_result(&app, ENGINE_KEY, run_skill_call("rhyme", &json!({}))).await,
        json!({"output": "Well."})
    );
    app.provider.enqueue(Reply::from_fault(Fault::refuse(Refusal::PromptTooLong)));
    let answer = post_rpc(&app, ENGINE_KEY, run_skill_call("rhyme", &json!({})).to_string()).await;
    expect_rpc_error(answer, 400, "TOOL_FAILED").await;
    app.provider.take_refusals();
    app.stop().await;
}

/// Returns the message with which a run of the skill `rhyme` is refused.
async fn refused(app: &TestApp, status: u16, code: &str) -> String {
    expect_rpc_error(
        post_rpc(app, ENGINE_KEY, run_skill_call("rhyme", &json!({})).to_string()).await,
        status,
        code,
    )
    .await
}

#[tokio::test]
async fn an_answer_that_is_not_whole_is_none() {
    let app = TestApp::start().await;
    create(&app, json!({"name": "rhyme", "prompt": "Rhyme."})).await;
    for (reply, status, code, named) in [
        (Reply::from_text("Sat on a").stop(Stop::MaxTokens), 400, "TOOL_FAILED", "`max_output`"),
        (Reply::new().stop(Stop::Refusal), 400, "TOOL_FAILED", "declined"),
        (Reply::from_text(" "), 500, "INTERNAL_ERROR", "without a text"),
    ] {
        app.provider.enqueue(reply);
        let message = refused(&app, status, code).await;
        assert!(message.contains(named), "{message}");
    }
    app.stop().await;
}

#[tokio::test]
async fn what_the_caller_cannot_help_is_no_fault_of_theirs() {
    let app = TestApp::start().await;
    create(&app, json!({"name": "rhyme", "prompt": "Rhyme."})).await;
    app.provider.enqueue(Reply::from_fault(Fault::refuse(Refusal::Unauthorized)));
    refused(&app, 500, "INTERNAL_ERROR").await;
    for (tokens, named) in [(400, "cut off"), (1, "used up")] {
        let config = json!({
            "default": "main",
            "models": {"main": {
                "provider": "anthropic", "model": "claude-sonnet-4-5", "base_url": app.provider.base_url(),
                "context_window": 200_000,
            }},
            "budgets": {"tokens_per_hour": tokens},
        });
        expect_rpc_result(
            &app,
            ENGINE_KEY,
            json!({"subsystem": "control", "op": "set_config", "config": config}),
        )
        .await;
        app.provider.enqueue(Reply::from_text("Sat on a").stop(Stop::MaxTokens));
        let message = refused(&app, 500, "INTERNAL_ERROR").await;
        assert!(message.contains(named) && message.contains("`quota_state`"), "{message}");
    }
    app.provider.take_refusals();
    app.stop().await;

    let app = TestApp::with_env(MockProvider::start().await.unwrap(), &[]).await;
    create(&app, json!({"name": "rhyme", "prompt": "Rhyme."})).await;
    refused(&app, 500, "INTERNAL_ERROR").await;
    app.stop().await;
}

/// Returns the usage of the last 24 hours.
async fn usage_by_model(app: &TestApp) -> Value {
    expect_rpc_result(app, ENGINE_KEY, json!({"subsystem": "telemetry", "op": "quota_state"})).await["spent"]
        .take()
}

/// Runs the skill `rhyme` for a caller who hangs up while the model answers; the model answers when the gate is
/// opened.
async fn run_abandoned_skill(app: &TestApp) -> Gate {
    create(app, json!({"name": "rhyme", "prompt": "Rhyme."})).await;
    let gate = Gate::new();
    app.provider.enqueue(Reply::from_text("Sat on a mat.").hold(0, &gate));
    tokio::select! {
        answer = app.agent.run_skill("rhyme", Map::new(), TurnOverrides::default()) => panic!("{answer:?}"),
        () = with_deadline(gate.reached()) => {}
    }
    gate
}

#[tokio::test]
async fn a_run_whose_caller_is_gone_keeps_the_engine_awake_and_is_billed() {
    let app = TestApp::start().await;
    let gate = run_abandoned_skill(&app).await;
    assert!(!app.agent.quiesce());
    assert_eq!(app.agent.activity().unwrap().running_turns, 0, "it is no turn");
    gate.release();
    with_deadline(async {
        while !app.agent.quiesce() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let spent = usage_by_model(&app).await;
    assert!(spent[0]["calls"] == 1 && spent[0]["output_tokens"].as_u64() > Some(0), "{spent}");
    expect_rpc_error(
        post_rpc(&app, ENGINE_KEY, run_skill_call("rhyme", &json!({})).to_string()).await,
        503,
        "QUIESCED",
    )
    .await;
    app.agent.lift_quiesce();
    app.stop().await;
}

#[tokio::test]
async fn a_run_that_a_stop_breaks_off_is_billed_for_its_prompt() {
    let mut app = TestApp::start().await;
    let gate = run_abandoned_skill(&app).await;
    app.restart().await;
    let spent = usage_by_model(&app).await;
    assert!(spent[0]["calls"] == 1 && spent[0]["input_tokens"].as_u64() > Some(0), "{spent}");
    gate.release();
    app.stop().await;
}

#[tokio::test]
async fn the_methods_say_what_skills_take() {
    let app = TestApp::start().await;
    create(&app, json!({"name": "rhyme", "prompt": "Rhyme."})).await;
    create(&app, json!({"name": "count", "scripts": {"count.sh": "wc -w"}})).await;
    let methods = expect_rpc_result(&app, ENGINE_KEY, json!({"method": "rpc.methods", "params": {}})).await;
    let params = |name: &str| {
        let methods = methods["methods"].as_array().unwrap();
        methods.iter().find(|method| method["method"] == name).unwrap()["params"].clone()
    };
    let text = json!({"type": "string"});
    assert_eq!(
        params("skill.rhyme"),
        json!({"type": "object", "properties": {"input": text}, "required": []})
    );
    assert_eq!(
        params("skill.count"),
        json!({
            "type": "object",
            "properties": {
                "input": text,
                "script": {"type": "string", "enum": ["scripts/count.sh"]},
                "args": {"type": "array", "items": text},
            },
            "required": ["script"],
        })
    );
    for (skill, params, status, code, named) in [
        ("none", json!({}), 404, "METHOD_NOT_FOUND", "`none`"),
        ("../count", json!({}), 404, "METHOD_NOT_FOUND", "rpc.methods"),
        ("count", json!({}), 400, "INVALID_REQUEST", "scripts/count.sh"),
        ("count", json!({"input": "a"}), 400, "INVALID_REQUEST", "`params.script`"),
        ("count", json!({"script": 7}), 400, "INVALID_REQUEST", "`params`"),
        ("count", json!({"script": null}), 400, "INVALID_REQUEST", "`params.script`"),
        ("count", json!({"script": "count.sh", "args": "a"}), 400, "INVALID_REQUEST", "`params`"),
        // There is no sandbox here.
        ("count", json!({"script": "count.sh"}), 400, "TOOL_FAILED", "cannot"),
        ("rhyme", json!({"input": "x".repeat(1_048_577)}), 400, "INVALID_REQUEST", "`params`"),
    ] {
        let answer = post_rpc(&app, ENGINE_KEY, run_skill_call(skill, &params).to_string()).await;
        let message = expect_rpc_error(answer, status, code).await;
        assert!(message.contains(named), "{skill} {params}: {message}");
    }
    assert_eq!(app.provider.requests().len(), 0);
    app.stop().await;
}

#[tokio::test]
async fn there_are_so_many_skills_and_no_more() {
    let app = TestApp::start().await;
    for number in 0..256 {
        create(&app, json!({"name": format!("skill-{number}"), "prompt": "Do."})).await;
    }
    let more = json!({"name": "more", "prompt": "Do."});
    let message =
        expect_error(send_json(&app, "POST", "/skills/create", more.clone()).await, 400, "INVALID_REQUEST")
            .await;
    assert!(message.contains("256"), "{message}");
    assert_eq!(send_json(&app, "DELETE", "/skills/skill-7", json!({})).await.status(), 200);
    create(&app, more).await;
    app.stop().await;
}

#[tokio::test]
async fn a_lost_race_is_a_name_that_is_taken() {
    let app = TestApp::start().await;
    let skill = |prompt: &str| json!({"name": "same", "prompt": prompt});
    let (one, other) = tokio::join!(
        send_json(&app, "POST", "/skills/create", skill("One.")),
        send_json(&app, "POST", "/skills/create", skill("Other."))
    );
    let mut statuses = [one.status().as_u16(), other.status().as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    app.stop().await;
}
