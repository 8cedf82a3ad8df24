//! One run: an engine, a provider, the load, the kills, and the checks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use mock_llm::MockProvider;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::EngineApi;
use crate::context::RunContext;
use crate::counters::Counters;
use crate::driver::{CheckedTask, digest, drive_tasks};
use crate::file_watcher::FileWatcher;
use crate::journal::{StallTracker, is_intact};
use crate::model_script::ModelScript;
use crate::ports::Ports;
use crate::rng::SeededRng;
use crate::service_process::{Service, ServiceConfig, ServiceProcess};
use crate::stream_reader::replay_uninterrupted;
use crate::supervisor::{KILLED_AFTER_STEP_PREFIX, Supervisor};
use crate::trigger::KillTrigger;
use crate::wire::Wire;
use crate::workload::Workload;

/// How long turns may take to end after the last kill.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(1);
/// How often recorded provider requests are cleared: the provider checks each on arrival, and none is read later.
const CLEAR_REQUESTS_INTERVAL: Duration = Duration::from_secs(1);

/// A run against the engine.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The `roundhouse` binary.
    pub binary: PathBuf,
    /// The seed of all random choices.
    pub seed: u64,
    /// The provider's protocol.
    pub wire: Wire,
    /// How many SIGKILLs; more are sent until one has hit an open turn.
    pub kills: u64,
    /// When to stop killing.
    pub time_limit: Duration,
    /// The probabilities of the load.
    pub workload: Workload,
    /// How many tasks run concurrently.
    pub tasks: u64,
    /// The most turns of a task before it is checked and another one begins.
    pub turns_per_task: u64,
    /// The mutant that breaks a guarantee in the engine: then the first violation ends the run.
    pub mutant: Option<String>,
}

impl Campaign {
    /// Runs the campaign. The engine's faults are counted as violations; an error is the harness's own.
    pub async fn run(&self) -> anyhow::Result<Arc<Counters>> {
        let folder = tempfile::Builder::new().prefix("roundhouse-chaos-").tempdir()?;
        let api = EngineApi::new()?;
        let (counters, trigger) = (Arc::new(Counters::default()), Arc::new(KillTrigger::default()));
        let script =
            Arc::new(ModelScript::new(self.seed, self.workload, Arc::clone(&counters), Arc::clone(&trigger)));
        // Refused requests are counted as violations; a panic would hide them.
        let provider = MockProvider::builder().bind_thinking(true).panic_on_refusals(false).start().await?;
        let respond = Arc::clone(&script);
        provider.set_responder(move |request| respond.reply(request));
        let config = self.service_config(folder.path().to_owned(), &api, &provider)?;
        let watcher = FileWatcher::start(&config.workspace(), Arc::clone(&trigger))?;
        let (endpoint_sender, endpoint) = watch::channel(None);
        let (settle, settling) = watch::channel(false);
        let context = Arc::new(RunContext {
            seed: self.seed,
            workload: self.workload,
            api,
            counters: Arc::clone(&counters),
            trigger,
            stalls: StallTracker::default(),
            script,
            workspace: config.workspace(),
            endpoint,
            settling,
            deadline: Instant::now() + self.time_limit + SETTLE_TIMEOUT,
        });
        // An event that never happens shows as 0 in the table.
        for step in self.workload.expected_steps() {
            counters.add(format!("{KILLED_AFTER_STEP_PREFIX}{step}"), 0);
        }
        counters.add(self.wire.kills_in_open_turns(), 0);
        let tasks = Arc::new(Mutex::new(Vec::new()));
        let mut supervisor = Supervisor {
            context: Arc::clone(&context),
            service_config: config.clone(),
            ports: Ports::claim()?,
            endpoint: endpoint_sender,
            tasks: Arc::clone(&tasks),
            port: 0,
            engine_count: 0,
            wire: self.wire,
            rng: SeededRng::new(self.seed, "killer"),
        };
        let clearing = async {
            loop {
                tokio::time::sleep(CLEAR_REQUESTS_INTERVAL).await;
                provider.clear_requests();
            }
        };
        let running = async {
            let engine = supervisor.start().await?;
            let mut drivers = JoinSet::new();
            for number in 0..self.tasks {
                drivers.spawn(drive_tasks(
                    Arc::clone(&context),
                    Arc::clone(&tasks),
                    format!("t{number}"),
                    self.turns_per_task,
                ));
            }
            let end = Instant::now() + self.time_limit;
            let until =
                || Instant::now() > end || (self.mutant.is_some() && counters.kills_until_first().is_some());
            let engine = supervisor.run(engine, self.kills, until).await?;
            settle.send_replace(true);
            let retired = self.settle(&context, drivers).await?;
            finish(&context, &config, engine, &retired).await
        };
        tokio::select! {
            outcome = running => outcome?,
            () = clearing => {}
        }
        drop(watcher);
        for refusal in provider.take_refusals() {
            counters.record_violation(format!(
                "the provider refused a request: {} {}",
                refusal.status, refusal.reason
            ));
        }
        Ok(counters)
    }

    fn service_config(
        &self,
        folder: PathBuf,
        api: &EngineApi,
        provider: &MockProvider,
    ) -> anyhow::Result<ServiceConfig> {
        let catalog = folder.join("catalog");
        std::fs::create_dir(&catalog)?;
        if let Some(gateway) = self.wire.gateway_config() {
            std::fs::write(catalog.join("gateway.json"), gateway.to_string())?;
        }
        let text = |path: &std::path::Path| {
            path.to_str().map(str::to_owned).context("the path of a temporary folder is not UTF-8")
        };
        let mut variables: BTreeMap<String, String> = [
            ("ENGINE_KEY_HASH", api.key_hash()),
            ("SQLITE_DB_PATH", text(&folder.join("brain.sqlite"))?),
            ("CATALOG_DIR", text(&catalog)?),
            ("ENGINE_HOST", "127.0.0.1".to_owned()),
            ("ENGINE_LOG_LEVEL", "warn".to_owned()),
        ]
        .into_iter()
        .chain(self.wire.env_vars(provider))
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        if let Some(mutant) = &self.mutant {
            variables.insert("ROUNDHOUSE_MUTANT".to_owned(), mutant.clone());
        }
        let config =
            ServiceConfig { binary: self.binary.clone(), service: Service::Engine, folder, env: variables };
        std::fs::create_dir(config.workspace())?;
        std::fs::write(config.workspace().join("note.txt"), "A note.\n")?;
        Ok(config)
    }

    /// Waits until every driver has seen its last turn end.
    async fn settle(
        &self,
        context: &RunContext,
        mut drivers: JoinSet<anyhow::Result<Vec<CheckedTask>>>,
    ) -> anyhow::Result<Vec<CheckedTask>> {
        let mut retired = Vec::new();
        let all = async {
            while let Some(driver) = drivers.join_next().await {
                retired.extend(driver.context("a driver panicked")??);
            }
            anyhow::Ok(())
        };
        // A mutant may leave a turn that never ends, and has been caught by then.
        let timeout = if self.mutant.is_some() { Duration::from_secs(3) } else { SETTLE_TIMEOUT };
        match tokio::time::timeout(timeout, all).await {
            Ok(outcome) => outcome?,
            Err(_) => {
                context
                    .counters
                    .record_violation(format!("turns did not end within {timeout:?} after the last kill"));
            }
        }
        Ok(retired)
    }
}

/// Checks everything once more, and stops the engine gracefully.
async fn finish(
    context: &RunContext,
    config: &ServiceConfig,
    mut engine: ServiceProcess,
    retired: &[CheckedTask],
) -> anyhow::Result<()> {
    for CheckedTask { task, digest: before } in retired {
        match replay_uninterrupted(context, task).await {
            Some(events) if digest(&events) == *before => {}
            Some(_) => {
                context
                    .counters
                    .record_violation(format!("{}: its events changed after it was checked", task.name));
            }
            None if context.is_over() => break,
            None => context.counters.record_violation(format!("{}: its events are gone", task.name)),
        }
    }
    context.trigger.fire(Signal::TERM);
    let status = engine.wait_exit().await?;
    if !status.success() {
        context.counters.record_violation(format!("after SIGTERM the engine exited with {status}"));
    }
    if !is_intact(&config.brain())? {
        context.counters.record_violation("the brain is damaged");
    }
    let log = std::fs::read_to_string(config.log()).unwrap_or_default();
    for line in log.lines().filter(|line| line.contains("panicked")) {
        context.counters.record_violation(format!("the engine's log contains: {line}"));
    }
    for line in log.lines().filter(|line| line.contains("ERROR")) {
        context.counters.count(format!(
            "engine's errors: {}",
            line.split_whitespace().skip(2).take(10).collect::<Vec<_>>().join(" ")
        ));
    }
    Ok(())
}
