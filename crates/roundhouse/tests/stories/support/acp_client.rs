//! A code editor that uses `roundhouse acp`, with one of the official SDKs of the Agent Client Protocol.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;

use super::test_env::BINARY;
use super::{Fleet, Peers, Program, TestEnv, eventually, with_deadline};

/// An official SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcpSdk {
    Node,
    Python,
}

/// A running editor. It prints what it sees, one object per line.
#[derive(Debug)]
pub(crate) struct AcpClient {
    program: Program,
    input: ChildStdin,
    calls: u32,
    _home: TestEnv,
}

/// What an answer to `initialize` promises, and the parameters of the request.
pub(crate) fn initialize_params() -> Value {
    json!({"protocolVersion": 1, "clientCapabilities": {}})
}

impl AcpClient {
    /// Starts an editor for a user, whose agent is started with further `arguments`; skips the story and returns `None`
    /// if the SDK is not installed.
    pub(crate) fn start(sdk: AcpSdk, fleet: &Fleet, arguments: &[&str]) -> Option<Self> {
        let folder = fleet.folder().to_str().unwrap();
        Self::launch(sdk, &[&["--dir", folder], arguments].concat(), BTreeMap::new())
    }

    /// Starts an editor whose agent uses the engine through this orchestrator, with nothing but its address and the
    /// product's key.
    pub(crate) fn start_elsewhere(sdk: AcpSdk, orchestrator: &str, key: &str) -> Option<Self> {
        let key = ("ROUNDHOUSE_PLATFORM_KEY".to_owned(), key.to_owned());
        Self::launch(sdk, &["--url", orchestrator, "--proxy"], [key].into())
    }

    fn launch(sdk: AcpSdk, arguments: &[&str], more_variables: BTreeMap<String, String>) -> Option<Self> {
        let peers = Peers::installed()?;
        let agent = [&[BINARY, "acp", "--user", "ada"], arguments].concat();
        let (home, line, mut variables) = match sdk {
            AcpSdk::Node => {
                let home = peers.node_home();
                let program = home.path().join("acp_client.mjs");
                let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/acp_client.mjs");
                fs::copy(source, &program).unwrap();
                let line = [peers.node(), program].map(|path| path.to_str().unwrap().to_owned());
                (home, line.to_vec(), BTreeMap::new())
            }
            AcpSdk::Python => {
                let (line, variables) = peers.front_client("acp_client.py");
                (TestEnv::new(), line, variables)
            }
        };
        variables.extend(more_variables);
        let line: Vec<&str> = line.iter().map(String::as_str).chain(agent).collect();
        let (program, input) = home.run_program_interactive(&line, &variables);
        Some(Self { program, input, calls: 0, _home: home })
    }

    /// Starts an editor and initializes its connection.
    pub(crate) async fn connect(sdk: AcpSdk, fleet: &Fleet) -> Option<Self> {
        let mut this = Self::start(sdk, fleet, &[])?;
        this.call("initialize", initialize_params()).await.unwrap();
        Some(this)
    }

    /// All that it has seen.
    pub(crate) fn seen(&self) -> Vec<Value> {
        self.program.output().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for something that it sees.
    pub(crate) async fn wait_for<T>(&self, what: &str, find: impl Fn(&Value) -> Option<T>) -> T {
        let output = || self.program.output();
        let found = eventually(what, async || {
            let seen = self.seen();
            match seen.iter().find_map(&find) {
                Some(found) => Some(Ok(found)),
                None if seen.iter().any(|line| line.get("exit").is_some()) => Some(Err(())),
                None => None,
            }
        });
        found.await.unwrap_or_else(|()| panic!("the agent ended before {what}: {}", output()))
    }

    pub(crate) async fn order(&mut self, order: &Value) {
        self.input.write_all(format!("{order}\n").as_bytes()).await.unwrap();
    }

    /// Makes a request without waiting for the answer; returns its tag.
    pub(crate) async fn begin(&mut self, method: &str, params: Value) -> u32 {
        self.calls += 1;
        self.order(&json!({"call": method, "params": params, "tag": self.calls})).await;
        self.calls
    }

    /// Waits for the answer to a request: its result or error.
    pub(crate) async fn outcome(&self, tag: u32) -> Result<Value, Value> {
        self.wait_for(&format!("the answer to request {tag}"), |line| {
            if line["tag"] != tag {
                return None;
            }
            Some(line.get("result").cloned().ok_or_else(|| line["error"].clone()))
        })
        .await
    }

    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let tag = self.begin(method, params).await;
        self.outcome(tag).await
    }

    /// Opens a new session; returns its id.
    pub(crate) async fn new_session(&mut self) -> String {
        let result = self.call("session/new", json!({"cwd": "/home/ada", "mcpServers": []})).await.unwrap();
        result["sessionId"].as_str().unwrap().to_owned()
    }

    /// Sends a prompt; returns its tag.
    pub(crate) async fn prompt(&mut self, session: &str, text: &str) -> u32 {
        let prompt = json!([{"type": "text", "text": text}]);
        self.begin("session/prompt", json!({"sessionId": session, "prompt": prompt})).await
    }

    /// Waits for the end of a prompt; returns its stop reason.
    pub(crate) async fn stop_reason(&self, tag: u32) -> String {
        let result = self.outcome(tag).await.unwrap();
        result["stopReason"].as_str().unwrap().to_owned()
    }

    /// The updates of a session.
    pub(crate) fn updates(&self, session: &str) -> Vec<Value> {
        let seen = self.seen().into_iter().filter(|line| line["session"] == session);
        seen.map(|line| line["update"].clone()).collect()
    }

    /// The texts of a kind of chunks of a session, one after the other.
    pub(crate) fn text(&self, session: &str, kind: &str) -> String {
        let updates = self.updates(session);
        let chunks = updates.iter().filter(|update| update["sessionUpdate"] == kind);
        chunks.map(|update| update["content"]["text"].as_str().unwrap_or_default()).collect()
    }

    /// Waits until the agent's text in a session contains `words`.
    pub(crate) async fn wait_for_text(&self, session: &str, words: &str) {
        eventually(&format!("the agent says {words:?}"), async || {
            self.text(session, "agent_message_chunk").contains(words).then_some(())
        })
        .await;
    }

    /// Waits for the request with this number that the agent makes; returns its parameters.
    pub(crate) async fn asked(&self, what: &str, key: u32) -> Value {
        let find = |line: &Value| (line["key"] == key).then(|| line.get(what).cloned()).flatten();
        self.wait_for(&format!("{what} {key}"), find).await
    }

    /// Answers a request of the agent.
    pub(crate) async fn answer(&mut self, key: u32, result: Value) {
        self.order(&json!({"answer": key, "result": result})).await;
    }

    /// Answers the request for a permission.
    pub(crate) async fn select(&mut self, key: u32, option: &str) {
        self.answer(key, json!({"outcome": {"outcome": "selected", "optionId": option}})).await;
    }

    /// Closes the connection; returns the exit code of the agent.
    pub(crate) async fn close(self) -> Value {
        let Self { program, input, _home, .. } = self;
        drop(input);
        let output = with_deadline("the editor ends", program.wait()).await.assert_success();
        let exit = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        exit.filter_map(|line| line.get("exit").cloned()).next_back().unwrap()
    }
}
