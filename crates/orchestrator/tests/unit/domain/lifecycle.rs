//! The decision table cell by cell, as the contract and the decision records define it, and its completeness.

use super::*;

use std::collections::HashSet;

const ADMIT: Trigger = Trigger::Admit { provision: false, wake: false };
const ADMIT_PROVISION: Trigger = Trigger::Admit { provision: true, wake: false };
const ADMIT_WAKE: Trigger = Trigger::Admit { provision: false, wake: true };
const ADMIT_BOTH: Trigger = Trigger::Admit { provision: true, wake: true };

/// The columns of the tables.
const TRIGGERS: [Trigger; 16] = [
    Trigger::Provision,
    ADMIT,
    ADMIT_PROVISION,
    ADMIT_WAKE,
    ADMIT_BOTH,
    Trigger::Start,
    Trigger::Stop,
    Trigger::Sleep { if_idle: true },
    Trigger::Sleep { if_idle: false },
    Trigger::Rotate,
    Trigger::Restart,
    Trigger::Destroy,
    Trigger::Get,
    Trigger::Proxy,
    Trigger::ChangeVersion,
    Trigger::Maintain,
];

/// State, change under way, and the decision for each of [`TRIGGERS`]. `failing` is `failed` with a restart due;
/// of the refusals, `exists`, `runs` and `rests` (it does not run) are 409.
const ROWS: &str = "
none         -         | provision not_found provision not_found provision 404   404   404   404   404    404     404     404  404 404 404
provisioning provision | exists    share     share     share     share     runs  rests rests rests rests  rests   destroy pass rests wait wait
running      -         | exists    pass      pass      pass      pass      runs  stop  sleep sleep rotate rests   destroy pass pass start start
running      stop      | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy pass wait wait wait
running      sleep     | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy pass wait wait wait
running      rotate    | exists    wait      wait      wait      wait      runs  wait  wait  wait  wait   rests   destroy wait wait wait wait
running      start     | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
sleeping     -         | exists    sleeping  sleeping  wake      wake      start rests rests rests rests  rests   destroy pass rests start start
sleeping     wake      | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
sleeping     start     | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
stopped      -         | exists    stopped   stopped   stopped   stopped   start rests rests rests rests  rests   destroy pass rests start start
stopped      start     | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
failed       -         | exists    unhealthy unhealthy unhealthy unhealthy start rests rests rests rests  restart destroy pass rests start start
failing      -         | exists    await     await     await     await     start rests rests rests rests  restart destroy pass rests start start
failed       start     | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
failed       restart   | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
destroying   destroy   | exists    wait      wait      wait      wait      404   404   404   404   404    rests   404     pass 404 404 404
";

/// Combinations that no engine reaches. If one does, no second change starts, and a delete ends it.
const UNREACHABLE_ROWS: &str = "
provisioning -         | exists    wait      wait      wait      wait      runs  rests rests rests rests  rests   destroy pass rests wait wait
provisioning start     | exists    share     share     share     share     runs  rests rests rests rests  rests   destroy pass rests wait wait
provisioning wake      | exists    share     share     share     share     runs  rests rests rests rests  rests   destroy pass rests wait wait
provisioning stop      | exists    wait      wait      wait      wait      runs  wait  wait  wait  wait   rests   destroy pass wait wait wait
provisioning sleep     | exists    wait      wait      wait      wait      runs  wait  wait  wait  wait   rests   destroy pass wait wait wait
provisioning restart   | exists    share     share     share     share     runs  rests rests rests rests  rests   destroy pass rests wait wait
provisioning rotate    | exists    wait      wait      wait      wait      runs  wait  wait  wait  wait   rests   destroy wait wait wait wait
provisioning destroy   | exists    wait      wait      wait      wait      runs  rests rests rests rests  rests   destroy pass rests wait wait
running      provision | exists    share     share     share     share     wait  rests rests rests rests  rests   destroy pass rests wait wait
running      wake      | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
running      restart   | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
running      destroy   | exists    wait      wait      wait      wait      wait  rests rests rests rests  rests   destroy pass rests wait wait
sleeping     provision | exists    share     share     share     share     wait  rests rests rests rests  rests   destroy pass rests wait wait
sleeping     stop      | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy pass wait wait wait
sleeping     sleep     | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy pass wait wait wait
sleeping     restart   | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
sleeping     rotate    | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy wait wait wait wait
sleeping     destroy   | exists    wait      wait      wait      wait      wait  rests rests rests rests  rests   destroy pass rests wait wait
stopped      provision | exists    share     share     share     share     wait  rests rests rests rests  rests   destroy pass rests wait wait
stopped      wake      | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
stopped      stop      | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy pass wait wait wait
stopped      sleep     | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy pass wait wait wait
stopped      restart   | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
stopped      rotate    | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy wait wait wait wait
stopped      destroy   | exists    wait      wait      wait      wait      wait  rests rests rests rests  rests   destroy pass rests wait wait
failed       provision | exists    share     share     share     share     wait  rests rests rests rests  rests   destroy pass rests wait wait
failed       wake      | exists    share     share     share     share     share rests rests rests rests  rests   destroy pass rests wait wait
failed       stop      | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy pass wait wait wait
failed       sleep     | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy pass wait wait wait
failed       rotate    | exists    wait      wait      wait      wait      wait  wait  wait  wait  wait   rests   destroy wait wait wait wait
failed       destroy   | exists    wait      wait      wait      wait      wait  rests rests rests rests  rests   destroy pass rests wait wait
destroying   -         | exists    wait      wait      wait      wait      404   404   404   404   404    rests   404     pass 404 404 404
destroying   provision | exists    share     share     share     share     404   404   404   404   404    rests   404     pass 404 404 404
destroying   start     | exists    share     share     share     share     404   404   404   404   404    rests   404     pass 404 404 404
destroying   wake      | exists    share     share     share     share     404   404   404   404   404    rests   404     pass 404 404 404
destroying   stop      | exists    wait      wait      wait      wait      404   404   404   404   404    rests   404     pass 404 404 404
destroying   sleep     | exists    wait      wait      wait      wait      404   404   404   404   404    rests   404     pass 404 404 404
destroying   restart   | exists    share     share     share     share     404   404   404   404   404    rests   404     pass 404 404 404
destroying   rotate    | exists    wait      wait      wait      wait      404   404   404   404   404    rests   404     wait 404 404 404
";

/// Enumerates all changes; if one is missing here, this does not compile.
const fn next_change(change: Change) -> Option<Change> {
    match change {
        Change::Provision => Some(Change::Start),
        Change::Start => Some(Change::Wake),
        Change::Wake => Some(Change::Stop),
        Change::Stop => Some(Change::Sleep),
        Change::Sleep => Some(Change::Restart),
        Change::Restart => Some(Change::Rotate),
        Change::Rotate => Some(Change::Destroy),
        Change::Destroy => None,
    }
}

/// Enumerates all triggers in the same way.
const fn next_trigger(trigger: Trigger) -> Option<Trigger> {
    match trigger {
        Trigger::Provision => Some(ADMIT),
        Trigger::Admit { provision: false, wake: false } => Some(ADMIT_PROVISION),
        Trigger::Admit { provision: true, wake: false } => Some(ADMIT_WAKE),
        Trigger::Admit { provision: false, wake: true } => Some(ADMIT_BOTH),
        Trigger::Admit { provision: true, wake: true } => Some(Trigger::Start),
        Trigger::Start => Some(Trigger::Stop),
        Trigger::Stop => Some(Trigger::Sleep { if_idle: true }),
        Trigger::Sleep { if_idle: true } => Some(Trigger::Sleep { if_idle: false }),
        Trigger::Sleep { if_idle: false } => Some(Trigger::Rotate),
        Trigger::Rotate => Some(Trigger::Restart),
        Trigger::Restart => Some(Trigger::Destroy),
        Trigger::Destroy => Some(Trigger::Get),
        Trigger::Get => Some(Trigger::Proxy),
        Trigger::Proxy => Some(Trigger::ChangeVersion),
        Trigger::ChangeVersion => Some(Trigger::Maintain),
        Trigger::Maintain => None,
    }
}

fn decision_name(decision: Decision) -> &'static str {
    match decision {
        Decision::Pass => "pass",
        Decision::Deny(DenialReason::EngineNotFound) => "not_found",
        Decision::Deny(DenialReason::EngineSleeping) => "sleeping",
        Decision::Deny(DenialReason::EngineStopped) => "stopped",
        Decision::Deny(DenialReason::EngineUnhealthy) => "unhealthy",
        Decision::Refuse(Refusal::NotFound) => "404",
        Decision::Refuse(Refusal::AlreadyExists) => "exists",
        Decision::Refuse(Refusal::AlreadyRunning) => "runs",
        Decision::Refuse(Refusal::NotRunning) => "rests",
        Decision::Perform(change) => change.as_str(),
        Decision::Share => "share",
        Decision::Wait => "wait",
        Decision::AwaitRestart => "await",
    }
}

/// Parses a row into the engines that it describes (`None` is no engine) and the decisions about them. Whether a
/// restart is due makes a difference only to a failed engine without a change under way.
fn parse_row(row: &str) -> (Vec<Option<EngineView>>, Vec<&str>) {
    let (situation, decisions) = row.split_once('|').unwrap();
    let [name, change] = situation.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
    let change = Change::from_name(change).or_else(|| {
        assert_eq!(change, "-", "{row}");
        None
    });
    let status = EngineStatus::from_name(if name == "failing" { "failed" } else { name });
    let due: &[bool] = match (name, change) {
        ("failing", _) => &[true],
        ("failed", None) => &[false],
        _ => &[false, true],
    };
    let engines = status.map(|status| {
        due.iter().map(|due| Some(EngineView { status, change, restart_due: *due })).collect::<Vec<_>>()
    });
    assert!(engines.is_some() || name == "none", "{row}");
    (engines.unwrap_or_else(|| vec![None]), decisions.split_whitespace().collect())
}

fn rows() -> impl Iterator<Item = &'static str> {
    ROWS.trim().lines().chain(UNREACHABLE_ROWS.trim().lines())
}

#[test]
fn the_table_is_as_written() {
    for row in rows() {
        let (engines, expected) = parse_row(row);
        for engine in engines {
            let decided: Vec<_> =
                TRIGGERS.into_iter().map(|trigger| decision_name(decide(engine, trigger))).collect();
            assert_eq!(decided, expected, "{row}");
        }
    }
}

#[test]
fn the_table_has_every_cell_once() {
    let changes: Vec<_> = std::iter::successors(Some(Change::Provision), |at| next_change(*at)).collect();
    assert_eq!(changes.len(), Change::ALL.len());
    assert!(changes.iter().all(|change| Change::ALL.contains(change)));
    let triggers: Vec<_> = std::iter::successors(Some(Trigger::Provision), |at| next_trigger(*at)).collect();
    assert_eq!(triggers, TRIGGERS);
    let written: Vec<_> = rows().flat_map(|row| parse_row(row).0).collect();
    let once: HashSet<_> = written.iter().map(|engine| format!("{engine:?}")).collect();
    assert_eq!(once.len(), written.len(), "a duplicate row");
    let in_flight = || std::iter::once(None).chain(changes.iter().copied().map(Some));
    let engines = EngineStatus::ALL.into_iter().flat_map(|status| {
        in_flight().flat_map(move |change| {
            [false, true].map(|restart_due| Some(EngineView { status, change, restart_due }))
        })
    });
    let all: HashSet<_> = std::iter::once(None).chain(engines).map(|engine| format!("{engine:?}")).collect();
    assert_eq!(once, all);
}

#[test]
fn nothing_runs_into_two_changes_at_once() {
    for (engine, row) in rows().flat_map(|row| parse_row(row).0.into_iter().map(move |engine| (engine, row)))
    {
        for trigger in TRIGGERS {
            let performs = matches!(decide(engine, trigger), Decision::Perform(_));
            let changing = engine.is_some_and(|engine| engine.change.is_some());
            assert!(!(performs && changing) || trigger == Trigger::Destroy, "{row} {trigger:?}");
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
        (EngineStatus::Running, Change::Stop),
        (EngineStatus::Running, Change::Sleep),
        (EngineStatus::Running, Change::Rotate),
        (EngineStatus::Destroying, Change::Destroy),
    ] {
        for trigger in TRIGGERS {
            let engine = EngineView { status, change: Some(change), restart_due: false };
            let claimed = decide(Some(engine), trigger) == Decision::Share;
            assert_eq!(can_share(trigger, change), claimed, "{trigger:?} {change:?}");
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
