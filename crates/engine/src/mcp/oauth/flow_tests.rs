use api::assets::{Callback, ConnectionStatus};
use pretty_assertions::assert_eq;
use reqwest::header::HeaderMap;
use secrecy::ExposeSecret as _;
use serde_json::json;

use super::fixture::{CLIENT_METADATA_URL, OAuthFixture, REDIRECT_URI, SERVER_NAME};
use super::mock_auth_server::MetadataLocation;
use super::mock_auth_server::endpoints::IMPOSTOR_METADATA_PATH;
use super::*;
use crate::catalog::{OAuthClientConfig, Secret};
use crate::testing::{LogCapture, with_deadline};

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
    let rig = OAuthFixture::new().await;
    let url = rig.authorize().await.unwrap();
    assert_eq!(rig.status(), Some(ConnectionStatus::Pending));
    assert_eq!(field(&url, "scope"), None);
    let finished = rig.finish(rig.auth_server.approve(&url)).await.unwrap();
    assert_eq!(finished.spec.name, SERVER_NAME);
    assert_eq!(finished.redirect_to.unwrap().as_str(), "https://product.example/done");
    assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
    let books = rig.auth_server.state();
    let client = books.clients.values().next().unwrap();
    assert_eq!(client.metadata["redirect_uris"], json!([REDIRECT_URI]));
    drop(books);
    rig.assert_no_violations();
}

#[tokio::test]
async fn wherever_an_authorization_server_is_described_it_is_found() {
    for described in [
        MetadataLocation::ProtectedResource,
        MetadataLocation::OpenId,
        MetadataLocation::AuthorizationServer,
        MetadataLocation::DefaultEndpoints,
    ] {
        let rig = OAuthFixture::new().await;
        {
            let mut rules = rig.auth_server.behavior();
            rules.metadata_location = described;
            rules.advertises_issuer = described != MetadataLocation::DefaultEndpoints;
            if described == MetadataLocation::AuthorizationServer {
                rules.issuer = Some(rig.auth_server.base_url().into());
            }
        }
        rig.connect().await;
        assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
        rig.advance_clock(3_600.0);
        assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
        rig.assert_no_violations();
    }
}

/// Returns a private network address of this machine, if it has one.
fn private_address() -> Option<std::net::IpAddr> {
    ["10.0.0.1", "172.17.0.1", "192.168.0.1"].into_iter().find_map(|target| {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect((target, 9)).ok()?;
        let own = socket.local_addr().ok()?.ip();
        (crate::tools::special_purpose(own) == Some("a private network")).then_some(own)
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
    let rig = OAuthFixture::with_address(address).await;
    rig.connect().await;
    rig.advance_clock(3_600.0);
    assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
    rig.assert_no_violations();
}

#[tokio::test]
async fn clients_show_who_they_are_as_the_server_wants() {
    for proof in ["client_secret_basic", "client_secret_post"] {
        let rig = OAuthFixture::new().await;
        rig.auth_server.behavior().client_auth_method = proof;
        rig.connect().await;
        rig.advance_clock(3_600.0);
        assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
        rig.disconnect().await;
        assert_eq!(rig.auth_server.state().revoked_token_hints.len(), 2);
        rig.assert_no_violations();
    }
}

#[tokio::test]
async fn the_engine_is_registered_once_and_again_where_its_registration_was_forgotten() {
    let rig = OAuthFixture::new().await;
    rig.connect().await;
    rig.connect().await;
    assert_eq!(rig.auth_server.request_count("POST /as/register"), 1);
    rig.auth_server.state().clients.clear();
    rig.advance_clock(3_600.0);
    assert!(rig.token().await.unwrap_err().to_string().contains("`invalid_client`"));
    assert_eq!(rig.status(), Some(ConnectionStatus::Expired));
    rig.connect().await;
    assert_eq!(rig.auth_server.request_count("POST /as/register"), 2);
    // The registration is forgotten between the request and the answer.
    let url = rig.authorize().await.unwrap();
    let callback = rig.auth_server.approve(&url);
    rig.auth_server.state().clients.clear();
    assert!(failure(rig.finish(callback).await).contains("`invalid_client`"));
    rig.connect().await;
    assert_eq!(rig.auth_server.request_count("POST /as/register"), 3);
    // The registration is forgotten before the request: the user is shown an error there, and nobody comes back.
    rig.auth_server.state().clients.clear();
    rig.authorize().await.unwrap();
    rig.connect().await;
    assert_eq!(rig.auth_server.request_count("POST /as/register"), 4);
    rig.assert_no_violations();
}

#[tokio::test]
async fn the_engine_is_registered_again_for_scopes_that_it_is_not_registered_for() {
    let mut rig = OAuthFixture::new().await;
    for (scopes, registrations) in [(["a", "b"], 1), (["b", "a"], 1), (["b", "c"], 2), (["a", "c"], 2)] {
        rig.set_spec(&scopes, None);
        rig.auth_server.check_authorization_request(&rig.authorize().await.unwrap());
        rig.connections.remove(SERVER_NAME).await.unwrap();
        assert_eq!(rig.auth_server.request_count("POST /as/register"), registrations);
    }
    rig.assert_no_violations();
}

#[tokio::test]
async fn a_client_that_people_have_registered_is_used_before_all_others() {
    let mut rig = OAuthFixture::new().await;
    rig.auth_server.behavior().accepts_client_metadata = true;
    rig.auth_server.behavior().client_auth_method = "client_secret_basic";
    rig.auth_server.register_client("an id", Some("a secret: +%"), "client_secret_basic", REDIRECT_URI);
    let secret = Some(Secret::new("a secret: +%".into()));
    rig.set_spec(&["read", "write"], Some(OAuthClientConfig { id: "an id".into(), issuer: None, secret }));
    let url = rig.authorize().await.unwrap();
    assert_eq!(field(&url, "client_id").unwrap(), "an id");
    assert_eq!(field(&url, "scope").unwrap(), "read write");
    rig.finish(rig.auth_server.approve(&url)).await.unwrap();
    assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
    assert_eq!(rig.auth_server.request_count("POST /as/register"), 0);
    rig.assert_no_violations();
}

fn known_client(secret: &str) -> OAuthClientConfig {
    OAuthClientConfig { id: "an id".into(), issuer: None, secret: Some(Secret::new(secret.into())) }
}

#[tokio::test]
async fn a_secret_that_is_changed_in_the_catalog_is_used_from_then_on_and_costs_nobody_the_leave() {
    for proof in ["client_secret_basic", "client_secret_post"] {
        let mut rig = OAuthFixture::new().await;
        rig.auth_server.behavior().client_auth_method = proof;
        rig.auth_server.register_client("an id", Some("old"), proof, REDIRECT_URI);
        rig.set_spec(&[], Some(known_client("old")));
        rig.connect().await;
        // A turn keeps the servers that it began with.
        let of_turn = rig.token_source();

        // Between the change at the authorization server and the one in the catalog no token is available.
        rig.auth_server.register_client("an id", Some("new"), proof, REDIRECT_URI);
        rig.auth_server.behavior().token_response = Some((401, r#"{"error": "invalid_client"}"#.into()));
        rig.advance_clock(3_600.0);
        let reason = rig.token().await.unwrap_err().to_string();
        assert!(reason.contains("`invalid_client`") && reason.contains("mcp.json"), "{reason}");
        assert_eq!(rig.status(), Some(ConnectionStatus::Connected));
        rig.auth_server.behavior().token_response = None;

        rig.set_spec(&[], Some(known_client("new")));
        assert!(rig.connections.identity_matches(&rig.spec));
        rig.advance_clock(1.0);
        let token = with_deadline(of_turn.token(None)).await.unwrap();
        assert!(rig.auth_server.accepts(token.expose_secret()));
        rig.advance_clock(3_600.0);
        assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));

        rig.auth_server.register_client("an id", Some("newest"), proof, REDIRECT_URI);
        rig.set_spec(&[], Some(known_client("newest")));
        rig.restart().await;
        rig.advance_clock(3_600.0);
        assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
        rig.disconnect().await;
        assert_eq!(rig.auth_server.state().revoked_token_hints.len(), 2);
        // It does not affect a user who is just giving consent either.
        let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
        rig.auth_server.register_client("an id", Some("last"), proof, REDIRECT_URI);
        rig.set_spec(&[], Some(known_client("last")));
        rig.finish(callback).await.map(drop).unwrap();
        rig.assert_no_violations();
    }
}

#[tokio::test]
async fn a_secret_is_shown_to_nobody_but_the_issuer_that_the_catalog_names() {
    let mut rig = OAuthFixture::new().await;
    rig.auth_server.behavior().client_auth_method = "client_secret_basic";
    rig.auth_server.register_client("an id", Some("old"), "client_secret_basic", REDIRECT_URI);
    rig.set_spec(&[], Some(known_client("old")));
    rig.connect().await;
    let issuer = Some("https://elsewhere.example".to_owned());
    let elsewhere = OAuthClientConfig { issuer, ..known_client("of elsewhere") };
    rig.set_spec(&[], Some(elsewhere));
    rig.advance_clock(3_600.0);
    // With the secret that was used there before.
    assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
    rig.assert_no_violations();
}

#[tokio::test]
async fn the_engine_is_known_by_its_metadata_where_that_can_be() {
    let rig = OAuthFixture::new().await;
    rig.auth_server.behavior().accepts_client_metadata = true;
    rig.auth_server.register_client(CLIENT_METADATA_URL, None, "none", REDIRECT_URI);
    let url = rig.authorize().await.unwrap();
    assert_eq!(field(&url, "client_id").unwrap(), CLIENT_METADATA_URL);
    rig.finish(rig.auth_server.approve(&url)).await.unwrap();
    assert!(rig.auth_server.accepts(&rig.token().await.unwrap()));
    assert_eq!(rig.auth_server.request_count("POST /as/register"), 0);
    let document = rig.oauth().client_metadata().unwrap();
    let expected = json!({
        "client_id": CLIENT_METADATA_URL,
        "client_name": "Roundhouse",
        "redirect_uris": [REDIRECT_URI],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        "application_type": "web",
    });
    assert_eq!(document, expected);
    rig.assert_no_violations();
}

#[tokio::test]
async fn the_scopes_are_those_that_the_server_asks_for() {
    for (challenge, of_resource, known, expected) in [
        (Some("a b"), &["c"] as &'static [_], &["a", "b", "c", "d"] as &'static [_], Some("a b")),
        (None, &["c"], &["c", "d", "offline_access"], Some("c offline_access")),
        (None, &[], &["c", "d"], None),
    ] {
        let rig = OAuthFixture::new().await;
        {
            let mut rules = rig.auth_server.behavior();
            (rules.challenge_scope, rules.resource_scopes, rules.scopes) = (challenge, of_resource, known);
        }
        let url = rig.authorize().await.unwrap();
        rig.auth_server.check_authorization_request(&url);
        assert_eq!(field(&url, "scope").as_deref(), expected);
    }
}

#[tokio::test]
async fn a_state_is_good_once_for_ten_minutes_and_outlives_a_restart() {
    let mut rig = OAuthFixture::new().await;
    let unknown =
        Callback { state: Some("x".repeat(43)), ..rig.auth_server.approve(&rig.authorize().await.unwrap()) };
    assert!(matches!(rig.finish(unknown).await, Err(McpError::InvalidState)));

    let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
    rig.restart().await;
    rig.finish(callback.clone()).await.unwrap();
    let exchanged = rig.auth_server.request_count("POST /as/token");
    assert!(matches!(rig.finish(callback).await, Err(McpError::InvalidState)));

    let old = rig.auth_server.approve(&rig.authorize().await.unwrap());
    rig.advance_clock(600.0);
    assert!(matches!(rig.finish(old).await, Err(McpError::InvalidState)));
    assert_eq!(rig.auth_server.request_count("POST /as/token"), exchanged);
    rig.assert_no_violations();
}

#[tokio::test]
async fn of_two_answers_with_one_state_one_is_taken() {
    let rig = OAuthFixture::new().await;
    let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
    let (one, other) = tokio::join!(rig.finish(callback.clone()), rig.finish(callback));
    assert!(one.is_ok() != other.is_ok());
    assert_eq!(rig.auth_server.request_count("POST /as/token"), 1);
    rig.assert_no_violations();
}

#[tokio::test]
async fn an_answer_of_another_authorization_server_is_refused_and_nothing_is_stored() {
    let rig = OAuthFixture::new().await;
    for iss in [Some("https://evil.example".to_owned()), Some(format!("{}/", rig.auth_server.issuer())), None]
    {
        let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
        let callback = Callback { iss, ..callback };
        assert!(matches!(rig.finish(callback.clone()).await, Err(McpError::InvalidIssuer)));
        assert_eq!(rig.status(), None);
        // The state is used up, even for an answer with the right issuer.
        let callback = Callback { iss: Some(rig.auth_server.issuer()), ..callback };
        assert!(matches!(rig.finish(callback).await, Err(McpError::InvalidState)));
    }
    // An error, too, counts only from the server that was asked.
    let denied = Callback {
        code: None,
        iss: Some("https://evil.example".into()),
        error: Some("access_denied".into()),
        ..rig.auth_server.approve(&rig.authorize().await.unwrap())
    };
    assert!(matches!(rig.finish(denied).await, Err(McpError::InvalidIssuer)));
    assert_eq!(rig.auth_server.request_count("POST /as/token"), 0);
}

#[tokio::test]
async fn a_server_that_does_not_name_itself_need_not() {
    let rig = OAuthFixture::new().await;
    rig.auth_server.behavior().advertises_issuer = false;
    let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
    assert_eq!(callback.iss, None);
    rig.finish(callback).await.unwrap();
    // If it sends an issuer nevertheless, it must be the right one.
    let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
    let callback = Callback { iss: Some("https://evil.example".into()), ..callback };
    assert!(matches!(rig.finish(callback).await, Err(McpError::InvalidIssuer)));
}

#[tokio::test]
async fn a_user_who_gives_no_leave_has_no_connection_and_keeps_an_old_one() {
    let rig = OAuthFixture::new().await;
    let denied = |callback: Callback| Callback {
        code: None,
        error: Some("access_denied".into()),
        error_description: Some(format!("The user\r\n\u{1b}[31m said no{}", "!".repeat(5_000))),
        ..callback
    };
    let callback = denied(rig.auth_server.approve(&rig.authorize().await.unwrap()));
    let error = failure(rig.finish(callback.clone()).await);
    assert!(
        error.starts_with("the authorization server gave no leave: access_denied: The user[31m said no!!")
    );
    assert!(error.len() < 400);
    assert_eq!(rig.status(), None);
    assert!(matches!(rig.finish(callback).await, Err(McpError::InvalidState)));

    rig.connect().await;
    let token = rig.token().await.unwrap();
    let callback = denied(rig.auth_server.approve(&rig.authorize().await.unwrap()));
    assert!(matches!(rig.finish(callback).await, Err(McpError::Denied(_))));
    assert_eq!(rig.status(), Some(ConnectionStatus::Connected));
    assert_eq!(rig.token().await.unwrap(), token);
    rig.assert_no_violations();
}

#[tokio::test]
async fn an_answer_without_its_parts_is_refused_and_uses_nothing_up() {
    let rig = OAuthFixture::new().await;
    let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
    let without_state = failure(rig.finish(Callback { state: None, ..callback.clone() }).await);
    assert!(without_state.starts_with("`state`: must be given"), "{without_state}");
    let without_code = failure(rig.finish(Callback { code: None, ..callback.clone() }).await);
    assert!(without_code.starts_with("`code`: must be given"), "{without_code}");
    rig.finish(callback).await.unwrap();
}

#[tokio::test]
async fn an_exchange_that_fails_stores_nothing_and_tells_no_secret() {
    let rig = OAuthFixture::new().await;
    for (status, body, told) in [
        (400, r#"{"error": "invalid_grant", "error_description": "No such code: CODE"}"#, "`invalid_grant`"),
        (
            401,
            r#"{"error": "invalid_client", "error_description": "Missing client_id"}"#,
            "(Missing client_id)",
        ),
        (503, "code-secret", "503"),
        (302, "", "302"),
        (200, r#"{"access_token": "access-secret"}"#, "no token that can be read"),
        (200, r#"{"error": "bad_verification_code"}"#, "`bad_verification_code`"),
        (200, r#"{"access_token": "access-secret", "token_type": "mac"}"#, "another kind"),
        (200, r#"{"access_token": "access-secret\n", "token_type": "Bearer"}"#, "cannot be sent"),
    ] {
        let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
        let code = callback.code.clone().unwrap();
        rig.auth_server.behavior().token_response = Some((status, body.replace("CODE", &code)));
        let error = failure(rig.finish(callback).await);
        assert!(error.contains(told) && !error.contains("-secret") && !error.contains(&code), "{error}");
        assert_eq!(rig.status(), None);
        assert!(rig.token().await.is_err());
    }
    // The redirect was not followed.
    assert_eq!(rig.auth_server.request_count("POST /token") + rig.auth_server.request_count("GET /token"), 0);
}

#[tokio::test]
async fn a_callback_for_a_server_that_is_another_by_now_is_refused() {
    let rig = OAuthFixture::new().await;
    let callback = rig.auth_server.approve(&rig.authorize().await.unwrap());
    let elsewhere = Transport::Http {
        url: Url::parse("https://other.example/mcp").unwrap(),
        headers: HeaderMap::default(),
    };
    rig.mcp.set_server_specs(&[Arc::new(McpServerSpec { transport: elsewhere, ..(*rig.spec).clone() })]);
    let finished = rig.oauth().finish(callback).await;
    assert!(matches!(finished, Err(McpError::InvalidState)));
    assert_eq!(rig.auth_server.request_count("POST /as/token"), 0);
}

#[tokio::test]
async fn metadata_that_cannot_be_trusted_are_refused() {
    type Rule = fn(&mut super::mock_auth_server::Behavior);
    let cases: [(Rule, &str); 7] = [
        (|rules| rules.pkce = None, "PKCE with S256"),
        (|rules| rules.pkce = Some("plain"), "PKCE with S256"),
        (|rules| rules.authorization_endpoint = Some("javascript:alert(1)".into()), "cannot be used"),
        (|rules| rules.token_endpoint = Some("file:///etc/passwd".into()), "cannot be used"),
        (|rules| rules.issuer = Some("https://evil.example".into()), "issuer mismatch"),
        (
            |rules| rules.authorization_server = Some("http://169.254.169.254/".into()),
            "none published usable",
        ),
        (|rules| rules.allows_registration = false, "it registers nobody by itself"),
    ];
    for (rule, told) in cases {
        let rig = OAuthFixture::new().await;
        rule(&mut rig.auth_server.behavior());
        let error = failure(rig.authorize().await);
        assert!(error.contains(told), "{error}");
        assert!(error.starts_with("the server `notes` cannot be connected: "), "{error}");
        assert_eq!(rig.status(), None);
    }
}

#[tokio::test]
async fn who_speaks_in_an_issuers_name_is_not_believed() {
    let rig = OAuthFixture::new().await;
    let impostor = format!("{}{IMPOSTOR_METADATA_PATH}", rig.auth_server.base_url());
    rig.auth_server.behavior().authorization_server = Some(impostor);
    let error = failure(rig.authorize().await);
    assert!(error.contains("does not confirm"), "{error}");
    assert_eq!((rig.status(), rig.auth_server.request_count("POST /as/register")), (None, 0));
}

#[tokio::test]
async fn without_settings_it_is_said_which_one_is_missing() {
    let rig = OAuthFixture::new().await;
    let parts = || (Arc::clone(&rig.connections), Arc::clone(&rig.mcp.0.directory));
    let oauth = OAuth::new(parts(), None, None);
    assert!(failure(oauth.authorize(&rig.spec, None).await).contains("OAUTH_REDIRECT_BASE_URL"));
    assert!(failure(oauth.client_metadata()).contains("OAUTH_REDIRECT_BASE_URL"));
    let base = Url::parse("https://product.example").unwrap();
    let oauth = OAuth::new(parts(), Some(base), None);
    assert!(failure(oauth.client_metadata()).contains("OAUTH_CLIENT_METADATA_URL"));
}

#[tokio::test]
async fn tokens_are_revoked_and_the_registration_stays() {
    let rig = OAuthFixture::new().await;
    rig.connect().await;
    let token = rig.token().await.unwrap();
    rig.disconnect().await;
    assert!(!rig.auth_server.accepts(&token));
    assert_eq!(rig.auth_server.state().revoked_token_hints, ["refresh_token", "access_token"]);
    assert!(matches!(rig.token().await, Err(AuthError::Expired(_))));
    rig.connect().await;
    assert_eq!(rig.auth_server.request_count("POST /as/register"), 1);
    rig.assert_no_violations();
}

#[tokio::test]
async fn a_revocation_that_fails_or_cannot_be_keeps_nobody_from_disconnecting() {
    let rig = OAuthFixture::new().await;
    rig.connect().await;
    rig.auth_server.state().clients.clear();
    rig.disconnect().await;
    assert_eq!(rig.status(), None);
    assert_eq!(rig.auth_server.request_count("POST /as/revoke"), 2);
    assert!(rig.auth_server.state().revoked_token_hints.is_empty());

    let rig = OAuthFixture::new().await;
    rig.auth_server.behavior().supports_revocation = false;
    rig.connect().await;
    rig.disconnect().await;
    assert_eq!(rig.status(), None);
    assert_eq!(rig.auth_server.request_count("POST /as/revoke"), 0);
}

#[tokio::test]
async fn nothing_secret_is_logged_at_any_level() {
    let log = LogCapture::start(tracing::Level::TRACE);
    let rig = OAuthFixture::new().await;
    rig.auth_server.behavior().client_auth_method = "client_secret_basic";
    let url = rig.authorize().await.unwrap();
    rig.finish(rig.auth_server.approve(&url)).await.unwrap();
    rig.establish().await;
    rig.advance_clock(3_600.0);
    rig.token().await.unwrap();
    rig.auth_server.behavior().token_response = Some((200, "access-secret".into()));
    rig.advance_clock(3_600.0);
    rig.token().await.unwrap_err();
    rig.auth_server.behavior().token_response = None;
    rig.auth_server.revoke_consent();
    rig.advance_clock(1.0);
    rig.token().await.unwrap_err();
    rig.connect().await;
    rig.disconnect().await;
    let log = log.text();
    assert!(log.contains("A token could not be refreshed.") && log.contains("TRACE"), "{log}");
    let secrets = rig.auth_server.issued_secrets();
    assert!(secrets.len() > 5);
    for secret in secrets.iter().map(String::as_str).chain([&*field(&url, "state").unwrap(), "access-secret"])
    {
        assert!(!log.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn nothing_secret_is_on_disk_in_the_clear() {
    let rig = OAuthFixture::new().await;
    rig.auth_server.behavior().client_auth_method = "client_secret_post";
    rig.connect().await;
    let pending = rig.authorize().await.unwrap();
    rig.advance_clock(3_600.0);
    rig.token().await.unwrap();
    let mut secrets = rig.auth_server.issued_secrets();
    secrets.push(field(&pending, "state").unwrap());
    assert!(secrets.len() > 5);
    for file in std::fs::read_dir(rig.folder()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        for secret in &secrets {
            assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "{secret}");
        }
    }
}
