//! The service as a process: started, found ready, ended, and started again on the same data.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// How long a start may take. Generous: the machine may be busy.
const START: Duration = Duration::from_secs(30);
/// How long an end may take.
const END: Duration = Duration::from_secs(20);

/// Which of the binary's services.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Service {
    /// `roundhouse engine`.
    Engine,
    /// `roundhouse orchestrator`.
    Orchestrator,
}

/// How a service is started.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The binary.
    pub(crate) binary: PathBuf,
    /// Which service.
    pub(crate) service: Service,
    /// Its folder: all its data, and its log.
    pub(crate) folder: PathBuf,
    /// Its environment, but for the port.
    pub(crate) variables: BTreeMap<String, String>,
}

/// A running service. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Service {
    const fn command(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Orchestrator => "orchestrator",
        }
    }

    const fn port_variable(self) -> &'static str {
        match self {
            Self::Engine => "ENGINE_PORT",
            Self::Orchestrator => "ORCH_PORT",
        }
    }
}

impl Setup {
    /// An engine's brain.
    pub(crate) fn brain(&self) -> PathBuf {
        self.folder.join("brain.sqlite")
    }

    /// The agent's folder.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    /// What the processes of this setup have said.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("service.log")
    }

    /// Starts the service on `port`.
    pub(crate) fn start(&self, port: u16) -> anyhow::Result<Program> {
        let log = self.log();
        let file =
            OpenOptions::new().create(true).append(true).open(&log).context("the log cannot be written")?;
        let child = Command::new(&self.binary)
            .arg(self.service.command())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.folder)
            .envs(&self.variables)
            .env(self.service.port_variable(), port.to_string())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} cannot be started", self.binary.display()))?;
        Ok(Program { child, port, log })
    }
}

impl Program {
    /// The address.
    pub(crate) fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A handle on the process that never means another one.
    pub(crate) fn handle(&self) -> anyhow::Result<OwnedFd> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(pidfd_open(pid.context("the service has ended")?, PidfdFlags::empty())?)
    }

    /// Waits until it takes connections.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            self.still_runs()?;
            if begin.elapsed() > START {
                bail!("the service did not answer within {START:?}:\n{}", tail(&self.log));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// An error if it has ended.
    pub(crate) fn still_runs(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the service ended while it started ({status}):\n{}", tail(&self.log)),
        }
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        match tokio::time::timeout(END, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => bail!("the service did not end within {END:?}:\n{}", tail(&self.log)),
        }
    }
}

/// The end of what was said.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(10).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
