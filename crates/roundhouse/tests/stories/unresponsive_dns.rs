//! Names whose servers do not answer hold up nobody who does not ask for them.

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

/// Where the name server is that never answers.
const NAME_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 53, 53, 53));

/// An answer that asks for so many pages, each of another server.
fn fetch_reply(of: &str, count: usize) -> Reply {
    (0..count).fold(Reply::new(), |reply, number| {
        reply.tool_use("web_fetch", json!({"url": format!("https://{of}{number}.example/")}))
    })
}

/// How long until a plain turn shows its first text, and how long a list of tasks takes: of five, the median and the most.
async fn measure_plain_turns(rig: &EngineFixture) -> [(Duration, Duration); 2] {
    let (mut turns, mut lists) = (Vec::new(), Vec::new());
    for number in 0..5 {
        rig.provider.enqueue(Reply::from_text("Hi."));
        let began = Instant::now();
        let mut stream = rig.engine.execute_with(&direct_message(&format!("plain {number}"), "Hi!")).await;
        while stream.next().await.is_some_and(|event| event.kind != "text_delta") {}
        turns.push(began.elapsed());
        drop(stream.collect().await);
        let began = Instant::now();
        rig.engine.tasks("").await;
        lists.push(began.elapsed());
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
        // As an ordinary user, or beside a name server that listens on all addresses.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::AddrInUse) => {
            return skip(
                "root's rights and port 53 of a loopback address, for a name server that never answers",
            );
        }
        Err(error) => panic!("{error}"),
    };
    let ready = |place: StandaloneEngine| {
        let permissions = r#"{"tools": {"web_fetch": "allow"}}"#;
        place.with_catalog_file("permissions.json", permissions).with_name_server(NAME_SERVER)
    };
    let rig = EngineFixture::with_setup("anthropic", [], ready).await;
    let quiet = measure_plain_turns(&rig).await;

    rig.provider.enqueue_all([fetch_reply("dead", 16), fetch_reply("gone", 8)]);
    let mut first = rig.engine.execute_with(&direct_message("first", "Read these.")).await;
    while first.next().await.is_some_and(|event| event.kind != "tool_call") {}
    let mut second = rig.engine.execute_with(&direct_message("second", "Read these too.")).await;
    while second.next().await.is_some_and(|event| event.kind != "tool_call") {}
    wait_provider_idle(&rig.provider).await;

    let busy = measure_plain_turns(&rig).await;
    for ((quiet, _), (busy, slowest)) in quiet.into_iter().zip(busy) {
        // A machine that is busy with other things takes longer by itself.
        assert!(busy <= 2 * quiet + Duration::from_millis(50), "{quiet:?} became {busy:?}");
        assert!(slowest <= Duration::from_secs(1), "{quiet:?} became {slowest:?}");
    }
    assert!(is_healthy(&rig.engine).await);
    // The model is told of each that it has no address, and goes on.
    for (stream, pages) in [(first, 16), (second, 8)] {
        let events = stream.collect().await;
        let errors = events.iter().filter_map(|event| event.data["error"].as_str());
        let told = errors.filter(|error| error.contains("cannot be resolved")).count();
        assert_eq!(told, pages, "{events:#?}");
        assert_eq!(events.last().unwrap().phase(), Some("completed"));
    }
}
