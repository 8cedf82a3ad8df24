//! `roundhouse acp` at its two pipes: garbage, long lines, and every way in which a client ends.

use std::process::Stdio;

use mock_llm::{Gate, MockProvider, Reply};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::support::acp_client::initialize_params;
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::test_env::BINARY;
use crate::support::{Fleet, eventually, processes, with_deadline};

/// An agent whose pipes are held by the story.
struct Agent {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Agent {
    fn start(fleet: &Fleet) -> Self {
        let folder = fleet.folder().to_str().unwrap();
        let mut child = Command::new(BINARY)
            .args(["acp", "--user", "ada", "--dir", folder])
            .env_clear()
            .env("HOME", fleet.test_env.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output).lines() }
    }

    async fn write(&mut self, bytes: &[u8]) {
        with_deadline("the agent reads", self.input.write_all(bytes)).await.unwrap();
    }

    async fn send(&mut self, message: Value) {
        self.write(format!("{message}\n").as_bytes()).await;
    }

    /// The next message. Everything that the agent writes is one.
    async fn next(&mut self) -> Value {
        let line =
            with_deadline("the agent writes", self.output.next_line()).await.unwrap().expect("more output");
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line}"));
        assert_eq!(message["jsonrpc"], "2.0", "{message}");
        message
    }

    /// The answer to a request, whatever comes before it.
    async fn answer(&mut self, id: u32) -> Value {
        loop {
            let message = self.next().await;
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
        }
    }

    async fn call(&mut self, id: u32, method: &str, params: Value) -> Value {
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        self.answer(id).await
    }

    /// Opens a session and begins an answer; returns the session.
    async fn begin_answer(&mut self) -> String {
        self.call(1, "initialize", initialize_params()).await;
        let opened = self.call(2, "session/new", json!({"cwd": "/a", "mcpServers": []})).await;
        let session = opened["result"]["sessionId"].as_str().unwrap().to_owned();
        let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "Tell me."}]});
        self.send(json!({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt})).await;
        session
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap()
    }

    /// Waits for the end; returns the exit code and the standard error.
    async fn wait(self) -> (Option<i32>, String) {
        let Self { mut child, input, output } = self;
        drop((input, output));
        let status = with_deadline("the agent ends", child.wait()).await.unwrap();
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).await.unwrap();
        (status.code(), error)
    }
}

/// A fleet whose model holds its answer in the middle.
async fn start_held() -> (Fleet, crate::support::RunningUp, MockProvider, Gate) {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    provider.enqueue(Reply::from_text("The first half, and the second half.").deltas(4).hold(2, &gate));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    (fleet, up, provider, gate)
}

#[tokio::test]
async fn garbage_is_refused_and_the_connection_goes_on() {
    let fleet = Fleet::new();
    let _up = fleet.start_up().await;
    let mut agent = Agent::start(&fleet);
    for (line, code) in [
        (&b"hello\n"[..], -32700),
        (b"\xff\xfe\n", -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\n", -32700),
        (b"[]\n", -32600),
        (b"{\"id\":1,\"method\":\"initialize\"}\n", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"initialize\"}\n", -32600),
        // Before `initialize`.
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/list\",\"params\":{}}\n", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":[]}\n", -32602),
    ] {
        agent.write(line).await;
        let answer = agent.next().await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    // Blank lines, unknown notifications and answers to nothing are ignored.
    agent.write(b"\n  \n{\"jsonrpc\":\"2.0\",\"method\":\"$/odd\"}\n{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":1}\n").await;
    // A line of 40 MiB is skipped, and not kept.
    let chunk = vec![b'x'; 1024 * 1024];
    for _ in 0..40 {
        agent.write(&chunk).await;
    }
    agent.write(b"\n").await;
    assert_eq!(agent.next().await["error"]["code"], -32600);
    let answer = agent.call(1, "initialize", initialize_params()).await;
    assert_eq!(answer["result"]["protocolVersion"], 1);
    let again = agent.call(2, "initialize", initialize_params()).await;
    assert_eq!(again["error"]["code"], -32600);
    assert_eq!(agent.wait().await, (Some(0), String::new()));
}

#[tokio::test]
async fn the_end_of_the_input_ends_the_agent_but_not_the_turn() {
    let (fleet, up, _provider, gate) = start_held().await;
    let mut agent = Agent::start(&fleet);
    let session = agent.begin_answer().await;
    wait_gate_reached(&gate).await;
    assert_eq!(agent.wait().await, (Some(0), String::new()));
    gate.release();
    let engine = up.product().engine("ada").await;
    eventually("the turn ends", async || (engine.task_status(&session).await == "idle").then_some(())).await;
    let messages = engine.messages(&session).await;
    assert_eq!(messages.last().unwrap()["content"], "The first half, and the second half.");
}

#[tokio::test]
async fn what_was_asked_before_the_end_of_the_input_is_answered() {
    let fleet = Fleet::new();
    let _up = fleet.start_up().await;
    let agent = Agent::start(&fleet);
    let Agent { mut child, mut input, mut output } = agent;
    let lines = [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize_params()}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "session/list", "params": {}}),
    ];
    for line in lines {
        input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
    drop(input);
    let mut answers = Vec::new();
    while let Some(line) = with_deadline("the agent writes", output.next_line()).await.unwrap() {
        answers.push(serde_json::from_str::<Value>(&line).unwrap()["id"].clone());
    }
    answers.sort_by_key(Value::as_i64);
    assert_eq!(answers, [1, 2]);
    assert!(with_deadline("the agent ends", child.wait()).await.unwrap().success());
}

#[tokio::test]
async fn a_signal_ends_the_agent_in_mid_answer() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (fleet, _up, _provider, gate) = start_held().await;
        let mut agent = Agent::start(&fleet);
        agent.begin_answer().await;
        wait_gate_reached(&gate).await;
        processes::signal(agent.pid(), signal);
        let status = with_deadline("the agent ends", agent.child.wait()).await.unwrap();
        assert_eq!(status.code(), Some(0), "{signal:?}");
    }
}

#[tokio::test]
async fn a_client_that_vanishes_ends_the_agent() {
    let (fleet, _up, _provider, gate) = start_held().await;
    let mut agent = Agent::start(&fleet);
    agent.begin_answer().await;
    wait_gate_reached(&gate).await;
    let Agent { mut child, input, output } = agent;
    // Its reading end is gone, while nobody closes the input.
    drop(output);
    gate.release();
    let status = with_deadline("the agent ends", child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0));
    drop(input);
}

#[tokio::test]
async fn a_client_that_does_not_read_cannot_delay_the_end() {
    let provider = MockProvider::start().await.unwrap();
    // More than the pipe and all queues hold.
    provider.enqueue(Reply::from_text("x".repeat(2 * 1024 * 1024)).deltas(4_000));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let mut agent = Agent::start(&fleet);
    let session = agent.begin_answer().await;
    let engine = up.product().engine("ada").await;
    eventually("the turn begins", async || (engine.tasks("").await.1 == 1).then_some(())).await;
    eventually("the turn ends", async || (engine.task_status(&session).await == "idle").then_some(())).await;
    processes::signal(agent.pid(), Signal::TERM);
    let status = with_deadline("the agent ends", agent.child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn without_a_fleet_it_says_what_to_do() {
    let fleet = Fleet::new();
    let exit = fleet
        .test_env
        .run(&["acp", "--user", "ada", "--dir", fleet.folder().to_str().unwrap()], &fleet.variables)
        .wait()
        .await;
    exit.assert_failure(2, &["run `roundhouse up` first"]);
}
