//! A service as a process: started, checked for readiness, stopped, and restarted on the same data.

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
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A service of the binary.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Service {
    /// `roundhouse engine`.
    Engine,
    /// `roundhouse orchestrator`.
    Orchestrator,
}

/// How a service is started.
#[derive(Clone, Debug)]
pub(crate) struct ServiceConfig {
    /// The binary.
    pub(crate) binary: PathBuf,
    /// Which service.
    pub(crate) service: Service,
    /// The folder of all its data and its log.
    pub(crate) folder: PathBuf,
    /// Its environment, except for the port.
    pub(crate) env: BTreeMap<String, String>,
}

/// A running service. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct ServiceProcess {
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

impl ServiceConfig {
    /// The path of an engine's brain.
    pub(crate) fn brain(&self) -> PathBuf {
        self.folder.join("brain.sqlite")
    }

    /// The path of the agent's workspace.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    /// The path of the log, shared by all starts of this configuration.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("service.log")
    }

    /// Starts the service on `port`.
    pub(crate) fn start(&self, port: u16) -> anyhow::Result<ServiceProcess> {
        let log = self.log();
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .context("the log file cannot be written")?;
        let child = Command::new(&self.binary)
            .arg(self.service.command())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.folder)
            .envs(&self.env)
            .env(self.service.port_variable(), port.to_string())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} cannot be started", self.binary.display()))?;
        Ok(ServiceProcess { child, port, log })
    }
}

impl ServiceProcess {
    /// The address.
    pub(crate) fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns a handle that stays valid when the process id is reused.
    pub(crate) fn pidfd(&self) -> anyhow::Result<OwnedFd> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(pidfd_open(pid.context("the service has exited")?, PidfdFlags::empty())?)
    }

    /// Waits until it accepts connections.
    pub(crate) async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            self.ensure_running()?;
            if begin.elapsed() > START_TIMEOUT {
                bail!("the service did not answer within {START_TIMEOUT:?}:\n{}", log_tail(&self.log));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Returns an error if it has exited.
    pub(crate) fn ensure_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the service exited during startup ({status}):\n{}", log_tail(&self.log)),
        }
    }

    /// Waits until it exits.
    pub(crate) async fn wait_exit(&mut self) -> anyhow::Result<ExitStatus> {
        match tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => bail!("the service did not exit within {STOP_TIMEOUT:?}:\n{}", log_tail(&self.log)),
        }
    }
}

/// Returns the end of the log.
fn log_tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(10).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
