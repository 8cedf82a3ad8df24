//! Clients over a brain of their own, with servers that are small programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use contract::CallId;
use contract::assets::{Connection, ConnectionStatus};
use serde_json::{Value, json};
use service::clock::{Clock as _, SystemClock};
use tempfile::TempDir;

use super::super::access::Access;
use super::super::connections::Connections;
use super::{CONNECTING, Called, ClientError, Clients, IDLE, Times, ToolCall};
use crate::brain::Brain;
use crate::catalog::{Auth, Secret, ServerSpec, Transport};
use crate::testing::{leash, within};
use crate::tools::{Allowed, Question};

/// See the module.
pub(super) struct Rig {
    pub(super) clients: Clients,
    pub(super) connections: Arc<Connections>,
    folder: TempDir,
}

/// What every program of a test begins with.
const PROGRAM: &str = include_str!("rig.py");

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(Times { idle: IDLE, connecting: CONNECTING })
    }

    pub(super) fn with(times: Times) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        let connections =
            Connections::open(brain, None, Arc::new(SystemClock::new()), Allowed::default()).unwrap();
        let connections = Arc::new(connections);
        let programs = folder.path().join("programs");
        std::fs::create_dir(&programs).unwrap();
        let leash = leash(&folder.path().join("workspace"), &[&programs]);
        let clients = Clients::with(Arc::clone(&connections), Some(leash), times);
        Self { clients, connections, folder }
    }

    /// A server that is this program, behind what every program begins with.
    pub(super) fn program(&self, source: &str) -> Arc<ServerSpec> {
        let file = self.folder.path().join("programs/server.py");
        std::fs::write(&file, format!("{PROGRAM}\n{source}")).unwrap();
        Arc::new(program_at(&["python3", file.to_str().unwrap()]))
    }

    /// Connects the server, as a user does.
    pub(super) async fn connect(&self, spec: &Arc<ServerSpec>) -> Vec<String> {
        let tools = within(self.clients.list_tools(spec, Access::Nothing)).await.unwrap();
        let names = tools.iter().map(|tool| tool.name.clone()).collect();
        self.connections.establish(spec, tools, None).await.unwrap();
        self.clients.on_record(&spec.name);
        names
    }

    /// What programs have noted so far.
    pub(super) fn notes(&self) -> Vec<String> {
        let notes = std::fs::read_to_string(self.folder.path().join("workspace/notes")).unwrap_or_default();
        notes.lines().map(str::to_owned).collect()
    }

    /// Waits until a program has noted this.
    pub(super) async fn noted(&self, note: &str) {
        within(async {
            while !self.notes().iter().any(|line| line == note) {
                SystemClock::new().sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Waits until the server's client has ended.
    pub(super) async fn ended(&self) {
        let lives = || self.clients.slots().get("server").is_some_and(|slot| slot.live().is_some());
        within(async {
            while lives() {
                SystemClock::new().sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// How often a program was started.
    pub(super) fn starts(&self) -> usize {
        self.notes().iter().filter(|line| *line == "started").count()
    }

    pub(super) fn connection(&self) -> Connection {
        self.connections.list().unwrap().remove(0)
    }

    pub(super) fn status(&self) -> ConnectionStatus {
        self.connection().status
    }

    pub(super) async fn call(&self, spec: &Arc<ServerSpec>, tool: &str) -> Result<Called, ClientError> {
        self.call_with(spec, &call(tool, json!({}))).await
    }

    pub(super) async fn call_with(
        &self,
        spec: &Arc<ServerSpec>,
        call: &ToolCall<'_>,
    ) -> Result<Called, ClientError> {
        within(self.clients.call(spec, Access::Nothing, call.clone())).await
    }

    /// What a call gives that succeeds.
    pub(super) async fn done(&self, spec: &Arc<ServerSpec>, tool: &str) -> String {
        done(self.call(spec, tool).await)
    }
}

/// A call by somebody who may be asked.
pub(super) fn call(tool: &str, input: Value) -> ToolCall<'_> {
    ToolCall { id: CallId::new(), tool, input, answer: None, may_ask: true, idempotent: false }
}

pub(super) fn done(called: Result<Called, ClientError>) -> String {
    match called {
        Ok(Called::Done(text)) => text,
        other => panic!("{other:?}"),
    }
}

pub(super) fn asked(called: Result<Called, ClientError>) -> Question {
    match called {
        Ok(Called::Ask(question)) => question,
        other => panic!("{other:?}"),
    }
}

/// The reason of a failed call.
pub(super) fn failed(called: Result<Called, ClientError>) -> String {
    match called {
        Err(ClientError::Failed(reason) | ClientError::NotLetIn(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

/// A server that is this command.
pub(super) fn program_at(command: &[&str]) -> ServerSpec {
    ServerSpec {
        name: "server".into(),
        description: String::new(),
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
