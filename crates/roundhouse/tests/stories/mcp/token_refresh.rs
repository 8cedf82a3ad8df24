//! OAuth tokens that expire, are refreshed, and are revoked.

use std::time::{Duration, Instant};

use futures::future::join_all;
use mock_llm::Reply;
use serde_json::json;

use super::{ProtectedServer, call_tool_in_turn, only_connection};
use crate::support::engine_calls::direct_message;
use crate::support::tool_programs::{done_reply, tool_results};
use crate::support::turn::assert_completed;
use crate::support::{Peers, eventually};

#[tokio::test]
async fn tokens_are_renewed_once_for_all_who_call() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::with_token_ttl(&peers, 2).await;
    protected.connect().await;
    let start = Instant::now();
    let callers = (0..8).map(async |caller: u32| {
        let mut calls = 0;
        while start.elapsed() < Duration::from_secs(9) {
            let sum = protected.engine().tool_output("peer__add", json!({"a": caller, "b": calls})).await;
            assert_eq!(sum.trim(), (caller + calls).to_string());
            calls += 1;
        }
        calls
    });
    let calls: u32 = join_all(callers).await.into_iter().sum();
    let (refreshed, failed) = protected.authorization_server.refresh_counts().await;
    assert_eq!(failed, 0, "each rotated refresh token is used once");
    // A token lives for two seconds, and may be refreshed shortly before it expires.
    let seconds = usize::try_from(start.elapsed().as_secs()).unwrap();
    assert!(
        (3..=seconds + 2).contains(&refreshed),
        "refreshed {refreshed} times in {seconds} s and {calls} calls"
    );
    assert_eq!(only_connection(protected.engine()).await["status"], "connected");
}

#[tokio::test]
async fn calls_of_one_answer_share_one_renewal() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::with_token_ttl(&peers, 3600).await;
    protected.connect().await;
    // All access tokens so far are expired, so that each call needs a new one.
    for round in 0..3_u32 {
        let before = protected.authorization_server.refresh_counts().await;
        protected.authorization_server.expire_access_tokens().await;
        let calls =
            (0..6).fold(Reply::new(), |reply, b| reply.tool_use("peer__add", json!({"a": round, "b": b})));
        protected.fixture.provider.enqueue_all([calls, done_reply()]);
        let task = format!("task-{round}");
        let mut stream = protected.engine().execute_with(&direct_message(&task, "Add.")).await;
        for _ in 0..6 {
            stream.read_until("a request", |event| event.kind == "hitl_request").await;
            protected.engine().respond(&task, "yes").await.assert_ok("status:text request_id:hitl");
        }
        let events = stream.collect().await;
        assert_completed(&events);
        assert!(tool_results(&events).iter().all(Result::is_ok), "{events:#?}");
        let after = protected.authorization_server.refresh_counts().await;
        assert_eq!((after.0 - before.0, after.1), (1, 0), "one refresh for six calls");
    }
}

#[tokio::test]
async fn leave_that_is_taken_back_is_noticed_and_can_be_given_again() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::with_token_ttl(&peers, 2).await;
    let id = protected.connect().await;
    protected.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await;
    protected.authorization_server.revoke_grants().await;
    let error = call_tool_in_turn(&protected.fixture, "task", "peer__add", json!({"a": 2, "b": 3}))
        .await
        .unwrap_err();
    assert!(error.contains("connect"), "it says what to do: {error}");
    let listed = only_connection(protected.engine()).await;
    assert_eq!((&listed["status"], &listed["connection"]), (&json!("expired"), &json!(id)), "{listed}");
    assert!(listed["error"].as_str().is_some_and(|error| !error.is_empty()), "it says why: {listed}");
    assert_eq!(protected.engine().servers().await[0]["connected"], false);
    let (_, failed) = protected.authorization_server.refresh_counts().await;
    assert_eq!(failed, 1, "the refresh is tried only once");

    assert_eq!(protected.connect().await, id, "the same connection");
    let listed = only_connection(protected.engine()).await;
    assert_eq!((&listed["status"], listed.get("error")), (&json!("connected"), None));
    assert_eq!(
        call_tool_in_turn(&protected.fixture, "again", "peer__add", json!({"a": 2, "b": 3}))
            .await
            .unwrap()
            .trim(),
        "5"
    );
}

#[tokio::test]
async fn an_authorization_server_that_is_away_for_a_while_ends_no_connection() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::with_token_ttl(&peers, 2).await;
    protected.connect().await;
    protected.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await;
    protected.authorization_server.configure(json!({"down": true})).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let answer = protected.engine().call_tool("peer__add", json!({"a": 2, "b": 3})).await;
    assert_ne!(answer.status, 200, "{}", answer.body);
    assert_ne!(
        only_connection(protected.engine()).await["status"],
        "expired",
        "the refresh token may still be valid"
    );
    protected.authorization_server.configure(json!({"down": false})).await;
    eventually("it works again", async || {
        let answer = protected.engine().call_tool("peer__add", json!({"a": 2, "b": 3})).await;
        (answer.status == 200).then_some(())
    })
    .await;
    assert_eq!(only_connection(protected.engine()).await["status"], "connected");
}

#[tokio::test]
async fn tokens_are_renewed_after_a_restart() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::with_token_ttl(&peers, 2).await;
    protected.connect().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut protected = protected;
    for round in 1..=2 {
        protected = protected.restart().await;
        assert_eq!(
            protected.engine().tool_output("peer__add", json!({"a": 2, "b": round})).await.trim(),
            (2 + round).to_string()
        );
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(protected.authorization_server.refresh_counts().await.1, 0, "the refreshed tokens are stored");
}
