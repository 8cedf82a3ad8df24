//! Clients and servers at an address, of each of the protocol's lives.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use contract::assets::ConnectionStatus;
use futures::StreamExt as _;
use reqwest::Url;
use reqwest::header::HeaderMap as Headers;
use serde_json::{Value, json};
use service::clock::{Clock as _, SystemClock};
use tokio::sync::mpsc;

use super::super::rig::{Rig, asked, call, done, failed};
use crate::catalog::{Auth, ServerSpec, Transport};
use crate::testing::within;

/// What a server is sent.
#[derive(Clone, Debug)]
struct Sent {
    method: Method,
    path: String,
    headers: HeaderMap,
    /// The message; null where there is none.
    message: Value,
}

impl Sent {
    fn is(&self, method: &str) -> bool {
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

/// A stream of events that goes on as long as `sender` is there.
fn events() -> (mpsc::UnboundedSender<Bytes>, Response) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let stream = futures::stream::unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<Bytes>| async {
        receiver.recv().await.map(|bytes| (Ok::<_, Infallible>(bytes), receiver))
    });
    (sender, ([("content-type", "text/event-stream")], Body::from_stream(stream.boxed())).into_response())
}

/// The server's end of a stream of events.
type Stream = mpsc::UnboundedSender<Bytes>;

type Log = Arc<Mutex<Vec<Sent>>>;
type Answers = dyn Fn(&Sent) -> Response + Send + Sync;

/// A server over HTTP, which notes what it is sent.
#[derive(Clone)]
struct Fake {
    url: Url,
    sent: Log,
}

impl Fake {
    async fn start(answers: impl Fn(&Sent) -> Response + Send + Sync + 'static) -> Self {
        let sent = Log::default();
        let state = (Arc::clone(&sent), Arc::new(answers) as Arc<Answers>);
        let app = Router::new().fallback(take).with_state(state);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, sent }
    }

    fn spec(&self) -> Arc<ServerSpec> {
        self.spec_with(Auth::None)
    }

    fn spec_with(&self, auth: Auth) -> Arc<ServerSpec> {
        Arc::new(ServerSpec {
            name: "server".into(),
            description: String::new(),
            transport: Transport::Http { url: self.url.clone(), headers: Headers::new() },
            auth,
            trust_annotations: false,
            timeout: Duration::from_secs(10),
        })
    }

    fn sent(&self, method: &str) -> Vec<Sent> {
        self.sent.lock().unwrap().iter().filter(|sent| sent.is(method)).cloned().collect()
    }

    async fn was_sent(&self, method: &str) {
        within(async {
            while self.sent(method).is_empty() {
                SystemClock::new().sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

async fn take(
    State((sent, answers)): State<(Log, Arc<Answers>)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let message = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let one = Sent { method, path: uri.path().to_owned(), headers, message };
    sent.lock().unwrap().push(one.clone());
    answers(&one)
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

fn tools() -> Value {
    json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
}

/// What a server of the revision of 2025-06-18 answers; calls by `calls`.
fn handshake(sent: &Sent, calls: impl FnOnce(&Sent) -> Response) -> Response {
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

/// What a server of the revision of 2026-07-28 answers; calls by `calls`.
fn self_contained(sent: &Sent, calls: impl FnOnce(&Sent) -> Response) -> Response {
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
    let rig = Rig::new();
    let fake = Fake::start(|sent| handshake(sent, |call| call.result(&text("well")))).await;
    let spec = fake.spec();
    assert_eq!(rig.connect(&spec).await, ["echo"]);
    assert_eq!(rig.done(&spec, "echo").await, "well");
    let calls = fake.sent("tools/call");
    assert_eq!(calls[0].header("mcp-session-id"), Some("session-1"));
    assert_eq!(calls[0].header("mcp-protocol-version"), Some("2025-06-18"));
    assert_eq!(fake.sent("initialize")[0].message["params"]["protocolVersion"], "2025-11-25");
    let capabilities = &fake.sent("initialize")[0].message["params"]["capabilities"];
    assert_eq!(*capabilities, json!({"elicitation": {"form": {}, "url": {}}}));
}

#[tokio::test]
async fn a_server_of_the_newest_revision_is_spoken_to() {
    let rig = Rig::new();
    let fake = Fake::start(|sent| self_contained(sent, |call| call.result(&text("well")))).await;
    let spec = fake.spec();
    assert_eq!(rig.connect(&spec).await, ["echo"]);
    assert_eq!(rig.done(&spec, "echo").await, "well");
    assert!(fake.sent("initialize").is_empty());
    let calls = fake.sent("tools/call");
    assert_eq!(calls[0].header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(calls[0].header("mcp-name"), Some("echo"));
}

#[tokio::test]
async fn what_the_newest_revision_requires_is_asked_and_sent() {
    let rig = Rig::new();
    let fake = Fake::start(|sent| {
        self_contained(sent, |call| match &call.message["params"]["inputResponses"] {
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
    let mut asks = call("echo", json!({}));
    assert!(asked(rig.call_with(&spec, &asks).await).text.contains("How many?"));
    asks.answer = Some("7");
    assert!(asked(rig.call_with(&spec, &asks).await).text.contains("How many?"));
    asks.answer = Some("decline");
    let given = done(rig.call_with(&spec, &asks).await);
    let given: Value = serde_json::from_str(&given).unwrap();
    assert_eq!(given, json!({"a": {"action": "accept", "content": {"n": 7}}, "b": {"action": "decline"}}));
    asks.answer = None;
    asks.may_ask = false;
    let given: Value = serde_json::from_str(&done(rig.call_with(&spec, &asks).await)).unwrap();
    assert_eq!(given["a"], json!({"action": "decline"}));
}

#[tokio::test]
async fn a_server_of_the_newest_revision_tells_when_its_tools_change() {
    let rig = Rig::new();
    let stream = Mutex::new(None::<Stream>);
    let fake = Fake::start(move |sent| {
        let told = stream.lock().unwrap().is_some();
        if sent.is("subscriptions/listen") {
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
        let mut response = self_contained(sent, |call| call.result(&text("well")));
        if sent.is("tools/list") && told {
            let tools = json!([{"name": "renamed", "inputSchema": {"type": "object"}}]);
            response = sent.result(&json!({
                "tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
            }));
        }
        response
    })
    .await;
    let spec = fake.spec();
    assert_eq!(rig.connect(&spec).await, ["echo"]);
    within(async {
        while rig.connection().tools != ["renamed"] {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_of_the_oldest_transport_is_spoken_to() {
    let rig = Rig::new();
    let stream = Mutex::new(None::<mpsc::UnboundedSender<Bytes>>);
    let fake = Fake::start(move |sent| {
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
    assert_eq!(rig.connect(&spec).await, ["echo"]);
    assert_eq!(rig.done(&spec, "echo").await, "well");
}

#[tokio::test]
async fn what_a_server_asks_on_a_calls_stream_is_asked_of_that_call() {
    let rig = Rig::new();
    let waiting = Mutex::new(Vec::<(Value, Stream)>::new());
    let fake = Fake::start(move |sent| {
        let mut waiting = waiting.lock().unwrap();
        if let (Some(id), true) = (sent.message["id"].as_str(), sent.message["result"].is_object()) {
            let at = waiting.iter().position(|(call, _)| call["tool"] == id).unwrap();
            let (call, stream) = waiting.remove(at);
            let result = text(&format!("{id}: {}", sent.message["result"]["content"]["it"]));
            stream.send(event(&json!({"jsonrpc": "2.0", "id": call["id"], "result": result}))).unwrap();
            return StatusCode::ACCEPTED.into_response();
        }
        handshake(sent, |call| {
            let (stream, response) = events();
            let tool = &call.message["params"]["name"];
            waiting.push((json!({"id": call.message["id"], "tool": tool}), stream));
            // Both are asked, the first one last.
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
    let (mut one, mut other) = (call("one", json!({})), call("other", json!({})));
    let asks = tokio::join!(rig.call_with(&spec, &one), rig.call_with(&spec, &other));
    assert!(asked(asks.0).text.contains("asks this: one"));
    assert!(asked(asks.1).text.contains("asks this: other"));
    (one.answer, other.answer) = (Some("1"), Some("2"));
    assert_eq!(done(rig.call_with(&spec, &one).await), "one: \"1\"");
    assert_eq!(done(rig.call_with(&spec, &other).await), "other: \"2\"");
}

#[tokio::test]
async fn what_is_the_same_twice_is_called_again_where_an_answer_is_lost() {
    let rig = Rig::new();
    let calls = AtomicUsize::new(0);
    let fake = Fake::start(move |sent| {
        handshake(sent, |call| match calls.fetch_add(1, Ordering::AcqRel) {
            0 => events().1,
            _ => call.result(&text("well")),
        })
    })
    .await;
    let mut again = call("echo", json!({}));
    again.idempotent = true;
    let spec = fake.spec();
    rig.connect(&spec).await;
    assert_eq!(done(rig.call_with(&spec, &again).await), "well");
    assert_eq!(fake.sent("tools/call").len(), 2);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_a_server_of_the_handshake() {
    let rig = Rig::new();
    let streams = Mutex::new(Vec::new());
    let fake = Fake::start(move |sent| {
        handshake(sent, |call| {
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
        called = rig.call(&spec, "slow") => panic!("{called:?}"),
        () = fake.was_sent("tools/call") => {}
    }
    fake.was_sent("notifications/cancelled").await;
    let id = &fake.sent("tools/call")[0].message["id"];
    assert_eq!(&fake.sent("notifications/cancelled")[0].message["params"]["requestId"], id);
    assert_eq!(rig.done(&spec, "echo").await, "well");
}

#[tokio::test]
async fn a_server_of_the_newest_revision_sees_a_dropped_calls_stream_closed() {
    let rig = Rig::new();
    let stream = Arc::new(Mutex::new(None));
    let opened = Arc::clone(&stream);
    let fake = Fake::start(move |sent| {
        self_contained(sent, |_| {
            let (sender, response) = events();
            *opened.lock().unwrap() = Some(sender);
            response
        })
    })
    .await;
    let spec = fake.spec();
    tokio::select! {
        called = rig.call(&spec, "slow") => panic!("{called:?}"),
        () = fake.was_sent("tools/call") => {}
    }
    let take = || stream.lock().unwrap().take();
    let sender = within(async {
        loop {
            if let Some(sender) = take() {
                return sender;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    within(sender.closed()).await;
}

/// Asserts that a call that is answered so fails with a reason that says `why`, and that the next one works.
async fn survives(why: &str, answer: fn(&Sent) -> Response) {
    let rig = Rig::new();
    let calls = AtomicUsize::new(0);
    let fake = Fake::start(move |sent| {
        handshake(sent, |call| match calls.fetch_add(1, Ordering::AcqRel) {
            0 => answer(call),
            _ => call.result(&text("well")),
        })
    })
    .await;
    let spec = Arc::new(ServerSpec { timeout: Duration::from_secs(3), ..ServerSpec::clone(&fake.spec()) });
    rig.connect(&spec).await;
    let reason = failed(rig.call(&spec, "echo").await);
    assert!(reason.contains(why), "{reason}");
    assert_eq!(rig.done(&spec, "echo").await, "well");
}

#[tokio::test]
async fn a_call_survives_whatever_is_answered() {
    survives("it failed (HTTP 500). Whether `echo` took effect is not known", |_| {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })
    .await;
    survives("takes nothing more now (HTTP 429)", |_| StatusCode::TOO_MANY_REQUESTS.into_response()).await;
    survives("HTTP 403", |_| (StatusCode::FORBIDDEN, "not you").into_response()).await;
    survives("over 8 MiB", |call| call.result(&text(&"x".repeat(9 << 20)))).await;
    survives("server `server` failed", |_| "<html>".into_response()).await;
    survives("server `server` failed", |_| {
        let (sender, response) = events();
        sender.send("data: garbage\n\n".into()).unwrap();
        response
    })
    .await;
    survives("did not answer within 3 seconds", |_| StatusCode::ACCEPTED.into_response()).await;
    survives("the connection was closed", |_| events().1).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_fails_the_connection_until_it_is() {
    let rig = Rig::new();
    let fake = Fake::start(|sent| handshake(sent, |call| call.result(&text("well")))).await;
    rig.connect(&fake.spec()).await;
    rig.clients.forget("server");
    let gone = ServerSpec {
        transport: Transport::Http { url: "http://127.0.0.1:1/".parse().unwrap(), headers: Headers::new() },
        ..ServerSpec::clone(&fake.spec())
    };
    let reason = failed(rig.call(&Arc::new(gone), "echo").await);
    assert!(reason.contains("cannot be reached"), "{reason}");
    assert_eq!(rig.status(), ConnectionStatus::Error);
    assert_eq!(rig.done(&fake.spec(), "echo").await, "well");
    assert_eq!(rig.status(), ConnectionStatus::Connected);
}

#[path = "http_access_tests.rs"]
mod access;
#[path = "http_end_tests.rs"]
mod ends;
