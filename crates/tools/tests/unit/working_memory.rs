//! Tests of what a task keeps in view: which entries are accepted, and what the call stores.

use pretty_assertions::assert_eq;
use testkit::with_deadline;

use super::*;
use crate::fixture::run_tool;

async fn kept(input: Value) -> Vec<(String, Value)> {
    let invocation = Invocation {
        call_id: api::CallId::new(),
        at: api::Timestamp::from_unix_ms(0),
        task: None,
        input,
        answers: Vec::new(),
    };
    match with_deadline(WorkingMemorySet.run(invocation)).await.unwrap() {
        ToolStep::Done(output) => output.working_memory,
        ToolStep::Ask(_) => panic!("it asks nothing"),
    }
}

#[tokio::test]
async fn any_value_is_kept_under_its_key_and_null_takes_it_out() {
    for value in [json!("text"), json!({"日付": ["é", 1, false]}), json!(null)] {
        let input = json!({"key": "Überblick", "value": value});
        assert_eq!(kept(input).await, [("Überblick".to_owned(), value)]);
    }
}

#[tokio::test]
async fn keys_and_values_are_bounded_in_bytes() {
    // The longest that is accepted, and one byte more. A letter of two bytes counts as two.
    let value_of = |bytes: usize| json!("x".repeat(bytes - "\"\"".len()));
    for (key, value, accepted) in [
        ("ä".repeat(MAX_KEY_BYTES / 2), json!(1), true),
        ("ä".repeat(MAX_KEY_BYTES / 2) + "a", json!(1), false),
        (String::new(), json!(1), false),
        ("key".to_owned(), value_of(MAX_VALUE_BYTES), true),
        ("key".to_owned(), value_of(MAX_VALUE_BYTES + 1), false),
    ] {
        let result = run_tool(&WorkingMemorySet, json!({"key": key, "value": value})).await;
        assert_eq!(result.is_ok(), accepted, "{} bytes: {result:?}", key.len());
    }
}

#[tokio::test]
async fn what_is_missing_is_named() {
    for (input, named) in [(json!({"value": 1}), "key"), (json!({"key": "a"}), "value")] {
        let error = run_tool(&WorkingMemorySet, input).await.unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn it_needs_a_turn_asks_nobody_and_may_run_twice() {
    let tool = WorkingMemorySet;
    assert_eq!((tool.needs_turn(), tool.permission(), tool.idempotent()), (true, Permission::Allow, true));
}
