//! A deployment: its folder, its ports, how its orchestrator is started, and the certainty that none of its
//! engines is left behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use contract::EngineKey;
use reqwest::Client;
use rustix::process::Signal;

use super::processes::{Labelled, labelled};
use crate::ports::Ports;
use crate::program::{Program, Service, Setup};

/// How long a start may take until it is ready. Generous: the machine may be busy.
const START: Duration = Duration::from_secs(30);
/// How many ports the engines have where they are to run out of them.
const FEW: u16 = 6;

/// See the module.
#[derive(Debug)]
pub(crate) struct Deployment {
    setup: Setup,
    ports: Ports,
    /// Its secrets, none of which may be found in any file.
    pub(crate) secrets: Vec<String>,
    admin_key: String,
    /// Read from the registry once there is one; before that it has no engines.
    id: Mutex<Option<String>>,
}

impl Deployment {
    /// A deployment in `folder` that has never been started.
    pub(crate) fn new(binary: &Path, folder: &Path, saboteur: Option<&str>) -> anyhow::Result<Self> {
        let text =
            |path: &Path| path.to_str().map(str::to_owned).context("a temporary folder that is no text");
        let random = || -> anyhow::Result<String> {
            let key = EngineKey::generate().context("no key")?;
            // 32 random bytes in base64url follow the prefix: the form of a master key.
            Ok(key.expose().trim_start_matches("sk-svc-").to_owned())
        };
        let (admin_key, master_key) = (random()?, random()?);
        let mut variables = BTreeMap::from(
            [
                ("ORCH_DATABASE_URL", format!("sqlite:{}", text(&folder.join("registry.sqlite"))?)),
                ("ORCH_MASTER_KEY", master_key.clone()),
                ("ORCH_ADMIN_KEY", admin_key.clone()),
                ("ORCH_BACKEND", "process".to_owned()),
                ("ORCH_ENGINE_IMAGE", format!("svc-engine:{}", env!("CARGO_PKG_VERSION"))),
                ("ORCH_HOST", "127.0.0.1".to_owned()),
                ("ORCH_DATA_ROOT_PATH", text(&folder.join("engines"))?),
                ("ORCH_CATALOG_MOUNT_PATH", text(&folder.join("catalog"))?),
                ("ORCH_ENGINE_ENV_PASSTHROUGH", "LLM_PROVIDER,ENGINE_LOG_LEVEL".to_owned()),
                ("LLM_PROVIDER", "scripted".to_owned()),
                ("ENGINE_LOG_LEVEL", "warn".to_owned()),
                ("ORCH_BOOT_TIMEOUT_S", "20".to_owned()),
                // A machine that is busy answers late; an engine that hangs is found all the same.
                ("ORCH_HEALTH_CHECK_INTERVAL_S", "0.2".to_owned()),
                ("ORCH_HEALTH_CHECK_TIMEOUT_S", "1".to_owned()),
                ("ORCH_HEALTH_MAX_FAILURES", "2".to_owned()),
                ("ORCH_IDLE_SLEEP_THRESHOLD_S", "1".to_owned()),
                ("ORCH_RESTART_BACKOFF_BASE_S", "0.1".to_owned()),
                ("ORCH_RESTART_BACKOFF_MAX_S", "0.5".to_owned()),
                ("ORCH_RESTART_MAX_ATTEMPTS", "8".to_owned()),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        if let Some(saboteur) = saboteur {
            variables.insert("ROUNDHOUSE_SABOTEUR".to_owned(), saboteur.to_owned());
        }
        std::fs::create_dir(folder.join("catalog"))?;
        let setup = Setup {
            binary: binary.to_owned(),
            service: Service::Orchestrator,
            folder: folder.to_owned(),
            variables,
        };
        let secrets = vec![admin_key.clone(), master_key];
        Ok(Self { setup, ports: Ports::claim()?, secrets, admin_key, id: Mutex::default() })
    }

    /// The orchestrator's address, the same after each start.
    pub(crate) fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.bounds().0)
    }

    /// What opens the admin endpoints.
    pub(crate) fn admin_key(&self) -> &str {
        &self.admin_key
    }

    /// The registry's file.
    pub(crate) fn registry(&self) -> PathBuf {
        self.setup.folder.join("registry.sqlite")
    }

    /// The folder of the engines' folders.
    pub(crate) fn data_root(&self) -> PathBuf {
        self.setup.folder.join("engines")
    }

    /// The folder of everything.
    pub(crate) fn folder(&self) -> &Path {
        &self.setup.folder
    }

    /// What the orchestrators have said.
    pub(crate) fn log(&self) -> PathBuf {
        self.setup.log()
    }

    /// Starts the orchestrator; with few ports for its engines, or with plenty.
    pub(crate) fn start(&self, few_ports: bool) -> anyhow::Result<Program> {
        let (first, last) = self.ports.bounds();
        let mut setup = self.setup.clone();
        let max = if few_ports { first + FEW } else { last };
        let ports = [("ORCH_PORT_MIN", first + 1), ("ORCH_PORT_MAX", max)];
        setup.variables.extend(ports.map(|(name, port)| (name.to_owned(), port.to_string())));
        setup.start(first)
    }

    /// Starts the orchestrator and waits until it is ready to serve. As whoever runs it would, starts it again
    /// where the one before it still holds what this one needs.
    pub(crate) async fn start_ready(&self, few_ports: bool, http: &Client) -> anyhow::Result<Program> {
        let begin = Instant::now();
        loop {
            let mut program = self.start(few_ports)?;
            match self.ready(&mut program, http).await {
                Ok(()) => return Ok(program),
                Err(error) if begin.elapsed() > START || !is_held(&error.to_string()) => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Whether the last that an orchestrator said is that another one holds what it needs.
    pub(crate) fn was_held(&self) -> bool {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().next_back().is_some_and(is_held)
    }

    async fn ready(&self, program: &mut Program, http: &Client) -> anyhow::Result<()> {
        let begin = Instant::now();
        let url = format!("{}/health", self.base());
        loop {
            let asked = tokio::time::timeout(Duration::from_secs(1), http.get(&url).send()).await;
            if asked.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status() == 200)) {
                return Ok(());
            }
            program.still_runs()?;
            if begin.elapsed() > START {
                bail!("the orchestrator was not ready within {START:?}");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Tells it the id under which its engines are labelled.
    pub(crate) fn is_called(&self, id: String) {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
    }

    /// The processes that carry its label.
    pub(crate) fn engines(&self) -> std::io::Result<Vec<Labelled>> {
        let id = self.id.lock().unwrap_or_else(PoisonError::into_inner).clone();
        id.map_or_else(|| Ok(Vec::new()), |id| labelled(&id))
    }
}

/// Whether an orchestrator could not start because another one holds its address or its registry. One that
/// was killed while it began an engine holds them until that is done: the fork has them too until its exec.
fn is_held(words: &str) -> bool {
    words.contains("Address already in use") || words.contains("is in use")
}

/// How often is looked for engines that were just being started.
const SWEEPS: usize = 200;

impl Drop for Deployment {
    /// Engines outlive their orchestrator: each is ended here, by its own id.
    fn drop(&mut self) {
        for _ in 0..SWEEPS {
            let engines = self.engines().unwrap_or_default();
            if engines.is_empty() {
                return;
            }
            for engine in engines {
                engine.signal(Signal::KILL);
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}
