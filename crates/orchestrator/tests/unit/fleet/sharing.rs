//! Concurrent calls: which share an operation, which wait for it, and which are refused meanwhile.

use std::cell::Cell;
use std::time::Duration;

use backend::BackendError;
use futures::future::join_all;
use serde_json::json;

use crate::testing::{BackendCall, Fault, SimulatedHealth, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);
const SLOW_RESPONSE: Fault = Fault::Delay(Duration::from_secs(5));

#[tokio::test]
async fn regression_o03_a_thousand_admits_of_a_new_user_make_one_engine() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, SLOW_RESPONSE);
    let admits = (0..1_000).map(|_| product.admit("ann", json!({"auto_provision": true})));
    let answers = app.while_time_passes(SECOND, join_all(admits)).await;
    assert_eq!(answers[0].1["admitted"], true);
    assert_eq!(answers.len(), 1_000);
    for answer in &answers {
        assert_eq!(*answer, answers[0]);
    }
    assert_eq!(app.backend.count(BackendCall::Launch), 1);
    assert_eq!(app.audit_lines().await, ["provision none→running auto_provision"]);
    app.assert_consistent().await;
}

#[tokio::test]
async fn fifty_admits_of_a_new_user_share_its_failure() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.set_health(SimulatedHealth::Unreachable);
    let admits = (0..50).map(|_| product.admit("ann", json!({"auto_provision": true})));
    let answers = app.while_time_passes(SECOND, join_all(admits)).await;
    for answer in answers {
        assert_eq!(summarize(answer), "504 BOOT_TIMEOUT");
    }
    assert_eq!(app.backend.count(BackendCall::Launch), 1);
    assert_eq!(app.audit_lines().await.len(), 1);
}

#[tokio::test]
async fn admits_share_a_failure_that_comes_before_the_claim() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::CheckImage, Fault::Hang);
    let admits = (0..50).map(|_| product.admit("ann", json!({"auto_provision": true})));
    let answers = app.while_time_passes(SECOND, join_all(admits)).await;
    for answer in answers {
        assert_eq!(summarize(answer), "502 BACKEND_ERROR");
    }
    assert_eq!(app.backend.count(BackendCall::CheckImage), 1);
}

#[tokio::test]
async fn of_many_provisions_of_one_user_one_wins() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let answers = join_all((0..50).map(|_| product.provision("ann"))).await;
    let mut answers: Vec<_> = answers.into_iter().map(summarize).collect();
    answers.sort();
    assert_eq!(answers[0], "200 running");
    assert!(answers[1..].iter().all(|answer| answer == "409 ENGINE_ALREADY_EXISTS"), "{answers:?}");
    assert_eq!(app.backend.count(BackendCall::Launch), 1);
}

#[tokio::test]
async fn regression_o11_two_hundred_provisions_never_exceed_a_quota_of_ten() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"max_engines": 10})).await;
    for fault in [SLOW_RESPONSE, Fault::Error(BackendError::Failed("broken".into())), Fault::Exit] {
        app.backend.inject(BackendCall::Launch, fault);
    }
    let users: Vec<String> = (0..200).map(|user| format!("u{user}")).collect();
    let provisions = join_all(users.iter().map(|user| product.provision(user)));
    let (over, watched) = (Cell::new(false), Cell::new(0));
    let watch = async {
        while !over.get() {
            let engines = app.rows("SELECT engine_id FROM engines").await.len();
            assert!(engines <= 10, "{engines} engines");
            watched.set(watched.get() + 1);
        }
    };
    let all_provisions = async {
        let answers = app.while_time_passes(SECOND, provisions).await;
        over.set(true);
        answers
    };
    let (answers, ()) = tokio::join!(all_provisions, watch);
    assert!(watched.get() > 1, "the quota was not observed meanwhile");
    let count =
        |expected: &str| answers.iter().filter(|answer| summarize((*answer).clone()) == expected).count();
    let (running, broken, refused) =
        (count("200 running"), count("502 BACKEND_ERROR"), count("429 QUOTA_EXCEEDED"));
    assert_eq!((broken, running + broken + refused), (2, 200));
    // Failed provisions have returned their share of the quota, whether in time for another one of these or not.
    for late in running..10 {
        assert_eq!(summarize(product.provision(&format!("late{late}")).await), "200 running");
    }
    assert_eq!(summarize(product.provision("one too many").await), "429 QUOTA_EXCEEDED");
    assert_eq!(app.backend.running().len(), 10);
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_caller_who_hangs_up_cancels_nothing() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, SLOW_RESPONSE);
    tokio::select! {
        biased;
        answer = product.provision("ann") => panic!("{answer:?}"),
        () = app.wait_until(|| app.backend.count(BackendCall::Launch) == 1) => {}
    }
    let answer = app.while_time_passes(SECOND, product.admit("ann", json!({}))).await;
    assert_eq!(summarize(answer), "200 running");
    assert_eq!(app.audit_lines().await, ["provision none→running requested"]);
}

#[tokio::test]
async fn while_an_engine_is_provisioned() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    app.backend.inject(BackendCall::Launch, SLOW_RESPONSE);
    let meanwhile = async {
        app.wait_until(|| app.backend.count(BackendCall::Launch) == 1).await;
        assert_eq!(summarize(product.get("ann").await), "200 provisioning");
        assert_eq!(summarize(product.start("ann").await), "409 ENGINE_ALREADY_RUNNING");
        assert_eq!(summarize(product.stop("ann").await), "409 ENGINE_NOT_RUNNING");
        assert_eq!(summarize(product.provision("ann").await), "409 ENGINE_ALREADY_EXISTS");
        // It shares the outcome, although it did not request a provision itself.
        app.while_time_passes(SECOND, product.admit("ann", json!({}))).await
    };
    let (provisioned, admitted) = tokio::join!(product.provision("ann"), meanwhile);
    assert_eq!((summarize(provisioned), summarize(admitted)), ("200 running".into(), "200 running".into()));
}

#[tokio::test]
async fn while_an_engine_is_started() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    product.stop("ann").await;
    app.backend.inject(BackendCall::Launch, SLOW_RESPONSE);
    let meanwhile = async {
        app.wait_until(|| app.backend.count(BackendCall::Launch) == 2).await;
        assert_eq!(summarize(product.get("ann").await), "200 stopped");
        assert_eq!(summarize(product.stop("ann").await), "409 ENGINE_NOT_RUNNING");
        let both = async { tokio::join!(product.start("ann"), product.admit("ann", json!({}))) };
        app.while_time_passes(SECOND, both).await
    };
    let (started, (shared, admitted)) = tokio::join!(product.start("ann"), meanwhile);
    assert_eq!(started, shared);
    assert_eq!(summarize(admitted), "200 running");
    assert_eq!(app.audit_lines().await.len(), 3);
}

#[tokio::test]
async fn while_an_engine_is_stopped() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.inject(BackendCall::Stop, SLOW_RESPONSE);
    let meanwhile = async {
        app.wait_until(|| app.backend.count(BackendCall::Stop) == 1).await;
        assert_eq!(summarize(product.get("ann").await), "200 running");
        let both = async { tokio::join!(product.stop("ann"), product.admit("ann", json!({}))) };
        app.while_time_passes(SECOND, both).await
    };
    let (stopped, (second, admitted)) = tokio::join!(product.stop("ann"), meanwhile);
    assert_eq!(summarize(stopped), "200 stopped");
    assert_eq!(summarize(second), "409 ENGINE_NOT_RUNNING");
    assert_eq!(summarize(admitted), "200 engine_stopped");
}

#[tokio::test]
async fn a_stop_that_fails_is_finished_for_who_waits_for_it() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.inject(BackendCall::Stop, Fault::Hang);
    let meanwhile = async {
        app.wait_until(|| app.backend.count(BackendCall::Stop) == 1).await;
        app.while_time_passes(SECOND, product.admit("ann", json!({}))).await
    };
    let (stopped, admitted) = tokio::join!(product.stop("ann"), meanwhile);
    assert_eq!(
        (summarize(stopped), summarize(admitted)),
        ("502 BACKEND_ERROR".into(), "200 engine_stopped".into())
    );
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_start_waits_for_a_stop_and_then_starts() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.backend.inject(BackendCall::Stop, SLOW_RESPONSE);
    let meanwhile = async {
        app.wait_until(|| app.backend.count(BackendCall::Stop) == 1).await;
        app.while_time_passes(SECOND, product.start("ann")).await
    };
    let (stopped, started) = tokio::join!(product.stop("ann"), meanwhile);
    assert_eq!((summarize(stopped), summarize(started)), ("200 stopped".into(), "200 running".into()));
    app.assert_consistent().await;
}

#[tokio::test]
async fn a_rate_limit_holds_and_says_when_to_come_back() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"rate_limit_rpm": 2})).await;
    let headers = [("X-Platform-Key", product.key.as_str())];
    let send = || app.send("POST", "/engines/ann/admit", &headers, "{}");
    assert_eq!(send().await.0, 200);
    app.clock.advance(SECOND * 20);
    assert_eq!(send().await.0, 200);
    for _ in 0..3 {
        let (status, headers, answer) = send().await;
        assert_eq!((status, answer["error"]["code"].as_str().unwrap()), (429, "RATE_LIMITED"));
        assert_eq!(headers["retry-after"], "40");
    }
    app.clock.advance(SECOND * 40);
    assert_eq!(send().await.0, 200);
    let none = app.register_product("none", json!({"rate_limit_rpm": 0})).await;
    let (status, headers, _) =
        app.send("POST", "/engines/ann/admit", &[("X-Platform-Key", &none.key)], "{}").await;
    assert_eq!((status, headers.get("retry-after")), (429, None));
}

crate::testing::also_with_own_addresses! {
    regression_o03_a_thousand_admits_of_a_new_user_make_one_engine,
}
