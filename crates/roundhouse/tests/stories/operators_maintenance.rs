//! The operator keeps the deployment under maintenance, at the API and at the command line.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::command_line::{cells, command};
use crate::support::http::{client, send};
use crate::support::schema::PROVISIONED;
use crate::support::{Deployment, Fleet, HttpResponse, Orchestrator, Product, assert_fields, eventually};

const STATUS: &str = "maintenance:object|null changes_under_way:int";

impl Orchestrator {
    async fn maintenance(&self, method: Method, body: Option<Value>) -> Value {
        let request = client().request(method, format!("{}/fleet/maintenance", self.base));
        let request = request.header("x-admin-key", &self.admin_key);
        let answer = send(match body {
            Some(body) => request.json(&body),
            None => request,
        });
        answer.await.assert_ok(STATUS)["maintenance"].clone()
    }
}

#[track_caller]
fn assert_refused(answer: &HttpResponse) {
    assert_eq!(answer.header("retry-after"), Some("30"), "{answer:?}");
    let message = answer.assert_error(503, "MAINTENANCE");
    assert!(message.contains("Back at noon."), "{message}");
}

async fn assert_maintained(product: &Product, engine_id: &str) {
    assert_eq!(product.engine("ada").await.id, engine_id);
    assert_refused(&product.admit("bob").await);
    assert_refused(&product.provision("new").await);
    assert_refused(&product.admit("new").await);
    assert_refused(&product.start("stopped").await);
    assert_refused(&product.rotate_key("ada").await);
    assert_refused(&product.call(Method::DELETE, "/engines/ada", None).await);
    assert_eq!(product.denial_reason("bob").await, "engine_sleeping");
    assert_eq!(product.list("").await.1, 3);
}

#[tokio::test]
async fn a_maintenance_lasts_over_a_kill_and_at_a_standby_until_it_is_ended() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    for user in ["bob", "stopped"] {
        product.provision(user).await.assert_ok(PROVISIONED);
    }
    product.stop("stopped").await.assert_ok("status:text");
    // A drain is the shortest way to a sleeping engine.
    orchestrator.operate(Method::POST, "/fleet/drain").await;
    product.wait_for_status("bob", "sleeping").await;
    orchestrator.operate(Method::DELETE, "/fleet/drain").await;
    let engine = product.engine("ada").await;
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        product.call(method, "/fleet/maintenance", None).await.assert_error(401, "INVALID_ADMIN_KEY");
    }
    assert_eq!(orchestrator.maintenance(Method::GET, None).await, Value::Null);
    let begun = orchestrator.maintenance(Method::PUT, Some(json!({"message": "Back at noon."}))).await;
    assert_fields(&begun, "since:time message:text");
    assert_maintained(&product, &engine.id).await;
    assert_eq!(orchestrator.operate(Method::GET, "/fleet/status").await.body["maintenance"], begun);

    let orchestrator = deployment.kill_and_start(orchestrator).await;
    assert_maintained(&product, &engine.id).await;
    // A crash is none of the changes that are refused.
    deployment.kill_engine(&engine);
    eventually("the engine is back", async || {
        let process = deployment.process_of(&engine);
        (process.is_some() && product.status("ada").await == "running").then_some(())
    })
    .await;

    let mut standby = deployment.launch_second();
    eventually("the standby answers", async || {
        client().get(format!("{}/health", standby.base)).send().await.ok().map(drop)
    })
    .await;
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    eventually("the standby has taken over", async || {
        assert!(standby.program.is_running(), "{}", standby.program.output());
        let health = send(client().get(format!("{}/health", standby.base))).await;
        (health.status == 200).then_some(())
    })
    .await;
    let product = Product::new(&standby.base, &product.key);
    assert_maintained(&product, &engine.id).await;
    assert_eq!(standby.maintenance(Method::GET, None).await, begun);
    assert_eq!(standby.maintenance(Method::DELETE, None).await, Value::Null);
    product.engine("bob").await;
    product.provision("new").await.assert_ok(PROVISIONED);
}

#[tokio::test]
async fn the_operator_begins_and_ends_a_maintenance_at_the_command_line() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let run = async |words: &[&str]| command(&fleet, &[&["fleet", "maintenance"], words].concat()).await;
    let none = cells(&run(&["status"]).await.assert_success());
    assert!(none.contains("Maintenance | none"), "{none}");
    run(&["start", "Back at noon."]).await.assert_failure(2, &["of any product", "--yes"]);
    let begun = cells(&run(&["start", "Back at noon.", "--yes"]).await.assert_success());
    assert!(begun.contains("Message | Back at noon."), "{begun}");
    assert_refused(&up.product().provision("new").await);
    let status = cells(&command(&fleet, &["fleet", "status"]).await.assert_success());
    assert!(status.contains("Back at noon."), "{status}");
    run(&["start", "", "--yes"]).await.assert_failure(2, &["INVALID_REQUEST"]);
    let ended = run(&["end"]).await.assert_success();
    assert!(ended.contains("no maintenance"), "{ended}");
    up.product().provision("new").await.assert_ok(PROVISIONED);
}
