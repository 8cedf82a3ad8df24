//! What users of comparable systems suffered from, each as a test that would fail if they suffered from it here.
//! `docs/lessons.md` pairs each with the saboteur that turns it red; some stand beside what they are about.

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

/// How far the clock moves on at a time.
const STEP: Duration = Duration::from_millis(250);

fn engine_id(answer: &(u16, Value)) -> EngineId {
    answer.1["engine_id"].as_str().unwrap().parse().unwrap()
}

/// The operator's figure of this name; none if it is not told.
async fn metric(app: &TestApp, name: &str) -> Option<u64> {
    let answer = app.send_unread("GET", "/metrics/prometheus", &[("X-Admin-Key", ADMIN_KEY)], "").await;
    let text = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Lets so much time pass, in steps shorter than anything that is waited for meanwhile.
async fn advance(app: &TestApp, time: Duration) {
    app.while_time_passes((time / 200).clamp(STEP, SECOND * 4), app.sleep(time)).await;
}

/// Lets time pass until the engine of `user` is in this state.
async fn wait_for_status(product: &ProductClient<'_>, user: &str, status: &str) {
    let is = async || summarize(product.get(user).await) == format!("200 {status}");
    product.app.advance_until(STEP, is).await;
}
