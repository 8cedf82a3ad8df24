//! Engines as containers without an orchestrator: created, started and removed over the daemon's API alone.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use api::EngineId;
use chaos::docker::{DockerClient, DockerResources};
use serde_json::{Value, json};

use crate::probe;
use crate::process::free_port;
use crate::service::OrchestratorService;

/// How long an engine may take to be well.
const HEALTH_TIMEOUT: Duration = Duration::from_mins(1);
/// Between two looks at whether it is; as an orchestrator looks in the beginning.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The time that a stopped container has to end.
const STOP_GRACE_S: u64 = 30;

/// How to run such a container.
pub(crate) struct BareContainers {
    daemon: DockerClient,
    /// What it is created from, but for its port and its folder.
    description: Value,
    /// Where the folders are.
    folder: PathBuf,
    /// Whose they are.
    owner: (u32, u32),
    name: String,
    container_count: AtomicUsize,
}

/// A container, and where its engine listens.
struct Container {
    id: String,
    data: PathBuf,
}

impl BareContainers {
    /// As the container of `engine_id` is, which runs.
    pub(crate) fn like_engine(
        resources: &DockerResources,
        service: &OrchestratorService,
        engine_id: EngineId,
    ) -> anyhow::Result<Self> {
        let daemon = resources.daemon.clone();
        let filter = format!("%7B%22label%22%3A%5B%22roundhouse.engine%3D{engine_id}%22%5D%7D");
        let listed = daemon.get(&format!("/containers/json?filters={filter}"))?;
        let id = listed.pointer("/0/Id").and_then(Value::as_str).context("the engine has no container")?;
        let inspected = daemon.get(&format!("/containers/{id}/json"))?;
        let mut description = inspected.get("Config").context("a container without a configuration")?.clone();
        let host = inspected.get("HostConfig").context("a container without a host's configuration")?;
        let fields = description.as_object_mut().context("a configuration that is none")?;
        fields.insert("HostConfig".to_owned(), host.clone());
        // No orchestrator is to take it for its own; and its name is of its own id.
        fields.insert("Labels".to_owned(), json!({}));
        fields.remove("Hostname");
        let of_engine = service.folder().join("engines").join(engine_id.to_string());
        let owner = fs::metadata(of_engine)?;
        let folder = service.folder().join("plain");
        fs::create_dir(&folder)?;
        let (name, number) = (format!("{}-plain", resources.network()), AtomicUsize::new(0));
        Ok(Self {
            daemon,
            description,
            folder,
            owner: (owner.uid(), owner.gid()),
            name,
            container_count: number,
        })
    }

    /// Provision, stop, start, wake, delete: how long each took.
    pub(crate) fn measure_lifecycle(&self) -> anyhow::Result<[Duration; 5]> {
        let number = self.container_count.fetch_add(1, Ordering::Relaxed);
        let begin = Instant::now();
        let container = self.provision(number)?;
        let provision = begin.elapsed();
        let begin = Instant::now();
        self.stop(&container)?;
        let stop = begin.elapsed();
        let begin = Instant::now();
        let container = self.run(number)?;
        let start = begin.elapsed();
        let begin = Instant::now();
        self.delete(&container)?;
        Ok([provision, stop, start, start, begin.elapsed()])
    }

    /// So many provisions, some at once: how many there are in a second.
    pub(crate) fn provision_rate(&self, at_once: usize, provisions: usize) -> anyhow::Result<f64> {
        let next = AtomicUsize::new(0);
        let begin = Instant::now();
        let made: anyhow::Result<Vec<_>> = thread::scope(|scope| {
            let work = || {
                let mut made = Vec::new();
                while next.fetch_add(1, Ordering::Relaxed) < provisions {
                    made.push(self.provision(self.container_count.fetch_add(1, Ordering::Relaxed)));
                }
                made
            };
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().map_err(|_| anyhow!("a worker panicked")))
                .collect()
        });
        let took = begin.elapsed();
        let made: Vec<Vec<anyhow::Result<Container>>> = made?;
        for container in made.into_iter().flatten() {
            self.delete(&container?)?;
        }
        Ok(crate::measure::per_second(took))
    }

    fn data_folder(&self, number: usize) -> PathBuf {
        self.folder.join(number.to_string())
    }

    fn provision(&self, number: usize) -> anyhow::Result<Container> {
        let (uid, gid) = self.owner;
        fs::create_dir(self.data_folder(number))?;
        chown(self.data_folder(number), Some(uid), Some(gid))?;
        self.run(number)
    }

    /// Creates and starts a container over the folder of this number, and waits until its engine is well.
    fn run(&self, number: usize) -> anyhow::Result<Container> {
        let (port, data) = (free_port()?, self.data_folder(number));
        let mut description = self.description.clone();
        let set = |description: &mut Value, pointer: &str, value: Value| {
            let field = description.pointer_mut(pointer).with_context(|| format!("{pointer} is missing"))?;
            *field = value;
            anyhow::Ok(())
        };
        set(&mut description, "/HostConfig/PortBindings/8000~1tcp/0/HostPort", json!(port.to_string()))?;
        set(&mut description, "/HostConfig/Mounts/0/Source", json!(data))?;
        let path = format!("/containers/create?name={}-{number}", self.name);
        let created: Value =
            serde_json::from_slice(&self.daemon.request_ok("POST", &path, Some(&description))?)?;
        let id = created.get("Id").and_then(Value::as_str).context("a container without an id")?.to_owned();
        self.daemon.request_ok("POST", &format!("/containers/{id}/start"), None)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let begin = Instant::now();
        while !probe::is_healthy(address) {
            if begin.elapsed() > HEALTH_TIMEOUT {
                bail!("a plain container was not well within {} s", HEALTH_TIMEOUT.as_secs());
            }
            thread::park_timeout(POLL_INTERVAL);
        }
        Ok(Container { id, data })
    }

    /// As an orchestrator stops: the container is asked to end, and removed.
    fn stop(&self, Container { id, .. }: &Container) -> anyhow::Result<()> {
        self.daemon.request_ok("POST", &format!("/containers/{id}/stop?t={STOP_GRACE_S}"), None)?;
        self.daemon.request_ok("DELETE", &format!("/containers/{id}?v=true"), None).map(drop)
    }

    fn delete(&self, Container { id, data }: &Container) -> anyhow::Result<()> {
        self.daemon.request_ok("DELETE", &format!("/containers/{id}?force=true&v=true"), None)?;
        fs::remove_dir_all(data).context("a plain container's folder cannot be removed")
    }
}

impl Drop for BareContainers {
    fn drop(&mut self) {
        // What a failure left; one that is gone is the usual case.
        for number in 0..self.container_count.load(Ordering::Relaxed) {
            let path = format!("/containers/{}-{number}?force=true&v=true", self.name);
            let _ = self.daemon.request("DELETE", &path, None);
        }
    }
}
