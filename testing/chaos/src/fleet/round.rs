//! The rounds of a run: load, kill, inspect, start, settle, check. The kill itself is in `kill`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;

use super::aftermath::{FleetSnapshot, capture, phases_hit};
use super::audit_log::AuditLogChecker;
use super::checker::{SETTLE_TIMEOUT, check_acknowledged, check_quotas, settle};
use super::context::FleetContext;
use super::deployment::Deployment;
use super::engine_host::{EngineFault, EngineInstance};
use super::pods::Pods;
use super::registry::{AuditCursor, AuditRow, RegistryCondition};
use super::schedule::{KillPlan, KillScheduler, hit_counter_name};
use super::{FleetCampaign, PODS_WATCHED, ROUNDS};
use crate::counters::KILLS;
use crate::rng::SeededRng;
use crate::service_process::ServiceProcess;

/// Nodes and controllers of a cluster that was injured notice what changed meanwhile after a while.
const INJURED_SETTLE_TIMEOUT: Duration = Duration::from_mins(3);
/// A mutant is caught sooner.
const MUTANT_SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// After so many violations nothing new is learned.
const MAX_VIOLATIONS: usize = 20;
/// How often the files are searched for keys, in rounds.
const SECRET_SCAN_INTERVAL_ROUNDS: u64 = 100;

/// Runs the rounds of a campaign.
pub(crate) struct RoundRunner {
    pub(super) context: Arc<FleetContext>,
    pub(super) deployment: Arc<Deployment>,
    rounds: u64,
    time_limit: Duration,
    pub(super) is_mutated: bool,
    audit_log: AuditLogChecker,
    /// The audit log's rows of the round.
    round_audit_rows: Vec<AuditRow>,
    /// Engines that were running and untouched when the orchestrator was killed, with their processes.
    bystanders: BTreeMap<String, String>,
    scheduler: KillScheduler,
    pub(super) rng: SeededRng,
    /// How many times as long as with processes everything takes.
    pub(super) time_scale: u32,
    /// How many ask at once.
    pub(super) client_count: usize,
    /// Whether the cluster of the engines is injured, too.
    pub(super) cluster_faults: bool,
    pub(super) round: u64,
    kills_in_round: u64,
    /// What the round did, for those who read of a violation.
    pub(super) history: String,
    reported_count: usize,
}

impl RoundRunner {
    pub(crate) fn new(
        campaign: &FleetCampaign,
        context: Arc<FleetContext>,
        deployment: Arc<Deployment>,
    ) -> Self {
        let time_scale = campaign.backend.time_scale();
        Self {
            context,
            deployment,
            rounds: campaign.rounds,
            time_limit: campaign.time_limit,
            is_mutated: campaign.mutant.is_some(),
            audit_log: AuditLogChecker::default(),
            round_audit_rows: Vec::new(),
            bystanders: BTreeMap::new(),
            scheduler: KillScheduler::new(campaign.seed, campaign.backend),
            rng: SeededRng::new(campaign.seed, "rounds"),
            time_scale,
            client_count: campaign.backend.client_count(),
            cluster_faults: campaign.cluster_faults,
            round: 0,
            kills_in_round: 0,
            history: String::new(),
            reported_count: 0,
        }
    }

    /// All rounds, and the end.
    pub(crate) async fn run(&mut self, program: ServiceProcess) -> anyhow::Result<()> {
        let begin = Instant::now();
        let mut program = program;
        while self.round < self.rounds && begin.elapsed() < self.time_limit {
            self.round += 1;
            program = self.run_round(program).await.with_context(|| format!("round {}", self.round))?;
            let violations = self.context.counters.violations().len();
            if violations > MAX_VIOLATIONS || (self.is_mutated && violations > 0) {
                break;
            }
        }
        self.finish(program).await
    }

    async fn run_round(&mut self, mut program: ServiceProcess) -> anyhow::Result<ServiceProcess> {
        let context = Arc::clone(&self.context);
        context.counters.count(ROUNDS);
        context.engine_fault_injected.store(false, Ordering::Relaxed);
        context.database_fault_injected.store(false, Ordering::Relaxed);
        context.cluster_fault_injected.store(false, Ordering::Relaxed);
        self.kills_in_round = 0;
        let plan = self.scheduler.next_plan(&context.counters, context.capabilities);
        self.history = format!("seed {}, round {}, {plan:?}", context.seed, self.round);
        context.trigger.set_target(program.pidfd()?);
        self.run_load_and_kill(&plan).await?;
        self.inspect_aftermath(&mut program, &plan).await?;
        if plan.kind() == Some("restart") || self.rng.chance(0.1) {
            self.inject_engine_faults(EngineFault::Kill, 3)?;
        }
        let few_ports = self.rng.chance(0.25);
        if plan.kind() == Some("restart") && self.context.has_engine_fault() {
            program = self.deployment.start(few_ports)?;
            context.trigger.set_target(program.pidfd()?);
            self.kill_when(
                RegistryCondition::ClaimVisible("restart"),
                self.background_change_timeout(),
                plan.delay,
            )
            .await?;
            self.inspect_aftermath(&mut program, &plan).await?;
        }
        while self.rng.chance(0.1) {
            program = self.deployment.start(few_ports)?;
            context.trigger.set_target(program.pidfd()?);
            let wait = self.rng.millis(0..=60) * self.time_scale.min(2);
            tokio::time::sleep(wait).await;
            context.trigger.fire(Signal::KILL);
            context.counters.count("kills while it started");
            self.inspect_aftermath(&mut program, &plan).await?;
        }
        program = self.restart(few_ports).await?;
        self.check_settled().await?;
        if self.round.is_multiple_of(SECRET_SCAN_INTERVAL_ROUNDS) {
            self.scan_for_secrets().await?;
        }
        Ok(program)
    }

    /// Waits for the orchestrator's end, and sees what it leaves.
    async fn inspect_aftermath(
        &mut self,
        program: &mut ServiceProcess,
        plan: &KillPlan,
    ) -> anyhow::Result<()> {
        let status = program.wait_exit().await?;
        if status.code().is_some() && self.deployment.exited_on_conflict() {
            self.context.counters.count("starts that came too soon");
            return Ok(());
        }
        if status.code().is_some() {
            self.context.counters.record_violation(format!("the orchestrator exited by itself: {status}"));
        }
        self.context.counters.count(KILLS);
        self.deployment.registry().wait_disconnected().await?;
        let snapshot = capture(&self.deployment, &self.audit_cursor()).await?;
        let phases = phases_hit(&self.context, &snapshot).await;
        self.history = format!("{}; killed in {phases:?}", self.history);
        if phases.is_empty() {
            self.context.counters.count("kills while nothing was under way");
        }
        for phase in &phases {
            self.context.counters.count(hit_counter_name(*phase));
        }
        self.scheduler.record_hit(plan, &phases);
        self.note_bystanders(&snapshot);
        self.check_snapshot(snapshot);
        Ok(())
    }

    /// After several kills in a row only those are left that nothing was done to at any of them.
    fn note_bystanders(&mut self, snapshot: &FleetSnapshot) {
        let idle =
            snapshot.registry.engines.iter().filter(|row| row.status == "running" && row.claim.is_none());
        let idle: BTreeSet<&str> = idle.map(|row| row.engine_id.as_str()).collect();
        let running = snapshot.instances.iter().filter(|running| idle.contains(running.engine_id.as_str()));
        let running = running.map(|running| (running.engine_id.clone(), running.instance.clone()));
        if self.kills_in_round == 0 {
            self.bystanders = running.collect();
        } else {
            self.bystanders.retain(|engine_id, _| idle.contains(engine_id.as_str()));
        }
        self.kills_in_round += 1;
    }

    /// Bystanders that the restart harmed.
    fn harmed_bystanders(&self, snapshot: &FleetSnapshot) -> Vec<String> {
        let bystanders = &self.bystanders;
        if self.context.has_engine_fault() {
            return Vec::new();
        }
        let is_same = |engine_id: &String, instance: &String| {
            let same =
                |running: &EngineInstance| running.engine_id == *engine_id && running.instance == *instance;
            snapshot.instances.iter().any(|running| running.is_alive && same(running))
        };
        let slept = |engine_id: &String| {
            let rows = self.round_audit_rows.iter().rev().chain(&snapshot.registry.audit);
            rows.filter(|row| row.engine_id.as_ref() == Some(engine_id)).any(|row| row.event == "sleep")
        };
        let harmed_bystanders = bystanders
            .iter()
            .filter(|(engine_id, instance)| !is_same(engine_id, instance) && !slept(engine_id));
        harmed_bystanders
            .map(|(engine_id, instance)| format!("{engine_id} ran as {instance}, but its instance changed"))
            .collect()
    }

    fn audit_cursor(&self) -> AuditCursor {
        self.audit_log.cursor()
    }

    /// Applies the rules that hold at every moment.
    fn check_snapshot(&mut self, snapshot: FleetSnapshot) {
        let faults = self.audit_log.check_snapshot(&snapshot.registry);
        self.round_audit_rows.extend(snapshot.registry.audit);
        self.report_violations(faults);
        self.report_violations(check_quotas(&self.context, &snapshot.registry.engines));
        let seen = self.deployment.pods().map(Pods::take_violations);
        self.report_violations(seen.unwrap_or_default());
    }

    fn report_violations(&mut self, faults: Vec<String>) {
        for fault in faults {
            self.context.counters.record_violation(fault);
        }
        // Where it was found, once for all that was found together.
        let count = self.context.counters.violations().len();
        if count > self.reported_count {
            self.context.counters.record_violation(format!("^ {}", self.history));
            self.reported_count = self.context.counters.violations().len();
        }
    }

    /// Waits until everything has settled after a start, and applies all rules.
    async fn check_settled(&mut self) -> anyhow::Result<()> {
        let timeout = match (self.is_mutated, self.context.has_cluster_fault()) {
            (true, _) => MUTANT_SETTLE_TIMEOUT,
            (false, true) => INJURED_SETTLE_TIMEOUT,
            (false, false) => SETTLE_TIMEOUT,
        };
        let snapshot =
            settle(&self.context, &self.deployment, &self.audit_cursor(), (timeout, false)).await?;
        let engines = snapshot.registry.engines.clone();
        let harmed_bystanders = self.harmed_bystanders(&snapshot);
        self.context.counters.add("engines left alone by a restart", self.bystanders.len() as u64);
        self.check_snapshot(snapshot);
        self.report_violations(harmed_bystanders);
        let (calls, audit) = (self.context.take_calls(), std::mem::take(&mut self.round_audit_rows));
        let faults = check_acknowledged(&self.context, &calls, &audit, &engines);
        self.report_violations(faults);
        Ok(())
    }

    async fn scan_for_secrets(&mut self) -> anyhow::Result<()> {
        let mut secrets = self.context.keys.all();
        secrets.extend(self.context.products.iter().map(|product| product.key.clone()));
        let deployment = Arc::clone(&self.deployment);
        let found = tokio::task::spawn_blocking(move || deployment.leaks(&secrets)).await??;
        self.report_violations(found);
        Ok(())
    }

    /// Looks at everything once more, and lets the orchestrator end in peace.
    async fn finish(&mut self, mut program: ServiceProcess) -> anyhow::Result<()> {
        self.history = format!("seed {}, at the end", self.context.seed);
        if !self.is_mutated {
            let snapshot =
                settle(&self.context, &self.deployment, &self.audit_cursor(), (SETTLE_TIMEOUT, true)).await?;
            self.check_snapshot(snapshot);
        }
        if let Some(pods) = self.deployment.pods() {
            self.context.counters.add(PODS_WATCHED, u64::try_from(pods.seen_count())?);
        }
        self.context.trigger.set_target(program.pidfd()?);
        self.context.trigger.fire(Signal::TERM);
        let status = program.wait_exit().await?;
        if !status.success() {
            self.report_violations(vec![format!("after SIGTERM the orchestrator exited with {status}")]);
        }
        if !self.is_mutated {
            // What was read row by row is read again: nothing was changed since.
            let full_snapshot = self.deployment.registry().snapshot(&AuditCursor::new()).await?;
            self.context.counters.add("rows of the ledger", full_snapshot.audit.len() as u64);
            let faults = AuditLogChecker::default().check_snapshot(&full_snapshot);
            self.report_violations(faults);
            self.scan_for_secrets().await?;
        }
        let log = std::fs::read_to_string(self.deployment.log()).unwrap_or_default();
        let panics = log.lines().filter(|line| line.contains("panicked"));
        self.report_violations(
            panics.map(|line| format!("the orchestrator's log contains: {line}")).collect(),
        );
        for line in log.lines().filter(|line| line.contains("ERROR")) {
            // Without the time, and without the request that it was in.
            let message = line.rsplit_once("}: ").map_or(line, |(_, message)| message);
            let words: Vec<&str> =
                message.split_whitespace().skip_while(|word| !word.contains("::")).take(9).collect();
            self.context.counters.count(format!("its errors: {}", words.join(" ")));
        }
        Ok(())
    }
}
