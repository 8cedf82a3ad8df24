//! OAuth: a user grants access at an authorization server, and the engine uses, keeps and revokes it.

use std::collections::BTreeMap;

use reqwest::redirect::Policy;
use reqwest::{Client, Method, Url};
use serde_json::{Value, json};

use super::{ProtectedServer, assert_stored_nowhere, call_tool_in_turn, only_connection, tool_names};
use crate::support::http::send;
use crate::support::peers::{PRODUCT_URL, SECRETS_KEY};
use crate::support::{EngineFixture, Peers, StandaloneEngine};

/// The query parameters of an authorization URL.
fn query_params(url: &str) -> BTreeMap<String, String> {
    Url::parse(url).unwrap().query_pairs().into_owned().collect()
}

#[tokio::test]
async fn a_user_gives_leave_and_the_tools_are_the_agents() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let (url, state) = protected.begin_authorization().await;
    let params = query_params(&url);
    let callback = format!("{PRODUCT_URL}/assets/oauth/callback");
    for (name, value) in [
        ("response_type", "code"),
        ("code_challenge_method", "S256"),
        ("redirect_uri", &callback),
        ("resource", &protected.server.url),
        ("state", &state),
    ] {
        assert_eq!(params.get(name).map(String::as_str), Some(value), "`{name}` in {url}");
    }
    assert_eq!(params["code_challenge"].len(), 43);
    assert!(params["scope"].split(' ').any(|scope| scope == "mcp:tools"), "{url}");
    let registered = &protected.authorization_server.requests_to("/reg").await[0];
    assert_eq!(registered["status"], 201);
    let client = &registered["registered"];
    assert_eq!(client["application_type"], "web");
    assert_eq!(client["redirect_uris"], json!([callback]));
    let pending = only_connection(protected.engine()).await;
    assert_eq!((&pending["status"], &pending["server"]), (&json!("pending"), &json!("peer")));
    assert_eq!(protected.engine().servers().await[0]["connected"], false);
    protected
        .engine()
        .call_tool("peer__add", json!({"a": 2, "b": 3}))
        .await
        .assert_flat_error(404, "METHOD_NOT_FOUND");

    let returned = protected.authorization_server.authorize_in_browser(&url).await;
    assert_eq!(returned.0["iss"], protected.authorization_server.url());
    let answer = protected.engine().post("/assets/callback", &returned.body()).await;
    let answer = answer.assert_ok("status:text connection:connection");
    assert_eq!(answer["status"], "connected");
    let listed = only_connection(protected.engine()).await;
    assert_eq!((&listed["status"], &listed["connection"]), (&json!("connected"), &answer["connection"]));
    assert!(tool_names(&listed).contains(&"add"), "{listed}");
    assert_eq!(protected.engine().servers().await[0]["connected"], true);
    assert_eq!(
        call_tool_in_turn(&protected.fixture, "task", "peer__add", json!({"a": 2, "b": 3}))
            .await
            .unwrap()
            .trim(),
        "5"
    );
    let output = protected.engine().tool_output("peer__credential", json!({})).await;
    assert!(output.starts_with("authorization "), "{output}");
}

#[tokio::test]
async fn the_browser_may_come_back_to_the_engine_itself() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let returned = protected.authorize().await;
    let answer =
        protected.engine().get(&returned.path()).await.assert_ok("status:text connection:connection");
    assert_eq!(answer["status"], "connected");
    assert_eq!(only_connection(protected.engine()).await["connection"], answer["connection"]);
    assert_eq!(protected.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
}

#[tokio::test]
async fn the_browser_is_sent_on_to_where_the_product_wants_it() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let settings = format!("{PRODUCT_URL}/settings?tab=tools");
    let (url, _) =
        protected.begin_authorization_with(json!({"server": "peer", "redirect_to": settings})).await;
    let returned = protected.authorization_server.authorize_in_browser(&url).await;
    let browser = Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
    let url = format!("{}{}", protected.engine().url, returned.path());
    let answer =
        send(browser.request(Method::GET, url).header("x-engine-key", &protected.engine().key)).await;
    assert!(matches!(answer.status, 302 | 303), "{} {}", answer.status, answer.body);
    let location = answer.header("location").unwrap();
    assert!(location.starts_with(&settings), "{location}");
    for secret in [&returned.0["code"], &returned.0["state"]] {
        assert!(!location.contains(secret.as_str()), "{location}");
    }
    assert_eq!(only_connection(protected.engine()).await["status"], "connected");
}

#[tokio::test]
async fn nobody_is_sent_to_a_stranger() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let mut accepted = Vec::new();
    for elsewhere in [
        "https://elsewhere.example/settings",
        "http://product.example/settings",
        "https://product.example:8443/settings",
        "https://product.example.elsewhere.example/",
        "https://product.example@elsewhere.example/",
        "//elsewhere.example/",
        "/settings",
        "javascript:alert(1)",
        "",
    ] {
        let body = json!({"server": "peer", "redirect_to": elsewhere});
        let answer = protected.engine().connect(&body).await;
        if answer.status == 200 {
            accepted.push(elsewhere);
            continue;
        }
        let message = answer.assert_error(400, "INVALID_REQUEST");
        assert!(message.contains("redirect_to"), "{elsewhere:?}: {message}");
    }
    assert!(accepted.is_empty(), "the browser would be sent to {accepted:?}");
    assert_eq!(protected.engine().connections().await, [Value::Null; 0]);
    assert_eq!(
        protected.authorization_server.requests_to("/reg").await,
        [Value::Null; 0],
        "no client was registered"
    );
}

#[tokio::test]
async fn a_connection_outlives_the_engine_and_is_renewed_under_its_id() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let id = protected.connect().await;
    let before = only_connection(protected.engine()).await;
    let protected = protected.restart().await;
    assert_eq!(only_connection(protected.engine()).await, before);
    assert_eq!(protected.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
    // Requested again, it is the same connection: at once while the grant is valid, else after a new grant.
    assert_eq!(protected.engine().connect_server("peer").await, id);
    protected.authorization_server.revoke_grants().await;
    protected
        .engine()
        .call_tool("peer__add", json!({"a": 2, "b": 3}))
        .await
        .assert_flat_error(400, "TOOL_FAILED");
    assert_eq!(protected.connect().await, id);
    assert_eq!(only_connection(protected.engine()).await["created_at"], before["created_at"]);
    assert_eq!(protected.authorization_server.requests_to("/reg").await.len(), 1, "a client registers once");
}

#[tokio::test]
async fn leave_that_is_asked_for_outlives_the_engine() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let returned = protected.authorize().await;
    let protected = protected.restart().await;
    let answer = protected.engine().post("/assets/callback", &returned.body()).await;
    answer.assert_ok("status:text connection:connection");
    assert_eq!(protected.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
}

#[tokio::test]
async fn what_is_disconnected_is_revoked_where_it_was_given() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let id = protected.connect().await;
    protected.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await;
    let tokens = protected.authorization_server.tokens().await;
    assert!(!tokens.is_empty() && tokens.iter().all(|(_, active)| *active), "{tokens:?}");
    let answer = protected.engine().disconnect(&id).await.assert_ok("status:text");
    assert_eq!(answer["status"], "disconnected");
    assert!(
        protected
            .authorization_server
            .requests_to("/token/revocation")
            .await
            .iter()
            .all(|request| request["status"] == 200)
    );
    let tokens = protected.authorization_server.tokens().await;
    assert!(tokens.iter().all(|(_, active)| !active), "{tokens:?}");
    assert_eq!(protected.engine().connections().await, [Value::Null; 0]);
    protected
        .engine()
        .call_tool("peer__add", json!({"a": 2, "b": 3}))
        .await
        .assert_flat_error(404, "METHOD_NOT_FOUND");
}

#[tokio::test]
async fn a_connection_goes_also_where_the_authorization_server_is_away() {
    let Some(peers) = Peers::installed() else { return };
    let protected = ProtectedServer::new(&peers).await;
    let id = protected.connect().await;
    protected.authorization_server.configure(json!({"down": true})).await;
    protected.engine().disconnect(&id).await.assert_ok("status:text");
    assert_eq!(protected.engine().connections().await, [Value::Null; 0]);
}

#[tokio::test]
async fn no_token_stands_anywhere_in_the_clear() {
    let Some(peers) = Peers::installed() else { return };
    let authorization_server = peers.start_authorization_server(2, "dynamic").await;
    let server = peers.start_http(&["--issuer", authorization_server.url()]).await;
    let debug_logging = |setup: StandaloneEngine| setup.with_env("ENGINE_LOG_LEVEL", "debug");
    let servers = json!({"peer": server.mcp_entry("oauth")});
    let protected = ProtectedServer {
        fixture: EngineFixture::with_servers_and_setup(|_| servers, debug_logging).await,
        authorization_server,
        server,
    };
    let (url, state) = protected.begin_authorization().await;
    let returned = protected.authorization_server.authorize_in_browser(&url).await;
    protected
        .engine()
        .post("/assets/callback", &returned.body())
        .await
        .assert_ok("status:text connection:connection");
    call_tool_in_turn(&protected.fixture, "task", "peer__add", json!({"a": 2, "b": 3})).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    call_tool_in_turn(&protected.fixture, "task", "peer__add", json!({"a": 2, "b": 4})).await.unwrap();
    let tokens = protected.authorization_server.tokens().await;
    assert!(tokens.len() >= 4, "they were renewed: {tokens:?}");
    let challenge = query_params(&url)["code_challenge"].clone();
    let secrets = tokens.into_iter().map(|(token, _)| ("a token", token));
    let secrets = secrets.chain([
        ("the code", returned.0["code"].clone()),
        ("the state", state),
        ("the challenge", challenge),
        ("the engine's key for secrets", SECRETS_KEY.to_owned()),
    ]);
    let secrets: Vec<(&str, String)> = secrets.collect();
    for (what, secret) in &secrets {
        assert_stored_nowhere(&protected.fixture, what, secret, &[]);
    }
    // Nor does an export contain a secret, nor any file after the engine has stopped.
    let export = protected.engine().get("/memory/export").await.body.to_string();
    let protected = protected.restart().await;
    for (what, secret) in &secrets {
        assert!(!export.contains(secret.as_str()), "{what} is exported");
        assert_stored_nowhere(&protected.fixture, what, secret, &[]);
    }
}

#[tokio::test]
async fn a_client_is_known_by_the_document_that_the_product_serves() {
    let Some(peers) = Peers::installed() else { return };
    let document = format!("{PRODUCT_URL}/oauth/client.json");
    let authorization_server = peers.start_authorization_server(3600, "document").await;
    let server = peers.start_http(&["--issuer", authorization_server.url()]).await;
    let servers = json!({"peer": server.mcp_entry("oauth")});
    let configure = |setup: StandaloneEngine| setup.with_env("OAUTH_CLIENT_METADATA_URL", &document);
    let protected = ProtectedServer {
        fixture: EngineFixture::with_servers_and_setup(|_| servers, configure).await,
        authorization_server,
        server,
    };
    let call = json!({"method": "assets.client_metadata", "params": {}});
    let metadata = protected.engine().post("/rpc", &call).await.assert_ok("result:object")["result"].clone();
    assert_eq!(metadata["client_id"], document);
    assert_eq!(metadata["redirect_uris"], json!([format!("{PRODUCT_URL}/assets/oauth/callback")]));
    protected.authorization_server.configure(json!({"documents": {document.clone(): metadata}})).await;
    let returned = protected.authorize().await;
    protected
        .engine()
        .post("/assets/callback", &returned.body())
        .await
        .assert_ok("status:text connection:connection");
    assert_eq!(protected.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
    assert_eq!(protected.authorization_server.requests_to("/reg").await, [Value::Null; 0]);
}
