//! Kills the engine again and again, and restarts it on the same brain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::watch;

use crate::client::CallOutcome;
use crate::context::{EngineEndpoint, RunContext};
use crate::counters::KILLS;
use crate::journal::{OpenTurn, open_turns};
use crate::ports::Ports;
use crate::rng::SeededRng;
use crate::service_process::{ServiceConfig, ServiceProcess};
use crate::task::TrackedTask;
use crate::wire::Wire;

/// How long to wait for the armed event before killing the engine anyway.
const TRIGGER_TIMEOUT: Duration = Duration::from_millis(200);
/// The prefix of the counts of turns that were open at a kill; the name of their last step follows.
pub(crate) const KILLED_AFTER_STEP_PREFIX: &str = "open turns killed after ";
/// The count of those turns that had started a call whose result was missing.
pub(crate) const KILLED_WITHOUT_RESULT: &str = "open turns with an intent without result";

/// The tasks that are being driven.
pub(crate) type ActiveTasks = Arc<std::sync::Mutex<Vec<std::sync::Weak<TrackedTask>>>>;

/// Kills and restarts the engine of a run.
pub(crate) struct Supervisor {
    /// The run's shared state.
    pub(crate) context: Arc<RunContext>,
    /// How the engine is started.
    pub(crate) service_config: ServiceConfig,
    /// Where it may listen.
    pub(crate) ports: Ports,
    /// Where the running engine is announced.
    pub(crate) endpoint: watch::Sender<Option<EngineEndpoint>>,
    /// The tasks whose pending requests must be listed after a start.
    pub(crate) tasks: ActiveTasks,
    /// The port of the newest engine.
    pub(crate) port: u16,
    /// The number of engines started.
    pub(crate) engine_count: u64,
    /// The provider's protocol.
    pub(crate) wire: Wire,
    /// The source of random choices.
    pub(crate) rng: SeededRng,
}

impl Supervisor {
    /// Starts an engine, and announces it once the pending requests that it must list have been checked.
    pub(crate) async fn start(&mut self) -> anyhow::Result<ServiceProcess> {
        if self.port == 0 || self.rng.chance(0.2) {
            self.port = self.ports.next()?;
        }
        self.engine_count += 1;
        let mut engine = self.service_config.start(self.port)?;
        self.context.trigger.set_target(engine.pidfd()?);
        engine.wait_ready().await?;
        self.check_pending(&engine.base_url()).await?;
        self.endpoint.send_replace(Some(EngineEndpoint {
            base_url: engine.base_url(),
            engine_number: self.engine_count,
        }));
        Ok(engine)
    }

    /// Kills and starts the engine until there were `kills`, one of them in an open turn, or `until` says so.
    pub(crate) async fn run(
        &mut self,
        mut engine: ServiceProcess,
        kills: u64,
        until: impl Fn() -> bool,
    ) -> anyhow::Result<ServiceProcess> {
        let counters = Arc::clone(&self.context.counters);
        let in_open_turns = self.wire.kills_in_open_turns();
        while (counters.get(KILLS) < kills || counters.get(&in_open_turns) == 0) && !until() {
            let signal =
                if self.rng.chance(self.context.workload.sigterm) { Signal::TERM } else { Signal::KILL };
            self.kill_at_trigger(signal).await;
            self.endpoint.send_replace(None);
            self.verify_exit(&mut engine, signal).await?;
            while self.rng.chance(self.context.workload.kill_at_start) {
                self.kill_at_start().await?;
            }
            engine = self.start().await?;
        }
        Ok(engine)
    }

    /// Waits for a random time or an event, and sends the signal.
    async fn kill_at_trigger(&mut self, signal: Signal) {
        let trigger = &self.context.trigger;
        let trigger_events = self.context.workload.trigger_events();
        match self.rng.pick(&trigger_events) {
            Some(trigger_event) if self.rng.chance(0.7) => {
                let immediately = self.rng.chance(0.6);
                trigger.arm(trigger_event, immediately.then_some(signal));
                let hit = tokio::time::timeout(TRIGGER_TIMEOUT, trigger.wait_fired()).await.is_ok();
                self.context.counters.count(if hit { "aims that hit" } else { "aims that missed" });
                if hit && !immediately {
                    let wait = self.rng.millis(0..=3);
                    tokio::time::sleep(wait).await;
                }
            }
            _ => {
                let wait = self.rng.millis(0..=80);
                tokio::time::sleep(wait).await;
            }
        }
        trigger.fire(signal);
    }

    /// Verifies that the engine exited as it must, and records where it left its turns.
    async fn verify_exit(&self, engine: &mut ServiceProcess, signal: Signal) -> anyhow::Result<()> {
        let begin = Instant::now();
        let status = engine.wait_exit().await?;
        let took = begin.elapsed();
        let brain = self.service_config.brain();
        let open = tokio::task::spawn_blocking(move || open_turns(&brain))
            .await?
            .context("the brain cannot be read after the engine's exit")?;
        self.context.stalls.record(&open);
        let counters = &self.context.counters;
        if signal == Signal::TERM {
            counters.count("ends by SIGTERM");
            if !status.success() || took > Duration::from_secs(10) {
                counters.record_violation(format!(
                    "after SIGTERM the engine exited with {status} after {took:?}"
                ));
            }
            return Ok(());
        }
        if status.code().is_some() {
            counters.record_violation(format!("the engine exited by itself: {status}"));
        }
        counters.count(KILLS);
        counters.count(if open.is_empty() {
            "kills while no turn was open".to_owned()
        } else {
            self.wire.kills_in_open_turns()
        });
        for OpenTurn { last_step, intents_without_result, .. } in open {
            counters.count(format!("{KILLED_AFTER_STEP_PREFIX}{last_step}"));
            if intents_without_result > 0 {
                counters.count(KILLED_WITHOUT_RESULT);
            }
        }
        Ok(())
    }

    /// Kills an engine before any client can call it.
    async fn kill_at_start(&mut self) -> anyhow::Result<()> {
        self.engine_count += 1;
        let mut engine = self.service_config.start(self.port)?;
        self.context.trigger.set_target(engine.pidfd()?);
        let wait = self.rng.millis(0..=30);
        tokio::time::sleep(wait).await;
        self.context.trigger.fire(Signal::KILL);
        self.context.counters.count("kills while the engine started");
        self.verify_exit(&mut engine, Signal::KILL).await
    }

    /// Checks that every pending request is listed, and none that was answered.
    async fn check_pending(&self, base_url: &str) -> anyhow::Result<()> {
        let workload = &self.context.workload;
        if workload.edit_file + workload.ask_user <= 0.0 {
            return Ok(());
        }
        let tasks: Vec<Arc<TrackedTask>> = {
            let mut tasks = self.tasks.lock().map_err(|_| anyhow::anyhow!("a task of the run panicked"))?;
            tasks.retain(|task| task.strong_count() > 0);
            tasks.iter().filter_map(std::sync::Weak::upgrade).collect()
        };
        let waiting: Vec<_> = tasks.iter().map(|task| task.view().expected_pending().cloned()).collect();
        let counters = &self.context.counters;
        let listed = match self.context.api.get(&format!("{base_url}/hitl/pending")).await {
            CallOutcome::Response(200, body) => body,
            other => {
                counters.record_violation(format!("GET /hitl/pending after a start: {other:?}"));
                return Ok(());
            }
        };
        let entries = listed.get("pending").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let find = |id: &str| {
            entries.iter().find(|entry| entry.get("request_id").and_then(Value::as_str) == Some(id))
        };
        for (task, request) in tasks.iter().zip(waiting) {
            if let Some(request) = request.filter(|request| task.view().expected_pending() == Some(request)) {
                counters.count("pending requests looked for after a start");
                let entry = find(&request.request_id.to_string());
                if entry.and_then(|entry| entry.get("question")?.as_str()) != Some(request.question.as_str())
                {
                    counters.record_violation(format!(
                        "{} is not listed after a start: {listed}",
                        request.request_id
                    ));
                }
            }
            let view = task.view();
            for id in view.acknowledged.answers.keys().filter(|id| find(&id.to_string()).is_some()) {
                counters
                    .record_violation(format!("{id} was answered but is listed as pending after a start"));
            }
        }
        Ok(())
    }
}
