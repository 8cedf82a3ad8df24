//! Busted prompt caches. Throughout a task each request has the previous one as a prefix, apart from cache marks,
//! even if memory is recalled into turns and while the user's own skills change.

use std::collections::BTreeMap;

use api::memory::Source;
use mock_llm::{CacheStats, CapturedRequest, Reply, Wire};
use serde_json::json;
use serde_json::value::RawValue;

use crate::agent::harness::{AgentHarness, WIRES};
use crate::agent::recall_tests::{recalled, save_knowledge};

/// Asserts that a request begins like the previous one, byte for byte: its tools, its system prompt, its messages.
pub(crate) fn assert_prefix(before: &CapturedRequest, after: &CapturedRequest) {
    let [before, after] = [before, after].map(body_fields);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (name, value) in before {
        let now = &after[&name];
        match name.as_str() {
            "messages" | "contents" | "input" => {
                let value = value.strip_suffix(']').unwrap();
                let same = value.bytes().zip(now.bytes()).take_while(|(before, now)| before == now).count();
                assert!(
                    now.starts_with(value),
                    "{name} departs at {same}:\n{}\n{}",
                    &value[same..],
                    &now[same..]
                );
            }
            _ => assert_eq!(&value, now, "{name}"),
        }
    }
}

/// Returns the fields of a request's body as written, without cache marks.
fn body_fields(request: &CapturedRequest) -> BTreeMap<String, String> {
    let parts: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&request.raw).unwrap();
    let mark = r#""cache_control":{"type":"ephemeral"}"#;
    let without = |value: &str| value.replace(&format!("{mark},"), "").replace(&format!(",{mark}"), "");
    parts.into_iter().map(|(name, value)| (name, without(value.get()))).collect()
}

/// Scripts the model in a turn of a task with tools.
fn turn_replies(number: usize) -> Vec<Reply> {
    let note = json!({"key": format!("note {}", number % 3), "value": number});
    let calls = Reply::new()
        .thinking(format!("Turn {number}."))
        .text("I look.")
        .tool_use("list_files", json!({"path": "."}))
        .tool_use("working_memory_set", note);
    match number % 4 {
        0 => vec![
            calls,
            Reply::new().tool_use("read_file", json!({"path": "nothing"})),
            Reply::from_text("There."),
        ],
        1 => vec![Reply::new().thinking("Easy.").text("I know that.")],
        2 => vec![
            calls
                .redacted_thinking()
                .tool_use("memory_save", json!({"content": format!("Step {number} is done.")})),
            Reply::from_text("Found."),
        ],
        _ => vec![
            calls
                .tool_use("memory_search", json!({"query": "step"}))
                .tool_use("load_skill", json!({"skill": "rivers"})),
            Reply::from_text("Again."),
        ],
    }
}

/// Returns the number of a conversation's messages that contain a recall note.
fn recall_note_count(request: &CapturedRequest) -> usize {
    String::from_utf8_lossy(&request.raw).matches("[Recalled from memory").count()
}

/// Creates a skill of the user, changes its description, changes its text, and deletes it, all while the task
/// continues.
async fn change_skills(harness: &AgentHarness, number: usize) {
    let agent = &harness.agent;
    let update = match number {
        7 => {
            let create = json!({"name": "rivers", "description": "Rivers.", "prompt": "Look at a map."});
            return agent.create_skill(serde_json::from_value(create).unwrap()).await.map(drop).unwrap();
        }
        13 => json!({"description": "All about rivers."}),
        16 => json!({"prompt": "Look at two maps.", "scripts": {"map.sh": "echo map"}}),
        22 => return agent.delete_skill("rivers").await.unwrap(),
        _ => return,
    };
    agent.update_skill("rivers", serde_json::from_value(update).unwrap()).await.unwrap();
}

async fn run_thirty_turns(wire: Wire) -> (Vec<CapturedRequest>, CacheStats) {
    let mut harness = AgentHarness::new(wire).await;
    for number in 0..30 {
        change_skills(&harness, number).await;
        // Every second question is about something that is known by then.
        if number % 2 == 0 {
            save_knowledge(
                &harness,
                &format!("River {number} flows through Elbonia {number}."),
                Source::User,
                None,
            )
            .await;
        }
        harness.provider.enqueue_all(turn_replies(number));
        let message =
            format!("Question {number}, of some length: which land does river {number} flow through?");
        let events = harness.run(json!({"task_id": "t", "message": message, "super_thinking": true})).await;
        assert_eq!(recalled(&events).is_empty(), number % 2 == 1, "{number}");
        if number % 10 == 9 {
            harness.restart().await;
        }
    }
    harness.provider.assert_no_refusals();
    (harness.provider.requests(), harness.provider.cache_stats())
}

#[tokio::test]
async fn regression_e12_each_request_has_the_one_before_as_its_beginning() {
    for wire in WIRES {
        let (requests, account) = run_thirty_turns(wire).await;
        assert!(requests.len() > 50);
        assert_eq!(recall_note_count(requests.last().unwrap()), 15);
        let last = String::from_utf8_lossy(&requests.last().unwrap().raw).into_owned();
        for expected in ["rivers: Rivers.", "rivers: All about rivers.", "two maps", "no skills of their own"]
        {
            assert!(last.contains(expected), "{expected}");
        }
        // As the vendor bills it: for Anthropic by the marks, for the others from the first 1,024 tokens on.
        let share = account.read_percent();
        eprintln!(
            "{wire:?}: {share} % of the tokens sent in {} requests were read from the cache",
            requests.len()
        );
        assert!(share >= 90, "{wire:?}: {share} %");
        for pair in requests.windows(2) {
            assert_prefix(&pair[0], &pair[1]);
        }
    }
}
