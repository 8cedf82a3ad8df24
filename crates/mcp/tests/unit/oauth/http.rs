use proptest::prelude::*;

use super::*;

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

fn policy(secure: bool, private: bool) -> AddressPolicy {
    AddressPolicy { https_only: secure, allow_private: private }
}

#[test]
fn a_public_server_leads_nowhere_inside() {
    for address in ["127.0.0.1", "10.0.0.9", "192.168.1.1", "[::1]", "[fd00::1]", "[::ffff:10.0.0.1]"] {
        let target = url(&format!("https://{address}/token"));
        assert!(matches!(policy(true, false).check(&target), Err(HttpError::NotPublic(..))), "{address}");
        assert!(policy(true, true).check(&target).is_ok(), "{address}");
    }
    assert!(policy(true, false).check(&url("https://1.1.1.1/token")).is_ok());
}

#[test]
fn nobody_leads_to_a_clouds_metadata_service() {
    for address in
        ["169.254.169.254", "169.254.1.1", "100.100.100.200", "[fe80::1]", "[::ffff:169.254.169.254]"]
    {
        let target = url(&format!("http://{address}/token"));
        assert!(matches!(policy(false, true).check(&target), Err(HttpError::NotPublic(..))), "{address}");
    }
}

#[test]
fn a_server_over_https_leads_to_no_other_protocol() {
    assert!(matches!(policy(true, false).check(&url("http://one.example/")), Err(HttpError::Downgrade(_))));
    assert!(policy(false, false).check(&url("http://one.example/")).is_ok());
    for scheme in ["file:///etc/passwd", "ftp://one.example/"] {
        assert!(matches!(policy(false, true).check(&url(scheme)), Err(HttpError::Downgrade(_))), "{scheme}");
    }
}

#[tokio::test]
async fn a_name_that_leads_inside_is_judged_by_where_it_leads() {
    let outside = AuthHttpClient::for_server(
        &url("http://1.1.1.1/mcp"),
        ServerOrigin::Catalog,
        &WebAllowlist::default(),
    )
    .await
    .unwrap();
    let error = outside.post_form(&url("http://localhost:9/token"), None, &[]).await.err().unwrap();
    assert!(error.to_string().contains("it is not on the public internet (loopback)"), "{error}");
    let private = AuthHttpClient::for_server(
        &url("http://localhost:9/mcp"),
        ServerOrigin::Catalog,
        &WebAllowlist::default(),
    )
    .await
    .unwrap();
    let error = private.post_form(&url("http://localhost:9/token"), None, &[]).await.err().unwrap();
    assert!(error.to_string().starts_with("the request to `localhost` failed: "), "{error}");
    assert!(!error.to_string().contains("public"), "{error}");
}

#[tokio::test]
async fn an_answer_is_read_up_to_its_limit() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = url(&format!("http://{}/", listener.local_addr().unwrap()));
    let router = axum::Router::new().fallback(|| async { vec![b'x'; MAX_BODY + 1] });
    tokio::spawn(async move { axum::serve(listener, router).await });
    let http =
        AuthHttpClient::for_server(&server, ServerOrigin::Catalog, &WebAllowlist::default()).await.unwrap();
    let error = http.post_json(&server, &Value::Null).await.err().unwrap();
    assert_eq!(error.to_string(), "the response of `127.0.0.1` has over 524288 bytes");
}

proptest! {
    #[test]
    fn what_a_server_says_is_bounded_and_plain(text in any::<String>()) {
        let said = sanitize_server_text(&text);
        prop_assert!(said.chars().count() <= MAX_SERVER_TEXT_CHARS && !said.contains(char::is_control));
    }
}
