//! Story 4: a product reaches its users' engines through the orchestrator, which replaces the key and changes
//! nothing else.

use mock_llm::{Gate, MockProvider, Reply};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{wait_gate_reached, wait_provider_idle};
use crate::support::http::{path_segment, send, send_raw};
use crate::support::turn::{assert_completed, visible_text};
use crate::support::{
    Backend, Deployment, Engine, EventStream, Fleet, HttpResponse, Product, QUICK_SCRIPT, eventually,
    with_deadline,
};

/// The response to a call of ada's engine through the orchestrator.
async fn call_through_proxy(
    product: &Product,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> HttpResponse {
    product.call(method, &Product::proxy_path("ada", path), body).await
}

/// Asserts that a call gets the same response through the orchestrator as from the engine; returns it.
async fn assert_same_response(
    product: &Product,
    engine: &Engine,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> HttpResponse {
    let request = engine.request(method.clone(), path);
    let direct = send(match &body {
        Some(body) => request.json(body),
        None => request,
    })
    .await;
    let proxied = call_through_proxy(product, method.clone(), path, body).await;
    assert_eq!((proxied.status, &proxied.body), (direct.status, &direct.body), "{method} {path}");
    for name in ["content-type", "allow", "retry-after"] {
        assert_eq!(proxied.header(name), direct.header(name), "{name} of {method} {path}");
    }
    assert!(proxied.header("x-request-id").is_some(), "{method} {path}");
    assert!(!format!("{proxied:?}").contains(&engine.key), "{method} {path} shows the engine's key");
    proxied
}

#[tokio::test]
async fn a_turn_is_streamed_as_it_comes() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    let text = "One two three four five six seven eight nine ten.";
    provider.enqueue(Reply::from_text(text).chars_per_delta(4).hold(5, &gate));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let request = product.request(Method::POST, &Product::proxy_path("ada", "/execute"));
    let mut stream = EventStream::open(request.json(&direct_message("task", "Count."))).await;
    wait_gate_reached(&gate).await;
    // The text so far arrives while the model still writes its answer.
    while visible_text(&stream.received, "text_delta").len() < 20 {
        stream.next().await.expect("the stream goes on");
    }
    gate.release();
    let events = stream.collect().await;
    assert_eq!(assert_completed(&events), text);
    assert_eq!(engine.replay("task", 0).await.collect().await, events);
    let replay = Product::proxy_path("ada", "/execute/replay?task_id=task&after=0");
    assert_eq!(EventStream::open(product.request(Method::GET, &replay)).await.collect().await, events);
}

#[tokio::test]
async fn who_hangs_up_stops_nothing() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    provider.enqueue(Reply::from_text("Nobody listens.").hold(1, &gate));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let request = product.request(Method::POST, &Product::proxy_path("ada", "/execute"));
    let stream = EventStream::open(request.json(&direct_message("task", "Go."))).await;
    wait_gate_reached(&gate).await;
    drop(stream);
    gate.release();
    wait_provider_idle(&provider).await;
    assert_eq!(assert_completed(&engine.replay("task", 0).await.collect().await), "Nobody listens.");
}

#[tokio::test]
async fn bodies_pass_up_to_the_engines_own_limit() {
    let fleet = Fleet::new().with_script(QUICK_SCRIPT);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let path = Product::proxy_path("ada", "/execute");
    // Unknown fields are ignored, so padding can make a body as large as needed.
    let padded = |mebibytes: usize| {
        let padding = "x".repeat(mebibytes << 20);
        format!(r#"{{"task_id": "task", "message": "Hello!", "direct": true, "padding": "{padding}"}}"#)
    };
    let request = product.request(Method::POST, &path).body(padded(31));
    assert_completed(&EventStream::open(request).await.collect().await);
    let large = padded(33);
    let direct =
        send_raw(&engine.url, "POST /execute", &[("x-engine-key", &engine.key)], large.as_bytes()).await;
    direct.assert_error(413, "PAYLOAD_TOO_LARGE");
    let head = format!("POST {path}");
    let proxied = send_raw(&up.base, &head, &[("x-platform-key", &product.key)], large.as_bytes()).await;
    assert_eq!((proxied.status, &proxied.body), (direct.status, &direct.body));
    // The orchestrator's own limit applies to its own calls.
    let answer = send_raw(
        &up.base,
        "POST /engines/provision",
        &[("x-platform-key", &product.key)],
        &large.as_bytes()[..2 << 20],
    )
    .await;
    answer.assert_error(413, "PAYLOAD_TOO_LARGE");
    product.engine("ada").await.run_turn("task", "Hello again!").await;
}

#[tokio::test]
async fn answers_are_the_engines_own_errors_too() {
    let fleet = Fleet::new().with_script(QUICK_SCRIPT);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
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
        let answer = assert_same_response(&product, &engine, method, path, body).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let deleted = call_through_proxy(&product, Method::DELETE, "/tasks/task", None).await;
    assert_eq!(deleted.status, 200, "{deleted:?}");
    assert_eq!(engine.tasks("").await.1, 0);
}

/// Admits a user whose id an HTTP client would normalize in the path.
async fn admit_odd_user(product: &Product, user: &str) -> Engine {
    let head = format!("POST /engines/{}/admit", path_segment(user));
    let headers = [("x-platform-key", product.key.as_str())];
    let answer = send_raw(&product.base, &head, &headers, b"{\"auto_provision\": true}").await;
    Engine::new(&answer.assert_ok("admitted:bool engine:object")["engine"])
}

#[tokio::test]
async fn names_and_queries_arrive_as_they_were_written() {
    let fleet = Fleet::new().with_script(QUICK_SCRIPT);
    let up = fleet.start_up().await;
    let product = up.product();
    let headers = [("x-platform-key", product.key.as_str())];
    let tasks = ["a/b", "50 %", "ü?&#", "%2F"];
    for user in ["a/b c", "..", "provision", "ünï+%2F"] {
        let engine = admit_odd_user(&product, user).await;
        engine.run_turn(tasks[0], &format!("I am {user}.")).await;
        // An HTTP client would normalize dots; `send_raw` sends exactly this.
        for query in ["", "?limit=1", "?limit=1&offset=0&unknown=%26%3D"] {
            let head = format!("GET {}{query}", Product::proxy_path(user, "/tasks"));
            let listed = send_raw(&up.base, &head, &headers, b"").await.assert_ok("tasks:array total:int");
            assert_eq!((&listed["tasks"][0]["task_id"], &listed["total"]), (&json!(tasks[0]), &json!(1)));
        }
        let head = format!("GET {}", Product::proxy_path(user, "/tasks?offset=1"));
        let listed = send_raw(&up.base, &head, &headers, b"").await.assert_ok("tasks:array total:int");
        assert_eq!(listed["tasks"], json!([]), "the query is passed on");
        let head =
            format!("GET {}", Product::proxy_path(user, &format!("/tasks/{}", path_segment(tasks[0]))));
        let found = send_raw(&up.base, &head, &headers, b"").await.assert_ok("messages:array");
        assert_eq!(found["messages"][0]["content"], format!("I am {user}."));
    }
    let engine = product.engine("ada").await;
    for task in tasks {
        let body = direct_message(task, "Hello!");
        let path = Product::proxy_path("ada", "/execute");
        assert_completed(
            &EventStream::open(product.request(Method::POST, &path).json(&body)).await.collect().await,
        );
        let head = format!("GET {}", Product::proxy_path("ada", &format!("/tasks/{}", path_segment(task))));
        send_raw(&up.base, &head, &headers, b"").await.assert_ok("messages:array");
    }
    assert_eq!(engine.tasks("").await.1, 4);
    for head in
        ["GET /engines/ada/proxy/tasks/%zz", "GET /engines/%zz/proxy/tasks", "GET /engines/ada/proxy/%ff"]
    {
        let answer = send_raw(&up.base, head, &headers, b"").await;
        assert!([400, 404].contains(&answer.status), "{head}: {answer:?}");
        assert!(answer.body["error"]["code"].is_string(), "{head}: {answer:?}");
    }
}

#[tokio::test]
async fn a_name_of_dots_arrives_as_it_was_written() {
    let fleet = Fleet::new().with_script(QUICK_SCRIPT);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    for task in ["..", "."] {
        engine.run_turn(task, "Hello!").await;
        let path = format!("/tasks/{}", path_segment(task));
        let direct =
            send_raw(&engine.url, &format!("GET {path}"), &[("x-engine-key", &engine.key)], b"").await;
        let head = format!("GET {}", Product::proxy_path("ada", &path));
        let proxied = send_raw(&up.base, &head, &[("x-platform-key", &product.key)], b"").await;
        assert_eq!((proxied.status, &proxied.body), (direct.status, &direct.body));
        proxied.assert_ok("messages:array");
    }
}

#[tokio::test]
async fn the_platform_key_opens_it_and_nothing_else_does() {
    let fleet = Fleet::new().with_script(QUICK_SCRIPT);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let other = up.register("other", json!({})).await;
    let large = vec![b' '; 2 << 20];
    for user in ["ada", "nobody", "%zz"] {
        for key in ["", "wrong", &engine.key] {
            let head = format!("POST /engines/{user}/proxy/execute");
            // The engine's key authenticates at the engine, not at the proxy.
            let headers = [("x-platform-key", key), ("x-engine-key", engine.key.as_str())];
            send_raw(&up.base, &head, &headers, &large).await.assert_error(401, "INVALID_PLATFORM_KEY");
        }
    }
    call_through_proxy(&other, Method::GET, "/tasks", None).await.assert_error(404, "ENGINE_NOT_FOUND");
    let nobody = product.call(Method::GET, &Product::proxy_path("nobody", "/tasks"), None).await;
    nobody.assert_error(404, "ENGINE_NOT_FOUND");
    // An engine key that the caller sends is not passed on.
    let request = product.request(Method::GET, &Product::proxy_path("ada", "/tasks"));
    send(request.header("x-engine-key", "sk-svc-wrong")).await.assert_ok("tasks:array total:int");

    // After a rotation the orchestrator uses the new key.
    product.call(Method::POST, "/engines/ada/rotate-key", None).await.assert_ok("new_api_key:engine-key");
    call_through_proxy(&product, Method::GET, "/tasks", None).await.assert_ok("tasks:array total:int");
    product.stop("ada").await.assert_ok("status:text");
    call_through_proxy(&product, Method::GET, "/tasks", None).await.assert_error(409, "ENGINE_NOT_RUNNING");
    call_through_proxy(&product, Method::GET, "/health", None).await.assert_error(409, "ENGINE_NOT_RUNNING");
    assert_eq!(product.status("ada").await, "stopped", "a proxied call wakes no engine");
    product.start("ada").await.assert_ok("status:text url:url");
    call_through_proxy(&product, Method::GET, "/tasks", None).await.assert_ok("tasks:array total:int");
}

/// Kills an engine and answers one request in its place; returns the request as received, and the product's
/// response. `None` if the orchestrator had already noticed that the engine is dead.
async fn stand_in_for_engine(
    deployment: &Deployment,
    product: &Product,
    engine: &Engine,
    head: &str,
) -> Option<(String, HttpResponse)> {
    deployment.kill_engine(engine);
    let address = engine.url.strip_prefix("http://").unwrap();
    let listener = eventually("the port is free", async || TcpListener::bind(address).await.ok()).await;
    let stand_in = async {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"the body") {
            let mut part = [0; 4096];
            let length = connection.read(&mut part).await.unwrap();
            assert!(length > 0, "the request broke off after {:?}", String::from_utf8_lossy(&request));
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
    let call = send_raw(&product.base, head, &headers, b"the body");
    tokio::pin!(call, stand_in);
    tokio::select! {
        request = &mut stand_in => Some((request, with_deadline("the answer", call).await)),
        answer = &mut call => {
            assert_eq!(answer.status, 409, "{answer:?}");
            None
        }
    }
}

#[tokio::test]
async fn the_engine_is_sent_its_own_key_and_all_else_as_it_was() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "300");
    if !deployment.has_host_ports() {
        // Nothing can stand in for a Pod.
        return;
    }
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let path = "/tasks/a%2Fb/%C3%BC/..%2e?x=%26&y=a+b&x";
    let head = format!("PATCH /engines/ada/proxy{path}");
    let (request, answer) = eventually("the stand-in gets the request", async || {
        if product.status("ada").await != "running" {
            product.start("ada").await.assert_ok("status:text url:url");
        }
        // A launch prefers the engine's previous port, and that was free.
        assert_eq!(product.engine("ada").await.url, engine.url);
        stand_in_for_engine(&deployment, &product, &engine, &head).await
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
    assert_eq!(header("x-platform-key"), [""; 0], "the product's key is not passed on");
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
    let deployment = Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "300");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    deployment.kill_engine(&engine);
    let answer = call_through_proxy(&product, Method::GET, "/tasks", None).await;
    if answer.status == 502 {
        answer.assert_error(502, "BACKEND_ERROR");
    } else {
        answer.assert_error(409, "ENGINE_NOT_RUNNING");
    }
    product.wait_for_status("ada", "failed").await;
    call_through_proxy(&product, Method::GET, "/tasks", None).await.assert_error(409, "ENGINE_NOT_RUNNING");
}

#[tokio::test]
async fn who_is_called_through_it_stays_awake() {
    let threshold = 1.5 * Backend::from_env().slowness();
    let deployment = Deployment::new().with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", threshold.to_string());
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let process = deployment.process_of(&engine);
    product.engine("bob").await;
    eventually("bob sleeps", async || {
        call_through_proxy(&product, Method::GET, "/tasks", None).await.assert_ok("tasks:array total:int");
        (product.status("bob").await == "sleeping").then_some(())
    })
    .await;
    assert_eq!((product.status("ada").await.as_str(), deployment.process_of(&engine)), ("running", process));
    // And it sleeps when the calls stop; a proxied call does not wake it.
    product.wait_for_status("ada", "sleeping").await;
    call_through_proxy(&product, Method::GET, "/tasks", None).await.assert_error(409, "ENGINE_NOT_RUNNING");
}
