#[path = "flow/registration.rs"]
mod registration;

use api::assets::{Callback, ConnectionStatus};
use catalog::{OAuthClientConfig, Secret};
use mock_auth::MetadataLocation;
use mock_auth::endpoints::IMPOSTOR_METADATA_PATH;
use pretty_assertions::assert_eq;
use reqwest::header::HeaderMap;
use secrecy::ExposeSecret as _;
use serde_json::json;
use testkit::{LogCapture, with_deadline};

use super::fixture::{CLIENT_METADATA_URL, OAuthFixture, REDIRECT_URI, SERVER_NAME};
use super::*;

/// Returns a parameter of an authorization request.
fn field(url: &str, name: &str) -> Option<String> {
    let url = Url::parse(url).unwrap();
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

fn failure<T>(result: Result<T, McpError>) -> String {
    match result {
        Ok(_) => panic!("it did not fail"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn a_user_who_gives_leave_has_a_connection() {
    let fixture = OAuthFixture::new().await;
    let url = fixture.authorize().await.unwrap();
    assert_eq!(fixture.status(), Some(ConnectionStatus::Pending));
    assert_eq!(field(&url, "scope"), None);
    let finished = fixture.finish(fixture.auth_server.approve(&url)).await.unwrap();
    assert_eq!(finished.spec.name, SERVER_NAME);
    assert_eq!(finished.redirect_to.unwrap().as_str(), "https://product.example/done");
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    let state = fixture.auth_server.state();
    let client = state.clients.values().next().unwrap();
    assert_eq!(client.metadata["redirect_uris"], json!([REDIRECT_URI]));
    drop(state);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn wherever_an_authorization_server_is_described_it_is_found() {
    for described in [
        MetadataLocation::ProtectedResource,
        MetadataLocation::OpenId,
        MetadataLocation::AuthorizationServer,
        MetadataLocation::DefaultEndpoints,
    ] {
        let fixture = OAuthFixture::new().await;
        {
            let mut behavior = fixture.auth_server.behavior();
            behavior.metadata_location = described;
            behavior.advertises_issuer = described != MetadataLocation::DefaultEndpoints;
            if described == MetadataLocation::AuthorizationServer {
                behavior.issuer = Some(fixture.auth_server.base_url().into());
            }
        }
        fixture.connect().await;
        assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
        fixture.advance_clock(3_600.0);
        assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
        fixture.assert_no_violations();
    }
}

/// Returns a private network address of this machine, if it has one.
fn private_address() -> Option<std::net::IpAddr> {
    ["10.0.0.1", "172.17.0.1", "192.168.0.1"].into_iter().find_map(|target| {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect((target, 9)).ok()?;
        let local = socket.local_addr().ok()?.ip();
        (fetch::special_purpose(local) == Some("a private network")).then_some(local)
    })
}

#[tokio::test]
async fn a_server_in_a_private_network_may_have_its_authorization_server_there() {
    let Some(address) = private_address() else {
        let required = std::env::var("ROUNDHOUSE_REQUIRE_ALL").is_ok_and(|value| value == "1");
        assert!(!required, "there is no address in a private network here, and ROUNDHOUSE_REQUIRE_ALL=1");
        eprintln!("skipped: this machine has no address in a private network");
        return;
    };
    let fixture = OAuthFixture::with_address(address).await;
    fixture.connect().await;
    fixture.advance_clock(3_600.0);
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    fixture.assert_no_violations();
}

#[tokio::test]
async fn the_scopes_are_those_that_the_server_asks_for() {
    for (challenge, of_resource, known, expected) in [
        (Some("a b"), &["c"] as &'static [_], &["a", "b", "c", "d"] as &'static [_], Some("a b")),
        (None, &["c"], &["c", "d", "offline_access"], Some("c offline_access")),
        (None, &[], &["c", "d"], None),
    ] {
        let fixture = OAuthFixture::new().await;
        {
            let mut behavior = fixture.auth_server.behavior();
            (behavior.challenge_scope, behavior.resource_scopes, behavior.scopes) =
                (challenge, of_resource, known);
        }
        let url = fixture.authorize().await.unwrap();
        fixture.auth_server.check_authorization_request(&url);
        assert_eq!(field(&url, "scope").as_deref(), expected);
    }
}

#[tokio::test]
async fn a_state_is_good_once_for_ten_minutes_and_outlives_a_restart() {
    let mut fixture = OAuthFixture::new().await;
    let unknown = Callback {
        state: Some("x".repeat(43)),
        ..fixture.auth_server.approve(&fixture.authorize().await.unwrap())
    };
    assert!(matches!(fixture.finish(unknown).await, Err(McpError::InvalidState)));

    let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
    fixture.restart().await;
    fixture.finish(callback.clone()).await.unwrap();
    let exchanged = fixture.auth_server.request_count("POST /as/token");
    assert!(matches!(fixture.finish(callback).await, Err(McpError::InvalidState)));

    let old = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
    fixture.advance_clock(600.0);
    assert!(matches!(fixture.finish(old).await, Err(McpError::InvalidState)));
    assert_eq!(fixture.auth_server.request_count("POST /as/token"), exchanged);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn of_two_answers_with_one_state_one_is_taken() {
    let fixture = OAuthFixture::new().await;
    let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
    let (one, other) = tokio::join!(fixture.finish(callback.clone()), fixture.finish(callback));
    assert!(one.is_ok() != other.is_ok());
    assert_eq!(fixture.auth_server.request_count("POST /as/token"), 1);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn an_answer_of_another_authorization_server_is_refused_and_nothing_is_stored() {
    let fixture = OAuthFixture::new().await;
    for iss in
        [Some("https://evil.example".to_owned()), Some(format!("{}/", fixture.auth_server.issuer())), None]
    {
        let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
        let callback = Callback { iss, ..callback };
        assert!(matches!(fixture.finish(callback.clone()).await, Err(McpError::InvalidIssuer)));
        assert_eq!(fixture.status(), None);
        // The state is used up, even for an answer with the right issuer.
        let callback = Callback { iss: Some(fixture.auth_server.issuer()), ..callback };
        assert!(matches!(fixture.finish(callback).await, Err(McpError::InvalidState)));
    }
    // An error, too, counts only from the server that was asked.
    let denied = Callback {
        code: None,
        iss: Some("https://evil.example".into()),
        error: Some("access_denied".into()),
        ..fixture.auth_server.approve(&fixture.authorize().await.unwrap())
    };
    assert!(matches!(fixture.finish(denied).await, Err(McpError::InvalidIssuer)));
    assert_eq!(fixture.auth_server.request_count("POST /as/token"), 0);
}

#[tokio::test]
async fn a_server_that_does_not_name_itself_need_not() {
    let fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().advertises_issuer = false;
    let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
    assert_eq!(callback.iss, None);
    fixture.finish(callback).await.unwrap();
    // If it sends an issuer nevertheless, it must be the right one.
    let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
    let callback = Callback { iss: Some("https://evil.example".into()), ..callback };
    assert!(matches!(fixture.finish(callback).await, Err(McpError::InvalidIssuer)));
}

#[tokio::test]
async fn a_user_who_gives_no_leave_has_no_connection_and_keeps_an_old_one() {
    let fixture = OAuthFixture::new().await;
    let denied = |callback: Callback| Callback {
        code: None,
        error: Some("access_denied".into()),
        error_description: Some(format!("The user\r\n\u{1b}[31m said no{}", "!".repeat(5_000))),
        ..callback
    };
    let callback = denied(fixture.auth_server.approve(&fixture.authorize().await.unwrap()));
    let error = failure(fixture.finish(callback.clone()).await);
    assert!(
        error.starts_with("the authorization server denied access: access_denied: The user[31m said no!!")
    );
    assert!(error.len() < 400);
    assert_eq!(fixture.status(), None);
    assert!(matches!(fixture.finish(callback).await, Err(McpError::InvalidState)));

    fixture.connect().await;
    let token = fixture.token().await.unwrap();
    let callback = denied(fixture.auth_server.approve(&fixture.authorize().await.unwrap()));
    assert!(matches!(fixture.finish(callback).await, Err(McpError::Denied(_))));
    assert_eq!(fixture.status(), Some(ConnectionStatus::Connected));
    assert_eq!(fixture.token().await.unwrap(), token);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn an_answer_without_its_parts_is_refused_and_uses_nothing_up() {
    let fixture = OAuthFixture::new().await;
    let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
    let without_state = failure(fixture.finish(Callback { state: None, ..callback.clone() }).await);
    assert!(without_state.starts_with("`state`: must be given"), "{without_state}");
    let without_code = failure(fixture.finish(Callback { code: None, ..callback.clone() }).await);
    assert!(without_code.starts_with("`code`: must be given"), "{without_code}");
    fixture.finish(callback).await.unwrap();
}

#[tokio::test]
async fn an_exchange_that_fails_stores_nothing_and_tells_no_secret() {
    let fixture = OAuthFixture::new().await;
    for (status, body, expected) in [
        (400, r#"{"error": "invalid_grant", "error_description": "No such code: CODE"}"#, "`invalid_grant`"),
        (
            401,
            r#"{"error": "invalid_client", "error_description": "Missing client_id"}"#,
            "(Missing client_id)",
        ),
        (503, "code-secret", "503"),
        (302, "", "302"),
        (200, r#"{"access_token": "access-secret"}"#, "no readable token"),
        (200, r#"{"error": "bad_verification_code"}"#, "`bad_verification_code`"),
        (200, r#"{"access_token": "access-secret", "token_type": "mac"}"#, "other than `Bearer`"),
        (200, r#"{"access_token": "access-secret\n", "token_type": "Bearer"}"#, "an invalid token"),
    ] {
        let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
        let code = callback.code.clone().unwrap();
        fixture.auth_server.behavior().token_response = Some((status, body.replace("CODE", &code)));
        let error = failure(fixture.finish(callback).await);
        assert!(error.contains(expected) && !error.contains("-secret") && !error.contains(&code), "{error}");
        assert_eq!(fixture.status(), None);
        assert!(fixture.token().await.is_err());
    }
    // The redirect was not followed.
    assert_eq!(
        fixture.auth_server.request_count("POST /token") + fixture.auth_server.request_count("GET /token"),
        0
    );
}

#[tokio::test]
async fn a_callback_for_a_server_that_is_another_by_now_is_refused() {
    let fixture = OAuthFixture::new().await;
    let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
    let elsewhere = Transport::Http {
        url: Url::parse("https://other.example/mcp").unwrap(),
        headers: HeaderMap::default(),
    };
    fixture
        .mcp
        .set_server_specs(&[Arc::new(McpServerSpec { transport: elsewhere, ..(*fixture.spec).clone() })]);
    let finished = fixture.oauth().finish(callback).await;
    assert!(matches!(finished, Err(McpError::InvalidState)));
    assert_eq!(fixture.auth_server.request_count("POST /as/token"), 0);
}

#[tokio::test]
async fn metadata_that_cannot_be_trusted_are_refused() {
    type Rule = fn(&mut mock_auth::Behavior);
    let cases: [(Rule, &str); 7] = [
        (|behavior| behavior.pkce = None, "PKCE with S256"),
        (|behavior| behavior.pkce = Some("plain"), "PKCE with S256"),
        (|behavior| behavior.authorization_endpoint = Some("javascript:alert(1)".into()), "cannot be used"),
        (|behavior| behavior.token_endpoint = Some("file:///etc/passwd".into()), "cannot be used"),
        (|behavior| behavior.issuer = Some("https://evil.example".into()), "issuer mismatch"),
        (
            |behavior| behavior.authorization_server = Some("http://169.254.169.254/".into()),
            "none published usable",
        ),
        (|behavior| behavior.allows_registration = false, "it has no registration endpoint"),
    ];
    for (rule, expected) in cases {
        let fixture = OAuthFixture::new().await;
        rule(&mut fixture.auth_server.behavior());
        let error = failure(fixture.authorize().await);
        assert!(error.contains(expected), "{error}");
        assert!(error.starts_with("the server `notes` cannot be connected: "), "{error}");
        assert_eq!(fixture.status(), None);
    }
}

#[tokio::test]
async fn who_speaks_in_an_issuers_name_is_not_believed() {
    let fixture = OAuthFixture::new().await;
    let impostor = format!("{}{IMPOSTOR_METADATA_PATH}", fixture.auth_server.base_url());
    fixture.auth_server.behavior().authorization_server = Some(impostor);
    let error = failure(fixture.authorize().await);
    assert!(error.contains("does not confirm"), "{error}");
    assert_eq!((fixture.status(), fixture.auth_server.request_count("POST /as/register")), (None, 0));
}

#[tokio::test]
async fn without_settings_it_is_said_which_one_is_missing() {
    let fixture = OAuthFixture::new().await;
    let parts = || (Arc::clone(&fixture.connections), Arc::clone(&fixture.mcp.0.directory));
    let oauth = OAuth::new(parts(), None, None);
    assert!(failure(oauth.authorize(&fixture.spec, None).await).contains("OAUTH_REDIRECT_BASE_URL"));
    assert!(failure(oauth.client_metadata()).contains("OAUTH_REDIRECT_BASE_URL"));
    let base = Url::parse("https://product.example").unwrap();
    let oauth = OAuth::new(parts(), Some(base), None);
    assert!(failure(oauth.client_metadata()).contains("OAUTH_CLIENT_METADATA_URL"));
}

#[tokio::test]
async fn tokens_are_revoked_and_the_registration_stays() {
    let fixture = OAuthFixture::new().await;
    fixture.connect().await;
    let token = fixture.token().await.unwrap();
    fixture.disconnect().await;
    assert!(!fixture.auth_server.accepts(&token));
    assert_eq!(fixture.auth_server.state().revoked_token_hints, ["refresh_token", "access_token"]);
    assert!(matches!(fixture.token().await, Err(AuthError::Expired(_))));
    fixture.connect().await;
    assert_eq!(fixture.auth_server.request_count("POST /as/register"), 1);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn a_revocation_that_fails_or_cannot_be_keeps_nobody_from_disconnecting() {
    let fixture = OAuthFixture::new().await;
    fixture.connect().await;
    fixture.auth_server.state().clients.clear();
    fixture.disconnect().await;
    assert_eq!(fixture.status(), None);
    assert_eq!(fixture.auth_server.request_count("POST /as/revoke"), 2);
    assert!(fixture.auth_server.state().revoked_token_hints.is_empty());

    let fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().supports_revocation = false;
    fixture.connect().await;
    fixture.disconnect().await;
    assert_eq!(fixture.status(), None);
    assert_eq!(fixture.auth_server.request_count("POST /as/revoke"), 0);
}

#[tokio::test]
async fn nothing_secret_is_logged_at_any_level() {
    let log = LogCapture::start(tracing::Level::TRACE);
    let fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().client_auth_method = "client_secret_basic";
    let url = fixture.authorize().await.unwrap();
    fixture.finish(fixture.auth_server.approve(&url)).await.unwrap();
    fixture.establish().await;
    fixture.advance_clock(3_600.0);
    fixture.token().await.unwrap();
    fixture.auth_server.behavior().token_response = Some((200, "access-secret".into()));
    fixture.advance_clock(3_600.0);
    fixture.token().await.unwrap_err();
    fixture.auth_server.behavior().token_response = None;
    fixture.auth_server.revoke_consent();
    fixture.advance_clock(1.0);
    fixture.token().await.unwrap_err();
    fixture.connect().await;
    fixture.disconnect().await;
    let log = log.text();
    assert!(log.contains("A token could not be refreshed.") && log.contains("TRACE"), "{log}");
    let secrets = fixture.auth_server.issued_secrets();
    assert!(secrets.len() > 5);
    for secret in secrets.iter().map(String::as_str).chain([&*field(&url, "state").unwrap(), "access-secret"])
    {
        assert!(!log.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn nothing_secret_is_on_disk_in_the_clear() {
    let fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().client_auth_method = "client_secret_post";
    fixture.connect().await;
    let pending = fixture.authorize().await.unwrap();
    fixture.advance_clock(3_600.0);
    fixture.token().await.unwrap();
    let mut secrets = fixture.auth_server.issued_secrets();
    secrets.push(field(&pending, "state").unwrap());
    assert!(secrets.len() > 5);
    for file in std::fs::read_dir(fixture.folder()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        for secret in &secrets {
            assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "{secret}");
        }
    }
}
