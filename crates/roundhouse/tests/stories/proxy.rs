//! Story 4: a product reaches its users' engines through the orchestrator, which adds the key and nothing else.

use reqwest::Method;
use serde_json::{Value, json};
use strict_provider::{Gate, Reply, StrictProvider};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::calls::message;
use crate::support::http::{ask, ask_raw, segment};
use crate::support::model::{left_alone, reached};
use crate::support::turn::{completed, shown};
use crate::support::{Answer, Deployment, Engine, EventStream, Fleet, Product, QUICK, eventually, in_time};

/// What a call through the orchestrator answers.
async fn through(product: &Product, method: Method, path: &str, body: Option<Value>) -> Answer {
    product.call(method, &Product::proxied("ada", path), body).await
}

/// Asserts that a call answers the same through the orchestrator as from the engine.
async fn same(product: &Product, engine: &Engine, method: Method, path: &str, body: Option<Value>) -> Answer {
    let request = engine.request(method.clone(), path);
    let direct = ask(match &body {
        Some(body) => request.json(body),
        None => request,
    })
    .await;
    let passed = through(product, method.clone(), path, body).await;
    assert_eq!((passed.status, &passed.body), (direct.status, &direct.body), "{method} {path}");
    for name in ["content-type", "allow", "retry-after"] {
        assert_eq!(passed.header(name), direct.header(name), "{name} of {method} {path}");
    }
    assert!(passed.header("x-request-id").is_some(), "{method} {path}");
    assert!(!format!("{passed:?}").contains(&engine.key), "{method} {path} shows the engine's key");
    passed
}

#[tokio::test]
async fn a_turn_is_streamed_as_it_comes() {
    let provider = StrictProvider::start().await.unwrap();
    let gate = Gate::new();
    let text = "One two three four five six seven eight nine ten.";
    provider.enqueue(Reply::of_text(text).chars_per_delta(4).hold(5, &gate));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let request = product.request(Method::POST, &Product::proxied("ada", "/execute"));
    let mut stream = EventStream::open(request.json(&message("task", "Count."))).await;
    reached(&gate).await;
    // What the model has said is here, although the answer is far from its end.
    while shown(&stream.seen, "text_delta").len() < 20 {
        stream.next().await.expect("the stream goes on");
    }
    gate.release();
    let events = stream.rest().await;
    assert_eq!(completed(&events), text);
    assert_eq!(engine.replay("task", 0).await.rest().await, events);
    let replay = Product::proxied("ada", "/execute/replay?task_id=task&after=0");
    assert_eq!(EventStream::open(product.request(Method::GET, &replay)).await.rest().await, events);
}

#[tokio::test]
async fn who_hangs_up_stops_nothing() {
    let provider = StrictProvider::start().await.unwrap();
    let gate = Gate::new();
    provider.enqueue(Reply::of_text("Nobody listens.").hold(1, &gate));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let request = product.request(Method::POST, &Product::proxied("ada", "/execute"));
    let stream = EventStream::open(request.json(&message("task", "Go."))).await;
    reached(&gate).await;
    drop(stream);
    gate.release();
    left_alone(&provider).await;
    assert_eq!(completed(&engine.replay("task", 0).await.rest().await), "Nobody listens.");
}

#[tokio::test]
async fn bodies_pass_up_to_the_engines_own_limit() {
    let fleet = Fleet::new().with_script(QUICK);
    let up = fleet.up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let path = Product::proxied("ada", "/execute");
    // Unknown fields are ignored, so any body can be as large as one likes.
    let padded = |mebibytes: usize| {
        let padding = "x".repeat(mebibytes << 20);
        format!(r#"{{"task_id": "task", "message": "Hello!", "direct": true, "padding": "{padding}"}}"#)
    };
    let request = product.request(Method::POST, &path).body(padded(31));
    completed(&EventStream::open(request).await.rest().await);
    let large = padded(33);
    let direct =
        ask_raw(&engine.url, "POST /execute", &[("x-engine-key", &engine.key)], large.as_bytes()).await;
    direct.refused(413, "PAYLOAD_TOO_LARGE");
    let head = format!("POST {path}");
    let passed = ask_raw(&up.base, &head, &[("x-platform-key", &product.key)], large.as_bytes()).await;
    assert_eq!((passed.status, &passed.body), (direct.status, &direct.body));
    // The orchestrator's own limit holds for its own calls.
    let answer = ask_raw(
        &up.base,
        "POST /engines/provision",
        &[("x-platform-key", &product.key)],
        &large.as_bytes()[..2 << 20],
    )
    .await;
    answer.refused(413, "PAYLOAD_TOO_LARGE");
    product.engine("ada").await.tell("task", "Hello again!").await;
}

#[tokio::test]
async fn answers_are_the_engines_own_errors_too() {
    let fleet = Fleet::new().with_script(QUICK);
    let up = fleet.up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    engine.tell("task", "Hello!").await;
    let cases = [
        (Method::GET, "/tasks", None, 200),
        (Method::GET, "/openapi.json", None, 200),
        (Method::GET, "/tasks/task", None, 200),
        (Method::GET, "/tasks/unknown", None, 404),
        (Method::GET, "/nothing", None, 404),
        (Method::GET, "/", None, 404),
        (Method::PUT, "/tasks", None, 405),
        (Method::POST, "/execute", Some(json!({"task_id": "task"})), 400),
        (Method::POST, "/hitl/respond", Some(json!({"task_id": "task", "answer": "yes"})), 404),
        (Method::POST, "/rpc", Some(json!({"method": "nothing", "params": {}})), 404),
        (Method::POST, "/rpc", Some(json!({"subsystem": "telemetry", "op": "activity"})), 200),
        (Method::GET, "/tasks?limit=0", None, 400),
    ];
    for (method, path, body, status) in cases {
        let answer = same(&product, &engine, method, path, body).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let deleted = through(&product, Method::DELETE, "/tasks/task", None).await;
    assert_eq!(deleted.status, 200, "{deleted:?}");
    assert_eq!(engine.tasks("").await.1, 0);
}

/// The engine of a user whose name a client would tidy up.
async fn admitted(product: &Product, user: &str) -> Engine {
    let head = format!("POST /engines/{}/admit", segment(user));
    let headers = [("x-platform-key", product.key.as_str())];
    let answer = ask_raw(&product.base, &head, &headers, b"{\"auto_provision\": true}").await;
    Engine::new(&answer.ok("admitted:bool engine:object")["engine"])
}

#[tokio::test]
async fn names_and_queries_arrive_as_they_were_written() {
    let fleet = Fleet::new().with_script(QUICK);
    let up = fleet.up().await;
    let product = up.product();
    let headers = [("x-platform-key", product.key.as_str())];
    let tasks = ["a/b", "50 %", "ü?&#", "%2F"];
    for user in ["a/b c", "..", "provision", "ünï+%2F"] {
        let engine = admitted(&product, user).await;
        engine.tell(tasks[0], &format!("I am {user}.")).await;
        // The client would tidy up dots; what is sent is exactly this.
        for query in ["", "?limit=1", "?limit=1&offset=0&unknown=%26%3D"] {
            let head = format!("GET {}{query}", Product::proxied(user, "/tasks"));
            let listed = ask_raw(&up.base, &head, &headers, b"").await.ok("tasks:array total:int");
            assert_eq!((&listed["tasks"][0]["task_id"], &listed["total"]), (&json!(tasks[0]), &json!(1)));
        }
        let head = format!("GET {}", Product::proxied(user, "/tasks?offset=1"));
        let listed = ask_raw(&up.base, &head, &headers, b"").await.ok("tasks:array total:int");
        assert_eq!(listed["tasks"], json!([]), "the query is heeded");
        let head = format!("GET {}", Product::proxied(user, &format!("/tasks/{}", segment(tasks[0]))));
        let found = ask_raw(&up.base, &head, &headers, b"").await.ok("messages:array");
        assert_eq!(found["messages"][0]["content"], format!("I am {user}."));
    }
    let engine = product.engine("ada").await;
    for task in tasks {
        let body = message(task, "Hello!");
        let path = Product::proxied("ada", "/execute");
        completed(&EventStream::open(product.request(Method::POST, &path).json(&body)).await.rest().await);
        let head = format!("GET {}", Product::proxied("ada", &format!("/tasks/{}", segment(task))));
        ask_raw(&up.base, &head, &headers, b"").await.ok("messages:array");
    }
    assert_eq!(engine.tasks("").await.1, 4);
    for head in
        ["GET /engines/ada/proxy/tasks/%zz", "GET /engines/%zz/proxy/tasks", "GET /engines/ada/proxy/%ff"]
    {
        let answer = ask_raw(&up.base, head, &headers, b"").await;
        assert!([400, 404].contains(&answer.status), "{head}: {answer:?}");
        assert!(answer.body["error"]["code"].is_string(), "{head}: {answer:?}");
    }
}

#[tokio::test]
async fn a_name_of_dots_arrives_as_it_was_written() {
    let fleet = Fleet::new().with_script(QUICK);
    let up = fleet.up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    for task in ["..", "."] {
        engine.tell(task, "Hello!").await;
        let path = format!("/tasks/{}", segment(task));
        let direct =
            ask_raw(&engine.url, &format!("GET {path}"), &[("x-engine-key", &engine.key)], b"").await;
        let head = format!("GET {}", Product::proxied("ada", &path));
        let passed = ask_raw(&up.base, &head, &[("x-platform-key", &product.key)], b"").await;
        assert_eq!((passed.status, &passed.body), (direct.status, &direct.body));
        passed.ok("messages:array");
    }
}

#[tokio::test]
async fn the_platform_key_opens_it_and_nothing_else_does() {
    let fleet = Fleet::new().with_script(QUICK);
    let up = fleet.up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let other = up.register("other", json!({})).await;
    let large = vec![b' '; 2 << 20];
    for user in ["ada", "nobody", "%zz"] {
        for key in ["", "wrong", &engine.key] {
            let head = format!("POST /engines/{user}/proxy/execute");
            // The engine's own key in its own header opens the engine, not this.
            let headers = [("x-platform-key", key), ("x-engine-key", engine.key.as_str())];
            ask_raw(&up.base, &head, &headers, &large).await.refused(401, "INVALID_PLATFORM_KEY");
        }
    }
    through(&other, Method::GET, "/tasks", None).await.refused(404, "ENGINE_NOT_FOUND");
    let nobody = product.call(Method::GET, &Product::proxied("nobody", "/tasks"), None).await;
    nobody.refused(404, "ENGINE_NOT_FOUND");
    // A wrong engine key of the caller's is none of the engine's business.
    let request = product.request(Method::GET, &Product::proxied("ada", "/tasks"));
    ask(request.header("x-engine-key", "sk-svc-wrong")).await.ok("tasks:array total:int");

    // A rotated key is the orchestrator's to know.
    product.call(Method::POST, "/engines/ada/rotate-key", None).await.ok("new_api_key:engine-key");
    through(&product, Method::GET, "/tasks", None).await.ok("tasks:array total:int");
    product.stop("ada").await.ok("status:text");
    through(&product, Method::GET, "/tasks", None).await.refused(409, "ENGINE_NOT_RUNNING");
    through(&product, Method::GET, "/health", None).await.refused(409, "ENGINE_NOT_RUNNING");
    assert_eq!(product.status("ada").await, "stopped", "it wakes nothing");
    product.start("ada").await.ok("status:text url:url");
    through(&product, Method::GET, "/tasks", None).await.ok("tasks:array total:int");
}

/// Takes the place of an engine for one request: what it was sent, and what the product was answered. None if
/// the orchestrator knew already that the engine is dead.
async fn in_the_engines_place(
    place: &Deployment,
    product: &Product,
    engine: &Engine,
    head: &str,
) -> Option<(String, Answer)> {
    place.kill_engine(engine);
    let address = engine.url.strip_prefix("http://").unwrap();
    let listener = eventually("the port is free", async || TcpListener::bind(address).await.ok()).await;
    let double = async {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"the body") {
            let mut part = [0; 4096];
            let length = connection.read(&mut part).await.unwrap();
            assert!(length > 0, "it broke off after {:?}", String::from_utf8_lossy(&request));
            request.extend_from_slice(&part[..length]);
        }
        let answer = "HTTP/1.1 418 I'm a teapot\r\nx-tea: green\r\ncontent-type: application/x-tea\r\n\
                      connection: close\r\ncontent-length: 7\r\n\r\n[\"tea\"]";
        connection.write_all(answer.as_bytes()).await.unwrap();
        connection.shutdown().await.unwrap();
        String::from_utf8(request).unwrap()
    };
    let headers = [
        ("x-platform-key", product.key.as_str()),
        ("x-engine-key", "sk-svc-wrong"),
        ("x-request-id", "order-66"),
        ("x-own", "kept"),
        ("last-event-id", "17"),
    ];
    let call = ask_raw(&product.base, head, &headers, b"the body");
    tokio::pin!(call, double);
    tokio::select! {
        request = &mut double => Some((request, in_time("the answer", call).await)),
        answer = &mut call => {
            assert_eq!(answer.status, 409, "{answer:?}");
            None
        }
    }
}

#[tokio::test]
async fn the_engine_is_sent_its_own_key_and_all_else_as_it_was() {
    let place = Deployment::new().with("ORCH_RESTART_BACKOFF_BASE_S", "300");
    let (_orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    let path = "/tasks/a%2Fb/%C3%BC/..%2e?x=%26&y=a+b&x";
    let head = format!("PATCH /engines/ada/proxy{path}");
    let (request, answer) = eventually("the engine is doubled in time", async || {
        if product.status("ada").await != "running" {
            product.start("ada").await.ok("status:text url:url");
        }
        // A launch prefers the last port, and it was free.
        assert_eq!(product.engine("ada").await.url, engine.url);
        in_the_engines_place(&place, &product, &engine, &head).await
    })
    .await;
    let (first, rest) = request.split_once("\r\n").unwrap();
    assert_eq!(first, format!("PATCH {path} HTTP/1.1"));
    let (headers, _) = rest.split_once("\r\n\r\n").unwrap();
    let header = |name: &str| -> Vec<&str> {
        let lines = headers.split("\r\n").map(|line| line.split_once(": ").unwrap());
        lines.filter(|line| line.0.eq_ignore_ascii_case(name)).map(|line| line.1).collect()
    };
    assert_eq!(header("x-engine-key"), [engine.key.as_str()]);
    assert_eq!(header("x-platform-key"), [""; 0], "the product's key is not the engine's business");
    assert!(!request.contains(&product.key), "{request}");
    assert_eq!((header("x-own"), header("last-event-id")), (vec!["kept"], vec!["17"]));
    assert_eq!(header("x-request-id"), ["order-66"]);

    assert_eq!((answer.status, &answer.body), (418, &json!(["tea"])));
    assert_eq!(
        (answer.header("x-tea"), answer.header("content-type")),
        (Some("green"), Some("application/x-tea"))
    );
    assert!(!format!("{answer:?}").contains(&engine.key));
}

#[tokio::test]
async fn an_engine_that_does_not_answer_is_said_in_the_envelope() {
    let place = Deployment::new().with("ORCH_RESTART_BACKOFF_BASE_S", "300");
    let (_orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    place.kill_engine(&engine);
    let answer = through(&product, Method::GET, "/tasks", None).await;
    if answer.status == 502 {
        answer.refused(502, "BACKEND_ERROR");
    } else {
        answer.refused(409, "ENGINE_NOT_RUNNING");
    }
    product.becomes("ada", "failed").await;
    through(&product, Method::GET, "/tasks", None).await.refused(409, "ENGINE_NOT_RUNNING");
}

#[tokio::test]
async fn who_is_called_through_it_stays_awake() {
    let place = Deployment::new().with("ORCH_IDLE_SLEEP_THRESHOLD_S", "1.5");
    let (_orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    let process = place.process_of(&engine);
    product.engine("bob").await;
    eventually("bob sleeps", async || {
        through(&product, Method::GET, "/tasks", None).await.ok("tasks:array total:int");
        (product.status("bob").await == "sleeping").then_some(())
    })
    .await;
    assert_eq!((product.status("ada").await.as_str(), place.process_of(&engine)), ("running", process));
    // And sleeps when nobody calls any more; a call does not wake it.
    product.becomes("ada", "sleeping").await;
    through(&product, Method::GET, "/tasks", None).await.refused(409, "ENGINE_NOT_RUNNING");
}
