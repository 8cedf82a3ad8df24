//! Webhooks of the audit log: their settings and bounds, what a day of failures leaves, and what the next orchestrator
//! goes on with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use api::audit_webhooks::MAX_DEAD_LETTERS;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::domain::webhook_progress::GivenUp;
use crate::registry::ProgressUpdate;
use crate::testing::{ADMIN_KEY, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

/// A receiver, which answers with `status`.
struct Receiver {
    url: String,
    status: Arc<AtomicU16>,
    /// The rows that were accepted.
    accepted: Arc<Mutex<Vec<i64>>>,
    task: tokio::task::AbortHandle,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/rows", listener.local_addr().unwrap());
        let (status, accepted) = (Arc::new(AtomicU16::new(204)), Arc::default());
        let (answer, rows) = (Arc::clone(&status), Arc::clone(&accepted));
        let handler = async move |body: String| {
            let status = StatusCode::from_u16(answer.load(Ordering::SeqCst)).unwrap();
            if status.is_success() {
                let body: Value = serde_json::from_str(&body).unwrap();
                let rows: &Mutex<Vec<i64>> = &rows;
                rows.lock().push(body["data"]["id"].as_i64().unwrap());
            }
            status
        };
        let router = Router::new().route("/rows", post(handler));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, status, accepted, task: task.abort_handle() }
    }

    /// The rows that were accepted, sorted: those of several lanes have no order.
    fn accepted(&self) -> Vec<i64> {
        let mut rows = self.accepted.lock().clone();
        rows.sort_unstable();
        rows
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn create(product: &ProductClient<'_>, body: Value) -> Value {
    let (status, created) = product.call("POST", "/webhooks", &body).await;
    assert_eq!(status, 200, "{created}");
    created
}

fn id_of(webhook: &Value) -> &str {
    webhook["webhook_id"].as_str().unwrap()
}

async fn webhook(product: &ProductClient<'_>, id: &str) -> Value {
    product.get_path(&format!("/webhooks/{id}")).await.1
}

/// Waits until every row of the audit log is settled.
async fn wait_settled(app: &TestApp, product: &ProductClient<'_>, id: &str) {
    let is_settled = async || {
        let rows = product.get_path("/audit?limit=1").await.1;
        let webhook = webhook(product, id).await;
        webhook["position"] == rows["rows"][0]["id"] && webhook["behind"] == 0
    };
    app.advance_until(SECOND, is_settled).await;
}

#[tokio::test]
async fn a_products_webhooks_are_its_own_few_and_in_its_audit_log() {
    let app = TestApp::new().await;
    let (product, other) =
        (app.register_product("demo", json!({})).await, app.register_product("other", json!({})).await);
    let body = json!({"url": "https://product.invalid/x?key=secret", "events": ["start", "start", "stop"]});
    let created = create(&product, body.clone()).await;
    let secret = created["secret"].as_str().unwrap();
    assert!(secret.starts_with("whsec_"), "{created}");
    assert_eq!((&created["events"], &created["position"]), (&json!(["start", "stop"]), &json!(2)));
    let id = id_of(&created);
    let (_, list) = product.get_path("/webhooks").await;
    assert_eq!((list["webhooks"].as_array().unwrap().len(), id_of(&list["webhooks"][0])), (1, id));
    assert!(!list.to_string().contains("whsec_"), "{list}");
    assert_eq!(other.get_path("/webhooks").await.1, json!({"webhooks": []}));
    for (method, path) in [
        ("GET", format!("/webhooks/{id}")),
        ("PATCH", format!("/webhooks/{id}")),
        ("DELETE", format!("/webhooks/{id}")),
        ("POST", format!("/webhooks/{id}/secret")),
        ("GET", format!("/webhooks/{id}/dead-letters")),
        ("POST", format!("/webhooks/{id}/dead-letters/retry")),
    ] {
        assert_eq!(summarize(other.call(method, &path, &Value::Null).await), "404 WEBHOOK_NOT_FOUND");
    }
    for bad in [
        json!({"url": "https://product.invalid", "events": ["nothing"]}),
        json!({"url": "https://product.invalid", "after": -1}),
        json!({"url": "https://product.invalid", "after": 99}),
        json!({"url": "https://10.0.0.1/"}),
        json!({"events": []}),
    ] {
        assert_eq!(summarize(product.call("POST", "/webhooks", &bad).await), "400 INVALID_REQUEST", "{bad}");
    }
    for _ in 1..10 {
        create(&product, body.clone()).await;
    }
    assert_eq!(summarize(product.call("POST", "/webhooks", &body).await), "429 WEBHOOK_LIMIT");

    let path = format!("/webhooks/{id}");
    let (_, paused) = product.call("PATCH", &path, &json!({"paused": true, "events": []})).await;
    assert_eq!((&paused["state"], &paused["events"]), (&json!("paused"), &json!([])));
    let product_id = product.product_id().await;
    let operator = [("X-Admin-Key", ADMIN_KEY), ("X-Product-Id", product_id.as_str())];
    let (status, _, rotated) = app.send("POST", &format!("{path}/secret"), &operator, "").await;
    assert!(status == 200 && rotated["secret"] != created["secret"], "{rotated}");
    app.while_time_passes(SECOND * 60, app.sleep(SECOND * 24 * 3_600)).await;
    assert_eq!(webhook(&product, id).await["old_secret_expires_at"], Value::Null);
    let many = json!({"rows": (1..=1_001).collect::<Vec<_>>()});
    let refused = product.call("POST", &format!("{path}/dead-letters/discard"), &many).await;
    assert_eq!(summarize(refused), "400 INVALID_REQUEST");
    assert_eq!(product.call("DELETE", &path, &Value::Null).await.0, 200);
    assert_eq!(summarize(product.call("DELETE", &path, &Value::Null).await), "404 WEBHOOK_NOT_FOUND");

    let (_, log) = product.get_path("/audit").await;
    let rows = log["rows"].as_array().unwrap();
    let events: Vec<_> = rows.iter().rev().map(|row| row["event"].as_str().unwrap()).collect();
    let mut expected = vec!["register"];
    expected.extend(["create_webhook"; 10]);
    expected.extend(["update_webhook", "rotate_webhook_secret", "delete_webhook"]);
    assert_eq!(events, expected);
    assert_eq!(rows[1]["detail"]["actor"], "admin");
    assert!(!log.to_string().contains("whsec_") && !log.to_string().contains("key=secret"), "{log}");
    app.assert_hash_chain().await;
}

#[tokio::test]
async fn the_next_orchestrator_goes_on_where_a_killed_one_was() {
    let app = TestApp::new().await;
    let receiver = Receiver::start().await;
    let product = app.register_product("demo", json!({})).await;
    let id = id_of(&create(&product, json!({"url": receiver.url, "after": 0})).await).to_owned();
    product.provision("ann").await;
    wait_settled(&app, &product, &id).await;
    assert_eq!(receiver.accepted(), [1, 2, 3]);
    receiver.status.store(500, Ordering::SeqCst);
    product.stop("ann").await;
    app.advance_until(SECOND, async || webhook(&product, &id).await["behind"] == 1).await;
    let key = product.key.clone();
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = ProductClient { app: &app, key };
    product.start("ann").await;
    receiver.status.store(204, Ordering::SeqCst);
    wait_settled(&app, &product, &id).await;
    assert_eq!(receiver.accepted(), [1, 2, 3, 4, 5]);
    assert_eq!(webhook(&product, &id).await["last_error"], "the receiver answered 500");
    // Nothing is sent by a webhook that is paused.
    let path = format!("/webhooks/{id}");
    product.call("PATCH", &path, &json!({"paused": true})).await;
    product.stop("ann").await;
    app.while_time_passes(SECOND, app.sleep(SECOND * 60)).await;
    assert_eq!(receiver.accepted().len(), 5);
    product.call("PATCH", &path, &json!({"paused": false})).await;
    wait_settled(&app, &product, &id).await;
    assert_eq!(receiver.accepted()[5..], [6, 7, 8]);
}

#[tokio::test]
async fn after_a_day_of_failures_a_row_is_a_dead_letter_until_it_is_settled() {
    let app = TestApp::new().await;
    let receiver = Receiver::start().await;
    receiver.status.store(500, Ordering::SeqCst);
    let product = app.register_product("demo", json!({})).await;
    let created = create(&product, json!({"url": receiver.url, "after": 0, "events": ["register"]})).await;
    let (id, begun) = (id_of(&created), app.elapsed());
    let letters = format!("/webhooks/{id}/dead-letters");
    let has_letter = async || product.get_path(&letters).await.1["dead_letters"][0]["row"]["id"] == 1;
    app.advance_until(SECOND * 30, has_letter).await;
    let (hour, tried) = (SECOND * 3_600, app.since(begun));
    assert!((hour * 23..hour * 26).contains(&tried), "{tried:?}");
    let (_, list) = product.get_path(&letters).await;
    let attempts = list["dead_letters"][0]["attempts"].as_u64().unwrap();
    assert!((25..60).contains(&attempts), "{list}");
    wait_settled(&app, &product, id).await;
    assert_eq!(webhook(&product, id).await["dead_letters"], 1);
    assert_eq!(product.get_path(&format!("{letters}?after=1")).await.1, json!({"dead_letters": []}));

    // Once more: in vain, and then not.
    let retry = format!("{letters}/retry");
    assert_eq!(product.call("POST", &retry, &json!({"rows": [1]})).await.1, json!({"count": 1}));
    let again = async || {
        let (_, list) = product.get_path(&letters).await;
        list["dead_letters"][0]["attempts"] == attempts + 1 && list["dead_letters"][0]["retrying"] == false
    };
    app.advance_until(SECOND, again).await;
    receiver.status.store(204, Ordering::SeqCst);
    assert_eq!(product.call("POST", &retry, &json!({})).await.1, json!({"count": 1}));
    let is_empty = async || product.get_path(&letters).await.1 == json!({"dead_letters": []});
    app.advance_until(SECOND, is_empty).await;
    assert_eq!(receiver.accepted(), [1]);
    product.call("POST", &format!("/webhooks/{id}/replay"), &json!({"after": 0})).await;
    wait_settled(&app, &product, id).await;
    assert_eq!(receiver.accepted(), [1, 1]);
}

#[tokio::test]
async fn dead_letters_are_bounded_and_progress_under_former_settings_is_not_stored() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let created = create(&product, json!({"url": "https://product.invalid/x"})).await;
    let id = id_of(&created);
    let path = format!("/webhooks/{id}");
    product.call("PATCH", &path, &json!({"paused": true})).await;
    let registry = app.orchestrator.fleet().registry();
    let count = i64::try_from(MAX_DEAD_LETTERS).unwrap() + 5;
    let given_up = (1..=count).map(|row| GivenUp { row, attempts: 9, error: "in vain".to_owned() }).collect();
    let update = ProgressUpdate { position: 7, given_up, ..ProgressUpdate::default() };
    let webhook_id = id.parse().unwrap();
    let now = api::Timestamp::from_unix_ms(app.wall_ms());
    assert!(!registry.save_webhook_progress(webhook_id, 1, &update, now).await.unwrap());
    assert_eq!(webhook(&product, id).await["dead_letters"], 0);
    assert!(registry.save_webhook_progress(webhook_id, 2, &update, now).await.unwrap());
    let shown = webhook(&product, id).await;
    assert_eq!(
        (&shown["dead_letters"], &shown["dead_letters_dropped"], &shown["position"]),
        (&json!(MAX_DEAD_LETTERS), &json!(5), &json!(7))
    );
    // The oldest were dropped: row 1, which the log has, is not among them.
    assert_eq!(product.get_path(&format!("{path}/dead-letters")).await.1, json!({"dead_letters": []}));
    let discarded = product.call("POST", &format!("{path}/dead-letters/discard"), &json!({})).await;
    assert_eq!(discarded.1, json!({"count": MAX_DEAD_LETTERS}));
    assert_eq!(webhook(&product, id).await["dead_letters"], 0);
}
