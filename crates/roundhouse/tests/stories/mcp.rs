//! Story 47: tools of third-party MCP servers, and the permissions and authorizations that users give for them.

mod authorization;
mod authorization_refused;
mod connections;
mod documents;
mod elicitation;
mod misbehaving_servers;
mod official_oauth;
mod protocol_revisions;
mod published_servers;
mod token_refresh;
mod tool_calls;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::peers::{AuthorizationServer, CallbackParams, PeerServer};
use crate::support::processes::contains;
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::assert_completed;
use crate::support::{Engine, EngineFixture, Event, Peers};

/// Runs a turn in which the model calls a tool, which the user approves if asked; returns the tool's result.
async fn call_tool_in_turn(
    fixture: &EngineFixture,
    task: &str,
    tool: &str,
    input: Value,
) -> Result<String, String> {
    let events = turn_events(fixture, task, tool, input).await;
    let result = tool_results(&events).pop().expect("the tool was called");
    result.map(str::to_owned).map_err(str::to_owned)
}

/// The events of a turn in which the model calls a tool, which the user approves if asked.
async fn turn_events(fixture: &EngineFixture, task: &str, tool: &str, input: Value) -> Vec<Event> {
    fixture.provider.enqueue_all([tool_reply(tool, input), done_reply()]);
    let mut stream = fixture.engine.execute_with(&direct_message(task, "Do it.")).await;
    let asked_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let first = stream.read_until("a request or a result", asked_or_done).await;
    if first.kind == "hitl_request" {
        assert_eq!(first.data["kind"], "permission", "{first:?}");
        fixture.engine.respond(task, "yes").await.assert_ok("status:text request_id:hitl");
    }
    let events = stream.collect().await;
    assert_eq!(assert_completed(&events), "Done.");
    events
}

/// The engine's only connection.
async fn only_connection(engine: &Engine) -> Value {
    let connections = engine.connections().await;
    let [one] = connections.as_slice() else { panic!("one connection, not {connections:#?}") };
    one.clone()
}

/// The names of a connection's tools, without the prefix of the server.
fn tool_names(connection: &Value) -> Vec<&str> {
    connection["tools"].as_array().unwrap().iter().map(|tool| tool.as_str().unwrap()).collect()
}

/// All files below a folder with their contents, except those of the peers.
fn files_below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name() == Some(OsStr::new("peers")) {
            continue;
        }
        if path.is_dir() {
            files.extend(files_below(&path));
        } else if let Ok(content) = fs::read(&path) {
            // SQLite may remove one of its files meanwhile.
            files.push((path, content));
        }
    }
    files
}

/// Asserts that no file of the engine's test folder contains a secret, its log included, except the allowed ones.
#[track_caller]
fn assert_stored_nowhere(fixture: &EngineFixture, what: &str, secret: &str, allowed: &[&str]) {
    for (file, content) in files_below(fixture.setup.test_env.path()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let found = contains(&content, secret.as_bytes());
        assert!(!found || allowed.contains(&name), "{what} is stored in {}", file.display());
    }
}

/// An MCP server, its authorization server, and an engine whose catalog names the server `peer`.
struct ProtectedServer {
    authorization_server: AuthorizationServer,
    server: PeerServer,
    fixture: EngineFixture,
}

impl ProtectedServer {
    /// Starts them with access tokens that live for an hour, and dynamic client registration.
    async fn new(peers: &Peers) -> Self {
        Self::with_token_ttl(peers, 3600).await
    }

    /// As [`Self::new`], with another lifetime of the access tokens.
    async fn with_token_ttl(peers: &Peers, access_token_ttl_s: u32) -> Self {
        let authorization_server = peers.start_authorization_server(access_token_ttl_s, "dynamic").await;
        let server = peers.start_http(&["--issuer", authorization_server.url()]).await;
        let fixture = EngineFixture::with_servers(json!({"peer": server.mcp_entry("oauth")})).await;
        Self { authorization_server, server, fixture }
    }

    fn engine(&self) -> &Engine {
        &self.fixture.engine
    }

    /// Requests a connection; returns the authorization URL for the user and the `state`.
    async fn begin_authorization(&self) -> (String, String) {
        self.begin_authorization_with(json!({"server": "peer"})).await
    }

    async fn begin_authorization_with(&self, body: Value) -> (String, String) {
        let answer =
            self.engine().connect(&body).await.assert_ok("status:text authorization_url:text state:text");
        assert_eq!(answer["status"], "authorization_required");
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        (text("authorization_url"), text("state"))
    }

    /// Requests a connection and grants it in the browser; returns the parameters of the callback.
    async fn authorize(&self) -> CallbackParams {
        let (url, state) = self.begin_authorization().await;
        let returned = self.authorization_server.authorize_in_browser(&url).await;
        assert_eq!(returned.0["state"], state);
        returned
    }

    /// Completes the authorization; returns the connection's id.
    async fn connect(&self) -> String {
        let returned = self.authorize().await;
        let answer = self.engine().post("/assets/callback", &returned.body()).await;
        let answer = answer.assert_ok("status:text connection:connection");
        assert_eq!(answer["status"], "connected");
        answer["connection"].as_str().unwrap().to_owned()
    }

    /// Stops the engine and starts it again.
    async fn restart(self) -> Self {
        Self { fixture: self.fixture.stop_and_start().await, ..self }
    }
}
