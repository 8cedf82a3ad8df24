//! Regression tests for failures of comparable systems.
//!
//! `docs/regressions.md` lists them, and pairs each with the mutation that makes it fail. Some are next to the code
//! that they test.

mod activity;
mod capacity;
mod clocks;
mod disks;
mod folders;
mod hung_checks;
mod orphans;
mod overload;
mod queries;
mod restart_storms;
mod sleeping;
mod takeover;
mod upgrades;

use std::time::Duration;

use api::EngineId;
use axum::body::to_bytes;
use serde_json::Value;

use crate::testing::{ADMIN_KEY, ProductClient, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

/// How far the clock advances at a time.
const STEP: Duration = Duration::from_millis(250);

fn engine_id(answer: &(u16, Value)) -> EngineId {
    answer.1["engine_id"].as_str().unwrap().parse().unwrap()
}

/// The operator's metric `name`; `None` if it is not reported.
async fn metric(app: &TestApp, name: &str) -> Option<u64> {
    let answer = app.send_unread("GET", "/metrics/prometheus", &[("X-Admin-Key", ADMIN_KEY)], "").await;
    let text = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Advances the clock by `time`, in steps shorter than any timeout that may expire meanwhile.
async fn advance(app: &TestApp, time: Duration) {
    app.while_time_passes((time / 200).clamp(STEP, SECOND * 4), app.sleep(time)).await;
}

/// Advances the clock until the engine of `user` has this status.
async fn wait_for_status(product: &ProductClient<'_>, user: &str, status: &str) {
    let has_status = async || summarize(product.get(user).await) == format!("200 {status}");
    product.app.advance_until(STEP, has_status).await;
}
