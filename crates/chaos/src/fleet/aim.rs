//! When the orchestrator is killed: at any moment, some time after a call was sent, or some time after the
//! registry shows a claim. What was hit least is aimed at most, with the delays that have hit it before.

use std::collections::BTreeMap;
use std::time::Duration;

use super::world::Extent;
use crate::dice::Dice;
use crate::tally::Tally;

/// How far a change was when the orchestrator was killed: its kind, and what was there.
pub(crate) type Phase = (&'static str, &'static str);

pub(crate) const NO_PROCESS: &str = "without a process";
pub(crate) const PROCESS: &str = "with a process";
pub(crate) const FOLDER: &str = "without a process, with the folder";
pub(crate) const NO_FOLDER: &str = "without the folder";
pub(crate) const OLD_KEY: &str = "the engine takes the old key";
pub(crate) const NEW_KEY: &str = "the engine takes the new key";

/// All that a kill can meet.
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

/// The phases that an orchestrator of this `extent` has.
pub(crate) fn phases(extent: Extent) -> impl Iterator<Item = Phase> {
    PHASES.into_iter().filter(move |(kind, _)| match *kind {
        "rotate" | "restart" | "sleep" | "wake" => extent.supervised,
        _ => true,
    })
}

/// The count of kills in `phase`.
pub(crate) fn hits((kind, state): Phase) -> String {
    format!("killed in {kind}: {state}")
}

/// What is waited for before the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The load has begun.
    Begun,
    /// A call of this name was sent.
    Sent(&'static str),
    /// The registry shows a claim of this kind.
    Claimed(&'static str),
}

/// When to kill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) moment: Moment,
    pub(crate) delay: Duration,
}

impl Plan {
    /// The kind of change that it aims at.
    pub(crate) const fn kind(&self) -> Option<&'static str> {
        match self.moment {
            Moment::Begun => None,
            Moment::Sent(kind) | Moment::Claimed(kind) => Some(kind),
        }
    }
}

/// Makes the plans.
#[derive(Debug)]
pub(crate) struct Aimer {
    dice: Dice,
    /// How many times as long as with processes everything takes.
    pace: u64,
    /// Plans that hit, the newest last.
    learned: BTreeMap<Phase, Vec<Plan>>,
}

/// How many plans of a phase are remembered.
const REMEMBERED: usize = 12;

impl Aimer {
    /// One that has learned nothing yet.
    pub(crate) fn new(seed: u64, pace: u64) -> Self {
        Self { dice: Dice::new(seed, "aims"), pace, learned: BTreeMap::new() }
    }

    /// The next plan.
    pub(crate) fn plan(&mut self, tally: &Tally, extent: Extent) -> Plan {
        if self.dice.chance(0.15) {
            return Plan { moment: Moment::Begun, delay: self.dice.millis(0..=100 * self.pace) };
        }
        let ops = ["provision", "start", "stop", "destroy", "admit", "rotate"];
        let ops = if extent.supervised { ops.as_slice() } else { ops.get(..5).unwrap_or_default() };
        if let Some(op) = self.dice.pick(ops).filter(|_| self.dice.chance(0.25)) {
            return Plan { moment: Moment::Sent(op), delay: self.dice.millis(0..=12 * self.pace) };
        }
        let mut rare: Vec<Phase> = phases(extent).collect();
        rare.sort_by_key(|phase| tally.of(&hits(*phase)));
        rare.truncate(3);
        let phase = *self.dice.pick(&rare).unwrap_or(&("provision", NO_PROCESS));
        if let Some(plan) = self.learned.get(&phase).and_then(|plans| self.dice.pick(plans).copied())
            && self.dice.chance(0.7)
        {
            let percent = u32::try_from(self.dice.between(70..=130)).unwrap_or(100);
            return Plan { delay: plan.delay * percent / 100, ..plan };
        }
        let kind = phase.0;
        let by_call = matches!(kind, "provision" | "start" | "stop" | "destroy" | "rotate");
        let moment =
            if by_call && self.dice.chance(0.4) { Moment::Sent(kind) } else { Moment::Claimed(kind) };
        // Short delays more often than long ones: most phases are short. What comes last in a change that ends a
        // container comes after its last words were kept, up to a second after the claim.
        let longest = if self.dice.chance(0.5) {
            4
        } else if matches!(phase, ("stop" | "sleep" | "restart", NO_PROCESS)) {
            self.dice.between(25..=100)
        } else {
            self.dice.between(1..=25)
        };
        Plan { moment, delay: self.dice.millis(0..=longest * self.pace) }
    }

    /// Remembers that `plan` hit `phases`.
    pub(crate) fn learn(&mut self, plan: &Plan, phases: &[Phase]) {
        for phase in phases.iter().filter(|(kind, _)| plan.kind() == Some(kind)) {
            let plans = self.learned.entry(*phase).or_default();
            if plans.len() == REMEMBERED {
                plans.remove(0);
            }
            plans.push(*plan);
        }
    }
}
