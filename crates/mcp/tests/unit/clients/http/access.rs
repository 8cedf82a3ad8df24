//! Tests of the credentials sent to a server, and of their rejection.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

use catalog::ApiKeyLocation;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use secrecy::{ExposeSecret as _, SecretString};

use super::super::super::{CallOutcome, ClientError, ToolCall};
use super::*;
use crate::request_auth::{AuthError, RequestAuth, TokenSource};

/// A source that returns these tokens one after the other.
struct ScriptedTokens(Mutex<VecDeque<Result<&'static str, AuthError>>>);

impl ScriptedTokens {
    fn sequence(tokens: impl IntoIterator<Item = Result<&'static str, AuthError>>) -> RequestAuth {
        RequestAuth::OAuth(Arc::new(Self(Mutex::new(tokens.into_iter().collect()))))
    }
}

impl TokenSource for ScriptedTokens {
    fn token<'a>(
        &'a self,
        refused: Option<&'a SecretString>,
    ) -> BoxFuture<'a, Result<SecretString, AuthError>> {
        let mut tokens = self.0.lock().unwrap();
        if let (Some(refused), Some(Ok(current))) = (refused, tokens.front()) {
            assert_eq!(refused.expose_secret(), *current);
            tokens.pop_front();
        }
        let token = tokens.front().cloned().unwrap();
        async { token.map(|token| SecretString::from(token.to_owned())) }.boxed()
    }
}

fn require_token(sent: &ReceivedRequest, good: &str) -> Response {
    if sent.header("authorization") != Some(&format!("Bearer {good}")) {
        let challenge = [("www-authenticate", "Bearer error=\"invalid_token\"")];
        return (StatusCode::UNAUTHORIZED, challenge).into_response();
    }
    handshake_response(sent, |call| call.result(&text("well")))
}

/// Returns a server that rejects all requests while the flag is set.
async fn refusable_server() -> (Arc<AtomicBool>, FakeServer) {
    let refuses = Arc::new(AtomicBool::new(false));
    let is_refusing = Arc::clone(&refuses);
    let fake = FakeServer::start(move |sent| {
        if is_refusing.load(Ordering::Acquire) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        handshake_response(sent, |call| call.result(&text("well")))
    });
    (refuses, fake.await)
}

fn oauth() -> Auth {
    Auth::OAuth { scopes: Vec::new(), client: None }
}

async fn call_as(
    fixture: &ClientFixture,
    spec: &Arc<McpServerSpec>,
    access: RequestAuth,
) -> Result<CallOutcome, ClientError> {
    let call: ToolCall<'_> = tool_call("echo", json!({}));
    with_deadline(fixture.clients.call(spec, access, call)).await
}

#[tokio::test]
async fn a_token_that_is_refused_is_renewed_once() {
    let fixture = ClientFixture::new();
    let fake = FakeServer::start(|sent| require_token(sent, "new")).await;
    let access = ScriptedTokens::sequence([Ok("old"), Ok("new")]);
    assert_eq!(expect_done(call_as(&fixture, &fake.spec_with(oauth()), access).await), "well");
    let never = ScriptedTokens::sequence([Ok("old"), Ok("older"), Ok("oldest")]);
    fixture.clients.drop_client("server");
    let reason = expect_failure(call_as(&fixture, &fake.spec_with(oauth()), never).await);
    assert!(reason.contains("rejected the user's credentials"), "{reason}");
}

#[tokio::test]
async fn a_user_who_must_connect_again_is_told_so() {
    let fixture = ClientFixture::new();
    let fake = FakeServer::start(|sent| require_token(sent, "new")).await;
    let expired = AuthError::Expired("invalid_grant".into());
    let access = ScriptedTokens::sequence([Ok("old"), Err(expired.clone())]);
    let error = call_as(&fixture, &fake.spec_with(oauth()), access).await.unwrap_err();
    assert_eq!(error, ClientError::Auth(expired));
}

#[tokio::test]
async fn a_key_goes_where_the_catalog_says() {
    for (location, header, value) in [
        (ApiKeyLocation::Bearer, "authorization", "Bearer k-1"),
        (ApiKeyLocation::Header("x-key".parse().unwrap()), "x-key", "k-1"),
    ] {
        let fixture = ClientFixture::new();
        let fake =
            FakeServer::start(|sent| handshake_response(sent, |call| call.result(&text("well")))).await;
        let access = RequestAuth::ApiKey(SecretString::from("k-1"));
        assert_eq!(
            expect_done(call_as(&fixture, &fake.spec_with(Auth::ApiKey(location)), access).await),
            "well"
        );
        let sent = fake.requests.lock().unwrap().clone();
        assert!(sent.iter().all(|sent| sent.header(header) == Some(value)));
    }
}

#[tokio::test]
async fn a_key_that_is_refused_shows_in_the_connection_until_it_is_taken() {
    let fixture = ClientFixture::new();
    let (refuses, fake) = refusable_server().await;
    let spec = fake.spec_with(Auth::ApiKey(ApiKeyLocation::Bearer));
    fixture.connect(&spec).await;
    let key = || RequestAuth::ApiKey(SecretString::from("k-1"));
    assert_eq!(expect_done(call_as(&fixture, &spec, key()).await), "well");
    refuses.store(true, Ordering::Release);
    let reason = expect_failure(call_as(&fixture, &spec, key()).await);
    assert!(reason.contains("rejected the user's credentials (401)"), "{reason}");
    assert_eq!(fixture.status(), ConnectionStatus::Error);
    refuses.store(false, Ordering::Release);
    assert_eq!(expect_done(call_as(&fixture, &spec, key()).await), "well");
    assert_eq!(fixture.status(), ConnectionStatus::Connected);
}

#[tokio::test]
async fn a_token_that_is_refused_as_soon_as_a_client_is_made_ends_the_leave() {
    let fixture = ClientFixture::new();
    let (refuses, fake) = refusable_server().await;
    let spec = fake.spec_with(oauth());
    fixture.connect(&spec).await;
    fixture.clients.drop_client("server");
    refuses.store(true, Ordering::Release);
    let reason =
        expect_failure(call_as(&fixture, &spec, ScriptedTokens::sequence([Ok("old"), Ok("new")])).await);
    assert!(reason.contains("rejected the user's credentials (401)"), "{reason}");
    assert_eq!(fixture.status(), ConnectionStatus::Expired);
}

#[tokio::test]
async fn a_key_is_not_sent_elsewhere() {
    let fixture = ClientFixture::new();
    let other = FakeServer::start(|sent| handshake_response(sent, |call| call.result(&text("stolen")))).await;
    let redirect_target = other.url.to_string();
    let fake = FakeServer::start(move |_| {
        (StatusCode::TEMPORARY_REDIRECT, [("location", redirect_target.as_str())]).into_response()
    })
    .await;
    let access = RequestAuth::ApiKey(SecretString::from("k-1"));
    let reason = expect_failure(
        call_as(&fixture, &fake.spec_with(Auth::ApiKey(ApiKeyLocation::Bearer)), access).await,
    );
    assert!(reason.contains("307"), "{reason}");
    assert!(other.requests.lock().unwrap().is_empty());
}
