//! Story 47: the tools of other people's servers, and the leave that a user gives for them.

mod calls;
mod connections;
mod elicitation;
mod leave;
mod leave_refused;
mod official_oauth;
mod ready_made;
mod refresh;
mod revisions;
mod trouble;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::calls::message;
use crate::support::peers::{Authority, Peer, Returned};
use crate::support::processes::contains;
use crate::support::programs::{call, done, results};
use crate::support::turn::completed;
use crate::support::{Engine, Event, Peers, Rig};

/// A turn in which the model calls a tool, for which the user gives leave if asked; what came of it.
async fn turn(rig: &Rig, task: &str, tool: &str, input: Value) -> Result<String, String> {
    let events = turn_events(rig, task, tool, input).await;
    let result = results(&events).pop().expect("the tool was called");
    result.map(str::to_owned).map_err(str::to_owned)
}

/// The events of a turn in which the model calls a tool, for which the user gives leave if asked.
async fn turn_events(rig: &Rig, task: &str, tool: &str, input: Value) -> Vec<Event> {
    rig.provider.enqueue_all([call(tool, input), done()]);
    let mut stream = rig.engine.execute_with(&message(task, "Do it.")).await;
    let asked_or_done = |event: &Event| event.kind == "hitl_request" || event.kind == "tool_result";
    let first = stream.until("a request or a result", asked_or_done).await;
    if first.kind == "hitl_request" {
        assert_eq!(first.data["kind"], "permission", "{first:?}");
        rig.engine.respond(task, "yes").await.ok("status:text request_id:hitl");
    }
    let events = stream.rest().await;
    assert_eq!(completed(&events), "Done.");
    events
}

/// The only connection.
async fn connection(engine: &Engine) -> Value {
    let connections = engine.connections().await;
    let [one] = connections.as_slice() else { panic!("one connection, not {connections:#?}") };
    one.clone()
}

/// The names of a connection's tools, as the server has them.
fn tools_of(connection: &Value) -> Vec<&str> {
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
fn stands_nowhere(rig: &Rig, what: &str, secret: &str, allowed: &[&str]) {
    for (file, content) in files_below(rig.place.home.path()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let found = contains(&content, secret.as_bytes());
        assert!(!found || allowed.contains(&name), "{what} stands in {}", file.display());
    }
}

/// A server, the authorization server that gives leave for it, and an engine that knows the server as `peer`.
struct Protected {
    authority: Authority,
    server: Peer,
    rig: Rig,
}

impl Protected {
    /// With access tokens that live for an hour, and clients that register.
    async fn new(peers: &Peers) -> Self {
        Self::of(peers, 3600).await
    }

    /// With access tokens that live so long.
    async fn of(peers: &Peers, access_token_ttl_s: u32) -> Self {
        let authority = peers.authority(access_token_ttl_s, "dynamic").await;
        let server = peers.http(&["--issuer", authority.url()]).await;
        let rig = Rig::with_servers(json!({"peer": server.entry("oauth")})).await;
        Self { authority, server, rig }
    }

    fn engine(&self) -> &Engine {
        &self.rig.engine
    }

    /// Asks for a connection; gives where the user must go, and the state.
    async fn asked_for(&self) -> (String, String) {
        self.asked_for_with(json!({"server": "peer"})).await
    }

    async fn asked_for_with(&self, body: Value) -> (String, String) {
        let answer = self.engine().connect(&body).await.ok("status:text authorization_url:text state:text");
        assert_eq!(answer["status"], "authorization_required");
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        (text("authorization_url"), text("state"))
    }

    /// Asks for a connection, and goes and agrees; gives what the user comes back with.
    async fn agreed(&self) -> Returned {
        let (url, state) = self.asked_for().await;
        let returned = self.authority.visit(&url).await;
        assert_eq!(returned.0["state"], state);
        returned
    }

    /// Goes the whole way; gives the connection's id.
    async fn connected(&self) -> String {
        let returned = self.agreed().await;
        let answer = self.engine().post("/assets/callback", &returned.body()).await;
        let answer = answer.ok("status:text connection:connection");
        assert_eq!(answer["status"], "connected");
        answer["connection"].as_str().unwrap().to_owned()
    }

    /// The same with the engine stopped and started again.
    async fn restarted(self) -> Self {
        Self { rig: self.rig.stop_and_start().await, ..self }
    }
}
