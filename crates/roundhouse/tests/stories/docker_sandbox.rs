//! Story 43: programs that the agent runs in a container cannot break out of their sandbox, whatever they try.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use reqwest::Method;
use sandbox_escapes::{Attempt, LimitKind, Mechanism};
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::http::client;
use crate::support::test_env::BINARY;
use crate::support::tool_programs::{tool_results, write_catalog_file};
use crate::support::turn::assert_completed;
use crate::support::{Deployment, Disk, Engine, Orchestrator, eventually, processes, skip, with_deadline};

/// The attempt that is not run with the others, because it would fill the host's disk.
const FILLS_THE_DISK: &str = "many-files";

/// How much attempts allocate, in MiB: for a file and the memory of one process more than a shell command may
/// have; for the memory of all processes and shared memory more than the container has; for files more than a
/// small disk has.
const ATTEMPT_SIZES: [&str; 5] = ["file=1025", "memory=3072", "all=1536", "shared=1536", "files=256"];

/// The size of the small disk, in MiB.
const SMALL_DISK_MIB: u32 = 128;

/// Fills the disk faster than it is monitored, and keeps running.
const FILL_DISK_COMMAND: &str = "python3 -c '
import os, time
file = os.open(\"greedy\", os.O_CREAT | os.O_WRONLY)
size, at = 64 << 20, 0
while size >= 4096:
    try:
        os.posix_fallocate(file, at, size)
        at += size
    except OSError:
        size //= 2
time.sleep(60)'";

/// The lowest number of attempts that must be run.
const MIN_ATTEMPTS: usize = 40;

/// A catalog tool that runs the program that its input names, with the network access of catalog tools.
const ONLINE_TOOL: &str = r#"{
    "description": "Runs a program.",
    "input_schema": {"type": "object", "properties": {"argv": {"type": "array"}}, "required": ["argv"]},
    "command": ["python3", "-c", "import json, os, sys; argv = json.load(sys.stdin)['argv']; os.execv(argv[0], argv)"]
}"#;

/// A model that runs the command of the message.
const SCRIPT: &str = r#"
rules:
  - when: "^run (?<command>.+)"
    answers:
      - tools: [{tool: shell, input: {command: "$command", timeout_s: 20}}]
      - text: "It ran."
  - answers: [{text: "So it is."}]
"#;

/// A daemon that answers on its sockets; it is no child of the engine and runs in no sandbox.
const DAEMON_SCRIPT: &str = r#"
import os, socket, threading
def listen(address):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    while True:
        guest, _ = listener.accept()
        guest.sendall(b"welcome")
        guest.close()
threading.Thread(target=listen, args=("\0roundhouse-daemon",)).start()
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind("/data/log.sock")
threading.Thread(target=listen, args=("/data/daemon.sock",)).start()
got = log.recv(64)
open("/data/reached", "wb").write(got)
"#;

/// An engine in a container whose agent needs no approvals, with all targets of the attempts.
struct SandboxedEngine {
    engine: Engine,
    /// The id of the engine's own process, in the container and on the host.
    process: (i32, i32),
    container: String,
    deployment: Deployment,
    _orchestrator: Orchestrator,
}

/// The result of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Stopped,
    BrokeOut(String),
    /// The attempt failed, but not because something stopped it.
    Inconclusive(String),
}

/// The program that runs the attempts; it is built beside the binary under test.
fn attempts_program() -> Option<PathBuf> {
    let program = Path::new(BINARY).with_file_name("sandbox-escapes");
    if !program.exists() {
        skip("the program of the attempts, which `cargo build -p sandbox-escapes` makes");
        return None;
    }
    Some(program)
}

impl SandboxedEngine {
    async fn new() -> Option<Self> {
        Self::in_deployment(Deployment::docker()?).await
    }

    async fn in_deployment(deployment: Deployment) -> Option<Self> {
        let program = attempts_program()?;
        let deployment = deployment.with_script(SCRIPT);
        let catalog = deployment.catalog();
        write_catalog_file(&catalog, "permissions.json", r#"{"default": "allow"}"#);
        write_catalog_file(&catalog, "tools/online.json", ONLINE_TOOL);
        write_catalog_file(&catalog, "daemon.py", DAEMON_SCRIPT);
        for (name, mode) in [("sandbox-escapes", 0o755), ("set_user_id", 0o4755)] {
            fs::copy(&program, catalog.join(name)).unwrap();
            fs::set_permissions(catalog.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let (orchestrator, product) = deployment.start_with_product().await;
        let engine = product.engine("ada").await;
        let container = deployment.container_of(&engine).await.unwrap();
        let outer = deployment.process_of(&engine).unwrap().as_raw_nonzero().get();
        let status = fs::read_to_string(format!("/proc/{outer}/status")).unwrap();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
        let inner = numbers.split_whitespace().last().unwrap().parse().unwrap();
        let this =
            Self { engine, process: (inner, outer), container, deployment, _orchestrator: orchestrator };
        if !this.confinement().await.contains("landlock, ") {
            skip(&format!("a kernel that confines programs: {}", this.confinement().await));
            return None;
        }
        if this.exec_shell("command -v perl || echo none").await == "none" {
            skip("perl in the engines' image");
            return None;
        }
        this.exec_shell("echo a secret of another user > /data/diary").await;
        // Without the container's environment, by which engine processes are found.
        let daemon =
            ["exec", "--detach", &this.container, "env", "-i", "/usr/bin/python3", "/catalog/daemon.py"];
        this.deployment.docker_daemon().run(&daemon).await;
        let socket = this.folder().join("daemon.sock");
        eventually("the daemon listens", async || socket.exists().then_some(())).await;
        Some(this)
    }

    async fn confinement(&self) -> String {
        self.engine.activity().await["confinement"].as_str().unwrap().to_owned()
    }

    /// The engine's `/data` on the host.
    fn folder(&self) -> PathBuf {
        self.deployment.fleet.engine_folder(&self.engine.id)
    }

    /// The output of a shell line in the container, outside the engine and its sandbox.
    async fn exec_shell(&self, line: &str) -> String {
        self.deployment.docker_daemon().exec_shell(&self.container, line).await
    }

    /// The command line of an attempt.
    fn argv(&self, attempt: &Attempt) -> Vec<String> {
        let (victim, outer) = self.process;
        let maps = fs::read_to_string(format!("/proc/{outer}/maps")).unwrap();
        let heap = maps.lines().find(|line| line.contains(" rw-p ")).unwrap();
        let address = heap.split('-').next().unwrap();
        let words = [
            "/catalog/sandbox-escapes",
            "attempt",
            attempt.name,
            "brain=/data/brain.sqlite",
            "outside=/data",
        ];
        let targets = ["other=/data/diary", "daemon=/data/daemon.sock", "log=/data/log.sock"];
        // The port is the engine's own.
        let ports = [
            "hidden=/catalog/tools/online.json",
            "abstract=roundhouse-daemon",
            "port=8000",
            "port6=8000",
            "set_user_id=/catalog/set_user_id",
        ];
        let fixed = words.into_iter().chain(targets).chain(ports).map(str::to_owned);
        let sizes = ATTEMPT_SIZES.map(str::to_owned);
        fixed.chain([format!("victim={victim}"), format!("address={address}")]).chain(sizes).collect()
    }

    /// Calls a tool without a turn; returns its output or its error.
    async fn call(&self, tool: &str, input: Value) -> Result<String, String> {
        let body = json!({"method": format!("tool.{tool}"), "params": input});
        let answer = self.engine.post("/rpc", &body).await.body;
        match answer["result"]["output"].as_str() {
            Some(output) => Ok(output.to_owned()),
            None => {
                Err(answer["message"].as_str().unwrap_or_else(|| panic!("no answer: {answer}")).to_owned())
            }
        }
    }

    /// Runs an attempt as the agent would.
    async fn attempt(&self, attempt: &Attempt) -> Verdict {
        let argv = self.argv(attempt);
        let result = if attempt.needs_network {
            self.call("online", json!({"argv": argv})).await
        } else {
            let is_endless =
                matches!(attempt.mechanism, Mechanism::Limit(LimitKind::Time | LimitKind::Output));
            let seconds = if is_endless { 3 } else { 60 };
            self.call("shell", json!({"command": format!("exec {}", argv.join(" ")), "timeout_s": seconds}))
                .await
        };
        if let Some(effect) = self.side_effect().await {
            return Verdict::BrokeOut(effect);
        }
        parse_verdict(attempt, &result.unwrap_or_else(|error| error))
    }

    /// A forbidden side effect, if there is one.
    async fn side_effect(&self) -> Option<String> {
        if self.deployment.process_of(&self.engine).map(|pid| pid.as_raw_nonzero().get())
            != Some(self.process.1)
        {
            return Some("the engine is another process".to_owned());
        }
        if self.engine.health().await["status"] != "ok" {
            return Some("the engine is not healthy".to_owned());
        }
        for name in ["written", "made", "reached"] {
            if self.folder().join(name).exists() {
                return Some(format!("there is /data/{name}"));
            }
        }
        let mut left = processes::with_command_line_text("left-behind\0/data/workspace".as_ref());
        // Only the processes of this container.
        left.retain(|pid| {
            let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", pid.as_raw_nonzero()));
            mounts.is_ok_and(|mounts| mounts.contains(&self.engine.id))
        });
        (!left.is_empty()).then(|| format!("{} processes are left behind", left.len()))
    }
}

/// Derives the verdict from the output of an attempt, or from the tool's error.
fn parse_verdict(attempt: &Attempt, output: &str) -> Verdict {
    // ENOENT, EINVAL and ECONNREFUSED mean that the attempt had no target or was wrong, not that it was stopped.
    let inconclusive_errors = [2, 22, 111].map(|error| format!("(os error {error})"));
    match attempt.mechanism {
        Mechanism::HelperCleanup if output.contains("broke out: ") => Verdict::Stopped,
        _ if output.contains("broke out: ") => Verdict::BrokeOut(output.to_owned()),
        _ if inconclusive_errors.iter().any(|error| output.contains(error)) => {
            Verdict::Inconclusive(output.to_owned())
        }
        Mechanism::Limit(limit) if mentions_limit(limit, output) => Verdict::Stopped,
        Mechanism::Limit(_) => Verdict::Inconclusive(output.to_owned()),
        _ if output.contains("refused: ") => Verdict::Stopped,
        // An attempt that kills everything it may also kills itself.
        _ if attempt.name == "everybody-kill" && output.starts_with("it was ended by signal") => {
            Verdict::Stopped
        }
        _ => Verdict::Inconclusive(output.to_owned()),
    }
}

/// Whether `output` shows that the program ended because it reached `limit`.
fn mentions_limit(limit: LimitKind, output: &str) -> bool {
    let any = |words: &[&str]| words.iter().any(|word| output.contains(word));
    match limit {
        LimitKind::Time => any(&["it was stopped after 3 s"]),
        LimitKind::Output => any(&["it was stopped because it wrote over", "it was stopped after 3 s"]),
        LimitKind::Processes => any(&["exceeded its process limit", "refused: Resource temporarily"]),
        LimitKind::FileSize => any(&["ended by signal 25", "(os error 27)"]),
        LimitKind::Disk => any(&["too little room on the disk", "(os error 28)"]),
        LimitKind::Memory => any(&["refused: memory allocation failed"]),
        // The kernel ends it if the container's own memory is exhausted first.
        LimitKind::TotalMemory => {
            any(&["exceeded its memory limit", "ended by signal 9", "ended by signal: 9", "of 8 were ended"])
        }
    }
}

#[tokio::test]
async fn nothing_breaks_out_in_a_container() {
    let Some(sandboxed) = SandboxedEngine::new().await else { return };
    let mut all = sandbox_escapes::all_attempts();
    // Attempts that could take the container down come last.
    all.sort_by_key(|attempt| matches!(attempt.mechanism, Mechanism::Limit(_)));
    let (mut tried, mut failures) = (0, Vec::new());
    for attempt in all.iter().filter(|attempt| attempt.name != FILLS_THE_DISK) {
        let verdict = sandboxed.attempt(attempt).await;
        eprintln!("{:28} {verdict:?}", attempt.name);
        tried += 1;
        if verdict != Verdict::Stopped {
            failures.push(format!("{}: {verdict:?}", attempt.name));
        }
    }
    assert!(failures.is_empty(), "of {tried}:\n{}", failures.join("\n"));
    assert!(tried >= MIN_ATTEMPTS, "only {tried} were tried");
    sandboxed.engine.run_turn("task", "Are you there?").await;
}

/// Whether a turn is reported as completed.
async fn is_completed(engine: &Engine, body: &Value) -> bool {
    let answer = engine.request(Method::POST, "/execute").json(body).send().await.unwrap();
    with_deadline("the turn ends", answer.text()).await.unwrap().contains(r#""phase":"completed""#)
}

#[tokio::test]
async fn a_disk_that_an_agent_fills_is_the_engines_again_when_there_is_room() {
    let Some(deployment) = Deployment::docker() else { return };
    let Some(disk) = Disk::new(deployment.fleet.folder().join("engines"), SMALL_DISK_MIB) else { return };
    let Some(sandboxed) = SandboxedEngine::in_deployment(deployment).await else { return };
    let engine = &sandboxed.engine;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    let shell = async |command: &str| sandboxed.call("shell", json!({"command": command})).await;

    // A program that leaves too little free space is ended, and the space can be freed again.
    let attempt =
        sandbox_escapes::all_attempts().into_iter().find(|attempt| attempt.name == FILLS_THE_DISK).unwrap();
    assert_eq!(sandboxed.attempt(&attempt).await, Verdict::Stopped);
    shell("rm file-*").await.unwrap();
    assert_eq!(assert_completed(&engine.run_turn("task", "Are you there?").await), "So it is.");

    // A program that is faster than the monitoring fills the disk. It is ended too; operations that need space are
    // refused with a reason.
    let error = shell(FILL_DISK_COMMAND).await.unwrap_err();
    assert!(error.contains("too little room on the disk"), "{error}");
    disk.fill();
    // The brain's files may have free pages; in the end there are none. A turn that finds none waits.
    let fills = async {
        loop {
            is_completed(engine, &direct_message("full", &"And now? ".repeat(2_000))).await;
        }
    };
    let reason = eventually("the engine reports the reason", async || {
        let health = client().get(format!("{}/health", engine.url)).send().await.ok()?;
        let health: Value = health.json().await.ok()?;
        Some(health["subsystems"]["database"].as_str()?.to_owned()).filter(|reason| reason != "ok")
    });
    let reason = tokio::select! { reason = reason => reason, () = fills => unreachable!() };
    assert!(reason.contains("full"), "{reason}");

    // The agent's own programs can free space; then everything works again, and waiting turns continue.
    shell("rm greedy").await.unwrap();
    eventually("it is healthy", async || sandboxed.side_effect().await.is_none().then_some(())).await;
    eventually("turns complete", async || {
        is_completed(engine, &direct_message("full", "And now?")).await.then_some(())
    })
    .await;
    engine.run_turn("task", "And now?").await;
    assert_eq!(engine.messages("task").await[..messages.len()], messages, "nothing was lost");
}

#[tokio::test]
async fn past_the_sandbox_the_same_attempts_succeed_in_a_container() {
    let Some(sandboxed) = SandboxedEngine::new().await else { return };
    for name in [
        "brain-read",
        "brain-folder",
        "outside-folder",
        "tmp-write",
        "engine-environment",
        "processes",
        "etc-list",
        "daemon-socket",
        "abstract-socket",
        "loopback",
        "listen",
        "new-privileges",
    ] {
        let attempt =
            sandbox_escapes::all_attempts().into_iter().find(|attempt| attempt.name == name).unwrap();
        let line = format!("cd /data/workspace; {} 2>&1; true", sandboxed.argv(&attempt).join(" "));
        let output = sandboxed.exec_shell(&line).await;
        // A container grants no privileges, with or without the sandbox.
        let expected = if name == "new-privileges" { "refused: " } else { "broke out: " };
        assert!(output.starts_with(expected), "{name} proves nothing here: {output}");
    }
}

#[tokio::test]
async fn a_turn_in_a_container_runs_commands_and_survives_what_they_take() {
    let Some(sandboxed) = SandboxedEngine::new().await else { return };
    let engine = &sandboxed.engine;
    let run_command = async |command: &str| {
        let events = engine.run_turn("task", &format!("run {command}")).await;
        assert_eq!(assert_completed(&events), "It ran.");
        let result = tool_results(&events)[0].map(str::to_owned);
        result.map_err(str::to_owned)
    };
    let output = run_command("id -u; pwd; env; echo kept > kept").await.unwrap();
    assert!(output.contains("/data/workspace") && !output.contains("ENGINE_KEY_HASH"), "{output}");
    assert_eq!(fs::read_to_string(sandboxed.folder().join("workspace/kept")).unwrap(), "kept\n");
    let level = sandboxed.confinement().await;
    assert!(level.contains("landlock, seccomp, processes by"), "{level}");
    // More memory than the container has: only the program is ended.
    let error =
        run_command("perl -e '$x = qq(x) x (1500 << 20); sleep 5; print qq(taken)'").await.unwrap_err();
    assert!(error.contains("memory") || error.contains("signal 9"), "{error}");
    assert_eq!(sandboxed.side_effect().await, None);
    assert!(run_command("echo still here").await.unwrap().contains("still here"));
}
