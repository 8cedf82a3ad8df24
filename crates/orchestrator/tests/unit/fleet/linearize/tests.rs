//! Tests of the linearizability check: histories that the rules allow, and histories that they do not.

use EngineStatus::{Destroying, Failed, Running, Sleeping, Stopped};
use api::orchestrator::DenialReason;

use super::*;
use crate::domain::lifecycle::Refusal::{AlreadyExists, AlreadyRunning, NotFound, NotRunning};
use crate::fleet::tests::model::Failure::{Backend, BootTimeout, Quota};

const ADMIT: Request = Request::Admit { provision: false, wake: false };
const ADMIT_PROVISION: Request = Request::Admit { provision: true, wake: false };
const ADMIT_WAKE: Request = Request::Admit { provision: false, wake: true };
const NO_FAULTS: Environment = Environment {
    quota: None,
    faults: false,
    exits: false,
    slow: false,
    crashes: false,
    restarts: false,
    sleeps: false,
    rotations: true,
};
const FAULTS: Environment = Environment { faults: true, ..NO_FAULTS };

type End = Option<(EngineStatus, Id)>;

fn engine(status: EngineStatus, id: Id) -> Response {
    Response::Engine { status, id, key: id }
}

/// A call of the first user that was made and answered at these positions.
fn call(called_at: usize, answered_at: usize, request: Request, response: Response) -> RecordedCall {
    RecordedCall { user: 0, request, response, called_at, answered_at: Some(answered_at) }
}

/// Calls that follow one another without overlap.
fn sequential(calls: &[(Request, Response)]) -> Vec<RecordedCall> {
    let numbered = calls.iter().enumerate();
    numbered.map(|(at, (request, response))| call(2 * at, 2 * at + 1, *request, *response)).collect()
}

fn is_linearizable(environment: Environment, calls: &[RecordedCall], end: End) -> bool {
    History { environment, calls: calls.to_vec(), end: vec![end] }.linearize().is_ok()
}

#[test]
fn what_comes_in_turn_is_answered_in_turn() {
    let calls = [
        (Request::Provision, engine(Running, 0)),
        (Request::Provision, Response::Refused(AlreadyExists)),
        (Request::Start, Response::Refused(AlreadyRunning)),
        (Request::Sleep, Response::Done),
        (ADMIT, Response::Denied(DenialReason::EngineSleeping)),
        (ADMIT_WAKE, engine(Running, 0)),
        (Request::Stop, Response::Done),
        (ADMIT_WAKE, Response::Denied(DenialReason::EngineStopped)),
        (Request::Stop, Response::Refused(NotRunning)),
        (Request::Start, Response::Done),
        (Request::Get, engine(Running, 0)),
        (Request::Delete, Response::Destroyed(0)),
        (Request::Delete, Response::Refused(NotFound)),
        (ADMIT, Response::Denied(DenialReason::EngineNotFound)),
        (ADMIT_PROVISION, engine(Running, 1)),
    ];
    assert!(is_linearizable(NO_FAULTS, &sequential(&calls), Some((Running, 1))));
    // Neither with another end, nor without a call that a later one depends on.
    assert!(!is_linearizable(NO_FAULTS, &sequential(&calls), Some((Running, 0))));
    assert!(!is_linearizable(NO_FAULTS, &sequential(&calls), None));
    for missing in [0, 3, 5, 6, 9, 11, 14] {
        let mut calls = calls.to_vec();
        calls.remove(missing);
        assert!(
            !is_linearizable(NO_FAULTS, &sequential(&calls), Some((Running, 1))),
            "without call {missing}"
        );
    }
}

#[test]
fn nothing_of_an_engine_outlives_its_delete() {
    let deleted = [(Request::Provision, engine(Running, 0)), (Request::Delete, Response::Destroyed(0))];
    let then = |request, response, end| {
        is_linearizable(FAULTS, &sequential(&[&deleted[..], &[(request, response)]].concat()), end)
    };
    assert!(then(Request::Get, Response::Refused(NotFound), None));
    assert!(!then(Request::Get, engine(Destroying, 0), None));
    assert!(!then(Request::Get, Response::Refused(NotFound), Some((Destroying, 0))));
    assert!(then(ADMIT_PROVISION, engine(Running, 1), Some((Running, 1))));
    assert!(!then(ADMIT_PROVISION, engine(Running, 0), Some((Running, 0))));
}

#[test]
fn nobody_has_two_engines() {
    let twice =
        [call(0, 3, ADMIT_PROVISION, engine(Running, 0)), call(1, 2, ADMIT_PROVISION, engine(Running, 1))];
    assert!(!is_linearizable(FAULTS, &twice, Some((Running, 1))));
}

#[test]
fn what_is_refused_has_its_reason() {
    let refused = |request, refusal| {
        let calls = [(Request::Provision, engine(Running, 0)), (request, Response::Refused(refusal))];
        is_linearizable(FAULTS, &sequential(&calls), Some((Running, 0)))
    };
    assert!(refused(Request::Start, AlreadyRunning));
    assert!(!refused(Request::Start, NotFound));
    assert!(!refused(Request::Stop, NotFound));
    assert!(!refused(Request::Stop, NotRunning));
    assert!(!refused(ADMIT, NotRunning));
}

#[test]
fn a_quota_is_exact() {
    let history = |quota, first, second, ends: [End; 2]| {
        let mut calls = sequential(&[(Request::Provision, first), (Request::Provision, second)]);
        calls[1].user = 1;
        History { environment: Environment { quota: Some(quota), ..FAULTS }, calls, end: ends.to_vec() }
            .linearize()
            .is_ok()
    };
    let (one, other) = (engine(Running, 0), engine(Running, 1));
    let (refused, failed) = (Response::Failed(Quota), Response::Failed(Backend));
    assert!(history(2, one, other, [Some((Running, 0)), Some((Running, 1))]));
    assert!(!history(1, one, other, [Some((Running, 0)), Some((Running, 1))]));
    assert!(history(1, one, refused, [Some((Running, 0)), None]));
    assert!(!history(2, one, refused, [Some((Running, 0)), None]));
    // A failed provision may count towards the quota until it is repaired, or not any more.
    assert!(history(1, failed, refused, [None, None]));
    assert!(history(1, failed, other, [None, Some((Running, 1))]));
}

#[test]
fn a_boot_is_shared_and_a_stop_is_not() {
    let stopped = sequential(&[(Request::Provision, engine(Running, 0)), (Request::Stop, Response::Done)]);
    let late = Response::Failed(BootTimeout);
    let starts = |second| [&stopped[..], &[call(10, 20, Request::Start, late), second]].concat();
    assert!(is_linearizable(FAULTS, &starts(call(15, 21, ADMIT, late)), Some((Failed, 0))));
    assert!(is_linearizable(FAULTS, &starts(call(15, 21, Request::Start, late)), Some((Failed, 0))));
    assert!(!is_linearizable(FAULTS, &starts(call(22, 23, ADMIT, late)), Some((Failed, 0))));
    assert!(!is_linearizable(NO_FAULTS, &starts(call(15, 21, ADMIT, late)), Some((Failed, 0))));
    assert!(!is_linearizable(FAULTS, &starts(call(15, 21, ADMIT, engine(Running, 0))), Some((Failed, 0))));
    let running = sequential(&[(Request::Provision, engine(Running, 0))]);
    let stop = |response, end| {
        let both = [call(10, 20, Request::Stop, Response::Failed(Backend)), call(15, 21, ADMIT, response)];
        is_linearizable(FAULTS, &[&running[..], &both].concat(), end)
    };
    assert!(stop(engine(Running, 0), Some((Running, 0))));
    // The engine may have exited anyway.
    assert!(stop(Response::Denied(DenialReason::EngineUnhealthy), Some((Failed, 0))));
    // An interrupted stop is completed at some time, by the next caller or by reconciliation.
    assert!(stop(Response::Denied(DenialReason::EngineStopped), Some((Stopped, 0))));
    assert!(stop(Response::Failed(Backend), Some((Stopped, 0))));
    assert!(stop(engine(Running, 0), Some((Stopped, 0))));
    assert!(!stop(Response::Denied(DenialReason::EngineStopped), Some((Running, 0))));
}

#[test]
fn a_delete_cancels_a_provision_and_a_waiting_admit_goes_on() {
    let cancelled = [
        call(0, 8, Request::Provision, Response::Refused(NotFound)),
        call(1, 2, Request::Get, engine(EngineStatus::Provisioning, 0)),
        call(3, 10, ADMIT_PROVISION, engine(Running, 1)),
        call(4, 9, Request::Delete, Response::Destroyed(0)),
    ];
    assert!(is_linearizable(NO_FAULTS, &cancelled, Some((Running, 1))));
    assert!(!is_linearizable(NO_FAULTS, &cancelled[..3], Some((Running, 1))));
    // If the caller who retries gives up, the second engine may still be provisioned.
    let gave_up = [
        call(0, 9, ADMIT_PROVISION, Response::OperationTimeout),
        call(1, 2, Request::Delete, Response::Destroyed(0)),
    ];
    assert!(is_linearizable(FAULTS, &gave_up, Some((Running, 1))));
    assert!(is_linearizable(FAULTS, &gave_up, None));
}

#[test]
fn what_nobody_waits_for_any_more_may_still_come_about() {
    let gave_up = |end| {
        let calls = sequential(&[
            (Request::Provision, Response::OperationTimeout),
            (Request::Get, engine(EngineStatus::Provisioning, 0)),
        ]);
        is_linearizable(FAULTS, &calls, end)
    };
    assert!(gave_up(Some((Running, 0))));
    assert!(gave_up(None));
    assert!(!gave_up(Some((Stopped, 0))));
    let slow = sequential(&[(Request::Provision, Response::OperationTimeout)]);
    assert!(is_linearizable(Environment { slow: true, ..NO_FAULTS }, &slow, Some((Running, 0))));
    assert!(!is_linearizable(NO_FAULTS, &slow, Some((Running, 0))));
}

#[test]
fn a_key_holds_until_it_is_rotated() {
    let seen = |id, key| Response::Engine { status: Running, id, key };
    let is_valid = |response, then| {
        let calls =
            [(Request::Provision, seen(0, 0)), (Request::Rotate, response), (Request::Get, seen(0, then))];
        is_linearizable(FAULTS, &sequential(&calls), Some((Running, 0)))
    };
    assert!(is_valid(Response::NewKey(1), 1));
    assert!(!is_valid(Response::NewKey(1), 0));
    assert!(is_valid(Response::Failed(Backend), 0));
    assert!(is_valid(Response::Failed(Backend), 1));
    assert!(!is_valid(Response::Refused(NotRunning), 0));
    let unrequested = sequential(&[(Request::Provision, seen(0, 0)), (Request::Get, seen(0, 1))]);
    assert!(!is_linearizable(FAULTS, &unrequested, Some((Running, 0))));
}

#[test]
fn engines_change_by_themselves_only_where_that_can_be() {
    let crash = RecordedCall { answered_at: None, ..call(2, 0, Request::Crash(0), Response::Done) };
    let first = call(0, 1, Request::Provision, engine(Running, 0));
    let unhealthy = Response::Denied(DenialReason::EngineUnhealthy);
    let failed = [first, crash, call(3, 4, ADMIT, unhealthy)];
    assert!(is_linearizable(FAULTS, &failed, Some((Failed, 0))));
    assert!(!is_linearizable(FAULTS, &[first, failed[2]], Some((Failed, 0))));
    assert!(is_linearizable(Environment { crashes: true, ..FAULTS }, &[first, failed[2]], Some((Failed, 0))));
    let again = [&failed[..], &[call(5, 6, ADMIT, engine(Running, 0))]].concat();
    assert!(!is_linearizable(FAULTS, &again, Some((Running, 0))));
    assert!(is_linearizable(Environment { restarts: true, ..FAULTS }, &again, Some((Running, 0))));
    let asleep = [first, call(2, 3, Request::Stop, Response::Refused(NotRunning))];
    assert!(!is_linearizable(NO_FAULTS, &asleep, Some((Sleeping, 0))));
    assert!(is_linearizable(Environment { sleeps: true, ..NO_FAULTS }, &asleep, Some((Sleeping, 0))));
}

#[test]
fn who_waits_for_a_restart_shares_what_becomes_of_it() {
    let environment = Environment { exits: true, restarts: true, ..NO_FAULTS };
    let unhealthy = Response::Denied(DenialReason::EngineUnhealthy);
    let crash = |called_at| RecordedCall {
        answered_at: None,
        ..call(called_at, 0, Request::Crash(0), Response::Done)
    };
    let failed = [
        call(0, 1, Request::Provision, engine(Running, 0)),
        crash(2),
        call(3, 4, Request::Stop, Response::Refused(NotRunning)),
    ];
    let waits = |environment, response: Response, then: &[RecordedCall], end| {
        is_linearizable(
            environment,
            &[&failed[..], &[call(5, 20, ADMIT, response)], then].concat(),
            Some((end, 0)),
        )
    };
    assert!(waits(environment, engine(Running, 0), &[], Running));
    // Only an attempt that fails, or is not made in time, is reported as unhealthy.
    assert!(!waits(environment, unhealthy, &[], Running));
    assert!(waits(environment, unhealthy, &[crash(6)], Running));
    assert!(!waits(environment, unhealthy, &[crash(21)], Running));
    assert!(waits(Environment { faults: true, ..environment }, unhealthy, &[], Failed));
    assert!(!waits(environment, Response::Failed(Backend), &[crash(6)], Running));
    let start = |response| [crash(6), call(7, 21, Request::Start, response)];
    assert!(waits(environment, unhealthy, &start(Response::Failed(Backend)), Running));
    assert!(waits(environment, engine(Running, 0), &start(Response::Done), Running));
    assert!(!waits(environment, unhealthy, &start(Response::Failed(BootTimeout)), Running));
}

#[test]
fn while_a_key_is_in_doubt_nobody_is_given_one() {
    let seen = |id, key| Response::Engine { status: Running, id, key };
    let is_valid = |then: &[(Request, Response)]| {
        let calls = [(Request::Provision, seen(0, 0)), (Request::Rotate, Response::Failed(Backend))];
        is_linearizable(FAULTS, &sequential(&[&calls[..], then].concat()), Some((Running, 0)))
    };
    assert!(is_valid(&[(Request::Get, Response::Failed(Backend)), (Request::Get, seen(0, 1))]));
    assert!(is_valid(&[(Request::Get, Response::OperationTimeout), (Request::Get, seen(0, 0))]));
    assert!(is_valid(&[(Request::Stop, Response::Failed(Backend)), (ADMIT, seen(0, 1))]));
    // A key that was returned stays valid.
    assert!(!is_valid(&[(Request::Get, seen(0, 0)), (Request::Get, Response::Failed(Backend))]));
    assert!(!is_valid(&[(Request::Get, seen(0, 0)), (ADMIT, seen(0, 1))]));
    // An old key never becomes valid again.
    let twice = [(Request::Rotate, Response::NewKey(1)), (Request::Rotate, Response::Failed(Backend))];
    assert!(is_valid(&[&twice[..], &[(Request::Get, seen(0, 2))]].concat()));
    assert!(!is_valid(&[&twice[..], &[(Request::Get, seen(0, 0))]].concat()));
}
