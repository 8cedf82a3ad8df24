//! The rules of a rollout: what is done next, when it has failed, and what an operator may do about it. It is pure.

use api::Timestamp;
use api::rollout::{RolloutCounts, RolloutPhase, RolloutPlan};
use backend::BrainFormats;

/// From how many calls on their failures count.
const MIN_CALLS: u64 = 20;

/// Why a rollout is paused, or rolled back, if that was an operator.
pub(crate) const PAUSED_BY_OPERATOR: &str = "an operator has paused it";
pub(crate) const ROLLED_BACK_BY_OPERATOR: &str = "an operator rolls it back";

/// Whether a rollout is paused or goes back because too much has failed, and not because an operator wants it.
pub(crate) fn is_stopped_by_failures(phase: RolloutPhase, paused: bool, reason: Option<&str>) -> bool {
    let is_stopped = paused || phase == RolloutPhase::RollingBack;
    let by_operator = [PAUSED_BY_OPERATOR, ROLLED_BACK_BY_OPERATOR];
    is_stopped && reason.is_some_and(|reason| !by_operator.contains(&reason))
}

/// The proxied calls to engines that were moved, since the rollout's phase began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallCounts {
    pub(crate) total: u64,
    pub(crate) failed: u64,
}

/// What is known of a rollout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RolloutView {
    pub(crate) plan: RolloutPlan,
    pub(crate) phase: RolloutPhase,
    pub(crate) phase_since: Timestamp,
    pub(crate) paused: bool,
    pub(crate) engines: RolloutCounts,
    pub(crate) calls: CallCounts,
}

/// What is done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RolloutStep {
    /// Nothing, until time passes or something changes.
    Wait,
    /// Moves engines.
    Move {
        /// How many at most.
        limit: u64,
        /// Whether engines that run are moved, too.
        running: bool,
    },
    /// Moves engines back.
    MoveBack,
    /// Enters this phase.
    Enter(RolloutPhase),
    /// Too much has failed, for this reason.
    Fail(String),
}

/// Decides what is done next.
pub(crate) fn next_step(view: &RolloutView, now: Timestamp) -> RolloutStep {
    let RolloutView { plan, phase, engines, .. } = view;
    if view.paused || phase.is_over() {
        return RolloutStep::Wait;
    }
    if let Some(reason) = failure(view) {
        return RolloutStep::Fail(reason);
    }
    // A clock that was set back delays the rollout by no more than that.
    let elapsed_s = now.unix_ms().saturating_sub(view.phase_since.unix_ms()).max(0).unsigned_abs() / 1_000;
    let running = elapsed_s >= plan.window_s;
    match phase {
        RolloutPhase::Canary => {
            let begun = engines.moved + engines.moving + engines.unhealthy;
            match plan.canaries.saturating_sub(begun).min(engines.waiting) {
                0 if engines.moving > 0 => RolloutStep::Wait,
                0 => RolloutStep::Enter(RolloutPhase::Baking),
                missing => RolloutStep::Move { limit: missing, running },
            }
        }
        RolloutPhase::Baking if elapsed_s >= plan.bake_s => RolloutStep::Enter(RolloutPhase::Rolling),
        RolloutPhase::Rolling => match (engines.waiting, engines.moving) {
            (0, 0) => RolloutStep::Enter(RolloutPhase::Completed),
            (0, _) => RolloutStep::Wait,
            (waiting, _) => RolloutStep::Move { limit: waiting, running },
        },
        RolloutPhase::RollingBack if engines.moved + engines.moving + engines.unhealthy == 0 => {
            RolloutStep::Enter(RolloutPhase::RolledBack)
        }
        RolloutPhase::RollingBack => RolloutStep::MoveBack,
        RolloutPhase::Baking | RolloutPhase::Completed | RolloutPhase::RolledBack => RolloutStep::Wait,
    }
}

/// Why the rollout must not go on; `None` if it may.
fn failure(view: &RolloutView) -> Option<String> {
    let RolloutView { plan, phase, engines, calls, .. } = view;
    if !matches!(phase, RolloutPhase::Canary | RolloutPhase::Baking | RolloutPhase::Rolling) {
        return None;
    }
    let failed = failures(engines);
    if failed > plan.max_failures {
        let count = if failed == 1 { "1 engine has".to_owned() } else { format!("{failed} engines have") };
        return Some(format!("{count} failed on the new version, and at most {} may", plan.max_failures));
    }
    let CallCounts { total, failed } = calls;
    if *total >= MIN_CALLS && failed.saturating_mul(100) > total.saturating_mul(plan.max_error_percent) {
        return Some(format!(
            "{failed} of {total} calls to engines on the new version have failed, and at most {} % may",
            plan.max_error_percent
        ));
    }
    None
}

/// The number of engines that count as failed.
pub(crate) const fn failures(engines: &RolloutCounts) -> u64 {
    engines.failed.saturating_add(engines.unhealthy)
}

/// What an operator does about a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RolloutAct {
    Pause,
    Resume,
    RollBack,
}

/// Why it cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RolloutRefusal {
    /// The rollout is over.
    Over,
    /// Its engines are back already.
    NothingToRollBack,
}

/// What follows from an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RolloutChange {
    /// Nothing: it is like that.
    None,
    /// It is paused, or goes on.
    Pause(bool),
    /// Its engines go back.
    RollBack,
}

/// Decides what follows from an act on a rollout of which `engines` are in which state.
pub(crate) fn act(
    phase: RolloutPhase,
    paused: bool,
    engines: &RolloutCounts,
    act: RolloutAct,
) -> Result<RolloutChange, RolloutRefusal> {
    match (act, phase) {
        (RolloutAct::Pause | RolloutAct::Resume, phase) if phase.is_over() => Err(RolloutRefusal::Over),
        (RolloutAct::Pause, _) if paused => Ok(RolloutChange::None),
        (RolloutAct::Resume, _) if !paused => Ok(RolloutChange::None),
        (RolloutAct::Pause, _) => Ok(RolloutChange::Pause(true)),
        (RolloutAct::Resume, _) => Ok(RolloutChange::Pause(false)),
        (RolloutAct::RollBack, RolloutPhase::RolledBack) if engines.stuck == 0 => {
            Err(RolloutRefusal::NothingToRollBack)
        }
        (RolloutAct::RollBack, _) => Ok(RolloutChange::RollBack),
    }
}

/// What happens to the brain of an engine that goes back to its former version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrainOnRollback {
    /// It stays: the former version can open it.
    Keep,
    /// It is replaced by the copy that was made before the move.
    Restore,
}

/// Decides what happens to a brain that had the format `before` before its engine was moved. If the newer version has
/// migrated it, the former one cannot open it, and the copy lacks what happened since. `may_discard` says that nothing
/// has, or that it may be lost. The error is the reason for which the engine cannot go back, for a person.
pub(crate) fn brain_on_rollback(
    formats: &BrainFormats,
    before: Option<u32>,
    may_discard: bool,
) -> Result<BrainOnRollback, &'static str> {
    // What was not recorded because the orchestrator was killed, the copy knows.
    let copied = formats.copy.and_then(|copy| copy.format);
    let Some(before) = before.or(copied) else {
        return Err("nobody knows which format its brain had before");
    };
    let Some(now) = formats.brain else {
        return Err(
            "its brain's format is unknown, because it did not end cleanly; start it, and roll back again",
        );
    };
    if now == before {
        return Ok(BrainOnRollback::Keep);
    }
    if copied != Some(before) {
        return Err("the newer version has migrated its brain, and there is no copy of before any more");
    }
    if !may_discard {
        return Err(
            "the newer version has migrated its brain, and it was used since; its user would lose that",
        );
    }
    Ok(BrainOnRollback::Restore)
}

#[cfg(test)]
#[path = "../../tests/unit/domain/rollout.rs"]
mod tests;
