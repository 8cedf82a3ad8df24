//! A broken stream that doubles the text or loses the work. A client that honours `void_after` shows the text
//! once.

use mock_llm::{Fault, Reply, Wire};
use serde_json::json;
use store::testing::read_until;
use testkit::rendered_text;

use crate::agent::harness::{AgentHarness, WIRES, check_turn, final_text};

/// The number of deltas after which the provider breaks off, and whether its repeated answer differs.
const BREAK_CASES: [(usize, bool); 6] =
    [(1, false), (1, true), (100, false), (100, true), (10_000, false), (10_000, true)];

/// Returns an answer of slightly more than `deltas` deltas, whose default size is four characters.
fn answer_text(deltas: usize, last: &str) -> String {
    let words = (0..deltas).map(|number| format!("{number:3} ").split_off(0)[..4].to_owned());
    words.chain([last.to_owned()]).collect()
}

#[tokio::test]
async fn regression_e14_a_provider_that_breaks_off_shows_its_text_once() {
    for (deltas, diverges) in BREAK_CASES {
        // The protocols do not differ in the longest answers.
        for wire in WIRES.into_iter().take(if deltas > 1_000 { 1 } else { WIRES.len() }) {
            let harness = AgentHarness::new(wire).await;
            let first = answer_text(deltas, "the end as it was told first");
            let second = if diverges { first.replacen("0 ", "O ", 1) } else { first.clone() };
            harness.provider.enqueue_all([
                Reply::from_text(&*first).fault(Fault::cut_after(deltas)),
                Reply::from_text(&*second).chars_per_delta(5),
            ]);
            let events = harness.send("go").await;
            assert_eq!(final_text(&events), second, "{deltas} {diverges}");
            assert!(rendered_text(&events, true) == second, "{deltas} {diverges}: shown otherwise");
            let voided = events.iter().any(|event| event.phase() == Some("retrying"));
            assert_eq!(voided, diverges);
            // A later client is shown the same.
            assert!(rendered_text(&harness.replay(0).await, true) == second);
            harness.provider.assert_no_refusals();
        }
    }
}

#[tokio::test]
async fn regression_e14_an_engine_that_breaks_off_shows_its_text_once() {
    for (deltas, diverges) in &BREAK_CASES[2..4] {
        let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
        let first = answer_text(*deltas, "the end");
        let second = if *diverges { first.replacen("7 ", "seven ", 1) } else { first.clone() };
        let gate = mock_llm::Gate::new();
        harness
            .provider
            .enqueue_all([Reply::from_text(&*first).hold(*deltas, &gate), Reply::from_text(&*second)]);
        let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
        read_until(&mut reader, |event| event.data["text"].as_str().is_some_and(|text| text.contains('9')))
            .await;
        harness.kill().await;
        harness.agent.resume().unwrap();
        let events = harness.replay(0).await;
        assert_eq!(check_turn(&events), Ok(()));
        assert_eq!(final_text(&events), second);
        assert_eq!(rendered_text(&events, true), second);
        harness.provider.assert_no_refusals();
    }
}
