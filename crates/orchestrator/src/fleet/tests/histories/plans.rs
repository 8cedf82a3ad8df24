//! What the histories are made of: random plans.

use std::time::Duration;

use proptest::prelude::*;

use super::USERS;
use crate::backend::BackendError;
use crate::fleet::tests::model::{Environment, Request};
use crate::testing::{BackendCall, Fault};

/// What a history is made of.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// What goes before, one after the other.
    pub(super) setup: Vec<PlannedAction>,
    pub(super) quota: Option<usize>,
    /// After how many seconds engines sleep that nobody needs.
    pub(super) idle_threshold_s: Option<u64>,
    /// What each caller does, one after the other.
    pub(super) callers: Vec<Vec<PlannedAction>>,
    pub(super) faults: Vec<(BackendCall, Fault)>,
    /// How long the backend takes for a change, once the faults are used up.
    pub(super) backend_delay: Option<Duration>,
    /// From when, and how long, no engine answers.
    pub(super) outage: Option<(Duration, Duration)>,
}

impl Plan {
    /// What can happen in its history beside what is asked.
    pub(super) fn environment(&self) -> Environment {
        let actions = || self.setup.iter().chain(self.callers.iter().flatten()).map(|deed| deed.kind);
        let crashes = self.outage.is_some() || actions().any(|what| matches!(what, ActionKind::Freeze));
        Environment {
            quota: self.quota,
            faults: crashes || self.faults.iter().any(|(_, fault)| can_cause_failure(fault)),
            exits: actions().any(|what| matches!(what, ActionKind::Crash)),
            slow: self.backend_delay.is_some(),
            crashes,
            restarts: true,
            sleeps: self.idle_threshold_s.is_some(),
            rotations: actions().any(|what| matches!(what, ActionKind::Request(Request::Rotate))),
        }
    }
}

/// One call, or one thing that befalls an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedAction {
    pub(super) pause: Duration,
    pub(super) user: usize,
    pub(super) kind: ActionKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ActionKind {
    Request(Request),
    /// The engine ends by itself.
    Crash,
    /// The engine answers nothing any more.
    Freeze,
}

impl PlannedAction {
    const fn immediately(user: usize, what: ActionKind) -> Self {
        Self { pause: Duration::ZERO, user, kind: what }
    }
}

/// How a user's engine comes to be as the callers find it.
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
    let befores = prop::collection::vec(0..SETUPS.len(), USERS.len());
    let callers = prop::collection::vec(prop::collection::vec(actions(), 1..5), 2..7);
    // Now and then the same goes wrong again and again, until callers give up.
    let again = (faults(), 4_usize..10).prop_map(|(fault, times)| vec![fault; times]);
    // Or engines do as they are told and say so too late: with silence after it, a key is in doubt.
    let unheard = (6_u64..20).prop_map(|by| (BackendCall::Rpc, Fault::Delay(Duration::from_secs(by))));
    let unheard = prop::collection::vec(unheard, 1..6);
    let faults = prop_oneof![
        2 => Just(Vec::new()),
        5 => prop::collection::vec(faults(), 1..10),
        2 => unheard,
        1 => again,
    ];
    let silence = prop::option::weighted(0.3, (pauses(), (1_u64..150).prop_map(Duration::from_secs)));
    let slow = prop::option::weighted(0.6, (1_u64..12).prop_map(Duration::from_secs));
    let quota = prop::option::weighted(0.4, 0..=USERS.len());
    let idle = prop::option::weighted(0.4, 1_u64..40);
    (users, befores, quota, idle, callers, faults, slow, silence).prop_map(
        |(users, befores, quota, idle, mut callers, faults, slow, silence)| {
            for deed in callers.iter_mut().flatten() {
                deed.user %= users;
            }
            let before = |user: usize| {
                SETUPS[befores[user]].iter().map(move |what| PlannedAction::immediately(user, *what))
            };
            Plan {
                setup: (0..users).flat_map(before).collect(),
                quota,
                idle_threshold_s: idle,
                callers,
                faults,
                backend_delay: slow,
                outage: silence,
            }
        },
    )
}

fn actions() -> impl Strategy<Value = PlannedAction> {
    let admit =
        (any::<bool>(), any::<bool>()).prop_map(|(provision, wake)| Request::Admit { provision, wake });
    let what = prop_oneof![
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
    (pauses(), 0..USERS.len(), what).prop_map(|(pause, user, what)| PlannedAction { pause, user, kind: what })
}

/// Most things happen at once or shortly after each other.
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
        3 => (1_u64..50).prop_map(|by| Fault::Delay(Duration::from_millis(by))),
        3 => (1_u64..45).prop_map(|by| Fault::Delay(Duration::from_secs(by))),
        1 => Just(Fault::Exit),
    ];
    (call, fault)
}

/// What is answered so much later has not failed.
const MIN_NOTICED_DELAY: Duration = Duration::from_secs(1);

/// Whether anything can fail by it.
fn can_cause_failure(fault: &Fault) -> bool {
    !matches!(fault, Fault::Delay(by) if *by < MIN_NOTICED_DELAY)
}
