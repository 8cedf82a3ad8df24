//! Ends the engine again and again, and starts it again on the same brain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::watch;

use crate::api::Asked;
use crate::dice::Dice;
use crate::journal::{OpenTurn, open_turns};
use crate::ports::Ports;
use crate::program::{Program, Setup};
use crate::tally::KILLS;
use crate::task::Task;
use crate::wire::Wire;
use crate::world::{Place, World};

/// How long a moment is waited for before the engine is killed anyhow.
const AIM: Duration = Duration::from_millis(200);
/// The count of turns that were open at a kill, by their last step; the step's name follows.
pub(crate) const STANDING: &str = "open turns killed after ";
/// The count of those of them that had begun a call whose result was missing.
pub(crate) const WITHOUT_RESULT: &str = "open turns with an intent without result";

/// The tasks that are driven now.
pub(crate) type Tasks = Arc<std::sync::Mutex<Vec<std::sync::Weak<Task>>>>;

/// See the module.
pub(crate) struct Killer {
    /// What the run shares.
    pub(crate) world: Arc<World>,
    /// How the engine is started.
    pub(crate) setup: Setup,
    /// Where it may listen.
    pub(crate) ports: Ports,
    /// Where it is announced.
    pub(crate) place: watch::Sender<Option<Place>>,
    /// The tasks whose requests must be listed after a start.
    pub(crate) tasks: Tasks,
    /// The port and the number of the newest engine.
    pub(crate) port: u16,
    /// Counts the engines.
    pub(crate) engines: u64,
    /// What the engine speaks.
    pub(crate) wire: Wire,
    /// The choices.
    pub(crate) dice: Dice,
}

impl Killer {
    /// Starts an engine and announces it once what it must remember has been looked at.
    pub(crate) async fn start(&mut self) -> anyhow::Result<Program> {
        if self.port == 0 || self.dice.chance(0.2) {
            self.port = self.ports.next()?;
        }
        self.engines += 1;
        let mut engine = self.setup.start(self.port)?;
        self.world.trap.watch(engine.handle()?);
        engine.ready().await?;
        self.look_at_pending(&engine.base()).await?;
        self.place.send_replace(Some(Place { base: engine.base(), engine: self.engines }));
        Ok(engine)
    }

    /// Kills and starts the engine until there were `kills`, one of them in an open turn, or `until` says so.
    pub(crate) async fn run(
        &mut self,
        mut engine: Program,
        kills: u64,
        until: impl Fn() -> bool,
    ) -> anyhow::Result<Program> {
        let tally = Arc::clone(&self.world.tally);
        let in_open_turns = self.wire.kills_in_open_turns();
        while (tally.of(KILLS) < kills || tally.of(&in_open_turns) == 0) && !until() {
            let signal = if self.dice.chance(self.world.mix.sigterm) { Signal::TERM } else { Signal::KILL };
            self.strike(signal).await;
            self.place.send_replace(None);
            self.bury(&mut engine, signal).await?;
            while self.dice.chance(self.world.mix.early) {
                self.kill_at_start().await?;
            }
            engine = self.start().await?;
        }
        Ok(engine)
    }

    /// Waits for a moment, by chance or by aim, and sends the signal.
    async fn strike(&mut self, signal: Signal) {
        let trap = &self.world.trap;
        let moments = self.world.mix.moments();
        match self.dice.pick(&moments) {
            Some(moment) if self.dice.chance(0.7) => {
                let at_once = self.dice.chance(0.6);
                trap.arm(moment, at_once.then_some(signal));
                let hit = tokio::time::timeout(AIM, trap.sprung()).await.is_ok();
                self.world.tally.count(if hit { "aims that hit" } else { "aims that missed" });
                if hit && !at_once {
                    let wait = self.dice.millis(0..=3);
                    tokio::time::sleep(wait).await;
                }
            }
            _ => {
                let wait = self.dice.millis(0..=80);
                tokio::time::sleep(wait).await;
            }
        }
        trap.fire(signal);
    }

    /// Sees that the engine ended as it must, and where it left its turns.
    async fn bury(&self, engine: &mut Program, signal: Signal) -> anyhow::Result<()> {
        let begin = Instant::now();
        let status = engine.ended().await?;
        let took = begin.elapsed();
        let brain = self.setup.brain();
        let open = tokio::task::spawn_blocking(move || open_turns(&brain))
            .await?
            .context("the brain after an end")?;
        self.world.stalls.note(&open);
        let tally = &self.world.tally;
        if signal == Signal::TERM {
            tally.count("ends by SIGTERM");
            if !status.success() || took > Duration::from_secs(10) {
                tally.violation(format!("after SIGTERM the engine ended with {status}, in {took:?}"));
            }
            return Ok(());
        }
        if status.code().is_some() {
            tally.violation(format!("the engine ended by itself: {status}"));
        }
        tally.count(KILLS);
        tally.count(if open.is_empty() {
            "kills while no turn was open".to_owned()
        } else {
            self.wire.kills_in_open_turns()
        });
        for OpenTurn { last_step, intents_without_result, .. } in open {
            tally.count(format!("{STANDING}{last_step}"));
            if intents_without_result > 0 {
                tally.count(WITHOUT_RESULT);
            }
        }
        Ok(())
    }

    /// Kills an engine before anyone can talk to it.
    async fn kill_at_start(&mut self) -> anyhow::Result<()> {
        self.engines += 1;
        let mut engine = self.setup.start(self.port)?;
        self.world.trap.watch(engine.handle()?);
        let wait = self.dice.millis(0..=30);
        tokio::time::sleep(wait).await;
        self.world.trap.fire(Signal::KILL);
        self.world.tally.count("kills while the engine started");
        self.bury(&mut engine, Signal::KILL).await
    }

    /// Whether what waits for a person is listed, and nothing else that was answered.
    async fn look_at_pending(&self, base: &str) -> anyhow::Result<()> {
        let mix = &self.world.mix;
        if mix.edit_file + mix.ask_user <= 0.0 {
            return Ok(());
        }
        let tasks: Vec<Arc<Task>> = {
            let mut tasks = self.tasks.lock().map_err(|_| anyhow::anyhow!("a part of the run panicked"))?;
            tasks.retain(|task| task.strong_count() > 0);
            tasks.iter().filter_map(std::sync::Weak::upgrade).collect()
        };
        let waiting: Vec<_> = tasks.iter().map(|task| task.view().must_be_pending().cloned()).collect();
        let tally = &self.world.tally;
        let listed = match self.world.api.get(&format!("{base}/hitl/pending")).await {
            Asked::Answered(200, body) => body,
            other => {
                tally.violation(format!("GET /hitl/pending after a start: {other:?}"));
                return Ok(());
            }
        };
        let entries = listed.get("pending").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let find = |id: &str| {
            entries.iter().find(|entry| entry.get("request_id").and_then(Value::as_str) == Some(id))
        };
        for (task, request) in tasks.iter().zip(waiting) {
            if let Some(request) = request.filter(|request| task.view().must_be_pending() == Some(request)) {
                tally.count("pending requests looked for after a start");
                let entry = find(&request.request_id.to_string());
                if entry.and_then(|entry| entry.get("question")?.as_str()) != Some(request.question.as_str())
                {
                    tally.violation(format!("{} is not listed after a start: {listed}", request.request_id));
                }
            }
            let view = task.view();
            for id in view.promises.answers.keys().filter(|id| find(&id.to_string()).is_some()) {
                tally.violation(format!("{id} was answered and is listed as pending after a start"));
            }
        }
        Ok(())
    }
}
