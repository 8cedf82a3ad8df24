//! Story 4: a second orchestrator on the same registry waits as a standby, answers `STARTING_UP`, and takes over.

use mock_llm::{Gate, MockProvider, Reply};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::http::{client, send, send_raw};
use crate::support::schema::{ENGINE_RECORD, PROVISIONED};
use crate::support::turn::assert_completed;
use crate::support::{Deployment, HttpResponse, Orchestrator, Product, assert_fields, eventually};

/// Endpoints of the orchestrator that a standby refuses.
const ENDPOINTS: [(Method, &str); 12] = [
    (Method::POST, "/products/register"),
    (Method::PUT, "/products/prod_01234567890123456789012345678901/policy"),
    (Method::POST, "/engines/provision"),
    (Method::GET, "/engines"),
    (Method::GET, "/engines/ada"),
    (Method::DELETE, "/engines/ada"),
    (Method::POST, "/engines/ada/admit"),
    (Method::POST, "/engines/ada/start"),
    (Method::POST, "/engines/ada/stop"),
    (Method::POST, "/engines/ada/rotate-key"),
    (Method::GET, "/engines/ada/explain"),
    (Method::GET, "/engines/ada/proxy/tasks"),
];

/// Waits until a standby accepts connections; returns its health response.
async fn health(standby: &mut Orchestrator) -> HttpResponse {
    eventually("the standby answers", async || {
        assert!(standby.program.is_running(), "the standby ended: {}", standby.program.output());
        let request = client().get(format!("{}/health", standby.base));
        request.try_clone().unwrap().send().await.ok()?;
        Some(send(request).await)
    })
    .await
}

/// Waits until it knows that another orchestrator is active; returns its health response.
async fn standby_health(standby: &mut Orchestrator) -> HttpResponse {
    eventually("it is a standby", async || {
        Some(health(standby).await).filter(|answer| answer.body["status"] == "standby")
    })
    .await
}

/// Asserts that a response is a `STARTING_UP` error with `Retry-After: 1`.
#[track_caller]
fn assert_starting_up(answer: &HttpResponse) {
    assert_eq!(answer.header("retry-after"), Some("1"), "{answer:?}");
    answer.assert_error(503, "STARTING_UP");
}

#[tokio::test]
async fn a_second_orchestrator_waits_and_says_for_whom() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let process = deployment.process_of(&engine);
    let mut standby = deployment.launch_second();

    // Its health response has both a status and an error envelope.
    let answer = standby_health(&mut standby).await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
    assert_eq!(answer.header("x-roundhouse-role"), Some("standby"), "{answer:?}");
    assert_fields(&answer.body, "status:text error:object");
    assert_fields(&answer.body["error"], "code:text message:text");
    assert_eq!(answer.body["error"]["code"], "STARTING_UP");
    assert!(answer.header("x-request-id").is_some());

    let holder = orchestrator.program.pid().as_raw_nonzero().to_string();
    let output = standby.program.wait_for_output(&holder).await.expect("it names the holder");
    assert!(!output.contains(&deployment.master_key) && !output.contains(&deployment.admin_key), "{output}");

    // The first orchestrator is not affected.
    assert_eq!(product.list("").await.1, 1);
    assert_eq!(deployment.process_of(&engine), process);
    product.provision("bob").await.assert_ok(PROVISIONED);

    // A standby ends cleanly on SIGTERM.
    standby.signal_and_wait(Signal::TERM).await.assert_success();
    assert_eq!(product.status("ada").await, "running");
    product.engine("bob").await.health().await;
}

#[tokio::test]
async fn whoever_asks_a_standby_is_to_come_back() {
    let deployment = Deployment::new();
    let (_orchestrator, product) = deployment.start_with_product().await;
    let mut standby = deployment.launch_second();
    health(&mut standby).await;
    // Also with a wrong key: a standby cannot check keys yet.
    for (method, path) in ENDPOINTS {
        for (key, admin_key) in [(product.key.as_str(), deployment.admin_key.as_str()), ("wrong", "wrong")] {
            let request = client().request(method.clone(), format!("{}{path}", standby.base));
            let request = request.header("x-platform-key", key).header("x-admin-key", admin_key);
            assert_starting_up(&send(request.json(&json!({"user_id": "eve"}))).await);
        }
        assert_starting_up(&send_raw(&standby.base, &format!("{method} {path}"), &[], b"{").await);
    }
    assert_eq!(product.list("").await.1, 0);
}

#[tokio::test]
async fn a_standby_takes_over_from_a_killed_one_and_no_engine_notices() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    let text = "The answer is longer than the orchestrator's life.";
    provider.enqueue(Reply::from_text(text).chars_per_delta(5).hold(4, &gate));
    let deployment = Deployment::new().with_provider(&provider);
    let (orchestrator, product) = deployment.start_with_product().await;
    product.engine("stopped").await;
    product.stop("stopped").await.assert_ok("status:text");
    let engine = product.engine("ada").await;
    let process = deployment.process_of(&engine);
    let mut standby = deployment.launch_second();
    assert_eq!(health(&mut standby).await.status, 503);
    let stream = engine.execute_with(&direct_message("task", "Tell me.")).await;
    wait_gate_reached(&gate).await;

    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    standby.wait_ready().await;
    let product = Product::new(&standby.base, &product.key);
    let record: Value = product.get("ada").await.assert_ok(ENGINE_RECORD);
    assert_eq!((&record["status"], &record["api_key"]), (&json!("running"), &json!(engine.key)));
    assert_eq!(deployment.process_of(&engine), process, "it was adopted, not restarted");
    assert_eq!(product.engine("ada").await.url, engine.url);
    assert_eq!(product.status("stopped").await, "stopped");
    gate.release();
    assert_eq!(assert_completed(&stream.collect().await), text);
    for event in ["start", "wake", "sleep", "crash", "restart"] {
        assert!(product.audit_rows(event).await.is_empty(), "{event}: nothing happened to the engine");
    }

    // It operates the engines that it took over, and a third orchestrator waits for it.
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    product.provision("bob").await.assert_ok(PROVISIONED);
    let mut third = deployment.launch();
    assert_eq!(standby_health(&mut third).await.status, 503);
    standby.signal_and_wait(Signal::TERM).await.assert_success();
    third.wait_ready().await;
    let product = Product::new(&third.base, &product.key);
    assert_eq!(product.list("?status=running").await.1, 2);
}

#[tokio::test]
async fn of_two_that_begin_at_once_one_serves() {
    let deployment = Deployment::new();
    let mut both = [deployment.launch(), deployment.launch_second()];
    let serving = eventually("one of them serves", async || {
        for (number, orchestrator) in both.iter_mut().enumerate() {
            if health(orchestrator).await.status == 200 {
                return Some(number);
            }
        }
        None
    })
    .await;
    let product = both[serving].register("shop", json!({})).await;
    let engine = product.engine("ada").await;
    let answer = health(&mut both[1 - serving]).await;
    assert!(
        answer.status == 503 && ["starting", "standby"].map(Value::from).contains(&answer.body["status"])
    );
    let [first, second] = both;
    let (server, mut standby) = if serving == 0 { (first, second) } else { (second, first) };
    server.signal_and_wait(Signal::KILL).await;
    standby.wait_ready().await;
    let product = Product::new(&standby.base, &product.key);
    assert_eq!(product.engine("ada").await.key, engine.key);
}
