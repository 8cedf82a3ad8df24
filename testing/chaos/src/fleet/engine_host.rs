//! The backend that runs a deployment's engines, and the instances visible there.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use clap::ValueEnum;
use rustix::process::{Signal, pidfd_send_signal};

use super::containers::Containers;
use super::engine_urls::EngineUrls;
use super::pods::Pods;
use super::processes::find_by_label;
use super::secrets::Secrets;

/// What the engines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Processes of this machine.
    Process,
    /// Containers of its Docker daemon.
    Docker,
    /// Pods of the Kubernetes cluster that `ROUNDHOUSE_TEST_KUBECONFIG` names.
    Kubernetes,
}

impl Backend {
    /// How many times as long as with processes everything takes.
    pub(crate) const fn time_scale(self) -> u32 {
        match self {
            Self::Process => 1,
            Self::Docker => 10,
            Self::Kubernetes => 30,
        }
    }

    /// How many clients ask at once. A container takes much more of the machine than a process.
    pub(crate) const fn client_count(self) -> usize {
        match self {
            Self::Process => 5,
            Self::Docker | Self::Kubernetes => 3,
        }
    }
}

/// A process, container or Pod that carries the deployment's label.
#[derive(Debug)]
pub(crate) struct EngineInstance {
    /// Its engine.
    pub(crate) engine_id: String,
    /// Unique among all processes, containers and Pods.
    pub(crate) instance: String,
    /// Where it listens.
    pub(crate) address: Option<SocketAddr>,
    /// Only a container or a Pod can remain after it has ended.
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
    Pods(Box<Pods>),
}

impl EngineHost {
    /// What there is with this label.
    pub(crate) fn engines(&self, deployment_id: &str) -> anyhow::Result<Vec<EngineInstance>> {
        match self {
            Self::Processes => Ok(find_by_label(deployment_id)?),
            Self::Containers(containers) => containers.find_by_label(deployment_id),
            Self::Pods(pods) => pods.find_by_label(deployment_id),
        }
    }

    /// The engines that have data: a folder in `data_root`, or a claim.
    pub(crate) fn engines_with_data(
        &self,
        deployment_id: &str,
        data_root: &Path,
    ) -> anyhow::Result<BTreeSet<String>> {
        match self {
            Self::Processes | Self::Containers(_) => Ok(folders_in(data_root)?),
            Self::Pods(pods) => pods.engines_with_data(deployment_id),
        }
    }

    /// How the URLs of the engines are formed.
    pub(crate) fn urls(&self) -> EngineUrls {
        match self {
            Self::Processes | Self::Containers(_) => EngineUrls::HostPorts,
            Self::Pods(pods) => pods.urls(),
        }
    }

    /// Injects a fault. An engine that has ended meanwhile is ignored.
    pub(crate) fn inject_fault(&self, engine: &EngineInstance, fault: EngineFault) -> anyhow::Result<()> {
        match (self, &engine.pidfd) {
            (Self::Containers(containers), _) => containers.inject_fault(engine, fault),
            (Self::Pods(pods), _) => pods.inject_fault(engine, fault),
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
            Self::Pods(pods) => pods.leaks(deployment_id, secrets),
        }
    }
}

/// The names in a folder, which may be missing.
fn folders_in(folder: &Path) -> io::Result<BTreeSet<String>> {
    match std::fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}
