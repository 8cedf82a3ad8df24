//! Property tests of random event sequences: a call always has a token that the authorization server accepts, or
//! the user sees the reason; and no refresh token is used twice.

use api::assets::{Callback, ConnectionStatus};
use futures::future::join_all;
use proptest::prelude::*;

use super::fixture::OAuthFixture;
use crate::mcp::request_auth::AuthError;

/// An event.
#[derive(Clone, Debug)]
enum Event {
    /// Milliseconds pass.
    AdvanceMs(u32),
    /// This many calls are made concurrently.
    Call(usize),
    /// The user revokes the consent at the authorization server.
    RevokeConsent,
    /// The authorization server goes down, or is available again.
    AuthServerDown(bool),
    /// Refresh responses contain new refresh tokens, or not.
    Rotates(bool),
    Restart,
    Connect,
    Deny,
    Disconnect,
}

/// The expected state, from the user's point of view.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ConsentState {
    Never,
    Given,
    Revoked,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => prop_oneof![0_u32..400, 1_600_u32..2_400].prop_map(Event::AdvanceMs),
        5 => (1_usize..5).prop_map(Event::Call),
        1 => Just(Event::RevokeConsent),
        2 => any::<bool>().prop_map(Event::AuthServerDown),
        1 => any::<bool>().prop_map(Event::Rotates),
        1 => Just(Event::Restart),
        2 => Just(Event::Connect),
        1 => Just(Event::Deny),
        1 => Just(Event::Disconnect),
    ]
}

/// Makes a call; returns the token that the server finally accepted.
async fn call_with_retry(rig: &OAuthFixture) -> Result<String, AuthError> {
    let token = rig.token().await?;
    if rig.auth_server.accepts(&token) { Ok(token) } else { rig.token_except(Some(&token)).await }
}

async fn check_call(rig: &OAuthFixture, leave: ConsentState, trouble: bool, calls: usize) {
    for called in join_all((0..calls).map(|_| call_with_retry(rig))).await {
        match (called, leave) {
            (Ok(token), ConsentState::Given) => assert!(rig.auth_server.accepts(&token)),
            (Err(AuthError::Unavailable(_)), ConsentState::Given | ConsentState::Revoked) => assert!(trouble),
            (Err(AuthError::Expired(_)), ConsentState::Revoked) => {
                assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
            }
            (Err(AuthError::Expired(_)), ConsentState::Never) => {}
            (called, leave) => panic!("{called:?}, where the leave is {leave:?}"),
        }
    }
}

async fn run(events: Vec<Event>) {
    let mut rig = OAuthFixture::new().await;
    rig.auth_server.behavior().access_token_lifetime_s = Some(2);
    let (mut leave, mut trouble) = (ConsentState::Never, false);
    for event in events {
        match event {
            Event::AdvanceMs(ms) => rig.advance_clock(f64::from(ms) / 1_000.0),
            Event::Call(calls) => check_call(&rig, leave, trouble, calls).await,
            Event::RevokeConsent => {
                rig.auth_server.revoke_consent();
                leave = if leave == ConsentState::Given { ConsentState::Revoked } else { leave };
            }
            Event::AuthServerDown(begins) => {
                trouble = begins;
                rig.auth_server.behavior().token_response = begins.then(|| (503, String::new()));
                // The authorization server is not asked again for a second.
                rig.advance_clock(1.0);
            }
            Event::Rotates(rotates_refresh_tokens) => {
                rig.auth_server.behavior().rotates_refresh_tokens = rotates_refresh_tokens;
            }
            Event::Restart => rig.restart().await,
            Event::Connect => {
                let url = rig.authorize().await.unwrap();
                let finished = rig.finish(rig.auth_server.approve(&url)).await;
                assert_eq!(finished.is_err(), trouble);
                if finished.is_ok() {
                    rig.establish().await;
                    leave = ConsentState::Given;
                }
            }
            Event::Deny => {
                let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
                let denied = Callback { code: None, error: Some("access_denied".into()), ..callback };
                assert!(rig.finish(denied).await.is_err());
                assert_eq!(rig.status().is_some(), leave != ConsentState::Never);
            }
            Event::Disconnect => {
                rig.disconnect().await;
                leave = ConsentState::Never;
            }
        }
        rig.assert_no_violations();
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
