//! OAuth that dies silently. Tokens are refreshed once however many calls need them, the end of a consent shows at
//! once and is not queried again, and a refresh token is kept if no new one comes.

use std::collections::HashSet;

use api::assets::ConnectionStatus;
use futures::future::join_all;
use mcp::fixture::{AuthError, OAuthFixture};

const CALLS: usize = 50;
const ROUNDS: usize = 10;

/// Returns the token or error of each of many concurrent calls.
async fn concurrent_tokens(fixture: &OAuthFixture) -> Vec<Result<String, AuthError>> {
    join_all((0..CALLS).map(|_| fixture.token())).await
}

#[tokio::test]
async fn regression_e08_tokens_of_two_seconds_are_refreshed_once_for_fifty_calls_at_once() {
    let fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().access_token_lifetime_s = Some(2);
    fixture.connect().await;
    for round in 1..=ROUNDS {
        fixture.advance_clock(2.0);
        let tokens: HashSet<String> =
            concurrent_tokens(&fixture).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(tokens.len(), 1, "all have the same token");
        assert!(tokens.iter().all(|token| fixture.auth_server.accepts(token)));
        assert_eq!(fixture.auth_server.state().refresh_count, round);
    }
    assert_eq!(fixture.status(), Some(ConnectionStatus::Connected));
    fixture.assert_no_violations();
}

#[tokio::test]
async fn regression_e08_the_end_of_a_leave_shows_at_once_and_is_not_asked_about_again() {
    let fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().access_token_lifetime_s = Some(2);
    fixture.connect().await;
    fixture.auth_server.revoke_consent();
    fixture.advance_clock(2.0);
    let request_count = fixture.auth_server.request_count("POST /as/token");
    for _ in 0..ROUNDS {
        assert!(concurrent_tokens(&fixture).await.iter().all(Result::is_err));
        assert_eq!(fixture.status(), Some(ConnectionStatus::Expired));
        fixture.advance_clock(2.0);
    }
    assert_eq!(fixture.auth_server.request_count("POST /as/token"), request_count + 1);
    fixture.connect().await;
    assert_eq!(fixture.status(), Some(ConnectionStatus::Connected));
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    fixture.assert_no_violations();
}

#[tokio::test]
async fn regression_e08_a_refresh_token_is_kept_where_no_other_comes() {
    let fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().access_token_lifetime_s = Some(2);
    fixture.connect().await;
    fixture.auth_server.behavior().rotates_refresh_tokens = false;
    for round in 1..=ROUNDS {
        fixture.advance_clock(2.0);
        assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
        assert_eq!(fixture.auth_server.state().refresh_count, round);
    }
    fixture.assert_no_violations();
}
