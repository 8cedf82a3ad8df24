//! An operator makes services talkative for a while without restarting them, and finds the lines of a request in both.

use std::fs;

use mock_llm::{Fault, MockProvider, Refusal, Reply};
use reqwest::{Method, RequestBuilder};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::command_line::command;
use crate::support::engine_calls::direct_message;
use crate::support::http::{client, send};
use crate::support::tool_programs::done_reply;
use crate::support::turn::assert_completed;
use crate::support::{Deployment, Engine, EventStream, Fleet, Orchestrator, Product, eventually};

const FILTER: &str = "active:text configured:text expires_at:time|null";
const OF_ADA: &str = "/engines/ada/log-filter";
const ANSWERED: &str = "Answered a request.";

fn of_fleet(orchestrator: &Orchestrator, method: Method) -> RequestBuilder {
    let request = client().request(method, format!("{}/fleet/log-filter", orchestrator.base));
    request.header("x-admin-key", &orchestrator.admin_key)
}

fn engine_log(deployment: &Deployment, engine: &Engine) -> String {
    fs::read_to_string(deployment.fleet.engine_folder(&engine.id).join("engine.log")).unwrap()
}

#[tokio::test]
async fn the_orchestrator_is_talkative_for_a_while() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, product) = deployment.start_with_product().await;
    product.list("").await;
    assert!(!orchestrator.program.output().contains(ANSWERED));
    let body = json!({"filter": "info,http_service=debug", "for_s": 1});
    let changed = send(of_fleet(&orchestrator, Method::PUT).json(&body)).await.assert_ok(FILTER);
    assert!(changed["active"].as_str().unwrap().contains("http_service=debug"), "{changed}");
    assert_eq!(changed["configured"], "info");
    eventually("it is talkative", async || {
        product.list("").await;
        orchestrator.program.output().contains(ANSWERED).then_some(())
    })
    .await;
    eventually("the time of the filter is over", async || {
        let now = send(of_fleet(&orchestrator, Method::GET)).await.assert_ok(FILTER);
        (now["active"] == "info" && now["expires_at"].is_null()).then_some(())
    })
    .await;
    assert!(orchestrator.program.output().contains("The configured log filter holds again."));

    // One that holds longer is ended by hand.
    send(of_fleet(&orchestrator, Method::PUT).json(&json!({"filter": "trace"}))).await.assert_ok(FILTER);
    let ended = send(of_fleet(&orchestrator, Method::DELETE)).await.assert_ok(FILTER);
    assert_eq!((&ended["active"], &ended["expires_at"]), (&json!("info"), &Value::Null));
    let lines = |output: String| output.matches(ANSWERED).count();
    let before = lines(orchestrator.program.output());
    product.list("").await;
    assert_eq!(lines(orchestrator.program.output()), before);

    for wrong in [
        json!({}),
        json!({"filter": "loud"}),
        json!({"filter": ""}),
        json!({"filter": "info", "for_s": 0}),
        json!({"filter": "info", "for_s": 86_401}),
        json!({"filter": "x=info,".repeat(200) + "info"}),
    ] {
        let refused = send(of_fleet(&orchestrator, Method::PUT).json(&wrong)).await;
        refused.assert_error(400, "INVALID_REQUEST");
    }
    product.call(Method::GET, "/fleet/log-filter", None).await.assert_error(401, "INVALID_ADMIN_KEY");
}

#[tokio::test]
async fn an_engine_is_talkative_for_a_while_and_that_is_audited() {
    let deployment = Deployment::process_and_sqlite();
    let (_orchestrator, product) = deployment.start_with_product().await;
    product.call(Method::GET, OF_ADA, None).await.assert_error(404, "ENGINE_NOT_FOUND");
    let engine = product.engine("ada").await;
    let body = json!({"filter": "debug", "for_s": 600});
    let changed = product.call(Method::PUT, OF_ADA, Some(body)).await.assert_ok(FILTER);
    assert!(changed["active"].as_str().unwrap().contains("debug"), "{changed}");
    assert!(changed["configured"].as_str().unwrap().contains("info"), "{changed}");
    engine.get("/tasks").await;
    eventually("it is talkative", async || engine_log(&deployment, &engine).contains(ANSWERED).then_some(()))
        .await;
    assert_eq!(product.call(Method::GET, OF_ADA, None).await.assert_ok(FILTER), changed);
    let ended = product.call(Method::DELETE, OF_ADA, None).await.assert_ok(FILTER);
    assert_eq!((&ended["active"], &ended["expires_at"]), (&ended["configured"], &Value::Null));
    product
        .call(Method::PUT, OF_ADA, Some(json!({"filter": "loud"})))
        .await
        .assert_error(400, "INVALID_REQUEST");
    let details: Vec<_> =
        product.audit_rows("log_filter").await.into_iter().map(|(_, detail)| detail).collect();
    assert_eq!(details, [json!({"filter": "debug", "for_s": 600}), json!({"filter": null})]);
    product.stop("ada").await.assert_ok("status:text");
    product.call(Method::GET, OF_ADA, None).await.assert_error(409, "ENGINE_NOT_RUNNING");
}

#[tokio::test]
async fn at_its_most_talkative_for_a_while_no_service_tells_a_key() {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue(done_reply());
    let deployment = Deployment::process_and_sqlite().with_provider(&provider);
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let trace = json!({"filter": "trace"});
    send(of_fleet(&orchestrator, Method::PUT).json(&trace)).await.assert_ok(FILTER);
    product.call(Method::PUT, OF_ADA, Some(trace)).await.assert_ok(FILTER);
    let request = product.request(Method::POST, &Product::proxy_path("ada", "/execute"));
    let stream = EventStream::open(request.json(&direct_message("task", "Say it."))).await;
    assert_completed(&stream.collect().await);
    product.rotate_key("ada").await.assert_ok("new_api_key:engine-key");
    engine.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
    let rotated = product.engine("ada").await;
    Product::new(&product.base, &rotated.key).call(Method::GET, "/engines", None).await;
    let log = engine_log(&deployment, &engine);
    let output = orchestrator.signal_and_wait(Signal::TERM).await.output;
    for (service, text) in [("the orchestrator", output), ("an engine", log)] {
        assert!(text.contains("TRACE"), "{service} logs verbosely: {text}");
        let (admin, master) = (&deployment.admin_key, &deployment.master_key);
        for key in [&product.key, &engine.key, &rotated.key, admin, master, "provider-key"] {
            assert!(!text.contains(key), "{service} logs a key");
        }
    }
}

/// The lines of a log as JSON.
fn json_lines(log: &str) -> Vec<Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
}

/// A field of a line's spans.
fn span_field<'a>(line: &'a Value, name: &str) -> &'a str {
    let mut spans = line["spans"].as_array().into_iter().flatten();
    spans.find_map(|span| span[name].as_str()).unwrap_or_default()
}

#[tokio::test]
async fn the_lines_of_both_services_about_a_request_have_the_same_ids() {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue_all([Reply::from_fault(Fault::refuse(Refusal::Overloaded)), done_reply()]);
    let deployment = Deployment::process_and_sqlite()
        .with_provider(&provider)
        .with_env("ORCH_LOG_FORMAT", "json")
        .with_env("ORCH_LOG_LEVEL", "debug")
        .with_env("ENGINE_LOG_FORMAT", "json")
        .with_env("ENGINE_LOG_LEVEL", "debug")
        .with_env(
            "ORCH_ENGINE_ENV_PASSTHROUGH",
            "LLM_PROVIDER,LLM_BASE_URL,LLM_API_KEY,ENGINE_LOG_FORMAT,ENGINE_LOG_LEVEL",
        );
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    // Neither id comes from the caller.
    let request = product.request(Method::POST, &Product::proxy_path("ada", "/execute"));
    let response = request.json(&direct_message("task", "Say it.")).send().await.unwrap();
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    let (request_id, trace_id) = (header("x-request-id"), header("traceparent")[3..35].to_owned());
    response.bytes().await.unwrap();

    let log = eventually("the engine has logged the request", async || {
        let log = engine_log(&deployment, &engine);
        log.contains("A model call failed.").then_some(log)
    })
    .await;
    let output = orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
    for (service, lines) in [("orchestrator", json_lines(&output)), ("engine", json_lines(&log))] {
        let is_of_request = |line: &&Value| span_field(line, "request_id") == request_id;
        let answered = lines.iter().filter(is_of_request).find(|line| line["message"] == ANSWERED);
        let answered =
            answered.unwrap_or_else(|| panic!("{service} says nothing of {request_id}: {lines:#?}"));
        assert_eq!(span_field(answered, "trace_id"), trace_id, "{service}");
        assert_eq!(span_field(answered, "engine_id"), engine.id, "{service}");
        if service == "orchestrator" {
            assert!(span_field(answered, "product_id").starts_with("prod_"), "{answered}");
        } else {
            let failed =
                lines.iter().filter(is_of_request).find(|line| line["message"] == "A model call failed.");
            let failed = failed.unwrap_or_else(|| panic!("the turn is not of the request: {lines:#?}"));
            assert!(span_field(failed, "turn_id").starts_with("turn_"), "{failed}");
        }
    }
}

#[tokio::test]
async fn filters_are_changed_at_the_command_line() {
    let fleet = Fleet::new().with_script(crate::support::QUICK_SCRIPT);
    let up = fleet.start_up().await;
    up.product().engine("ada").await;
    for words in [&["fleet", "log-filter"][..], &["engine", "log-filter"]] {
        let run = async |more: &[&str]| {
            let (operation, arguments) = more.split_first().unwrap();
            let user = if words[0] == "engine" { &["ada"][..] } else { &[] };
            let line = [words, &[operation], user, arguments].concat();
            command(&fleet, &line).await
        };
        let shown = run(&["set", "debug", "--for", "60"]).await.assert_success();
        assert!(shown.contains("debug") && shown.contains("Until"), "{shown}");
        let document = run(&["get", "--json"]).await.assert_success();
        let document: Value = serde_json::from_str(&document).unwrap();
        assert!(document["active"].as_str().unwrap().contains("debug"), "{document}");
        let shown = run(&["reset"]).await.assert_success();
        assert!(!shown.contains("debug"), "{shown}");
        run(&["set", "loud"]).await.assert_failure(2, &["filter"]);
    }
}
