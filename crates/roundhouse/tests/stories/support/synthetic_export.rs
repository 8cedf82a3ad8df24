//! Synthetic exports of engines: documents of any size, generated while they are read.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The number of turns of a task.
pub(crate) const TURNS_PER_TASK: usize = 16;
/// The numbers of words of a user's message and of an answer.
const WORDS_PER_MESSAGE: (usize, usize) = (150, 900);
const SHORT_MESSAGES: (usize, usize) = (9, 25);
/// The size of each task's attachment.
const ATTACHED_BYTES_PER_TASK: usize = 64 * 1024;
/// The approximate size of a task in the document.
const TASK_BYTES: usize = 236 * 1024;

/// A document with a number of tasks, whose conversations have the same shape and different words.
#[derive(Clone, Copy)]
pub(crate) struct SyntheticExport {
    tasks: usize,
    words_per_message: (usize, usize),
}

impl SyntheticExport {
    /// A document with this number of tasks.
    pub(crate) fn with_tasks(tasks: usize) -> Self {
        Self { tasks, words_per_message: WORDS_PER_MESSAGE }
    }

    /// The same with messages of some words, as people write them.
    pub(crate) fn with_short_messages(self) -> Self {
        Self { words_per_message: SHORT_MESSAGES, ..self }
    }

    /// A document of about this many MiB.
    pub(crate) fn with_mib(mib: usize) -> Self {
        Self::with_tasks((mib * 1024 * 1024).div_ceil(TASK_BYTES))
    }

    /// The document in chunks.
    pub(crate) fn chunks(self) -> impl Iterator<Item = Bytes> + Send + 'static {
        let turns = self.tasks * TURNS_PER_TASK;
        let head = std::iter::once(r#"{"version":1"#.to_owned());
        let tail = std::iter::once("}".to_owned());
        head.chain(section("tasks", self.tasks, task))
            .chain(section("turns", turns, turn))
            .chain(section("steps", turns * 3, move |n| step(n, self.words_per_message)))
            .chain(section("said", turns * 2, |n| (n / 2 * 3 + n % 2).to_string()))
            .chain(section("episodes", turns, episode))
            .chain(section("knowledge", turns, knowledge))
            .chain(section("media", self.tasks, media))
            .chain(tail)
            .map(Bytes::from)
    }

    /// The complete document.
    pub(crate) fn document(self) -> String {
        self.chunks().map(|chunk| String::from_utf8(chunk.into()).unwrap()).collect()
    }
}

fn section(
    name: &'static str,
    records: usize,
    record: impl Fn(usize) -> String + Send + 'static,
) -> impl Iterator<Item = String> + Send {
    let records = (0..records).map(move |n| {
        let mut text = if n == 0 { "\n" } else { ",\n" }.to_owned();
        text.push_str(&record(n));
        text
    });
    std::iter::once(format!(",\n\"{name}\":[")).chain(records).chain(std::iter::once("]".to_owned()))
}

const CREATED_AT: &str = "2026-01-01T00:00:00.000Z";

fn id(prefix: &str, n: usize) -> String {
    format!("{prefix}{n:032x}")
}

/// Pseudo-random words from a small vocabulary, so that they occur in many texts.
fn words(seed: usize, count: usize) -> String {
    let mut state = u64::try_from(seed).unwrap() * 2 + 1;
    let mut text = String::new();
    for _ in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        write!(text, "word{} ", (state >> 33) % 5_000).unwrap();
    }
    text
}

fn task(n: usize) -> String {
    json!({
        "task_id": format!("task {n}"), "created_at": CREATED_AT, "updated_at": CREATED_AT, "message_count": TURNS_PER_TASK * 2,
        "working_memory": {"number": n},
    })
    .to_string()
}

fn turn(n: usize) -> String {
    json!({
        "turn_id": id("turn_", n), "task_id": format!("task {}", n / TURNS_PER_TASK), "message_id": id("msg_", n * 2),
        "opened_at": CREATED_AT, "ended_at": CREATED_AT, "taken_in": true,
    })
    .to_string()
}

/// A word that only the user's message of this turn has.
pub(crate) fn name_of_turn(n: usize) -> String {
    format!("turn{n}x")
}

fn step(n: usize, (asked, answered): (usize, usize)) -> String {
    let turn = n / 3;
    let step = match n % 3 {
        0 => json!({
            "step": "opened", "message_id": id("msg_", turn * 2), "message": format!("{}{}", words(n, asked), name_of_turn(turn)),
            "options": {"max_turns": 50, "super_thinking": false, "direct": true},
        }),
        1 => json!({
            "step": "answered", "message_id": id("msg_", turn * 2 + 1), "model": "m",
            "answer": {
                "blocks": [{"type": "text", "text": words(n, answered)}],
                "usage": {"input": 1, "output": 1, "cache_read": 0, "cache_write": 0, "reasoning": 0},
            },
        }),
        _ => json!({"step": "ended", "outcome": {"outcome": "completed", "stop_reason": "end_turn"}}),
    };
    json!({"turn_id": id("turn_", turn), "at": CREATED_AT, "ts": 1_767_225_600_000_u64 + u64::try_from(n).unwrap(), "step": step})
        .to_string()
}

fn episode(n: usize) -> String {
    json!({
        "id": id("ep_", n), "turn_id": id("turn_", n), "step": n * 3 + 2, "content": words(n, 100), "source": "agent",
        "created_at": CREATED_AT,
    })
    .to_string()
}

/// The id and the content of a record of knowledge. There is one for each turn.
pub(crate) fn record_of_turn(n: usize) -> (String, String) {
    (id("mem_", n), words(n, 20))
}

fn knowledge(n: usize) -> String {
    let (id, content) = record_of_turn(n);
    json!({"id": id, "content": content, "source": "user", "created_at": CREATED_AT, "step": n * 3 + 1})
        .to_string()
}

fn media(n: usize) -> String {
    let data: Vec<u8> = words(n, ATTACHED_BYTES_PER_TASK / 8).into_bytes();
    let hash = hex::encode(Sha256::digest(&data));
    json!({"hash": hash, "data": BASE64.encode(data), "task_ids": [format!("task {n}")]}).to_string()
}
