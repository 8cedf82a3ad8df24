//! The operator disables, enables and deletes a product, at the API and at the command line.

use mock_llm::{Gate, MockProvider, Reply};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::command_line::{cells, command, document};
use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::http::{client, send};
use crate::support::test_env::BINARY;
use crate::support::{Deployment, Fleet, HttpResponse, Orchestrator, Product, Terminal, eventually};

/// Response of `GET /products/{product_id}` and of the acts.
const DETAILS: &str = "product_id:product slug:text display_name:text policy:object created_at:time \
                       updated_at:time|null state:text state_since:time|null engines:int awake:int \
                       engines_to_delete:int|null failing:int failures:array";

const PLAN: &str = "product_id:product slug:text engines:int by_status:object platform_keys:int audit_rows:int \
                    confirmation:text expires_at:time";

impl Orchestrator {
    async fn product_call(&self, method: Method, path: &str) -> HttpResponse {
        self.operate(method, &format!("/products/{path}")).await
    }

    async fn product_details(&self, id: &str) -> Value {
        self.product_call(Method::GET, id).await.assert_ok(DETAILS)
    }

    async fn wait_for_product(&self, id: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        eventually(what, async || {
            let details = self.product_details(id).await;
            condition(&details).then_some(details)
        })
        .await
    }

    async fn product_id(&self) -> String {
        let products = self.operate(Method::GET, "/products").await.body;
        products["products"][0]["product_id"].as_str().unwrap().to_owned()
    }
}

/// Asserts that the product's calls are refused, reads included.
async fn assert_disabled(product: &Product) {
    for (method, path) in [
        (Method::POST, "/engines/ada/admit"),
        (Method::GET, "/engines/ada"),
        (Method::GET, "/engines"),
        (Method::GET, "/audit"),
        (Method::GET, "/engines/ada/proxy/tasks"),
        (Method::POST, "/engines/ada/tokens"),
    ] {
        product.call(method, path, None).await.assert_error(403, "PRODUCT_DISABLED");
    }
}

#[tokio::test]
async fn a_product_is_disabled_in_the_middle_of_a_turn_that_goes_on_when_it_is_enabled() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    let text = "The answer is longer than its product was in use.";
    provider.enqueue(Reply::from_text(text).chars_per_delta(5).hold(4, &gate));
    let deployment = Deployment::new().with_provider(&provider);
    let (orchestrator, product) = deployment.start_with_product().await;
    let id = orchestrator.product_id().await;
    let engine = product.engine("ada").await;
    let _stream = engine.execute_with(&direct_message("task", "Tell me.")).await;
    wait_gate_reached(&gate).await;
    provider.enqueue(Reply::from_text(text));

    let disabled = orchestrator.product_call(Method::POST, &format!("{id}/disable")).await.assert_ok(DETAILS);
    assert_eq!((&disabled["state"], &disabled["engines"]), (&json!("disabled"), &json!(1)), "{disabled}");
    assert_disabled(&product).await;
    orchestrator.wait_for_product(&id, "the engine sleeps", |product| product["awake"] == 0).await;
    assert_eq!(deployment.process_of(&engine), None);

    // A standby that takes over refuses it, too.
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
    assert_disabled(&product).await;
    assert_eq!(standby.product_details(&id).await["state_since"], disabled["state_since"]);

    let enabled = standby.product_call(Method::POST, &format!("{id}/enable")).await.assert_ok(DETAILS);
    assert_eq!(enabled["state"], "active", "{enabled}");
    let engine = product.engine("ada").await;
    let events = engine.replay("task", 0).await.collect().await;
    assert!(events.iter().any(|event| event.phase() == Some("completed")), "{events:?}");
    let sleeps = product.audit_rows("sleep").await;
    assert_eq!(sleeps.len(), 1, "{sleeps:?}");
    let (_, detail) = &sleeps[0];
    assert_eq!((&detail["reason"], &detail["actor"]), (&json!("product_disabled"), &json!("admin")));
}

#[tokio::test]
async fn a_product_is_deleted_with_all_data_also_if_the_orchestrator_is_killed_meanwhile() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let id = orchestrator.product_id().await;
    let other = orchestrator.register("bank", json!({})).await;
    let kept = other.engine("ada").await;
    let mut engines = Vec::new();
    for user in ["ada", "bob", "eve"] {
        engines.push(product.engine(user).await);
    }
    let path = |rest: &str| format!("{id}{rest}");
    let plan = orchestrator.product_call(Method::GET, &path("/deletion")).await;
    plan.assert_error(409, "PRODUCT_NOT_DISABLED");
    orchestrator.product_call(Method::POST, &path("/disable")).await.assert_ok(DETAILS);
    let plan = orchestrator.product_call(Method::GET, &path("/deletion")).await.assert_ok(PLAN);
    assert_eq!((&plan["engines"], &plan["platform_keys"]), (&json!(3), &json!(1)), "{plan}");
    let bare = orchestrator.product_call(Method::DELETE, &id).await;
    bare.assert_error(400, "INVALID_REQUEST");
    let guessed = orchestrator.product_call(Method::DELETE, &path("?confirmation=yes")).await;
    guessed.assert_error(409, "CONFIRMATION_INVALID");
    let confirmed = path(&format!("?confirmation={}", plan["confirmation"].as_str().unwrap()));
    let begun = orchestrator.product_call(Method::DELETE, &confirmed).await.assert_ok(DETAILS);
    assert_eq!((&begun["state"], &begun["engines_to_delete"]), (&json!("deleting"), &json!(3)), "{begun}");

    let orchestrator = deployment.kill_and_start(orchestrator).await;
    let deleted =
        orchestrator.wait_for_product(&id, "it is deleted", |product| product["state"] == "deleted").await;
    assert_eq!((&deleted["slug"], &deleted["engines"]), (&json!("shop"), &json!(0)), "{deleted}");
    for engine in &engines {
        assert_eq!(deployment.process_of(engine), None);
    }
    product.call(Method::GET, "/engines", None).await.assert_error(401, "INVALID_PLATFORM_KEY");
    orchestrator.product_call(Method::POST, &path("/enable")).await.assert_error(404, "PRODUCT_NOT_FOUND");
    // Its audit log is there, its slug is free, and nobody else has lost anything.
    let audit = orchestrator.operate(Method::GET, &format!("/fleet/audit?product_id={id}")).await.body;
    let rows = audit["rows"].as_array().unwrap();
    let destroyed = rows.iter().filter(|row| row["event"] == "destroy").count();
    assert_eq!((&rows[0]["event"], destroyed), (&json!("product_deleted"), 3), "{audit}");
    let again = orchestrator.register("shop", json!({})).await;
    assert_eq!(again.list("").await.1, 0);
    again.engine("ada").await;
    assert_eq!(other.engine("ada").await.id, kept.id);
}

#[tokio::test]
async fn the_operator_disables_and_deletes_at_the_command_line() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    up.product().engine("ada").await;
    let run = async |words: &[&str]| command(&fleet, &[&["product"], words].concat()).await;
    let shown = cells(&run(&["get", "demo"]).await.assert_success());
    assert!(shown.contains("active") && shown.contains("Engines | 1"), "{shown}");
    run(&["delete", "demo", "--yes"]).await.assert_failure(4, &["PRODUCT_NOT_DISABLED"]);
    run(&["disable", "demo"]).await.assert_failure(2, &["every call of `demo`", "--yes"]);
    let disabled = run(&["disable", "demo", "--yes"]).await.assert_success();
    assert!(disabled.contains("`demo` is disabled"), "{disabled}");
    up.product().call(Method::GET, "/engines", None).await.assert_error(403, "PRODUCT_DISABLED");
    let list = cells(&run(&["list"]).await.assert_success());
    assert!(list.contains(" | disabled | "), "{list}");
    let enabled = run(&["enable", "demo"]).await.assert_success();
    assert!(enabled.contains("`demo` is enabled"), "{enabled}");
    up.product().engine("ada").await;
    run(&["disable", "demo", "--yes"]).await.assert_success();

    let details = document(&run(&["get", "demo", "--json"]).await.assert_success());
    let id = details["product_id"].as_str().unwrap();
    run(&["delete", "demo"]).await.assert_failure(2, &["1 engines", "cannot be undone", "--yes"]);
    let folder = fleet.folder().to_str().unwrap();
    let line = [BINARY, "product", "delete", "demo", "--dir", folder];
    let mut terminal = Terminal::start(&fleet.test_env, &line, &[].into(), 80);
    terminal.wait_for("to go on:").await;
    terminal.enter("demo");
    assert!(terminal.wait_for_exit().await.success());
    eventually("the product is deleted", async || {
        let shown = document(&run(&["get", id, "--json"]).await.assert_success());
        (shown["state"] == "deleted").then_some(())
    })
    .await;
    run(&["get", "demo"]).await.assert_failure(3, &["`demo`"]);
    run(&["enable", "demo"]).await.assert_failure(3, &["`demo`"]);
}
