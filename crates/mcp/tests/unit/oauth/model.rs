//! Property tests of random event sequences: a call always has a token that the authorization server accepts, or
//! the user sees the reason; and no refresh token is used twice.

use api::assets::{Callback, ConnectionStatus};
use futures::future::join_all;
use proptest::prelude::*;

use super::fixture::OAuthFixture;
use crate::request_auth::AuthError;

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
async fn call_with_retry(fixture: &OAuthFixture) -> Result<String, AuthError> {
    let token = fixture.token().await?;
    if fixture.auth_server.accepts(&token) { Ok(token) } else { fixture.token_except(Some(&token)).await }
}

async fn check_call(fixture: &OAuthFixture, consent: ConsentState, is_down: bool, calls: usize) {
    for called in join_all((0..calls).map(|_| call_with_retry(fixture))).await {
        match (called, consent) {
            (Ok(token), ConsentState::Given) => assert!(fixture.auth_server.accepts(&token)),
            (Err(AuthError::Unavailable(_)), ConsentState::Given | ConsentState::Revoked) => assert!(is_down),
            (Err(AuthError::Expired(_)), ConsentState::Revoked) => {
                assert_eq!(fixture.status(), Some(ConnectionStatus::Expired));
            }
            (Err(AuthError::Expired(_)), ConsentState::Never) => {}
            (called, consent) => panic!("{called:?} with the consent {consent:?}"),
        }
    }
}

async fn run(events: Vec<Event>) {
    let mut fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().access_token_lifetime_s = Some(2);
    let (mut consent, mut is_down) = (ConsentState::Never, false);
    for event in events {
        match event {
            Event::AdvanceMs(ms) => fixture.advance_clock(f64::from(ms) / 1_000.0),
            Event::Call(calls) => check_call(&fixture, consent, is_down, calls).await,
            Event::RevokeConsent => {
                fixture.auth_server.revoke_consent();
                consent = if consent == ConsentState::Given { ConsentState::Revoked } else { consent };
            }
            Event::AuthServerDown(down) => {
                is_down = down;
                fixture.auth_server.behavior().token_response = down.then(|| (503, String::new()));
                // The authorization server is not asked again for a second.
                fixture.advance_clock(1.0);
            }
            Event::Rotates(rotates_refresh_tokens) => {
                fixture.auth_server.behavior().rotates_refresh_tokens = rotates_refresh_tokens;
            }
            Event::Restart => fixture.restart().await,
            Event::Connect => {
                let url = fixture.authorize().await.unwrap();
                let finished = fixture.finish(fixture.auth_server.approve(&url)).await;
                assert_eq!(finished.is_err(), is_down);
                if finished.is_ok() {
                    fixture.establish().await;
                    consent = ConsentState::Given;
                }
            }
            Event::Deny => {
                let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
                let denied = Callback { code: None, error: Some("access_denied".into()), ..callback };
                assert!(fixture.finish(denied).await.is_err());
                assert_eq!(fixture.status().is_some(), consent != ConsentState::Never);
            }
            Event::Disconnect => {
                fixture.disconnect().await;
                consent = ConsentState::Never;
            }
        }
        fixture.assert_no_violations();
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
