//! Engines as containers without an orchestrator, created, started and removed through the Docker daemon's API:
//! the baseline of the container backend.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use api::EngineId;
use chaos::docker::DockerResources;
use chaos::unix_http::UnixHttpClient;
use serde_json::{Value, json};

use crate::probe;
use crate::process::free_port;
use crate::service::OrchestratorService;

/// The time within which an engine must be healthy.
const HEALTH_TIMEOUT: Duration = Duration::from_mins(1);
/// The time between two health checks, the same as an orchestrator's during startup.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The time in seconds that a stopped container has to exit before it is killed.
const STOP_GRACE_S: u64 = 30;

/// Creates and removes such containers. Dropped, it removes those that are left.
pub(crate) struct BareContainers {
    daemon: UnixHttpClient,
    /// The body of the create request, except for the port and the folder.
    description: Value,
    /// The parent of the containers' data folders.
    folder: PathBuf,
    /// The user and group ids that own the data folders.
    owner: (u32, u32),
    name: String,
    container_count: AtomicUsize,
}

/// A running container.
struct Container {
    id: String,
    data: PathBuf,
}

impl BareContainers {
    /// Takes the configuration of the running container of `engine_id`.
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
        let mut description = inspected.get("Config").context("the container has no configuration")?.clone();
        let host = inspected.get("HostConfig").context("the container has no host configuration")?;
        let fields = description.as_object_mut().context("the container's configuration is not an object")?;
        fields.insert("HostConfig".to_owned(), host.clone());
        // Without the labels no orchestrator adopts it. The host name is derived from the container's own id.
        fields.insert("Labels".to_owned(), json!({}));
        fields.remove("Hostname");
        let engine_folder = service.folder().join("engines").join(engine_id.to_string());
        let owner = fs::metadata(engine_folder)?;
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

    /// Measures one lifecycle and returns the durations of provision, stop, start, wake and delete.
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

    /// Runs `provisions` provisions, `concurrency` of them at a time, and returns their rate per second.
    pub(crate) fn provision_rate(&self, concurrency: usize, provisions: usize) -> anyhow::Result<f64> {
        let next = AtomicUsize::new(0);
        let begin = Instant::now();
        let created_containers: anyhow::Result<Vec<_>> = thread::scope(|scope| {
            let work = || {
                let mut created_containers = Vec::new();
                while next.fetch_add(1, Ordering::Relaxed) < provisions {
                    created_containers
                        .push(self.provision(self.container_count.fetch_add(1, Ordering::Relaxed)));
                }
                created_containers
            };
            let workers: Vec<_> = (0..concurrency).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().map_err(|_| anyhow!("a worker panicked")))
                .collect()
        });
        let took = begin.elapsed();
        let created_containers: Vec<Vec<anyhow::Result<Container>>> = created_containers?;
        for container in created_containers.into_iter().flatten() {
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

    /// Creates and starts a container on the data folder `number`, and waits until its engine is healthy.
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
        let id =
            created.get("Id").and_then(Value::as_str).context("the created container has no id")?.to_owned();
        self.daemon.request_ok("POST", &format!("/containers/{id}/start"), None)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let begin = Instant::now();
        while !probe::is_healthy(address) {
            if begin.elapsed() > HEALTH_TIMEOUT {
                bail!(
                    "the engine of a plain container was not healthy within {} s",
                    HEALTH_TIMEOUT.as_secs()
                );
            }
            thread::park_timeout(POLL_INTERVAL);
        }
        Ok(Container { id, data })
    }

    /// Stops as an orchestrator does: stops the container gracefully and removes it.
    fn stop(&self, Container { id, .. }: &Container) -> anyhow::Result<()> {
        self.daemon.request_ok("POST", &format!("/containers/{id}/stop?t={STOP_GRACE_S}"), None)?;
        self.daemon.request_ok("DELETE", &format!("/containers/{id}?v=true"), None).map(drop)
    }

    fn delete(&self, Container { id, data }: &Container) -> anyhow::Result<()> {
        self.daemon.request_ok("DELETE", &format!("/containers/{id}?force=true&v=true"), None)?;
        fs::remove_dir_all(data).context("the folder of a plain container cannot be removed")
    }
}

impl Drop for BareContainers {
    fn drop(&mut self) {
        // Only a failed run leaves containers behind, so usually there is nothing to remove.
        for number in 0..self.container_count.load(Ordering::Relaxed) {
            let path = format!("/containers/{}-{number}?force=true&v=true", self.name);
            let _ = self.daemon.request("DELETE", &path, None);
        }
    }
}
