//! The rounds of a run: load, kill, look, start, settle, judge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal};
use tokio::task::JoinSet;

use super::aim::{Aimer, Moment, Plan, hits};
use super::deployment::Deployment;
use super::judge::{SETTLE, promises, quotas, settle};
use super::ledger::Ledger;
use super::load::{Load, client};
use super::registry::{Audit, Seen, Sight, snapshot, watch};
use super::secrets::leaks;
use super::stage;
use super::world::World;
use super::wreck::{Scene, look, phases_of};
use super::{CLIENTS, FleetCampaign, ROUNDS};
use crate::dice::Dice;
use crate::program::Program;
use crate::tally::KILLS;

/// How long a call is waited for before the orchestrator is killed anyhow.
const AIM: Duration = Duration::from_millis(150);
/// How long a change of the orchestrator's own is waited for.
const OWN: Duration = Duration::from_millis(1_500);
/// Who breaks a guarantee is caught sooner.
const SABOTAGED: Duration = Duration::from_secs(10);
/// After so many violations nothing new is learned.
const ENOUGH: usize = 20;
/// How often the files are searched for keys, in rounds.
const SEARCH: u64 = 100;

/// See the module.
pub(crate) struct Rounds {
    world: Arc<World>,
    deployment: Arc<Deployment>,
    rounds: u64,
    limit: Duration,
    sabotaged: bool,
    ledger: Ledger,
    /// The ledger's rows of the round.
    audit: Vec<Audit>,
    /// The engines that ran, and that nothing was done to, when the orchestrator was killed: their processes.
    bystanders: BTreeMap<String, Pid>,
    aimer: Aimer,
    dice: Dice,
    round: u64,
    kills_in_round: u64,
    /// What the round did, for those who read of a violation.
    story: String,
    reported: usize,
}

impl Rounds {
    pub(crate) fn new(campaign: &FleetCampaign, world: Arc<World>, deployment: Arc<Deployment>) -> Self {
        Self {
            world,
            deployment,
            rounds: campaign.rounds,
            limit: campaign.limit,
            sabotaged: campaign.saboteur.is_some(),
            ledger: Ledger::default(),
            audit: Vec::new(),
            bystanders: BTreeMap::new(),
            aimer: Aimer::new(campaign.seed),
            dice: Dice::new(campaign.seed, "rounds"),
            round: 0,
            kills_in_round: 0,
            story: String::new(),
            reported: 0,
        }
    }

    /// All rounds, and the end.
    pub(crate) async fn run(&mut self, program: Program) -> anyhow::Result<()> {
        let begin = Instant::now();
        let mut program = program;
        while self.round < self.rounds && begin.elapsed() < self.limit {
            self.round += 1;
            program = self.one(program).await.with_context(|| format!("round {}", self.round))?;
            let violations = self.world.tally.violations().len();
            if violations > ENOUGH || (self.sabotaged && violations > 0) {
                break;
            }
        }
        self.finish(program).await
    }

    async fn one(&mut self, mut program: Program) -> anyhow::Result<Program> {
        let world = Arc::clone(&self.world);
        world.tally.count(ROUNDS);
        world.disturbed.store(false, Ordering::Relaxed);
        self.kills_in_round = 0;
        let plan = self.aimer.plan(&world.tally, world.extent);
        self.story = format!("seed {}, round {}, {plan:?}", world.seed, self.round);
        world.trap.watch(program.handle()?);
        self.strike(&plan).await?;
        self.bury(&mut program, &plan).await?;
        if plan.kind() == Some("restart") || self.dice.chance(0.1) {
            self.disturb(Signal::KILL, 3)?;
        }
        let few_ports = self.dice.chance(0.25);
        if plan.kind() == Some("restart") && self.world.is_disturbed() {
            program = self.deployment.start(few_ports)?;
            world.trap.watch(program.handle()?);
            self.when(Sight::Claim("restart"), OWN, plan.delay).await?;
            self.bury(&mut program, &plan).await?;
        }
        while self.dice.chance(0.1) {
            program = self.deployment.start(few_ports)?;
            world.trap.watch(program.handle()?);
            let wait = self.dice.millis(0..=60);
            tokio::time::sleep(wait).await;
            world.trap.fire(Signal::KILL);
            world.tally.count("kills while it started");
            self.bury(&mut program, &plan).await?;
        }
        program = self.deployment.start_ready(few_ports, &world.http).await?;
        self.judge().await?;
        if self.round.is_multiple_of(SEARCH) {
            self.search().await?;
        }
        Ok(program)
    }

    /// Lets the clients ask, and kills the orchestrator as planned.
    async fn strike(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let over = Arc::new(AtomicBool::new(false));
        let spare_sleepy = plan.kind() == Some("sleep") || self.dice.chance(0.2);
        let load = Load { prefer: plan.kind(), spare_sleepy, over: Arc::clone(&over) };
        if let Some(kind) = plan.kind()
            && self.dice.chance(0.8)
        {
            stage::set(&self.world, kind, &mut self.dice).await;
        }
        if plan.kind() == Some("wake") {
            self.until(Sight::Rest("sleeping"), OWN).await?;
        }
        let clients = if plan.kind() == Some("restart") { 0 } else { CLIENTS };
        let mut asking = JoinSet::new();
        for number in 0..clients {
            let dice = Dice::new(self.world.seed, (self.round, number));
            asking.spawn(client(Arc::clone(&self.world), load.clone(), number, dice));
        }
        // There must be something to lose.
        if self.dice.chance(0.6) {
            let wait = self.dice.millis(0..=150);
            tokio::time::sleep(wait).await;
        }
        if self.dice.chance(0.1) {
            self.disturb(Signal::KILL, 1)?;
        } else if self.world.extent.supervised && !self.sabotaged && self.dice.chance(0.01) {
            self.disturb(Signal::STOP, 1)?;
        }
        match plan.moment {
            Moment::Claimed("restart") => {}
            Moment::Claimed(kind) => {
                let limit = if kind == "sleep" { OWN } else { AIM };
                self.when(Sight::Claim(kind), limit, plan.delay).await?;
            }
            Moment::Sent(op) => {
                self.world.trap.arm(op, None);
                let _ = tokio::time::timeout(AIM, self.world.trap.sprung()).await;
                self.fire_after(plan.delay).await?;
            }
            Moment::Begun => self.fire_after(plan.delay).await?,
        }
        self.world.trap.fire(Signal::KILL);
        over.store(true, Ordering::Relaxed);
        while let Some(client) = asking.join_next().await {
            client.context("a client panicked")?;
        }
        Ok(())
    }

    /// Kills the orchestrator `delay` after the registry shows `sight`, or once `limit` is over.
    async fn when(&self, sight: Sight, limit: Duration, delay: Duration) -> anyhow::Result<()> {
        let (registry, world) = (self.deployment.registry(), Arc::clone(&self.world));
        tokio::task::spawn_blocking(move || {
            // A registry that cannot be read now is looked at after the kill.
            let _ = watch(&registry, sight, limit);
            std::thread::park_timeout(delay);
            world.trap.fire(Signal::KILL);
        })
        .await?;
        Ok(())
    }

    /// Waits until the registry shows `sight`, at most for `limit`.
    async fn until(&self, sight: Sight, limit: Duration) -> anyhow::Result<()> {
        let registry = self.deployment.registry();
        tokio::task::spawn_blocking(move || watch(&registry, sight, limit)).await??;
        Ok(())
    }

    /// Kills the orchestrator after `delay`, more exactly than the runtime's clock would.
    async fn fire_after(&self, delay: Duration) -> anyhow::Result<()> {
        let world = Arc::clone(&self.world);
        tokio::task::spawn_blocking(move || {
            std::thread::park_timeout(delay);
            world.trap.fire(Signal::KILL);
        })
        .await?;
        Ok(())
    }

    /// Sends `signal` to some engines behind the orchestrator's back.
    fn disturb(&mut self, signal: Signal, most: u64) -> anyhow::Result<()> {
        let engines = self.deployment.engines()?;
        for _ in 0..self.dice.between(1..=most) {
            if let Some(engine) = self.dice.pick(&engines) {
                self.world.disturbed.store(true, Ordering::Relaxed);
                engine.signal(signal);
                self.world.tally.count(format!("engines sent {}", name(signal)));
                self.story = format!("{}; sent {} to {}", self.story, name(signal), engine.engine_id);
            }
        }
        Ok(())
    }

    /// Waits for the orchestrator's end, and sees what it leaves.
    async fn bury(&mut self, program: &mut Program, plan: &Plan) -> anyhow::Result<()> {
        let status = program.ended().await?;
        if status.code().is_some() && self.deployment.was_held() {
            self.world.tally.count("starts that came too soon");
            return Ok(());
        }
        if status.code().is_some() {
            self.world.tally.violation(format!("the orchestrator ended by itself: {status}"));
        }
        self.world.tally.count(KILLS);
        let scene = self.look().await?;
        let phases = phases_of(&self.world, &scene).await;
        self.story = format!("{}; killed in {phases:?}", self.story);
        if phases.is_empty() {
            self.world.tally.count("kills while nothing was under way");
        }
        for phase in &phases {
            self.world.tally.count(hits(*phase));
        }
        self.aimer.learn(plan, &phases);
        self.note_bystanders(&scene);
        self.read(scene);
        Ok(())
    }

    /// After several kills in a row only those are left that nothing was done to at any of them.
    fn note_bystanders(&mut self, scene: &Scene) {
        let idle = scene.registry.engines.iter().filter(|row| row.status == "running" && row.claim.is_none());
        let idle: BTreeSet<&str> = idle.map(|row| row.engine_id.as_str()).collect();
        let processes = scene.processes.iter().filter(|process| idle.contains(process.engine_id.as_str()));
        let processes = processes.map(|process| (process.engine_id.clone(), process.pid));
        if self.kills_in_round == 0 {
            self.bystanders = processes.collect();
        } else {
            self.bystanders.retain(|engine_id, _| idle.contains(engine_id.as_str()));
        }
        self.kills_in_round += 1;
    }

    /// Bystanders that the restart harmed.
    fn harmed(&self, scene: &Scene) -> Vec<String> {
        let bystanders = &self.bystanders;
        if self.world.is_disturbed() {
            return Vec::new();
        }
        let is_same = |engine_id: &String, pid: Pid| {
            scene.processes.iter().any(|process| process.engine_id == *engine_id && process.pid == pid)
        };
        let slept = |engine_id: &String| {
            let rows = self.audit.iter().rev().chain(&scene.registry.audit);
            rows.filter(|row| row.engine_id.as_ref() == Some(engine_id)).any(|row| row.event == "sleep")
        };
        let harmed =
            bystanders.iter().filter(|(engine_id, pid)| !is_same(engine_id, **pid) && !slept(engine_id));
        harmed.map(|(engine_id, pid)| format!("{engine_id} ran as {pid:?}, and was not left alone")).collect()
    }

    async fn look(&self) -> anyhow::Result<Scene> {
        let (deployment, seen) = (Arc::clone(&self.deployment), self.seen());
        tokio::task::spawn_blocking(move || look(&deployment, &seen)).await?
    }

    fn seen(&self) -> Seen {
        self.ledger.seen()
    }

    /// Applies the rules that hold at every moment.
    fn read(&mut self, scene: Scene) {
        let faults = self.ledger.read(&scene.registry);
        self.audit.extend(scene.registry.audit);
        self.report(faults);
        self.report(quotas(&self.world, &scene.registry.engines));
    }

    fn report(&mut self, faults: Vec<String>) {
        for fault in faults {
            self.world.tally.violation(fault);
        }
        // Where it was found, once for all that was found together.
        let count = self.world.tally.violations().len();
        if count > self.reported {
            self.world.tally.violation(format!("^ {}", self.story));
            self.reported = self.world.tally.violations().len();
        }
    }

    /// Waits until everything has settled after a start, and applies all rules.
    async fn judge(&mut self) -> anyhow::Result<()> {
        let patience = if self.sabotaged { SABOTAGED } else { SETTLE };
        let scene = settle(&self.world, &self.deployment, &self.seen(), patience).await?;
        let engines = scene.registry.engines.clone();
        let harmed = self.harmed(&scene);
        self.world.tally.add("engines left alone by a restart", self.bystanders.len() as u64);
        self.read(scene);
        self.report(harmed);
        let (calls, audit) = (self.world.take_calls(), std::mem::take(&mut self.audit));
        let faults = promises(&self.world, &calls, &audit, &engines);
        self.report(faults);
        Ok(())
    }

    async fn search(&mut self) -> anyhow::Result<()> {
        let mut secrets = self.world.keys.all();
        secrets.extend(self.world.tenants.iter().map(|tenant| tenant.key.clone()));
        secrets.extend(self.deployment.secrets.clone());
        let folder = self.deployment.folder().to_owned();
        let found = tokio::task::spawn_blocking(move || leaks(&folder, &secrets)).await??;
        self.report(found);
        Ok(())
    }

    /// Looks at everything once more, and lets the orchestrator end in peace.
    async fn finish(&mut self, mut program: Program) -> anyhow::Result<()> {
        self.story = format!("seed {}, at the end", self.world.seed);
        self.world.trap.watch(program.handle()?);
        self.world.trap.fire(Signal::TERM);
        let status = program.ended().await?;
        if !status.success() {
            self.report(vec![format!("after SIGTERM the orchestrator ended with {status}")]);
        }
        if !self.sabotaged {
            // What was read row by row is read again: nothing was changed since.
            let registry = self.deployment.registry();
            let whole = tokio::task::spawn_blocking(move || snapshot(&registry, &Seen::new())).await??;
            self.world.tally.add("rows of the ledger", whole.audit.len() as u64);
            let faults = Ledger::default().read(&whole);
            self.report(faults);
            self.search().await?;
        }
        let log = std::fs::read_to_string(self.deployment.log()).unwrap_or_default();
        let panics = log.lines().filter(|line| line.contains("panicked"));
        self.report(panics.map(|line| format!("the orchestrator's log says: {line}")).collect());
        for line in log.lines().filter(|line| line.contains("ERROR")) {
            let words: Vec<&str> = line.split_whitespace().skip(2).take(9).collect();
            self.world.tally.count(format!("its errors: {}", words.join(" ")));
        }
        Ok(())
    }
}

fn name(signal: Signal) -> &'static str {
    if signal == Signal::STOP { "SIGSTOP" } else { "SIGKILL" }
}
