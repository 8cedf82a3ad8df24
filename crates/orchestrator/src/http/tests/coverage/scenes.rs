//! Scenes that bring every route to every answer. Each is played on an orchestrator of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::Router;
use contract::EngineId;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::backend::BackendError;
use crate::config::PortRange;
use crate::testing::{ADMIN_KEY, Answered, Call, Caller, Fault, Health, Operation, TestApp, operations};

const STEP: Duration = Duration::from_secs(1);

/// What all scenes have shown.
pub(super) async fn all() -> BTreeSet<Answered> {
    let mut seen = BTreeSet::new();
    seen.extend(before_the_orchestrator_is_ready().await);
    seen.extend(without_a_key().await);
    seen.extend(with_what_cannot_be_read().await);
    seen.extend(products_are_managed().await);
    seen.extend(an_engine_lives().await);
    seen.extend(nobody_is_asked_for().await);
    seen.extend(a_policy_forbids().await);
    seen.extend(ports_run_out().await);
    seen.extend(the_host_is_full().await);
    seen.extend(the_backend_fails().await);
    seen.extend(engines_do_not_answer().await);
    seen.extend(the_registry_is_lost().await);
    seen
}

/// A request with both keys.
async fn ask(product: &Caller<'_>, method: &str, path: &str, body: &str) {
    let headers = [("X-Platform-Key", product.key.as_str()), ("X-Admin-Key", ADMIN_KEY)];
    // A stream's body has no end.
    drop(product.app.open(method, path, &headers, body).await);
}

/// One request to each operation on `user`'s engine whose path ends in one of these.
async fn ask_each(product: &Caller<'_>, user: &str, ends: &[&str]) {
    for operation in operations().iter().filter(|operation| operation.path.starts_with("/engines/{user_id}"))
    {
        if ends.iter().any(|end| operation.path.ends_with(end)) {
            ask(product, &operation.method, &operation.filled(user), "").await;
        }
    }
}

async fn before_the_orchestrator_is_ready() -> BTreeSet<Answered> {
    let app = TestApp::starting(PortRange::new(9_001, 9_100).unwrap()).await;
    for Operation { method, path, .. } in operations() {
        app.open(method, path, &[("X-Admin-Key", ADMIN_KEY)], "").await;
    }
    app.seen.answers()
}

async fn without_a_key() -> BTreeSet<Answered> {
    let app = TestApp::new().await;
    for operation in operations() {
        app.open(&operation.method, &operation.filled("ann"), &[], "").await;
    }
    app.seen.answers()
}

async fn with_what_cannot_be_read() -> BTreeSet<Answered> {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    let too_long = "x".repeat(1024 * 1024 + 1);
    for operation in operations().iter().filter(|operation| operation.has_input) {
        let path = format!("{}?limit=x&after=x", operation.filled("%zz"));
        ask(&product, &operation.method, &path, "{").await;
        if operation.has_body {
            ask(&product, &operation.method, &operation.filled("ann"), &too_long).await;
        }
    }
    app.seen.answers()
}

async fn products_are_managed() -> BTreeSet<Answered> {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    let same = json!({"slug": "demo", "display_name": "Again"}).to_string();
    ask(&product, "POST", "/products/register", &same).await;
    ask(&product, "GET", "/products", "").await;
    let policy = json!({"policy": {}}).to_string();
    ask(&product, "PUT", &format!("/products/{}/policy", product.product_id().await), &policy).await;
    ask(&product, "PUT", "/products/prod_nobody/policy", &policy).await;
    ask(&product, "GET", "/health", "").await;
    app.seen.answers()
}

/// An engine's port on which something accepts calls, and answers them or hangs up.
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

async fn an_engine_lives() -> BTreeSet<Answered> {
    let port = engine_port(true).await;
    let app = TestApp::with_ports(port, port).await;
    let product = app.product("demo", json!({})).await;
    let ann = json!({"user_id": "ann"}).to_string();
    ask(&product, "POST", "/engines/provision", &ann).await;
    ask(&product, "POST", "/engines/provision", &ann).await;
    for path in ["/engines", "/audit", "/events", "/status", "/metrics", "/admin/versions"] {
        ask(&product, "GET", path, "").await;
    }
    change_version(&product, "default").await;
    let moves = json!({"from": app.config_image(), "engine_version": "default"}).to_string();
    ask(&product, "POST", "/admin/versions/move", &moves).await;
    ask_each(&product, "ann", &["/admit", "/explain", "/logs", "/{*path}", "/rotate-key", "/start"]).await;
    ask(&product, "GET", "/engines/ann", "").await;
    // Twice each: the second finds it done.
    for path in ["/engines/ann/stop", "/engines/ann/stop"] {
        ask(&product, "POST", path, "").await;
    }
    ask_each(&product, "ann", &["/{*path}", "/rotate-key", "/start"]).await;
    ask(&product, "DELETE", "/engines/ann", "").await;
    app.seen.answers()
}

async fn nobody_is_asked_for() -> BTreeSet<Answered> {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    change_version(&product, "default").await;
    ask_each(&product, "nobody", &["}", "start", "stop", "rotate-key", "explain", "logs"]).await;
    // A provision that a delete cancels.
    app.backend.script(Call::Launch, Fault::Hang);
    let delete = async {
        app.until(|| app.backend.count(Call::Launch) == 1).await;
        product.delete("ann").await
    };
    tokio::join!(product.provision("ann"), delete);
    app.seen.answers()
}

async fn the_host_is_full() -> BTreeSet<Answered> {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    app.orchestrator.fleet().long_answers().limit(0);
    ask(&product, "GET", "/events", "").await;
    ask_each(&product, "ann", &["/{*path}"]).await;
    product.provision("ann").await;
    product.stop("ann").await;
    for _ in 0..3 {
        app.backend.script(Call::Launch, Fault::Error(BackendError::Full("no more processes".to_owned())));
    }
    product.start("ann").await;
    product.provision("bob").await;
    product.admit("eve", json!({"auto_provision": true})).await;
    app.backend.script(Call::KeepCopy, Fault::Error(BackendError::Full("no space".to_owned())));
    change_version(&product, ANOTHER).await;
    app.seen.answers()
}

async fn a_policy_forbids() -> BTreeSet<Answered> {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({"max_engines": 0})).await;
    product.provision("ann").await;
    product.admit("ann", json!({"auto_provision": true})).await;
    product.limit(json!({"rate_limit_rpm": 0})).await;
    product.admit("ann", Value::Null).await;
    product.limit(json!({"suspended": true})).await;
    for operation in operations() {
        if operation.method != "GET" && operation.path.starts_with("/engines") {
            ask(&product, &operation.method, &operation.filled("ann"), "").await;
        }
    }
    app.seen.answers()
}

async fn ports_run_out() -> BTreeSet<Answered> {
    let app = TestApp::with_ports(9_001, 9_001).await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    product.stop("ann").await;
    product.provision("bob").await;
    product.start("ann").await;
    change_version(&product, ANOTHER).await;
    product.provision("eve").await;
    product.admit("eve", json!({"auto_provision": true})).await;
    app.seen.answers()
}

/// A version that the backend has beside the deployment's.
const ANOTHER: &str = "svc-engine:0.99.0";

async fn change_version(product: &Caller<'_>, version: &str) {
    let body = json!({"engine_version": version}).to_string();
    ask(product, "PUT", "/engines/ann/version", &body).await;
}

/// Makes the next `call` fail.
fn break_down(app: &TestApp, call: Call) {
    app.backend.script(call, Fault::Error(BackendError::Unreachable("connection refused".into())));
}

async fn the_backend_fails() -> BTreeSet<Answered> {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    break_down(&app, Call::CheckImage);
    product.provision("ann").await;
    break_down(&app, Call::CheckImage);
    product.admit("ann", json!({"auto_provision": true})).await;
    product.provision("ann").await;
    break_down(&app, Call::CheckImage);
    change_version(&product, ANOTHER).await;
    break_down(&app, Call::LogTail);
    product.look("/engines/ann/logs").await;
    break_down(&app, Call::Rpc);
    product.rotate("ann").await;
    break_down(&app, Call::Ping);
    product.delete("ann").await;
    break_down(&app, Call::Stop);
    product.stop("ann").await;
    app.while_time_passes(STEP, app.unclaimed()).await;
    product.stop("ann").await;
    break_down(&app, Call::CheckImage);
    break_down(&app, Call::Launch);
    product.start("ann").await;
    app.seen.answers()
}

async fn engines_do_not_answer() -> BTreeSet<Answered> {
    let port = engine_port(false).await;
    let app = TestApp::with_ports(port, port).await;
    let product = app.product("demo", json!({})).await;
    let (_, ann) = product.provision("ann").await;
    ask_each(&product, "ann", &["/{*path}"]).await;
    let engine_id: EngineId = ann["engine_id"].as_str().unwrap().parse().unwrap();
    app.backend.freeze(engine_id);
    app.while_time_passes(STEP, product.rotate("ann")).await;
    // Nobody knows which key holds.
    app.while_time_passes(STEP, product.get("ann")).await;
    app.backend.thaw();
    app.while_time_passes(STEP, product.get("ann")).await;
    product.stop("ann").await;
    app.backend.set_health(Health::Silent);
    app.while_time_passes(STEP, change_version(&product, ANOTHER)).await;
    app.while_time_passes(STEP, product.start("ann")).await;
    product.delete("ann").await;
    app.while_time_passes(STEP, product.provision("ann")).await;
    app.while_time_passes(STEP, product.admit("ann", json!({"auto_provision": true}))).await;
    app.seen.answers()
}

async fn the_registry_is_lost() -> BTreeSet<Answered> {
    let app = TestApp::new().await;
    let product = app.product("demo", json!({})).await;
    let product_id = product.product_id().await;
    product.provision("ann").await;
    product.provision("bob").await;
    product.stop("bob").await;
    // Single rows are still read when the registry is closed.
    app.execute("UPDATE engines SET sealed_key = 'damaged'").await;
    app.orchestrator.fleet().close().await;
    let bodies = json!({
        "/products/register": {"slug": "other", "display_name": "Other"},
        "/products/{product_id}/policy": {"policy": {}},
        "/engines/provision": {"user_id": "eve"},
        "/engines/{user_id}/version": {"engine_version": "default"},
        "/admin/versions/move": {"from": ANOTHER, "engine_version": "default"},
    });
    for operation in operations() {
        let user = if operation.path.ends_with("/start") { "bob" } else { "ann" };
        let path = operation.filled(user).replace("/products/ann", &format!("/products/{product_id}"));
        let body = bodies.get(&operation.path).map(Value::to_string).unwrap_or_default();
        ask(&product, &operation.method, &path, &body).await;
    }
    app.seen.answers()
}
