//! The environment of an attempt: a brain next to a workspace, a mock engine that has the brain open, a daemon
//! with its sockets, and another user's folder. It runs the attempt and detects side effects afterwards.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::FdFlags;
use sandbox::{ExitStatus, HelperCommand, HiddenFiles, Limits, Sandbox, Settings};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::{Attempt, BROKE_OUT, Mechanism, NOT_APPLICABLE, REFUSED};

/// The content of the brain, and of the hidden file of the catalog.
pub const SECRET: &str = "the brain's secret";

/// The maximum size of an attempt's output that is kept.
const MAX_OUTPUT_BYTES: usize = 4096;

/// The programs that the attempts need, copied to where a sandboxed program may read them.
#[derive(Debug)]
pub struct Programs {
    folder: TempDir,
}

impl Programs {
    /// Copies `executable`, which runs the attempts, once as it is and once as a set-user-id program.
    ///
    /// # Errors
    /// The files cannot be copied.
    pub fn new(executable: &Path) -> io::Result<Self> {
        let programs = Self { folder: tempfile::tempdir()? };
        fs::set_permissions(programs.folder.path(), Permissions::from_mode(0o755))?;
        fs::copy(executable, programs.attempt_program())?;
        fs::copy(executable, programs.setuid_program())?;
        fs::set_permissions(programs.setuid_program(), Permissions::from_mode(0o4755))?;
        Ok(programs)
    }

    fn attempt_program(&self) -> PathBuf {
        self.folder.path().join("breakout")
    }

    fn setuid_program(&self) -> PathBuf {
        self.folder.path().join("set_user_id")
    }
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was stopped. The text says how.
    Stopped(String),
    /// It succeeded. The text says what it obtained or changed.
    BrokeOut(String),
    /// It proves nothing. The text says why.
    NotApplicable(String),
}

/// The environment of one attempt.
#[derive(Debug)]
pub struct TestEnvironment<'a> {
    programs: &'a Programs,
    home: TempDir,
    engine: MockEngine,
    daemon: MockDaemon,
    /// A file descriptor without close-on-exec, which the program must not inherit.
    _leaked: File,
    brain_state: (u32, i64, u64),
}

impl<'a> TestEnvironment<'a> {
    /// Sets up the files, the mock engine and the daemon.
    ///
    /// # Errors
    /// A file, process or socket cannot be created.
    pub fn new(programs: &'a Programs) -> io::Result<Self> {
        let home = tempfile::tempdir()?;
        let path = home.path();
        fs::set_permissions(path, Permissions::from_mode(0o755))?;
        for folder in ["workspace", "outside", "other"] {
            fs::create_dir(path.join(folder))?;
        }
        fs::write(path.join("brain.db"), SECRET)?;
        fs::create_dir_all(path.join("catalog/tools"))?;
        fs::write(path.join("catalog/tools/bank.json"), SECRET)?;
        fs::write(path.join("other/diary"), "another user's diary")?;
        fs::set_permissions(path.join("other"), Permissions::from_mode(0o700))?;
        let leaked = File::open(path.join("brain.db"))?;
        rustix::io::fcntl_setfd(&leaked, FdFlags::empty())?;
        let engine = MockEngine::start(programs, path)?;
        let daemon = MockDaemon::start(path)?;
        let brain_state = file_state(&path.join("brain.db"))?;
        Ok(Self { programs, home, engine, daemon, _leaked: leaked, brain_state })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns a sandbox for the workspace.
    pub fn sandbox(&self, helper: HelperCommand) -> Sandbox {
        Sandbox::new(Settings {
            helper,
            workspace: self.path("workspace"),
            readable: vec![self.programs.folder.path().to_owned(), self.path("catalog")],
            hidden: vec![HiddenFiles { folder: self.path("catalog/tools"), ending: ".json".into() }],
            allow_unconfined: false,
        })
    }

    /// The command line of an attempt.
    fn argv(&self, attempt: &Attempt) -> Vec<String> {
        let target = [
            ("brain", self.path("brain.db").display().to_string()),
            ("hidden", self.path("catalog/tools/bank.json").display().to_string()),
            ("outside", self.path("outside").display().to_string()),
            ("other", self.path("other/diary").display().to_string()),
            ("victim", self.engine.process.id().to_string()),
            ("address", self.engine.address.clone()),
            ("daemon", self.path("daemon.sock").display().to_string()),
            ("log", self.path("log.sock").display().to_string()),
            ("abstract", self.daemon.name.clone()),
            ("port", self.daemon.port.to_string()),
            ("port6", self.daemon.port6.to_string()),
            ("set_user_id", self.programs.setuid_program().display().to_string()),
        ];
        let command =
            [self.programs.attempt_program().display().to_string(), "attempt".into(), attempt.name.into()];
        command.into_iter().chain(target.map(|(name, value)| format!("{name}={value}"))).collect()
    }

    /// Runs an attempt in the sandbox.
    ///
    /// # Errors
    /// The sandbox failed.
    pub async fn run_sandboxed(&self, sandbox: &Sandbox, attempt: &Attempt) -> Result<Verdict, String> {
        let command = sandbox::Command {
            argv: self.argv(attempt).into_iter().map(Into::into).collect(),
            folder: ".".into(),
            env: Vec::new(),
            network: attempt.needs_network,
            limits: self.limits(attempt)?,
        };
        let mut child = sandbox.start(command).await.map_err(|error| error.to_string())?;
        drop(child.stdin.take());
        let (out, err) = tokio::join!(drain(child.stdout.take()), drain(child.stderr.take()));
        let status = child.wait().await.map_err(|error| error.to_string())?;
        Ok(self.verdict(attempt, status, &format!("{out}{err}")))
    }

    /// Runs an attempt without a sandbox.
    ///
    /// # Errors
    /// The attempt cannot be started.
    pub fn run_unconfined(&self, attempt: &Attempt) -> io::Result<Verdict> {
        let argv = self.argv(attempt);
        let (program, arguments) = argv.split_first().ok_or(ErrorKind::InvalidInput)?;
        let result = Command::new(program)
            .args(arguments)
            .current_dir(self.path("workspace"))
            .env("ENGINE_KEY", "secret key")
            .output()?;
        let output =
            String::from_utf8_lossy(&result.stdout).into_owned() + &String::from_utf8_lossy(&result.stderr);
        let survivors = self.surviving_processes();
        for pid in &survivors {
            // It may have exited in the meantime.
            let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
        }
        let code = result.status.code().unwrap_or(-1);
        if attempt.mechanism == Mechanism::HelperCleanup {
            return Ok(if survivors.is_empty() {
                Verdict::Stopped(output)
            } else {
                Verdict::BrokeOut(output)
            });
        }
        Ok(match u8::try_from(code) {
            Ok(BROKE_OUT) => Verdict::BrokeOut(output),
            Ok(NOT_APPLICABLE) => Verdict::NotApplicable(output),
            _ => Verdict::Stopped(output),
        })
    }

    fn limits(&self, attempt: &Attempt) -> Result<Limits, String> {
        let mut limits = Limits { time: Some(Duration::from_mins(1)), disk_left: 0, ..Limits::default() };
        if let Some(change) = attempt.limits {
            change(&mut limits);
        }
        if limits.disk_left == u64::MAX {
            let disk = rustix::fs::statvfs(self.home.path()).map_err(|error| error.to_string())?;
            limits.disk_left = (disk.f_bavail * disk.f_frsize).saturating_sub(64 << 20);
        }
        Ok(limits)
    }

    /// The result of an attempt in the sandbox: its own report, unless a side effect contradicts it.
    fn verdict(&self, attempt: &Attempt, status: ExitStatus, output: &str) -> Verdict {
        if let Some(effect) = self.side_effect() {
            return Verdict::BrokeOut(effect);
        }
        let code = match status {
            ExitStatus::Exited(code) => u8::try_from(code).ok(),
            ExitStatus::Signalled(signal) => return Verdict::Stopped(format!("ended by signal {signal}")),
            ExitStatus::OverLimit(limit) => return Verdict::Stopped(format!("exceeded a limit: {limit:?}")),
        };
        match code {
            Some(BROKE_OUT) if attempt.mechanism == Mechanism::HelperCleanup => {
                Verdict::Stopped("no process is left".into())
            }
            Some(BROKE_OUT) => Verdict::BrokeOut(output.to_owned()),
            Some(REFUSED) if is_expected(attempt.mechanism, output) => Verdict::Stopped(output.to_owned()),
            Some(REFUSED) => Verdict::NotApplicable(format!(
                "it failed, but not with an error of {:?}: {output}",
                attempt.mechanism
            )),
            Some(NOT_APPLICABLE) => Verdict::NotApplicable(output.to_owned()),
            other => Verdict::NotApplicable(format!("it exited with {other:?}: {output}")),
        }
    }

    /// Describes a forbidden change, if there is one.
    fn side_effect(&self) -> Option<String> {
        let brain = self.path("brain.db");
        if fs::read_to_string(&brain).ok().as_deref() != Some(SECRET) {
            return Some("the brain's content has changed".into());
        }
        let (mode, modified, links) = self.brain_state;
        // The helper restores a changed time to a later one.
        if !file_state(&brain).is_ok_and(|now| now.0 == mode && now.1 >= modified && now.2 == links) {
            return Some("the brain's mode, time or link count has changed".into());
        }
        if fs::read_dir(self.path("outside")).map_or(1, Iterator::count) > 0 {
            return Some("there are files outside".into());
        }
        if !self.engine.is_healthy() {
            return Some("the engine is dead or stopped".into());
        }
        if let Some(effect) = self.daemon.received_datagram() {
            return Some(effect);
        }
        let survivors = self.surviving_processes();
        (!survivors.is_empty()).then(|| format!("{} processes are left behind", survivors.len()))
    }

    /// Processes whose command line names this environment's workspace.
    fn surviving_processes(&self) -> Vec<rustix::process::Pid> {
        let mark = self.path("workspace").display().to_string();
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .flatten()
            .filter(|entry| {
                fs::read(entry.path().join("cmdline"))
                    .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == mark.as_bytes()))
            })
            .filter_map(|entry| rustix::process::Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
            .collect()
    }
}

/// Whether a refusal has an error of the mechanism that should stop the attempt. Another error means that the
/// attempt itself is wrong.
fn is_expected(mechanism: Mechanism, output: &str) -> bool {
    let errors: &[i32] = match mechanism {
        Mechanism::LandlockFiles | Mechanism::LandlockDomain => {
            &[libc::EACCES, libc::EXDEV, libc::EROFS, libc::EPERM]
        }
        Mechanism::LandlockScopes => &[libc::EPERM],
        Mechanism::Seccomp => &[libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EOPNOTSUPP],
        Mechanism::MetadataGuard => return output.contains("(os error 30)") || output.contains("restored"),
        Mechanism::Privileges
        | Mechanism::CleanedEnvironment
        | Mechanism::Limit(_)
        | Mechanism::HelperCleanup => return true,
    };
    errors.iter().any(|error| output.contains(&format!("(os error {error})")))
}

/// The mode, modification time and link count of a file.
fn file_state(path: &Path) -> io::Result<(u32, i64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.mode(), metadata.mtime(), metadata.nlink()))
}

/// Reads a pipe to its end, and returns its first [`MAX_OUTPUT_BYTES`].
async fn drain(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let mut kept = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    if let Some(mut pipe) = pipe {
        while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
            kept.extend(buffer.iter().take(read.min(MAX_OUTPUT_BYTES.saturating_sub(kept.len()))));
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// A process that stands in for an engine: it has the brain open and a key in its environment and memory.
#[derive(Debug)]
struct MockEngine {
    process: Child,
    address: String,
}

impl MockEngine {
    fn start(programs: &Programs, home: &Path) -> io::Result<Self> {
        let mut process = Command::new(programs.attempt_program())
            .arg("victim")
            .arg(home.join("brain.db"))
            .current_dir(home)
            .env("ENGINE_KEY", "secret key")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut address = String::new();
        let output = process.stdout.take().ok_or(ErrorKind::BrokenPipe)?;
        BufReader::new(output).read_line(&mut address)?;
        Ok(Self { process, address: address.trim().trim_start_matches("0x").to_owned() })
    }

    fn is_healthy(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        let limits = fs::read_to_string(format!("/proc/{}/limits", self.process.id())).unwrap_or_default();
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let priority = fields.get(16).copied();
        matches!(fields.first(), Some(&("S" | "R"))) && priority == Some("0") && !limits.is_empty()
    }
}

impl Drop for MockEngine {
    fn drop(&mut self) {
        // An attempt may have killed it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A daemon that answers on its stream sockets and records datagrams.
#[derive(Debug)]
struct MockDaemon {
    name: String,
    port: u16,
    port6: u16,
    log: UnixDatagram,
    datagrams: UdpSocket,
}

impl MockDaemon {
    fn start(home: &Path) -> io::Result<Self> {
        let name = format!("breakout-{}", home.display());
        let by_path = UnixListener::bind(home.join("daemon.sock"))?;
        let by_name = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let log = UnixDatagram::bind(home.join("log.sock"))?;
        log.set_nonblocking(true)?;
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        let port = tcp.local_addr()?.port();
        let tcp6 = TcpListener::bind("[::1]:0").ok();
        let port6 =
            tcp6.as_ref().and_then(|listener| listener.local_addr().ok()).map_or(0, |address| address.port());
        let datagrams = UdpSocket::bind(("127.0.0.1", port))?;
        datagrams.set_nonblocking(true)?;
        for listener in [by_path, by_name] {
            // The thread lives until the process exits.
            std::thread::spawn(move || {
                for connection in listener.incoming().flatten() {
                    let mut connection = connection;
                    // The client may have closed the connection.
                    let _ = connection.write_all(b"welcome");
                }
            });
        }
        for listener in std::iter::once(tcp).chain(tcp6) {
            std::thread::spawn(move || listener.incoming().for_each(drop));
        }
        Ok(Self { name, port, port6, log, datagrams })
    }

    /// Describes a datagram that has arrived, if there is one.
    fn received_datagram(&self) -> Option<String> {
        let mut buffer = [0; 64];
        let log = self.log.recv(&mut buffer).is_ok();
        let udp = self.datagrams.recv(&mut buffer).is_ok();
        (log || udp).then(|| "a datagram reached the daemon".into())
    }
}
