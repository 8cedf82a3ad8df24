//! Strategies for random plans, from which the histories are made.

use std::time::Duration;

use backend::BackendError;
use proptest::prelude::*;

use super::USERS;
use crate::fleet::tests::model::{Environment, Request};
use crate::testing::{BackendCall, Fault};

/// The plan of a history.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The actions before the callers start, one after the other.
    pub(super) setup: Vec<PlannedAction>,
    pub(super) quota: Option<usize>,
    /// The idle threshold of the policy, in seconds.
    pub(super) idle_threshold_s: Option<u64>,
    /// The actions of each caller, one after the other.
    pub(super) callers: Vec<Vec<PlannedAction>>,
    pub(super) faults: Vec<(BackendCall, Fault)>,
    /// The time that the backend takes for a change once the faults are used up.
    pub(super) backend_delay: Option<Duration>,
    /// The start and the length of a period in which no engine answers.
    pub(super) outage: Option<(Duration, Duration)>,
}

impl Plan {
    /// What can happen in its history besides the calls.
    pub(super) fn environment(&self) -> Environment {
        let actions = || self.setup.iter().chain(self.callers.iter().flatten()).map(|action| action.kind);
        let crashes = self.outage.is_some() || actions().any(|kind| matches!(kind, ActionKind::Freeze));
        Environment {
            quota: self.quota,
            faults: crashes || self.faults.iter().any(|(_, fault)| can_cause_failure(fault)),
            exits: actions().any(|kind| matches!(kind, ActionKind::Crash)),
            slow: self.backend_delay.is_some(),
            crashes,
            restarts: true,
            sleeps: self.idle_threshold_s.is_some(),
            rotations: actions().any(|kind| matches!(kind, ActionKind::Request(Request::Rotate))),
        }
    }
}

/// A call, or an event that happens to an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedAction {
    pub(super) pause: Duration,
    pub(super) user: usize,
    pub(super) kind: ActionKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ActionKind {
    Request(Request),
    /// The engine exits by itself.
    Crash,
    /// The engine does not answer any more.
    Freeze,
}

impl PlannedAction {
    const fn immediately(user: usize, kind: ActionKind) -> Self {
        Self { pause: Duration::ZERO, user, kind }
    }
}

/// The actions that bring a user's engine into the state in which the callers find it.
const SETUPS: [&[ActionKind]; 6] = [
    &[],
    &[ActionKind::Request(Request::Provision)],
    &[ActionKind::Request(Request::Provision)],
    &[ActionKind::Request(Request::Provision), ActionKind::Request(Request::Stop)],
    &[ActionKind::Request(Request::Provision), ActionKind::Request(Request::Sleep)],
    &[ActionKind::Request(Request::Provision), ActionKind::Crash],
];

pub(super) fn plans() -> impl Strategy<Value = Plan> {
    let users = prop_oneof![3 => Just(1), 2 => Just(2), 1 => Just(USERS.len())];
    let setup_indices = prop::collection::vec(0..SETUPS.len(), USERS.len());
    let callers = prop::collection::vec(prop::collection::vec(actions(), 1..5), 2..7);
    // Sometimes the same fault repeats until callers give up.
    let repeated = (faults(), 4_usize..10).prop_map(|(fault, times)| vec![fault; times]);
    // Or engines execute a command and respond too late: if they do not answer afterwards, a key is in doubt.
    let lost_replies =
        (6_u64..20).prop_map(|delay| (BackendCall::Rpc, Fault::Delay(Duration::from_secs(delay))));
    let lost_replies = prop::collection::vec(lost_replies, 1..6);
    let faults = prop_oneof![
        2 => Just(Vec::new()),
        5 => prop::collection::vec(faults(), 1..10),
        2 => lost_replies,
        1 => repeated,
    ];
    let outage = prop::option::weighted(0.3, (pauses(), (1_u64..150).prop_map(Duration::from_secs)));
    let backend_delay = prop::option::weighted(0.6, (1_u64..12).prop_map(Duration::from_secs));
    let quota = prop::option::weighted(0.4, 0..=USERS.len());
    let idle = prop::option::weighted(0.4, 1_u64..40);
    (users, setup_indices, quota, idle, callers, faults, backend_delay, outage).prop_map(
        |(users, setup_indices, quota, idle, mut callers, faults, backend_delay, outage)| {
            for action in callers.iter_mut().flatten() {
                action.user %= users;
            }
            let setup = |user: usize| {
                SETUPS[setup_indices[user]].iter().map(move |kind| PlannedAction::immediately(user, *kind))
            };
            Plan {
                setup: (0..users).flat_map(setup).collect(),
                quota,
                idle_threshold_s: idle,
                callers,
                faults,
                backend_delay,
                outage,
            }
        },
    )
}

fn actions() -> impl Strategy<Value = PlannedAction> {
    let admit =
        (any::<bool>(), any::<bool>()).prop_map(|(provision, wake)| Request::Admit { provision, wake });
    let kind = prop_oneof![
        3 => Just(Request::Provision).prop_map(ActionKind::Request),
        6 => admit.prop_map(ActionKind::Request),
        4 => Just(Request::Start).prop_map(ActionKind::Request),
        4 => Just(Request::Stop).prop_map(ActionKind::Request),
        2 => Just(Request::Delete).prop_map(ActionKind::Request),
        3 => Just(Request::Get).prop_map(ActionKind::Request),
        2 => Just(Request::Sleep).prop_map(ActionKind::Request),
        3 => Just(Request::Rotate).prop_map(ActionKind::Request),
        2 => Just(ActionKind::Crash),
        1 => Just(ActionKind::Freeze),
    ];
    (pauses(), 0..USERS.len(), kind).prop_map(|(pause, user, kind)| PlannedAction { pause, user, kind })
}

/// Most actions happen immediately or shortly after each other.
fn pauses() -> impl Strategy<Value = Duration> {
    prop_oneof![
        4 => Just(0_u64),
        4 => 1_u64..20,
        2 => 1_000_u64..30_000,
    ]
    .prop_map(Duration::from_millis)
}

fn faults() -> impl Strategy<Value = (BackendCall, Fault)> {
    let call = prop_oneof![
        4 => Just(BackendCall::Launch),
        4 => Just(BackendCall::Stop),
        2 => Just(BackendCall::Remove),
        2 => Just(BackendCall::Kill),
        1 => Just(BackendCall::Ping),
        1 => Just(BackendCall::CheckImage),
        1 => Just(BackendCall::List),
        4 => Just(BackendCall::Rpc),
    ];
    let fault = prop_oneof![
        2 => Just(Fault::Hang),
        1 => Just(Fault::Error(BackendError::Unreachable("connection refused".into()))),
        1 => Just(Fault::Error(BackendError::Failed("broken".into()))),
        3 => (1_u64..50).prop_map(|delay| Fault::Delay(Duration::from_millis(delay))),
        3 => (1_u64..45).prop_map(|delay| Fault::Delay(Duration::from_secs(delay))),
        1 => Just(Fault::Exit),
    ];
    (call, fault)
}

/// A response that is delayed by less than this causes no failure.
const MIN_NOTICED_DELAY: Duration = Duration::from_secs(1);

/// Whether the fault can make a call fail.
fn can_cause_failure(fault: &Fault) -> bool {
    !matches!(fault, Fault::Delay(delay) if *delay < MIN_NOTICED_DELAY)
}
