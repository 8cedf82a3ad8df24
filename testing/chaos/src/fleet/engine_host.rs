//! The backend that runs a deployment's engines, and the instances visible there.

use std::os::fd::OwnedFd;

use clap::ValueEnum;
use rustix::process::{Signal, pidfd_send_signal};

use super::containers::Containers;
use super::processes::find_by_label;
use super::secrets::Secrets;

/// What the engines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Processes of this machine.
    Process,
    /// Containers of its Docker daemon.
    Docker,
}

/// A process or container that carries the deployment's label.
#[derive(Debug)]
pub(crate) struct EngineInstance {
    /// Its engine.
    pub(crate) engine_id: String,
    /// Unique among all processes and containers.
    pub(crate) instance: String,
    /// The port that it was given.
    pub(crate) port: Option<u16>,
    /// Only a container can remain after it has ended.
    pub(crate) is_alive: bool,
    /// The pidfd of a process.
    pub(crate) pidfd: Option<OwnedFd>,
}

/// A fault injected into an engine directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineFault {
    /// It is killed.
    Kill,
    /// It is suspended and no longer responds.
    Hang,
    /// It is killed, and nothing is left of it; a process is only killed.
    Remove,
}

impl EngineFault {
    /// Its count.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "engines sent SIGKILL",
            Self::Hang => "engines halted",
            Self::Remove => "engines removed",
        }
    }
}

/// What runs the engines.
#[derive(Debug)]
pub(crate) enum EngineHost {
    Processes,
    Containers(Containers),
}

impl EngineHost {
    /// What there is with this label.
    pub(crate) fn engines(&self, deployment_id: &str) -> anyhow::Result<Vec<EngineInstance>> {
        match self {
            Self::Processes => Ok(find_by_label(deployment_id)?),
            Self::Containers(containers) => containers.find_by_label(deployment_id),
        }
    }

    /// Injects a fault. An engine that has ended meanwhile is ignored.
    pub(crate) fn inject_fault(&self, engine: &EngineInstance, fault: EngineFault) -> anyhow::Result<()> {
        match (self, &engine.pidfd) {
            (Self::Containers(containers), _) => containers.inject_fault(engine, fault),
            (Self::Processes, Some(handle)) => {
                let signal = if fault == EngineFault::Hang { Signal::STOP } else { Signal::KILL };
                let _ = pidfd_send_signal(handle, signal);
                Ok(())
            }
            (Self::Processes, None) => Ok(()),
        }
    }

    /// What holds a secret that no file has.
    pub(crate) fn leaks(&self, deployment_id: &str, secrets: &Secrets) -> anyhow::Result<Vec<String>> {
        match self {
            Self::Processes => Ok(Vec::new()),
            Self::Containers(containers) => containers.leaks(deployment_id, secrets),
        }
    }
}
