//! Scenarios that together make every route return every documented response. Each runs on its own orchestrator.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::EngineId;
use axum::Router;
use backend::BackendError;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::config::PortRange;
use crate::testing::{
    ADMIN_KEY, ApiOperation, BackendCall, Fault, ProductClient, RecordedResponse, SimulatedHealth, TestApp,
    api_operations,
};

const STEP: Duration = Duration::from_secs(1);

/// Runs all scenarios, and returns the recorded responses.
pub(super) async fn all() -> BTreeSet<RecordedResponse> {
    let mut recorded = BTreeSet::new();
    recorded.extend(before_the_orchestrator_is_ready().await);
    recorded.extend(without_a_key().await);
    recorded.extend(with_what_cannot_be_read().await);
    recorded.extend(an_operator_is_refused().await);
    recorded.extend(products_are_managed().await);
    recorded.extend(a_product_is_disabled_and_deleted().await);
    recorded.extend(an_engine_lives().await);
    recorded.extend(a_deployment_is_drained().await);
    recorded.extend(what_is_logged_is_changed().await);
    recorded.extend(a_deployment_is_under_maintenance().await);
    recorded.extend(another_version_is_rolled_out().await);
    recorded.extend(a_deployment_is_backed_up().await);
    recorded.extend(nobody_is_asked_for().await);
    recorded.extend(a_policy_forbids().await);
    recorded.extend(ports_run_out().await);
    recorded.extend(the_host_is_full().await);
    recorded.extend(the_backend_fails().await);
    recorded.extend(engines_do_not_answer().await);
    recorded.extend(browsers_have_tokens().await);
    recorded.extend(calls_have_keys().await);
    recorded.extend(webhooks_are_managed().await);
    recorded.extend(the_registry_is_lost().await);
    recorded
}

/// Sends a request with both keys.
async fn send(product: &ProductClient<'_>, method: &str, path: &str, body: &str) {
    let headers = [("X-Platform-Key", product.key.as_str()), ("X-Admin-Key", ADMIN_KEY)];
    // The body is not read, because a stream does not end.
    drop(product.app.send_unread(method, path, &headers, body).await);
}

/// Sends a request to each operation on `user`'s engine whose path ends with one of `ends`.
async fn send_each(product: &ProductClient<'_>, user: &str, ends: &[&str]) {
    for operation in
        api_operations().iter().filter(|operation| operation.path.starts_with("/engines/{user_id}"))
    {
        if ends.iter().any(|end| operation.path.ends_with(end)) {
            send(product, &operation.method, &operation.path_with(user), "").await;
        }
    }
}

async fn before_the_orchestrator_is_ready() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new_starting(PortRange::new(9_001, 9_100).unwrap()).await;
    for ApiOperation { method, path, .. } in api_operations() {
        app.send_unread(method, path, &[("X-Admin-Key", ADMIN_KEY)], "").await;
    }
    app.responses.recorded()
}

async fn without_a_key() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    for operation in api_operations() {
        app.send_unread(&operation.method, &operation.path_with("ann"), &[], "").await;
    }
    app.responses.recorded()
}

async fn with_what_cannot_be_read() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let too_long = "x".repeat(1024 * 1024 + 1);
    for operation in api_operations().iter().filter(|operation| operation.has_input) {
        let path = format!("{}?limit=x&after=x", operation.path_with("%zz"));
        send(&product, &operation.method, &path, "{").await;
        if operation.has_body {
            send(&product, &operation.method, &operation.path_with("ann"), &too_long).await;
        }
    }
    app.responses.recorded()
}

async fn an_operator_is_refused() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let product_id = product.product_id().await;
    for operation in api_operations().iter().filter(|operation| operation.takes_operator) {
        let unknown = api::ProductId::new().to_string();
        for headers in [
            [("X-Admin-Key", ADMIN_KEY), ("X-Product-Id", &unknown), ("Accept", "*/*")],
            [("X-Admin-Key", "open sesam"), ("X-Product-Id", &product_id), ("Accept", "*/*")],
            [("X-Admin-Key", ADMIN_KEY), ("X-Product-Id", &product_id), ("X-Platform-Key", &product.key)],
        ] {
            app.send_unread(&operation.method, &operation.path_with("ann"), &headers, "").await;
        }
    }
    app.responses.recorded()
}

async fn calls_have_keys() -> BTreeSet<RecordedResponse> {
    let app = TestApp::with_backups().await;
    let product = app.register_product("demo", json!({})).await;
    let too_long = "x".repeat(1024 * 1024 + 1);
    let call = async |operation: &ApiOperation, key: &str, query: &str, body: &str| {
        let admin = ("X-Admin-Key", ADMIN_KEY);
        let caller = if operation.path.starts_with("/products")
            || operation.path.starts_with("/fleet")
            || operation.path.starts_with("/admin")
        {
            admin
        } else {
            ("X-Platform-Key", product.key.as_str())
        };
        let path = format!("{}{query}", operation.path_with("ann"));
        app.send_unread(&operation.method, &path, &[caller, ("Idempotency-Key", key)], body).await;
    };
    for operation in api_operations().iter().filter(|operation| operation.takes_key) {
        let body = valid_body(&operation.path);
        // Another request with the same key; and what is no key, and too long a body.
        call(operation, "key", "?confirmation=x", &body).await;
        call(operation, "key", "?confirmation=y", &body).await;
        call(operation, "no key", "", &body).await;
        call(operation, "another", "", &too_long).await;
    }
    app.orchestrator.fleet().idempotent_calls.always_in_use.store(true, Ordering::Relaxed);
    for operation in api_operations().iter().filter(|operation| operation.takes_key) {
        call(operation, "key", "", &valid_body(&operation.path)).await;
    }
    app.responses.recorded()
}

/// A body that the operations of a path accept.
fn valid_body(path: &str) -> String {
    let body = match path {
        "/products/register" => json!({"slug": "other", "display_name": "Other"}),
        "/products/{product_id}/policy" => json!({"policy": {}}),
        "/engines/provision" => json!({"user_id": "ann"}),
        "/engines/{user_id}/tokens" => json!({"scopes": ["chat"]}),
        "/engines/{user_id}/version" => json!({"engine_version": "default"}),
        "/origins" => json!({"origins": []}),
        "/webhooks" => json!({"url": "https://product.invalid/audit"}),
        "/webhooks/{webhook_id}/replay" => json!({"after": 0}),
        "/fleet/log-filter" | "/engines/{user_id}/log-filter" => json!({"filter": "info", "for_s": 1}),
        "/fleet/maintenance" => json!({"message": "Back at noon."}),
        "/fleet/rollouts" => json!({"engine_version": "svc-engine:0.9.0"}),
        "/fleet/backups" => json!({"action": "back_up"}),
        "/admin/versions/move" => json!({"from": OTHER_IMAGE, "engine_version": "default"}),
        _ => json!({}),
    };
    body.to_string()
}

async fn products_are_managed() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let same = json!({"slug": "demo", "display_name": "Again"}).to_string();
    send(&product, "POST", "/products/register", &same).await;
    send(&product, "GET", "/products", "").await;
    let policy = json!({"policy": {}}).to_string();
    send(&product, "PUT", &format!("/products/{}/policy", product.product_id().await), &policy).await;
    send(&product, "PUT", "/products/prod_nobody/policy", &policy).await;
    send(&product, "GET", "/health", "").await;
    let keys = format!("/products/{}/keys", product.product_id().await);
    send(&product, "GET", &keys, "").await;
    // The last one is one too many.
    for _ in 0..5 {
        send(&product, "POST", &keys, "{}").await;
    }
    let registration = product.product_id().await.replace("prod_", "key_");
    for id in [&registration, &registration] {
        send(&product, "DELETE", &format!("{keys}/{id}"), "").await;
    }
    for (method, path) in [("GET", "keys"), ("POST", "keys"), ("DELETE", "keys/key_nobody")] {
        send(&product, method, &format!("/products/prod_nobody/{path}"), "{}").await;
    }
    app.responses.recorded()
}

async fn a_product_is_disabled_and_deleted() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let path = format!("/products/{}", product.product_id().await);
    let calls = [("GET", ""), ("POST", "/disable"), ("POST", "/enable"), ("GET", "/deletion")];
    send(&product, "DELETE", &format!("{path}?confirmation=x"), "").await;
    send(&product, "GET", &format!("{path}/deletion"), "").await;
    for (method, call) in calls {
        send(&product, method, &format!("{path}{call}"), "").await;
        send(&product, method, &format!("/products/prod_nobody{call}"), "").await;
    }
    send(&product, "DELETE", "/products/prod_nobody?confirmation=x", "").await;
    send(&product, "POST", &format!("{path}/disable"), "").await;
    for operation in api_operations() {
        if operation.invalid_key_code == Some(api::ErrorCode::InvalidPlatformKey) {
            send(&product, &operation.method, &operation.path_with("ann"), "").await;
        }
    }
    send(&product, "POST", &format!("{path}/keys"), "{}").await;
    send(&product, "DELETE", &format!("{path}?confirmation=x"), "").await;
    let admin = [("X-Admin-Key", ADMIN_KEY)];
    let (_, _, plan) = app.send("GET", &format!("{path}/deletion"), &admin, "").await;
    // The deletion does not come to its end.
    app.backend.inject(BackendCall::Remove, Fault::Hang);
    let confirmation = plan["confirmation"].as_str().unwrap();
    send(&product, "DELETE", &format!("{path}?confirmation={confirmation}"), "").await;
    for (method, call) in calls {
        send(&product, method, &format!("{path}{call}"), "").await;
    }
    app.responses.recorded()
}

/// Starts a server in place of an engine, which answers requests or closes each connection, and returns its port.
async fn engine_port(answers: bool) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        if answers {
            axum::serve(listener, Router::new().fallback(async || "the engine's answer")).await.unwrap();
        } else {
            loop {
                drop(listener.accept().await.unwrap());
            }
        }
    });
    port
}

async fn an_engine_lives() -> BTreeSet<RecordedResponse> {
    let port = engine_port(true).await;
    let app = TestApp::with_ports(port, port).await;
    let product = app.register_product("demo", json!({})).await;
    let ann = json!({"user_id": "ann"}).to_string();
    send(&product, "POST", "/engines/provision", &ann).await;
    send(&product, "POST", "/engines/provision", &ann).await;
    for path in [
        "/fleet/engines",
        "/fleet/status",
        "/fleet/audit",
        "/fleet/events",
        "/engines",
        "/inbox",
        "/usage",
        "/fleet/usage",
        "/audit",
        "/events",
        "/status",
        "/metrics",
        "/admin/versions",
    ] {
        send(&product, "GET", path, "").await;
    }
    change_version(&product, "default").await;
    let moves = json!({"from": app.config_image(), "engine_version": "default"}).to_string();
    send(&product, "POST", "/admin/versions/move", &moves).await;
    send_each(&product, "ann", &["/admit", "/explain", "/logs", "/{*path}", "/rotate-key", "/start"]).await;
    send(&product, "GET", "/engines/ann", "").await;
    // Twice: the second stop finds the engine stopped.
    for path in ["/engines/ann/stop", "/engines/ann/stop"] {
        send(&product, "POST", path, "").await;
    }
    send_each(&product, "ann", &["/{*path}", "/rotate-key", "/start"]).await;
    send(&product, "DELETE", "/engines/ann", "").await;
    app.responses.recorded()
}

async fn a_deployment_is_drained() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    send(&product, "POST", "/fleet/start-failed", "{}").await;
    for method in ["POST", "GET", "DELETE"] {
        send(&product, method, "/fleet/drain", "").await;
    }
    for path in ["/fleet/drift", "/fleet/drift?kind=x"] {
        send(&product, "GET", path, "").await;
    }
    send(&product, "POST", "/fleet/drift/repair", "{}").await;
    app.responses.recorded()
}

async fn what_is_logged_is_changed() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let filter = json!({"filter": "info", "for_s": 1}).to_string();
    let methods = ["PUT", "GET", "DELETE"];
    let of_ann = "/engines/ann/log-filter";
    for method in methods {
        send(&product, method, "/fleet/log-filter", &filter).await;
        send(&product, method, of_ann, &filter).await;
    }
    product.provision("ann").await;
    for method in methods {
        send(&product, method, of_ann, &filter).await;
        fail_next(&app, BackendCall::Rpc);
        send(&product, method, of_ann, &filter).await;
    }
    product.stop("ann").await;
    for method in methods {
        send(&product, method, of_ann, &filter).await;
    }
    app.responses.recorded()
}

async fn a_deployment_is_under_maintenance() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    product.provision("bob").await;
    product.stop("bob").await;
    let path = "/fleet/maintenance";
    send(&product, "PUT", path, &json!({"message": "Back at noon."}).to_string()).await;
    send(&product, "GET", path, "").await;
    product.provision("eve").await;
    product.admit("eve", json!({"auto_provision": true})).await;
    product.start("bob").await;
    product.rotate("ann").await;
    change_version(&product, OTHER_IMAGE).await;
    product.delete("ann").await;
    send(&product, "DELETE", path, "").await;
    app.responses.recorded()
}

async fn another_version_is_rolled_out() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let path = "/fleet/rollouts";
    let to = |image: &str| json!({"engine_version": image}).to_string();
    send(&product, "POST", path, &to("svc-engine:7.0.0")).await;
    send(&product, "POST", path, &to("svc-engine:0.9.0")).await;
    send(&product, "POST", path, &to("svc-engine:0.9.1")).await;
    let admin = [("X-Admin-Key", ADMIN_KEY)];
    let (_, _, list) = app.send("GET", path, &admin, "").await;
    let rollout = format!("{path}/{}", list["rollouts"][0]["rollout_id"].as_str().unwrap());
    let acts = [("/pause", ""), ("/resume", ""), ("/rollback", "{}")];
    for (act, body) in [("", ""), ("/engines", "")].into_iter().chain(acts) {
        let method = if acts.contains(&(act, body)) { "POST" } else { "GET" };
        send(&product, method, &format!("{rollout}{act}"), body).await;
        send(&product, method, &format!("{path}/nobody{act}"), body).await;
    }
    let is_over = async || {
        let (_, _, rollout) = app.send("GET", &rollout, &admin, "").await;
        rollout["ended_at"].is_string()
    };
    app.advance_until(STEP, is_over).await;
    for (act, body) in acts {
        send(&product, "POST", &format!("{rollout}{act}"), body).await;
    }
    app.responses.recorded()
}

async fn a_deployment_is_backed_up() -> BTreeSet<RecordedResponse> {
    let (app, unusable) = (TestApp::with_backups().await, TestApp::with_backups().await);
    // A file where the store's folder should be.
    std::fs::write(unusable.backups(), "").unwrap();
    for app in [&app, &unusable] {
        let product = app.register_product("demo", json!({})).await;
        let product_id = product.product_id().await;
        let of_nobody =
            json!({"action": "restore", "product_id": product_id, "user_id": "nobody"}).to_string();
        send(&product, "POST", "/fleet/backups", &of_nobody).await;
        let list = format!("/fleet/backups/list?product_id={product_id}&user_id=nobody");
        for path in ["/fleet/backups", "/fleet/backups/list", &list, "/fleet/backups/list?user_id=ann"] {
            send(&product, "GET", path, "").await;
        }
        // One of them begins; the others come while it is under way.
        let starts = (0..4).map(|_| send(&product, "POST", "/fleet/backups", r#"{"action": "back_up"}"#));
        futures::future::join_all(starts).await;
        send(&product, "POST", "/fleet/backups", r#"{"action": "back_up", "user_id": "ann"}"#).await;
    }
    let mut recorded = app.responses.recorded();
    recorded.extend(unusable.responses.recorded());
    recorded
}

async fn nobody_is_asked_for() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    change_version(&product, "default").await;
    send_each(&product, "nobody", &["}", "start", "stop", "rotate-key", "explain", "logs"]).await;
    // A delete cancels a provision.
    app.backend.inject(BackendCall::Launch, Fault::Hang);
    let delete = async {
        app.wait_until(|| app.backend.count(BackendCall::Launch) == 1).await;
        product.delete("ann").await
    };
    tokio::join!(product.provision("ann"), delete);
    app.responses.recorded()
}

async fn the_host_is_full() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.orchestrator.fleet().admission.stream_limiter().set_limit(0);
    send(&product, "GET", "/events", "").await;
    send(&product, "GET", "/fleet/events", "").await;
    send_each(&product, "ann", &["/{*path}"]).await;
    product.provision("ann").await;
    product.stop("ann").await;
    for _ in 0..3 {
        app.backend.inject(
            BackendCall::Launch,
            Fault::Error(BackendError::NoCapacity("no more processes".to_owned())),
        );
    }
    product.start("ann").await;
    product.provision("bob").await;
    product.admit("eve", json!({"auto_provision": true})).await;
    app.backend.inject(BackendCall::KeepCopy, Fault::Error(BackendError::NoCapacity("no space".to_owned())));
    change_version(&product, OTHER_IMAGE).await;
    app.responses.recorded()
}

async fn a_policy_forbids() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"max_engines": 0})).await;
    product.provision("ann").await;
    product.admit("ann", json!({"auto_provision": true})).await;
    product.set_policy(json!({"rate_limit_rpm": 0})).await;
    product.admit("ann", Value::Null).await;
    product.set_policy(json!({"suspended": true})).await;
    for operation in api_operations() {
        let is_of_product = operation.path.starts_with("/engines") || operation.path == "/origins";
        if operation.method != "GET" && is_of_product {
            send(&product, &operation.method, &operation.path_with("ann"), "").await;
        }
    }
    app.responses.recorded()
}

async fn ports_run_out() -> BTreeSet<RecordedResponse> {
    let app = TestApp::with_ports(9_001, 9_001).await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    product.stop("ann").await;
    product.provision("bob").await;
    product.start("ann").await;
    change_version(&product, OTHER_IMAGE).await;
    product.provision("eve").await;
    product.admit("eve", json!({"auto_provision": true})).await;
    app.responses.recorded()
}

/// A version that the backend has in addition to the deployment's default.
const OTHER_IMAGE: &str = "svc-engine:0.99.0";

async fn change_version(product: &ProductClient<'_>, version: &str) {
    let body = json!({"engine_version": version}).to_string();
    send(product, "PUT", "/engines/ann/version", &body).await;
}

/// Makes the next `call` fail.
fn fail_next(app: &TestApp, call: BackendCall) {
    app.backend.inject(call, Fault::Error(BackendError::Unreachable("connection refused".into())));
}

async fn the_backend_fails() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    fail_next(&app, BackendCall::CheckImage);
    product.provision("ann").await;
    fail_next(&app, BackendCall::CheckImage);
    product.admit("ann", json!({"auto_provision": true})).await;
    product.provision("ann").await;
    fail_next(&app, BackendCall::CheckImage);
    change_version(&product, OTHER_IMAGE).await;
    for (method, path) in [("GET", "/fleet/drift"), ("POST", "/fleet/drift/repair")] {
        fail_next(&app, BackendCall::List);
        send(&product, method, path, "{}").await;
    }
    fail_next(&app, BackendCall::LogTail);
    product.get_path("/engines/ann/logs").await;
    fail_next(&app, BackendCall::Rpc);
    product.rotate("ann").await;
    fail_next(&app, BackendCall::Ping);
    product.delete("ann").await;
    fail_next(&app, BackendCall::Stop);
    product.stop("ann").await;
    app.while_time_passes(STEP, app.wait_unclaimed()).await;
    product.stop("ann").await;
    fail_next(&app, BackendCall::CheckImage);
    fail_next(&app, BackendCall::Launch);
    product.start("ann").await;
    app.responses.recorded()
}

async fn engines_do_not_answer() -> BTreeSet<RecordedResponse> {
    let port = engine_port(false).await;
    let app = TestApp::with_ports(port, port).await;
    let product = app.register_product("demo", json!({})).await;
    let (_, ann) = product.provision("ann").await;
    send_each(&product, "ann", &["/{*path}"]).await;
    let engine_id: EngineId = ann["engine_id"].as_str().unwrap().parse().unwrap();
    app.backend.freeze(engine_id);
    app.while_time_passes(STEP, product.rotate("ann")).await;
    // It is unknown which key is valid.
    app.while_time_passes(STEP, product.get("ann")).await;
    app.backend.thaw();
    app.while_time_passes(STEP, product.get("ann")).await;
    product.stop("ann").await;
    app.backend.set_health(SimulatedHealth::Unreachable);
    app.while_time_passes(STEP, change_version(&product, OTHER_IMAGE)).await;
    app.while_time_passes(STEP, product.start("ann")).await;
    product.delete("ann").await;
    app.while_time_passes(STEP, product.provision("ann")).await;
    app.while_time_passes(STEP, product.admit("ann", json!({"auto_provision": true}))).await;
    app.responses.recorded()
}

async fn browsers_have_tokens() -> BTreeSet<RecordedResponse> {
    let port = engine_port(true).await;
    let app = TestApp::with_ports(port, port).await;
    let product = app.register_product("demo", json!({})).await;
    let mint = json!({"scopes": ["read"]}).to_string();
    let tokens = "/engines/ann/tokens";
    let unknown = format!("{tokens}/{}", api::TokenId::new());
    let reach_each_answer = async || {
        send(&product, "POST", tokens, &mint).await;
        send(&product, "GET", tokens, "").await;
        send(&product, "DELETE", &unknown, "").await;
    };
    reach_each_answer().await;
    product.provision("ann").await;
    reach_each_answer().await;
    send(&product, "GET", "/origins", "").await;
    send(&product, "PUT", "/origins", &json!({"origins": ["https://app.example"]}).to_string()).await;
    let minted = async || product.call("POST", tokens, &json!({"scopes": ["read"]})).await.1;
    let (revoked, expired) = (minted().await, minted().await);
    send(&product, "DELETE", &format!("{tokens}/{}", revoked["token_id"].as_str().unwrap()), "").await;
    let call_each = async |token: &Value| {
        let bearer = format!("Bearer {}", token.as_str().unwrap());
        for operation in api_operations().iter().filter(|operation| operation.path.ends_with("/{*path}")) {
            let path = operation.path_with("ann");
            drop(app.send_unread(&operation.method, &path, &[("Authorization", &bearer)], "").await);
        }
    };
    call_each(&revoked["token"]).await;
    call_each(&json!("rbt1.a.b")).await;
    app.clock.advance(Duration::from_secs(901));
    call_each(&expired["token"]).await;
    app.execute(
        "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 500) \
         INSERT INTO browser_tokens (token_id, engine_id, key_hash, scopes, issued_at, expires_at) \
         SELECT 'tok_' || n, engine_id, key_hash, '[\"read\"]', 0, 9000000000000 FROM engines, n",
    )
    .await;
    send(&product, "POST", tokens, &mint).await;
    app.responses.recorded()
}

/// Sends the valid requests of all operations on a webhook.
async fn send_to_webhook(product: &ProductClient<'_>, webhook: &str) {
    for (method, path, body) in [
        ("GET", "", ""),
        ("PATCH", "", "{}"),
        ("POST", "/secret", ""),
        ("POST", "/replay", r#"{"after": 0}"#),
        ("GET", "/dead-letters", ""),
        ("POST", "/dead-letters/retry", "{}"),
        ("POST", "/dead-letters/discard", "{}"),
        ("DELETE", "", ""),
    ] {
        send(product, method, &format!("/webhooks/{webhook}{path}"), body).await;
    }
}

async fn webhooks_are_managed() -> BTreeSet<RecordedResponse> {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let new = json!({"url": "https://product.invalid/audit"});
    let (_, created) = product.call("POST", "/webhooks", &new).await;
    send_to_webhook(&product, created["webhook_id"].as_str().unwrap()).await;
    send_to_webhook(&product, "whk_nobody").await;
    // The last one is one too many.
    for _ in 0..11 {
        send(&product, "POST", "/webhooks", &new.to_string()).await;
    }
    send(&product, "GET", "/webhooks", "").await;
    let policy = json!({"policy": {"suspended": true}}).to_string();
    send(&product, "PUT", &format!("/products/{}/policy", product.product_id().await), &policy).await;
    send_to_webhook(&product, "whk_nobody").await;
    send(&product, "POST", "/webhooks", &new.to_string()).await;
    app.responses.recorded()
}

async fn the_registry_is_lost() -> BTreeSet<RecordedResponse> {
    let app = TestApp::with_backups().await;
    let product = app.register_product("demo", json!({})).await;
    let product_id = product.product_id().await;
    product.provision("ann").await;
    product.provision("bob").await;
    product.stop("bob").await;
    // Hot reads still work when the registry is closed.
    app.execute("UPDATE engines SET sealed_key = 'damaged'").await;
    // It leads on, so that calls are served.
    app.orchestrator.fleet().registry().close_pools().await;
    for operation in api_operations() {
        let user = if operation.path.ends_with("/start") { "bob" } else { "ann" };
        let path = operation.path_with(user).replace("/products/ann", &format!("/products/{product_id}"));
        let path = path.replace("/keys/ann", &format!("/keys/{}", api::PlatformKeyId::new()));
        let path = path.replace("/webhooks/ann", &format!("/webhooks/{}", api::AuditWebhookId::new()));
        let path = path.replace("/rollouts/ann", &format!("/rollouts/{}", api::RolloutId::new()));
        let path = path.replace("/tokens/ann", &format!("/tokens/{}", api::TokenId::new()));
        let body = valid_body(&operation.path);
        let is_confirmed =
            (operation.method.as_str(), operation.path.as_str()) == ("DELETE", "/products/{product_id}");
        let path = if is_confirmed { format!("{path}?confirmation=x") } else { path };
        send(&product, &operation.method, &path, &body).await;
    }
    app.responses.recorded()
}
