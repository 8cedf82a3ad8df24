//! Story 1, a product's test mode: engines answer with the texts of a custom script.

use serde_json::json;

use crate::support::Fleet;
use crate::support::turn::{assert_completed, assert_errored, visible_text};

const SCRIPT: &str = r#"
rules:
  - when: "^weather"
    answers:
      - thinking: "I look it up first."
        tools:
          - tool: working_memory_set
            input: {key: weather, value: rain}
      - text: "It rains."
  - when: "^auth"
    answers: [{error: auth}]
  - when: "^refused"
    answers: [{error: refused}]
  - when: "^quota"
    answers: [{error: quota}]
  - when: ""
    answers: [{text: "I know of the weather alone."}]
"#;

#[tokio::test]
async fn engines_say_what_a_script_of_ones_own_says() {
    let fleet = Fleet::new().with_script(SCRIPT);
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    let events = engine.execute("task", "weather in York?").await.collect().await;
    assert_eq!(assert_completed(&events), "It rains.");
    assert_eq!(visible_text(&events, "thinking_delta"), "I look it up first.");
    let call = events.iter().find(|event| event.kind == "tool_call").unwrap();
    assert_eq!(call.data["input"], json!({"key": "weather", "value": "rain"}));
    let events = engine.execute("task", "And now?").await.collect().await;
    assert_eq!(assert_completed(&events), "I know of the weather alone.");

    for (word, code) in
        [("auth", "PROVIDER_AUTH"), ("refused", "PROVIDER_REFUSED"), ("quota", "PROVIDER_UNAVAILABLE")]
    {
        let events = engine.execute(word, word).await.collect().await;
        assert_eq!(assert_errored(&events)["code"], code);
    }
}

#[tokio::test]
async fn a_script_that_is_missing_or_faulty_is_named() {
    let fleet =
        Fleet::new().with_env("LLM_PROVIDER", "scripted").with_env("LLM_SCRIPT_PATH", "/nowhere/script.yaml");
    fleet.run_failing_up().await.assert_failure(2, &["/nowhere/script.yaml"]);
    let fleet = Fleet::new().with_script("rules: [{when: '(', answers: []}]");
    fleet.run_failing_up().await.assert_failure(2, &["script.yaml"]);
}
