//! Host names whose DNS servers do not answer delay only the turns that ask for them.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use mock_llm::Reply;
use reqwest::Method;
use serde_json::json;
use tokio::net::UdpSocket;

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::wait_provider_idle;
use crate::support::http::send;
use crate::support::{Engine, EngineFixture, StandaloneEngine, skip};

/// The address of a name server that never answers.
const NAME_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 53, 53, 53));

/// A reply that fetches `count` pages, each from another host.
fn fetch_reply(prefix: &str, count: usize) -> Reply {
    (0..count).fold(Reply::new(), |reply, number| {
        reply.tool_use("web_fetch", json!({"url": format!("https://{prefix}{number}.example/")}))
    })
}

/// The time until a plain turn shows its first text, and the time to list the tasks: median and maximum of five.
async fn measure_plain_turns(fixture: &EngineFixture) -> [(Duration, Duration); 2] {
    let (mut turns, mut lists) = (Vec::new(), Vec::new());
    for number in 0..5 {
        fixture.provider.enqueue(Reply::from_text("Hi."));
        let start = Instant::now();
        let mut stream =
            fixture.engine.execute_with(&direct_message(&format!("plain {number}"), "Hi!")).await;
        while stream.next().await.is_some_and(|event| event.kind != "text_delta") {}
        turns.push(start.elapsed());
        drop(stream.collect().await);
        let start = Instant::now();
        fixture.engine.tasks("").await;
        lists.push(start.elapsed());
    }
    [turns, lists].map(|mut times| {
        times.sort();
        (times[2], times[4])
    })
}

async fn is_healthy(engine: &Engine) -> bool {
    send(engine.request(Method::GET, "/health")).await.status == 200
}

#[tokio::test]
async fn dead_names_hold_up_no_other_turn() {
    let _silent = match UdpSocket::bind((NAME_SERVER, 53)).await {
        Ok(socket) => socket,
        // The test runs as an ordinary user, or another name server listens on all addresses.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::AddrInUse) => {
            return skip(
                "root's rights and port 53 of a loopback address, for a name server that never answers",
            );
        }
        Err(error) => panic!("{error}"),
    };
    let configure = |setup: StandaloneEngine| {
        let permissions = r#"{"tools": {"web_fetch": "allow"}}"#;
        setup.with_catalog_file("permissions.json", permissions).with_name_server(NAME_SERVER)
    };
    let fixture = EngineFixture::with_setup("anthropic", [], configure).await;
    let quiet = measure_plain_turns(&fixture).await;

    fixture.provider.enqueue_all([fetch_reply("dead", 16), fetch_reply("gone", 8)]);
    let mut first = fixture.engine.execute_with(&direct_message("first", "Read these.")).await;
    while first.next().await.is_some_and(|event| event.kind != "tool_call") {}
    let mut second = fixture.engine.execute_with(&direct_message("second", "Read these too.")).await;
    while second.next().await.is_some_and(|event| event.kind != "tool_call") {}
    wait_provider_idle(&fixture.provider).await;

    let busy = measure_plain_turns(&fixture).await;
    for ((quiet, _), (busy, slowest)) in quiet.into_iter().zip(busy) {
        // The margin allows for other load on the machine.
        assert!(busy <= 2 * quiet + Duration::from_millis(50), "{quiet:?} became {busy:?}");
        assert!(slowest <= Duration::from_secs(1), "{quiet:?} became {slowest:?}");
    }
    assert!(is_healthy(&fixture.engine).await);
    // Each fetch fails with an error for the model, and the turn continues.
    for (stream, pages) in [(first, 16), (second, 8)] {
        let events = stream.collect().await;
        let errors = events.iter().filter_map(|event| event.data["error"].as_str());
        let failed = errors.filter(|error| error.contains("cannot be resolved")).count();
        assert_eq!(failed, pages, "{events:#?}");
        assert_eq!(events.last().unwrap().phase(), Some("completed"));
    }
}
