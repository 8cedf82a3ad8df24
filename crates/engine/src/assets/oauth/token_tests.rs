use contract::assets::ConnectionStatus;
use pretty_assertions::assert_eq;
use secrecy::ExposeSecret as _;

use super::rig::{Rig, SERVER};
use crate::assets::AssetsError;
use crate::assets::access::AccessError;
use crate::testing::within;

const REFRESH: &str = "POST /as/token";

#[tokio::test]
async fn a_token_is_refreshed_before_its_end_and_not_earlier() {
    for (life, early) in [(3_600, 60.0), (100, 10.0), (2, 0.2)] {
        let rig = Rig::new().await;
        rig.strict.rules().life = Some(life);
        rig.connect().await;
        let token = rig.token().await.unwrap();
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        rig.pass(life as f64 - early - 0.001);
        assert_eq!(rig.token().await.unwrap(), token);
        rig.pass(0.001);
        let other = rig.token().await.unwrap();
        assert!(other != token && rig.strict.takes(&other));
        assert_eq!(rig.strict.books().refreshed, 1);
        rig.check();
    }
}

#[tokio::test]
async fn a_token_without_an_end_is_good_until_it_is_refused() {
    let rig = Rig::new().await;
    rig.strict.rules().life = None;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.pass(1e9);
    assert_eq!(rig.token().await.unwrap(), token);
    let other = rig.token_but(Some(&token)).await.unwrap();
    assert_ne!(other, token);
    // Another call that was refused with the old one finds that somebody has refreshed it.
    assert_eq!(rig.token_but(Some(&token)).await.unwrap(), other);
    assert_eq!(rig.strict.books().refreshed, 1);
    rig.check();
}

#[tokio::test]
async fn tokens_outlive_a_restart() {
    let mut rig = Rig::new().await;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.restart().await;
    assert_eq!(rig.token().await.unwrap(), token);
    rig.pass(3_600.0);
    let other = rig.token().await.unwrap();
    rig.restart().await;
    assert_eq!(rig.token().await.unwrap(), other);
    rig.check();
}

#[tokio::test]
async fn a_refresh_goes_on_when_all_who_wait_for_it_are_gone() {
    let rig = Rig::new().await;
    rig.connect().await;
    rig.pass(3_600.0);
    rig.strict.rules().holds = true;
    let bearer = rig.bearer();
    let mut waiting = bearer.token(None);
    while rig.strict.asked(REFRESH) < 2 {
        let waits = tokio::time::timeout(std::time::Duration::from_millis(5), &mut waiting).await;
        assert!(waits.is_err());
    }
    drop(waiting);
    rig.strict.release();
    let token = rig.token().await.unwrap();
    assert!(rig.strict.takes(&token));
    assert_eq!(rig.strict.books().refreshed, 1);
    rig.check();
}

#[tokio::test]
async fn a_leave_that_was_taken_back_is_noticed_once() {
    let mut rig = Rig::new().await;
    rig.connect().await;
    rig.pass(3_600.0);
    rig.strict.take_back();
    let error = rig.token().await.unwrap_err();
    assert!(error.to_string().contains("`invalid_grant`") && error.to_string().contains("connect it again"));
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
    let asked = rig.strict.asked(REFRESH);
    for _ in 0..10 {
        rig.pass(3_600.0);
        assert!(matches!(rig.token_but(Some("other")).await, Err(AccessError::Expired(_))));
    }
    rig.restart().await;
    assert!(matches!(rig.token().await, Err(AccessError::Expired(_))));
    assert_eq!(rig.strict.asked(REFRESH), asked);
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
    rig.connect().await;
    assert!(rig.strict.takes(&rig.token().await.unwrap()));
    assert_eq!(rig.status(), Some(ConnectionStatus::Connected));
    rig.check();
}

#[tokio::test]
async fn an_authorization_server_in_trouble_is_asked_once_a_second() {
    let rig = Rig::new().await;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    for (status, body) in
        [(503, "no"), (500, r#"{"error": "server_error"}"#), (429, r#"{"error": "slow_down"}"#), (200, "no")]
    {
        rig.pass(3_599.0);
        rig.strict.rules().token_answer = Some((status, body.into()));
        let asked = rig.strict.asked(REFRESH);
        for _ in 0..20 {
            assert!(
                matches!(rig.token_but(Some(&token)).await, Err(AccessError::Unavailable(_))),
                "{status}"
            );
        }
        assert_eq!(rig.strict.asked(REFRESH), asked + 1);
        rig.pass(1.0);
        assert!(matches!(rig.token_but(Some(&token)).await, Err(AccessError::Unavailable(_))));
        assert_eq!(rig.strict.asked(REFRESH), asked + 2);
        assert_eq!(rig.status(), Some(ConnectionStatus::Connected));
    }
    rig.strict.rules().token_answer = None;
    rig.pass(1.0);
    assert!(rig.strict.takes(&rig.token().await.unwrap()));
    rig.check();
}

#[tokio::test]
async fn while_a_token_is_good_trouble_with_its_refresh_does_not_show() {
    let rig = Rig::new().await;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.pass(3_550.0);
    rig.strict.rules().token_answer = Some((503, String::new()));
    assert_eq!(rig.token().await.unwrap(), token);
    rig.pass(49.0);
    assert_eq!(rig.token().await.unwrap(), token);
    rig.pass(1.0);
    assert!(matches!(rig.token().await, Err(AccessError::Unavailable(_))));
    rig.strict.rules().token_answer = None;
    rig.pass(1.0);
    assert!(rig.strict.takes(&rig.token().await.unwrap()));
    rig.check();
}

#[tokio::test]
async fn without_a_refresh_token_the_end_is_the_end() {
    let rig = Rig::new().await;
    rig.strict.rules().refreshes = false;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.pass(3_599.0);
    assert_eq!(rig.token().await.unwrap(), token);
    rig.pass(1.0);
    assert!(matches!(rig.token().await, Err(AccessError::Expired(_))));
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
    rig.connect().await;
    let token = rig.token().await.unwrap();
    assert!(matches!(rig.token_but(Some(&token)).await, Err(AccessError::Expired(_))));
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
    assert_eq!(rig.strict.asked(REFRESH), 2);
}

#[tokio::test]
async fn a_new_leave_is_not_overwritten_by_a_refresh_of_the_old_one() {
    let rig = Rig::new().await;
    rig.connect().await;
    rig.pass(3_600.0);
    let callback = rig.strict.give_leave(&rig.authorize().await.unwrap());
    rig.strict.rules().holds = true;
    let bearer = rig.bearer();
    let refreshing = tokio::spawn(async move { bearer.token(None).await });
    let finishing = {
        let assets = rig.assets.clone();
        tokio::spawn(async move { assets.0.oauth.finish(callback).await })
    };
    while rig.strict.asked(REFRESH) < 3 {
        tokio::task::yield_now().await;
    }
    rig.strict.release();
    within(finishing).await.unwrap().map(drop).unwrap();
    let refreshed = within(refreshing).await.unwrap();
    let token = rig.token().await.unwrap();
    assert!(rig.strict.takes(&token));
    assert!(refreshed.is_ok_and(|old| rig.strict.takes(old.expose_secret())));
    // What is kept is the new leave: the old one could not be refreshed.
    rig.pass(3_600.0);
    assert!(rig.strict.takes(&rig.token().await.unwrap()));
    rig.check();
}

#[tokio::test]
async fn tokens_that_cannot_be_stored_are_given_to_nobody_and_not_asked_for_again() {
    let rig = Rig::new().await;
    rig.connect().await;
    rig.pass(3_600.0);
    rig.fail_writes().await;
    for _ in 0..3 {
        let error = rig.token().await.unwrap_err().to_string();
        assert!(error.starts_with("its tokens could not be stored: "), "{error}");
    }
    assert_eq!(rig.strict.books().refreshed, 1);
    rig.check();
}

#[tokio::test]
async fn what_fails_for_an_end_does_not_cover_it_up() {
    let rig = Rig::new().await;
    rig.connect().await;
    rig.strict.take_back();
    rig.pass(3_600.0);
    rig.token().await.unwrap_err();
    rig.connections.failed(SERVER, ConnectionStatus::Error, "it cannot be listed").await;
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
}

#[tokio::test]
async fn a_refusal_that_is_none_for_good_leaves_a_token_that_is_still_good() {
    let rig = Rig::new().await;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.strict.rules().token_answer = Some((400, r#"{"error": "invalid_request"}"#.into()));
    rig.pass(3_550.0);
    assert_eq!(rig.token().await.unwrap(), token);
    rig.pass(50.0);
    let error = rig.token().await.unwrap_err();
    assert_eq!(error, AccessError::Unavailable("the authorization server refuses: `invalid_request`".into()));
    assert_eq!(rig.status(), Some(ConnectionStatus::Connected));
}

#[tokio::test]
async fn what_is_asked_for_before_the_engines_end_is_stored_and_nothing_is_asked_for_after_it_has_begun() {
    let mut rig = Rig::new().await;
    rig.connect().await;
    rig.pass(3_600.0);
    rig.strict.rules().holds = true;
    let asked = rig.strict.asked(REFRESH);
    let bearer = rig.bearer();
    let refreshing = tokio::spawn(async move { bearer.token(None).await });
    while rig.strict.asked(REFRESH) == asked {
        tokio::task::yield_now().await;
    }
    let assets = rig.assets.clone();
    let closing = tokio::spawn(async move { assets.close().await });
    while !rig.connections.is_ending() {
        tokio::task::yield_now().await;
    }
    rig.strict.release();
    within(closing).await.unwrap();
    let token = within(refreshing).await.unwrap().unwrap();
    rig.restart().await;
    assert_eq!(rig.token().await.unwrap(), token.expose_secret());

    let callback = rig.strict.give_leave(&rig.authorize().await.unwrap());
    rig.assets.close().await;
    let asked = rig.strict.asked(REFRESH);
    assert!(matches!(rig.finish(callback).await, Err(AssetsError::Stopping)));
    rig.pass(3_600.0);
    assert_eq!(rig.token().await, Err(AccessError::Unavailable("the engine is stopping".into())));
    assert_eq!((rig.strict.asked(REFRESH), rig.status()), (asked, Some(ConnectionStatus::Connected)));
    rig.restart().await;
    assert!(rig.strict.takes(&rig.token().await.unwrap()));
    rig.check();
}
