//! Histories judged: what the rules allow, and what they do not.

use EngineStatus::{Destroying, Failed, Running, Sleeping, Stopped};
use contract::orchestrator::DenialReason;

use super::*;
use crate::fleet::lifecycle::Refusal::{AlreadyExists, AlreadyRunning, NotFound, NotRunning};
use crate::fleet::tests::model::Failure::{Backend, BootTimeout, Quota};

const ADMIT: Ask = Ask::Admit { provision: false, wake: false };
const ADMIT_PROVISION: Ask = Ask::Admit { provision: true, wake: false };
const ADMIT_WAKE: Ask = Ask::Admit { provision: false, wake: true };
const WELL: World = World {
    quota: None,
    faults: false,
    exits: false,
    slow: false,
    crashes: false,
    restarts: false,
    sleeps: false,
    rotations: true,
};
const FAULTS: World = World { faults: true, ..WELL };

type End = Option<(EngineStatus, Id)>;

fn engine(status: EngineStatus, id: Id) -> Answer {
    Answer::Engine { status, id, key: id }
}

/// From when to when, what was asked and answered.
fn call(made: usize, answered: usize, ask: Ask, answer: Answer) -> Call {
    Call { user: 0, ask, answer, made, answered: Some(answered) }
}

/// One after the other.
fn in_turn(calls: &[(Ask, Answer)]) -> Vec<Call> {
    let turns = calls.iter().enumerate();
    turns.map(|(at, (ask, answer))| call(2 * at, 2 * at + 1, *ask, *answer)).collect()
}

fn may_be(world: World, calls: &[Call], end: End) -> bool {
    History { world, calls: calls.to_vec(), end: vec![end] }.explain().is_ok()
}

#[test]
fn what_comes_in_turn_is_answered_in_turn() {
    let life = [
        (Ask::Provision, engine(Running, 0)),
        (Ask::Provision, Answer::Refused(AlreadyExists)),
        (Ask::Start, Answer::Refused(AlreadyRunning)),
        (Ask::Sleep, Answer::Done),
        (ADMIT, Answer::Denied(DenialReason::EngineSleeping)),
        (ADMIT_WAKE, engine(Running, 0)),
        (Ask::Stop, Answer::Done),
        (ADMIT_WAKE, Answer::Denied(DenialReason::EngineStopped)),
        (Ask::Stop, Answer::Refused(NotRunning)),
        (Ask::Start, Answer::Done),
        (Ask::Get, engine(Running, 0)),
        (Ask::Delete, Answer::Destroyed(0)),
        (Ask::Delete, Answer::Refused(NotFound)),
        (ADMIT, Answer::Denied(DenialReason::EngineNotFound)),
        (ADMIT_PROVISION, engine(Running, 1)),
    ];
    assert!(may_be(WELL, &in_turn(&life), Some((Running, 1))));
    // Not with another end, and not with any call left out that another one stands on.
    assert!(!may_be(WELL, &in_turn(&life), Some((Running, 0))));
    assert!(!may_be(WELL, &in_turn(&life), None));
    for missing in [0, 3, 5, 6, 9, 11, 14] {
        let mut life = life.to_vec();
        life.remove(missing);
        assert!(!may_be(WELL, &in_turn(&life), Some((Running, 1))), "without call {missing}");
    }
}

#[test]
fn nothing_of_an_engine_outlives_its_delete() {
    let deleted = [(Ask::Provision, engine(Running, 0)), (Ask::Delete, Answer::Destroyed(0))];
    let then = |ask, answer, end| may_be(FAULTS, &in_turn(&[&deleted[..], &[(ask, answer)]].concat()), end);
    assert!(then(Ask::Get, Answer::Refused(NotFound), None));
    assert!(!then(Ask::Get, engine(Destroying, 0), None));
    assert!(!then(Ask::Get, Answer::Refused(NotFound), Some((Destroying, 0))));
    assert!(then(ADMIT_PROVISION, engine(Running, 1), Some((Running, 1))));
    assert!(!then(ADMIT_PROVISION, engine(Running, 0), Some((Running, 0))));
}

#[test]
fn nobody_has_two_engines() {
    let twice =
        [call(0, 3, ADMIT_PROVISION, engine(Running, 0)), call(1, 2, ADMIT_PROVISION, engine(Running, 1))];
    assert!(!may_be(FAULTS, &twice, Some((Running, 1))));
}

#[test]
fn what_is_refused_has_its_reason() {
    let refused = |ask, refusal| {
        let calls = [(Ask::Provision, engine(Running, 0)), (ask, Answer::Refused(refusal))];
        may_be(FAULTS, &in_turn(&calls), Some((Running, 0)))
    };
    assert!(refused(Ask::Start, AlreadyRunning));
    assert!(!refused(Ask::Start, NotFound));
    assert!(!refused(Ask::Stop, NotFound));
    assert!(!refused(Ask::Stop, NotRunning));
    assert!(!refused(ADMIT, NotRunning));
}

#[test]
fn a_quota_is_exact() {
    let history = |quota, first, second, ends: [End; 2]| {
        let mut calls = in_turn(&[(Ask::Provision, first), (Ask::Provision, second)]);
        calls[1].user = 1;
        History { world: World { quota: Some(quota), ..FAULTS }, calls, end: ends.to_vec() }.explain().is_ok()
    };
    let (one, other) = (engine(Running, 0), engine(Running, 1));
    let (refused, failed) = (Answer::Failed(Quota), Answer::Failed(Backend));
    assert!(history(2, one, other, [Some((Running, 0)), Some((Running, 1))]));
    assert!(!history(1, one, other, [Some((Running, 0)), Some((Running, 1))]));
    assert!(history(1, one, refused, [Some((Running, 0)), None]));
    assert!(!history(2, one, refused, [Some((Running, 0)), None]));
    // One that failed may hold its place until it is put in order, and may as well have left it.
    assert!(history(1, failed, refused, [None, None]));
    assert!(history(1, failed, other, [None, Some((Running, 1))]));
}

#[test]
fn a_boot_is_shared_and_a_stop_is_not() {
    let stopped = in_turn(&[(Ask::Provision, engine(Running, 0)), (Ask::Stop, Answer::Done)]);
    let late = Answer::Failed(BootTimeout);
    let starts = |second| [&stopped[..], &[call(10, 20, Ask::Start, late), second]].concat();
    assert!(may_be(FAULTS, &starts(call(15, 21, ADMIT, late)), Some((Failed, 0))));
    assert!(may_be(FAULTS, &starts(call(15, 21, Ask::Start, late)), Some((Failed, 0))));
    assert!(!may_be(FAULTS, &starts(call(22, 23, ADMIT, late)), Some((Failed, 0))));
    assert!(!may_be(WELL, &starts(call(15, 21, ADMIT, late)), Some((Failed, 0))));
    assert!(!may_be(FAULTS, &starts(call(15, 21, ADMIT, engine(Running, 0))), Some((Failed, 0))));
    let running = in_turn(&[(Ask::Provision, engine(Running, 0))]);
    let stop = |answer, end| {
        let both = [call(10, 20, Ask::Stop, Answer::Failed(Backend)), call(15, 21, ADMIT, answer)];
        may_be(FAULTS, &[&running[..], &both].concat(), end)
    };
    assert!(stop(engine(Running, 0), Some((Running, 0))));
    // It may have ended all the same.
    assert!(stop(Answer::Denied(DenialReason::EngineUnhealthy), Some((Failed, 0))));
    // A stop that was lost in the middle is finished at some time, for whoever comes next or by itself.
    assert!(stop(Answer::Denied(DenialReason::EngineStopped), Some((Stopped, 0))));
    assert!(stop(Answer::Failed(Backend), Some((Stopped, 0))));
    assert!(stop(engine(Running, 0), Some((Stopped, 0))));
    assert!(!stop(Answer::Denied(DenialReason::EngineStopped), Some((Running, 0))));
}

#[test]
fn a_delete_cancels_a_provision_and_a_waiting_admit_goes_on() {
    let cancelled = [
        call(0, 8, Ask::Provision, Answer::Refused(NotFound)),
        call(1, 2, Ask::Get, engine(EngineStatus::Provisioning, 0)),
        call(3, 10, ADMIT_PROVISION, engine(Running, 1)),
        call(4, 9, Ask::Delete, Answer::Destroyed(0)),
    ];
    assert!(may_be(WELL, &cancelled, Some((Running, 1))));
    assert!(!may_be(WELL, &cancelled[..3], Some((Running, 1))));
    // Until the one who goes on gives up: then the second engine may come up without them.
    let gave_up =
        [call(0, 9, ADMIT_PROVISION, Answer::TooSlow), call(1, 2, Ask::Delete, Answer::Destroyed(0))];
    assert!(may_be(FAULTS, &gave_up, Some((Running, 1))));
    assert!(may_be(FAULTS, &gave_up, None));
}

#[test]
fn what_nobody_waits_for_any_more_may_still_come_about() {
    let gave_up = |end| {
        let calls =
            in_turn(&[(Ask::Provision, Answer::TooSlow), (Ask::Get, engine(EngineStatus::Provisioning, 0))]);
        may_be(FAULTS, &calls, end)
    };
    assert!(gave_up(Some((Running, 0))));
    assert!(gave_up(None));
    assert!(!gave_up(Some((Stopped, 0))));
    let slow = in_turn(&[(Ask::Provision, Answer::TooSlow)]);
    assert!(may_be(World { slow: true, ..WELL }, &slow, Some((Running, 0))));
    assert!(!may_be(WELL, &slow, Some((Running, 0))));
}

#[test]
fn a_key_holds_until_it_is_rotated() {
    let seen = |id, key| Answer::Engine { status: Running, id, key };
    let rotated = |answer, then| {
        let calls = [(Ask::Provision, seen(0, 0)), (Ask::Rotate, answer), (Ask::Get, seen(0, then))];
        may_be(FAULTS, &in_turn(&calls), Some((Running, 0)))
    };
    assert!(rotated(Answer::NewKey(1), 1));
    assert!(!rotated(Answer::NewKey(1), 0));
    assert!(rotated(Answer::Failed(Backend), 0));
    assert!(rotated(Answer::Failed(Backend), 1));
    assert!(!rotated(Answer::Refused(NotRunning), 0));
    let unasked = in_turn(&[(Ask::Provision, seen(0, 0)), (Ask::Get, seen(0, 1))]);
    assert!(!may_be(FAULTS, &unasked, Some((Running, 0))));
}

#[test]
fn engines_change_by_themselves_only_where_that_can_be() {
    let crash = Call { answered: None, ..call(2, 0, Ask::Crash(0), Answer::Done) };
    let first = call(0, 1, Ask::Provision, engine(Running, 0));
    let unhealthy = Answer::Denied(DenialReason::EngineUnhealthy);
    let failed = [first, crash, call(3, 4, ADMIT, unhealthy)];
    assert!(may_be(FAULTS, &failed, Some((Failed, 0))));
    assert!(!may_be(FAULTS, &[first, failed[2]], Some((Failed, 0))));
    assert!(may_be(World { crashes: true, ..FAULTS }, &[first, failed[2]], Some((Failed, 0))));
    let again = [&failed[..], &[call(5, 6, ADMIT, engine(Running, 0))]].concat();
    assert!(!may_be(FAULTS, &again, Some((Running, 0))));
    assert!(may_be(World { restarts: true, ..FAULTS }, &again, Some((Running, 0))));
    let asleep = [first, call(2, 3, Ask::Stop, Answer::Refused(NotRunning))];
    assert!(!may_be(WELL, &asleep, Some((Sleeping, 0))));
    assert!(may_be(World { sleeps: true, ..WELL }, &asleep, Some((Sleeping, 0))));
}

#[test]
fn who_waits_for_a_restart_shares_what_becomes_of_it() {
    let world = World { exits: true, restarts: true, ..WELL };
    let unhealthy = Answer::Denied(DenialReason::EngineUnhealthy);
    let crash = |made| Call { answered: None, ..call(made, 0, Ask::Crash(0), Answer::Done) };
    let failed = [
        call(0, 1, Ask::Provision, engine(Running, 0)),
        crash(2),
        call(3, 4, Ask::Stop, Answer::Refused(NotRunning)),
    ];
    let waits = |world, answer: Answer, then: &[Call], end| {
        may_be(world, &[&failed[..], &[call(5, 20, ADMIT, answer)], then].concat(), Some((end, 0)))
    };
    assert!(waits(world, engine(Running, 0), &[], Running));
    // Only an attempt that fails, or one that is not made in time, is told as what it is.
    assert!(!waits(world, unhealthy, &[], Running));
    assert!(waits(world, unhealthy, &[crash(6)], Running));
    assert!(!waits(world, unhealthy, &[crash(21)], Running));
    assert!(waits(World { faults: true, ..world }, unhealthy, &[], Failed));
    assert!(!waits(world, Answer::Failed(Backend), &[crash(6)], Running));
    let start = |answer| [crash(6), call(7, 21, Ask::Start, answer)];
    assert!(waits(world, unhealthy, &start(Answer::Failed(Backend)), Running));
    assert!(waits(world, engine(Running, 0), &start(Answer::Done), Running));
    assert!(!waits(world, unhealthy, &start(Answer::Failed(BootTimeout)), Running));
}

#[test]
fn while_a_key_is_in_doubt_nobody_is_given_one() {
    let seen = |id, key| Answer::Engine { status: Running, id, key };
    let rotated = |then: &[(Ask, Answer)]| {
        let calls = [(Ask::Provision, seen(0, 0)), (Ask::Rotate, Answer::Failed(Backend))];
        may_be(FAULTS, &in_turn(&[&calls[..], then].concat()), Some((Running, 0)))
    };
    assert!(rotated(&[(Ask::Get, Answer::Failed(Backend)), (Ask::Get, seen(0, 1))]));
    assert!(rotated(&[(Ask::Get, Answer::TooSlow), (Ask::Get, seen(0, 0))]));
    assert!(rotated(&[(Ask::Stop, Answer::Failed(Backend)), (ADMIT, seen(0, 1))]));
    // What was given holds.
    assert!(!rotated(&[(Ask::Get, seen(0, 0)), (Ask::Get, Answer::Failed(Backend))]));
    assert!(!rotated(&[(Ask::Get, seen(0, 0)), (ADMIT, seen(0, 1))]));
    // And no key comes back.
    let twice = [(Ask::Rotate, Answer::NewKey(1)), (Ask::Rotate, Answer::Failed(Backend))];
    assert!(rotated(&[&twice[..], &[(Ask::Get, seen(0, 2))]].concat()));
    assert!(!rotated(&[&twice[..], &[(Ask::Get, seen(0, 0))]].concat()));
}
