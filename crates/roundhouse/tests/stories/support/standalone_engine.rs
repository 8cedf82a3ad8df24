//! An engine without an orchestrator.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use api::EngineKey;
use mock_llm::MockProvider;
use serde_json::json;

use super::http::{client, send};
use super::test_env::BINARY;
use super::{Engine, Program, TestEnv, eventually, is_installed, skip};

/// The folder of an engine and the variables of its container contract.
#[derive(Debug)]
pub(crate) struct StandaloneEngine {
    pub(crate) test_env: TestEnv,
    pub(crate) variables: BTreeMap<String, String>,
    /// The program that runs it.
    program: PathBuf,
    key: EngineKey,
    has_landlock: bool,
    /// The system calls of one of its threads, at the last of which it is killed.
    killed_at: Vec<u32>,
    /// The file that is mounted on its `/etc/resolv.conf`.
    resolver: Option<PathBuf>,
}

/// Starts a program as on a kernel without Landlock: a seccomp filter answers `landlock_create_ruleset`, which has
/// the same number on all architectures, with ENOSYS.
const WITHOUT_LANDLOCK_SCRIPT: &str = "
import ctypes, os, struct, sys
step = lambda code, yes, no, value: struct.pack('HBBI', code, yes, no, value)
steps = step(0x20, 0, 0, 0) + step(0x15, 0, 1, 444) + step(6, 0, 0, 0x50000 | 38) + step(6, 0, 0, 0x7fff0000)
steps = ctypes.create_string_buffer(steps)
program = ctypes.create_string_buffer(struct.pack('H6xQ', 4, ctypes.addressof(steps)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

/// Starts a program that is killed as soon as one of its threads is about to make the last of the system calls in the first
/// argument, after it has made the others, in this order; those before the file in the second argument exists do not
/// count. A second process hears of these calls through seccomp before
/// they take effect (<https://man7.org/linux/man-pages/man2/seccomp_unotify.2.html>).
const KILLED_AT_SCRIPT: &str = "
import ctypes, fcntl, os, select, signal, socket, struct, sys
calls, begin = [int(call) for call in sys.argv[1].split(',')], sys.argv[2]
killed = os.getpid()
ours, theirs = socket.socketpair()

def supervise(listener):
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    made = {}
    while not poll.poll()[0][1] & select.POLLHUP:
        notice = bytearray(80)
        try:
            fcntl.ioctl(listener, 0xc0502100, notice)
            number, thread, _, call = struct.unpack_from('QIIi', notice)
            if call == calls[made.get(thread, 0)] and os.path.exists(begin):
                made[thread] = made.get(thread, 0) + 1
            if made.get(thread) == len(calls):
                return os.kill(killed, signal.SIGKILL)
            fcntl.ioctl(listener, 0xc0182101, struct.pack('QqiI', number, 0, 0, 1))
        except FileNotFoundError:
            pass  # The thread is gone.

# Of another parent, so that it is no child of the program.
if os.fork() == 0:
    if os.fork() == 0:
        ours.close()
        supervise(socket.recv_fds(theirs, 1, 1)[1][0])
    os._exit(0)
os.wait()
step = lambda code, yes, no, value: struct.pack('HBBI', code, yes, no, value)
steps = step(0x20, 0, 0, 0)
for call in set(calls):
    steps += step(0x15, 0, 1, call) + step(6, 0, 0, 0x7fc00000)
steps = ctypes.create_string_buffer(steps + step(6, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(struct.pack('H6xQ', len(steps) // 8, ctypes.addressof(steps)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
listener = libc.syscall(317, 1, 8, program)
assert listener >= 0
socket.send_fds(ours, [b'x'], [listener])
os.execv(sys.argv[3], sys.argv[3:])
";

/// Ends with success if [`KILLED_AT_SCRIPT`] works: since Linux 5.5 and Python 3.9, unless a container forbids it.
const CAN_BE_KILLED_AT_SCRIPT: &str = "
import ctypes, os, socket, struct
assert socket.send_fds and tuple(map(int, os.uname().release.split('.')[:2])) >= (5, 5)
steps = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(struct.pack('H6xQ', 1, ctypes.addressof(steps)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.syscall(317, 1, 8, program) >= 0
";

/// Starts a program with another `/etc/resolv.conf`.
const WITH_RESOLVER_SCRIPT: &str = r#"mount --bind "$1" /etc/resolv.conf && shift && exec "$@""#;

impl StandaloneEngine {
    pub(crate) fn new() -> Self {
        let test_env = TestEnv::new();
        let key = EngineKey::generate().unwrap();
        let catalog = test_env.path().join("catalog");
        fs::create_dir(&catalog).unwrap();
        let variables = [
            ("ENGINE_KEY_HASH", key.hash().to_hex()),
            ("SQLITE_DB_PATH", test_env.path().join("brain.sqlite").to_str().unwrap().to_owned()),
            ("CATALOG_DIR", catalog.to_str().unwrap().to_owned()),
            ("ENGINE_HOST", "127.0.0.1".to_owned()),
            ("ENGINE_PORT", test_env.ports.first().to_string()),
            ("LLM_PROVIDER", "scripted".to_owned()),
        ];
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self {
            test_env,
            variables,
            program: BINARY.into(),
            key,
            has_landlock: true,
            killed_at: Vec::new(),
            resolver: None,
        }
    }

    /// Sets a variable.
    pub(crate) fn with_env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.insert(name.to_owned(), value.into());
        self
    }

    /// Runs it by another program, such as that of an earlier version.
    pub(crate) fn with_program(self, program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), ..self }
    }

    /// Makes it use the mock provider with the protocol `wire`.
    pub(crate) fn with_provider(self, wire: &str, provider: &MockProvider) -> Self {
        let base = if wire == "openai" { provider.openai_base_url() } else { provider.base_url() };
        self.with_env("LLM_PROVIDER", wire)
            .with_env("LLM_BASE_URL", base)
            .with_env("LLM_API_KEY", "provider-key")
    }

    /// Runs it as on a kernel without Landlock. Needs `python3`.
    pub(crate) fn without_landlock(self) -> Self {
        Self { has_landlock: false, ..self }
    }

    /// Whether [`Self::killed_at`] works on this machine. If not, reports the story as skipped, or fails where everything
    /// is required.
    pub(crate) fn can_be_killed_at() -> bool {
        if !is_installed("python3") {
            return false;
        }
        let probe =
            Command::new("python3").args(["-c", CAN_BE_KILLED_AT_SCRIPT]).stderr(Stdio::null()).status();
        let works = probe.is_ok_and(|status| status.success());
        if !works {
            skip("notices of system calls: Linux 5.5, Python 3.9, and no container that forbids them");
        }
        works
    }

    /// Has it killed when one of its threads is about to make the last of these system calls of x86-64, after it has made
    /// the others in this order. What it does until it has started does not count. Needs `python3`.
    pub(crate) fn killed_at(self, calls: &[u32]) -> Self {
        Self { killed_at: calls.to_vec(), ..self }
    }

    /// Runs it with the name server `server`, port 53. Needs root.
    pub(crate) fn with_name_server(self, server: std::net::IpAddr) -> Self {
        let resolver = self.test_env.path().join("resolv.conf");
        fs::write(&resolver, format!("nameserver {server}\noptions timeout:2 attempts:1\n")).unwrap();
        Self { resolver: Some(resolver), ..self }
    }

    pub(crate) fn brain(&self) -> PathBuf {
        self.test_env.path().join("brain.sqlite")
    }

    /// The folder of the agent's files.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.test_env.path().join("workspace")
    }

    /// The file from whose creation on its system calls count towards its kill.
    fn calls_count(&self) -> PathBuf {
        self.test_env.path().join("calls-count")
    }

    /// Launches the engine without waiting for it.
    pub(crate) fn launch(&self) -> Program {
        let program = self.program.to_str().unwrap();
        if let Some(resolver) = &self.resolver {
            let resolver = resolver.to_str().unwrap();
            let starter =
                ["unshare", "--mount", "sh", "-c", WITH_RESOLVER_SCRIPT, "sh", resolver, program, "engine"];
            return self.test_env.run_program(&starter, &self.variables);
        }
        if !self.killed_at.is_empty() {
            let calls: Vec<_> = self.killed_at.iter().map(u32::to_string).collect();
            let counts = self.calls_count();
            let _ = fs::remove_file(&counts);
            let (calls, counts) = (calls.join(","), counts.to_str().unwrap().to_owned());
            let starter = ["python3", "-c", KILLED_AT_SCRIPT, &calls, &counts, program, "engine"];
            return self.test_env.run_program(&starter, &self.variables);
        }
        if self.has_landlock {
            return self.test_env.run_program(&[program, "engine"], &self.variables);
        }
        let starter = ["python3", "-c", WITHOUT_LANDLOCK_SCRIPT, program, "engine"];
        self.test_env.run_program(&starter, &self.variables)
    }

    /// Starts the engine and waits until it responds.
    pub(crate) async fn start(&self) -> (Program, Engine) {
        let mut program = self.launch();
        let url = format!("http://127.0.0.1:{}", self.variables["ENGINE_PORT"]);
        let http = client();
        eventually("the engine answers", async || {
            assert!(program.is_running(), "the engine ended: {}", program.output());
            http.get(format!("{url}/health")).send().await.is_ok().then_some(())
        })
        .await;
        let engine = Engine::new(&json!({"engine_id": "", "url": url, "api_key": self.key.expose()}));
        // The key proves that the response is the engine's, not that of another process on the port.
        assert_eq!(send(engine.request(reqwest::Method::GET, "/openapi.json")).await.status, 200);
        if !self.killed_at.is_empty() {
            fs::write(self.calls_count(), "").unwrap();
        }
        (program, engine)
    }
}
