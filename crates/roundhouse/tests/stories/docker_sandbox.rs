//! Story 43: what the agent runs in a container cannot break out of its sandbox there, whatever it tries.

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

/// The attempt that is not tried among the others, for it would fill this machine's disk.
const FILLS_THE_DISK: &str = "many-files";

/// How much attempts take, in MiB: more than a shell's command may have, a file, or memory for one process; more than
/// the container has, memory of all and shared memory; more than a small disk has, files.
const ATTEMPT_SIZES: [&str; 5] = ["file=1025", "memory=3072", "all=1536", "shared=1536", "files=256"];

/// How large the small disk is, in MiB.
const SMALL_DISK_MIB: u32 = 128;

/// Takes all the room that the disk has, faster than anybody looks, and stays.
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

/// How many attempts must be left at least.
const MIN_ATTEMPTS: usize = 40;

/// Runs the program that its input names, with the network that tools of the catalog have.
const ONLINE_TOOL: &str = r#"{
    "description": "Runs a program.",
    "input_schema": {"type": "object", "properties": {"argv": {"type": "array"}}, "required": ["argv"]},
    "command": ["python3", "-c", "import json, os, sys; argv = json.load(sys.stdin)['argv']; os.execv(argv[0], argv)"]
}"#;

/// A model that runs what it is told to run.
const SCRIPT: &str = r#"
rules:
  - when: "^run (?<command>.+)"
    answers:
      - tools: [{tool: shell, input: {command: "$command", timeout_s: 20}}]
      - text: "It ran."
  - answers: [{text: "So it is."}]
"#;

/// Answers whoever reaches one of its sockets; it is no child of the engine and in no sandbox.
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

/// An engine in a container whose agent asks for nothing, with all that the attempts aim at.
struct SandboxedEngine {
    engine: Engine,
    /// The engine's own process, by its number in the container and on this machine.
    process: (i32, i32),
    container: String,
    place: Deployment,
    _orchestrator: Orchestrator,
}

/// What came of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Stopped,
    BrokeOut(String),
    /// It failed, but not because something stopped it.
    Inconclusive(String),
}

/// The program that tries the attempts, which is built beside the one under test.
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

    async fn in_deployment(place: Deployment) -> Option<Self> {
        let program = attempts_program()?;
        let place = place.with_script(SCRIPT);
        let catalog = place.catalog();
        write_catalog_file(&catalog, "permissions.json", r#"{"default": "allow"}"#);
        write_catalog_file(&catalog, "tools/online.json", ONLINE_TOOL);
        write_catalog_file(&catalog, "daemon.py", DAEMON_SCRIPT);
        for (name, mode) in [("sandbox-escapes", 0o755), ("set_user_id", 0o4755)] {
            fs::copy(&program, catalog.join(name)).unwrap();
            fs::set_permissions(catalog.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let (orchestrator, product) = place.start_with_product().await;
        let engine = product.engine("ada").await;
        let container = place.container_of(&engine).await.unwrap();
        let outer = place.process_of(&engine).unwrap().as_raw_nonzero().get();
        let status = fs::read_to_string(format!("/proc/{outer}/status")).unwrap();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
        let inner = numbers.split_whitespace().last().unwrap().parse().unwrap();
        let this = Self { engine, process: (inner, outer), container, place, _orchestrator: orchestrator };
        if !this.confinement().await.contains("landlock, ") {
            skip(&format!("a kernel that confines programs: {}", this.confinement().await));
            return None;
        }
        if this.exec_shell("command -v perl || echo none").await == "none" {
            skip("perl in the engines' image");
            return None;
        }
        this.exec_shell("echo a secret of another user > /data/diary").await;
        // Without the container's environment, by which engines are known.
        let daemon =
            ["exec", "--detach", &this.container, "env", "-i", "/usr/bin/python3", "/catalog/daemon.py"];
        this.place.docker_daemon().run(&daemon).await;
        let socket = this.folder().join("daemon.sock");
        eventually("the daemon listens", async || socket.exists().then_some(())).await;
        Some(this)
    }

    async fn confinement(&self) -> String {
        self.engine.activity().await["confinement"].as_str().unwrap().to_owned()
    }

    /// The engine's `/data`, as this machine sees it.
    fn folder(&self) -> PathBuf {
        self.place.fleet.engine_folder(&self.engine.id)
    }

    /// What a line says in the container, past the engine and its sandbox.
    async fn exec_shell(&self, line: &str) -> String {
        self.place.docker_daemon().exec_shell(&self.container, line).await
    }

    /// How an attempt is called.
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
        let more = ["other=/data/diary", "daemon=/data/daemon.sock", "log=/data/log.sock"];
        // The engine itself is the server.
        let ports = [
            "hidden=/catalog/tools/online.json",
            "abstract=roundhouse-daemon",
            "port=8000",
            "port6=8000",
            "set_user_id=/catalog/set_user_id",
        ];
        let fixed = words.into_iter().chain(more).chain(ports).map(str::to_owned);
        let taken = ATTEMPT_SIZES.map(str::to_owned);
        fixed.chain([format!("victim={victim}"), format!("address={address}")]).chain(taken).collect()
    }

    /// Calls a tool without a turn: what it gave, or how it failed.
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

    /// Tries it as the agent would.
    async fn attempt(&self, attempt: &Attempt) -> Verdict {
        let argv = self.argv(attempt);
        let told = if attempt.needs_network {
            self.call("online", json!({"argv": argv})).await
        } else {
            let endless_replies =
                matches!(attempt.mechanism, Mechanism::Limit(LimitKind::Time | LimitKind::Output));
            let seconds = if endless_replies { 3 } else { 60 };
            self.call("shell", json!({"command": format!("exec {}", argv.join(" ")), "timeout_s": seconds}))
                .await
        };
        if let Some(effect) = self.side_effect().await {
            return Verdict::BrokeOut(effect);
        }
        parse_verdict(attempt, &told.unwrap_or_else(|error| error))
    }

    /// What has changed that must not.
    async fn side_effect(&self) -> Option<String> {
        if self.place.process_of(&self.engine).map(|pid| pid.as_raw_nonzero().get()) != Some(self.process.1) {
            return Some("the engine is another process".to_owned());
        }
        if self.engine.health().await["status"] != "ok" {
            return Some("the engine is not well".to_owned());
        }
        for name in ["written", "made", "reached"] {
            if self.folder().join(name).exists() {
                return Some(format!("there is /data/{name}"));
            }
        }
        let mut left = processes::with_command_line_text("left-behind\0/data/workspace".as_ref());
        // Those of this container alone.
        left.retain(|pid| {
            let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", pid.as_raw_nonzero()));
            mounts.is_ok_and(|mounts| mounts.contains(&self.engine.id))
        });
        (!left.is_empty()).then(|| format!("{} processes are left behind", left.len()))
    }
}

/// What an attempt says of itself, or the tool of it.
fn parse_verdict(attempt: &Attempt, said: &str) -> Verdict {
    // What is asked for is not there, nobody listens, the call was wrong: that is not how one is stopped.
    let in_vain = [2, 22, 111].map(|error| format!("(os error {error})"));
    match attempt.mechanism {
        Mechanism::HelperCleanup if said.contains("broke out: ") => Verdict::Stopped,
        _ if said.contains("broke out: ") => Verdict::BrokeOut(said.to_owned()),
        _ if in_vain.iter().any(|error| said.contains(error)) => Verdict::Inconclusive(said.to_owned()),
        Mechanism::Limit(bound) if mentions_limit(bound, said) => Verdict::Stopped,
        Mechanism::Limit(_) => Verdict::Inconclusive(said.to_owned()),
        _ if said.contains("refused: ") => Verdict::Stopped,
        // Who kills all that it may kills itself.
        _ if attempt.name == "everybody-kill" && said.starts_with("it was ended by signal") => {
            Verdict::Stopped
        }
        _ => Verdict::Inconclusive(said.to_owned()),
    }
}

/// Whether what is said of a program is how one ends that meets this limit.
fn mentions_limit(bound: LimitKind, said: &str) -> bool {
    let any = |words: &[&str]| words.iter().any(|word| said.contains(word));
    match bound {
        LimitKind::Time => any(&["it was stopped after 3 s"]),
        LimitKind::Output => any(&["it was stopped because it wrote over", "it was stopped after 3 s"]),
        LimitKind::Processes => any(&["began more processes than it may", "refused: Resource temporarily"]),
        LimitKind::FileSize => any(&["ended by signal 25", "(os error 27)"]),
        LimitKind::Disk => any(&["too little room on the disk", "(os error 28)"]),
        LimitKind::Memory => any(&["refused: memory allocation failed"]),
        // By the kernel, where the container's own memory is at its end first.
        LimitKind::TotalMemory => {
            any(&["more memory than it may", "ended by signal 9", "ended by signal: 9", "of 8 were ended"])
        }
    }
}

#[tokio::test]
async fn nothing_breaks_out_in_a_container() {
    let Some(scene) = SandboxedEngine::new().await else { return };
    let mut all = sandbox_escapes::all_attempts();
    // What could take the container down comes last.
    all.sort_by_key(|attempt| matches!(attempt.mechanism, Mechanism::Limit(_)));
    let (mut tried, mut failures) = (0, Vec::new());
    for attempt in all.iter().filter(|attempt| attempt.name != FILLS_THE_DISK) {
        let verdict = scene.attempt(attempt).await;
        eprintln!("{:28} {verdict:?}", attempt.name);
        tried += 1;
        if verdict != Verdict::Stopped {
            failures.push(format!("{}: {verdict:?}", attempt.name));
        }
    }
    assert!(failures.is_empty(), "of {tried}:\n{}", failures.join("\n"));
    assert!(tried >= MIN_ATTEMPTS, "only {tried} were tried");
    scene.engine.run_turn("task", "Are you there?").await;
}

/// Whether a turn is told to have gone well.
async fn is_completed(engine: &Engine, body: &Value) -> bool {
    let answer = engine.request(Method::POST, "/execute").json(body).send().await.unwrap();
    with_deadline("the turn ends", answer.text()).await.unwrap().contains(r#""phase":"completed""#)
}

#[tokio::test]
async fn a_disk_that_an_agent_fills_is_the_engines_again_when_there_is_room() {
    let Some(place) = Deployment::docker() else { return };
    let Some(disk) = Disk::new(place.fleet.folder().join("engines"), SMALL_DISK_MIB) else { return };
    let Some(scene) = SandboxedEngine::in_deployment(place).await else { return };
    let engine = &scene.engine;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    let shell = async |command: &str| scene.call("shell", json!({"command": command})).await;

    // A program that leaves too little room is ended, and what it took can be given back.
    let attempt =
        sandbox_escapes::all_attempts().into_iter().find(|attempt| attempt.name == FILLS_THE_DISK).unwrap();
    assert_eq!(scene.attempt(&attempt).await, Verdict::Stopped);
    shell("rm file-*").await.unwrap();
    assert_eq!(assert_completed(&engine.run_turn("task", "Are you there?").await), "So it is.");

    // One that is faster than whoever looks takes all of it. It is ended too; what needs room is refused with a reason.
    let error = shell(FILL_DISK_COMMAND).await.unwrap_err();
    assert!(error.contains("too little room on the disk"), "{error}");
    disk.fill();
    // The brain's files may have room within; in the end there is none. A turn that meets that waits.
    let fills = async {
        loop {
            is_completed(engine, &direct_message("full", &"And now? ".repeat(2_000))).await;
        }
    };
    let reason = eventually("the engine says why", async || {
        let health = client().get(format!("{}/health", engine.url)).send().await.ok()?;
        let health: Value = health.json().await.ok()?;
        Some(health["subsystems"]["database"].as_str()?.to_owned()).filter(|reason| reason != "ok")
    });
    let reason = tokio::select! { reason = reason => reason, () = fills => unreachable!() };
    assert!(reason.contains("full"), "{reason}");

    // The agent's own programs can make room where there is none; then all is as it was, and who waited goes on.
    shell("rm greedy").await.unwrap();
    eventually("it is well", async || scene.side_effect().await.is_none().then_some(())).await;
    eventually("turns go well", async || {
        is_completed(engine, &direct_message("full", "And now?")).await.then_some(())
    })
    .await;
    engine.run_turn("task", "And now?").await;
    assert_eq!(engine.messages("task").await[..messages.len()], messages, "nothing was lost");
}

#[tokio::test]
async fn past_the_sandbox_the_same_attempts_succeed_in_a_container() {
    let Some(scene) = SandboxedEngine::new().await else { return };
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
        let line = format!("cd /data/workspace; {} 2>&1; true", scene.argv(&attempt).join(" "));
        let said = scene.exec_shell(&line).await;
        // A container leaves nobody any rights, in a sandbox or not.
        let expected = if name == "new-privileges" { "refused: " } else { "broke out: " };
        assert!(said.starts_with(expected), "{name} proves nothing here: {said}");
    }
}

#[tokio::test]
async fn a_turn_in_a_container_runs_commands_and_survives_what_they_take() {
    let Some(scene) = SandboxedEngine::new().await else { return };
    let engine = &scene.engine;
    let told = async |command: &str| {
        let events = engine.run_turn("task", &format!("run {command}")).await;
        assert_eq!(assert_completed(&events), "It ran.");
        let result = tool_results(&events)[0].map(str::to_owned);
        result.map_err(str::to_owned)
    };
    let said = told("id -u; pwd; env; echo kept > kept").await.unwrap();
    assert!(said.contains("/data/workspace") && !said.contains("ENGINE_KEY_HASH"), "{said}");
    assert_eq!(fs::read_to_string(scene.folder().join("workspace/kept")).unwrap(), "kept\n");
    let level = scene.confinement().await;
    assert!(level.contains("landlock, seccomp, processes by"), "{level}");
    // More memory than the container has: the program goes, and nobody else.
    let error = told("perl -e '$x = qq(x) x (1500 << 20); sleep 5; print qq(taken)'").await.unwrap_err();
    assert!(error.contains("memory") || error.contains("signal 9"), "{error}");
    assert_eq!(scene.side_effect().await, None);
    assert!(told("echo well again").await.unwrap().contains("well again"));
}
