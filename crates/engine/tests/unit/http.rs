//! Error responses, authentication, and the OpenAPI document.

use futures::{FutureExt as _, StreamExt as _};
use mock_llm::{Gate, MockProvider, Reply};
use pretty_assertions::assert_eq;
use resources::memory_budget::MemoryUse;
use serde_json::{Value, json};
use testkit::with_deadline;

use super::app::{ENGINE_KEY, TestApp, events, expect_error};
use super::rpc_tests::expect_rpc_error;
use super::*;

#[tokio::test]
async fn health_needs_no_key_and_has_exactly_its_fields() {
    let app = TestApp::start().await;
    let response = with_deadline(app.request_without_key("GET", "/health").send()).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut health: Value = with_deadline(response.json()).await.unwrap();
    assert!(health["uptime_seconds"].as_f64().unwrap() >= 0.0);
    health["uptime_seconds"] = json!(0);
    let subsystems = json!({"database": "ok", "llm_provider": "ok", "asset_directory": "ok"});
    assert_eq!(health, json!({"status": "ok", "uptime_seconds": 0, "subsystems": subsystems}));
    app.stop().await;
}

#[tokio::test]
async fn an_engine_without_a_provider_is_degraded_and_says_what_to_set() {
    let app = TestApp::with_env(MockProvider::start().await.unwrap(), &[]).await;
    let response = with_deadline(app.request_without_key("GET", "/health").send()).await.unwrap();
    assert_eq!(response.status(), 200);
    let health: Value = with_deadline(response.json()).await.unwrap();
    assert_eq!(health["status"], "degraded");
    assert!(health["subsystems"]["llm_provider"].as_str().unwrap().contains("LLM_PROVIDER is not set"));
    assert_eq!(health["subsystems"]["database"], "ok");
    app.stop().await;
}

#[tokio::test]
async fn every_route_but_health_is_closed_without_the_right_key() {
    let app = TestApp::start().await;
    let mut routes = 0;
    for (path, item) in &document().paths.paths {
        let methods = serde_json::to_value(item).unwrap();
        for method in methods.as_object().unwrap().keys().filter(|_| path != "/health") {
            routes += 1;
            for key in [None, Some(""), Some("sk-svc-wrong"), Some("sk-svc-righ"), Some("SK-SVC-RIGHT")] {
                // A wrong body with a wrong key: the key is checked first.
                let mut request = app.request_without_key(&method.to_uppercase(), path).body("{");
                if let Some(key) = key {
                    request = request.header("X-Engine-Key", key);
                }
                let response = with_deadline(request.send()).await.unwrap();
                if method == "head" {
                    assert_eq!(response.status(), 401);
                } else if path.starts_with("/v1/") {
                    assert_eq!(response.status(), 401, "{path}");
                    let body: Value = response.json().await.unwrap();
                    assert_eq!(body["error"]["code"], "invalid_api_key", "{path}: {body}");
                } else if path == "/agui" {
                    assert_eq!(response.status(), 401, "{path}");
                    let body: Value = response.json().await.unwrap();
                    assert_eq!(
                        (&body["type"], &body["code"]),
                        (&json!("RUN_ERROR"), &json!("invalid_api_key"))
                    );
                } else if path == "/rpc" {
                    expect_rpc_error(response, 401, "INVALID_ENGINE_KEY").await;
                } else {
                    expect_error(response, 401, "INVALID_ENGINE_KEY").await;
                }
            }
        }
    }
    assert!(routes > 40, "{routes} routes");
    app.stop().await;
}

#[test]
fn the_document_generates_well() {
    testkit::openapi::assert_generates_well(&serde_json::to_value(document()).unwrap());
}

#[test]
fn the_document_has_examples_that_are_right() {
    testkit::openapi_examples::assert_has_examples(
        &serde_json::to_value(document()).unwrap(),
        &examples::EXAMPLES,
    );
}

#[test]
fn the_event_streams_are_a_union_of_all_events() {
    let document = serde_json::to_value(document()).unwrap();
    for (path, method) in [("/execute", "post"), ("/execute/replay", "get")] {
        let response = &document["paths"][path][method]["responses"]["200"];
        let schema = &response["content"]["text/event-stream"]["schema"]["$ref"];
        assert_eq!(schema, "#/components/schemas/TurnEvent", "{path}");
    }
    let discriminator = &document["components"]["schemas"]["TurnEvent"]["discriminator"];
    assert_eq!(discriminator["propertyName"], "event");
    for (kind, reference) in discriminator["mapping"].as_object().unwrap() {
        let message = document.pointer(&reference.as_str().unwrap()[1..]).unwrap();
        assert_eq!(message["properties"]["event"]["enum"], json!([kind]));
    }
}

#[test]
fn the_fronts_are_described_with_their_streams_and_errors() {
    let document = serde_json::to_value(document()).unwrap();
    for (path, method) in [
        ("/v1/chat/completions", "post"),
        ("/v1/responses", "post"),
        ("/v1/responses/{response_id}", "get"),
        ("/agui", "post"),
        ("/a2a", "post"),
        ("/mcp", "post"),
        ("/mcp", "get"),
    ] {
        let stream = &document["paths"][path][method]["responses"]["200"]["content"]["text/event-stream"];
        assert!(stream["schema"]["properties"].is_object(), "the stream of {method} {path}: {stream}");
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        let errors = match path.as_str() {
            "/agui" => "RunErrorEvent",
            path if path.starts_with("/v1/") => "VendorErrorBody",
            _ => continue,
        };
        for (method, operation) in item.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.contains_key("403"), "{method} {path} has tokens to refuse");
            for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "400") {
                let schema = &response["content"]["application/json"]["schema"]["$ref"];
                let expected = format!("#/components/schemas/{errors}");
                assert_eq!(schema, &expected, "{status} of {method} {path}");
            }
            let contents =
                [&operation["requestBody"], &responses["200"]].map(|body| body["content"].as_object());
            for (media_type, content) in contents.into_iter().flatten().flatten() {
                assert_ne!(content["schema"], json!({}), "{media_type} of {method} {path}");
            }
        }
    }
}

#[test]
fn every_operation_describes_the_refusals_that_it_shares_with_others() {
    let document = serde_json::to_value(document()).unwrap();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let describes = |status: &str| operation["responses"].get(status).is_some();
            let needs_key = path != "/health";
            assert_eq!(operation.get("security").is_some(), needs_key, "the security of {method} {path}");
            assert_eq!(describes("401"), needs_key, "401 of {method} {path}");
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let has_parameters = parameters.into_iter().next().is_some();
            let has_body = operation.get("requestBody").is_some();
            if needs_key && (has_parameters || has_body) {
                assert!(describes("400"), "400 of {method} {path}");
            }
            assert_eq!(describes("408"), has_body, "408 of {method} {path}");
        }
    }
}

#[tokio::test]
async fn a_wrong_field_is_refused_by_name() {
    let app = TestApp::start().await;
    let long = "x".repeat(1_025);
    for (field, value) in [
        ("message", None),
        ("message", Some(json!(null))),
        ("message", Some(json!(7))),
        ("message", Some(json!(["a"]))),
        ("message", Some(json!(""))),
        ("task_id", None),
        ("task_id", Some(json!(null))),
        ("task_id", Some(json!(7))),
        ("task_id", Some(json!(""))),
        ("task_id", Some(json!(long))),
        ("media", Some(json!({}))),
        ("media", Some(json!([{"type": "sound"}]))),
        ("direct", Some(json!("true"))),
        ("edit_message_id", Some(json!(7))),
        ("retry_message_id", Some(json!({}))),
        ("client_request_id", Some(json!(""))),
        ("max_turns", Some(json!(0))),
        ("max_turns", Some(json!(-1))),
        ("max_turns", Some(json!(1.5))),
        ("max_turns", Some(json!("3"))),
        ("super_thinking", Some(json!(1))),
    ] {
        let mut body = json!({"message": "hi", "task_id": "t"});
        match &value {
            Some(value) => body[field] = value.clone(),
            None => drop(body.as_object_mut().unwrap().remove(field)),
        }
        let message = expect_error(app.post_execute(body.to_string()).await, 400, "INVALID_REQUEST").await;
        assert!(message.contains(&format!("`{field}")), "{value:?}: {message}");
    }
    // None of these requests started anything.
    expect_error(app.replay("").await, 404, "TASK_NOT_FOUND").await;
    app.stop().await;
}

#[tokio::test]
async fn a_body_that_is_no_json_object_is_refused() {
    let app = TestApp::start().await;
    for body in ["", "{", "[]", "null", "\"a\"", "{\"message\": \"a\", \"task_id\": \"t\"} x", "\u{0}"] {
        expect_error(app.post_execute(body).await, 400, "INVALID_REQUEST").await;
    }
    let not_utf8 = b"{\"message\": \"\xff\", \"task_id\": \"t\"}".to_vec();
    expect_error(app.post_execute(not_utf8).await, 400, "INVALID_REQUEST").await;
    expect_error(app.post_execute(vec![b' '; MAX_BODY_BYTES + 1]).await, 413, "PAYLOAD_TOO_LARGE").await;
    app.stop().await;
}

#[tokio::test]
async fn optional_fields_may_be_null_and_unknown_ones_are_ignored() {
    let app = TestApp::start().await;
    let body = json!({
        "message": "hi", "task_id": "t", "media": null, "direct": null, "edit_message_id": null,
        "retry_message_id": null, "max_turns": null, "super_thinking": null, "colour": "red",
    });
    let first = events(app.post_execute(body.to_string()).await).await;
    assert_eq!(first.last().unwrap().data["text"], "hi");
    let body = json!({
        "message": "hi", "task_id": "t", "media": [], "direct": true, "max_turns": i64::MAX,
        "super_thinking": true,
    });
    assert_eq!(events(app.post_execute(body.to_string()).await).await.last().unwrap().data["text"], "hi");
    app.stop().await;
}

#[tokio::test]
async fn any_task_id_is_taken_that_is_text() {
    let app = TestApp::start().await;
    for task in ["a/b?c&d=é", "\n\u{0}\u{1F600}", " ", "..", &"x".repeat(1_024)] {
        let said = app.run_turn(task, "hi").await;
        assert_eq!(said[0].data["task_id"], task);
        let encoded: Vec<String> = task.bytes().map(|byte| format!("%{byte:02X}")).collect();
        assert_eq!(events(app.replay(&format!("?task_id={}", encoded.concat())).await).await, said);
    }
    app.stop().await;
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused_in_the_envelope() {
    let app = TestApp::start().await;
    for path in ["/", "/nowhere", "/execute/", "/health/x", "/Execute"] {
        let response = with_deadline(app.request("GET", path).send()).await.unwrap();
        expect_error(response, 404, "NOT_FOUND").await;
    }
    for (method, path, allow) in [
        ("GET", "/execute", "POST"),
        ("POST", "/health", "GET,HEAD"),
        ("DELETE", "/execute/replay", "GET,HEAD"),
    ] {
        let response = with_deadline(app.request(method, path).send()).await.unwrap();
        assert_eq!(response.headers()["allow"], allow, "{method} {path}");
        expect_error(response, 405, "METHOD_NOT_ALLOWED").await;
    }
    app.stop().await;
}

#[tokio::test]
async fn a_second_turn_on_a_busy_task_is_refused_and_a_stopping_engine_refuses_all() {
    let app = TestApp::start().await;
    let gate = Gate::new();
    app.provider.enqueue(Reply::from_text("slow").hold(0, &gate));
    let body = json!({"message": "hi", "task_id": "t"}).to_string();
    let running = app.post_execute(body.clone()).await;
    assert_eq!(running.status(), 200);
    gate.reached().await;
    expect_error(app.post_execute(body.clone()).await, 409, "TASK_BUSY").await;

    with_deadline(app.agent.stop(std::time::Duration::from_secs(5))).await;
    let response = app.post_execute(body).await;
    assert_eq!(response.headers()["retry-after"], "1");
    expect_error(response, 503, "SHUTTING_DOWN").await;
    // The open stream has ended properly and without an end of its turn.
    assert!(events(running).await.iter().all(|event| !event.event().ends_turn()));
    app.stop().await;
}

#[tokio::test]
async fn the_document_describes_the_routes() {
    let app = TestApp::start().await;
    let response = with_deadline(app.request("GET", "/openapi.json").send()).await.unwrap();
    assert_eq!(response.status(), 200);
    let served: Value = with_deadline(response.json()).await.unwrap();
    assert_eq!(served, serde_json::to_value(document()).unwrap());
    let key = served["components"]["securitySchemes"]["engine_key"].clone();
    assert_eq!(key, json!({"type": "apiKey", "in": "header", "name": "X-Engine-Key"}));
    assert!(!served.to_string().contains(ENGINE_KEY));
    insta::assert_json_snapshot!("openapi", served);
    app.stop().await;
}

#[tokio::test]
async fn a_large_request_that_comes_slowly_holds_up_no_other_one() {
    let app = TestApp::start().await;
    let large = |task: &str| {
        let whole = json!({"task_id": task, "message": "hi", "unknown": "x".repeat(2 << 20)}).to_string();
        let (begin, end) = whole.split_at(1 << 20);
        [begin.to_owned(), end.to_owned()]
    };
    let ok = |piece: String| Ok::<_, std::io::Error>(piece);
    let [begin, end] = large("slow");
    let (release, held) = tokio::sync::oneshot::channel::<()>();
    let pieces = futures::stream::iter([ok(begin)]).chain(futures::stream::once(async move {
        let _ = held.await;
        ok(end)
    }));
    let slow = app.request("POST", "/execute").body(reqwest::Body::wrap_stream(pieces));
    let slow = tokio::spawn(slow.send());
    let has_running_turn =
        || app.agent.memory_budget().reserve(MemoryUse::Requests, usize::MAX).now_or_never().is_none();
    with_deadline(async {
        while !has_running_turn() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let pieces = futures::stream::iter(large("quick").map(ok));
    let quick = events(app.post_execute(reqwest::Body::wrap_stream(pieces)).await).await;
    assert_eq!(quick.last().unwrap().data["text"], "hi");
    release.send(()).unwrap();
    let slow = events(with_deadline(slow).await.unwrap().unwrap()).await;
    assert_eq!(slow.last().unwrap().data["text"], "hi");
    with_deadline(async {
        while has_running_turn() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    app.stop().await;
}
