//! OAuth that dies silently. Tokens are refreshed once however many calls need them, the end of a leave shows at once and
//! is not asked about again, and a refresh token is kept where no other comes.

use std::collections::HashSet;

use contract::assets::ConnectionStatus;
use futures::future::join_all;

use crate::assets::rig::{AccessError, Rig};

const CALLS: usize = 50;
const ROUNDS: usize = 10;

/// What each of many calls at once is given.
async fn calls(rig: &Rig) -> Vec<Result<String, AccessError>> {
    join_all((0..CALLS).map(|_| rig.token())).await
}

#[tokio::test]
async fn lesson_e08_tokens_of_two_seconds_are_refreshed_once_for_fifty_calls_at_once() {
    let rig = Rig::new().await;
    rig.strict.rules().life = Some(2);
    rig.connect().await;
    for round in 1..=ROUNDS {
        rig.pass(2.0);
        let tokens: HashSet<String> = calls(&rig).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(tokens.len(), 1, "all have the same token");
        assert!(tokens.iter().all(|token| rig.strict.takes(token)));
        assert_eq!(rig.strict.books().refreshed, round);
    }
    assert_eq!(rig.status(), Some(ConnectionStatus::Connected));
    rig.check();
}

#[tokio::test]
async fn lesson_e08_the_end_of_a_leave_shows_at_once_and_is_not_asked_about_again() {
    let rig = Rig::new().await;
    rig.strict.rules().life = Some(2);
    rig.connect().await;
    rig.strict.take_back();
    rig.pass(2.0);
    let asked = rig.strict.asked("POST /as/token");
    for _ in 0..ROUNDS {
        assert!(calls(&rig).await.iter().all(Result::is_err));
        assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
        rig.pass(2.0);
    }
    assert_eq!(rig.strict.asked("POST /as/token"), asked + 1);
    rig.connect().await;
    assert_eq!(rig.status(), Some(ConnectionStatus::Connected));
    assert!(rig.strict.takes(&rig.token().await.unwrap()));
    rig.check();
}

#[tokio::test]
async fn lesson_e08_a_refresh_token_is_kept_where_no_other_comes() {
    let rig = Rig::new().await;
    rig.strict.rules().life = Some(2);
    rig.connect().await;
    rig.strict.rules().rotates = false;
    for round in 1..=ROUNDS {
        rig.pass(2.0);
        assert!(rig.strict.takes(&rig.token().await.unwrap()));
        assert_eq!(rig.strict.books().refreshed, round);
    }
    rig.check();
}
