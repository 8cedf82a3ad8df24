//! A registry whose server is away for a while: callers are told to come back, engines stay as they are, and no
//! engine is lost track of.

use std::time::Duration;

use serde_json::json;

use crate::testing::cluster::Cluster;
use crate::testing::proxy::Proxy;
use crate::testing::{Call, Caller, Fault, TestApp, TestDatabase, short};

const SECOND: Duration = Duration::from_secs(1);

/// How far the clock moves on at a time.
const STEP: Duration = Duration::from_millis(250);

/// Far longer than any call may take.
const LONG: Duration = Duration::from_mins(1);

/// An orchestrator that reaches its registry by way of a proxy; none if there is no server.
async fn by_proxy() -> Option<(TestApp, Proxy)> {
    let database = TestDatabase::on_server().await?;
    let proxy = Proxy::to(database.address()).await;
    let url = database.by_port(proxy.port());
    let app = TestApp::on(database, url).await;
    app.begin().await;
    Some((app, proxy))
}

async fn pass(app: &TestApp, time: Duration) {
    app.while_time_passes(STEP, app.sleep(time)).await;
}

/// An admit in short, with when to come back. It is answered in time, whatever happens.
async fn admit(product: &Caller<'_>, user: &str) -> (String, Option<String>) {
    let key = [("X-Platform-Key", product.key.as_str())];
    let path = format!("/engines/{user}/admit");
    let ask = json!({"auto_provision": true}).to_string();
    let sent = tokio::time::timeout(LONG, product.app.send("POST", &path, &key, &ask));
    let (status, headers, answer) = sent.await.expect("a caller was kept waiting");
    let retry_after = headers.get("Retry-After").map(|value| value.to_str().unwrap().to_owned());
    let admitted = if answer["admitted"] == true { "admitted".to_owned() } else { short((status, answer)) };
    (admitted, retry_after)
}

fn come_back() -> (String, Option<String>) {
    ("503 STARTING_UP".to_owned(), Some("2".to_owned()))
}

/// Asks until it is admitted; whatever else it is answered is to come back.
async fn until_admitted(product: &Caller<'_>, user: &str) {
    let admitted = async {
        loop {
            let answer = admit(product, user).await;
            if answer.0 == "admitted" {
                break;
            }
            assert_eq!(answer, come_back());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG * 2, admitted).await.expect("it never came back");
}

#[tokio::test]
async fn a_server_that_hangs_keeps_nobody_waiting_and_harms_no_engine() {
    let Some((app, proxy)) = by_proxy().await else { return };
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    let calls = app.backend.count(Call::Launch) + app.backend.count(Call::Kill);
    proxy.hang(true);
    // More than there are connections.
    let asked = (0..12).map(|_| admit(&product, "ann"));
    let listed = tokio::time::timeout(LONG, product.look("/engines"));
    let health = tokio::time::timeout(LONG, app.send("GET", "/health", &[], ""));
    let (asked, listed, health) = tokio::join!(futures::future::join_all(asked), listed, health);
    assert!(asked.iter().all(|answer| *answer == come_back()), "{asked:?}");
    assert_eq!(short(listed.unwrap()), "503 STARTING_UP");
    assert_eq!(health.unwrap().0, 200);
    let provisioned = tokio::time::timeout(LONG, product.provision("bob")).await.unwrap();
    assert_eq!(short(provisioned), "503 STARTING_UP");
    proxy.hang(false);
    until_admitted(&product, "ann").await;
    until_admitted(&product, "bob").await;
    assert_eq!(app.backend.count(Call::Launch) + app.backend.count(Call::Kill), calls + 1);
    app.assert_in_order().await;
    app.assert_chained().await;
}

#[tokio::test]
async fn connections_that_were_cut_are_made_again() {
    let Some((app, proxy)) = by_proxy().await else { return };
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    for _ in 0..3 {
        proxy.refuse(true);
        assert_eq!(admit(&product, "ann").await, come_back());
        assert_eq!(short(product.look("/engines").await), "503 STARTING_UP");
        proxy.refuse(false);
        until_admitted(&product, "ann").await;
        assert_eq!(product.look("/engines").await.0, 200);
    }
}

#[tokio::test]
async fn a_server_that_was_restarted_is_used_again() {
    let Some(cluster) = Cluster::new() else { return };
    let database = TestDatabase::on(&cluster.url()).await;
    let url = database.url().clone();
    let app = TestApp::on(database, url).await;
    app.begin().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    let ledger = app.ledger().await;
    cluster.crash();
    assert_eq!(admit(&product, "ann").await, come_back());
    assert_eq!(short(product.provision("bob").await), "503 STARTING_UP");
    cluster.start();
    until_admitted(&product, "ann").await;
    assert_eq!(app.ledger().await, ledger);
    until_admitted(&product, "bob").await;
    app.assert_in_order().await;
    app.assert_chained().await;
    // Another one could not open it meanwhile, and cannot now.
    drop(app);
}

#[tokio::test]
async fn a_commit_of_which_nobody_heard_is_not_made_twice() {
    let Some((app, proxy)) = by_proxy().await else { return };
    let product = app.product("demo", json!({})).await;
    app.backend.script(Call::Launch, Fault::Late(SECOND * 5));
    let meanwhile = async {
        app.until(|| app.backend.count(Call::Launch) == 1).await;
        proxy.lose_a_commit();
        pass(&app, SECOND * 20).await;
    };
    let (provisioned, ()) = tokio::join!(product.provision("ann"), meanwhile);
    assert!(proxy.has_lost_it(), "no commit was lost");
    assert_eq!(short(provisioned), "200 running");
    assert_eq!(app.ledger().await, ["provision none→running requested"]);
    assert_eq!(app.backend.count(Call::Launch), 1);
    app.assert_in_order().await;
    app.assert_chained().await;
}

#[tokio::test]
async fn who_was_deposed_lets_its_successors_engines_be() {
    let Some(database) = TestDatabase::on_server().await else { return };
    let url = database.url().clone();
    let app = TestApp::on(database, url).await;
    app.begin().await;
    let product = app.product("demo", json!({})).await;
    product.provision("ann").await;
    // Another one has taken over, and is changing the engine.
    app.execute("UPDATE meta SET value = '99' WHERE name = 'epoch'").await;
    app.execute(
        "UPDATE engines SET claim_kind = 'stop', claim_owner = 'another', generation = generation + 1",
    )
    .await;
    pass(&app, SECOND * 70).await;
    assert_eq!(app.backend.running().len(), 1);
    assert_eq!(app.backend.count(Call::Stop) + app.backend.count(Call::Kill), 0);
    let deposed = tokio::time::timeout(LONG, app.orchestrator.fleet().deposed()).await;
    deposed.expect("it has not noticed");
}

#[tokio::test]
async fn an_engine_launched_while_the_server_is_away_is_settled_when_it_is_back() {
    let Some((app, proxy)) = by_proxy().await else { return };
    let product = app.product("demo", json!({})).await;
    app.backend.script(Call::Launch, Fault::Late(SECOND * 5));
    let meanwhile = async {
        app.until(|| app.backend.count(Call::Launch) == 1).await;
        proxy.refuse(true);
        pass(&app, SECOND * 20).await;
        proxy.refuse(false);
        pass(&app, SECOND * 20).await;
    };
    let (provisioned, ()) = tokio::join!(product.provision("ann"), meanwhile);
    assert_eq!(short(provisioned), "200 running");
    assert_eq!(app.backend.count(Call::Launch), 1);
    app.assert_in_order().await;
    app.assert_chained().await;
}

#[tokio::test]
async fn an_engine_launched_while_the_server_is_away_for_long_is_cleaned_up() {
    let Some((app, proxy)) = by_proxy().await else { return };
    let product = app.product("demo", json!({})).await;
    app.backend.script(Call::Launch, Fault::Late(SECOND * 5));
    let meanwhile = async {
        app.until(|| app.backend.count(Call::Launch) == 1).await;
        proxy.refuse(true);
        pass(&app, SECOND * 300).await;
    };
    let (provisioned, ()) = tokio::join!(product.provision("ann"), meanwhile);
    assert!(provisioned.0 >= 500, "{provisioned:?}");
    proxy.refuse(false);
    pass(&app, SECOND * 65).await;
    app.unclaimed().await;
    app.assert_in_order().await;
    assert!(app.backend.folders().is_empty());
    assert_eq!(short(product.provision("ann").await), "200 running");
    app.assert_chained().await;
}

/// What the operator does is done once, and known as it was done.
#[tokio::test]
async fn a_registration_and_a_policy_of_which_nobody_heard_hold() {
    let Some((app, proxy)) = by_proxy().await else { return };
    proxy.lose_a_commit();
    let product = app.while_time_passes(STEP, app.product("demo", json!({}))).await;
    assert!(proxy.has_lost_it(), "no commit was lost");
    let product_id = product.product_id().await;
    proxy.lose_a_commit();
    let policy = json!({"suspended": true});
    let (status, answer) = app.while_time_passes(STEP, app.replace_policy(&product_id, &policy)).await;
    assert!(proxy.has_lost_it(), "no commit was lost");
    assert_eq!((status, &answer["policy"]), (200, &policy), "{answer}");
    assert_eq!(short(product.provision("ann").await), "403 POLICY_DENIED");
    let (_, audit) = product.look("/audit").await;
    let events: Vec<_> =
        audit["rows"].as_array().unwrap().iter().map(|row| row["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["policy_update", "register"]);
}
