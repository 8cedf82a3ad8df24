//! Tests of `/assets` and `assets.*` of `/rpc`, as far as no server is needed.

use api::assets::{ConnectionList, ServerList};
use mock_llm::MockProvider;
use serde_json::{Value, json};
use testkit::with_deadline;

use super::app::{TestApp, expect_error};

const SERVERS: &str = r#"{"mcpServers": {
    "files": {"command": "files-server", "description": "Files."},
    "mail": {"type": "http", "url": "https://mail.invalid/mcp", "auth": "oauth"},
    "notes": {"type": "http", "url": "http://127.0.0.1:9/mcp", "auth": "api_key"}
}}"#;
const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

async fn app(env: &[(&str, &str)]) -> TestApp {
    let app = TestApp::with_env(MockProvider::start().await.unwrap(), env).await;
    app.write_catalog_file("mcp.json", SERVERS);
    let reloaded = with_deadline(app.request("POST", "/admin/reload-catalog").send()).await.unwrap();
    let reloaded: Value = with_deadline(reloaded.json()).await.unwrap();
    assert_eq!(reloaded["warnings"], json!([]));
    app
}

async fn post(app: &TestApp, path: &str, body: Value) -> reqwest::Response {
    with_deadline(app.request("POST", path).body(body.to_string()).send()).await.unwrap()
}

async fn connections(app: &TestApp) -> Value {
    let listed = with_deadline(app.request("GET", "/assets/connections").send()).await.unwrap();
    let body: Value = with_deadline(listed.json()).await.unwrap();
    let _: ConnectionList = serde_json::from_value(body.clone()).unwrap();
    body
}

#[tokio::test]
async fn servers_are_those_of_the_catalog() {
    let app = app(&[]).await;
    let listed = with_deadline(app.request("GET", "/assets/servers").send()).await.unwrap();
    let body: Value = with_deadline(listed.json()).await.unwrap();
    let _: ServerList = serde_json::from_value(body.clone()).unwrap();
    let server = |name: &str, about: &str, transport: &str, auth: &str| json!({"name": name, "description": about, "transport": transport, "auth": auth, "connected": false});
    let servers = [
        server("files", "Files.", "stdio", "none"),
        server("mail", "", "http", "oauth"),
        server("notes", "", "http", "api_key"),
    ];
    assert_eq!(body, json!({"servers": servers}));
    assert_eq!(connections(&app).await, json!({"connections": []}));

    app.write_catalog_file("mcp.json", "{}");
    with_deadline(app.request("POST", "/admin/reload-catalog").send()).await.unwrap();
    let listed = with_deadline(app.request("GET", "/assets/servers").send()).await.unwrap();
    assert_eq!(with_deadline(listed.json::<Value>()).await.unwrap(), json!({"servers": []}));
    app.stop().await;
}

#[tokio::test]
async fn what_cannot_be_connected_is_refused_and_leaves_nothing() {
    let app =
        app(&[("AD_ENCRYPTION_KEY", KEY), ("OAUTH_REDIRECT_BASE_URL", "https://app.example/agents")]).await;
    for (body, status, code, expected) in [
        (json!({}), 400, "INVALID_REQUEST", "server"),
        (json!({"server": "nobody"}), 404, "SERVER_NOT_FOUND", "nobody"),
        (json!({"server": "notes"}), 400, "INVALID_REQUEST", "credentials"),
        (json!({"server": "notes", "credentials": {}}), 400, "INVALID_REQUEST", "api_key"),
        (json!({"server": "notes", "credentials": {"api_key": ""}}), 400, "INVALID_REQUEST", "api_key"),
        (json!({"server": "notes", "credentials": {"api_key": "a\nb"}}), 400, "INVALID_REQUEST", "api_key"),
        (json!({"server": "mail", "credentials": {"api_key": "k"}}), 400, "INVALID_REQUEST", "accepts none"),
        (
            json!({"server": "notes", "redirect_to": "https://app.example/"}),
            400,
            "INVALID_REQUEST",
            "redirect_to",
        ),
        (
            json!({"server": "mail", "redirect_to": "https://app.example.evil/"}),
            400,
            "INVALID_REQUEST",
            "https://app.example",
        ),
        (
            json!({"server": "mail", "redirect_to": "http://app.example/"}),
            400,
            "INVALID_REQUEST",
            "redirect_to",
        ),
        (
            json!({"server": "mail", "redirect_to": "https://app.example:444/"}),
            400,
            "INVALID_REQUEST",
            "redirect_to",
        ),
        (
            json!({"server": "mail", "redirect_to": "https://u@app.example/"}),
            400,
            "INVALID_REQUEST",
            "redirect_to",
        ),
        (json!({"server": "mail", "redirect_to": "//app.example/"}), 400, "INVALID_REQUEST", "redirect_to"),
        (json!({"server": "notes", "credentials": {"api_key": "t0p"}}), 502, "SERVER_FAILED", "notes"),
    ] {
        let message = expect_error(post(&app, "/assets/connect", body.clone()).await, status, code).await;
        assert!(message.contains(expected) && !message.contains("t0p"), "{body}: {message}");
    }
    assert_eq!(connections(&app).await, json!({"connections": []}));
    app.stop().await;
}

#[tokio::test]
async fn without_a_key_no_credentials_are_taken_and_the_engine_is_well() {
    let app = app(&[("LLM_PROVIDER", "scripted")]).await;
    for body in [json!({"server": "notes", "credentials": {"api_key": "k"}}), json!({"server": "mail"})] {
        let message =
            expect_error(post(&app, "/assets/connect", body).await, 503, "ASSETS_NOT_CONFIGURED").await;
        assert!(message.contains("AD_ENCRYPTION_KEY"), "{message}");
    }
    let health = with_deadline(app.request_without_key("GET", "/health").send()).await.unwrap();
    let health: Value = with_deadline(health.json()).await.unwrap();
    assert_eq!((&health["status"], &health["subsystems"]["asset_directory"]), (&json!("ok"), &json!("ok")));
    app.stop().await;
}

#[tokio::test]
async fn without_an_address_nobody_is_sent_away() {
    let app = app(&[("AD_ENCRYPTION_KEY", KEY)]).await;
    for body in [json!({"server": "mail"}), json!({"server": "mail", "redirect_to": "https://app.example/"})]
    {
        let message =
            expect_error(post(&app, "/assets/connect", body).await, 503, "ASSETS_NOT_CONFIGURED").await;
        assert!(message.contains("OAUTH_REDIRECT_BASE_URL"), "{message}");
    }
    let call = json!({"method": "assets.client_metadata", "params": {}});
    let answer = post(&app, "/rpc", call).await;
    assert_eq!(answer.status(), 503);
    let body: Value = with_deadline(answer.json()).await.unwrap();
    assert_eq!(body["error"], "ASSETS_NOT_CONFIGURED");
    app.stop().await;
}

#[tokio::test]
async fn what_no_authorization_waits_for_is_refused() {
    let app = app(&[("AD_ENCRYPTION_KEY", KEY), ("OAUTH_REDIRECT_BASE_URL", "https://app.example")]).await;
    for body in [json!({"code": "c", "state": "s"}), json!({"error": "access_denied", "state": "s"})] {
        expect_error(post(&app, "/assets/callback", body).await, 400, "INVALID_STATE").await;
    }
    for query in
        ["code=c&state=s", "error=access_denied&state=s", "code=c&state=s&iss=https%3A%2F%2Fevil.example"]
    {
        let path = format!("/assets/oauth/callback?{query}");
        let answer = with_deadline(app.request("GET", &path).send()).await.unwrap();
        expect_error(answer, 400, "INVALID_STATE").await;
        let unauthorized = with_deadline(app.request_without_key("GET", &path).send()).await.unwrap();
        expect_error(unauthorized, 401, "INVALID_ENGINE_KEY").await;
    }
    for id in ["conn_00000000000000000000000000000000", "nonsense"] {
        let answer =
            with_deadline(app.request("DELETE", &format!("/assets/connections/{id}")).send()).await.unwrap();
        expect_error(answer, 404, "CONNECTION_NOT_FOUND").await;
    }
    app.stop().await;
}
