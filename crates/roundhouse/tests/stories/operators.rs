//! Whoever runs a deployment sees and acts on the engines of all its products with the admin key.

use api::ProductId;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::http::{client, send};
use crate::support::schema::{AUDIT_ROW, ENGINE_RECORD, ENGINE_SUMMARY, PROVISIONED};
use crate::support::{Deployment, HttpResponse, Orchestrator, Product, assert_fields, eventually};

/// The additions to a product's listing in the listing of all engines.
const FLEET_ENGINE: &str = "product_id:product pinned:bool port:int|null since:time|null failed_checks:int \
                            restarts:int restart_at:time|null";

impl Orchestrator {
    /// Calls `path` with the admin key.
    pub(crate) async fn operate(&self, method: Method, path: &str) -> HttpResponse {
        send(client().request(method, format!("{}{path}", self.base)).header("x-admin-key", &self.admin_key))
            .await
    }

    /// Calls `path` with the admin key, for a product.
    async fn act_for(
        &self,
        product_id: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> HttpResponse {
        let request = client().request(method, format!("{}{path}", self.base));
        let request = request.header("x-admin-key", &self.admin_key).header("x-product-id", product_id);
        send(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    /// All engines of a listing of all products, read in pages of `limit`.
    async fn fleet_engines(&self, query: &str, limit: usize) -> Vec<Value> {
        let (mut engines, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/fleet/engines?limit={limit}{query}{after}");
            let page = self.operate(Method::GET, &path).await.assert_ok("engines:array next:engine|null");
            let rows = page["engines"].as_array().unwrap();
            assert!(rows.len() <= limit, "{page}");
            for row in rows {
                assert_fields(row, &format!("{ENGINE_SUMMARY} {FLEET_ENGINE}"));
            }
            engines.extend(rows.iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return engines,
            }
        }
    }
}

impl Product {
    /// The product's id.
    async fn id(&self) -> String {
        let page = self.call(Method::GET, "/audit?limit=1", None).await.assert_ok("rows:array");
        page["rows"][0]["product_id"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn an_operator_acts_for_a_product_and_the_audit_log_says_so() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let id = product.id().await;
    let act = async |method, path: &str, body| orchestrator.act_for(&id, method, path, body).await;
    let user = json!({"user_id": "ada"});
    act(Method::POST, "/engines/provision", Some(user)).await.assert_ok(PROVISIONED);
    let record = act(Method::GET, "/engines/ada", None).await.assert_ok(ENGINE_RECORD);
    assert_eq!(record, product.get("ada").await.assert_ok(ENGINE_RECORD), "answers are those of the product");
    act(Method::POST, "/engines/ada/rotate-key", None).await.assert_ok("new_api_key:engine-key");
    let admitted = act(Method::POST, "/engines/ada/admit", Some(json!({}))).await;
    assert_eq!(admitted.assert_ok("admitted:bool engine:object")["admitted"], true);
    act(Method::POST, "/engines/ada/stop", None).await.assert_ok("status:text");
    act(Method::POST, "/engines/ada/start", None).await.assert_ok("status:text url:url");
    let origins = json!({"origins": ["https://app.example"]});
    act(Method::PUT, "/origins", Some(origins)).await.assert_ok("origins:array");
    for (path, fields) in [
        ("/engines", "engines:array total:int"),
        ("/engines/ada/logs", "lines:array"),
        ("/status", "total:int by_status:object health:text unhealthy_count:int"),
        ("/inbox", "questions:array"),
        ("/engines/ada/tokens", "tokens:array"),
    ] {
        act(Method::GET, path, None).await.assert_ok(fields);
    }
    assert_eq!(act(Method::GET, "/metrics", None).await.status, 200);
    assert_eq!(act(Method::GET, "/engines/ada/explain", None).await.status, 200);
    act(Method::DELETE, "/engines/ada", None).await.assert_ok("status:text engine_id:engine");
    product.provision("bob").await.assert_ok(PROVISIONED);

    let rows = act(Method::GET, "/audit?limit=1000", None).await.assert_ok("rows:array");
    let mut actors = Vec::new();
    for row in rows["rows"].as_array().unwrap().iter().rev().skip(1) {
        assert_fields(row, AUDIT_ROW);
        actors.push((row["event"].as_str().unwrap(), row["detail"]["actor"].as_str()));
    }
    let admin = Some("admin");
    assert_eq!(
        actors,
        [
            ("provision", admin),
            ("rotate_key", admin),
            ("stop", admin),
            ("start", admin),
            ("set_origins", admin),
            ("destroy", admin),
            ("provision", None),
        ]
    );
}

#[tokio::test]
async fn an_operator_is_told_what_is_wrong_with_a_call_and_does_not_talk_as_a_user() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let id = product.id().await;
    product.provision("ada").await.assert_ok(PROVISIONED);
    for unknown in [ProductId::new().to_string(), "prod_nobody".to_owned(), String::new()] {
        let answer = orchestrator.act_for(&unknown, Method::GET, "/engines", None).await;
        answer.assert_error(404, "PRODUCT_NOT_FOUND");
    }
    // Without the product's id, the contract's answer to a missing platform key; it says what is missing.
    let answer = orchestrator.operate(Method::GET, "/engines").await;
    assert!(answer.assert_error(401, "INVALID_PLATFORM_KEY").contains("X-Product-Id"));
    let both = product.request(Method::GET, "/engines").header("x-admin-key", &orchestrator.admin_key);
    assert_eq!(send(both.try_clone().unwrap()).await.status, 200, "the admin key counts for nothing");
    send(both.header("x-product-id", &id)).await.assert_error(400, "INVALID_REQUEST");
    let wrong = client().get(format!("{}/engines", orchestrator.base));
    let wrong = wrong.header("x-admin-key", &product.key).header("x-product-id", &id);
    send(wrong).await.assert_error(401, "INVALID_ADMIN_KEY");
    for (method, path) in [
        (Method::GET, "/engines/ada/proxy/tasks"),
        (Method::POST, "/engines/ada/proxy/execute"),
        (Method::POST, "/engines/ada/tokens"),
    ] {
        let body = Some(json!({"scopes": ["chat"]}));
        let answer = orchestrator.act_for(&id, method, path, body).await;
        answer.assert_error(401, "INVALID_PLATFORM_KEY");
    }
    // An operator's key with a stranger's product finds nothing of another.
    let rival = orchestrator.register("rival", json!({})).await.id().await;
    let answer = orchestrator.act_for(&rival, Method::GET, "/engines/ada", None).await;
    answer.assert_error(404, "ENGINE_NOT_FOUND");
}

#[tokio::test]
async fn limits_of_a_product_hold_for_its_operator_as_far_as_they_protect_somebody() {
    let deployment = Deployment::new();
    let orchestrator = deployment.start().await;
    let product = orchestrator.register("shop", json!({"max_engines": 1, "rate_limit_rpm": 0})).await;
    let id = product.id().await;
    product.admit("ada").await.assert_error(429, "RATE_LIMITED");
    let act = async |method, path: &str, body| orchestrator.act_for(&id, method, path, body).await;
    let admit = json!({"auto_provision": true});
    act(Method::POST, "/engines/ada/admit", Some(admit.clone()))
        .await
        .assert_ok("admitted:bool engine:object");
    act(Method::POST, "/engines/bob/admit", Some(admit)).await.assert_error(429, "QUOTA_EXCEEDED");
    // A suspended product does nothing itself. Its operator ends what runs, and starts nothing.
    let policy = client().put(format!("{}/products/{id}/policy", orchestrator.base));
    let policy = policy.header("x-admin-key", &orchestrator.admin_key);
    assert_eq!(send(policy.json(&json!({"policy": {"suspended": true}}))).await.status, 200);
    product.stop("ada").await.assert_error(403, "POLICY_DENIED");
    act(Method::POST, "/engines/ada/rotate-key", None).await.assert_ok("new_api_key:engine-key");
    act(Method::POST, "/engines/ada/stop", None).await.assert_ok("status:text");
    act(Method::POST, "/engines/ada/start", None).await.assert_error(403, "POLICY_DENIED");
    let user = json!({"user_id": "bob"});
    act(Method::POST, "/engines/provision", Some(user)).await.assert_error(403, "POLICY_DENIED");
    act(Method::DELETE, "/engines/ada", None).await.assert_ok("status:text engine_id:engine");
}

#[tokio::test]
async fn engines_of_all_products_are_listed_filtered_and_counted() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_MAX_ATTEMPTS", "0");
    let (orchestrator, shop) = deployment.start_with_product().await;
    let bank = orchestrator.register("bank", json!({"max_engines": 5})).await;
    let mut engines = Vec::new();
    for (product, user) in [(&shop, "ada"), (&bank, "ada"), (&shop, "adam"), (&bank, "bob")] {
        engines.push(product.engine(user).await);
    }
    shop.stop("adam").await.assert_ok("status:text");
    deployment.kill_engine(&engines[3]);
    bank.wait_for_status("bob", "failed").await;

    let users = async |query: &str, limit: usize| -> Vec<String> {
        let found = orchestrator.fleet_engines(query, limit).await;
        found.iter().map(|engine| engine["user_id"].as_str().unwrap().to_owned()).collect()
    };
    for limit in [1, 2, 3, 4, 1000] {
        assert_eq!(users("", limit).await, ["ada", "ada", "adam", "bob"], "{limit}");
    }
    assert_eq!(users("&status=failed", 10).await, ["bob"]);
    assert_eq!(users("&status=stopped,failed", 1).await, ["adam", "bob"]);
    assert_eq!(users("&user_prefix=ada", 10).await, ["ada", "ada", "adam"]);
    let (shop_id, version) = (shop.id().await, shop.get("ada").await.body["engine_version"].clone());
    assert_eq!(users(&format!("&product_id={shop_id}"), 1).await, ["ada", "adam"]);
    let filter = format!("&product_id={shop_id}&user_prefix=ada&status=running&engine_version=");
    assert_eq!(users(&format!("{filter}{}", version.as_str().unwrap()), 10).await, ["ada"]);
    assert!(users(&format!("{filter}svc-engine:99.0.0"), 10).await.is_empty());
    for bad in
        ["status=odd", "status=", "limit=0", "product_id=x", "after=x", "user_prefix=", "engine_version=x"]
    {
        let answer = orchestrator.operate(Method::GET, &format!("/fleet/engines?{bad}")).await;
        answer.assert_error(400, "INVALID_REQUEST");
    }

    // A row is the product's own row, and more.
    let listed = orchestrator.fleet_engines("", 10).await;
    for (engine, of_product) in listed.iter().zip([&shop, &bank, &shop, &bank]) {
        let (own, _) = of_product.list("").await;
        let own = own.iter().find(|own| own["engine_id"] == engine["engine_id"]).unwrap();
        for (field, value) in own.as_object().unwrap() {
            // Moves with each health check.
            assert!(field == "last_health_at" || engine[field] == *value, "{field}: {engine} {own}");
        }
        let crashed = engine["user_id"] == "bob";
        let event = if crashed {
            "crash"
        } else if engine["user_id"] == "adam" {
            "stop"
        } else {
            "provision"
        };
        let rows = of_product.call(Method::GET, &format!("/audit?event={event}"), None).await.body;
        let row = rows["rows"].as_array().unwrap().iter().find(|row| row["engine_id"] == engine["engine_id"]);
        assert_eq!(engine["since"], row.unwrap()["at"], "{engine}");
    }

    let status = orchestrator.operate(Method::GET, "/fleet/status").await.assert_ok(
        "active_since:time drained_since:time|null maintenance:null total:int by_status:object health:text unhealthy_count:int \
         changes_under_way:int capacity:object products:array",
    );
    let counts = json!({"running": 2, "stopped": 1, "failed": 1});
    assert_eq!((&status["total"], &status["by_status"]), (&json!(4), &counts), "{status}");
    assert_fields(&status["capacity"], "ports:int|null leased_ports:int concurrent_boots:int");
    for product in status["products"].as_array().unwrap() {
        assert_fields(
            product,
            "product_id:product slug:text total:int by_status:object max_engines:int|null suspended:bool state:text",
        );
    }
    let by_slug =
        |slug: &str| status["products"].as_array().unwrap().iter().find(|one| one["slug"] == slug).unwrap();
    assert_eq!(by_slug("shop")["by_status"], json!({"running": 1, "stopped": 1}));
    assert_eq!(by_slug("bank")["by_status"], json!({"running": 1, "failed": 1}));
    assert_eq!((&by_slug("bank")["max_engines"], &by_slug("shop")["max_engines"]), (&json!(5), &Value::Null));

    // No key of a product opens it.
    for path in ["/fleet/engines", "/fleet/status"] {
        shop.call(Method::GET, path, None).await.assert_error(401, "INVALID_ADMIN_KEY");
    }
}

#[tokio::test]
async fn a_new_orchestrator_says_since_when_it_is_active_and_has_the_same_list() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    product.provision("ada").await.assert_ok(PROVISIONED);
    let since = async |orchestrator: &Orchestrator| {
        let status = orchestrator.operate(Method::GET, "/fleet/status").await;
        status.body["active_since"].as_str().unwrap().to_owned()
    };
    let (first, listed) = (since(&orchestrator).await, orchestrator.fleet_engines("", 10).await);
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    assert!(since(&orchestrator).await > first);
    eventually("the engine is known as before", async || {
        let now = orchestrator.fleet_engines("", 10).await;
        (now[0]["engine_id"] == listed[0]["engine_id"] && now[0]["since"] == listed[0]["since"]).then_some(())
    })
    .await;
}
