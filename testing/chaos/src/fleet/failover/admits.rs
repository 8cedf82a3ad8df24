//! The load: admits at a steady rate, each of which is retried once, and the gap that its callers see.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::balancer::Balancer;
use crate::client::{CallOutcome, send};
use crate::counters::Counters;
use crate::fleet::tenant_users::text_field;

/// How long a caller waits for an answer before it retries: what is frozen answers nothing.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a caller waits before its retry, no longer than the refusals' `Retry-After` says.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long a load balancer holds a call that it has no server for.
const HOLD_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) const ADMITS: &str = "admits";
pub(super) const RETRIED: &str = "admits retried";

/// Sends admits, and remembers how long none was answered.
#[derive(Debug)]
pub(super) struct Admits {
    pub(super) http: Client,
    pub(super) bases: Vec<String>,
    pub(super) balancer: Balancer,
    pub(super) platform_key: String,
    /// Each user's address and key, as first told.
    pub(super) users: Vec<(String, String)>,
    pub(super) counters: Arc<Counters>,
    pub(super) gap: Mutex<Gap>,
    pub(super) next_user: AtomicUsize,
    /// How many leaders were taken away so far.
    pub(super) faults: AtomicUsize,
}

/// The longest time without a success.
#[derive(Debug)]
pub(super) struct Gap {
    last_success: Instant,
    longest: Duration,
}

impl Gap {
    pub(super) fn new() -> Self {
        Self { last_success: Instant::now(), longest: Duration::ZERO }
    }

    /// Begins a new measurement.
    pub(super) fn begin(&mut self) {
        self.longest = Duration::ZERO;
    }

    pub(super) const fn longest(&self) -> Duration {
        self.longest
    }

    fn success(&mut self) {
        let now = Instant::now();
        self.longest = self.longest.max(now.saturating_duration_since(self.last_success));
        self.last_success = now;
    }
}

impl Admits {
    /// Sends `rate` admits per second until it is dropped.
    pub(super) async fn run(self: Arc<Self>, rate: u32) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut calls = JoinSet::new();
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    calls.spawn(Arc::clone(&self).admit());
                }
                Some(_) = calls.join_next() => {}
            }
        }
    }

    async fn admit(self: Arc<Self>) {
        let user = self.next_user.fetch_add(1, Ordering::Relaxed) % self.users.len().max(1);
        self.counters.count(ADMITS);
        let mut failed_in = None;
        loop {
            let begin = self.faults.load(Ordering::Relaxed);
            let Err(error) = self.attempt(user).await else {
                self.gap.lock().success();
                return;
            };
            let faults = begin..=self.faults.load(Ordering::Relaxed);
            // Another leader that is taken away costs another retry.
            if failed_in.as_ref() == Some(&faults) && faults.start() == faults.end() {
                self.counters.record_violation(format!("an admit of user-{user} was lost: {error}"));
                return;
            }
            failed_in = Some(faults);
            self.counters.count(RETRIED);
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn attempt(&self, user: usize) -> Result<(), String> {
        let replica = tokio::time::timeout(HOLD_TIMEOUT, self.balancer.active()).await;
        let replica = replica.map_err(|_| "no orchestrator was active".to_owned())?;
        let base = self.bases.get(replica).map(String::as_str).unwrap_or_default();
        let told = admit(&self.http, base, &self.platform_key, user).await?;
        if self.users.get(user) == Some(&told) { Ok(()) } else { Err(format!("it was told {}", told.0)) }
    }
}

/// Admits a user, and returns the address and the key of its engine.
pub(super) async fn admit(
    http: &Client,
    base: &str,
    platform_key: &str,
    user: usize,
) -> Result<(String, String), String> {
    let request = http.post(format!("{base}/engines/user-{user}/admit"));
    let request = request.header("x-platform-key", platform_key).json(&json!({"auto_provision": true}));
    let outcome = tokio::time::timeout(CALL_TIMEOUT, send(request)).await;
    match outcome.map_err(|_| format!("no answer within {CALL_TIMEOUT:?}"))? {
        CallOutcome::Response(200, body) => {
            let field = |name: &str| text_field(&body, name);
            field("/engine/url")
                .zip(field("/engine/api_key"))
                .ok_or_else(|| format!("it was answered {body}"))
        }
        CallOutcome::Response(status, body) => Err(format!("{status} {}", error_message(&body))),
        CallOutcome::NotSent => Err("it was not sent".to_owned()),
        CallOutcome::Unknown => Err("the answer was cut".to_owned()),
    }
}

fn error_message(body: &Value) -> String {
    text_field(body, "/error/message").unwrap_or_default()
}
