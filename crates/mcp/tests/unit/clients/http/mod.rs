//! Tests of clients with HTTP servers of each protocol generation.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::assets::ConnectionStatus;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use catalog::{Auth, McpServerSpec, ServerOrigin, Transport};
use futures::StreamExt as _;
use http_service::clock::{Clock as _, SystemClock};
use reqwest::Url;
use reqwest::header::HeaderMap as Headers;
use serde_json::{Value, json};
use testkit::with_deadline;
use tokio::sync::mpsc;

use super::super::fixture::{ClientFixture, expect_done, expect_failure, expect_question, tool_call};

/// A request received by a server.
#[derive(Clone, Debug)]
struct ReceivedRequest {
    method: Method,
    path: String,
    headers: HeaderMap,
    /// The message; null if there is none.
    message: Value,
}

impl ReceivedRequest {
    fn is_method(&self, method: &str) -> bool {
        self.message["method"] == method
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn result(&self, result: &Value) -> Response {
        json(&json!({"jsonrpc": "2.0", "id": self.message["id"], "result": result}))
    }

    fn no_such_method(&self) -> Response {
        let error = json!({"code": -32601, "message": "no such method"});
        json(&json!({"jsonrpc": "2.0", "id": self.message["id"], "error": error}))
    }
}

fn json(body: &Value) -> Response {
    ([("content-type", "application/json")], body.to_string()).into_response()
}

fn event(message: &Value) -> Bytes {
    format!("event: message\ndata: {message}\n\n").into()
}

/// Returns an event stream that continues while `sender` exists.
fn events() -> (mpsc::UnboundedSender<Bytes>, Response) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let stream = futures::stream::unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<Bytes>| async {
        receiver.recv().await.map(|bytes| (Ok::<_, Infallible>(bytes), receiver))
    });
    (sender, ([("content-type", "text/event-stream")], Body::from_stream(stream.boxed())).into_response())
}

/// The server's end of an event stream.
type EventSender = mpsc::UnboundedSender<Bytes>;

type RequestLog = Arc<Mutex<Vec<ReceivedRequest>>>;
type Responder = dyn Fn(&ReceivedRequest) -> Response + Send + Sync;

/// An HTTP server that records its requests.
#[derive(Clone)]
struct FakeServer {
    url: Url,
    requests: RequestLog,
}

impl FakeServer {
    async fn start(answers: impl Fn(&ReceivedRequest) -> Response + Send + Sync + 'static) -> Self {
        let sent = RequestLog::default();
        let state = (Arc::clone(&sent), Arc::new(answers) as Arc<Responder>);
        let app = Router::new().fallback(record_and_respond).with_state(state);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, requests: sent }
    }

    fn spec(&self) -> Arc<McpServerSpec> {
        self.spec_with(Auth::None)
    }

    fn spec_with(&self, auth: Auth) -> Arc<McpServerSpec> {
        Arc::new(McpServerSpec {
            name: "server".into(),
            description: String::new(),
            origin: ServerOrigin::Catalog,
            transport: Transport::Http { url: self.url.clone(), headers: Headers::new() },
            auth,
            trust_annotations: false,
            timeout: Duration::from_secs(10),
        })
    }

    fn requests(&self, method: &str) -> Vec<ReceivedRequest> {
        self.requests.lock().unwrap().iter().filter(|sent| sent.is_method(method)).cloned().collect()
    }

    async fn wait_for_request(&self, method: &str) {
        with_deadline(async {
            while self.requests(method).is_empty() {
                SystemClock::new().sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

async fn record_and_respond(
    State((sent, answers)): State<(RequestLog, Arc<Responder>)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let message = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let one = ReceivedRequest { method, path: uri.path().to_owned(), headers, message };
    sent.lock().unwrap().push(one.clone());
    answers(&one)
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn tools() -> Value {
    json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
}

/// Returns the response of a server of the revision of 2025-06-18; calls are answered by `calls`.
fn handshake_response(sent: &ReceivedRequest, calls: impl FnOnce(&ReceivedRequest) -> Response) -> Response {
    match sent.message["method"].as_str() {
        _ if sent.method != Method::POST => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        Some("initialize") => {
            let info = json!({"name": "test", "version": "1"});
            let capabilities = json!({"tools": {}});
            let result =
                json!({"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info});
            let mut response = sent.result(&result);
            response.headers_mut().insert("mcp-session-id", "session-1".parse().unwrap());
            response
        }
        Some("tools/list") => sent.result(&tools()),
        Some("tools/call") => calls(sent),
        Some("server/discover") => (StatusCode::BAD_REQUEST, "no session").into_response(),
        Some(_) if sent.message["id"].is_null() => StatusCode::ACCEPTED.into_response(),
        Some(_) => sent.no_such_method(),
        None => StatusCode::ACCEPTED.into_response(),
    }
}

/// Returns the response of a server of the revision of 2026-07-28; calls are answered by `calls`.
fn stateless_response(sent: &ReceivedRequest, calls: impl FnOnce(&ReceivedRequest) -> Response) -> Response {
    let hints = |mut result: Value| {
        result["resultType"] = "complete".into();
        result["ttlMs"] = 0.into();
        result["cacheScope"] = "private".into();
        result
    };
    match sent.message["method"].as_str() {
        Some("server/discover") => sent.result(&hints(json!({
            "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": true}},
        }))),
        Some("tools/list") => sent.result(&hints(tools())),
        Some("tools/call") => calls(sent),
        _ => sent.no_such_method(),
    }
}

#[tokio::test]
async fn a_server_of_the_handshake_is_spoken_to() {
    let fixture = ClientFixture::new();
    let fake = FakeServer::start(|sent| handshake_response(sent, |call| call.result(&text("well")))).await;
    let spec = fake.spec();
    assert_eq!(fixture.connect(&spec).await, ["echo"]);
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
    let calls = fake.requests("tools/call");
    assert_eq!(calls[0].header("mcp-session-id"), Some("session-1"));
    assert_eq!(calls[0].header("mcp-protocol-version"), Some("2025-06-18"));
    assert_eq!(fake.requests("initialize")[0].message["params"]["protocolVersion"], "2025-11-25");
    let capabilities = &fake.requests("initialize")[0].message["params"]["capabilities"];
    assert_eq!(*capabilities, json!({"elicitation": {"form": {}, "url": {}}}));
}

#[tokio::test]
async fn a_server_of_the_newest_revision_is_spoken_to() {
    let fixture = ClientFixture::new();
    let fake = FakeServer::start(|sent| stateless_response(sent, |call| call.result(&text("well")))).await;
    let spec = fake.spec();
    assert_eq!(fixture.connect(&spec).await, ["echo"]);
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
    assert!(fake.requests("initialize").is_empty());
    let calls = fake.requests("tools/call");
    assert_eq!(calls[0].header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(calls[0].header("mcp-name"), Some("echo"));
}

#[tokio::test]
async fn what_the_newest_revision_requires_is_asked_and_sent() {
    let fixture = ClientFixture::new();
    let fake = FakeServer::start(|sent| {
        stateless_response(sent, |call| match &call.message["params"]["inputResponses"] {
            Value::Null => {
                let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
                let ask = json!({"method": "elicitation/create", "params": {
                    "mode": "form", "message": "How many?", "requestedSchema": schema,
                }});
                call.result(&json!({
                    "resultType": "input_required", "inputRequests": {"a": ask, "b": ask}, "requestState": "s",
                }))
            }
            responses => {
                assert_eq!(call.message["params"]["requestState"], "s");
                call.result(&text(&responses.to_string()))
            }
        })
    })
    .await;
    let spec = fake.spec();
    let mut asks = tool_call("echo", json!({}));
    assert!(expect_question(fixture.call_with(&spec, &asks).await).text.contains("How many?"));
    asks.answer = Some("7");
    assert!(expect_question(fixture.call_with(&spec, &asks).await).text.contains("How many?"));
    asks.answer = Some("decline");
    let given = expect_done(fixture.call_with(&spec, &asks).await);
    let given: Value = serde_json::from_str(&given).unwrap();
    assert_eq!(given, json!({"a": {"action": "accept", "content": {"n": 7}}, "b": {"action": "decline"}}));
    asks.answer = None;
    asks.may_elicit = false;
    let given: Value = serde_json::from_str(&expect_done(fixture.call_with(&spec, &asks).await)).unwrap();
    assert_eq!(given["a"], json!({"action": "decline"}));
}

#[tokio::test]
async fn a_server_of_the_newest_revision_tells_when_its_tools_change() {
    let fixture = ClientFixture::new();
    let stream = Mutex::new(None::<EventSender>);
    let fake = FakeServer::start(move |sent| {
        let told = stream.lock().unwrap().is_some();
        if sent.is_method("subscriptions/listen") {
            let (sender, response) = events();
            let meta = json!({"io.modelcontextprotocol/subscriptionId": sent.message["id"]});
            let note = |method: &str, mut params: Value| {
                params["_meta"] = meta.clone();
                event(
                    &json!({"jsonrpc": "2.0", "method": format!("notifications/{method}"), "params": params}),
                )
            };
            let filter = json!({"notifications": {"toolsListChanged": true}});
            sender.send(note("subscriptions/acknowledged", filter)).unwrap();
            sender.send(note("tools/list_changed", json!({}))).unwrap();
            *stream.lock().unwrap() = Some(sender);
            return response;
        }
        let mut response = stateless_response(sent, |call| call.result(&text("well")));
        if sent.is_method("tools/list") && told {
            let tools = json!([{"name": "renamed", "inputSchema": {"type": "object"}}]);
            response = sent.result(&json!({
                "tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
            }));
        }
        response
    })
    .await;
    let spec = fake.spec();
    assert_eq!(fixture.connect(&spec).await, ["echo"]);
    with_deadline(async {
        while fixture.connection().tools != ["renamed"] {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_of_the_oldest_transport_is_spoken_to() {
    let fixture = ClientFixture::new();
    let stream = Mutex::new(None::<mpsc::UnboundedSender<Bytes>>);
    let fake = FakeServer::start(move |sent| {
        if sent.method == Method::GET {
            let (sender, response) = events();
            sender.send("event: endpoint\ndata: /messages?session=1\n\n".into()).unwrap();
            *stream.lock().unwrap() = Some(sender);
            return response;
        }
        if sent.path != "/messages" {
            return StatusCode::METHOD_NOT_ALLOWED.into_response();
        }
        let result = match sent.message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {"name": "t", "version": "1"},
            }),
            Some("tools/list") => tools(),
            Some("tools/call") => text("well"),
            _ => return (StatusCode::ACCEPTED, "Accepted").into_response(),
        };
        let answer = json!({"jsonrpc": "2.0", "id": sent.message["id"], "result": result});
        stream.lock().unwrap().as_ref().unwrap().send(event(&answer)).unwrap();
        (StatusCode::ACCEPTED, "Accepted").into_response()
    })
    .await;
    let spec = fake.spec();
    assert_eq!(fixture.connect(&spec).await, ["echo"]);
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
}

#[tokio::test]
async fn what_a_server_asks_on_a_calls_stream_is_asked_of_that_call() {
    let fixture = ClientFixture::new();
    let waiting = Mutex::new(Vec::<(Value, EventSender)>::new());
    let fake = FakeServer::start(move |sent| {
        let mut waiting = waiting.lock().unwrap();
        if let (Some(id), true) = (sent.message["id"].as_str(), sent.message["result"].is_object()) {
            let at = waiting.iter().position(|(call, _)| call["tool"] == id).unwrap();
            let (call, stream) = waiting.remove(at);
            let result = text(&format!("{id}: {}", sent.message["result"]["content"]["it"]));
            stream.send(event(&json!({"jsonrpc": "2.0", "id": call["id"], "result": result}))).unwrap();
            return StatusCode::ACCEPTED.into_response();
        }
        handshake_response(sent, |call| {
            let (stream, response) = events();
            let tool = &call.message["params"]["name"];
            waiting.push((json!({"id": call.message["id"], "tool": tool}), stream));
            // Both have asked; the first one is answered last.
            if waiting.len() == 2 {
                for (call, stream) in waiting.iter().rev() {
                    let schema = json!({"type": "object", "properties": {"it": {"type": "string"}}});
                    let params = json!({"message": call["tool"], "requestedSchema": schema});
                    let ask =
                        json!({"jsonrpc": "2.0", "id": call["tool"], "method": "elicitation/create", "params": params});
                    stream.send(event(&ask)).unwrap();
                }
            }
            response
        })
    })
    .await;
    let spec = fake.spec();
    let (mut one, mut other) = (tool_call("one", json!({})), tool_call("other", json!({})));
    let asks = tokio::join!(fixture.call_with(&spec, &one), fixture.call_with(&spec, &other));
    assert!(expect_question(asks.0).text.contains("asks this: one"));
    assert!(expect_question(asks.1).text.contains("asks this: other"));
    (one.answer, other.answer) = (Some("1"), Some("2"));
    assert_eq!(expect_done(fixture.call_with(&spec, &one).await), "one: \"1\"");
    assert_eq!(expect_done(fixture.call_with(&spec, &other).await), "other: \"2\"");
}

#[tokio::test]
async fn what_is_the_same_twice_is_called_again_where_an_answer_is_lost() {
    let fixture = ClientFixture::new();
    let calls = AtomicUsize::new(0);
    let fake = FakeServer::start(move |sent| {
        handshake_response(sent, |call| match calls.fetch_add(1, Ordering::AcqRel) {
            0 => events().1,
            _ => call.result(&text("well")),
        })
    })
    .await;
    let mut again = tool_call("echo", json!({}));
    again.idempotent = true;
    let spec = fake.spec();
    fixture.connect(&spec).await;
    assert_eq!(expect_done(fixture.call_with(&spec, &again).await), "well");
    assert_eq!(fake.requests("tools/call").len(), 2);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_a_server_of_the_handshake() {
    let fixture = ClientFixture::new();
    let streams = Mutex::new(Vec::new());
    let fake = FakeServer::start(move |sent| {
        handshake_response(sent, |call| {
            if call.message["params"]["name"] == "echo" {
                return call.result(&text("well"));
            }
            let (stream, response) = events();
            streams.lock().unwrap().push(stream);
            response
        })
    })
    .await;
    let spec = fake.spec();
    tokio::select! {
        called = fixture.call(&spec, "slow") => panic!("{called:?}"),
        () = fake.wait_for_request("tools/call") => {}
    }
    fake.wait_for_request("notifications/cancelled").await;
    let id = &fake.requests("tools/call")[0].message["id"];
    assert_eq!(&fake.requests("notifications/cancelled")[0].message["params"]["requestId"], id);
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
}

#[tokio::test]
async fn a_server_of_the_newest_revision_sees_a_dropped_calls_stream_closed() {
    let fixture = ClientFixture::new();
    let stream = Arc::new(Mutex::new(None));
    let opened = Arc::clone(&stream);
    let fake = FakeServer::start(move |sent| {
        stateless_response(sent, |_| {
            let (sender, response) = events();
            *opened.lock().unwrap() = Some(sender);
            response
        })
    })
    .await;
    let spec = fake.spec();
    tokio::select! {
        called = fixture.call(&spec, "slow") => panic!("{called:?}"),
        () = fake.wait_for_request("tools/call") => {}
    }
    let take = || stream.lock().unwrap().take();
    let sender = with_deadline(async {
        loop {
            if let Some(sender) = take() {
                return sender;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    with_deadline(sender.closed()).await;
}

/// Asserts that a call with this response fails with a reason that contains `why`, and that the next call works.
async fn assert_survives(why: &str, answer: fn(&ReceivedRequest) -> Response) {
    let fixture = ClientFixture::new();
    let calls = AtomicUsize::new(0);
    let fake = FakeServer::start(move |sent| {
        handshake_response(sent, |call| match calls.fetch_add(1, Ordering::AcqRel) {
            0 => answer(call),
            _ => call.result(&text("well")),
        })
    })
    .await;
    let spec =
        Arc::new(McpServerSpec { timeout: Duration::from_secs(3), ..McpServerSpec::clone(&fake.spec()) });
    fixture.connect(&spec).await;
    let reason = expect_failure(fixture.call(&spec, "echo").await);
    assert!(reason.contains(why), "{reason}");
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
}

#[tokio::test]
async fn a_call_survives_whatever_is_answered() {
    assert_survives("it failed (HTTP 500). It is not known whether `echo` took effect", |_| {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })
    .await;
    assert_survives("limits the request rate (HTTP 429)", |_| StatusCode::TOO_MANY_REQUESTS.into_response())
        .await;
    assert_survives("HTTP 403", |_| (StatusCode::FORBIDDEN, "not you").into_response()).await;
    assert_survives("over 8 MiB", |call| call.result(&text(&"x".repeat(9 << 20)))).await;
    assert_survives("server `server` failed", |_| "<html>".into_response()).await;
    assert_survives("server `server` failed", |_| {
        let (sender, response) = events();
        sender.send("data: garbage\n\n".into()).unwrap();
        response
    })
    .await;
    assert_survives("did not answer within 3 seconds", |_| StatusCode::ACCEPTED.into_response()).await;
    assert_survives("the connection was closed", |_| events().1).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_fails_the_connection_until_it_is() {
    let fixture = ClientFixture::new();
    let fake = FakeServer::start(|sent| handshake_response(sent, |call| call.result(&text("well")))).await;
    fixture.connect(&fake.spec()).await;
    fixture.clients.drop_client("server");
    let gone = McpServerSpec {
        transport: Transport::Http { url: "http://127.0.0.1:1/".parse().unwrap(), headers: Headers::new() },
        ..McpServerSpec::clone(&fake.spec())
    };
    let reason = expect_failure(fixture.call(&Arc::new(gone), "echo").await);
    assert!(reason.contains("cannot be reached"), "{reason}");
    assert_eq!(fixture.status(), ConnectionStatus::Error);
    assert_eq!(fixture.call_text(&fake.spec(), "echo").await, "well");
    assert_eq!(fixture.status(), ConnectionStatus::Connected);
}

mod access;
mod ends;
