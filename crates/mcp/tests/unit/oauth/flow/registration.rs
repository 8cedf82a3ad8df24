//! The engine as a client: registered by itself, by people, or known by its metadata.

use pretty_assertions::assert_eq;

use super::*;

#[tokio::test]
async fn clients_show_who_they_are_as_the_server_wants() {
    for proof in ["client_secret_basic", "client_secret_post"] {
        let fixture = OAuthFixture::new().await;
        fixture.auth_server.behavior().client_auth_method = proof;
        fixture.connect().await;
        fixture.advance_clock(3_600.0);
        assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
        fixture.disconnect().await;
        assert_eq!(fixture.auth_server.state().revoked_token_hints.len(), 2);
        fixture.assert_no_violations();
    }
}

#[tokio::test]
async fn the_engine_is_registered_once_and_again_where_its_registration_was_forgotten() {
    let fixture = OAuthFixture::new().await;
    fixture.connect().await;
    fixture.connect().await;
    assert_eq!(fixture.auth_server.request_count("POST /as/register"), 1);
    fixture.auth_server.state().clients.clear();
    fixture.advance_clock(3_600.0);
    assert!(fixture.token().await.unwrap_err().to_string().contains("`invalid_client`"));
    assert_eq!(fixture.status(), Some(ConnectionStatus::Expired));
    fixture.connect().await;
    assert_eq!(fixture.auth_server.request_count("POST /as/register"), 2);
    // The registration is forgotten between the request and the answer.
    let url = fixture.authorize().await.unwrap();
    let callback = fixture.auth_server.approve(&url);
    fixture.auth_server.state().clients.clear();
    assert!(failure(fixture.finish(callback).await).contains("`invalid_client`"));
    fixture.connect().await;
    assert_eq!(fixture.auth_server.request_count("POST /as/register"), 3);
    // The registration is forgotten before the request: the user is shown an error there, and nobody comes back.
    fixture.auth_server.state().clients.clear();
    fixture.authorize().await.unwrap();
    fixture.connect().await;
    assert_eq!(fixture.auth_server.request_count("POST /as/register"), 4);
    fixture.assert_no_violations();
}

#[tokio::test]
async fn the_engine_is_registered_again_for_scopes_that_it_is_not_registered_for() {
    let mut fixture = OAuthFixture::new().await;
    for (scopes, registrations) in [(["a", "b"], 1), (["b", "a"], 1), (["b", "c"], 2), (["a", "c"], 2)] {
        fixture.set_spec(&scopes, None);
        fixture.auth_server.check_authorization_request(&fixture.authorize().await.unwrap());
        fixture.connections.remove(SERVER_NAME).await.unwrap();
        assert_eq!(fixture.auth_server.request_count("POST /as/register"), registrations);
    }
    fixture.assert_no_violations();
}

#[tokio::test]
async fn a_client_that_people_have_registered_is_used_before_all_others() {
    let mut fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().accepts_client_metadata = true;
    fixture.auth_server.behavior().client_auth_method = "client_secret_basic";
    fixture.auth_server.register_client("an id", Some("a secret: +%"), "client_secret_basic", REDIRECT_URI);
    let secret = Some(Secret::new("a secret: +%".into()));
    fixture
        .set_spec(&["read", "write"], Some(OAuthClientConfig { id: "an id".into(), issuer: None, secret }));
    let url = fixture.authorize().await.unwrap();
    assert_eq!(field(&url, "client_id").unwrap(), "an id");
    assert_eq!(field(&url, "scope").unwrap(), "read write");
    fixture.finish(fixture.auth_server.approve(&url)).await.unwrap();
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    assert_eq!(fixture.auth_server.request_count("POST /as/register"), 0);
    fixture.assert_no_violations();
}

fn known_client(secret: &str) -> OAuthClientConfig {
    OAuthClientConfig { id: "an id".into(), issuer: None, secret: Some(Secret::new(secret.into())) }
}

#[tokio::test]
async fn a_secret_that_is_changed_in_the_catalog_is_used_from_then_on_and_costs_nobody_the_leave() {
    for proof in ["client_secret_basic", "client_secret_post"] {
        let mut fixture = OAuthFixture::new().await;
        fixture.auth_server.behavior().client_auth_method = proof;
        fixture.auth_server.register_client("an id", Some("old"), proof, REDIRECT_URI);
        fixture.set_spec(&[], Some(known_client("old")));
        fixture.connect().await;
        // A turn keeps the servers that it began with.
        let token_source = fixture.token_source();

        // Between the change at the authorization server and the one in the catalog no token is available.
        fixture.auth_server.register_client("an id", Some("new"), proof, REDIRECT_URI);
        fixture.auth_server.behavior().token_response = Some((401, r#"{"error": "invalid_client"}"#.into()));
        fixture.advance_clock(3_600.0);
        let reason = fixture.token().await.unwrap_err().to_string();
        assert!(reason.contains("`invalid_client`") && reason.contains("mcp.json"), "{reason}");
        assert_eq!(fixture.status(), Some(ConnectionStatus::Connected));
        fixture.auth_server.behavior().token_response = None;

        fixture.set_spec(&[], Some(known_client("new")));
        assert!(fixture.connections.identity_matches(&fixture.spec));
        fixture.advance_clock(1.0);
        let token = with_deadline(token_source.token(None)).await.unwrap();
        assert!(fixture.auth_server.accepts(token.expose_secret()));
        fixture.advance_clock(3_600.0);
        assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));

        fixture.auth_server.register_client("an id", Some("newest"), proof, REDIRECT_URI);
        fixture.set_spec(&[], Some(known_client("newest")));
        fixture.restart().await;
        fixture.advance_clock(3_600.0);
        assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
        fixture.disconnect().await;
        assert_eq!(fixture.auth_server.state().revoked_token_hints.len(), 2);
        // It does not affect a user who is just giving consent either.
        let callback = fixture.auth_server.approve(&fixture.authorize().await.unwrap());
        fixture.auth_server.register_client("an id", Some("last"), proof, REDIRECT_URI);
        fixture.set_spec(&[], Some(known_client("last")));
        fixture.finish(callback).await.map(drop).unwrap();
        fixture.assert_no_violations();
    }
}

#[tokio::test]
async fn a_secret_is_shown_to_nobody_but_the_issuer_that_the_catalog_names() {
    let mut fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().client_auth_method = "client_secret_basic";
    fixture.auth_server.register_client("an id", Some("old"), "client_secret_basic", REDIRECT_URI);
    fixture.set_spec(&[], Some(known_client("old")));
    fixture.connect().await;
    let issuer = Some("https://elsewhere.example".to_owned());
    let elsewhere = OAuthClientConfig { issuer, ..known_client("of elsewhere") };
    fixture.set_spec(&[], Some(elsewhere));
    fixture.advance_clock(3_600.0);
    // With the secret that was used there before.
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    fixture.assert_no_violations();
}

#[tokio::test]
async fn the_engine_is_known_by_its_metadata_where_that_can_be() {
    let fixture = OAuthFixture::new().await;
    fixture.auth_server.behavior().accepts_client_metadata = true;
    fixture.auth_server.register_client(CLIENT_METADATA_URL, None, "none", REDIRECT_URI);
    let url = fixture.authorize().await.unwrap();
    assert_eq!(field(&url, "client_id").unwrap(), CLIENT_METADATA_URL);
    fixture.finish(fixture.auth_server.approve(&url)).await.unwrap();
    assert!(fixture.auth_server.accepts(&fixture.token().await.unwrap()));
    assert_eq!(fixture.auth_server.request_count("POST /as/register"), 0);
    let document = fixture.oauth().client_metadata().unwrap();
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
    fixture.assert_no_violations();
}
