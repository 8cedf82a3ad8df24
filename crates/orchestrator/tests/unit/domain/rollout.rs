use api::rollout::OnFailure;
use backend::BrainCopy;
use proptest::prelude::*;

use super::BrainOnRollback::{Keep, Restore};
use super::*;

fn view(phase: RolloutPhase, engines: RolloutCounts) -> RolloutView {
    RolloutView {
        plan: RolloutPlan {
            canaries: 3,
            bake_s: 600,
            window_s: 3_600,
            max_failures: 1,
            max_error_percent: 5,
            concurrency: 4,
            on_failure: OnFailure::RollBack,
        },
        phase,
        phase_since: Timestamp::from_unix_ms(0),
        paused: false,
        engines,
        calls: CallCounts::default(),
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix_ms(seconds * 1_000)
}

#[test]
fn some_engines_go_first_are_watched_and_the_others_follow() {
    let none = RolloutCounts { waiting: 10, ..RolloutCounts::default() };
    let step = |phase, engines, seconds| next_step(&view(phase, engines), at(seconds));
    assert_eq!(step(RolloutPhase::Canary, none, 0), RolloutStep::Move { limit: 3, running: false });
    let one = RolloutCounts { waiting: 9, moved: 1, ..none };
    assert_eq!(step(RolloutPhase::Canary, one, 3_600), RolloutStep::Move { limit: 2, running: true });
    let three = RolloutCounts { waiting: 7, moved: 3, ..none };
    assert_eq!(step(RolloutPhase::Canary, three, 0), RolloutStep::Enter(RolloutPhase::Baking));
    assert_eq!(step(RolloutPhase::Baking, three, 599), RolloutStep::Wait);
    assert_eq!(step(RolloutPhase::Baking, three, 600), RolloutStep::Enter(RolloutPhase::Rolling));
    assert_eq!(step(RolloutPhase::Rolling, three, 0), RolloutStep::Move { limit: 7, running: false });
    let last = RolloutCounts { waiting: 0, moving: 1, moved: 9, ..none };
    assert_eq!(step(RolloutPhase::Rolling, last, 0), RolloutStep::Wait);
    let all = RolloutCounts { waiting: 0, moved: 10, ..none };
    assert_eq!(step(RolloutPhase::Rolling, all, 0), RolloutStep::Enter(RolloutPhase::Completed));
    assert_eq!(step(RolloutPhase::Completed, all, 0), RolloutStep::Wait);
}

#[test]
fn a_fleet_that_is_smaller_than_the_canaries_is_rolled_out_whole() {
    let none = RolloutCounts { waiting: 2, ..RolloutCounts::default() };
    let limit = next_step(&view(RolloutPhase::Canary, none), at(0));
    assert_eq!(limit, RolloutStep::Move { limit: 2, running: false });
    let both = RolloutCounts { waiting: 0, moved: 2, ..none };
    assert_eq!(next_step(&view(RolloutPhase::Canary, both), at(0)), RolloutStep::Enter(RolloutPhase::Baking));
}

#[test]
fn too_many_failures_end_it() {
    let failed =
        |failed, unhealthy| RolloutCounts { waiting: 5, failed, unhealthy, ..RolloutCounts::default() };
    let fails = |engines, phase| match next_step(&view(phase, engines), at(0)) {
        RolloutStep::Fail(reason) => Some(reason),
        _ => None,
    };
    assert_eq!(fails(failed(1, 0), RolloutPhase::Canary), None);
    let expected = "2 engines have failed on the new version, and at most 1 may";
    for phase in [RolloutPhase::Canary, RolloutPhase::Baking, RolloutPhase::Rolling] {
        assert_eq!(fails(failed(1, 1), phase).as_deref(), Some(expected), "{phase:?}");
    }
    assert_eq!(fails(failed(9, 9), RolloutPhase::RollingBack), None, "it goes back already");
    let calls = |total, failed| {
        let calls = CallCounts { total, failed };
        let view = RolloutView { calls, ..view(RolloutPhase::Baking, RolloutCounts::default()) };
        matches!(next_step(&view, at(0)), RolloutStep::Fail(_))
    };
    assert!(!calls(19, 19), "too few to tell");
    assert!(!calls(100, 5));
    assert!(calls(100, 6));
}

#[test]
fn an_operator_pauses_resumes_and_rolls_back() {
    let engines = RolloutCounts::default();
    let act = |phase, paused, what| act(phase, paused, &engines, what);
    assert_eq!(act(RolloutPhase::Rolling, false, RolloutAct::Pause), Ok(RolloutChange::Pause(true)));
    assert_eq!(act(RolloutPhase::Rolling, true, RolloutAct::Pause), Ok(RolloutChange::None));
    assert_eq!(act(RolloutPhase::Rolling, true, RolloutAct::Resume), Ok(RolloutChange::Pause(false)));
    assert_eq!(act(RolloutPhase::Completed, false, RolloutAct::Pause), Err(RolloutRefusal::Over));
    for phase in RolloutPhase::ALL {
        let expected = match phase {
            RolloutPhase::RolledBack => Err(RolloutRefusal::NothingToRollBack),
            _ => Ok(RolloutChange::RollBack),
        };
        assert_eq!(act(phase, false, RolloutAct::RollBack), expected, "{phase:?}");
    }
    let stuck = RolloutCounts { stuck: 1, ..engines };
    let again = super::act(RolloutPhase::RolledBack, false, &stuck, RolloutAct::RollBack);
    assert_eq!(again, Ok(RolloutChange::RollBack), "what is stuck may be tried again");
}

#[test]
fn a_brain_that_was_migrated_is_replaced_only_if_nothing_is_lost() {
    let formats = |brain, copy: Option<u32>| BrainFormats {
        brain,
        copy: copy.map(|format| BrainCopy { format: Some(format) }),
    };
    assert_eq!(brain_on_rollback(&formats(Some(7), Some(7)), Some(7), false), Ok(Keep));
    assert_eq!(brain_on_rollback(&formats(Some(7), None), Some(7), false), Ok(Keep), "without a copy, too");
    assert_eq!(brain_on_rollback(&formats(Some(8), Some(7)), Some(7), true), Ok(Restore));
    assert_eq!(brain_on_rollback(&formats(Some(8), Some(7)), None, true), Ok(Restore), "the copy knows");
    for (formats, before, may_discard) in [
        (formats(Some(8), Some(7)), Some(7), false),
        (formats(Some(8), None), Some(7), true),
        (formats(Some(8), Some(8)), Some(7), true),
        (formats(None, Some(7)), Some(7), true),
        (formats(Some(8), None), None, true),
    ] {
        assert!(brain_on_rollback(&formats, before, may_discard).is_err(), "{formats:?} {before:?}");
    }
}

proptest! {
    /// Whatever moves succeed and fail, a rollout ends, and never with more failures than it may have.
    #[test]
    fn every_rollout_ends(
        (waiting, canaries, max_failures) in (0_u64..40, 0_u64..10, 0_u64..5),
        outcomes in proptest::collection::vec(any::<bool>(), 80),
    ) {
        let mut view = view(RolloutPhase::Canary, RolloutCounts { waiting, ..RolloutCounts::default() });
        view.plan = RolloutPlan { canaries, max_failures, ..view.plan };
        let (mut outcomes, mut now) = (outcomes.into_iter(), 0);
        for _ in 0..400 {
            now += 60;
            match next_step(&view, at(now)) {
                RolloutStep::Wait => {}
                RolloutStep::Move { limit, .. } => {
                    for _ in 0..limit.min(view.plan.concurrency) {
                        view.engines.waiting -= 1;
                        if outcomes.next().unwrap_or(true) {
                            view.engines.moved += 1;
                        } else {
                            view.engines.failed += 1;
                        }
                    }
                }
                RolloutStep::MoveBack => {
                    view.engines.moved -= 1;
                    view.engines.rolled_back += 1;
                }
                RolloutStep::Enter(phase) => (view.phase, view.phase_since) = (phase, at(now)),
                RolloutStep::Fail(_) => (view.phase, view.phase_since) = (RolloutPhase::RollingBack, at(now)),
            }
        }
        prop_assert!(view.phase.is_over(), "{:?}", view);
        if view.phase == RolloutPhase::Completed {
            prop_assert!(failures(&view.engines) <= max_failures && view.engines.waiting == 0);
        } else {
            prop_assert!(view.engines.moved == 0 && failures(&view.engines) > max_failures);
        }
    }
}

#[test]
fn only_what_failures_have_stopped_counts_as_stopped_by_them() {
    let failures = Some("1 engine has failed on the new version, and at most 0 may");
    for (phase, paused, reason, expected) in [
        (RolloutPhase::Canary, true, failures, true),
        (RolloutPhase::RollingBack, false, failures, true),
        (RolloutPhase::Canary, true, Some(PAUSED_BY_OPERATOR), false),
        (RolloutPhase::RollingBack, false, Some(ROLLED_BACK_BY_OPERATOR), false),
        (RolloutPhase::Rolling, false, None, false),
        (RolloutPhase::RolledBack, false, failures, false),
    ] {
        assert_eq!(is_stopped_by_failures(phase, paused, reason), expected, "{phase:?} {paused} {reason:?}");
    }
}
