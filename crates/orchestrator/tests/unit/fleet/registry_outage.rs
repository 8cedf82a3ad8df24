//! A registry whose server is unreachable for a while: callers get an error with `Retry-After`, running engines
//! are not disturbed, and no engine is lost.

use std::time::Duration;

use serde_json::json;

use crate::testing::cluster::Cluster;
use crate::testing::proxy::FaultProxy;
use crate::testing::{BackendCall, Fault, ProductClient, TestApp, TestDatabase, summarize};

const SECOND: Duration = Duration::from_secs(1);

/// The step by which the clock advances.
const STEP: Duration = Duration::from_millis(250);

/// A timeout that is far longer than any call may take.
const CALL_TIMEOUT: Duration = Duration::from_mins(1);

/// An orchestrator that reaches its registry through a proxy; `None` if there is no server for tests.
async fn app_via_proxy() -> Option<(TestApp, FaultProxy)> {
    let database = TestDatabase::create_on_test_server().await?;
    let proxy = FaultProxy::start(database.address()).await;
    let url = database.url_via_port(proxy.port());
    let app = TestApp::with_database(database, url).await;
    app.start().await;
    Some((app, proxy))
}

async fn advance(app: &TestApp, time: Duration) {
    app.while_time_passes(STEP, app.sleep(time)).await;
}

/// Admits a user and returns a summary of the response and its `Retry-After`. Fails if the call does not return in
/// time.
async fn admit(product: &ProductClient<'_>, user: &str) -> (String, Option<String>) {
    let key = [("X-Platform-Key", product.key.as_str())];
    let path = format!("/engines/{user}/admit");
    let body = json!({"auto_provision": true}).to_string();
    let response = tokio::time::timeout(CALL_TIMEOUT, product.app.send("POST", &path, &key, &body));
    let (status, headers, response) = response.await.expect("a caller was kept waiting");
    let retry_after = headers.get("Retry-After").map(|value| value.to_str().unwrap().to_owned());
    let admitted =
        if response["admitted"] == true { "admitted".to_owned() } else { summarize((status, response)) };
    (admitted, retry_after)
}

/// Asserts that a response is to be retried. An orchestrator whose lease has run out does not even ask the registry,
/// and promises less delay.
#[track_caller]
fn assert_retry_later((response, retry_after): &(String, Option<String>)) {
    assert_eq!(response, "503 STARTING_UP");
    assert!(matches!(retry_after.as_deref(), Some("1" | "2")), "{retry_after:?}");
}

/// Retries until the user is admitted; every other response must be the one to retry later.
async fn wait_until_admitted(product: &ProductClient<'_>, user: &str) {
    let admitted = async {
        loop {
            let response = admit(product, user).await;
            if response.0 == "admitted" {
                break;
            }
            assert_retry_later(&response);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(CALL_TIMEOUT * 2, admitted).await.expect("the user was never admitted");
}

#[tokio::test]
async fn a_server_that_hangs_keeps_nobody_waiting_and_harms_no_engine() {
    let Some((app, proxy)) = app_via_proxy().await else { return };
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let calls = app.backend.count(BackendCall::Launch) + app.backend.count(BackendCall::Kill);
    proxy.hang(true);
    // More calls than there are connections.
    let admits = (0..12).map(|_| admit(&product, "ann"));
    let listed = tokio::time::timeout(CALL_TIMEOUT, product.get_path("/engines"));
    let health = tokio::time::timeout(CALL_TIMEOUT, app.send("GET", "/health", &[], ""));
    let (admits, listed, health) = tokio::join!(futures::future::join_all(admits), listed, health);
    admits.iter().for_each(assert_retry_later);
    assert_eq!(summarize(listed.unwrap()), "503 STARTING_UP");
    assert_eq!(health.unwrap().0, 200);
    let provisioned = tokio::time::timeout(CALL_TIMEOUT, product.provision("bob")).await.unwrap();
    assert_eq!(summarize(provisioned), "503 STARTING_UP");
    proxy.hang(false);
    wait_until_admitted(&product, "ann").await;
    wait_until_admitted(&product, "bob").await;
    assert_eq!(app.backend.count(BackendCall::Launch) + app.backend.count(BackendCall::Kill), calls + 1);
    app.assert_consistent().await;
    app.assert_hash_chain().await;
}

#[tokio::test]
async fn connections_that_were_cut_are_made_again() {
    let Some((app, proxy)) = app_via_proxy().await else { return };
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    for _ in 0..3 {
        proxy.refuse_connections(true);
        assert_retry_later(&admit(&product, "ann").await);
        assert_eq!(summarize(product.get_path("/engines").await), "503 STARTING_UP");
        proxy.refuse_connections(false);
        wait_until_admitted(&product, "ann").await;
        assert_eq!(product.get_path("/engines").await.0, 200);
    }
}

#[tokio::test]
async fn a_server_that_was_restarted_is_used_again() {
    let Some(cluster) = Cluster::new() else { return };
    let database = TestDatabase::create_on(&cluster.url()).await;
    let url = database.url().clone();
    let app = TestApp::with_database(database, url).await;
    app.start().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let audit_log = app.audit_lines().await;
    cluster.crash();
    assert_retry_later(&admit(&product, "ann").await);
    assert_eq!(summarize(product.provision("bob").await), "503 STARTING_UP");
    cluster.start();
    wait_until_admitted(&product, "ann").await;
    assert_eq!(app.audit_lines().await, audit_log);
    wait_until_admitted(&product, "bob").await;
    app.assert_consistent().await;
    app.assert_hash_chain().await;
    // The orchestrator holds the registry until here.
    drop(app);
}

#[tokio::test]
async fn a_commit_of_which_nobody_heard_is_not_made_twice() {
    let Some((app, proxy)) = app_via_proxy().await else { return };
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, Fault::Delay(SECOND * 5));
    let meanwhile = async {
        app.wait_until(|| app.backend.count(BackendCall::Launch) == 1).await;
        proxy.drop_next_commit_ack();
        advance(&app, SECOND * 20).await;
    };
    let (provisioned, ()) = tokio::join!(product.provision("ann"), meanwhile);
    assert!(proxy.commit_ack_dropped(), "no commit was lost");
    assert_eq!(summarize(provisioned), "200 running");
    assert_eq!(app.audit_lines().await, ["provision none→running requested"]);
    assert_eq!(app.backend.count(BackendCall::Launch), 1);
    app.assert_consistent().await;
    app.assert_hash_chain().await;
}

#[tokio::test]
async fn who_was_deposed_lets_its_successors_engines_be() {
    let Some(database) = TestDatabase::create_on_test_server().await else { return };
    let url = database.url().clone();
    let app = TestApp::with_database(database, url).await;
    app.start().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    // Another orchestrator has taken over, and is changing the engine.
    app.execute("UPDATE meta SET value = '99' WHERE name = 'epoch'").await;
    app.execute(
        "UPDATE engines SET claim_kind = 'stop', claim_owner = 'another', generation = generation + 1",
    )
    .await;
    advance(&app, SECOND * 70).await;
    assert_eq!(app.backend.running().len(), 1);
    assert_eq!(app.backend.count(BackendCall::Stop) + app.backend.count(BackendCall::Kill), 0);
    let lost_leadership =
        tokio::time::timeout(CALL_TIMEOUT, app.orchestrator.fleet().lost_leadership()).await;
    lost_leadership.expect("it has not noticed");
}

#[tokio::test]
async fn an_engine_launched_while_the_server_is_away_is_settled_when_it_is_back() {
    let Some((app, proxy)) = app_via_proxy().await else { return };
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, Fault::Delay(SECOND * 5));
    let meanwhile = async {
        app.wait_until(|| app.backend.count(BackendCall::Launch) == 1).await;
        proxy.refuse_connections(true);
        advance(&app, SECOND * 20).await;
        proxy.refuse_connections(false);
        advance(&app, SECOND * 20).await;
    };
    let (provisioned, ()) = tokio::join!(product.provision("ann"), meanwhile);
    assert_eq!(summarize(provisioned), "200 running");
    assert_eq!(app.backend.count(BackendCall::Launch), 1);
    app.assert_consistent().await;
    app.assert_hash_chain().await;
}

#[tokio::test]
async fn an_engine_launched_while_the_server_is_away_for_long_is_cleaned_up() {
    let Some((app, proxy)) = app_via_proxy().await else { return };
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, Fault::Delay(SECOND * 5));
    let meanwhile = async {
        app.wait_until(|| app.backend.count(BackendCall::Launch) == 1).await;
        proxy.refuse_connections(true);
        advance(&app, SECOND * 300).await;
    };
    let (provisioned, ()) = tokio::join!(product.provision("ann"), meanwhile);
    assert!(provisioned.0 >= 500, "{provisioned:?}");
    proxy.refuse_connections(false);
    advance(&app, SECOND * 65).await;
    app.wait_unclaimed().await;
    app.assert_consistent().await;
    assert!(app.backend.folders().is_empty());
    assert_eq!(summarize(product.provision("ann").await), "200 running");
    app.assert_hash_chain().await;
}

/// A launch reads what browsers may do with the engine. That it cannot be read is no fault of the orchestrator.
#[tokio::test]
async fn a_server_that_goes_away_amid_a_boot_is_said_to_be_away() {
    let Some((app, proxy)) = app_via_proxy().await else { return };
    let product = app.register_product("demo", json!({})).await;
    proxy.cut_at("SELECT origins");
    let provisioned = app.while_time_passes(STEP, product.provision("ann")).await;
    assert!(proxy.was_cut(), "no query was cut");
    assert_eq!(summarize(provisioned), "503 STARTING_UP");
    assert_eq!(app.backend.count(BackendCall::Launch), 0);
    app.wait_unclaimed().await;
    wait_until_admitted(&product, "ann").await;
    app.assert_consistent().await;
    app.assert_hash_chain().await;
}

/// An operator's change whose commit was not confirmed is made once, and takes effect.
#[tokio::test]
async fn a_registration_and_a_policy_of_which_nobody_heard_hold() {
    let Some((app, proxy)) = app_via_proxy().await else { return };
    proxy.drop_next_commit_ack();
    let product = app.while_time_passes(STEP, app.register_product("demo", json!({}))).await;
    assert!(proxy.commit_ack_dropped(), "no commit was lost");
    let product_id = product.product_id().await;
    proxy.drop_next_commit_ack();
    let policy = json!({"suspended": true});
    let (status, response) = app.while_time_passes(STEP, app.replace_policy(&product_id, &policy)).await;
    assert!(proxy.commit_ack_dropped(), "no commit was lost");
    assert_eq!((status, &response["policy"]), (200, &policy), "{response}");
    assert_eq!(summarize(product.provision("ann").await), "403 POLICY_DENIED");
    let (_, audit) = product.get_path("/audit").await;
    let events: Vec<_> =
        audit["rows"].as_array().unwrap().iter().map(|row| row["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["policy_update", "register"]);
}
