//! What the histories are made of: random plans.

use std::time::Duration;

use proptest::prelude::*;

use super::USERS;
use crate::backend::BackendError;
use crate::fleet::tests::model::{Ask, World};
use crate::testing::{Call as BackendCall, Fault};

/// What a history is made of.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// What goes before, one after the other.
    pub(super) before: Vec<Deed>,
    pub(super) quota: Option<usize>,
    /// After how many seconds engines sleep that nobody needs.
    pub(super) idle: Option<u64>,
    /// What each caller does, one after the other.
    pub(super) callers: Vec<Vec<Deed>>,
    pub(super) faults: Vec<(BackendCall, Fault)>,
    /// How long the backend takes for a change, once the faults are used up.
    pub(super) slow: Option<Duration>,
    /// From when, and how long, no engine answers.
    pub(super) silence: Option<(Duration, Duration)>,
}

impl Plan {
    /// What can happen in its history beside what is asked.
    pub(super) fn world(&self) -> World {
        let deeds = || self.before.iter().chain(self.callers.iter().flatten()).map(|deed| deed.what);
        let crashes = self.silence.is_some() || deeds().any(|what| matches!(what, What::Freeze));
        World {
            quota: self.quota,
            faults: crashes || self.faults.iter().any(|(_, fault)| is_felt(fault)),
            exits: deeds().any(|what| matches!(what, What::Crash)),
            slow: self.slow.is_some(),
            crashes,
            restarts: true,
            sleeps: self.idle.is_some(),
            rotations: deeds().any(|what| matches!(what, What::Ask(Ask::Rotate))),
        }
    }
}

/// One call, or one thing that befalls an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deed {
    pub(super) pause: Duration,
    pub(super) user: usize,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Ask(Ask),
    /// The engine ends by itself.
    Crash,
    /// The engine answers nothing any more.
    Freeze,
}

impl Deed {
    const fn at_once(user: usize, what: What) -> Self {
        Self { pause: Duration::ZERO, user, what }
    }
}

/// How a user's engine comes to be as the callers find it.
const BEFORE: [&[What]; 6] = [
    &[],
    &[What::Ask(Ask::Provision)],
    &[What::Ask(Ask::Provision)],
    &[What::Ask(Ask::Provision), What::Ask(Ask::Stop)],
    &[What::Ask(Ask::Provision), What::Ask(Ask::Sleep)],
    &[What::Ask(Ask::Provision), What::Crash],
];

pub(super) fn plans() -> impl Strategy<Value = Plan> {
    let users = prop_oneof![3 => Just(1), 2 => Just(2), 1 => Just(USERS.len())];
    let befores = prop::collection::vec(0..BEFORE.len(), USERS.len());
    let callers = prop::collection::vec(prop::collection::vec(deeds(), 1..5), 2..7);
    // Now and then the same goes wrong again and again, until callers give up.
    let again = (faults(), 4_usize..10).prop_map(|(fault, times)| vec![fault; times]);
    // Or engines do as they are told and say so too late: with silence after it, a key is in doubt.
    let unheard = (6_u64..20).prop_map(|by| (BackendCall::Rpc, Fault::Late(Duration::from_secs(by))));
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
            let before =
                |user: usize| BEFORE[befores[user]].iter().map(move |what| Deed::at_once(user, *what));
            Plan {
                before: (0..users).flat_map(before).collect(),
                quota,
                idle,
                callers,
                faults,
                slow,
                silence,
            }
        },
    )
}

fn deeds() -> impl Strategy<Value = Deed> {
    let admit = (any::<bool>(), any::<bool>()).prop_map(|(provision, wake)| Ask::Admit { provision, wake });
    let what = prop_oneof![
        3 => Just(Ask::Provision).prop_map(What::Ask),
        6 => admit.prop_map(What::Ask),
        4 => Just(Ask::Start).prop_map(What::Ask),
        4 => Just(Ask::Stop).prop_map(What::Ask),
        2 => Just(Ask::Delete).prop_map(What::Ask),
        3 => Just(Ask::Get).prop_map(What::Ask),
        2 => Just(Ask::Sleep).prop_map(What::Ask),
        3 => Just(Ask::Rotate).prop_map(What::Ask),
        2 => Just(What::Crash),
        1 => Just(What::Freeze),
    ];
    (pauses(), 0..USERS.len(), what).prop_map(|(pause, user, what)| Deed { pause, user, what })
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
        3 => (1_u64..50).prop_map(|by| Fault::Late(Duration::from_millis(by))),
        3 => (1_u64..45).prop_map(|by| Fault::Late(Duration::from_secs(by))),
        1 => Just(Fault::Exit),
    ];
    (call, fault)
}

/// What is answered so much later has not failed.
const NOTICED: Duration = Duration::from_secs(1);

/// Whether anything can fail by it.
fn is_felt(fault: &Fault) -> bool {
    !matches!(fault, Fault::Late(by) if *by < NOTICED)
}
