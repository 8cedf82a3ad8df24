//! Story 47: the tools of other people's servers, and the leave that a user gives for them.

mod authorization;
mod authorization_refused;
mod connections;
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

/// A turn in which the model calls a tool, for which the user gives leave if asked; what came of it.
async fn call_tool_in_turn(
    rig: &EngineFixture,
    task: &str,
    tool: &str,
    input: Value,
) -> Result<String, String> {
    let events = turn_events(rig, task, tool, input).await;
    let result = tool_results(&events).pop().expect("the tool was called");
    result.map(str::to_owned).map_err(str::to_owned)
}

/// The events of a turn in which the model calls a tool, for which the user gives leave if asked.
async fn turn_events(rig: &EngineFixture, task: &str, tool: &str, input: Value) -> Vec<Event> {
    rig.provider.enqueue_all([tool_reply(tool, input), done_reply()]);
    let mut stream = rig.engine.execute_with(&direct_message(task, "Do it.")).await;
    let asked_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let first = stream.read_until("a request or a result", asked_or_done).await;
    if first.kind == "hitl_request" {
        assert_eq!(first.data["kind"], "permission", "{first:?}");
        rig.engine.respond(task, "yes").await.assert_ok("status:text request_id:hitl");
    }
    let events = stream.collect().await;
    assert_eq!(assert_completed(&events), "Done.");
    events
}

/// The only connection.
async fn only_connection(engine: &Engine) -> Value {
    let connections = engine.connections().await;
    let [one] = connections.as_slice() else { panic!("one connection, not {connections:#?}") };
    one.clone()
}

/// The names of a connection's tools, as the server has them.
fn tool_names(connection: &Value) -> Vec<&str> {
    connection["tools"].as_array().unwrap().iter().map(|tool| tool.as_str().unwrap()).collect()
}

/// All files below a folder, with what is in them. Those that are the peers' own are left out.
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
            // A file of SQLite's may go while it is looked at.
            files.push((path, content));
        }
    }
    files
}

/// Asserts that a secret stands in no file of the engine's place, its log among them, but in those named.
#[track_caller]
fn assert_stored_nowhere(rig: &EngineFixture, what: &str, secret: &str, allowed: &[&str]) {
    for (file, content) in files_below(rig.setup.test_env.path()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let found = contains(&content, secret.as_bytes());
        assert!(!found || allowed.contains(&name), "{what} stands in {}", file.display());
    }
}

/// A server, the authorization server that gives leave for it, and an engine that knows the server as `peer`.
struct ProtectedServer {
    authorization_server: AuthorizationServer,
    server: PeerServer,
    fixture: EngineFixture,
}

impl ProtectedServer {
    /// With access tokens that live for an hour, and clients that register.
    async fn new(peers: &Peers) -> Self {
        Self::with_token_ttl(peers, 3600).await
    }

    /// With access tokens that live so long.
    async fn with_token_ttl(peers: &Peers, access_token_ttl_s: u32) -> Self {
        let authority = peers.start_authorization_server(access_token_ttl_s, "dynamic").await;
        let server = peers.start_http(&["--issuer", authority.url()]).await;
        let rig = EngineFixture::with_servers(json!({"peer": server.mcp_entry("oauth")})).await;
        Self { authorization_server: authority, server, fixture: rig }
    }

    fn engine(&self) -> &Engine {
        &self.fixture.engine
    }

    /// Asks for a connection; gives where the user must go, and the state.
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

    /// Asks for a connection, and goes and agrees; gives what the user comes back with.
    async fn authorize(&self) -> CallbackParams {
        let (url, state) = self.begin_authorization().await;
        let returned = self.authorization_server.authorize_in_browser(&url).await;
        assert_eq!(returned.0["state"], state);
        returned
    }

    /// Goes the whole way; gives the connection's id.
    async fn connect(&self) -> String {
        let returned = self.authorize().await;
        let answer = self.engine().post("/assets/callback", &returned.body()).await;
        let answer = answer.assert_ok("status:text connection:connection");
        assert_eq!(answer["status"], "connected");
        answer["connection"].as_str().unwrap().to_owned()
    }

    /// The same with the engine stopped and started again.
    async fn restart(self) -> Self {
        Self { fixture: self.fixture.stop_and_start().await, ..self }
    }
}
