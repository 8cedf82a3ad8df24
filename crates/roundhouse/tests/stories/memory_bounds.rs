//! The memory of an engine is bounded, whatever it is asked to read.
//!
//! By default the sizes allow a test of seconds; `ROUNDHOUSE_TEST_LARGE=1` takes those of a heavy load.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use mock_llm::Reply;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::process_memory::{is_large_run, memory_and_peak_mib, reset_peak, with_immediate_purge};
use crate::support::turn::of_kind;
use crate::support::{EngineFixture, Program};

/// How many MiB an engine may use beyond its idle memory.
const MAX_EXTRA_MIB: usize = 64;
const MIB: usize = 1 << 20;
/// The first bytes of a PNG file of one pixel.
const PNG_HEAD: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x01\0\0\0\x01";

/// Asserts that the program's peak memory exceeded `idle` (in MiB) by at most [`MAX_EXTRA_MIB`].
#[track_caller]
fn assert_bounded(program: &Program, idle: usize) {
    let (_, peak) = memory_and_peak_mib(program);
    assert!(peak <= idle + MAX_EXTRA_MIB, "{idle} MiB became {peak} MiB");
}

/// A web server whose pages are large and end with a delay.
struct SlowPageServer {
    address: SocketAddr,
    task: AbortHandle,
}

impl SlowPageServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let line = "<p>All work and no play makes Jack a dull boy.</p>\n";
        let page = line.repeat(5 * MIB / line.len() - 1);
        // An unoptimized engine takes long to convert HTML.
        let kind = if is_large_run() { "text/html" } else { "text/plain" };
        let task = tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let page = page.clone();
                tokio::spawn(async move {
                    // The request's head arrives in one read. Errors are ignored: the client may have gone.
                    let _ = connection.read(&mut [0; 4096]).await;
                    let head = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                        page.len() + 1
                    );
                    let _ = connection.write_all(head.as_bytes()).await;
                    let _ = connection.write_all(page.as_bytes()).await;
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    let _ = connection.write_all(b"\n").await;
                });
            }
        });
        Self { address, task: task.abort_handle() }
    }
}

impl Drop for SlowPageServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn a_plain_turn_beside_many_large_pages_finds_its_memory() {
    let count = if is_large_run() { 80 } else { 20 };
    let pages = SlowPageServer::start().await;
    let permissions = r#"{"tools": {"web_fetch": "allow"}}"#;
    let configure = |setup| {
        with_immediate_purge(setup)
            .with_env("ENGINE_WEB_ALLOW", "127.0.0.1")
            .with_catalog_file("permissions.json", permissions)
    };
    let fixture = EngineFixture::with_setup("anthropic", [Reply::from_text("Hi.")], configure).await;
    fixture.engine.run_turn("plain", "Hi!").await;

    let idle = reset_peak(&fixture.program);
    let fetches = (0..count).fold(Reply::new(), |reply, number| {
        reply.tool_use("web_fetch", json!({"url": format!("http://{}/{number}", pages.address)}))
    });
    fixture.provider.enqueue(fetches);
    let mut stream = fixture.engine.execute_with(&direct_message("pages", "Read these.")).await;
    while stream.next().await.is_some_and(|event| event.kind != "tool_result") {}
    fixture.engine.run_turn("plain", "Hi again!").await;
    let events = stream.collect().await;
    assert_bounded(&fixture.program, idle);
    let results = of_kind(&events, "tool_result");
    let errors: Vec<_> =
        results.iter().map(|event| &event.data["error"]).filter(|error| !error.is_null()).collect();
    assert_eq!((results.len(), errors), (count, Vec::new()));
    assert_eq!(events.last().unwrap().phase(), Some("completed"));
}

#[tokio::test]
async fn a_plain_turn_after_many_pictures_finds_its_memory() {
    let messages = if is_large_run() { 8 } else { 3 };
    let fixture = EngineFixture::with_setup("anthropic", [], with_immediate_purge).await;
    for message_number in 0..messages {
        let picture = |number: u8| {
            // Nothing decodes the picture, but its bytes must differ: equal media are stored once.
            let mut picture = vec![number; 5 * MIB];
            picture[..PNG_HEAD.len()].copy_from_slice(PNG_HEAD);
            let (name, data) = (format!("{number}.png"), BASE64.encode(picture));
            json!({"type": "image", "media_type": "image/png", "name": name, "data": data})
        };
        let media: Vec<_> = (message_number * 4..message_number * 4 + 4).map(picture).collect();
        fixture
            .engine
            .run_turn_with(&with_fields(direct_message("pictures", "Look."), json!({"media": media})))
            .await;
    }

    let fixture = fixture.stop_and_start().await;
    fixture.engine.run_turn("plain", "Hi!").await;
    let idle = reset_peak(&fixture.program);
    fixture.engine.run_turn("pictures", "Hi again!").await;
    assert_bounded(&fixture.program, idle);
    // The newest pictures are sent; the others are replaced by a note.
    let sent = fixture.last_messages();
    sent.assert_contains(&["0.png", "is left out", &BASE64.encode([messages * 4 - 1; 60]), "Hi again!"])
        .assert_lacks(&[&BASE64.encode([0; 60])]);
}
