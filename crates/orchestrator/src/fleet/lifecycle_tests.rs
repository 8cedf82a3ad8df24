//! The table, row by row: as it is written in docs/architecture.md, and whether it is whole.

use super::*;

const ADMIT: Trigger = Trigger::Admit { provision: false, wake: false };
const ADMIT_PROVISION: Trigger = Trigger::Admit { provision: true, wake: false };
const ADMIT_WAKE: Trigger = Trigger::Admit { provision: false, wake: true };

/// The columns of [`ROWS`].
const TRIGGERS: [Trigger; 12] = [
    Trigger::Provision,
    ADMIT,
    ADMIT_PROVISION,
    ADMIT_WAKE,
    Trigger::Start,
    Trigger::Stop,
    Trigger::Sleep { if_idle: true },
    Trigger::Rotate,
    Trigger::Restart,
    Trigger::Destroy,
    Trigger::Look,
    Trigger::Reach,
];

/// State, change under way, and the decision for each of [`TRIGGERS`]. `failing` is `failed` with a restart due.
const ROWS: &str = "
none         -         | provision  not_found provision not_found 404     404         404         404         404         404     404     404
provisioning provision | 409-exists share     share     share     409-run 409-not-run 409-not-run 409-not-run 409-not-run destroy pass    409-not-run
running      -         | 409-exists pass      pass      pass      409-run stop        sleep       rotate      409-not-run destroy pass    pass
running      stop      | 409-exists wait      wait      wait      wait    wait        wait        wait        409-not-run destroy pass    wait
running      sleep     | 409-exists wait      wait      wait      wait    wait        wait        wait        409-not-run destroy pass    wait
running      rotate    | 409-exists wait      wait      wait      409-run wait        wait        wait        409-not-run destroy wait    wait
sleeping     -         | 409-exists sleeping  sleeping  wake      start   409-not-run 409-not-run 409-not-run 409-not-run destroy pass    409-not-run
sleeping     wake      | 409-exists share     share     share     share   409-not-run 409-not-run 409-not-run 409-not-run destroy pass    409-not-run
sleeping     start     | 409-exists share     share     share     share   409-not-run 409-not-run 409-not-run 409-not-run destroy pass    409-not-run
stopped      -         | 409-exists stopped   stopped   stopped   start   409-not-run 409-not-run 409-not-run 409-not-run destroy pass    409-not-run
stopped      start     | 409-exists share     share     share     share   409-not-run 409-not-run 409-not-run 409-not-run destroy pass    409-not-run
failed       -         | 409-exists unhealthy unhealthy unhealthy start   409-not-run 409-not-run 409-not-run restart     destroy pass    409-not-run
failing      -         | 409-exists await     await     await     start   409-not-run 409-not-run 409-not-run restart     destroy pass    409-not-run
failed       start     | 409-exists share     share     share     share   409-not-run 409-not-run 409-not-run 409-not-run destroy pass    409-not-run
failing      restart   | 409-exists share     share     share     share   409-not-run 409-not-run 409-not-run 409-not-run destroy pass    409-not-run
destroying   destroy   | 409-exists wait      wait      wait      404     404         404         404         409-not-run 404     pass    404
";

fn view(status: &str, change: Option<Change>) -> Option<View> {
    let restart_due = status == "failing";
    let status = EngineStatus::from_name(if restart_due { "failed" } else { status })?;
    Some(View { status, change, restart_due })
}

fn named(decision: Decision) -> &'static str {
    match decision {
        Decision::Pass => "pass",
        Decision::Deny(DenialReason::EngineNotFound) => "not_found",
        Decision::Deny(DenialReason::EngineSleeping) => "sleeping",
        Decision::Deny(DenialReason::EngineStopped) => "stopped",
        Decision::Deny(DenialReason::EngineUnhealthy) => "unhealthy",
        Decision::Refuse(Refusal::NotFound) => "404",
        Decision::Refuse(Refusal::AlreadyExists) => "409-exists",
        Decision::Refuse(Refusal::AlreadyRunning) => "409-run",
        Decision::Refuse(Refusal::NotRunning) => "409-not-run",
        Decision::Make(change) => change.as_str(),
        Decision::Share => "share",
        Decision::Wait => "wait",
        Decision::AwaitRestart => "await",
    }
}

#[test]
fn the_table_is_as_written() {
    for row in ROWS.trim().lines() {
        let (situation, decisions) = row.split_once('|').unwrap();
        let mut situation = situation.split_whitespace();
        let (status, change) = (situation.next().unwrap(), situation.next().unwrap());
        let engine = view(status, Change::from_name(change));
        assert!(engine.is_some() || status == "none", "{row}");
        let decided: Vec<_> = TRIGGERS.into_iter().map(|trigger| named(decide(engine, trigger))).collect();
        assert_eq!(decided, decisions.split_whitespace().collect::<Vec<_>>(), "{status} under {change}");
    }
}

#[test]
fn nothing_runs_into_two_changes_at_once() {
    for status in EngineStatus::ALL {
        for change in Change::ALL {
            for trigger in TRIGGERS {
                let decision = decide(view(status.as_str(), Some(change)), trigger);
                let makes = matches!(decision, Decision::Make(_));
                assert!(!makes || trigger == Trigger::Destroy, "{status:?} {change:?} {trigger:?}");
            }
        }
    }
}

#[test]
fn who_may_share_a_change_shares_it_before_and_after_its_claim() {
    for (status, change) in [
        (EngineStatus::Provisioning, Change::Provision),
        (EngineStatus::Sleeping, Change::Wake),
        (EngineStatus::Stopped, Change::Start),
        (EngineStatus::Failed, Change::Restart),
    ] {
        for trigger in [ADMIT_PROVISION, ADMIT_WAKE, Trigger::Start, Trigger::Stop] {
            let claimed = decide(view(status.as_str(), Some(change)), trigger) == Decision::Share;
            assert_eq!(shares(trigger, change), claimed, "{trigger:?} {change:?}");
        }
    }
}

#[test]
fn changes_read_back_from_their_names() {
    for change in Change::ALL {
        assert_eq!(Change::from_name(change.as_str()), Some(change));
    }
    assert_eq!(Change::from_name("-"), None);
}
