use api::CallId;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn recorded(tool: &str, input: Value) -> RecordedCall {
    let text = format!("{tool} of {input}");
    let (tool, ran_input, remarks) = (tool.to_owned(), None, Vec::new());
    RecordedCall { tool, input, ran_input, text, is_error: false, remarks }
}

fn call(tool: &str, input: Value) -> ToolUse {
    let call_id = CallId::new();
    let provider_id = call_id.to_string();
    ToolUse { call_id, provider_id, name: tool.to_owned(), input, signature: None, broken: None }
}

fn tape(calls: Vec<RecordedCall>) -> Tape {
    Tape::new(vec![RecordedStep { calls, steered: Vec::new() }])
}

fn serve(tape: &mut Tape, calls: &[ToolUse]) -> Vec<(CallPairing, String)> {
    let served = tape.serve(calls).unwrap();
    for (served, call) in served.iter().zip(calls) {
        assert_eq!(served.reply.provider_id, call.provider_id);
    }
    served.into_iter().map(|served| (served.pairing, served.reply.text)).collect()
}

#[test]
fn a_call_gets_its_own_result_whatever_the_order() {
    let mut tape = tape(vec![recorded("read", json!({"a": 1, "b": [2]})), recorded("read", json!({"a": 2}))]);
    let calls = [call("read", json!({"a": 2})), call("read", json!({"b": [2.0], "a": 1}))];
    let served = serve(&mut tape, &calls);
    assert_eq!(served[0], (CallPairing::Same, "read of {\"a\":2}".to_owned()));
    assert_eq!(served[1].0, CallPairing::Same);
    assert!(tape.into_missing().is_empty());
}

#[test]
fn another_input_takes_what_no_call_of_the_answer_needs() {
    let mut tape = tape(vec![recorded("read", json!({"a": 1})), recorded("read", json!({"a": 2}))]);
    // The first call would take the result of the second one if it came first.
    let calls = [call("read", json!({"a": 9})), call("read", json!({"a": 1})), call("write", json!({}))];
    let served = tape.serve(&calls).unwrap();
    assert_eq!(served[0].pairing, CallPairing::Approximate);
    assert_eq!(served[0].recorded_input, Some(json!({"a": 2})));
    assert_eq!(served[1].pairing, CallPairing::Same);
    assert_eq!((served[2].pairing, served[2].reply.is_error), (CallPairing::NotRecorded, true));
    assert_eq!(served[2].reply.text, NOT_RECORDED);
}

#[test]
fn the_same_call_again_gets_the_same_result_again() {
    let mut tape = tape(vec![recorded("read", json!({})), recorded("read", json!({"a": 1}))]);
    let again = || call("read", json!({}));
    let served = serve(&mut tape, &[again(), again()]);
    assert_eq!(served[1], (CallPairing::Repeated, "read of {}".to_owned()));
    let missing = tape.into_missing();
    assert_eq!(missing, [MissingCall { tool: "read".into(), input: json!({"a": 1}) }]);
}

#[test]
fn the_input_that_ran_counts_too() {
    let changed =
        RecordedCall { ran_input: Some(json!({"path": "b"})), ..recorded("write", json!({"path": "a"})) };
    for path in ["a", "b"] {
        let changed =
            RecordedCall { ran_input: changed.ran_input.clone(), ..recorded("write", json!({"path": "a"})) };
        let served = serve(&mut tape(vec![changed]), &[call("write", json!({"path": path}))]);
        assert_eq!(served[0].0, CallPairing::Same, "{path}");
    }
}

#[test]
fn a_call_that_cannot_be_read_gets_no_result_of_another_one() {
    let mut tape = tape(vec![recorded("read", json!({"a": 1})), recorded("read", json!({}))]);
    let broken = ToolUse { broken: Some("cut off".into()), ..call("read", json!({})) };
    assert_eq!(serve(&mut tape, &[broken]), [(CallPairing::NotRecorded, "cut off".to_owned())]);
    assert_eq!(tape.into_missing().len(), 2);
}

#[test]
fn results_without_end_are_not_served() {
    let third = MAX_SERVED_BYTES / 3;
    let large = RecordedCall { text: "x".repeat(third), ..recorded("read", json!({})) };
    let mut tape = tape(vec![large]);
    let calls = vec![call("read", json!({})); 2];
    assert_eq!(tape.serve(&calls).unwrap().len(), 2);
    assert_eq!(tape.serve(&calls), Err(TooMuchServed));
}

#[test]
fn values_are_compared_by_what_they_mean() {
    assert!(same_value(&json!({"a": 1, "b": [true, null]}), &json!({"b": [true, null], "a": 1.0})));
    for (one, other) in [
        (json!({"a": 1}), json!({"a": 1, "b": 1})),
        (json!([1, 2]), json!([2, 1])),
        (json!("1"), json!(1)),
        (json!(u64::MAX), json!(u64::MAX - 1)),
        (json!(null), json!(false)),
    ] {
        assert!(!same_value(&one, &other), "{one} {other}");
    }
}

proptest! {
    /// Whatever is called in whatever order: each recorded call is taken once or missing, each call has one result, and
    /// a call that is recorded as often as it is made is always the same.
    #[test]
    fn each_recorded_call_is_taken_once_or_missing(
        recorded_calls in prop::collection::vec((0..3_u8, 0..4_u8), 0..12),
        answers in prop::collection::vec(prop::collection::vec((0..3_u8, 0..4_u8), 0..5), 0..5),
    ) {
        let name = |tool: u8| format!("tool{tool}");
        let calls = recorded_calls.iter().map(|(tool, input)| recorded(&name(*tool), json!({"n": input})));
        let mut tape = tape(calls.collect());
        let (mut same, mut changed, mut made) = (0, 0, 0);
        for answer in &answers {
            let calls: Vec<_> = answer.iter().map(|(tool, input)| call(&name(*tool), json!({"n": input}))).collect();
            let served = tape.serve(&calls).unwrap();
            prop_assert_eq!(served.len(), calls.len());
            for (served, call) in served.iter().zip(&calls) {
                made += 1;
                let own_text = format!("{} of {}", call.name, call.input);
                let is_own = served.reply.text == own_text;
                match served.pairing {
                    CallPairing::Same => { same += 1; prop_assert!(is_own); }
                    CallPairing::Repeated => prop_assert!(is_own),
                    CallPairing::Approximate => {
                        changed += 1;
                        prop_assert!(!is_own);
                        prop_assert!(served.reply.text.starts_with(&call.name));
                    }
                    CallPairing::NotRecorded => prop_assert!(served.reply.is_error),
                }
                prop_assert_eq!(served.recorded_input.is_some(), served.pairing == CallPairing::Approximate);
            }
        }
        prop_assert_eq!(same + changed + tape.into_missing().len(), recorded_calls.len());
        prop_assert!(same + changed <= made);
    }

    /// The recorded turn itself, run again, is the same.
    #[test]
    fn a_turn_that_calls_the_same_is_the_same(steps in prop::collection::vec(
        prop::collection::vec((0..2_u8, 0..3_u8), 0..4), 0..6)
    ) {
        let record = |calls: &Vec<(u8, u8)>| RecordedStep {
            calls: calls.iter().map(|(tool, n)| recorded(&format!("t{tool}"), json!({"n": n}))).collect(),
            steered: Vec::new(),
        };
        let mut tape = Tape::new(steps.iter().map(record).collect());
        for calls in &steps {
            let calls: Vec<_> = calls.iter().map(|(tool, n)| call(&format!("t{tool}"), json!({"n": n}))).collect();
            prop_assert!(tape.serve(&calls).unwrap().iter().all(|served| served.pairing == CallPairing::Same));
        }
        prop_assert!(tape.into_missing().is_empty());
    }
}
