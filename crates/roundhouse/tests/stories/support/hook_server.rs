//! A product's server with a hook before and one after a tool, which records what it is asked and can keep its answers
//! back.

use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::{Json, Router, routing};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::eventually;

/// The server, which runs until this is dropped.
pub(crate) struct HookServer {
    base: String,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    /// The requests: the name of the hook and the body.
    requests: Mutex<Vec<(String, Value)>>,
    /// The hook whose requests are not answered.
    held: watch::Sender<Option<&'static str>>,
}

impl HookServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared { requests: Mutex::default(), held: watch::Sender::new(None) });
        let router = Router::new().route("/{hook}", routing::post(answer)).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { base, shared, task: task.abort_handle() }
    }

    /// The address of a hook.
    pub(crate) fn url(&self, hook: &str) -> String {
        format!("{}/{hook}", self.base)
    }

    /// Keeps back the answers of this hook, and of no other.
    pub(crate) fn hold(&self, hook: Option<&'static str>) {
        self.shared.held.send_replace(hook);
    }

    /// The requests to a hook.
    pub(crate) fn requests(&self, hook: &str) -> Vec<Value> {
        let requests = self.shared.requests.lock().unwrap();
        requests.iter().filter(|(name, _)| name == hook).map(|(_, body)| body.clone()).collect()
    }

    /// Waits for the first request to a hook.
    pub(crate) async fn wait_asked(&self, hook: &str) {
        eventually("the hook is asked", async || (!self.requests(hook).is_empty()).then_some(())).await;
    }
}

impl Drop for HookServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The hook before the tool changes the input to the number of its own requests; the one after it, the result.
async fn answer(
    State(shared): State<Arc<Shared>>,
    Path(hook): Path<String>,
    Json(body): Json<Value>,
) -> Json<Value> {
    let number = {
        let mut requests = shared.requests.lock().unwrap();
        requests.push((hook.clone(), body));
        requests.iter().filter(|(name, _)| *name == hook).count()
    };
    let mut held = shared.held.subscribe();
    held.wait_for(|held| *held != Some(hook.as_str())).await.unwrap();
    Json(match hook.as_str() {
        "before" => json!({"decision": "allow", "input": {"n": number.to_string()}, "note": "checked"}),
        _ => json!({"decision": "allow", "result": "replaced", "note": "filed"}),
    })
}
