//! Decides when the orchestrator is killed: at any moment, some time after a call was sent, or some time after the
//! registry shows a claim. Phases hit least are aimed at most, with delays that have hit them before.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::Capabilities;
use super::engine_host::Backend;
use crate::counters::Counters;
use crate::rng::SeededRng;

/// How far an operation was when the orchestrator was killed: its kind, and the state found.
pub(crate) type Phase = (&'static str, &'static str);

pub(crate) const NO_PROCESS: &str = "without a process";
pub(crate) const PROCESS: &str = "with a process";
pub(crate) const FOLDER: &str = "without a process, with the folder";
pub(crate) const NO_FOLDER: &str = "without the folder";
pub(crate) const OLD_KEY: &str = "the engine takes the old key";
pub(crate) const NEW_KEY: &str = "the engine takes the new key";

/// All phases that a kill can hit.
pub(crate) const PHASES: [Phase; 17] = [
    ("provision", NO_PROCESS),
    ("provision", PROCESS),
    ("start", NO_PROCESS),
    ("start", PROCESS),
    ("stop", PROCESS),
    ("stop", NO_PROCESS),
    ("destroy", PROCESS),
    ("destroy", FOLDER),
    ("destroy", NO_FOLDER),
    ("rotate", OLD_KEY),
    ("rotate", NEW_KEY),
    ("restart", NO_PROCESS),
    ("restart", PROCESS),
    ("sleep", PROCESS),
    ("sleep", NO_PROCESS),
    ("wake", NO_PROCESS),
    ("wake", PROCESS),
];

/// The phases that an orchestrator of this `capabilities` has.
pub(crate) fn phases(capabilities: Capabilities) -> impl Iterator<Item = Phase> {
    PHASES.into_iter().filter(move |(kind, _)| match *kind {
        "rotate" | "restart" | "sleep" | "wake" => capabilities.supervised,
        _ => true,
    })
}

/// The count of kills in `phase`.
pub(crate) fn hit_counter_name((kind, state): Phase) -> String {
    format!("killed in {kind}: {state}")
}

/// The event after which the delay starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillPoint {
    /// The load has begun.
    LoadStarted,
    /// A call of this name was sent.
    CallSent(&'static str),
    /// The registry shows a claim of this kind.
    ClaimVisible(&'static str),
    /// After that a Pod has disappeared.
    PodGone(&'static str),
}

/// When to kill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KillPlan {
    pub(crate) point: KillPoint,
    pub(crate) delay: Duration,
}

impl KillPlan {
    /// The kind of operation that the plan aims at.
    pub(crate) const fn kind(&self) -> Option<&'static str> {
        match self.point {
            KillPoint::LoadStarted => None,
            KillPoint::CallSent(kind) | KillPoint::ClaimVisible(kind) | KillPoint::PodGone(kind) => {
                Some(kind)
            }
        }
    }
}

/// Makes the plans.
#[derive(Debug)]
pub(crate) struct KillScheduler {
    rng: SeededRng,
    backend: Backend,
    /// The factor by which everything takes longer than with processes.
    time_scale: u64,
    /// Plans that hit, the newest last.
    successful_plans: BTreeMap<Phase, Vec<KillPlan>>,
}

/// Whether a phase begins when the engine's Pod has disappeared.
fn comes_after_pod(phase: Phase) -> bool {
    matches!(phase, ("stop" | "sleep", NO_PROCESS) | ("destroy", FOLDER | NO_FOLDER))
}

/// How many plans of a phase are remembered.
const MAX_REMEMBERED_PLANS: usize = 12;

impl KillScheduler {
    /// Creates a scheduler without any recorded hits.
    pub(crate) fn new(seed: u64, backend: Backend) -> Self {
        let (rng, time_scale) = (SeededRng::new(seed, "aims"), backend.time_scale().into());
        Self { rng, backend, time_scale, successful_plans: BTreeMap::new() }
    }

    /// The next plan.
    pub(crate) fn next_plan(&mut self, counters: &Counters, capabilities: Capabilities) -> KillPlan {
        if self.rng.chance(0.15) {
            return KillPlan {
                point: KillPoint::LoadStarted,
                delay: self.rng.millis(0..=100 * self.time_scale),
            };
        }
        let ops = ["provision", "start", "stop", "destroy", "admit", "rotate"];
        let ops = if capabilities.supervised { ops.as_slice() } else { ops.get(..5).unwrap_or_default() };
        if let Some(op) = self.rng.pick(ops).filter(|_| self.rng.chance(0.25)) {
            return KillPlan {
                point: KillPoint::CallSent(op),
                delay: self.rng.millis(0..=12 * self.time_scale),
            };
        }
        let mut rare: Vec<Phase> = phases(capabilities).collect();
        // In any order where they were hit as often, so that one that is hard to hit keeps no other one from its turn.
        rare.sort_by_cached_key(|phase| (counters.get(&hit_counter_name(*phase)), self.rng.between(0..=999)));
        rare.truncate(3);
        let phase = *self.rng.pick(&rare).unwrap_or(&("provision", NO_PROCESS));
        if let Some(plan) = self.successful_plans.get(&phase).and_then(|plans| self.rng.pick(plans).copied())
            && self.rng.chance(0.7)
        {
            let percent = u32::try_from(self.rng.between(70..=130)).unwrap_or(100);
            return KillPlan { delay: plan.delay * percent / 100, ..plan };
        }
        let kind = phase.0;
        if self.backend == Backend::Kubernetes && comes_after_pod(phase) && self.rng.chance(0.6) {
            let longest_ms = if phase.1 == NO_FOLDER { 1_000 } else { 200 };
            return KillPlan { point: KillPoint::PodGone(kind), delay: self.rng.millis(0..=longest_ms) };
        }
        let by_call = matches!(kind, "provision" | "start" | "stop" | "destroy" | "rotate");
        let point = if by_call && self.rng.chance(0.4) {
            KillPoint::CallSent(kind)
        } else {
            KillPoint::ClaimVisible(kind)
        };
        // Short delays more often than long ones: most phases are short. The last phases of an operation that ends
        // a container come after its log was kept, up to a second after the claim.
        let longest_prefix = if self.rng.chance(0.5) {
            4
        } else if matches!(phase, ("stop" | "sleep" | "restart", NO_PROCESS)) {
            self.rng.between(25..=100)
        } else {
            self.rng.between(1..=25)
        };
        // A rotation does nothing to a Pod.
        let time_scale = if kind == "rotate" { self.time_scale.min(10) } else { self.time_scale };
        KillPlan { point, delay: self.rng.millis(0..=longest_prefix * time_scale) }
    }

    /// Remembers that `plan` hit `phases`.
    pub(crate) fn record_hit(&mut self, plan: &KillPlan, phases: &[Phase]) {
        for phase in phases.iter().filter(|(kind, _)| plan.kind() == Some(kind)) {
            let plans = self.successful_plans.entry(*phase).or_default();
            if plans.len() == MAX_REMEMBERED_PLANS {
                plans.remove(0);
            }
            plans.push(*plan);
        }
    }
}
