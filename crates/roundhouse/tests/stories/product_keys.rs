//! The operator rotates a product's platform keys with an overlap, at the API and at the command line.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::command_line::{cells, command, document};
use crate::support::http::{client, send};
use crate::support::test_env::BINARY;
use crate::support::{
    Deployment, Fleet, HttpResponse, Orchestrator, Product, Terminal, assert_fields, eventually,
};

const KEY: &str = "key_id:text registration:bool created_at:time expires_at:time|null";

impl Orchestrator {
    async fn keys_call(&self, method: Method, path: &str, body: Option<Value>) -> HttpResponse {
        let request = client().request(method, format!("{}/products/{path}", self.base));
        let request = request.header("x-admin-key", &self.admin_key);
        send(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    /// The keys of the first product.
    async fn keys(&self, product_id: &str) -> Vec<Value> {
        let list = self.keys_call(Method::GET, &format!("{product_id}/keys"), None).await;
        let list = list.assert_ok("keys:array");
        let keys = list["keys"].as_array().unwrap().clone();
        for key in &keys {
            assert_fields(key, KEY);
        }
        keys
    }
}

async fn works(base: &str, key: &str) -> bool {
    let answer = Product::new(base, key).call(Method::GET, "/status", None).await;
    if answer.status != 200 {
        answer.assert_error(401, "INVALID_PLATFORM_KEY");
    }
    answer.status == 200
}

#[tokio::test]
async fn a_key_is_rotated_while_its_product_goes_on_also_over_a_kill_and_on_a_standby() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    product.engine("ada").await;
    let products = orchestrator.operate(Method::GET, "/products").await.body;
    let id = products["products"][0]["product_id"].as_str().unwrap();
    let created = orchestrator.keys_call(Method::POST, &format!("{id}/keys"), Some(json!({}))).await;
    let created = created.assert_ok(&format!("platform_api_key:platform-key {KEY}"));
    let new = created["platform_api_key"].as_str().unwrap();
    let keys = orchestrator.keys(id).await;
    assert_eq!(
        (keys.len(), &keys[0]["registration"], &keys[1]["key_id"]),
        (2, &json!(true), &created["key_id"])
    );
    // Both are the product's: they see the same engines, and a stream that is open goes on.
    for key in [&product.key, new] {
        assert_eq!(Product::new(&orchestrator.base, key).list("").await.1, 1);
    }
    let old_id = keys[0]["key_id"].as_str().unwrap();
    let revoked = orchestrator.keys_call(Method::DELETE, &format!("{id}/keys/{old_id}"), None).await;
    revoked.assert_ok("key_id:text revoked_at:time");
    assert!(!works(&orchestrator.base, &product.key).await && works(&orchestrator.base, new).await);

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
    assert!(!works(&standby.base, &product.key).await && works(&standby.base, new).await);
    let events: Vec<_> =
        Product::new(&standby.base, new).call(Method::GET, "/audit", None).await.body["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (row["event"].clone(), row["detail"]["key_id"].clone()))
            .filter(|(event, _)| event.as_str().unwrap().ends_with("_key"))
            .collect();
    let expected = [(json!("revoke_key"), json!(old_id)), (json!("create_key"), created["key_id"].clone())];
    assert_eq!(events, expected);
}

#[tokio::test]
async fn the_operator_rotates_keys_at_the_command_line() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let run = async |words: &[&str]| command(&fleet, &[&["product", "key"], words].concat()).await;
    let first = cells(&run(&["list", "demo"]).await.assert_success());
    assert!(
        first.starts_with("KEY ID | MADE | EXPIRES | BY\nkey_") && first.ends_with("registration"),
        "{first}"
    );
    let shown = run(&["rotate", "demo"]).await.assert_success();
    assert!(shown.contains("shown only now") && shown.contains("until they are revoked"), "{shown}");
    let key = shown.split_whitespace().find(|word| word.starts_with("pk-svc-")).unwrap();
    assert!(works(&up.base, key).await && works(&up.base, &up.product().key).await);
    // What ends other keys asks first.
    run(&["rotate", "demo", "--old-keys-expire-in", "3600"])
        .await
        .assert_failure(2, &["3600 seconds", "--yes"]);
    let json = run(&["rotate", "demo", "--old-keys-expire-in", "3600", "--yes", "--json"]).await;
    let newest = document(&json.assert_success());
    let listed = document(&run(&["list", "demo", "--json"]).await.assert_success());
    let keys = listed["keys"].as_array().unwrap();
    let expiring = keys.iter().filter(|key| !key["expires_at"].is_null()).count();
    assert_eq!((keys.len(), expiring, &keys[2]["key_id"]), (3, 2, &newest["key_id"]), "{listed}");
    let table = cells(&run(&["list", "demo"]).await.assert_success());
    assert!(table.contains(" | in ") && table.contains(" | - | rotation"), "{table}");

    let id = keys[1]["key_id"].as_str().unwrap();
    run(&["revoke", "demo", id]).await.assert_failure(2, &["2 other keys", "--yes"]);
    let folder = fleet.folder().to_str().unwrap();
    let line = [BINARY, "product", "key", "revoke", "demo", id, "--dir", folder];
    let mut terminal = Terminal::start(&fleet.test_env, &line, &[].into(), 80);
    terminal.wait_for("Go on? [y/N]").await;
    terminal.enter("y");
    assert!(terminal.wait_for_exit().await.success());
    assert!(
        !works(&up.base, key).await && works(&up.base, newest["platform_api_key"].as_str().unwrap()).await
    );
    run(&["revoke", "demo", id, "--yes"]).await.assert_failure(3, &["KEY_NOT_FOUND"]);
    run(&["revoke", "demo", "key_x", "--yes"]).await.assert_failure(2, &["key_"]);
    run(&["rotate", "nobody"]).await.assert_failure(3, &["`nobody`"]);
    for _ in 0..3 {
        run(&["rotate", "demo"]).await.assert_success();
    }
    run(&["rotate", "demo"]).await.assert_failure(4, &["KEY_LIMIT", "revoke one first"]);
    run(&["rotate", "demo", "--old-keys-expire-in", "-1", "--yes"]).await.assert_failure(2, &[]);
}
