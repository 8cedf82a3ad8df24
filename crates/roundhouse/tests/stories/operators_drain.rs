//! The operator acts on many engines: starts all that failed, drains the deployment and lifts the drain.

use mock_llm::{Gate, MockProvider, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::http::{client, send};
use crate::support::schema::PROVISIONED;
use crate::support::{Deployment, HttpResponse, Orchestrator, Product, eventually};

impl Orchestrator {
    async fn start_failed(&self, body: Value) -> HttpResponse {
        let request = client().post(format!("{}/fleet/start-failed", self.base));
        send(request.header("x-admin-key", &self.admin_key).json(&body)).await
    }

    async fn drain(&self) -> Value {
        self.operate(Method::POST, "/fleet/drain").await.assert_ok("drained_since:time left:int")
    }

    async fn drain_progress(&self) -> Value {
        let progress = self.operate(Method::GET, "/fleet/drain").await;
        progress.assert_ok("drained_since:time|null left:int asleep:int failing:int failures:array")
    }

    async fn lift_drain(&self) -> Value {
        self.operate(Method::DELETE, "/fleet/drain").await.assert_ok("drained_since:null left:int")
    }
}

/// Asserts that the answer refuses a start because of a drain.
#[track_caller]
fn assert_drained(answer: &HttpResponse) {
    assert_eq!(answer.header("retry-after"), Some("30"), "{answer:?}");
    let message = answer.assert_error(503, "CAPACITY_EXHAUSTED");
    assert!(message.contains("drained"), "{message}");
}

/// An admit that neither provisions nor wakes anything.
async fn denied(product: &Product, user: &str) -> String {
    product.denial_reason(user).await
}

#[tokio::test]
async fn all_failed_engines_are_started_page_by_page_with_what_became_of_each() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_MAX_ATTEMPTS", "0");
    let (orchestrator, shop) = deployment.start_with_product().await;
    let bank = orchestrator.register("bank", json!({})).await;
    let mut failed = Vec::new();
    for (product, user) in [(&shop, "ada"), (&bank, "ada"), (&shop, "bob"), (&bank, "eve")] {
        failed.push((product, user, product.engine(user).await));
    }
    shop.engine("well").await;
    for (product, user, engine) in &failed {
        deployment.kill_engine(engine);
        product.wait_for_status(user, "failed").await;
    }
    let fields = "engines:array next:engine|null";
    let shop_id =
        orchestrator.operate(Method::GET, "/fleet/audit?event=register").await.body["rows"][1]["product_id"]
            .clone();
    let first = orchestrator.start_failed(json!({"product_id": shop_id, "limit": 1})).await.assert_ok(fields);
    assert_eq!(
        (first["engines"].as_array().unwrap().len(), &first["engines"][0]["error"]),
        (1, &Value::Null),
        "{first}"
    );
    assert_eq!(shop.status("ada").await, "running");
    assert_eq!([shop.status("bob").await, bank.status("ada").await], ["failed", "failed"]);
    // The rest, of all products.
    let rest = orchestrator.start_failed(json!({})).await.assert_ok(fields);
    let users: Vec<_> =
        rest["engines"].as_array().unwrap().iter().map(|engine| engine["user_id"].clone()).collect();
    assert_eq!(users, [json!("ada"), json!("bob"), json!("eve")], "{rest}");
    for (product, user, _) in &failed {
        assert_eq!(product.status(user).await, "running");
    }
    let row = shop.audit_rows("start").await;
    assert!(row.iter().all(|(_, detail)| detail["actor"] == "admin"), "{row:?}");
    let none = orchestrator.start_failed(json!({})).await.assert_ok(fields);
    assert_eq!(none, json!({"engines": [], "next": null}));
    for bad in [json!({"limit": 0}), json!({"limit": 101}), json!({"product": shop_id})] {
        orchestrator.start_failed(bad).await.assert_error(400, "INVALID_REQUEST");
    }
    shop.call(Method::POST, "/fleet/start-failed", Some(json!({})))
        .await
        .assert_error(401, "INVALID_ADMIN_KEY");
}

#[tokio::test]
async fn a_drained_deployment_runs_nothing_also_after_a_kill_until_the_drain_is_lifted() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let engines = [product.engine("ada").await, product.engine("bob").await];
    product.provision("stopped").await.assert_ok(PROVISIONED);
    product.stop("stopped").await.assert_ok("status:text");
    for (method, path) in
        [(Method::POST, "/fleet/drain"), (Method::GET, "/fleet/drain"), (Method::GET, "/fleet/status")]
    {
        product.call(method, path, None).await.assert_error(401, "INVALID_ADMIN_KEY");
    }
    let progress = |since: &Value, left, asleep| json!({"drained_since": since, "left": left, "asleep": asleep, "failing": 0, "failures": []});
    assert_eq!(orchestrator.drain_progress().await, progress(&Value::Null, 2, 0));
    let begun = orchestrator.drain().await;
    let nothing_runs = async |orchestrator: &Orchestrator| {
        eventually("nothing runs", async || {
            let status = orchestrator.operate(Method::GET, "/fleet/status").await.body;
            let counts = &status["by_status"];
            assert_eq!(status["drained_since"], begun["drained_since"], "{status}");
            (*counts == json!({"sleeping": 2, "stopped": 1}) && status["changes_under_way"] == 0)
                .then_some(())
        })
        .await;
    };
    nothing_runs(&orchestrator).await;
    assert_eq!(orchestrator.drain_progress().await, progress(&begun["drained_since"], 0, 2));
    for engine in &engines {
        assert_eq!(deployment.process_of(engine), None);
    }
    // A repeated call changes nothing.
    assert_eq!(orchestrator.drain().await, json!({"drained_since": begun["drained_since"], "left": 0}));
    let refused = async |product: &Product| {
        assert_drained(&product.admit("ada").await);
        assert_drained(&product.admit("new").await);
        assert_drained(&product.provision("new").await);
        assert_drained(&product.start("stopped").await);
        // What needs no start is answered as ever.
        assert_eq!(denied(product, "ada").await, "engine_sleeping");
        assert_eq!(denied(product, "new").await, "engine_not_found");
        assert_eq!(product.list("").await.1, 3);
    };
    refused(&product).await;
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    nothing_runs(&orchestrator).await;
    refused(&product).await;
    assert_eq!(orchestrator.drain_progress().await, progress(&begun["drained_since"], 0, 2));

    orchestrator.lift_drain().await;
    assert_eq!(orchestrator.drain_progress().await, progress(&Value::Null, 0, 2));
    let ada = product.engine("ada").await;
    assert_eq!(ada.id, engines[0].id);
    product.provision("new").await.assert_ok(PROVISIONED);
    product.start("stopped").await.assert_ok("status:text url:url");
    assert_eq!(product.status("bob").await, "sleeping", "nobody wanted it yet");
    orchestrator.lift_drain().await;
    let sleeps = product.audit_rows("sleep").await;
    assert_eq!(sleeps.len(), 2);
    for (_, detail) in sleeps {
        assert_eq!((&detail["reason"], &detail["actor"]), (&json!("drain"), &json!("admin")));
    }
}

#[tokio::test]
async fn a_turn_that_a_drain_interrupts_goes_on_when_its_user_comes_back() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    let text = "The answer is longer than the maintenance of the host.";
    provider.enqueue(Reply::from_text(text).chars_per_delta(5).hold(4, &gate));
    let deployment = Deployment::new().with_provider(&provider);
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let _stream = engine.execute_with(&direct_message("task", "Tell me.")).await;
    wait_gate_reached(&gate).await;
    provider.enqueue(Reply::from_text(text));
    orchestrator.drain().await;
    product.wait_for_status("ada", "sleeping").await;
    assert_drained(&product.admit("ada").await);
    orchestrator.lift_drain().await;
    let engine = product.engine("ada").await;
    let events = engine.replay("task", 0).await.collect().await;
    assert!(events.iter().any(|event| event.phase() == Some("completed")), "{events:?}");
}
