//! The leave that a user gives at an authorization server.

use std::collections::BTreeMap;

use reqwest::redirect::Policy;
use reqwest::{Client, Method, Url};
use serde_json::{Value, json};

use super::{ProtectedServer, assert_stored_nowhere, call_tool_in_turn, only_connection, tool_names};
use crate::support::http::send;
use crate::support::peers::{PRODUCT_URL, SECRETS_KEY};
use crate::support::{EngineFixture, Peers, StandaloneEngine};

/// What the user's browser is asked to show.
fn query_params(url: &str) -> BTreeMap<String, String> {
    Url::parse(url).unwrap().query_pairs().into_owned().collect()
}

#[tokio::test]
async fn a_user_gives_leave_and_the_tools_are_the_agents() {
    let Some(peers) = Peers::installed() else { return };
    let place = ProtectedServer::new(&peers).await;
    let (url, state) = place.begin_authorization().await;
    let asked = query_params(&url);
    let callback = format!("{PRODUCT_URL}/assets/oauth/callback");
    for (name, value) in [
        ("response_type", "code"),
        ("code_challenge_method", "S256"),
        ("redirect_uri", &callback),
        ("resource", &place.server.url),
        ("state", &state),
    ] {
        assert_eq!(asked.get(name).map(String::as_str), Some(value), "`{name}` in {url}");
    }
    assert_eq!(asked["code_challenge"].len(), 43);
    assert!(asked["scope"].split(' ').any(|scope| scope == "mcp:tools"), "{url}");
    let registered = &place.authorization_server.requests_to("/reg").await[0];
    assert_eq!(registered["status"], 201);
    let client = &registered["registered"];
    assert_eq!(client["application_type"], "web");
    assert_eq!(client["redirect_uris"], json!([callback]));
    let pending = only_connection(place.engine()).await;
    assert_eq!((&pending["status"], &pending["server"]), (&json!("pending"), &json!("peer")));
    assert_eq!(place.engine().servers().await[0]["connected"], false);
    place
        .engine()
        .call_tool("peer__add", json!({"a": 2, "b": 3}))
        .await
        .assert_flat_error(404, "METHOD_NOT_FOUND");

    let returned = place.authorization_server.authorize_in_browser(&url).await;
    assert_eq!(returned.0["iss"], place.authorization_server.url());
    let answer = place.engine().post("/assets/callback", &returned.body()).await;
    let answer = answer.assert_ok("status:text connection:connection");
    assert_eq!(answer["status"], "connected");
    let listed = only_connection(place.engine()).await;
    assert_eq!((&listed["status"], &listed["connection"]), (&json!("connected"), &answer["connection"]));
    assert!(tool_names(&listed).contains(&"add"), "{listed}");
    assert_eq!(place.engine().servers().await[0]["connected"], true);
    assert_eq!(
        call_tool_in_turn(&place.fixture, "task", "peer__add", json!({"a": 2, "b": 3})).await.unwrap().trim(),
        "5"
    );
    let shown = place.engine().tool_output("peer__credential", json!({})).await;
    assert!(shown.starts_with("authorization "), "{shown}");
}

#[tokio::test]
async fn the_browser_may_come_back_to_the_engine_itself() {
    let Some(peers) = Peers::installed() else { return };
    let place = ProtectedServer::new(&peers).await;
    let returned = place.authorize().await;
    let answer = place.engine().get(&returned.path()).await.assert_ok("status:text connection:connection");
    assert_eq!(answer["status"], "connected");
    assert_eq!(only_connection(place.engine()).await["connection"], answer["connection"]);
    assert_eq!(place.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
}

#[tokio::test]
async fn the_browser_is_sent_on_to_where_the_product_wants_it() {
    let Some(peers) = Peers::installed() else { return };
    let place = ProtectedServer::new(&peers).await;
    let settings = format!("{PRODUCT_URL}/settings?tab=tools");
    let (url, _) = place.begin_authorization_with(json!({"server": "peer", "redirect_to": settings})).await;
    let returned = place.authorization_server.authorize_in_browser(&url).await;
    let browser = Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
    let url = format!("{}{}", place.engine().url, returned.path());
    let answer = send(browser.request(Method::GET, url).header("x-engine-key", &place.engine().key)).await;
    assert!(matches!(answer.status, 302 | 303), "{} {}", answer.status, answer.body);
    let location = answer.header("location").unwrap();
    assert!(location.starts_with(&settings), "{location}");
    for secret in [&returned.0["code"], &returned.0["state"]] {
        assert!(!location.contains(secret.as_str()), "{location}");
    }
    assert_eq!(only_connection(place.engine()).await["status"], "connected");
}

#[tokio::test]
async fn nobody_is_sent_to_a_stranger() {
    let Some(peers) = Peers::installed() else { return };
    let place = ProtectedServer::new(&peers).await;
    let mut taken = Vec::new();
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
        let answer = place.engine().connect(&body).await;
        if answer.status == 200 {
            taken.push(elsewhere);
            continue;
        }
        let message = answer.assert_error(400, "INVALID_REQUEST");
        assert!(message.contains("redirect_to"), "{elsewhere:?}: {message}");
    }
    assert!(taken.is_empty(), "the browser would be sent to {taken:?}");
    assert_eq!(place.engine().connections().await, [Value::Null; 0]);
    assert_eq!(place.authorization_server.requests_to("/reg").await, [Value::Null; 0], "nobody was bothered");
}

#[tokio::test]
async fn a_connection_outlives_the_engine_and_is_renewed_under_its_id() {
    let Some(peers) = Peers::installed() else { return };
    let place = ProtectedServer::new(&peers).await;
    let id = place.connect().await;
    let before = only_connection(place.engine()).await;
    let place = place.restart().await;
    assert_eq!(only_connection(place.engine()).await, before);
    assert_eq!(place.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
    // Asked for once more, it is the same one: at once while its leave holds, and once it has been given again.
    assert_eq!(place.engine().connect_server("peer").await, id);
    place.authorization_server.revoke_grants().await;
    place
        .engine()
        .call_tool("peer__add", json!({"a": 2, "b": 3}))
        .await
        .assert_flat_error(400, "TOOL_FAILED");
    assert_eq!(place.connect().await, id);
    assert_eq!(only_connection(place.engine()).await["created_at"], before["created_at"]);
    assert_eq!(place.authorization_server.requests_to("/reg").await.len(), 1, "a client registers once");
}

#[tokio::test]
async fn leave_that_is_asked_for_outlives_the_engine() {
    let Some(peers) = Peers::installed() else { return };
    let place = ProtectedServer::new(&peers).await;
    let returned = place.authorize().await;
    let place = place.restart().await;
    let answer = place.engine().post("/assets/callback", &returned.body()).await;
    answer.assert_ok("status:text connection:connection");
    assert_eq!(place.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
}

#[tokio::test]
async fn what_is_disconnected_is_revoked_where_it_was_given() {
    let Some(peers) = Peers::installed() else { return };
    let place = ProtectedServer::new(&peers).await;
    let id = place.connect().await;
    place.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await;
    let tokens = place.authorization_server.tokens().await;
    assert!(!tokens.is_empty() && tokens.iter().all(|(_, active)| *active), "{tokens:?}");
    let answer = place.engine().disconnect(&id).await.assert_ok("status:text");
    assert_eq!(answer["status"], "disconnected");
    assert!(
        place
            .authorization_server
            .requests_to("/token/revocation")
            .await
            .iter()
            .all(|asked| asked["status"] == 200)
    );
    let tokens = place.authorization_server.tokens().await;
    assert!(tokens.iter().all(|(_, active)| !active), "{tokens:?}");
    assert_eq!(place.engine().connections().await, [Value::Null; 0]);
    place
        .engine()
        .call_tool("peer__add", json!({"a": 2, "b": 3}))
        .await
        .assert_flat_error(404, "METHOD_NOT_FOUND");
}

#[tokio::test]
async fn a_connection_goes_also_where_the_authorization_server_is_away() {
    let Some(peers) = Peers::installed() else { return };
    let place = ProtectedServer::new(&peers).await;
    let id = place.connect().await;
    place.authorization_server.configure(json!({"down": true})).await;
    place.engine().disconnect(&id).await.assert_ok("status:text");
    assert_eq!(place.engine().connections().await, [Value::Null; 0]);
}

#[tokio::test]
async fn no_token_stands_anywhere_in_the_clear() {
    let Some(peers) = Peers::installed() else { return };
    let authority = peers.start_authorization_server(2, "dynamic").await;
    let server = peers.start_http(&["--issuer", authority.url()]).await;
    let loud = |place: StandaloneEngine| place.with_env("ENGINE_LOG_LEVEL", "debug");
    let servers = json!({"peer": server.mcp_entry("oauth")});
    let place = ProtectedServer {
        fixture: EngineFixture::with_servers_and_setup(|_| servers, loud).await,
        authorization_server: authority,
        server,
    };
    let (url, state) = place.begin_authorization().await;
    let returned = place.authorization_server.authorize_in_browser(&url).await;
    place
        .engine()
        .post("/assets/callback", &returned.body())
        .await
        .assert_ok("status:text connection:connection");
    call_tool_in_turn(&place.fixture, "task", "peer__add", json!({"a": 2, "b": 3})).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    call_tool_in_turn(&place.fixture, "task", "peer__add", json!({"a": 2, "b": 4})).await.unwrap();
    let tokens = place.authorization_server.tokens().await;
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
        assert_stored_nowhere(&place.fixture, what, secret, &[]);
    }
    // Nor in what leaves with an export, nor once the engine has ended.
    let export = place.engine().get("/memory/export").await.body.to_string();
    let place = place.restart().await;
    for (what, secret) in &secrets {
        assert!(!export.contains(secret.as_str()), "{what} is exported");
        assert_stored_nowhere(&place.fixture, what, secret, &[]);
    }
}

#[tokio::test]
async fn a_client_is_known_by_the_document_that_the_product_serves() {
    let Some(peers) = Peers::installed() else { return };
    let document = format!("{PRODUCT_URL}/oauth/client.json");
    let authority = peers.start_authorization_server(3600, "document").await;
    let server = peers.start_http(&["--issuer", authority.url()]).await;
    let servers = json!({"peer": server.mcp_entry("oauth")});
    let ready = |place: StandaloneEngine| place.with_env("OAUTH_CLIENT_METADATA_URL", &document);
    let place = ProtectedServer {
        fixture: EngineFixture::with_servers_and_setup(|_| servers, ready).await,
        authorization_server: authority,
        server,
    };
    let call = json!({"method": "assets.client_metadata", "params": {}});
    let metadata = place.engine().post("/rpc", &call).await.assert_ok("result:object")["result"].clone();
    assert_eq!(metadata["client_id"], document);
    assert_eq!(metadata["redirect_uris"], json!([format!("{PRODUCT_URL}/assets/oauth/callback")]));
    place.authorization_server.configure(json!({"documents": {document.clone(): metadata}})).await;
    let returned = place.authorize().await;
    place
        .engine()
        .post("/assets/callback", &returned.body())
        .await
        .assert_ok("status:text connection:connection");
    assert_eq!(place.engine().tool_output("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
    assert_eq!(place.authorization_server.requests_to("/reg").await, [Value::Null; 0]);
}
