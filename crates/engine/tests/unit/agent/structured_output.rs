use api::MessageId;
use api::turn_options::TurnOverrides;
use llm::{Answer, Block};
use serde_json::json;
use store::steps::{TurnBase, TurnOptions};

use super::*;

fn format() -> ResponseFormat {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    serde_json::from_value(json!({"type": "json_schema", "name": "place", "schema": schema})).unwrap()
}

/// A turn whose last answer is `text`.
fn turn(format: Option<ResponseFormat>, text: &str, output_rejected: bool) -> Turn {
    let overrides = TurnOverrides { response_format: format, ..TurnOverrides::default() };
    let overrides = Some(Box::new(overrides));
    let options = TurnOptions { max_turns: 3, super_thinking: false, direct: true, overrides };
    let mut turn = Turn::new(MessageId::new(), options, TurnBase::End, 1);
    let blocks = vec![Block::Text { text: text.to_owned(), signature: None }];
    turn.last_answer = Some((MessageId::new(), Answer { blocks, ..Answer::default() }));
    turn.output_rejected = output_rejected;
    turn
}

#[test]
fn an_answer_that_does_not_match_is_corrected_once() {
    for rejected in [false, true] {
        let judged = judge(&turn(Some(format()), r#"{"city": "Bonn"}"#, rejected), StopReason::EndTurn);
        assert_eq!(judged, Verdict::Accepted);
    }
    let bad = |rejected| judge(&turn(Some(format()), r#"{"city": 7}"#, rejected), StopReason::EndTurn);
    let errors = "- at `/city`: it is not of type \"string\"";
    assert_eq!(bad(false), Verdict::Rejected(errors.to_owned()));
    let Verdict::Failed(failure) = bad(true) else { panic!("it is accepted") };
    assert_eq!((failure.code, failure.retryable), (FailureCode::OutputInvalid, true));
    assert!(failure.message.contains(errors), "{}", failure.message);
}

#[test]
fn only_an_answer_that_the_model_has_ended_is_judged() {
    for reason in [StopReason::Budget, StopReason::Loop, StopReason::MaxTurns] {
        assert_eq!(judge(&turn(Some(format()), "no", false), reason), Verdict::Accepted);
    }
    assert_eq!(judge(&turn(None, "no", false), StopReason::EndTurn), Verdict::Accepted);
}

#[test]
fn the_notes_name_the_form_and_the_errors() {
    let note = note(&format());
    assert!(note.contains("place") && note.contains(r#""required":["city"]"#), "{note}");
    assert!(rejection_note("- at `/city`: no").contains("- at `/city`: no"));
}
