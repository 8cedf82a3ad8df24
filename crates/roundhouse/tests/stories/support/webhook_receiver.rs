//! A receiver of the webhook, which is strict: a request without a valid signature, or another one than the engine
//! documents, fails the story.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::UNIX_EPOCH;

use api::webhooks::WebhookSecret;
use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::{StandaloneEngine, eventually};

/// The secrets that the receiver may know.
pub(crate) const SECRETS: [&str; 2] =
    ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_dGhpcyBpcyBhIHZlcnkgc2VjcmV0IHNlY3JldCE="];

/// A receiver, which runs until this is dropped.
pub(crate) struct WebhookReceiver {
    url: String,
    state: Arc<Mutex<ReceiverState>>,
    task: AbortHandle,
}

#[derive(Default)]
pub(crate) struct ReceiverState {
    /// The requests that were accepted, in their order: id and body.
    pub(crate) accepted: Vec<(String, Value)>,
    /// The ids of all requests, in their order.
    pub(crate) ids: Vec<String>,
    /// The statuses that the next requests are answered with, with a delay that is asked for.
    pub(crate) failures: VecDeque<(u16, Option<u64>)>,
    /// Whether requests are not answered.
    pub(crate) holds: bool,
    /// The secret that it knows.
    pub(crate) secret: usize,
    /// What no receiver would accept.
    violations: Vec<String>,
}

impl WebhookReceiver {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hooks?from=engine", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(ReceiverState::default()));
        let router = Router::new().fallback(handle).with_state(Arc::clone(&state));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, state, task: task.abort_handle() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ReceiverState> {
        self.state.lock().unwrap()
    }

    /// `webhook.json` with these secrets.
    pub(crate) fn file(&self, secrets: &[&str]) -> String {
        json!({"url": self.url, "secrets": secrets, "headers": {"X-Own-Key": "own"}}).to_string()
    }

    /// Lets an engine report to it.
    pub(crate) fn configure(&self, setup: StandaloneEngine) -> StandaloneEngine {
        setup
            .with_env("HOOK_SECRET", SECRETS[0])
            .with_catalog_file("webhook.json", &self.file(&["${HOOK_SECRET}"]))
    }

    /// Waits until `count` requests were accepted; returns their bodies.
    pub(crate) async fn wait_accepted(&self, count: usize) -> Vec<Value> {
        eventually("events are reported", async || {
            let state = self.state();
            assert_eq!(state.violations, [""; 0]);
            let bodies = || state.accepted.iter().map(|(_, body)| body.clone()).collect();
            (state.accepted.len() >= count).then(bodies)
        })
        .await
    }

    /// Waits until `count` requests have come.
    pub(crate) async fn wait_requests(&self, count: usize) {
        eventually("requests come", async || (self.state().ids.len() >= count).then_some(())).await;
    }
}

impl Drop for WebhookReceiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(State(state): State<Arc<Mutex<ReceiverState>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    let holds = {
        let mut state = state.lock().unwrap();
        let id = head.headers["webhook-id"].to_str().unwrap().to_owned();
        state.ids.push(id.clone());
        let is_expected = head.method == Method::POST && head.uri == "/hooks?from=engine";
        if !is_expected
            || head.headers["x-own-key"] != "own"
            || head.headers["content-type"] != "application/json"
        {
            state.violations.push(format!("{} {} {:?}", head.method, head.uri, head.headers));
        }
        if !is_signed(&head.headers, &id, &body, SECRETS[state.secret]) {
            state.violations.push(format!("{id} is not signed: {:?}", head.headers));
        }
        if let Some((status, retry_after)) = state.failures.pop_front() {
            let status = StatusCode::from_u16(status).unwrap();
            let retry_after = retry_after.map(|seconds| [("retry-after", seconds.to_string())]);
            return (status, retry_after.map(IntoResponse::into_response).unwrap_or_default())
                .into_response();
        }
        if !state.holds {
            state.accepted.push((id, serde_json::from_str(&body).unwrap()));
        }
        state.holds
    };
    if holds {
        std::future::pending::<()>().await;
    }
    StatusCode::NO_CONTENT.into_response()
}

/// Whether one of the signatures is that of the secret, and the time is now.
fn is_signed(headers: &HeaderMap, id: &str, body: &str, secret: &str) -> bool {
    let header = |name: &str| headers[name].to_str().unwrap();
    let timestamp: i64 = header("webhook-timestamp").parse().unwrap();
    let now = i64::try_from(UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    let expected = WebhookSecret::parse(secret).unwrap().sign(id, timestamp, body);
    (now - timestamp).abs() < 300 && header("webhook-signature").split(' ').any(|found| found == expected)
}
