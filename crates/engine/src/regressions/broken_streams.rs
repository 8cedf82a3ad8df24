//! A broken stream that doubles the text or loses the work. A client that honours `void_after` shows the text
//! once.

use mock_llm::{Fault, Reply, Wire};
use serde_json::json;

use crate::agent::harness::{AgentHarness, WIRES, check_turn, final_text};
use crate::testing::{read_until, rendered_text};

/// The number of deltas after which the provider breaks off, and whether its repeated answer differs.
const BREAK_CASES: [(usize, bool); 6] =
    [(1, false), (1, true), (100, false), (100, true), (10_000, false), (10_000, true)];

/// Returns an answer of slightly more than `deltas` deltas, whose default size is four characters.
fn answer_text(deltas: usize, last: &str) -> String {
    let words = (0..deltas).map(|number| format!("{number:3} ").split_off(0)[..4].to_owned());
    words.chain([last.to_owned()]).collect()
}

#[tokio::test]
async fn lesson_e14_a_provider_that_breaks_off_shows_its_text_once() {
    for (deltas, departs) in BREAK_CASES {
        // The protocols do not differ in the longest answers.
        for wire in WIRES.into_iter().take(if deltas > 1_000 { 1 } else { WIRES.len() }) {
            let rig = AgentHarness::new(wire).await;
            let first = answer_text(deltas, "the end as it was told first");
            let then = if departs { first.replacen("0 ", "O ", 1) } else { first.clone() };
            rig.provider.enqueue_all([
                Reply::from_text(&*first).fault(Fault::cut_after(deltas)),
                Reply::from_text(&*then).chars_per_delta(5),
            ]);
            let events = rig.send("go").await;
            assert_eq!(final_text(&events), then, "{deltas} {departs}");
            assert!(rendered_text(&events, true) == then, "{deltas} {departs}: shown otherwise");
            let voided = events.iter().any(|event| event.phase() == Some("retrying"));
            assert_eq!(voided, departs);
            // A later client is shown the same.
            assert!(rendered_text(&rig.replay(0).await, true) == then);
            rig.provider.assert_no_refusals();
        }
    }
}

#[tokio::test]
async fn lesson_e14_an_engine_that_breaks_off_shows_its_text_once() {
    for (deltas, departs) in &BREAK_CASES[2..4] {
        let mut rig = AgentHarness::new(Wire::AnthropicMessages).await;
        let first = answer_text(*deltas, "the end");
        let then = if *departs { first.replacen("7 ", "seven ", 1) } else { first.clone() };
        let gate = mock_llm::Gate::new();
        rig.provider.enqueue_all([Reply::from_text(&*first).hold(*deltas, &gate), Reply::from_text(&*then)]);
        let mut reader = rig.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
        read_until(&mut reader, |event| event.data["text"].as_str().is_some_and(|text| text.contains('9')))
            .await;
        rig.kill().await;
        rig.agent.resume().unwrap();
        let events = rig.replay(0).await;
        assert_eq!(check_turn(&events), Ok(()));
        assert_eq!(final_text(&events), then);
        assert_eq!(rendered_text(&events, true), then);
        rig.provider.assert_no_refusals();
    }
}
