//! The rounds of a run: load, kill, look, start, settle, judge. The kill itself is in `strike`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;

use super::aim::{Aimer, Plan, hits};
use super::deployment::Deployment;
use super::judge::{SETTLE, promises, quotas, settle};
use super::ledger::Ledger;
use super::registry::{Audit, Seen, Sight};
use super::running::{Backend, Blow, Running};
use super::world::World;
use super::wreck::{Scene, look, phases_of};
use super::{FleetCampaign, ROUNDS};
use crate::dice::Dice;
use crate::program::Program;
use crate::tally::KILLS;

/// How many times as long as with processes everything takes with containers.
const SLOW: u32 = 10;
/// Who breaks a guarantee is caught sooner.
const SABOTAGED: Duration = Duration::from_secs(10);
/// After so many violations nothing new is learned.
const ENOUGH: usize = 20;
/// How often the files are searched for keys, in rounds.
const SEARCH: u64 = 100;

/// See the module.
pub(crate) struct Rounds {
    pub(super) world: Arc<World>,
    pub(super) deployment: Arc<Deployment>,
    rounds: u64,
    limit: Duration,
    pub(super) sabotaged: bool,
    ledger: Ledger,
    /// The ledger's rows of the round.
    audit: Vec<Audit>,
    /// The engines that ran, and that nothing was done to, when the orchestrator was killed: their processes.
    bystanders: BTreeMap<String, String>,
    aimer: Aimer,
    pub(super) dice: Dice,
    /// How many times as long as with processes everything takes.
    pub(super) pace: u32,
    /// How many ask at once.
    pub(super) clients: usize,
    pub(super) round: u64,
    kills_in_round: u64,
    /// What the round did, for those who read of a violation.
    pub(super) story: String,
    reported: usize,
}

impl Rounds {
    pub(crate) fn new(campaign: &FleetCampaign, world: Arc<World>, deployment: Arc<Deployment>) -> Self {
        let pace = if campaign.backend == Backend::Docker { SLOW } else { 1 };
        Self {
            world,
            deployment,
            rounds: campaign.rounds,
            limit: campaign.limit,
            sabotaged: campaign.saboteur.is_some(),
            ledger: Ledger::default(),
            audit: Vec::new(),
            bystanders: BTreeMap::new(),
            aimer: Aimer::new(campaign.seed, pace.into()),
            dice: Dice::new(campaign.seed, "rounds"),
            pace,
            clients: campaign.clients(),
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
        world.troubled.store(false, Ordering::Relaxed);
        self.kills_in_round = 0;
        let plan = self.aimer.plan(&world.tally, world.extent);
        self.story = format!("seed {}, round {}, {plan:?}", world.seed, self.round);
        world.trap.watch(program.handle()?);
        self.strike(&plan).await?;
        self.bury(&mut program, &plan).await?;
        if plan.kind() == Some("restart") || self.dice.chance(0.1) {
            self.disturb(Blow::Kill, 3)?;
        }
        let few_ports = self.dice.chance(0.25);
        if plan.kind() == Some("restart") && self.world.is_disturbed() {
            program = self.deployment.start(few_ports)?;
            world.trap.watch(program.handle()?);
            self.when(Sight::Claim("restart"), self.own(), plan.delay).await?;
            self.bury(&mut program, &plan).await?;
        }
        while self.dice.chance(0.1) {
            program = self.deployment.start(few_ports)?;
            world.trap.watch(program.handle()?);
            let wait = self.dice.millis(0..=60) * self.pace.min(2);
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
        self.deployment.registry().is_left().await?;
        let scene = look(&self.deployment, &self.seen()).await?;
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
        let running = scene.running.iter().filter(|running| idle.contains(running.engine_id.as_str()));
        let running = running.map(|running| (running.engine_id.clone(), running.instance.clone()));
        if self.kills_in_round == 0 {
            self.bystanders = running.collect();
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
        let is_same = |engine_id: &String, instance: &String| {
            let same = |running: &Running| running.engine_id == *engine_id && running.instance == *instance;
            scene.running.iter().any(|running| running.is_alive && same(running))
        };
        let slept = |engine_id: &String| {
            let rows = self.audit.iter().rev().chain(&scene.registry.audit);
            rows.filter(|row| row.engine_id.as_ref() == Some(engine_id)).any(|row| row.event == "sleep")
        };
        let harmed = bystanders
            .iter()
            .filter(|(engine_id, instance)| !is_same(engine_id, instance) && !slept(engine_id));
        harmed
            .map(|(engine_id, instance)| format!("{engine_id} ran as {instance}, and was not left alone"))
            .collect()
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
        let scene = settle(&self.world, &self.deployment, &self.seen(), (patience, false)).await?;
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
        let deployment = Arc::clone(&self.deployment);
        let found = tokio::task::spawn_blocking(move || deployment.leaks(&secrets)).await??;
        self.report(found);
        Ok(())
    }

    /// Looks at everything once more, and lets the orchestrator end in peace.
    async fn finish(&mut self, mut program: Program) -> anyhow::Result<()> {
        self.story = format!("seed {}, at the end", self.world.seed);
        if !self.sabotaged {
            let scene = settle(&self.world, &self.deployment, &self.seen(), (SETTLE, true)).await?;
            self.read(scene);
        }
        self.world.trap.watch(program.handle()?);
        self.world.trap.fire(Signal::TERM);
        let status = program.ended().await?;
        if !status.success() {
            self.report(vec![format!("after SIGTERM the orchestrator ended with {status}")]);
        }
        if !self.sabotaged {
            // What was read row by row is read again: nothing was changed since.
            let whole = self.deployment.registry().snapshot(&Seen::new()).await?;
            self.world.tally.add("rows of the ledger", whole.audit.len() as u64);
            let faults = Ledger::default().read(&whole);
            self.report(faults);
            self.search().await?;
        }
        let log = std::fs::read_to_string(self.deployment.log()).unwrap_or_default();
        let panics = log.lines().filter(|line| line.contains("panicked"));
        self.report(panics.map(|line| format!("the orchestrator's log says: {line}")).collect());
        for line in log.lines().filter(|line| line.contains("ERROR")) {
            // Without the time, and without the request that it was in.
            let said = line.rsplit_once("}: ").map_or(line, |(_, said)| said);
            let words: Vec<&str> =
                said.split_whitespace().skip_while(|word| !word.contains("::")).take(9).collect();
            self.world.tally.count(format!("its errors: {}", words.join(" ")));
        }
        Ok(())
    }
}
