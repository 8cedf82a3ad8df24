//! Where attempts run: a brain beside a workspace, an engine that has it open, a daemon with its sockets, another
//! user's folder. Detects side effects afterwards.

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

/// What the brain says.
pub const SECRET: &str = "the brain's secret";

/// How much of an attempt's output is kept.
const MAX_OUTPUT_BYTES: usize = 4096;

/// The programs that the attempts need, copied to where a sandboxed program may read them.
#[derive(Debug)]
pub struct Programs {
    folder: TempDir,
}

impl Programs {
    /// Out of the program that tries the attempts.
    ///
    /// # Errors
    /// Files cannot be copied.
    pub fn new(breakout: &Path) -> io::Result<Self> {
        let programs = Self { folder: tempfile::tempdir()? };
        fs::set_permissions(programs.folder.path(), Permissions::from_mode(0o755))?;
        fs::copy(breakout, programs.attempt_program())?;
        fs::copy(breakout, programs.setuid_program())?;
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
    /// It was stopped, in this way.
    Stopped(String),
    /// It succeeded, in this.
    BrokeOut(String),
    /// It cannot be tried, for this reason.
    NotApplicable(String),
}

/// The environment of one attempt.
#[derive(Debug)]
pub struct TestEnvironment<'a> {
    programs: &'a Programs,
    home: TempDir,
    engine: MockEngine,
    daemon: MockDaemon,
    /// Open without being closed on exec, as by accident.
    _leaked: File,
    brain_state: (u32, i64, u64),
}

impl<'a> TestEnvironment<'a> {
    /// Sets one up.
    ///
    /// # Errors
    /// Something cannot be made.
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
        let victim = MockEngine::start(programs, path)?;
        let daemon = MockDaemon::start(path)?;
        let brain = file_state(&path.join("brain.db"))?;
        Ok(Self { programs, home, engine: victim, daemon, _leaked: leaked, brain_state: brain })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns a sandbox over the workspace.
    pub fn sandbox(&self, helper: HelperCommand) -> Sandbox {
        Sandbox::new(Settings {
            helper,
            workspace: self.path("workspace"),
            readable: vec![self.programs.folder.path().to_owned(), self.path("catalog")],
            hidden: vec![HiddenFiles { folder: self.path("catalog/tools"), ending: ".json".into() }],
            allow_unconfined: false,
        })
    }

    /// How an attempt is started.
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
        let start =
            [self.programs.attempt_program().display().to_string(), "attempt".into(), attempt.name.into()];
        start.into_iter().chain(target.map(|(name, value)| format!("{name}={value}"))).collect()
    }

    /// Runs it in the sandbox.
    ///
    /// # Errors The sandbox failed.
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
        let ended = child.wait().await.map_err(|error| error.to_string())?;
        Ok(self.verdict(attempt, ended, &format!("{out}{err}")))
    }

    /// Runs it without a sandbox.
    ///
    /// # Errors It cannot be started.
    pub fn run_unconfined(&self, attempt: &Attempt) -> io::Result<Verdict> {
        let argv = self.argv(attempt);
        let (program, arguments) = argv.split_first().ok_or(ErrorKind::InvalidInput)?;
        let output = Command::new(program)
            .args(arguments)
            .current_dir(self.path("workspace"))
            .env("ENGINE_KEY", "secret key")
            .output()?;
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let left = self.surviving_processes();
        for pid in &left {
            // One of them may be gone with another.
            let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
        }
        let code = output.status.code().unwrap_or(-1);
        if attempt.mechanism == Mechanism::HelperCleanup {
            return Ok(if left.is_empty() { Verdict::Stopped(said) } else { Verdict::BrokeOut(said) });
        }
        Ok(match u8::try_from(code) {
            Ok(BROKE_OUT) => Verdict::BrokeOut(said),
            Ok(NOT_APPLICABLE) => Verdict::NotApplicable(said),
            _ => Verdict::Stopped(said),
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
    fn verdict(&self, attempt: &Attempt, ended: ExitStatus, said: &str) -> Verdict {
        if let Some(effect) = self.side_effect() {
            return Verdict::BrokeOut(effect);
        }
        let code = match ended {
            ExitStatus::Exited(code) => u8::try_from(code).ok(),
            ExitStatus::Signalled(signal) => return Verdict::Stopped(format!("ended by signal {signal}")),
            ExitStatus::OverLimit(excess) => return Verdict::Stopped(format!("too much: {excess:?}")),
        };
        match code {
            Some(BROKE_OUT) if attempt.mechanism == Mechanism::HelperCleanup => {
                Verdict::Stopped("nothing is left".into())
            }
            Some(BROKE_OUT) => Verdict::BrokeOut(said.to_owned()),
            Some(REFUSED) if is_expected(attempt.mechanism, said) => Verdict::Stopped(said.to_owned()),
            Some(REFUSED) => {
                Verdict::NotApplicable(format!("it failed, but not as one that is stopped does: {said}"))
            }
            Some(NOT_APPLICABLE) => Verdict::NotApplicable(said.to_owned()),
            other => Verdict::NotApplicable(format!("it ended with {other:?}: {said}")),
        }
    }

    /// Describes a forbidden change, if there is one.
    fn side_effect(&self) -> Option<String> {
        let brain = self.path("brain.db");
        if fs::read_to_string(&brain).ok().as_deref() != Some(SECRET) {
            return Some("the brain is another".into());
        }
        let (mode, written, links) = self.brain_state;
        // A time that was put right is a later one.
        if !file_state(&brain).is_ok_and(|now| now.0 == mode && now.1 >= written && now.2 == links) {
            return Some("the brain's mode, time or links are others".into());
        }
        if fs::read_dir(self.path("outside")).map_or(1, Iterator::count) > 0 {
            return Some("there are files outside".into());
        }
        if !self.engine.is_healthy() {
            return Some("the engine is dead or stopped".into());
        }
        if let Some(received_datagram) = self.daemon.received_datagram() {
            return Some(received_datagram);
        }
        let left = self.surviving_processes();
        (!left.is_empty()).then(|| format!("{} processes are left behind", left.len()))
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

/// Whether a refusal is what the thing that stops it gives: another error would say that the attempt is
/// wrong.
fn is_expected(by: Mechanism, said: &str) -> bool {
    let errors: &[i32] = match by {
        Mechanism::LandlockFiles | Mechanism::LandlockDomain => {
            &[libc::EACCES, libc::EXDEV, libc::EROFS, libc::EPERM]
        }
        Mechanism::LandlockScopes => &[libc::EPERM],
        Mechanism::Seccomp => &[libc::EPERM, libc::EACCES, libc::ENOSYS, libc::EOPNOTSUPP],
        Mechanism::MetadataGuard => return said.contains("(os error 30)") || said.contains("put right"),
        Mechanism::Privileges
        | Mechanism::CleanedEnvironment
        | Mechanism::Limit(_)
        | Mechanism::HelperCleanup => return true,
    };
    errors.iter().any(|error| said.contains(&format!("(os error {error})")))
}

/// The mode, the time and the links of a file.
fn file_state(path: &Path) -> io::Result<(u32, i64, u64)> {
    let about = fs::metadata(path)?;
    Ok((about.mode(), about.mtime(), about.nlink()))
}

/// Reads to the end, and keeps the beginning.
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

/// A process that stands for an engine: it has the brain open and a key in its environment.
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
        // It may be gone: that is what attempts are for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A daemon that answers whoever reaches one of its sockets.
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
            // It lives as long as the suite, and costs a thread.
            std::thread::spawn(move || {
                for received_datagram in listener.incoming().flatten() {
                    let mut received_datagram = received_datagram;
                    // A guest that leaves early is a guest all the same.
                    let _ = received_datagram.write_all(b"welcome");
                }
            });
        }
        for listener in std::iter::once(tcp).chain(tcp6) {
            std::thread::spawn(move || listener.incoming().for_each(drop));
        }
        Ok(Self { name, port, port6, log, datagrams })
    }

    /// Whether somebody has sent it something.
    fn received_datagram(&self) -> Option<String> {
        let mut buffer = [0; 64];
        let log = self.log.recv(&mut buffer).is_ok();
        let udp = self.datagrams.recv(&mut buffer).is_ok();
        (log || udp).then(|| "a datagram reached the daemon".into())
    }
}
