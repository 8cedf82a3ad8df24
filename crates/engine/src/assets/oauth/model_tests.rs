//! Whatever happens, in whatever order: a call has a token that the authorization server takes, or there is a reason
//! that a user can see; and no refresh token is used twice.

use contract::assets::{Callback, ConnectionStatus};
use futures::future::join_all;
use proptest::prelude::*;

use super::rig::Rig;
use crate::assets::access::AccessError;

/// What happens.
#[derive(Clone, Debug)]
enum Event {
    /// Milliseconds pass.
    Pass(u32),
    /// This many calls are made at once.
    Call(usize),
    /// The user takes the leave back at the authorization server.
    TakeBack,
    /// The authorization server is in trouble, or is well again.
    Trouble(bool),
    /// Refresh answers bring other refresh tokens, or not.
    Rotates(bool),
    Restart,
    Connect,
    Deny,
    Disconnect,
}

/// What there is, as the user would say it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leave {
    Never,
    Given,
    TakenBack,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => prop_oneof![0_u32..400, 1_600_u32..2_400].prop_map(Event::Pass),
        5 => (1_usize..5).prop_map(Event::Call),
        1 => Just(Event::TakeBack),
        2 => any::<bool>().prop_map(Event::Trouble),
        1 => any::<bool>().prop_map(Event::Rotates),
        1 => Just(Event::Restart),
        2 => Just(Event::Connect),
        1 => Just(Event::Deny),
        1 => Just(Event::Disconnect),
    ]
}

/// A call: the token that the server took at last, if there was one.
async fn call(rig: &Rig) -> Result<String, AccessError> {
    let token = rig.token().await?;
    if rig.strict.takes(&token) { Ok(token) } else { rig.token_but(Some(&token)).await }
}

async fn check_call(rig: &Rig, leave: Leave, trouble: bool, calls: usize) {
    for called in join_all((0..calls).map(|_| call(rig))).await {
        match (called, leave) {
            (Ok(token), Leave::Given) => assert!(rig.strict.takes(&token)),
            (Err(AccessError::Unavailable(_)), Leave::Given | Leave::TakenBack) => assert!(trouble),
            (Err(AccessError::Expired(_)), Leave::TakenBack) => {
                assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
            }
            (Err(AccessError::Expired(_)), Leave::Never) => {}
            (called, leave) => panic!("{called:?}, where the leave is {leave:?}"),
        }
    }
}

async fn run(events: Vec<Event>) {
    let mut rig = Rig::new().await;
    rig.strict.rules().life = Some(2);
    let (mut leave, mut trouble) = (Leave::Never, false);
    for event in events {
        match event {
            Event::Pass(ms) => rig.pass(f64::from(ms) / 1_000.0),
            Event::Call(calls) => check_call(&rig, leave, trouble, calls).await,
            Event::TakeBack => {
                rig.strict.take_back();
                leave = if leave == Leave::Given { Leave::TakenBack } else { leave };
            }
            Event::Trouble(begins) => {
                trouble = begins;
                rig.strict.rules().token_answer = begins.then(|| (503, String::new()));
                // It is left alone for a second.
                rig.pass(1.0);
            }
            Event::Rotates(rotates) => rig.strict.rules().rotates = rotates,
            Event::Restart => rig.restart().await,
            Event::Connect => {
                let url = rig.authorize().await.unwrap();
                let finished = rig.finish(rig.strict.give_leave(&url)).await;
                assert_eq!(finished.is_err(), trouble);
                if finished.is_ok() {
                    rig.stand().await;
                    leave = Leave::Given;
                }
            }
            Event::Deny => {
                let callback = rig.strict.give_leave(&rig.authorize().await.unwrap());
                let denied = Callback { code: None, error: Some("access_denied".into()), ..callback };
                assert!(rig.finish(denied).await.is_err());
                assert_eq!(rig.status().is_some(), leave != Leave::Never);
            }
            Event::Disconnect => {
                rig.disconnect().await;
                leave = Leave::Never;
            }
        }
        rig.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn a_call_has_a_good_token_or_a_reason_why_not(events in prop::collection::vec(event(), 1..25)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(events));
    }
}
