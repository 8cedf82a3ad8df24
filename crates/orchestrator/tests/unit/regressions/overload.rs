//! Refused callers learn when to retry, and engines that a caller waits for start before the others.

use backend::BackendError;
use serde_json::json;

use super::{STEP, metric};
use crate::testing::{BackendCall, Fault, ProductClient, TestApp};

/// Returns the error code of a refusal, and its `Retry-After` in seconds.
async fn refused_response(product: &ProductClient<'_>, path: &str, body: &str) -> (String, Option<u64>) {
    let key = [("X-Platform-Key", product.key.as_str())];
    let (_, headers, answer) = product.app.send("POST", path, &key, body).await;
    let seconds = headers.get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
    (answer["error"]["code"].as_str().unwrap_or_default().to_owned(), seconds)
}

#[tokio::test]
async fn regression_o15_who_is_turned_away_learns_when_to_come_back() {
    let app = TestApp::new().await;
    let key = app.register_product("demo", json!({"rate_limit_rpm": 1})).await.key;
    let product = ProductClient { app: &app, key: key.clone() };
    product.admit("ann", json!({})).await;
    let (admit, provision) = ("/engines/ann/admit", "/engines/provision");
    assert_eq!(refused_response(&product, admit, "{}").await, ("RATE_LIMITED".to_owned(), Some(60)));
    let full = BackendError::NoCapacity("Cannot allocate memory".into());
    app.backend.inject(BackendCall::Launch, Fault::Error(full));
    let body = r#"{"user_id": "ann"}"#;
    assert_eq!(
        refused_response(&product, provision, body).await,
        ("CAPACITY_EXHAUSTED".to_owned(), Some(30))
    );
    for port in 9_001..=9_100 {
        app.backend.occupy_port(port);
    }
    assert_eq!(refused_response(&product, provision, body).await, ("PORT_EXHAUSTION".to_owned(), Some(30)));
    for code in ["RATE_LIMITED", "CAPACITY_EXHAUSTED", "PORT_EXHAUSTION"] {
        let counted = metric(&app, &format!("roundhouse_refusals_total{{code=\"{code}\"}}")).await;
        assert_eq!(counted, Some(1), "{code}");
    }
    let app = app.kill_and_replace().await;
    let product = ProductClient { app: &app, key };
    assert_eq!(refused_response(&product, provision, body).await, ("STARTING_UP".to_owned(), Some(1)));
}

#[tokio::test]
async fn regression_o15_who_waits_goes_before_what_nobody_waits_for() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    for user in 0..24 {
        product.provision(&format!("u{user}")).await;
    }
    let engines = app.backend.running();
    for engine_id in &engines {
        app.backend.crash(*engine_id);
        app.backend.inject(BackendCall::Launch, Fault::Delay(STEP * 40));
    }
    // Four are being launched, the maximum for one product, and all others wait for a permit.
    let is_past = |row: &[String]| row[0].parse::<i64>().unwrap() + 500 < app.wall_ms();
    let all_due = async || {
        let due = app
            .rows(
                "SELECT CAST(restart_at AS TEXT) FROM engines WHERE status = 'failed' AND claim_kind IS NULL",
            )
            .await;
        app.backend.count(BackendCall::Launch) == 28 && due.len() == 20 && due.iter().all(|row| is_past(row))
    };
    app.advance_until(STEP, all_due).await;
    let last = app
        .rows("SELECT user_id, engine_id FROM engines WHERE claim_kind IS NULL ORDER BY restart_at DESC LIMIT 1")
        .await;
    let admitted = app.while_time_passes(STEP, product.admit(&last[0][0], json!({}))).await;
    assert_eq!(admitted.1["admitted"], true, "{admitted:?}");
    let launches = app.backend.launches();
    let position = launches.iter().rposition(|launch| launch.engine_id.to_string() == last[0][1]).unwrap();
    assert!((28..=29).contains(&position), "it was launched as number {position}");
}
