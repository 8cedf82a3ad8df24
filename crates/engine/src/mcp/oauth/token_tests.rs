use api::assets::ConnectionStatus;
use pretty_assertions::assert_eq;
use secrecy::ExposeSecret as _;

use super::fixture::{OAuthFixture, SERVER_NAME};
use crate::mcp::McpError;
use crate::mcp::request_auth::AuthError;
use crate::testing::with_deadline;

const REFRESH: &str = "POST /as/token";

#[tokio::test]
async fn a_token_is_refreshed_before_its_end_and_not_earlier() {
    for (life, early) in [(3_600, 60.0), (100, 10.0), (2, 0.2)] {
        let rig = OAuthFixture::new().await;
        rig.auth_server.behavior().access_token_lifetime_s = Some(life);
        rig.connect().await;
        let token = rig.token().await.unwrap();
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        rig.advance_clock(life as f64 - early - 0.001);
        assert_eq!(rig.token().await.unwrap(), token);
        rig.advance_clock(0.001);
        let other = rig.token().await.unwrap();
        assert!(other != token && rig.auth_server.accepts(&other));
        assert_eq!(rig.auth_server.state().refresh_count, 1);
        rig.assert_no_violations();
    }
}

#[tokio::test]
async fn a_token_without_an_end_is_good_until_it_is_refused() {
    let rig = OAuthFixture::new().await;
    rig.auth_server.behavior().access_token_lifetime_s = None;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.advance_clock(1e9);
    assert_eq!(rig.token().await.unwrap(), token);
    let other = rig.token_except(Some(&token)).await.unwrap();
    assert_ne!(other, token);
    // Another call whose old token was refused gets the token that was refreshed meanwhile.
    assert_eq!(rig.token_except(Some(&token)).await.unwrap(), other);
    assert_eq!(rig.auth_server.state().refresh_count, 1);
    rig.assert_no_violations();
}

#[tokio::test]
async fn tokens_outlive_a_restart() {
    let mut rig = OAuthFixture::new().await;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.restart().await;
    assert_eq!(rig.token().await.unwrap(), token);
    rig.advance_clock(3_600.0);
    let other = rig.token().await.unwrap();
    rig.restart().await;
    assert_eq!(rig.token().await.unwrap(), other);
    rig.assert_no_violations();
}

#[tokio::test]
async fn a_refresh_goes_on_when_all_who_wait_for_it_are_gone() {
    let rig = OAuthFixture::new().await;
    rig.connect().await;
    rig.advance_clock(3_600.0);
    rig.auth_server.behavior().holds_token_requests = true;
    let bearer = rig.token_source();
    let mut waiting = bearer.token(None);
    while rig.auth_server.request_count(REFRESH) < 2 {
        let waits = tokio::time::timeout(std::time::Duration::from_millis(5), &mut waiting).await;
        assert!(waits.is_err());
    }
    drop(waiting);
    rig.auth_server.release();
    let token = rig.token().await.unwrap();
    assert!(rig.auth_server.accepts(&token));
    assert_eq!(rig.auth_server.state().refresh_count, 1);
    rig.assert_no_violations();
}

#[tokio::test]
async fn a_leave_that_was_taken_back_is_noticed_once() {
    let mut rig = OAuthFixture::new().await;
    rig.connect().await;
    rig.advance_clock(3_600.0);
    rig.auth_server.revoke_consent();
    let error = rig.token().await.unwrap_err();
    assert!(error.to_string().contains("`invalid_grant`") && error.to_string().contains("connect it again"));
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
    let asked = rig.auth_server.request_count(REFRESH);
    for _ in 0..10 {
        rig.advance_clock(3_600.0);
        assert!(matches!(rig.token_except(Some("other")).await, Err(AuthError::Expired(_))));
    }
    rig.restart().await;
    assert!(matches!(rig.token().await, Err(AuthError::Expired(_))));
    assert_eq!(rig.auth_server.request_count(REFRESH), asked);
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
    rig.connect().await;
    assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
    assert_eq!(rig.status(), Some(ConnectionStatus::Connected));
    rig.assert_no_violations();
}

#[tokio::test]
async fn an_authorization_server_in_trouble_is_asked_once_a_second() {
    let rig = OAuthFixture::new().await;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    for (status, body) in
        [(503, "no"), (500, r#"{"error": "server_error"}"#), (429, r#"{"error": "slow_down"}"#), (200, "no")]
    {
        rig.advance_clock(3_599.0);
        rig.auth_server.behavior().token_response = Some((status, body.into()));
        let asked = rig.auth_server.request_count(REFRESH);
        for _ in 0..20 {
            assert!(
                matches!(rig.token_except(Some(&token)).await, Err(AuthError::Unavailable(_))),
                "{status}"
            );
        }
        assert_eq!(rig.auth_server.request_count(REFRESH), asked + 1);
        rig.advance_clock(1.0);
        assert!(matches!(rig.token_except(Some(&token)).await, Err(AuthError::Unavailable(_))));
        assert_eq!(rig.auth_server.request_count(REFRESH), asked + 2);
        assert_eq!(rig.status(), Some(ConnectionStatus::Connected));
    }
    rig.auth_server.behavior().token_response = None;
    rig.advance_clock(1.0);
    assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
    rig.assert_no_violations();
}

#[tokio::test]
async fn while_a_token_is_good_trouble_with_its_refresh_does_not_show() {
    let rig = OAuthFixture::new().await;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.advance_clock(3_550.0);
    rig.auth_server.behavior().token_response = Some((503, String::new()));
    assert_eq!(rig.token().await.unwrap(), token);
    rig.advance_clock(49.0);
    assert_eq!(rig.token().await.unwrap(), token);
    rig.advance_clock(1.0);
    assert!(matches!(rig.token().await, Err(AuthError::Unavailable(_))));
    rig.auth_server.behavior().token_response = None;
    rig.advance_clock(1.0);
    assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
    rig.assert_no_violations();
}

#[tokio::test]
async fn without_a_refresh_token_the_end_is_the_end() {
    let rig = OAuthFixture::new().await;
    rig.auth_server.behavior().issues_refresh_tokens = false;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.advance_clock(3_599.0);
    assert_eq!(rig.token().await.unwrap(), token);
    rig.advance_clock(1.0);
    assert!(matches!(rig.token().await, Err(AuthError::Expired(_))));
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
    rig.connect().await;
    let token = rig.token().await.unwrap();
    assert!(matches!(rig.token_except(Some(&token)).await, Err(AuthError::Expired(_))));
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
    assert_eq!(rig.auth_server.request_count(REFRESH), 2);
}

#[tokio::test]
async fn a_new_leave_is_not_overwritten_by_a_refresh_of_the_old_one() {
    let rig = OAuthFixture::new().await;
    rig.connect().await;
    rig.advance_clock(3_600.0);
    let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
    rig.auth_server.behavior().holds_token_requests = true;
    let bearer = rig.token_source();
    let refreshing = tokio::spawn(async move { bearer.token(None).await });
    let finishing = {
        let assets = rig.mcp.clone();
        tokio::spawn(async move { assets.0.oauth.finish(callback).await })
    };
    while rig.auth_server.request_count(REFRESH) < 3 {
        tokio::task::yield_now().await;
    }
    rig.auth_server.release();
    with_deadline(finishing).await.unwrap().map(drop).unwrap();
    let refresh_count = with_deadline(refreshing).await.unwrap();
    let token = rig.token().await.unwrap();
    assert!(rig.auth_server.accepts(&token));
    assert!(refresh_count.is_ok_and(|old| rig.auth_server.accepts(old.expose_secret())));
    // The new grant is stored: the old one could not be refreshed.
    rig.advance_clock(3_600.0);
    assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
    rig.assert_no_violations();
}

#[tokio::test]
async fn tokens_that_cannot_be_stored_are_given_to_nobody_and_not_asked_for_again() {
    let rig = OAuthFixture::new().await;
    rig.connect().await;
    rig.advance_clock(3_600.0);
    rig.fail_writes().await;
    for _ in 0..3 {
        let error = rig.token().await.unwrap_err().to_string();
        assert!(error.starts_with("its tokens could not be stored: "), "{error}");
    }
    assert_eq!(rig.auth_server.state().refresh_count, 1);
    rig.assert_no_violations();
}

#[tokio::test]
async fn what_fails_for_an_end_does_not_cover_it_up() {
    let rig = OAuthFixture::new().await;
    rig.connect().await;
    rig.auth_server.revoke_consent();
    rig.advance_clock(3_600.0);
    rig.token().await.unwrap_err();
    rig.connections.record_failure(SERVER_NAME, ConnectionStatus::Error, "it cannot be listed").await;
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
}

#[tokio::test]
async fn a_refusal_that_is_none_for_good_leaves_a_token_that_is_still_good() {
    let rig = OAuthFixture::new().await;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.auth_server.behavior().token_response = Some((400, r#"{"error": "invalid_request"}"#.into()));
    rig.advance_clock(3_550.0);
    assert_eq!(rig.token().await.unwrap(), token);
    rig.advance_clock(50.0);
    let error = rig.token().await.unwrap_err();
    assert_eq!(error, AuthError::Unavailable("the authorization server refuses: `invalid_request`".into()));
    assert_eq!(rig.status(), Some(ConnectionStatus::Connected));
}

#[tokio::test]
async fn what_is_asked_for_before_the_engines_end_is_stored_and_nothing_is_asked_for_after_it_has_begun() {
    let mut rig = OAuthFixture::new().await;
    rig.connect().await;
    rig.advance_clock(3_600.0);
    rig.auth_server.behavior().holds_token_requests = true;
    let asked = rig.auth_server.request_count(REFRESH);
    let bearer = rig.token_source();
    let refreshing = tokio::spawn(async move { bearer.token(None).await });
    while rig.auth_server.request_count(REFRESH) == asked {
        tokio::task::yield_now().await;
    }
    let assets = rig.mcp.clone();
    let closing_events = tokio::spawn(async move { assets.close().await });
    while !rig.connections.is_closing() {
        tokio::task::yield_now().await;
    }
    rig.auth_server.release();
    with_deadline(closing_events).await.unwrap();
    let token = with_deadline(refreshing).await.unwrap().unwrap();
    rig.restart().await;
    assert_eq!(rig.token().await.unwrap(), token.expose_secret());

    let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
    rig.mcp.close().await;
    let asked = rig.auth_server.request_count(REFRESH);
    assert!(matches!(rig.finish(callback).await, Err(McpError::Stopping)));
    rig.advance_clock(3_600.0);
    assert_eq!(rig.token().await, Err(AuthError::Unavailable("the engine is stopping".into())));
    assert_eq!(
        (rig.auth_server.request_count(REFRESH), rig.status()),
        (asked, Some(ConnectionStatus::Connected))
    );
    rig.restart().await;
    assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
    rig.assert_no_violations();
}
