//! Rows of the audit log are sent to the product's own receivers: whatever these do, each row comes, in order per engine.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::audit_receiver::{ACCEPT, AuditReceiver, ReceivedRow, Reply, signature};
use crate::support::{Deployment, HttpResponse, Orchestrator, Product, assert_fields, eventually};

pub(crate) const WEBHOOK: &str = "webhook_id:text url:text events:array state:text created_at:time updated_at:time \
    position:number behind:number delivered_at:time|null last_error:text|null dead_letters:number \
    dead_letters_dropped:number old_secret_expires_at:time|null";

/// A deployment whose webhooks may reach this machine, and that is in a hurry.
pub(crate) fn deployment() -> Deployment {
    Deployment::new()
        .with_env("ORCH_WEBHOOK_ALLOW", "127.0.0.1")
        .with_env("ORCH_WEBHOOK_TIMEOUT_S", "2")
        .with_env("ORCH_WEBHOOK_BACKOFF_BASE_S", "0.1")
        .with_env("ORCH_WEBHOOK_BACKOFF_MAX_S", "0.5")
}

impl Product {
    /// Creates a webhook to a receiver, which learns its secret; returns its id.
    pub(crate) async fn create_webhook(&self, receiver: &AuditReceiver, more: Value) -> String {
        let mut body = receiver.webhook();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let created = self.call(Method::POST, "/webhooks", Some(body)).await;
        let created = created.assert_ok(&format!("secret:text {WEBHOOK}"));
        let secret = created["secret"].as_str().unwrap();
        receiver.state().secrets.push(secret.to_owned());
        created["webhook_id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn webhook(&self, id: &str) -> Value {
        self.call(Method::GET, &format!("/webhooks/{id}"), None).await.assert_ok(WEBHOOK)
    }

    pub(crate) async fn post_webhook(&self, id: &str, path: &str, body: Value) -> HttpResponse {
        self.call(Method::POST, &format!("/webhooks/{id}/{path}"), Some(body)).await
    }

    /// Lets the audit log of a user's engine have another row.
    pub(crate) async fn add_row(&self, user: &str) -> bool {
        let body = json!({"scopes": ["read"], "lifetime_s": 60});
        self.call(Method::POST, &format!("/engines/{user}/tokens"), Some(body)).await.status == 200
    }

    /// The ids of the rows of the audit log.
    pub(crate) async fn row_ids(&self) -> BTreeSet<i64> {
        let mut ids = BTreeSet::new();
        loop {
            let before = ids.first().map(|id: &i64| format!("&before={id}")).unwrap_or_default();
            let path = format!("/audit?limit=1000{before}");
            let rows = self.call(Method::GET, &path, None).await.assert_ok("rows:array");
            let page: Vec<_> =
                rows["rows"].as_array().unwrap().iter().map(|row| row["id"].as_i64().unwrap()).collect();
            if page.is_empty() {
                return ids;
            }
            ids.extend(page);
        }
    }

    async fn wait_webhook(&self, id: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(what, async || Some(self.webhook(id).await).filter(|webhook| holds(webhook))).await
    }

    async fn dead_letters(&self, id: &str) -> Vec<Value> {
        let path = format!("/webhooks/{id}/dead-letters");
        let list = self.call(Method::GET, &path, None).await.assert_ok("dead_letters:array");
        list["dead_letters"].as_array().unwrap().clone()
    }
}

/// Waits until an orchestrator has stored that a webhook has come to the end of the audit log.
pub(crate) async fn wait_settled(product: &Product, id: &str) {
    eventually("the webhook is settled", async || {
        let webhook = product.webhook(id).await;
        let end = product.row_ids().await.last().copied();
        (webhook["position"].as_i64() == end && webhook["behind"] == 0).then_some(())
    })
    .await;
}

async fn start(deployment: &Deployment) -> (Orchestrator, Product, AuditReceiver) {
    let (orchestrator, product) = deployment.start_with_product().await;
    for user in ["ada", "bob"] {
        product.engine(user).await;
    }
    (orchestrator, product, AuditReceiver::start().await)
}

#[tokio::test]
async fn each_row_comes_in_the_order_of_its_engine_whatever_the_receiver_does() {
    let deployment = deployment();
    let (_orchestrator, product, mut receiver) = start(&deployment).await;
    // Each row fails in another way at first, and each way more than once.
    let other = AuditReceiver::start().await;
    let redirect = format!("HTTP/1.1 307 So\r\nlocation: {}\r\ncontent-length: 0\r\n\r\n", other.url());
    let endless = "HTTP/1.1 500 So\r\ncontent-length: 99999999\r\n\r\n{".to_owned();
    let mut tried = BTreeSet::new();
    receiver.answer(move |row| {
        if !tried.insert(row.id) {
            return ACCEPT;
        }
        match row.id % 8 {
            0 => Reply::Status(500),
            1 => Reply::Cut,
            2 => Reply::Raw(redirect.clone()),
            3 => Reply::Raw("HTTP/1.1 503 So\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n".to_owned()),
            4 => Reply::Raw(endless.clone()),
            5 => Reply::Raw("What?\r\n\r\n".to_owned()),
            // Accepted: only the status counts, also of an answer that lies about its length.
            6 => Reply::Raw("HTTP/1.1 200 So\r\ncontent-length: 1000\r\n\r\nshort".to_owned()),
            _ => Reply::Status(400),
        }
    });
    let id = product.create_webhook(&receiver, json!({"after": 0})).await;
    for _ in 0..10 {
        assert!(product.add_row("ada").await && product.add_row("bob").await);
    }
    receiver.wait_accepted(&product.row_ids().await).await;
    wait_settled(&product, &id).await;
    assert_eq!(other.state().received.len(), 0, "nothing is redirected");
    assert!(receiver.state().received.iter().any(|row| row.attempt == 2));
    // What is sent is the row of the audit log.
    let rows = product.call(Method::GET, "/audit?limit=1000", None).await.body["rows"].take();
    for row in &receiver.state().accepted {
        let found = rows.as_array().unwrap().iter().find(|found| found["id"] == row.id);
        assert_eq!(found, Some(&row.body["data"]));
    }

    // Away, and slow.
    receiver.go_away();
    for _ in 0..3 {
        assert!(product.add_row("ada").await && product.add_row("bob").await);
    }
    product.wait_webhook(&id, "it fails", |webhook| webhook["behind"] == 2).await;
    let mut first = true;
    receiver.answer(
        move |_| if std::mem::take(&mut first) { Reply::After(Duration::from_mins(1)) } else { ACCEPT },
    );
    receiver.come_back().await;
    receiver.wait_accepted(&product.row_ids().await).await;
    wait_settled(&product, &id).await;
    let webhook = product.webhook(&id).await;
    assert!(!webhook["last_error"].is_null() && !webhook["delivered_at"].is_null(), "{webhook}");

    // An engine that is destroyed is reported to the end.
    product.delete("bob").await.assert_ok("status:text engine_id:engine");
    receiver.wait_accepted(&product.row_ids().await).await;
    let last = receiver.state().accepted.last().unwrap().body.clone();
    assert_eq!((&last["type"], &last["data"]["user_id"]), (&json!("audit.destroy"), &json!("bob")));
    assert_eq!(product.dead_letters(&id).await, [Value::Null; 0]);
}

#[tokio::test]
async fn a_row_that_is_never_accepted_becomes_a_dead_letter_and_holds_only_its_engine_meanwhile() {
    let deployment = deployment().with_env("ORCH_WEBHOOK_GIVE_UP_S", "4");
    let (_orchestrator, product, receiver) = start(&deployment).await;
    let rows = product.row_ids().await;
    let bad = rows.last().unwrap() + 2;
    receiver.answer(move |row| if row.id == bad { Reply::Status(422) } else { ACCEPT });
    let id = product.create_webhook(&receiver, json!({"events": ["mint_token"]})).await;
    assert!(product.add_row("ada").await && product.add_row("ada").await && product.add_row("bob").await);
    receiver.wait_accepted(&[bad + 2].into()).await;
    assert!(receiver.state().accepted.iter().all(|row| row.id != bad + 1), "its engine waits for it");
    receiver.wait_accepted(&[bad + 1, bad + 2].into()).await;
    assert!(receiver.state().received.iter().all(|row| row.body["type"] == "audit.mint_token"));
    let letters = product.dead_letters(&id).await;
    assert_eq!(letters.len(), 1);
    assert_fields(&letters[0], "row:object failed_at:time attempts:number error:text retrying:bool");
    assert_eq!(
        (&letters[0]["row"]["id"], &letters[0]["error"]),
        (&json!(bad), &json!("the receiver answered 422"))
    );
    assert!(letters[0]["attempts"].as_u64().unwrap() > 3, "{letters:?}");

    // Once more, in vain; then with success.
    let retried = product.post_webhook(&id, "dead-letters/retry", json!({"rows": [bad, 99]})).await;
    assert_eq!(retried.assert_ok("count:number")["count"], 1);
    let attempts = letters[0]["attempts"].as_u64().unwrap();
    eventually("it was tried once more", async || {
        let letter = product.dead_letters(&id).await.pop().unwrap();
        (letter["attempts"] == attempts + 1 && letter["retrying"] == false).then_some(())
    })
    .await;
    receiver.accept_all();
    product.post_webhook(&id, "dead-letters/retry", json!({})).await.assert_ok("count:number");
    eventually("it is delivered", async || product.dead_letters(&id).await.is_empty().then_some(())).await;
    assert_eq!(receiver.state().accepted.last().unwrap().id, bad);

    // Everything again, which forgets the dead letters of these rows; and what is discarded is gone.
    receiver.answer(move |row| if row.id == bad { Reply::Status(422) } else { ACCEPT });
    let before = receiver.state().accepted.len();
    product.post_webhook(&id, "replay", json!({"after": bad - 1})).await.assert_ok(WEBHOOK);
    let letter = async || product.dead_letters(&id).await.pop();
    eventually("it is given up again", letter).await;
    eventually("its engine goes on", async || (receiver.state().accepted.len() >= before + 2).then_some(()))
        .await;
    let again: BTreeSet<i64> = receiver.state().accepted[before..].iter().map(|row| row.id).collect();
    assert_eq!(again, [bad + 1, bad + 2].into());
    let discarded = product.post_webhook(&id, "dead-letters/discard", json!({"rows": [bad]})).await;
    assert_eq!(discarded.assert_ok("count:number")["count"], 1);
    assert_eq!(product.dead_letters(&id).await.len(), 0);
    product
        .post_webhook(&id, "replay", json!({"after": 1_000_000}))
        .await
        .assert_error(400, "INVALID_REQUEST");
}

#[tokio::test]
async fn a_receiver_that_is_gone_pauses_its_webhook_and_a_deleted_one_gets_nothing_more() {
    let deployment = deployment();
    let (_orchestrator, product, receiver) = start(&deployment).await;
    receiver.answer(|_| Reply::Status(410));
    let id = product.create_webhook(&receiver, json!({})).await;
    assert!(product.add_row("ada").await);
    product.wait_webhook(&id, "it is gone", |webhook| webhook["state"] == "gone").await;
    let seen = receiver.state().received.len();
    assert!(product.add_row("ada").await);
    receiver.accept_all();
    let path = format!("/webhooks/{id}");
    let resumed = product.call(Method::PATCH, &path, Some(json!({"paused": false}))).await.assert_ok(WEBHOOK);
    assert_eq!(resumed["state"], "active");
    receiver
        .wait_accepted(&product.row_ids().await.split_off(&(resumed["position"].as_i64().unwrap() + 1)))
        .await;
    let of_ada = |row: &&ReceivedRow| row.user == "ada";
    let first = receiver.state().received[seen..].iter().find(of_ada).map(|row| row.id);
    assert_eq!(first, receiver.state().received.first().map(|row| row.id), "what was refused comes first");

    // Paused: rows wait. Another address gets them.
    product.call(Method::PATCH, &path, Some(json!({"paused": true}))).await.assert_ok(WEBHOOK);
    let seen = receiver.state().received.len();
    assert!(product.add_row("ada").await);
    let other = AuditReceiver::start().await;
    let change = json!({"url": other.url(), "paused": false, "events": []});
    product.call(Method::PATCH, &path, Some(change)).await.assert_ok(WEBHOOK);
    let last = *product.row_ids().await.last().unwrap();
    other.wait_accepted(&[last].into()).await;
    assert_eq!(receiver.state().received.len(), seen);

    // Deleted while a request is under way.
    other.answer(|_| Reply::After(Duration::from_millis(200)));
    let count = other.state().received.len();
    assert!(product.add_row("ada").await && product.add_row("bob").await);
    other.wait_received(count + 1).await;
    product.call(Method::DELETE, &path, None).await.assert_ok("webhook_id:text deleted_at:time");
    let count = other.state().received.len();
    assert!(product.add_row("ada").await);
    product.call(Method::GET, &path, None).await.assert_error(404, "WEBHOOK_NOT_FOUND");
    // Another webhook of the same receiver shows that time has passed.
    let second = product.create_webhook(&receiver, json!({"after": last})).await;
    wait_settled(&product, &second).await;
    assert_eq!(other.state().received.len(), count);
    let events: Vec<_> = product.audit_rows("update_webhook").await;
    assert_eq!(events.len(), 4, "{events:?}");
    assert_eq!(events[0].1, json!({"webhook_id": id, "state": "gone"}));
}

#[tokio::test]
async fn a_secret_is_rotated_with_an_overlap_and_survives_a_restart() {
    let deployment = deployment();
    let (orchestrator, product, receiver) = start(&deployment).await;
    let id = product.create_webhook(&receiver, json!({})).await;
    let rotated = product.post_webhook(&id, "secret", json!({})).await;
    let rotated = rotated.assert_ok("webhook_id:text secret:text old_secret_expires_at:time");
    assert_eq!(product.webhook(&id).await["old_secret_expires_at"], rotated["old_secret_expires_at"]);
    let _orchestrator = deployment.kill_and_start(orchestrator).await;
    assert!(product.add_row("ada").await);
    wait_settled(&product, &id).await;
    let row = receiver.state().accepted.last().unwrap().clone();
    assert_eq!(row.signatures.len(), 2);
    // With the old secret alone the receiver accepted it; the new one is there, too.
    let secrets = receiver.state().secrets.clone();
    assert!(secrets.len() == 1 && secrets[0] != rotated["secret"].as_str().unwrap());
    receiver.state().secrets = vec![rotated["secret"].as_str().unwrap().to_owned()];
    assert!(product.add_row("ada").await);
    receiver.wait_accepted(&[*product.row_ids().await.last().unwrap()].into()).await;
    // The reference implementations' example.
    let signed = br#"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}"#;
    let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    assert_eq!(signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", signed), expected);
    // The registry has the secrets sealed.
    for secret in secrets.iter().map(String::as_str).chain(rotated["secret"].as_str()) {
        let folder = deployment.fleet.folder();
        for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let bytes = if file.is_file() { std::fs::read(&file).unwrap() } else { Vec::new() };
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{} has a secret", file.display());
        }
    }
}

#[tokio::test]
async fn no_webhook_reaches_what_is_not_public_unless_the_operator_allows_it() {
    let deployment = Deployment::new().with_env("ORCH_WEBHOOK_BACKOFF_BASE_S", "0.1");
    let (_orchestrator, product, receiver) = start(&deployment).await;
    for url in [
        receiver.url().as_str(),
        "https://127.0.0.1/x",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/x",
        "https://[::ffff:10.0.0.1]/x",
        "https://2130706433/",
        "http://product.example/x",
        "ftp://product.example/x",
        "https://user:password@product.example/x",
        "not an address",
        "",
    ] {
        let refused = product.call(Method::POST, "/webhooks", Some(json!({"url": url}))).await;
        refused.assert_error(400, "INVALID_REQUEST");
    }
    // A name is resolved when it is sent to.
    let port = receiver.url().split([':', '/']).nth(4).unwrap().to_owned();
    let body = json!({"url": format!("https://localhost:{port}/x"), "after": 0});
    let created = product.call(Method::POST, "/webhooks", Some(body)).await;
    let id = created.assert_ok(&format!("secret:text {WEBHOOK}"))["webhook_id"].as_str().unwrap().to_owned();
    let failed = product.wait_webhook(&id, "it is refused", |webhook| !webhook["last_error"].is_null()).await;
    let error = failed["last_error"].as_str().unwrap();
    assert!(error.contains("loopback") && error.contains("ORCH_WEBHOOK_ALLOW"), "{error}");
    assert_eq!(receiver.state().received.len(), 0);
}
