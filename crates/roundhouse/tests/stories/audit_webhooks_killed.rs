//! No kill of the orchestrator loses a row for a receiver or changes the order of an engine's rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use crate::audit_webhooks::{deployment, wait_settled};
use crate::support::audit_receiver::{ACCEPT, AuditReceiver, Reply};
use crate::support::{Product, env_number};

const USERS: [&str; 3] = ["ada", "bob", "cyd"];

/// Adds rows until it is stopped. Calls fail while no orchestrator runs.
fn add_rows(base: &str, key: &str, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<()> {
    let (stop, base, key) = (Arc::clone(stop), base.to_owned(), key.to_owned());
    tokio::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            let bodies = USERS.map(|user| {
                let request = crate::support::http::client()
                    .post(format!("{base}/engines/{user}/tokens"))
                    .header("x-platform-key", &key)
                    .json(&json!({"scopes": ["read"], "lifetime_s": 60}));
                request.send()
            });
            let answers = futures::future::join_all(bodies).await;
            if answers.iter().any(Result::is_err) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    })
}

/// The receiver fails now and then, and the orchestrator is killed at all moments of its deliveries.
/// `ROUNDHOUSE_TEST_WEBHOOK_KILLS` sets how often.
#[tokio::test]
async fn whenever_the_orchestrator_is_killed_each_row_comes_in_order() {
    let kills = env_number("ROUNDHOUSE_TEST_WEBHOOK_KILLS", 6);
    let deployment = deployment().with_env("ORCH_WEBHOOK_TIMEOUT_S", "0.3");
    let (mut orchestrator, product) = deployment.start_with_product().await;
    for user in USERS {
        product.engine(user).await;
    }
    let receiver = AuditReceiver::start().await;
    let mut count = 0_u64;
    receiver.answer(move |_| {
        count += 1;
        match count % 13 {
            3 => Reply::Status(500),
            7 => Reply::Cut,
            11 => Reply::After(Duration::from_secs(1)),
            _ => ACCEPT,
        }
    });
    let id = product.create_webhook(&receiver, json!({"after": 0})).await;
    let mut delivered_between = 0;
    for round in 0..kills {
        let stop = Arc::new(AtomicBool::new(false));
        let adding = add_rows(&orchestrator.base, &product.key, &stop);
        let before = receiver.state().received.len();
        // Not a wait for something: the kills come at different moments of the deliveries.
        tokio::time::sleep(Duration::from_millis(u64::try_from(round * 37 % 500).unwrap())).await;
        let killed = orchestrator.signal_and_wait(Signal::KILL).await;
        assert_eq!(killed.code, None);
        delivered_between += usize::from(receiver.state().received.len() > before);
        stop.store(true, Ordering::Relaxed);
        adding.await.unwrap();
        orchestrator = deployment.start().await;
    }
    assert!(delivered_between > kills / 2, "{delivered_between} kills during deliveries");
    let rows = product.row_ids().await;
    assert!(rows.len() > kills * 3, "{} rows", rows.len());
    receiver.wait_accepted(&rows).await;
    wait_settled(&product, &id).await;
    receiver.assert_in_order();
    let letters = product.call(Method::GET, &format!("/webhooks/{id}/dead-letters"), None).await;
    assert_eq!(letters.body["dead_letters"], json!([]));
}

#[tokio::test]
async fn a_standby_goes_on_where_its_predecessor_was_killed() {
    let deployment = deployment();
    let (orchestrator, product) = deployment.start_with_product().await;
    for user in USERS {
        product.engine(user).await;
    }
    let receiver = AuditReceiver::start().await;
    let id = product.create_webhook(&receiver, json!({"after": 0})).await;
    let mut standby = deployment.launch_second();
    wait_settled(&product, &id).await;
    let seen = receiver.state().received.len();
    // A row is under way and others wait when it is killed.
    receiver.answer(|_| Reply::After(Duration::from_millis(300)));
    for user in USERS {
        assert!(product.add_row(user).await && product.add_row(user).await);
    }
    receiver.wait_received(seen + 1).await;
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    standby.wait_ready().await;
    receiver.accept_all();
    let product = Product::new(&standby.base, &product.key);
    receiver.wait_accepted(&product.row_ids().await).await;
    wait_settled(&product, &id).await;
    // What was settled before is not sent again, and it can be managed there.
    let again = receiver.state().received[seen..].iter().map(|row| row.id).min().unwrap();
    assert!(again > i64::try_from(seen).unwrap(), "row {again} was sent again");
    product.post_webhook(&id, "replay", json!({"after": 0})).await.assert_ok(crate::audit_webhooks::WEBHOOK);
    let count = receiver.state().received.len();
    receiver.wait_received(count + seen).await;
}
