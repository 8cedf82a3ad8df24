//! A tool server at an address whose tools and faults the stories script. It is its own authorization server.

use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

/// A tool server, which runs until this is dropped.
pub(crate) struct ScriptedMcp {
    base: String,
    state: Shared,
    task: AbortHandle,
}

type Shared = Arc<Mutex<ScriptedState>>;

/// What it does, and what it has received.
pub(crate) struct ScriptedState {
    base: String,
    /// The tools that it lists.
    pub(crate) tools: Vec<Value>,
    /// The tools that it lists once more lists were requested than this.
    pub(crate) tools_after: Option<(usize, Vec<Value>)>,
    /// Whether it requires a token of its authorization server.
    pub(crate) requires_token: bool,
    /// The method that it never answers.
    pub(crate) hangs_at: Option<&'static str>,
    /// Where it redirects every request.
    pub(crate) redirect: Option<String>,
    /// Changes of the metadata of its authorization server, and of its own.
    pub(crate) authorization_metadata: Value,
    pub(crate) resource_metadata: Value,
    /// What its tools return, rather than a text with their name.
    pub(crate) result: Option<Value>,
    /// The called tools.
    pub(crate) calls: Vec<String>,
    /// The `_meta` of each call.
    pub(crate) call_metas: Vec<Value>,
    /// All requests: method and path.
    pub(crate) requests: Vec<String>,
    /// The `Authorization` headers that it received.
    pub(crate) authorizations: Vec<String>,
    /// How many lists were requested.
    pub(crate) list_count: usize,
    /// The tokens that were revoked.
    pub(crate) revoked: Vec<String>,
    issued: Vec<String>,
    changed: broadcast::Sender<()>,
}

/// A tool of a scripted server.
pub(crate) fn tool(name: &str, description: &str) -> Value {
    let input =
        json!({"type": "object", "properties": {"text": {"type": "string", "description": "What to do"}}});
    json!({"name": name, "description": description, "inputSchema": input})
}

impl ScriptedMcp {
    pub(crate) async fn start(tools: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let state = ScriptedState {
            base: base.clone(),
            tools,
            tools_after: None,
            requires_token: false,
            hangs_at: None,
            redirect: None,
            authorization_metadata: json!({}),
            resource_metadata: json!({}),
            result: None,
            calls: Vec::new(),
            call_metas: Vec::new(),
            requests: Vec::new(),
            authorizations: Vec::new(),
            list_count: 0,
            revoked: Vec::new(),
            issued: Vec::new(),
            changed: broadcast::channel(16).0,
        };
        let state = Arc::new(Mutex::new(state));
        let router = Router::new().fallback(handle).with_state(Arc::clone(&state));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { base, state, task: task.abort_handle() }
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn url(&self) -> String {
        format!("{}/mcp", self.base)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ScriptedState> {
        self.state.lock().unwrap()
    }

    /// Lists other tools from now on, and says so to its clients.
    pub(crate) fn change_tools(&self, tools: Vec<Value>) {
        let mut state = self.state();
        state.tools = tools;
        // Nobody may listen.
        let _ = state.changed.send(());
    }
}

impl Drop for ScriptedMcp {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(State(shared): State<Shared>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let response = respond(&mut shared.lock().unwrap(), &head, &body);
    match response {
        Some(response) => response,
        None => std::future::pending().await,
    }
}

/// Answers a request; `None` if it is never answered.
fn respond(state: &mut ScriptedState, head: &Parts, body: &[u8]) -> Option<Response> {
    let path = head.uri.path().to_owned();
    state.requests.push(format!("{} {path}", head.method));
    if let Some(target) = state.redirect.clone() {
        return Some((StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, target)]).into_response());
    }
    let response = match (&head.method, path.as_str()) {
        (&Method::GET, "/.well-known/oauth-protected-resource/mcp") => {
            let base = &state.base;
            let metadata = json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]});
            axum::Json(merged(metadata, &state.resource_metadata)).into_response()
        }
        (&Method::GET, "/.well-known/oauth-authorization-server") => {
            let at = |path: &str| format!("{}/{path}", state.base);
            let metadata = json!({
                "issuer": state.base, "authorization_endpoint": at("authorize"), "token_endpoint": at("token"),
                "registration_endpoint": at("register"), "revocation_endpoint": at("revoke"),
                "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            });
            axum::Json(merged(metadata, &state.authorization_metadata)).into_response()
        }
        (&Method::POST, "/register") => {
            let mut client: Value = serde_json::from_slice(body).unwrap();
            client["client_id"] = json!("a-client");
            (StatusCode::CREATED, axum::Json(client)).into_response()
        }
        (&Method::POST, "/token") => {
            let token = format!("token-{}-7q41x", state.issued.len());
            state.issued.push(token.clone());
            let answer = json!({"access_token": token, "token_type": "Bearer", "expires_in": 3600});
            axum::Json(answer).into_response()
        }
        (&Method::POST, "/revoke") => {
            let form = String::from_utf8(body.to_vec()).unwrap();
            let issued = state.issued.clone();
            state.revoked.extend(issued.into_iter().filter(|token| form.contains(token.as_str())));
            StatusCode::OK.into_response()
        }
        (_, "/mcp") => {
            if let Some(refusal) = refuse(state, &head.headers) {
                return Some(refusal);
            }
            match head.method {
                Method::POST => {
                    let message: Value = serde_json::from_slice(body).unwrap();
                    if state.hangs_at.is_some_and(|method| message["method"] == method) {
                        return None;
                    }
                    answer(state, &message)
                }
                Method::GET => events(state.changed.subscribe()),
                _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
            }
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    };
    Some(response)
}

fn merged(mut base: Value, changes: &Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        base[name] = value.clone();
    }
    base
}

fn refuse(state: &mut ScriptedState, headers: &HeaderMap) -> Option<Response> {
    let authorization = headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
    state.authorizations.extend(authorization.clone());
    let token = authorization.and_then(|value| value.strip_prefix("Bearer ").map(str::to_owned));
    let is_valid = |token: &String| state.issued.contains(token) && !state.revoked.contains(token);
    if !state.requires_token || token.as_ref().is_some_and(is_valid) {
        return None;
    }
    let metadata = format!("{}/.well-known/oauth-protected-resource/mcp", state.base);
    let challenge = format!("Bearer resource_metadata=\"{metadata}\"");
    Some((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response())
}

fn answer(state: &mut ScriptedState, message: &Value) -> Response {
    let result = match message["method"].as_str() {
        _ if message["id"].is_null() => return StatusCode::ACCEPTED.into_response(),
        Some("initialize") => json!({
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": true}},
            "serverInfo": {"name": "scripted", "version": "1"},
        }),
        Some("tools/list") => {
            state.list_count += 1;
            if let Some((_, tools)) = state.tools_after.take_if(|(count, _)| *count < state.list_count) {
                state.tools = tools;
            }
            json!({"tools": state.tools})
        }
        Some("tools/call") => {
            let name = message["params"]["name"].as_str().unwrap().to_owned();
            let text = format!("{name} was called");
            state.calls.push(name);
            state.call_metas.push(message["params"]["_meta"].clone());
            state.result.clone().unwrap_or_else(|| json!({"content": [{"type": "text", "text": text}]}))
        }
        _ => return StatusCode::BAD_REQUEST.into_response(),
    };
    // Without a session nobody would listen to what it says by itself.
    let session = [("mcp-session-id", "a-session")];
    (session, axum::Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))).into_response()
}

/// The stream on which it says that its tools have changed.
fn events(changed: broadcast::Receiver<()>) -> Response {
    let note = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    let begun = futures::stream::iter([": begun\n\n".to_owned()]);
    let notices = futures::stream::unfold((changed, note), |(mut changed, note)| async move {
        changed.recv().await.ok()?;
        Some((format!("data: {note}\n\n"), (changed, note)))
    });
    let body = Body::from_stream(begun.chain(notices).map(Ok::<_, std::convert::Infallible>));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}
