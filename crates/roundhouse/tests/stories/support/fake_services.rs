//! A fake of both services' endpoints for connections. The story defines the outcome of requests to tool servers
//! and authorization servers. Requests that violate the contract fail the story.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::assert_fields;

const PLATFORM_KEY: &str = "pk-svc-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const ENGINE_KEY: &str = "sk-svc-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// A fake of both services, which runs until this is dropped.
#[derive(Debug)]
pub(crate) struct FakeServices {
    base: String,
    state: Arc<Mutex<FakeState>>,
    task: AbortHandle,
}

/// The servers and connections, and the responses to give.
#[derive(Debug, Default)]
pub(crate) struct FakeState {
    pub(crate) servers: Vec<Value>,
    pub(crate) connections: Vec<Value>,
    /// The responses of `POST /assets/connect` and `POST /assets/callback`.
    pub(crate) connect: (u16, Value),
    pub(crate) callback: (u16, Value),
    /// The bodies of these requests.
    pub(crate) connects: Vec<Value>,
    pub(crate) callbacks: Vec<Value>,
    /// The number of requests for the list of connections.
    pub(crate) connection_list_count: usize,
    base: String,
}

/// A server of the catalog.
pub(crate) fn server_entry(name: &str, auth: &str) -> Value {
    json!({"name": name, "description": format!("All about {name}"), "transport": "http", "auth": auth, "connected": false})
}

/// A connection.
pub(crate) fn connection_entry(server: &str, status: &str, tools: &[&str]) -> Value {
    let id = format!("conn_{:032x}", server.len());
    json!({
        "connection": id, "server": server, "status": status, "tools": tools, "created_at": "2026-01-01T00:00:00.000Z",
    })
}

/// An error response.
pub(crate) fn error_response(status: u16, code: &str, message: &str) -> (u16, Value) {
    (status, json!({"error": {"code": code, "message": message}}))
}

impl FakeServices {
    pub(crate) async fn start(servers: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(FakeState { servers, base: base.clone(), ..FakeState::default() }));
        let router = Router::new().fallback(handle).with_state(Arc::clone(&state));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { base, state, task: task.abort_handle() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap()
    }

    /// The options by which the binary finds it.
    pub(crate) fn cli_options(&self) -> [&str; 4] {
        ["--user", "ada", "--url", &self.base]
    }

    /// The variables with which the binary finds it.
    pub(crate) fn env() -> BTreeMap<String, String> {
        [("ROUNDHOUSE_PLATFORM_KEY".to_owned(), PLATFORM_KEY.to_owned())].into()
    }
}

impl Drop for FakeServices {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(State(state): State<Arc<Mutex<FakeState>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body: Value = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
    let key = |name: &str| head.headers.get(name).and_then(|key| key.to_str().ok());
    let mut state = state.lock().unwrap();
    let (status, answer) = match (&head.method, head.uri.path()) {
        (&Method::POST, "/engines/ada/admit") if key("x-platform-key") == Some(PLATFORM_KEY) => {
            (200, json!({"admitted": true, "engine": engine_record(&state.base)}))
        }
        (_, path) if path.starts_with("/engines") => error_response(401, "INVALID_PLATFORM_KEY", "who?"),
        _ if key("x-engine-key") != Some(ENGINE_KEY) => error_response(401, "INVALID_ENGINE_KEY", "who?"),
        (&Method::GET, "/assets/servers") => (200, json!({"servers": state.servers})),
        (&Method::GET, "/assets/connections") => {
            state.connection_list_count += 1;
            (200, json!({"connections": state.connections}))
        }
        (&Method::POST, "/assets/connect") => {
            assert_fields(&body, "server:text credentials?:object");
            state.connects.push(body);
            state.connect.clone()
        }
        (&Method::POST, "/assets/callback") => {
            assert_fields(&body, "state:text code?:text iss?:text error?:text error_description?:text");
            state.callbacks.push(body);
            state.callback.clone()
        }
        (&Method::DELETE, path) => {
            let id = path.strip_prefix("/assets/connections/").unwrap();
            let before = state.connections.len();
            state.connections.retain(|connection| connection["connection"] != id);
            assert_eq!(state.connections.len(), before - 1, "{id}");
            (200, json!({"status": "disconnected"}))
        }
        (method, path) => panic!("{method} {path} is not in the contract"),
    };
    (StatusCode::from_u16(status).unwrap(), axum::Json(answer)).into_response()
}

fn engine_record(url: &str) -> Value {
    json!({
        "engine_id": format!("eng_{:032x}", 1), "user_id": "ada", "status": "running", "url": url,
        "engine_version": "svc-engine:0.1.0", "created_at": "2026-01-01T00:00:00.000Z",
        "last_health_at": "2026-01-01T00:00:00.000Z", "api_key": ENGINE_KEY,
    })
}
