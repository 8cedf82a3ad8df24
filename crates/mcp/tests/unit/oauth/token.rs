use api::assets::ConnectionStatus;
use pretty_assertions::assert_eq;
use secrecy::ExposeSecret as _;
use testkit::with_deadline;

use super::fixture::{OAuthFixture, SERVER_NAME};
use crate::McpError;
use crate::request_auth::AuthError;

const REFRESH: &str = "POST /as/token";

#[tokio::test]
async fn a_token_is_refreshed_before_its_end_and_not_earlier() {
    for (lifetime_s, margin_s) in [(3_600, 60.0), (100, 10.0), (2, 0.2)] {
        let fixture = OAuthFixture::new().await;
        fixture.auth_server.behavior().access_token_lifetime_s = Some(lifetime_s);
        fixture.connect().await;
        let token = fixture.token().await.unwrap();
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        fixture.advance_clock(lifetime_s as f64 - margin_s - 0.001);
        assert_eq!(fixture.token().await.unwrap(), token);
        fixture.advance_clock(0.001);
        let other = fixture.token().await.unwrap();
        assert!(other != token && fixture.auth_server.accepts(&other));
        assert_eq!(fixture.auth_server.state().refresh_count, 1);
        fixture.assert_no_violations();
    }
}

#[tokio::test]
async fn a_token_without_an_end_is_good_until_it_is_refused() {
    let fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().access_token_lifetime_s = None;
    fixture.connect().await;
    let token = fixture.token().await.unwrap();
    fixture.advance_clock(1e9);
    assert_eq!(fixture.token().await.unwrap(), token);
    let other = fixture.token_except(Some(&token)).await.unwrap();
    assert_ne!(other, token);
    // Another call whose old token was refused gets the token that was refreshed meanwhile.
    assert_eq!(fixture.token_except(Some(&token)).await.unwrap(), other);
    assert_eq!(fixture.auth_server.state().refresh_count, 1);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn tokens_outlive_a_restart() {
    let mut fixture = OAuthFixture::new().await;
    fixture.connect().await;
    let token = fixture.token().await.unwrap();
    fixture.restart().await;
    assert_eq!(fixture.token().await.unwrap(), token);
    fixture.advance_clock(3_600.0);
    let other = fixture.token().await.unwrap();
    fixture.restart().await;
    assert_eq!(fixture.token().await.unwrap(), other);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn a_refresh_goes_on_when_all_who_wait_for_it_are_gone() {
    let fixture = OAuthFixture::new().await;
    fixture.connect().await;
    fixture.advance_clock(3_600.0);
    fixture.auth_server.behavior().holds_token_requests = true;
    let token_source = fixture.token_source();
    let mut waiting = token_source.token(None);
    while fixture.auth_server.request_count(REFRESH) < 2 {
        let outcome = tokio::time::timeout(std::time::Duration::from_millis(5), &mut waiting).await;
        assert!(outcome.is_err());
    }
    drop(waiting);
    fixture.auth_server.release();
    let token = fixture.token().await.unwrap();
    assert!(fixture.auth_server.accepts(&token));
    assert_eq!(fixture.auth_server.state().refresh_count, 1);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn a_leave_that_was_taken_back_is_noticed_once() {
    let mut fixture = OAuthFixture::new().await;
    fixture.connect().await;
    fixture.advance_clock(3_600.0);
    fixture.auth_server.revoke_consent();
    let error = fixture.token().await.unwrap_err();
    assert!(error.to_string().contains("`invalid_grant`") && error.to_string().contains("connect it again"));
    assert_eq!(fixture.status(), Some(ConnectionStatus::Expired));
    let request_count = fixture.auth_server.request_count(REFRESH);
    for _ in 0..10 {
        fixture.advance_clock(3_600.0);
        assert!(matches!(fixture.token_except(Some("other")).await, Err(AuthError::Expired(_))));
    }
    fixture.restart().await;
    assert!(matches!(fixture.token().await, Err(AuthError::Expired(_))));
    assert_eq!(fixture.auth_server.request_count(REFRESH), request_count);
    assert_eq!(fixture.status(), Some(ConnectionStatus::Expired));
    fixture.connect().await;
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    assert_eq!(fixture.status(), Some(ConnectionStatus::Connected));
    fixture.assert_no_violations();
}

#[tokio::test]
async fn an_authorization_server_in_trouble_is_asked_once_a_second() {
    let fixture = OAuthFixture::new().await;
    fixture.connect().await;
    let token = fixture.token().await.unwrap();
    for (status, body) in
        [(503, "no"), (500, r#"{"error": "server_error"}"#), (429, r#"{"error": "slow_down"}"#), (200, "no")]
    {
        fixture.advance_clock(3_599.0);
        fixture.auth_server.behavior().token_response = Some((status, body.into()));
        let request_count = fixture.auth_server.request_count(REFRESH);
        for _ in 0..20 {
            assert!(
                matches!(fixture.token_except(Some(&token)).await, Err(AuthError::Unavailable(_))),
                "{status}"
            );
        }
        assert_eq!(fixture.auth_server.request_count(REFRESH), request_count + 1);
        fixture.advance_clock(1.0);
        assert!(matches!(fixture.token_except(Some(&token)).await, Err(AuthError::Unavailable(_))));
        assert_eq!(fixture.auth_server.request_count(REFRESH), request_count + 2);
        assert_eq!(fixture.status(), Some(ConnectionStatus::Connected));
    }
    fixture.auth_server.behavior().token_response = None;
    fixture.advance_clock(1.0);
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    fixture.assert_no_violations();
}

#[tokio::test]
async fn while_a_token_is_good_trouble_with_its_refresh_does_not_show() {
    let fixture = OAuthFixture::new().await;
    fixture.connect().await;
    let token = fixture.token().await.unwrap();
    fixture.advance_clock(3_550.0);
    fixture.auth_server.behavior().token_response = Some((503, String::new()));
    assert_eq!(fixture.token().await.unwrap(), token);
    fixture.advance_clock(49.0);
    assert_eq!(fixture.token().await.unwrap(), token);
    fixture.advance_clock(1.0);
    assert!(matches!(fixture.token().await, Err(AuthError::Unavailable(_))));
    fixture.auth_server.behavior().token_response = None;
    fixture.advance_clock(1.0);
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    fixture.assert_no_violations();
}

#[tokio::test]
async fn without_a_refresh_token_the_end_is_the_end() {
    let fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().issues_refresh_tokens = false;
    fixture.connect().await;
    let token = fixture.token().await.unwrap();
    fixture.advance_clock(3_599.0);
    assert_eq!(fixture.token().await.unwrap(), token);
    fixture.advance_clock(1.0);
    assert!(matches!(fixture.token().await, Err(AuthError::Expired(_))));
    assert_eq!(fixture.status(), Some(ConnectionStatus::Expired));
    fixture.connect().await;
    let token = fixture.token().await.unwrap();
    assert!(matches!(fixture.token_except(Some(&token)).await, Err(AuthError::Expired(_))));
    assert_eq!(fixture.status(), Some(ConnectionStatus::Expired));
    assert_eq!(fixture.auth_server.request_count(REFRESH), 2);
}

#[tokio::test]
async fn a_new_leave_is_not_overwritten_by_a_refresh_of_the_old_one() {
    let fixture = OAuthFixture::new().await;
    fixture.connect().await;
    fixture.advance_clock(3_600.0);
    let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
    fixture.auth_server.behavior().holds_token_requests = true;
    let token_source = fixture.token_source();
    let refreshing = tokio::spawn(async move { token_source.token(None).await });
    let finishing = {
        let mcp = fixture.mcp.clone();
        tokio::spawn(async move { mcp.0.oauth.finish(callback).await })
    };
    while fixture.auth_server.request_count(REFRESH) < 3 {
        tokio::task::yield_now().await;
    }
    fixture.auth_server.release();
    with_deadline(finishing).await.unwrap().map(drop).unwrap();
    let refreshed = with_deadline(refreshing).await.unwrap();
    let token = fixture.token().await.unwrap();
    assert!(fixture.auth_server.accepts(&token));
    assert!(refreshed.is_ok_and(|old| fixture.auth_server.accepts(old.expose_secret())));
    // The new grant is stored: the old one could not be refreshed.
    fixture.advance_clock(3_600.0);
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    fixture.assert_no_violations();
}

#[tokio::test]
async fn tokens_that_cannot_be_stored_are_given_to_nobody_and_not_asked_for_again() {
    let fixture = OAuthFixture::new().await;
    fixture.connect().await;
    fixture.advance_clock(3_600.0);
    fixture.fail_writes().await;
    for _ in 0..3 {
        let error = fixture.token().await.unwrap_err().to_string();
        assert!(error.starts_with("its tokens could not be stored: "), "{error}");
    }
    assert_eq!(fixture.auth_server.state().refresh_count, 1);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn what_fails_for_an_end_does_not_cover_it_up() {
    let fixture = OAuthFixture::new().await;
    fixture.connect().await;
    fixture.auth_server.revoke_consent();
    fixture.advance_clock(3_600.0);
    fixture.token().await.unwrap_err();
    fixture.connections.record_failure(SERVER_NAME, ConnectionStatus::Error, "it cannot be listed").await;
    assert_eq!(fixture.status(), Some(ConnectionStatus::Expired));
}

#[tokio::test]
async fn a_refusal_that_is_none_for_good_leaves_a_token_that_is_still_good() {
    let fixture = OAuthFixture::new().await;
    fixture.connect().await;
    let token = fixture.token().await.unwrap();
    fixture.auth_server.behavior().token_response = Some((400, r#"{"error": "invalid_request"}"#.into()));
    fixture.advance_clock(3_550.0);
    assert_eq!(fixture.token().await.unwrap(), token);
    fixture.advance_clock(50.0);
    let error = fixture.token().await.unwrap_err();
    assert_eq!(error, AuthError::Unavailable("the authorization server refused: `invalid_request`".into()));
    assert_eq!(fixture.status(), Some(ConnectionStatus::Connected));
}

#[tokio::test]
async fn what_is_asked_for_before_the_engines_end_is_stored_and_nothing_is_asked_for_after_it_has_begun() {
    let mut fixture = OAuthFixture::new().await;
    fixture.connect().await;
    fixture.advance_clock(3_600.0);
    fixture.auth_server.behavior().holds_token_requests = true;
    let request_count = fixture.auth_server.request_count(REFRESH);
    let token_source = fixture.token_source();
    let refreshing = tokio::spawn(async move { token_source.token(None).await });
    while fixture.auth_server.request_count(REFRESH) == request_count {
        tokio::task::yield_now().await;
    }
    let mcp = fixture.mcp.clone();
    let closing = tokio::spawn(async move { mcp.close().await });
    while !fixture.connections.is_closing() {
        tokio::task::yield_now().await;
    }
    fixture.auth_server.release();
    with_deadline(closing).await.unwrap();
    let token = with_deadline(refreshing).await.unwrap().unwrap();
    fixture.restart().await;
    assert_eq!(fixture.token().await.unwrap(), token.expose_secret());

    let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
    fixture.mcp.close().await;
    let request_count = fixture.auth_server.request_count(REFRESH);
    assert!(matches!(fixture.finish(callback).await, Err(McpError::Stopping)));
    fixture.advance_clock(3_600.0);
    assert_eq!(fixture.token().await, Err(AuthError::Unavailable("the engine is stopping".into())));
    assert_eq!(
        (fixture.auth_server.request_count(REFRESH), fixture.status()),
        (request_count, Some(ConnectionStatus::Connected))
    );
    fixture.restart().await;
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    fixture.assert_no_violations();
}
