//! What browser tokens open: the calls of the table, for their scopes and their task, and nothing else.

use api::browser::{BrowserAccess, Claims, Scope};
use api::{TaskId, TokenId};
use axum::http::Method;
use pretty_assertions::assert_eq;
use reqwest::Response;
use serde_json::{Value, json};
use testkit::with_deadline;

use super::app::{ENGINE_KEY, TestApp, expect_error, token_identity};
use super::token_scopes::{RULES, TaskIn, rule_for};
use super::*;

const FAR: i64 = i64::MAX;

fn claims(scopes: &Value, task: Option<&str>) -> Claims {
    Claims {
        token_id: TokenId::new(),
        engine_id: token_identity().0,
        issued_at_ms: 0,
        expires_at_ms: FAR,
        scopes: serde_json::from_value(scopes.clone()).unwrap(),
        task_id: task.map(|task| TaskId::new(task.to_owned()).unwrap()),
    }
}

fn signed(claims: &Claims) -> String {
    token_identity().1.signing_key(KeyHash::of(ENGINE_KEY)).sign(claims).expose().to_owned()
}

async fn call(app: &TestApp, token: &str, method: &str, path: &str, body: &str) -> Response {
    let request = app.request_without_key(method, path).bearer_auth(token).body(body.to_owned());
    with_deadline(request.send()).await.unwrap()
}

/// The code of a refusal, in whatever form.
async fn code(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let body: Value = with_deadline(response.json()).await.unwrap_or_default();
    let error = body["error"]["code"].as_str().or(body["error"].as_str());
    let code = error.or(body["code"].as_str()).unwrap_or_default();
    (status, code.to_owned())
}

/// The body and the path of a call to a route about `task`.
fn call_about(rule: &token_scopes::Rule, task: &str) -> (String, String) {
    let path = rule.path.replace("{task_id}", task).replace("{turn_id}", "turn_1").replace("{hash}", "ab");
    let path = path.replace("{request_id}", "hitl-1");
    let path = if rule.task == TaskIn::Query { format!("{path}?task_id={task}") } else { path };
    let body = json!({"task_id": task, "message": "Hi!", "answer": "yes", "direct": true});
    (path, if rule.task == TaskIn::Body { body.to_string() } else { String::new() })
}

fn is_permitted(refusal: &(u16, String)) -> bool {
    refusal.1 != "TOKEN_SCOPE" && refusal.0 != 401
}

#[tokio::test]
async fn what_the_table_does_not_name_is_closed() {
    let app = TestApp::start().await;
    let token = signed(&claims(&json!(["chat", "read", "answer"]), None));
    let mut closed = 0;
    for (path, item) in &document().paths.paths {
        for method in serde_json::to_value(item).unwrap().as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            if path == "/health" || rule_for(&method, path).is_some() {
                continue;
            }
            closed += 1;
            let refusal = code(call(&app, &token, method.as_str(), path, "{").await).await;
            let expected = match path.as_str() {
                // It has no body.
                _ if method == Method::HEAD => "",
                "/agui" => "token_scope",
                path if path.starts_with("/v1/") => "token_scope",
                _ => "TOKEN_SCOPE",
            };
            assert_eq!(refusal, (403, expected.to_owned()), "{method} {path}");
        }
    }
    assert!(closed > 60, "{closed} calls");
    app.stop().await;
}

#[tokio::test]
async fn each_call_of_the_table_needs_one_of_its_scopes() {
    let app = TestApp::start().await;
    app.run_turn("task", "Hello!").await;
    let document = serde_json::to_value(document()).unwrap();
    for rule in &RULES {
        let operation = &document["paths"][rule.path][rule.method.as_str().to_lowercase()];
        assert!(operation.is_object(), "there is no {} {}", rule.method, rule.path);
        for scope in [Scope::Chat, Scope::Read, Scope::Answer] {
            let token = signed(&claims(&json!([scope]), None));
            let (path, body) = call_about(rule, "task");
            let refusal = code(call(&app, &token, rule.method.as_str(), &path, &body).await).await;
            let expected = rule.scopes.contains(&scope);
            assert_eq!(
                is_permitted(&refusal),
                expected,
                "{} {path} with {scope:?}: {refusal:?}",
                rule.method
            );
        }
    }
    app.stop().await;
}

#[tokio::test]
async fn a_token_for_one_task_sees_no_other() {
    let app = TestApp::start().await;
    app.run_turn("mine", "Hello!").await;
    app.run_turn("other", "A secret.").await;
    let token = signed(&claims(&json!(["chat", "read", "answer"]), Some("mine")));
    for rule in &RULES {
        let method = rule.method.as_str();
        let (path, body) = call_about(rule, "mine");
        let own = code(call(&app, &token, method, &path, &body).await).await;
        assert_eq!(is_permitted(&own), rule.task != TaskIn::Nowhere, "{method} {path}: {own:?}");
        let (path, body) = call_about(rule, "other");
        let refusal = code(call(&app, &token, method, &path, &body).await).await;
        assert_eq!(refusal, (403, "TOKEN_SCOPE".to_owned()), "{method} {path}");
    }
    for path in [
        "/execute/replay",
        "/execute/replay?task_id=mine&task_id=other",
        "/execute/replay?task_id=other&task_id=mine",
        "/execute/replay?task_id=Mine",
        "/execute/replay?task%5Fid=other",
        "/execute/replay?after=0",
        "/tasks/%6Fther",
        "/tasks/mine%2F..%2Fother",
        "/tasks/mine%00",
        "/tasks/MINE",
        "/tasks/other/messages?task_id=mine",
        "/tasks/other?task_id=mine",
        "/tasks",
        "/conversations/search?query=secret",
    ] {
        let refusal = code(call(&app, &token, "GET", path, "").await).await;
        assert_eq!(refusal, (403, "TOKEN_SCOPE".to_owned()), "{path}");
    }
    // Escapes of the task's own name mean the task.
    for path in ["/tasks/%6Dine", "/execute/replay?task_id=%6Dine", "/execute/replay?task%5Fid=mine"] {
        assert_eq!(call(&app, &token, "GET", path, "").await.status(), 200, "{path}");
    }
    // An approval for all tasks is not one for this task.
    let always = json!({"task_id": "mine", "answer": "always", "scope": "engine"}).to_string();
    let refusal = code(call(&app, &token, "POST", "/hitl/respond", &always).await).await;
    assert_eq!(refusal.1, "TOKEN_SCOPE");
    let turns = call(&app, &signed(&claims(&json!(["read"]), None)), "GET", "/tasks/other/turns", "").await;
    let turns: Value = with_deadline(turns.json()).await.unwrap();
    let turn = turns["turns"][0]["turn_id"].as_str().unwrap_or_else(|| panic!("{turns}"));
    // A turn of another task is not found under the own one.
    for end in ["", "/result"] {
        let path = format!("/tasks/mine/turns/{turn}{end}");
        assert_eq!(call(&app, &token, "GET", &path, "").await.status(), 404, "{path}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_token_is_no_key_and_a_wrong_key_is_no_token() {
    let app = TestApp::start().await;
    let token = signed(&claims(&json!(["read"]), None));
    let get = || app.request_without_key("GET", "/tasks");
    let send = async |request: reqwest::RequestBuilder| with_deadline(request.send()).await.unwrap();
    assert_eq!(send(get().bearer_auth(&token)).await.status(), 200);
    for (request, refused) in [
        (get().header("X-Engine-Key", &token), "INVALID_ENGINE_KEY"),
        (get().header("X-Engine-Key", "sk-svc-wrong").bearer_auth(&token), "INVALID_ENGINE_KEY"),
        (get().header("X-Engine-Key", "").bearer_auth(&token), "INVALID_ENGINE_KEY"),
        (get().bearer_auth(&token).bearer_auth(&token), "INVALID_TOKEN"),
        (get().header("Authorization", format!("Basic {token}")), "INVALID_ENGINE_KEY"),
        (app.request_without_key("GET", &format!("/tasks?token={token}")), "INVALID_ENGINE_KEY"),
        (app.request_without_key("GET", &format!("/tasks?access_token={token}")), "INVALID_ENGINE_KEY"),
        (get().header("Cookie", format!("token={token}")), "INVALID_ENGINE_KEY"),
        (get().bearer_auth(format!("{token}x")), "INVALID_TOKEN"),
        (get().bearer_auth("rbt9.a.b"), "INVALID_TOKEN"),
    ] {
        expect_error(send(request).await, 401, refused).await;
    }
    // HEAD is a GET; no other method becomes one.
    let head = app.request_without_key("HEAD", "/tasks").bearer_auth(&token);
    assert_eq!(send(head).await.status(), 200);
    let overridden = app.request_without_key("POST", "/execute").bearer_auth(&token);
    let overridden = overridden.header("X-HTTP-Method-Override", "GET").header("X-Original-URL", "/tasks");
    expect_error(send(overridden).await, 403, "TOKEN_SCOPE").await;
    app.stop().await;
}

#[tokio::test]
async fn an_engine_is_told_what_is_revoked_and_keeps_the_latest() {
    let app = TestApp::start().await;
    let revoked = claims(&json!(["read"]), None);
    let token = signed(&revoked);
    let tell = async |revision: i64, revoked: Value, origins: Value| {
        let body = json!({
            "subsystem": "control", "op": "set_browser_access",
            "revision": revision, "revoked": revoked, "origins": origins,
        });
        let response =
            with_deadline(app.request("POST", "/rpc").body(body.to_string()).send()).await.unwrap();
        response.status().as_u16()
    };
    assert_eq!(call(&app, &token, "GET", "/tasks", "").await.status(), 200);
    assert_eq!(tell(7, json!([revoked.token_id]), json!(["https://app.example"])).await, 200);
    expect_error(call(&app, &token, "GET", "/tasks", "").await, 401, "TOKEN_REVOKED").await;
    // A message that was sent earlier and arrives later.
    assert_eq!(tell(6, json!([]), json!([])).await, 200);
    expect_error(call(&app, &token, "GET", "/tasks", "").await, 401, "TOKEN_REVOKED").await;
    for (revoked, origins) in [(json!(["tok_x"]), json!([])), (json!([]), json!(["*"]))] {
        assert_eq!(tell(8, revoked, origins).await, 400);
    }
    let expired = Claims { expires_at_ms: 1, ..claims(&json!(["read"]), None) };
    expect_error(call(&app, &signed(&expired), "GET", "/tasks", "").await, 401, "TOKEN_EXPIRED").await;
    let other = Claims { engine_id: api::EngineId::new(), ..claims(&json!(["read"]), None) };
    expect_error(call(&app, &signed(&other), "GET", "/tasks", "").await, 401, "INVALID_TOKEN").await;
    app.stop().await;
}

#[tokio::test]
async fn pages_of_known_origins_and_no_others_may_read() {
    let app = TestApp::start().await;
    let ask = async |method: &str, path: &str, headers: &[(&str, &str)]| {
        let request = app.request_without_key(method, path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        with_deadline(request.send()).await.unwrap()
    };
    let allowed = |response: &Response| response.headers().get("access-control-allow-origin").cloned();
    let preflight = |origin| [("Origin", origin), ("Access-Control-Request-Method", "POST")];
    // Without origins there are no pages.
    let response = ask("OPTIONS", "/execute", &preflight("https://app.example")).await;
    assert_eq!((response.status().as_u16(), allowed(&response)), (405, None));
    assert!(!response.headers().contains_key("vary"));

    let body = json!({
        "subsystem": "control", "op": "set_browser_access", "revision": 1, "origins": ["https://app.example"],
    });
    with_deadline(app.request("POST", "/rpc").body(body.to_string()).send()).await.unwrap();
    for path in ["/execute", "/tasks/a%2Fb", "/nowhere"] {
        let response = ask("OPTIONS", path, &preflight("https://app.example")).await;
        assert_eq!(response.status(), 204, "{path}");
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_lowercase();
        assert_eq!(header("access-control-allow-origin"), "https://app.example");
        assert!(header("access-control-allow-headers").contains("authorization"));
        assert!(header("access-control-allow-methods").contains("delete"));
        assert!(header("vary").contains("origin") && response.headers().contains_key("x-request-id"));
        assert!(!response.headers().contains_key("access-control-allow-credentials"));
    }
    for origin in ["https://app.example.evil", "http://app.example", "null", "https://app.example:444", "*"] {
        let response = ask("OPTIONS", "/execute", &preflight(origin)).await;
        assert_eq!((response.status().as_u16(), allowed(&response)), (204, None), "{origin}");
        let response = ask("GET", "/tasks", &[("Origin", origin)]).await;
        assert_eq!((response.status().as_u16(), allowed(&response)), (401, None), "{origin}");
        assert_eq!(response.headers()["vary"], "Origin");
    }
    let two = [("Origin", "https://app.example"), ("Origin", "https://app.example.evil")];
    assert_eq!(allowed(&ask("GET", "/tasks", &two).await), None);
    // A page may read refusals too: otherwise it could not tell that its token has expired.
    let response = ask("GET", "/tasks", &[("Origin", "https://app.example")]).await;
    assert_eq!(allowed(&response).unwrap(), "https://app.example");
    let exposed = response.headers()["access-control-expose-headers"].to_str().unwrap();
    assert!(exposed.contains("retry-after") && exposed.contains("x-request-id"));
    // Programs send no origin, and learn only that caches must tell pages apart.
    let response = ask("GET", "/tasks", &[]).await;
    assert_eq!((allowed(&response), &response.headers()["vary"]), (None, &"Origin".parse().unwrap()));
    app.stop().await;
}

#[test]
fn an_engine_without_a_secret_accepts_no_token() {
    let tokens = BrowserTokens::new(None, BrowserAccess::default());
    let token = api::browser::BrowserToken::from_bearer(&signed(&claims(&json!(["read"]), None))).unwrap();
    assert!(tokens.verify(&token, KeyHash::of(ENGINE_KEY), api::Timestamp::from_unix_ms(1)).is_err());
}
