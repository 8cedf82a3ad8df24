//! A task that has run for years costs only as much memory as its model is sent, and is read page by page.
//!
//! By default the journal is small enough for a test of seconds; `ROUNDHOUSE_TEST_LARGE=1` makes it 120 MiB.

use bytes::Bytes;
use mock_llm::Reply;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::http::send;
use crate::support::process_memory::{is_large_run, memory_and_peak_mib, reset_peak, with_immediate_purge};
use crate::support::{EngineFixture, eventually};

const MIB: usize = 1 << 20;
/// The size of the tool output in each turn, in bytes.
const TOOL_OUTPUT_BYTES: usize = 56 * 1024;
/// The number of turns between two compactions of the conversation.
const TURNS_PER_COMPACTION: usize = 4;
/// The number of messages of each turn.
const MESSAGES_PER_TURN: usize = 4;
const CREATED_AT: &str = "2026-01-01T00:00:00.000Z";

fn id(prefix: &str, n: usize) -> String {
    format!("{prefix}{n:032x}")
}

/// The id of the user's message that began a turn.
fn user_message_id(turn: usize) -> String {
    id("msg_", turn * 3)
}

/// The journal steps of a turn.
fn steps(turn: usize) -> Vec<Value> {
    let usage = json!({"input": 1, "output": 1, "cache_read": 0, "cache_write": 0, "reasoning": 0, "estimated": true});
    let call_id = id("call_", turn);
    let call = json!({
        "type": "tool_use", "call_id": call_id, "provider_id": format!("toolu_{turn}"), "name": "read_file",
        "input": {"path": format!("{turn}.txt")},
    });
    let mut steps = vec![json!({
        "step": "opened", "message_id": user_message_id(turn), "message": format!("What is in file {turn}?"),
        "options": {"max_turns": 50, "super_thinking": false, "direct": true},
    })];
    if turn > 0 && turn.is_multiple_of(TURNS_PER_COMPACTION) {
        let replacement = json!({"instead": "summary", "text": format!("The files up to {turn} are long.")});
        steps.push(json!({"step": "compacted", "covers": turn * MESSAGES_PER_TURN, "instead": replacement}));
    }
    let output = format!("file {turn}: {}", "word ".repeat(TOOL_OUTPUT_BYTES / 5));
    let answer = |blocks: Value| json!({"blocks": blocks, "usage": usage});
    steps.extend([
        json!({"step": "answered", "message_id": id("msg_", turn * 3 + 1), "model": "m", "answer": answer(json!([call]))}),
        json!({"step": "intended", "call_id": call_id}),
        json!({"step": "resulted", "call_id": call_id, "outcome": {"output": output, "duration_ms": 1}}),
        json!({
            "step": "answered", "message_id": id("msg_", turn * 3 + 2), "model": "m",
            "answer": answer(json!([{"type": "text", "text": format!("Words, in {turn}.")}])),
        }),
        json!({"step": "ended", "outcome": {"outcome": "completed", "stop_reason": "end_turn"}}),
    ]);
    steps
}

/// An export of a task with `turns` turns, as a sequence of chunks.
fn document(turns: usize) -> impl Iterator<Item = Bytes> + Send + 'static {
    let task = json!({
        "task_id": "long", "created_at": CREATED_AT, "updated_at": CREATED_AT, "message_count": turns * MESSAGES_PER_TURN, "working_memory": {},
    });
    let turn = |n: usize| {
        json!({
            "turn_id": id("turn_", n), "task_id": "long", "message_id": user_message_id(n), "opened_at": CREATED_AT, "ended_at": CREATED_AT,
            "taken_in": true,
        })
    };
    let step = |turn: usize| {
        let records = steps(turn).into_iter().enumerate().map(move |(index, step)| {
            let ts = 1_767_225_600_000_u64 + u64::try_from(turn * 10 + index).unwrap();
            json!({"turn_id": id("turn_", turn), "at": CREATED_AT, "ts": ts, "step": step}).to_string()
        });
        records.collect::<Vec<_>>().join(",\n")
    };
    let list = move |name: &str, record: &dyn Fn(usize) -> String| {
        let records: Vec<String> = (0..turns).map(record).collect();
        format!(",\n\"{name}\":[{}]", records.join(",\n"))
    };
    let head = format!(
        "{{\"version\":1,\n\"tasks\":[{task}]{},\n\"steps\":[",
        list("turns", &|n| turn(n).to_string())
    );
    let steps = (0..turns).map(move |n| if n == 0 { step(n) } else { format!(",\n{}", step(n)) });
    std::iter::once(head).chain(steps).chain(["]}".to_owned()]).map(Bytes::from)
}

/// A freshly started engine with a task of `turns` turns.
async fn with_long_task(turns: usize) -> EngineFixture {
    let fixture = EngineFixture::with_setup("anthropic", [], with_immediate_purge).await;
    let body =
        reqwest::Body::wrap_stream(futures::stream::iter(document(turns).map(Ok::<_, std::io::Error>)));
    let answer = send(fixture.engine.request(Method::POST, "/memory/import").body(body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let fixture = fixture.stop_and_start().await;
    fixture.engine.run_turn("plain", "Hi!").await;
    fixture
}

/// The number of turns in the journal, and how many MiB a turn or a page may use beyond the idle engine.
fn sizes() -> (usize, usize) {
    if is_large_run() { (120 * MIB / TOOL_OUTPUT_BYTES, 64) } else { (24 * MIB / TOOL_OUTPUT_BYTES, 20) }
}

#[tokio::test]
async fn a_turn_of_a_task_that_has_run_for_years_takes_what_its_model_is_sent() {
    let (turns, max_extra_mib) = sizes();
    let fixture = with_long_task(turns).await;
    // The first turn reads the journal; the next ones continue from what it left in memory.
    for round in 0..3 {
        let idle = reset_peak(&fixture.program);
        let start = std::time::Instant::now();
        fixture.engine.run_turn("long", &format!("And now {round}?")).await;
        let (took, (_, peak)) = (start.elapsed(), memory_and_peak_mib(&fixture.program));
        eprintln!("turn {round}: {took:?}, {idle} MiB became {peak} MiB");
        assert!(peak <= idle + max_extra_mib, "turn {round}: {idle} MiB became {peak} MiB");
        let last = format!("What is in file {}?", turns - 1);
        let summary = format!(
            "The files up to {} are long.",
            (turns - 1) / TURNS_PER_COMPACTION * TURNS_PER_COMPACTION
        );
        let sent = fixture.last_messages();
        sent.assert_contains(&[&summary, &last, &format!("And now {round}?")])
            .assert_lacks(&["What is in file 0?"]);
    }
    // Also after a kill.
    let fixture = fixture.kill_and_start().await;
    fixture.engine.run_turn("long", "And after all?").await;
    fixture.last_messages().assert_contains(&["And now 2?", "And after all?"]);

    // An edit before the compaction finds the original conversation.
    let edit = with_fields(
        direct_message("long", "What is in the second one?"),
        json!({"edit_message_id": user_message_id(1)}),
    );
    fixture.provider.enqueue_all([Reply::from_text("Words.")]);
    fixture.engine.run_turn_with(&edit).await;
    fixture
        .last_messages()
        .assert_contains(&["What is in file 0?", "What is in the second one?"])
        .assert_lacks(&["What is in file 1?", "are long."]);
    assert_eq!(fixture.engine.messages("long").await.len(), 5);
}

#[tokio::test]
async fn a_task_that_has_run_for_years_is_listed_page_by_page() {
    let (turns, max_extra_mib) = sizes();
    let fixture = with_long_task(turns).await;
    let idle = reset_peak(&fixture.program);
    let (mut pages, mut query) = (Vec::new(), "?limit=6".to_owned());
    while pages.len() < 4 {
        let page = fixture.engine.get(&format!("/tasks/long{query}")).await;
        let link = page.headers["link"].to_str().unwrap().to_owned();
        let page = page.assert_ok("messages:array")["messages"].as_array().unwrap().clone();
        assert_eq!(page.len(), 6);
        query = link.strip_prefix('<').unwrap().strip_suffix(r#">; rel="next""#).unwrap().to_owned();
        pages.push(page);
    }
    let (_, peak) = memory_and_peak_mib(&fixture.program);
    eprintln!("pages: {idle} MiB became {peak} MiB");
    assert!(peak <= idle + max_extra_mib, "{idle} MiB became {peak} MiB");

    // Together the pages are the end of the full list.
    let all = fixture.engine.messages("long").await;
    let listed: Vec<Value> = pages.into_iter().rev().flatten().collect();
    assert_eq!(listed, all[all.len() - 24..]);
    assert!(listed[23]["content"].as_str().unwrap().contains("Words, in"));

    let first = &all[2]["message_id"].as_str().unwrap();
    let page = fixture.engine.get(&format!("/tasks/long?limit=9&before={first}")).await;
    assert_eq!(page.headers.get("link"), None, "there are no older messages");
    assert_eq!(page.assert_ok("messages:array")["messages"], json!(all[..2]));
    for query in ["before=msg_0", "before=x&limit=3"] {
        let answer = fixture.engine.get(&format!("/tasks/long?{query}")).await;
        assert!(answer.assert_error(404, "MESSAGE_NOT_FOUND").contains("before"), "{query}");
    }
    for query in ["limit=0", "limit=1001", "limit=x"] {
        let answer = fixture.engine.get(&format!("/tasks/long?{query}")).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("limit"), "{query}");
    }
    eventually("memory is released", async || {
        (memory_and_peak_mib(&fixture.program).0 <= idle + max_extra_mib).then_some(())
    })
    .await;
}
