use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::bail;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode as Status;
use axum::routing::get;
use http_body_util::Full;
use hyper::Method;
use tokio::net::TcpListener;

use super::*;

/// Counts requests and answers each with its number, except for one wrong response.
#[derive(Clone, Default)]
struct Server {
    request_count: Arc<AtomicU64>,
    wrong_response: Option<(u64, Status, &'static str)>,
}

async fn answer(State(server): State<Server>, Path(number): Path<u64>) -> (Status, String) {
    server.request_count.fetch_add(1, Ordering::Relaxed);
    match server.wrong_response {
        Some((at, status, text)) if at == number => (status, text.to_owned()),
        _ => (Status::OK, number.to_string()),
    }
}

async fn run_load(server: Server, max_requests: u64) -> anyhow::Result<LoadResult> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/{number}", get(answer)).with_state(server);
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    let request = |client: &Client, number: u64| {
        Ok(client.request(Method::GET, &format!("/{number}")).body(Full::default())?)
    };
    let check = |number: u64, status: StatusCode, body: &Bytes| {
        if status == StatusCode::OK && *body == number.to_string() {
            return Ok(());
        }
        bail!("{status} {body:?}")
    };
    let duration = Duration::from_secs(10);
    run(&LoadPlan { address, connections: 8, duration, max_requests, request: &request, check: &check }).await
}

#[tokio::test]
async fn every_request_is_sent_and_counted_once() {
    let server = Server::default();
    let load = run_load(server.clone(), 1_000).await.unwrap();
    assert_eq!(load.completed, 1_000);
    assert_eq!(server.request_count.load(Ordering::Relaxed), 1_000);
    assert!(load.throughput() > 0.0);
    assert!(load.latency_ms(50).unwrap() <= load.latency_ms(99).unwrap());
}

#[tokio::test]
async fn a_wrong_answer_is_an_error_and_no_fast_success() {
    for wrong in [(7, Status::INTERNAL_SERVER_ERROR, "7"), (7, Status::OK, "8"), (7, Status::OK, "")] {
        let error =
            run_load(Server { wrong_response: Some(wrong), ..Server::default() }, 1_000).await.unwrap_err();
        assert!(error.to_string().contains("request 7"), "{error:#}");
    }
}

#[tokio::test]
async fn time_ends_a_load_as_well() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(|| async { "ok" }));
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    let plan = LoadPlan {
        address,
        connections: 2,
        duration: Duration::from_millis(50),
        max_requests: u64::MAX,
        request: &|client, _| Ok(client.request(Method::GET, "/").body(Full::default())?),
        check: &|_, _, _| Ok(()),
    };
    let load = run(&plan).await.unwrap();
    assert!(load.completed > 0 && load.elapsed < Duration::from_secs(5), "{load:?}");
}
