//! Status and metrics, with a manual clock.

use std::time::Duration;

use api::Timestamp;
use http_service::clock::Clock as _;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

use crate::testing::{BackendCall, Fault, ProductClient, TestApp};

async fn metrics(product: &ProductClient<'_>) -> Value {
    let (status, metrics) = product.get_path("/metrics").await;
    assert_eq!(status, 200, "{metrics}");
    assert!(metrics.as_object().unwrap().values().all(Value::is_u64), "{metrics}");
    metrics
}

fn expected_metrics(provisions: u64, crashes: u64, restarts: u64, boot: u64, lifetime: (u64, u64)) -> Value {
    json!({
        "provisions_1h": provisions, "crashes_1h": crashes, "restarts_1h": restarts, "avg_boot_ms": boot,
        "total_provisions": lifetime.0, "total_destroys": lifetime.1,
    })
}

#[tokio::test]
async fn status_counts_every_engine_by_its_state() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let status = async || product.get_path("/status").await.1;
    assert_eq!(status().await, json!({"total": 0, "by_status": {}, "health": "ok", "unhealthy_count": 0}));
    for user in ["a", "b", "c", "d"] {
        product.provision(user).await;
    }
    product.stop("a").await;
    assert_eq!(
        status().await,
        json!({"total": 4, "by_status": {"running": 3, "stopped": 1}, "health": "ok", "unhealthy_count": 0})
    );
    app.execute("UPDATE engines SET status = 'failed' WHERE user_id = 'b'").await;
    assert_eq!(
        status().await,
        json!({
            "total": 4, "by_status": {"running": 2, "stopped": 1, "failed": 1}, "health": "degraded",
            "unhealthy_count": 1,
        })
    );
    app.execute("UPDATE engines SET status = 'failed' WHERE user_id = 'c'").await;
    // An engine that is being destroyed still counts.
    app.execute("UPDATE engines SET status = 'destroying' WHERE user_id = 'd'").await;
    assert_eq!(
        status().await,
        json!({
            "total": 4, "by_status": {"stopped": 1, "failed": 2, "destroying": 1}, "health": "critical",
            "unhealthy_count": 2,
        })
    );
    let other = app.register_product("other", json!({})).await;
    assert_eq!(other.get_path("/status").await.1["total"], 0);
}

#[tokio::test]
async fn metrics_are_those_of_the_last_hour_and_of_a_lifetime() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let other = app.register_product("other", json!({})).await;
    assert_eq!(metrics(&product).await, expected_metrics(0, 0, 0, 0, (0, 0)));
    app.backend.inject(BackendCall::Launch, Fault::Delay(Duration::from_millis(250)));
    app.while_time_passes(Duration::from_millis(50), product.provision("ann")).await;
    app.clock.advance(Duration::from_mins(1));
    product.provision("bob").await;
    let rows = product.get_path("/audit?event=provision").await.1;
    let boot_ms: u64 = [0, 1].map(|at| rows["rows"][at]["duration_ms"].as_u64().unwrap()).iter().sum();
    assert!(boot_ms >= 250, "{rows}");
    product.delete("bob").await;
    let actual = metrics(&product).await;
    assert_eq!(actual, expected_metrics(2, 0, 0, boot_ms.div_ceil(2), (2, 1)));
    assert_eq!(metrics(&other).await, expected_metrics(0, 0, 0, 0, (0, 0)));

    // The first provision drops out at the end of its hour, the second a minute later.
    let first = rows["rows"][1]["at"].as_str().unwrap().parse::<Timestamp>().unwrap().unix_ms();
    app.clock.set_wall(Timestamp::from_unix_ms(first + 3_599_999));
    assert_eq!(metrics(&product).await["provisions_1h"], 2);
    app.clock.set_wall(Timestamp::from_unix_ms(first + 3_600_000));
    assert_eq!(metrics(&product).await["provisions_1h"], 1);
    app.clock.advance(Duration::from_secs(61));
    assert_eq!(metrics(&product).await, expected_metrics(0, 0, 0, 0, (2, 1)));
    // Lifetime totals survive a restart.
    let key = product.key.clone();
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = ProductClient { app: &app, key };
    assert_eq!(metrics(&product).await, expected_metrics(0, 0, 0, 0, (2, 1)));
}

#[tokio::test]
async fn an_hour_later_they_are_gone_also_with_the_wall_clock_set_back() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    app.clock.set_wall(Timestamp::from_unix_ms(app.clock.now().unix_ms() - 10 * 3_600_000));
    product.provision("bob").await;
    assert_eq!(metrics(&product).await["provisions_1h"], 1);
    app.clock.advance(Duration::from_secs(3_599));
    assert_eq!(metrics(&product).await["provisions_1h"], 1);
    app.clock.advance(Duration::from_secs(1));
    assert_eq!(metrics(&product).await, expected_metrics(0, 0, 0, 0, (2, 0)));
}

#[tokio::test]
async fn the_operator_sees_what_was_refused_and_how_far_behind_the_supervisor_is() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"rate_limit_rpm": 1})).await;
    product.provision("ann").await;
    for expected in [200, 429, 429] {
        assert_eq!(product.admit("ann", json!({})).await.0, expected);
    }
    app.while_time_passes(Duration::from_secs(1), app.sleep(Duration::from_secs(31))).await;
    let headers = [("X-Admin-Key", crate::testing::ADMIN_KEY)];
    let answer = app.send_unread("GET", "/metrics/prometheus", &headers, "").await;
    assert_eq!(answer.status(), 200);
    let text = axum::body::to_bytes(answer.into_body(), 1_000_000).await.unwrap();
    let text = std::str::from_utf8(&text).unwrap();
    for line in [
        "roundhouse_refusals_total{code=\"RATE_LIMITED\"} 2",
        "roundhouse_supervised_engines 1",
        "roundhouse_supervision_lag_seconds_count 1",
    ] {
        assert!(text.lines().any(|reported| reported == line), "{line} is not in:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    assert!(!text.contains("ann") && !text.contains("demo"));
}
