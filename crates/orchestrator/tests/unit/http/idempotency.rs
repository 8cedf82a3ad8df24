//! A call that is made again with its key gets the first one's answer, and changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use backend::BackendError;
use futures::future::join_all;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::domain::idempotency::{CallId, IdempotencyKey, KEPT_MS, KeyHolder, MAX_UNDER_WAY_OF_CALLER};
use crate::testing::{
    ADMIN_KEY, ApiOperation, BackendCall, Fault, ProductClient, SimulatedHealth, TestApp, TestResponse,
    api_operations,
};

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Product,
    Operator,
}
use Caller::{Operator, Product};

/// What the registry knows of a call that was cut off after its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// That the change was made, and the answer.
    Answer,
    /// That the change was made.
    Change,
    /// Nothing: it is made again, which changes nothing more.
    Nothing,
}
use Known::{Answer, Change, Nothing};

/// A call: who makes it, what the audit log has of it, what is known of it, and the values of its answer that later
/// calls need.
struct Mutation {
    caller: Caller,
    method: &'static str,
    path: &'static str,
    body: Value,
    rows: i64,
    known: Known,
    saves: &'static str,
}

fn call(
    (caller, method, path): (Caller, &'static str, &'static str),
    body: Value,
    rows: i64,
    known: Known,
) -> Mutation {
    Mutation { caller, method, path, body, rows, known, saves: "" }
}

fn saving(saves: &'static str, mutation: Mutation) -> Mutation {
    Mutation { saves, ..mutation }
}

/// Every mutation, each of which finds what those before it have left.
fn mutations() -> Vec<Mutation> {
    let null = || Value::Null;
    let other = json!({"slug": "other", "display_name": "Other"});
    let filter = || json!({"filter": "info", "for_s": 1});
    let (default, no_engine) = (
        json!({"engine_version": "default"}),
        json!({"from": "svc-engine:0.0.1", "engine_version": "default"}),
    );
    vec![
        call((Operator, "POST", "/products/register"), other, 1, Answer),
        call((Operator, "PUT", "/products/{product}/policy"), json!({"policy": {}}), 1, Answer),
        saving("key_id", call((Operator, "POST", "/products/{product}/keys"), json!({}), 1, Answer)),
        call((Operator, "DELETE", "/products/{product}/keys/{key_id}"), null(), 1, Answer),
        call((Product, "POST", "/engines/provision"), json!({"user_id": "ann"}), 1, Answer),
        call((Product, "POST", "/engines/ann/stop"), null(), 1, Answer),
        call((Product, "POST", "/engines/ann/start"), null(), 1, Answer),
        call((Product, "POST", "/engines/ann/rotate-key"), null(), 1, Answer),
        call((Product, "PUT", "/engines/ann/version"), default, 1, Answer),
        call((Product, "PUT", "/engines/ann/log-filter"), filter(), 1, Answer),
        call((Product, "DELETE", "/engines/ann/log-filter"), null(), 1, Answer),
        saving(
            "token_id",
            call((Product, "POST", "/engines/ann/tokens"), json!({"scopes": ["chat"]}), 1, Answer),
        ),
        call((Product, "DELETE", "/engines/ann/tokens/{token_id}"), null(), 1, Nothing),
        call((Product, "PUT", "/origins"), json!({"origins": ["https://app.example"]}), 1, Change),
        saving(
            "webhook_id",
            call((Product, "POST", "/webhooks"), json!({"url": "https://product.invalid/x"}), 1, Answer),
        ),
        call((Product, "PATCH", "/webhooks/{webhook_id}"), json!({"paused": true}), 1, Answer),
        call((Product, "POST", "/webhooks/{webhook_id}/secret"), null(), 1, Answer),
        call((Product, "POST", "/webhooks/{webhook_id}/replay"), json!({"after": 0}), 1, Answer),
        call((Product, "POST", "/webhooks/{webhook_id}/dead-letters/retry"), json!({}), 1, Answer),
        call((Product, "POST", "/webhooks/{webhook_id}/dead-letters/discard"), json!({}), 1, Answer),
        call((Product, "DELETE", "/webhooks/{webhook_id}"), null(), 1, Answer),
        call((Product, "DELETE", "/engines/ann"), null(), 1, Answer),
        call((Operator, "POST", "/fleet/start-failed"), json!({}), 0, Nothing),
        call((Operator, "POST", "/fleet/drift/repair"), json!({"dry_run": false}), 0, Nothing),
        call((Operator, "POST", "/admin/versions/move"), no_engine, 0, Nothing),
        call((Operator, "PUT", "/fleet/log-filter"), filter(), 0, Nothing),
        call((Operator, "DELETE", "/fleet/log-filter"), null(), 0, Nothing),
        call((Operator, "PUT", "/fleet/maintenance"), json!({"message": "Back at noon."}), 0, Change),
        call((Operator, "DELETE", "/fleet/maintenance"), null(), 0, Change),
        call((Operator, "POST", "/fleet/drain"), null(), 0, Change),
        call((Operator, "DELETE", "/fleet/drain"), null(), 0, Change),
        saving(
            "rollout_id",
            call(
                (Operator, "POST", "/fleet/rollouts"),
                json!({"engine_version": "svc-engine:0.9.0"}),
                0,
                Answer,
            ),
        ),
        call((Operator, "POST", "/fleet/rollouts/{rollout_id}/pause"), null(), 0, Change),
        call((Operator, "POST", "/fleet/rollouts/{rollout_id}/resume"), null(), 0, Change),
        call((Operator, "POST", "/fleet/rollouts/{rollout_id}/rollback"), json!({}), 0, Change),
        call((Operator, "POST", "/products/{product}/disable"), null(), 1, Change),
        call((Operator, "POST", "/products/{product}/enable"), null(), 1, Change),
    ]
}

/// A deployment, and what its calls have answered.
struct Fixture {
    app: TestApp,
    platform_key: String,
    /// What stands for the names in the paths of calls.
    values: BTreeMap<String, String>,
}

impl Fixture {
    async fn new() -> Self {
        let app = TestApp::new().await;
        let product = app.register_product("demo", json!({})).await;
        let values = BTreeMap::from([("product".to_owned(), product.product_id().await)]);
        let platform_key = product.key;
        Self { app, platform_key, values }
    }

    fn path(&self, template: &str) -> String {
        let fill =
            |path: String, (name, value): (&String, &String)| path.replace(&format!("{{{name}}}"), value);
        self.values.iter().fold(template.to_owned(), fill)
    }

    async fn make(&self, mutation: &Mutation, key: &str) -> TestResponse {
        let Mutation { caller, method, path, body, .. } = mutation;
        let caller = match caller {
            Product => ("X-Platform-Key", self.platform_key.as_str()),
            Operator => ("X-Admin-Key", ADMIN_KEY),
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.app.send(method, &self.path(path), &[caller, ("Idempotency-Key", key)], &body).await
    }

    /// The number of audit rows of all products.
    async fn rows(&self) -> i64 {
        let rows = self.app.rows("SELECT CAST(COUNT(*) AS TEXT) FROM audit_log").await;
        rows[0][0].parse().unwrap()
    }

    /// Lets a call look as if it had been cut off directly after what it has committed.
    async fn cut_off(&self, mutation: &Mutation, key: &str) {
        let product_id = self.values["product"].parse().unwrap();
        let holder = if mutation.caller == Product {
            KeyHolder::Product(product_id)
        } else {
            KeyHolder::Operator(None)
        };
        let key = IdempotencyKey::parse(key.as_bytes()).unwrap();
        let id = CallId::new(&holder, mutation.method, &self.path(mutation.path), &key);
        let answer = if mutation.known == Answer { "" } else { ", status = NULL, answer = NULL" };
        let cut_off = format!(
            "UPDATE idempotent_calls SET answered_at = NULL{answer} WHERE call_id = '{}'",
            id.as_str()
        );
        self.app.execute(cut_off).await;
    }
}

fn is_replayed(headers: &HeaderMap) -> bool {
    headers.get("idempotency-replayed").is_some_and(|value| value == "true")
}

#[test]
fn every_mutation_is_in_the_list() {
    let template = |operation: &ApiOperation| {
        let path = operation.path.replace("{user_id}", "ann").replace("{product_id}", "{product}");
        (operation.method.clone(), path)
    };
    let all = api_operations().iter().filter(|operation| operation.takes_key);
    let mut all: Vec<_> = all.map(template).collect();
    let mut listed: Vec<_> =
        mutations().iter().map(|it| (it.method.to_owned(), it.path.to_owned())).collect();
    // It has a test of its own.
    listed.push(("DELETE".to_owned(), "/products/{product}".to_owned()));
    // A call that was cut off begins the job again.
    listed.push(("POST".to_owned(), "/fleet/backups".to_owned()));
    all.sort();
    listed.sort();
    assert_eq!(all, listed);
}

#[tokio::test]
async fn regression_o29_however_often_a_call_is_made_its_change_is_made_once() {
    let mut fixture = Fixture::new().await;
    let mut answers = Vec::new();
    for (number, mutation) in mutations().iter().enumerate() {
        let (key, what) = (format!("key-{number}"), format!("{} {}", mutation.method, mutation.path));
        let before = fixture.rows().await;
        // At once, and then once more.
        let mut made = join_all([(); 3].map(|()| fixture.make(mutation, &key))).await;
        made.push(fixture.make(mutation, &key).await);
        assert_eq!(made.iter().filter(|(_, headers, _)| !is_replayed(headers)).count(), 1, "{what}");
        let (status, _, answer) = made[0].clone();
        assert_eq!(status, 200, "{what}: {answer}");
        assert!(made.iter().all(|(status, _, same)| (*status, same) == (200, &answer)), "{what}: {made:?}");
        assert_eq!(fixture.rows().await - before, mutation.rows, "{what}");
        if let Some(value) = answer.get(mutation.saves) {
            fixture.values.insert(mutation.saves.to_owned(), value.as_str().unwrap().to_owned());
        }

        // Cut off by a kill directly after its change was committed.
        fixture.cut_off(mutation, &key).await;
        let (status, headers, again) = fixture.make(mutation, &key).await;
        assert_eq!(status, 200, "{what}: {again}");
        assert_eq!(is_replayed(&headers), mutation.known == Answer, "{what}");
        if mutation.known == Answer {
            assert_eq!(again, answer, "{what}");
        }
        assert_eq!(fixture.rows().await - before, mutation.rows, "{what}, cut off");
        answers.push(again);
    }
    // Another orchestrator answers each of them as before, whatever has happened since then.
    let Fixture { app, platform_key, values } = fixture;
    let app = app.kill_and_replace().await;
    app.start().await;
    let fixture = Fixture { app, platform_key, values };
    let before = fixture.rows().await;
    for (number, (mutation, answer)) in mutations().iter().zip(answers).enumerate() {
        let (status, headers, again) = fixture.make(mutation, &format!("key-{number}")).await;
        assert!(is_replayed(&headers), "{} {}", mutation.method, mutation.path);
        assert_eq!((status, again), (200, answer), "{} {}", mutation.method, mutation.path);
    }
    assert_eq!(fixture.rows().await, before);
    fixture.app.assert_hash_chain().await;
}

/// Changes of a running engine that are cut off by a kill while the backend is at them: the audit log's event, and whether
/// the next orchestrator completes them.
const CUT_OFF: [(&str, &str, BackendCall, &str, bool); 4] = [
    ("POST", "/engines/ann/rotate-key", BackendCall::Rpc, "rotate_key", true),
    ("POST", "/engines/ann/stop", BackendCall::Stop, "stop", true),
    ("DELETE", "/engines/ann", BackendCall::Remove, "destroy", true),
    ("POST", "/engines/ann/start", BackendCall::Launch, "start", false),
];

#[tokio::test]
async fn regression_o29_a_change_of_an_engine_that_was_cut_off_is_not_made_twice() {
    for (method, path, backend_call, event, is_completed) in CUT_OFF {
        let fixture = Fixture::new().await;
        let product = ProductClient { app: &fixture.app, key: fixture.platform_key.clone() };
        product.provision("ann").await;
        if event == "start" {
            product.stop("ann").await;
        }
        let calls = fixture.app.backend.count(backend_call);
        // It takes effect, and nobody learns of it.
        fixture.app.backend.inject(backend_call, Fault::Delay(Duration::from_hours(1)));
        let mutation = call((Product, method, path), Value::Null, 1, Answer);
        let request = Request::builder().method(method).uri(path);
        let request =
            request.header("X-Platform-Key", &fixture.platform_key).header("Idempotency-Key", "key");
        let first = tokio::spawn(fixture.app.router().oneshot(request.body(Body::empty()).unwrap()));
        let Fixture { app, platform_key, values } = fixture;
        app.wait_until(|| app.backend.count(backend_call) > calls).await;
        // The next orchestrator cannot find out which key holds before it is asked.
        app.backend.set_health(SimulatedHealth::Unreachable);
        let app = app.kill_and_replace().await;
        drop(first);
        app.start().await;
        app.backend.clear_faults();
        app.backend.set_health(SimulatedHealth::Healthy);
        let fixture = Fixture { app, platform_key, values };
        let (status, headers, answer) = fixture.make(&mutation, "key").await;
        assert_eq!((status, is_replayed(&headers)), (200, is_completed), "{event}: {answer}");
        let lines = fixture.app.audit_lines().await;
        let made = lines.iter().filter(|line| line.split(' ').next() == Some(event)).count();
        assert_eq!(made, 1, "{event}: {lines:?}");
        let (status, headers, again) = fixture.make(&mutation, "key").await;
        assert_eq!((status, is_replayed(&headers), &again), (200, true, &answer), "{event}");
        if let Some(key) = answer["new_api_key"].as_str() {
            let product = ProductClient { app: &fixture.app, key: fixture.platform_key.clone() };
            assert_eq!(product.get("ann").await.1["api_key"], key);
        }
    }
}

#[tokio::test]
async fn after_a_failure_the_call_is_executed_again() {
    let fixture = Fixture::new().await;
    let product = ProductClient { app: &fixture.app, key: fixture.platform_key.clone() };
    product.provision("ann").await;
    let lost = Fault::Error(BackendError::Failed("the connection broke".into()));
    fixture.app.backend.inject(BackendCall::Rpc, lost);
    let rotate = call((Product, "POST", "/engines/ann/rotate-key"), Value::Null, 1, Answer);
    // Those who come meanwhile get the failure, too.
    let failed = join_all([(); 2].map(|()| fixture.make(&rotate, "key"))).await;
    assert!(failed.iter().all(|(status, ..)| *status == 502), "{failed:?}");
    let (status, headers, rotated) = fixture.make(&rotate, "key").await;
    assert_eq!((status, is_replayed(&headers)), (200, false), "{rotated}");
    assert_eq!(product.get("ann").await.1["api_key"], rotated["new_api_key"]);
}

#[tokio::test]
async fn a_product_is_deleted_once_and_takes_its_calls_with_it() {
    let fixture = Fixture::new().await;
    let operator = |method, path, body| call((Operator, method, path), body, 1, Answer);
    let keys = operator("POST", "/products/{product}/keys", json!({}));
    assert_eq!(fixture.make(&keys, "key").await.0, 200);
    assert_eq!(
        fixture.make(&operator("POST", "/products/{product}/disable", Value::Null), "disable").await.0,
        200
    );
    let path = fixture.path("/products/{product}/deletion");
    let (_, _, plan) = fixture.app.send("GET", &path, &[("X-Admin-Key", ADMIN_KEY)], "").await;
    let path = format!(
        "/products/{}?confirmation={}",
        fixture.values["product"],
        plan["confirmation"].as_str().unwrap()
    );
    let delete = async || {
        let headers = [("X-Admin-Key", ADMIN_KEY), ("Idempotency-Key", "delete")];
        fixture.app.send("DELETE", &path, &headers, "").await
    };
    let (status, _, begun) = delete().await;
    assert_eq!((status, &begun["state"]), (200, &json!("deleting")), "{begun}");
    fixture
        .app
        .advance_until(Duration::from_secs(1), async || {
            let path = fixture.path("/products/{product}");
            let (_, _, product) = fixture.app.send("GET", &path, &[("X-Admin-Key", ADMIN_KEY)], "").await;
            product["state"] == "deleted"
        })
        .await;
    let (status, headers, again) = delete().await;
    assert_eq!((status, is_replayed(&headers), again), (200, true, begun));
    // Cut off after its change: it is answered by what the product is now, and not refused.
    let deletion = call((Operator, "DELETE", "/products/{product}"), Value::Null, 1, Change);
    fixture.cut_off(&deletion, "delete").await;
    let (status, _, again) = delete().await;
    assert_eq!((status, &again["state"]), (200, &json!("deleted")), "{again}");
    // The answer with a key of the product is gone.
    let (status, _, answer) = fixture.make(&keys, "key").await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("PRODUCT_NOT_FOUND")));
}

#[tokio::test]
async fn regression_o29_a_key_is_of_one_request_of_one_caller() {
    let fixture = Fixture::new().await;
    let app = &fixture.app;
    let provision = async |key: &[(&str, &str)], path: &str, user: &str| {
        let headers = [key, &[("Idempotency-Key", "same")]].concat();
        let (status, headers, answer) =
            app.send("POST", path, &headers, &json!({"user_id": user}).to_string()).await;
        (status, is_replayed(&headers), answer)
    };
    let path = "/engines/provision";
    let demo = [("X-Platform-Key", fixture.platform_key.as_str())];
    let (status, _, first) = provision(&demo, path, "ann").await;
    assert_eq!(status, 200, "{first}");
    for (path, user) in [(path, "bob"), ("/engines/provision?a=b", "ann")] {
        let (status, replayed, refused) = provision(&demo, path, user).await;
        assert_eq!((status, replayed), (422, false), "{refused}");
        assert_eq!(refused["error"]["code"], "IDEMPOTENCY_KEY_REUSED");
    }
    // Another product, and the operator for either, have keys of their own.
    let other = app.register_product("other", json!({})).await;
    let (status, replayed, answer) = provision(&[("X-Platform-Key", &other.key)], path, "ann").await;
    assert_eq!((status, replayed), (200, false), "{answer}");
    assert_ne!(answer["engine_id"], first["engine_id"]);
    let for_demo = [("X-Admin-Key", ADMIN_KEY), ("X-Product-Id", fixture.values["product"].as_str())];
    let (status, replayed, refused) = provision(&for_demo, path, "ann").await;
    assert_eq!((status, replayed, &refused["error"]["code"]), (409, false, &json!("ENGINE_ALREADY_EXISTS")));
    // What was refused is answered so again, also after its reason is gone.
    assert_eq!(ProductClient { app, key: fixture.platform_key.clone() }.delete("ann").await.0, 200);
    let (status, replayed, again) = provision(&for_demo, path, "ann").await;
    assert_eq!((status, replayed, again), (409, true, refused));
    assert_eq!(provision(&demo, path, "ann").await, (200, true, first));
    // Whoever has no valid key gets nothing.
    let (status, _, answer) = provision(&[("X-Platform-Key", "pk-svc-unknown")], path, "ann").await;
    assert_eq!((status, &answer["error"]["code"]), (401, &json!("INVALID_PLATFORM_KEY")));
}

#[tokio::test]
async fn what_is_not_understood_is_not_remembered_and_what_is_no_key_is_refused() {
    let fixture = Fixture::new().await;
    let app = &fixture.app;
    let send = async |keys: &[&str], body: &str| {
        let mut headers = vec![("X-Admin-Key", ADMIN_KEY)];
        headers.extend(keys.iter().map(|key| ("Idempotency-Key", *key)));
        let (status, headers, answer) = app.send("POST", "/products/register", &headers, body).await;
        (status, is_replayed(&headers), answer["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    let valid = json!({"slug": "shop", "display_name": "Shop"}).to_string();
    let invalid = (400, false, "INVALID_REQUEST".to_owned());
    let too_long = "x".repeat(256);
    for keys in [&[""][..], &["a b"], &["a\tb"], &[&too_long], &["one", "one"], &["one", "two"]] {
        assert_eq!(send(keys, &valid).await, invalid, "{keys:?}");
    }
    // The same key may be used for the request that was meant.
    assert_eq!(send(&["one"], "{").await, invalid);
    assert_eq!(send(&["one"], &valid).await, (200, false, String::new()));
    assert_eq!(send(&["one"], &valid).await, (200, true, String::new()));
    assert_eq!(app.rows("SELECT call_id FROM idempotent_calls").await.len(), 1);
    // An admit has no key: each is one.
    let headers = [("X-Platform-Key", fixture.platform_key.as_str()), ("Idempotency-Key", "not a key")];
    let (status, _, answer) = app.send("POST", "/engines/ann/admit", &headers, "").await;
    assert_eq!((status, &answer["reason"]), (200, &json!("engine_not_found")));
}

#[tokio::test]
async fn an_answer_is_kept_for_a_day() {
    let fixture = Fixture::new().await;
    let app = &fixture.app;
    let create = call((Operator, "POST", "/products/{product}/keys"), json!({}), 1, Answer);
    let (_, _, first) = fixture.make(&create, "key").await;
    app.shift_wall(KEPT_MS - 1);
    let (_, headers, again) = fixture.make(&create, "key").await;
    assert!(is_replayed(&headers));
    assert_eq!(again, first);
    app.shift_wall(1);
    let (status, headers, another) = fixture.make(&create, "key").await;
    assert_eq!((status, is_replayed(&headers)), (200, false));
    assert_ne!(another["key_id"], first["key_id"]);
    app.shift_wall(KEPT_MS);
    app.advance_until(Duration::from_secs(1), async || {
        app.rows("SELECT call_id FROM idempotent_calls").await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn no_answer_is_stored_as_it_is() {
    let fixture = Fixture::new().await;
    let app = &fixture.app;
    let mut secrets = Vec::new();
    for (number, (path, body, name)) in [
        ("/engines/provision", json!({"user_id": "ann"}), "api_key"),
        ("/engines/ann/rotate-key", Value::Null, "new_api_key"),
        ("/engines/ann/tokens", json!({"scopes": ["chat"]}), "token"),
        ("/webhooks", json!({"url": "https://product.invalid/x"}), "secret"),
    ]
    .into_iter()
    .enumerate()
    {
        let (_, _, answer) = fixture
            .make(&call((Product, "POST", path), body, 1, Answer), &format!("secret-key-{number}"))
            .await;
        secrets.push(answer[name].as_str().unwrap().to_owned());
    }
    let create = call((Operator, "POST", "/products/{product}/keys"), json!({}), 1, Answer);
    secrets
        .push(fixture.make(&create, "secret-key").await.2["platform_api_key"].as_str().unwrap().to_owned());
    let columns = "SELECT call_id || caller || fingerprint || answer FROM idempotent_calls";
    let stored = format!("{}{:?}", app.dump().await, app.rows(columns).await);
    for secret in secrets.iter().map(String::as_str).chain(["secret-key"]) {
        assert!(!stored.contains(secret), "{secret} is stored");
    }
}

#[tokio::test]
async fn a_caller_has_a_limited_number_of_calls_under_way() {
    let fixture = Fixture::new().await;
    // As many as there may be, and one more.
    let provisions: Vec<_> = (0..=MAX_UNDER_WAY_OF_CALLER)
        .map(|user| {
            call(
                (Product, "POST", "/engines/provision"),
                json!({"user_id": format!("user-{user}")}),
                1,
                Answer,
            )
        })
        .collect();
    let made = join_all(provisions.iter().enumerate().map(|(number, provision)| {
        let fixture = &fixture;
        async move { fixture.make(provision, &format!("key-{number}")).await }
    }))
    .await;
    let refused: Vec<_> = made.iter().filter(|(status, ..)| *status == 409).collect();
    assert_eq!(refused.len(), 1, "{made:?}");
    let (_, headers, answer) = refused[0];
    assert_eq!(
        (&answer["error"]["code"], &headers["retry-after"]),
        (&json!("IDEMPOTENCY_KEY_IN_USE"), &"1".parse().unwrap())
    );
    // It can be repeated.
    let number = made.iter().position(|(status, ..)| *status == 409).unwrap();
    assert_eq!(fixture.make(&provisions[number], &format!("key-{number}")).await.0, 200);
}
