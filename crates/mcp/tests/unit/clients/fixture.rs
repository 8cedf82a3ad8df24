//! A test fixture: clients with a brain of their own, and servers that are small programs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::CallId;
use api::assets::{Connection, ConnectionStatus};
use catalog::{Auth, McpServerSpec, Secret, ServerOrigin, Transport};
use fetch::WebAllowlist;
use futures::FutureExt as _;
use http_service::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};
use store::Brain;
use tempfile::TempDir;
use testkit::{test_sandbox, with_deadline};
use tools::documents::DocumentReader;
use tools::{Question, ToolOutput};

use super::super::connections::Connections;
use super::super::request_auth::RequestAuth;
use super::{CallOutcome, ClientError, Clients, IDLE_TIMEOUT, SERVER_CONNECT_TIMEOUT, Timeouts, ToolCall};

/// The clients, their brain, and a folder for the servers.
pub(super) struct ClientFixture {
    pub(super) clients: Clients,
    pub(super) connections: Arc<Connections>,
    pub(super) brain: Brain,
    folder: TempDir,
}

/// The source that every server of a test begins with.
use testkit::MCP_SERVER_PRELUDE as SERVER_PRELUDE;

impl ClientFixture {
    pub(super) fn new() -> Self {
        Self::with_timeouts(Timeouts { idle: IDLE_TIMEOUT, connect: SERVER_CONNECT_TIMEOUT })
    }

    pub(super) fn with_timeouts(timeouts: Timeouts) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        let connections =
            Connections::open(brain.clone(), None, Arc::new(SystemClock::new()), WebAllowlist::default())
                .unwrap();
        let connections = Arc::new(connections);
        let programs = folder.path().join("programs");
        std::fs::create_dir(&programs).unwrap();
        let sandbox = test_sandbox(&folder.path().join("workspace"), &[&programs]);
        let clients = Clients::with_timeouts(Arc::clone(&connections), Some(sandbox), timeouts);
        Self { clients, connections, brain, folder }
    }

    /// Returns a server with this source, after the common prelude.
    pub(super) fn program_spec(&self, source: &str) -> Arc<McpServerSpec> {
        let file = self.folder.path().join("programs/server.py");
        std::fs::write(&file, format!("{SERVER_PRELUDE}\n{source}")).unwrap();
        Arc::new(command_spec(&["python3", file.to_str().unwrap()]))
    }

    /// Connects the server, as a user does.
    pub(super) async fn connect(&self, spec: &Arc<McpServerSpec>) -> Vec<String> {
        let tools = with_deadline(self.clients.list_tools(spec, RequestAuth::None)).await.unwrap();
        let names = tools.iter().map(|tool| tool.name.clone()).collect();
        self.connections.establish(spec, tools, None).await.unwrap();
        self.clients.mark_tools_recorded(&spec.name);
        names
    }

    /// Returns the notes that servers have written so far.
    pub(super) fn notes(&self) -> Vec<String> {
        let notes = std::fs::read_to_string(self.folder.path().join("workspace/notes")).unwrap_or_default();
        notes.lines().map(str::to_owned).collect()
    }

    /// Waits until a server has written this note.
    pub(super) async fn wait_for_note(&self, note: &str) {
        with_deadline(async {
            while !self.notes().iter().any(|line| line == note) {
                SystemClock::new().sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Waits until the server's session has ended.
    pub(super) async fn wait_session_ended(&self) {
        let is_running =
            || self.clients.0.slots.lock().get("server").is_some_and(|slot| slot.session.lock().is_some());
        with_deadline(async {
            while is_running() {
                SystemClock::new().sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Returns how often a server was started.
    pub(super) fn start_count(&self) -> usize {
        self.notes().iter().filter(|line| *line == "started").count()
    }

    pub(super) fn connection(&self) -> Connection {
        self.connections.list().unwrap().remove(0)
    }

    pub(super) fn status(&self) -> ConnectionStatus {
        self.connection().status
    }

    pub(super) async fn call(
        &self,
        spec: &Arc<McpServerSpec>,
        tool: &str,
    ) -> Result<CallOutcome, ClientError> {
        self.call_with(spec, &tool_call(tool, json!({}))).await
    }

    pub(super) async fn call_with(
        &self,
        spec: &Arc<McpServerSpec>,
        call: &ToolCall<'_>,
    ) -> Result<CallOutcome, ClientError> {
        with_deadline(self.clients.call(spec, RequestAuth::None, call.clone())).await
    }

    /// Returns the text of a call that must succeed.
    pub(super) async fn call_text(&self, spec: &Arc<McpServerSpec>, tool: &str) -> String {
        expect_done(self.call(spec, tool).await)
    }
}

/// Returns a call during which a person may be asked.
pub(super) fn tool_call(tool: &str, input: Value) -> ToolCall<'_> {
    ToolCall { id: CallId::new(), tool, input, answer: None, may_elicit: true, idempotent: false }
}

/// Returns what a model gets of a call that has ended, also if the tool failed. It has no documents.
pub(super) fn expect_output(called: Result<CallOutcome, ClientError>) -> ToolOutput {
    let Ok(CallOutcome::Done(result)) = called else { panic!("{called:?}") };
    let documents = DocumentReader::new(None, Path::new("/nonexistent"));
    result.show(&documents, true).now_or_never().unwrap()
}

/// Returns the text of a call that must succeed.
pub(super) fn expect_done(called: Result<CallOutcome, ClientError>) -> String {
    let output = expect_output(called);
    assert!(!output.is_error, "{output:?}");
    output.text
}

pub(super) fn expect_question(called: Result<CallOutcome, ClientError>) -> Question {
    match called {
        Ok(CallOutcome::Ask(question)) => question,
        other => panic!("{other:?}"),
    }
}

/// Returns the reason of a failed call.
pub(super) fn expect_failure(called: Result<CallOutcome, ClientError>) -> String {
    match called {
        Err(ClientError::Failed(reason) | ClientError::Unauthorized(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

/// Returns a server that runs this command.
pub(super) fn command_spec(command: &[&str]) -> McpServerSpec {
    McpServerSpec {
        name: "server".into(),
        description: String::new(),
        origin: ServerOrigin::Catalog,
        transport: Transport::Stdio {
            command: command.iter().map(|part| Secret::new((*part).to_owned())).collect(),
            env: BTreeMap::new(),
            network: false,
        },
        auth: Auth::None,
        trust_annotations: false,
        timeout: Duration::from_secs(10),
    }
}
