//! Story 43: what the agent runs in a container cannot break out of its leash there, whatever it tries.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use breakout::{Attempt, By};
use serde_json::{Value, json};

use crate::support::home::BINARY;
use crate::support::programs::{results, write_into};
use crate::support::turn::completed;
use crate::support::{Deployment, Engine, Orchestrator, eventually, processes, skip};

/// Attempts that say nothing here, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("large-file", "the shell's limit for a file is larger than what it writes"),
    ("many-files", "it would fill this machine's disk"),
    ("heap", "the shell's limit for memory is larger than what it takes"),
    ("heap-of-many", "the shell's limit for memory is larger than what it takes"),
    ("shared-mapping", "the shell's limit for memory is larger than what it takes"),
];

/// How many attempts must be left at least.
const ENOUGH: usize = 40;

/// Runs the program that its input names, with the network that tools of the catalog have.
const ONLINE: &str = r#"{
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

/// Answers whoever reaches one of its sockets; it is no child of the engine and on no leash.
const DAEMON: &str = r#"
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
struct Scene {
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
    Vain(String),
}

/// The program that tries the attempts, which is built beside the one under test.
fn attempts_program() -> Option<PathBuf> {
    let program = Path::new(BINARY).with_file_name("breakout");
    if !program.exists() {
        skip("the program of the attempts, which `cargo build -p breakout` makes");
        return None;
    }
    Some(program)
}

impl Scene {
    async fn new() -> Option<Self> {
        let program = attempts_program()?;
        let place = Deployment::docker()?.with_script(SCRIPT);
        let catalog = place.catalog();
        write_into(&catalog, "permissions.json", r#"{"default": "allow"}"#);
        write_into(&catalog, "tools/online.json", ONLINE);
        write_into(&catalog, "daemon.py", DAEMON);
        for (name, mode) in [("breakout", 0o755), ("set_user_id", 0o4755)] {
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
        this.inside("echo a secret of another user > /data/diary").await;
        // Without the container's environment, by which engines are known.
        let daemon =
            ["exec", "--detach", &this.container, "env", "-i", "/usr/bin/python3", "/catalog/daemon.py"];
        this.place.daemon().run(&daemon).await;
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

    /// What a line says in the container, past the engine and its leash.
    async fn inside(&self, line: &str) -> String {
        self.place.daemon().inside(&self.container, line).await
    }

    /// How an attempt is called.
    fn argv(&self, attempt: &Attempt) -> Vec<String> {
        let (victim, outer) = self.process;
        let maps = fs::read_to_string(format!("/proc/{outer}/maps")).unwrap();
        let heap = maps.lines().find(|line| line.contains(" rw-p ")).unwrap();
        let address = heap.split('-').next().unwrap();
        let words =
            ["/catalog/breakout", "attempt", attempt.name, "brain=/data/brain.sqlite", "outside=/data"];
        let more = ["other=/data/diary", "daemon=/data/daemon.sock", "log=/data/log.sock"];
        // The engine itself is the server.
        let ports =
            ["abstract=roundhouse-daemon", "port=8000", "port6=8000", "set_user_id=/catalog/set_user_id"];
        let fixed = words.into_iter().chain(more).chain(ports).map(str::to_owned);
        fixed.chain([format!("victim={victim}"), format!("address={address}")]).collect()
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
        let told = if attempt.network {
            self.call("online", json!({"argv": argv})).await
        } else {
            let seconds = if attempt.limits.is_some() { 3 } else { 60 };
            self.call("shell", json!({"command": format!("exec {}", argv.join(" ")), "timeout_s": seconds}))
                .await
        };
        if let Some(effect) = self.effect().await {
            return Verdict::BrokeOut(effect);
        }
        judge(attempt, &told.unwrap_or_else(|error| error))
    }

    /// What has changed that must not.
    async fn effect(&self) -> Option<String> {
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
        let mut left = processes::called_with("left-behind\0/data/workspace".as_ref());
        // Those of this container alone.
        left.retain(|pid| {
            let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", pid.as_raw_nonzero()));
            mounts.is_ok_and(|mounts| mounts.contains(&self.engine.id))
        });
        (!left.is_empty()).then(|| format!("{} processes are left behind", left.len()))
    }
}

/// What an attempt says of itself, or the tool of it.
fn judge(attempt: &Attempt, said: &str) -> Verdict {
    // What is asked for is not there, nobody listens, the call was wrong: that is not how one is stopped.
    let in_vain = [2, 22, 111].map(|error| format!("(os error {error})"));
    // Who kills all that it may kills itself.
    let may_be_killed = attempt.stopped_by == By::Limit || attempt.name == "everybody-kill";
    match said {
        _ if said.contains("broke out: ") && attempt.stopped_by == By::Helper => Verdict::Stopped,
        _ if said.contains("broke out: ") => Verdict::BrokeOut(said.to_owned()),
        _ if in_vain.iter().any(|error| said.contains(error)) => Verdict::Vain(said.to_owned()),
        _ if said.contains("refused: ") => Verdict::Stopped,
        _ if attempt.stopped_by == By::Limit && said.starts_with("it was stopped ") => Verdict::Stopped,
        _ if may_be_killed && said.starts_with("it was ended by signal") => Verdict::Stopped,
        _ => Verdict::Vain(said.to_owned()),
    }
}

/// Why an attempt is not tried in a container, if it is not.
fn not_here(attempt: &Attempt) -> Option<&'static str> {
    let known = NOT_HERE.iter().find(|(name, _)| *name == attempt.name).map(|(_, reason)| *reason);
    let mounts = (attempt.stopped_by == By::Mounts).then_some(
        "a container of Docker's default profile makes no mounts of its own, and `docs/leash.md` says what that leaves",
    );
    known.or(mounts)
}

#[tokio::test]
async fn nothing_breaks_out_in_a_container() {
    let Some(scene) = Scene::new().await else { return };
    let mut all = breakout::all();
    for (name, _) in NOT_HERE {
        assert!(all.iter().any(|attempt| attempt.name == *name), "there is no attempt {name}");
    }
    // What could take the container down comes last.
    all.sort_by_key(|attempt| attempt.stopped_by == By::Limit);
    let (mut tried, mut failures) = (0, Vec::new());
    for attempt in &all {
        if let Some(reason) = not_here(attempt) {
            eprintln!("{:28} not tried: {reason}", attempt.name);
            continue;
        }
        let verdict = scene.attempt(attempt).await;
        eprintln!("{:28} {verdict:?}", attempt.name);
        tried += 1;
        if verdict != Verdict::Stopped {
            failures.push(format!("{}: {verdict:?}", attempt.name));
        }
    }
    assert!(failures.is_empty(), "of {tried}:\n{}", failures.join("\n"));
    assert!(tried >= ENOUGH, "only {tried} were tried");
    scene.engine.tell("task", "Are you there?").await;
}

#[tokio::test]
async fn past_the_leash_the_same_attempts_succeed_in_a_container() {
    let Some(scene) = Scene::new().await else { return };
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
        let attempt = breakout::all().into_iter().find(|attempt| attempt.name == name).unwrap();
        let line = format!("cd /data/workspace; {} 2>&1; true", scene.argv(&attempt).join(" "));
        let said = scene.inside(&line).await;
        // A container leaves nobody any rights, on a leash or not.
        let expected = if name == "new-privileges" { "refused: " } else { "broke out: " };
        assert!(said.starts_with(expected), "{name} proves nothing here: {said}");
    }
}

#[tokio::test]
async fn a_turn_in_a_container_runs_commands_and_survives_what_they_take() {
    let Some(scene) = Scene::new().await else { return };
    let engine = &scene.engine;
    let told = async |command: &str| {
        let events = engine.tell("task", &format!("run {command}")).await;
        assert_eq!(completed(&events), "It ran.");
        let result = results(&events)[0].map(str::to_owned);
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
    assert_eq!(scene.effect().await, None);
    assert!(told("echo well again").await.unwrap().contains("well again"));
}
