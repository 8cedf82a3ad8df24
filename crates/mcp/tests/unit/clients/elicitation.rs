//! Tests of forms as servers send them, and answers as people write them.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn prompt(schema: &Value) -> Prompt {
    let params = json!({"mode": "form", "message": "Well?", "requestedSchema": schema});
    Prompt::from_params(&serde_json::from_value(params).unwrap()).unwrap()
}

fn one(field: &Value) -> Prompt {
    prompt(&json!({"type": "object", "properties": {"it": field}, "required": ["it"]}))
}

fn accepted_content(prompt: &Prompt, answer: &str) -> Value {
    match prompt.parse_answer(answer) {
        ParsedAnswer::Valid(result) if result.action == ElicitationAction::Accept => result.content.unwrap(),
        other => panic!("{answer}: {other:?}"),
    }
}

fn action(prompt: &Prompt, answer: &str) -> ElicitationAction {
    match prompt.parse_answer(answer) {
        ParsedAnswer::Valid(result) => result.action,
        ParsedAnswer::Invalid(reason) => panic!("{answer}: {reason}"),
    }
}

fn rejection(prompt: &Prompt, answer: &str) -> String {
    match prompt.parse_answer(answer) {
        ParsedAnswer::Invalid(reason) => reason,
        ParsedAnswer::Valid(result) => panic!("{answer}: {result:?}"),
    }
}

#[test]
fn a_single_field_takes_its_value_as_it_is() {
    assert_eq!(
        accepted_content(&one(&json!({"type": "string"})), "  no: not so "),
        json!({"it": "no: not so"})
    );
    assert_eq!(accepted_content(&one(&json!({"type": "integer", "minimum": 1})), "7"), json!({"it": 7}));
    assert_eq!(accepted_content(&one(&json!({"type": "number"})), "2.5"), json!({"it": 2.5}));
    assert_eq!(accepted_content(&one(&json!({"type": "boolean"})), "no"), json!({"it": false}));
    let titled = json!({"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "no", "title": "None"}]});
    assert_eq!(accepted_content(&one(&titled), "red"), json!({"it": "r"}));
    assert_eq!(accepted_content(&one(&titled), "no"), json!({"it": "no"}));
    let some = json!({"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}});
    assert_eq!(accepted_content(&one(&some), "a, C"), json!({"it": ["a", "c"]}));
}

#[test]
fn what_a_field_does_not_take_is_unclear() {
    assert_eq!(rejection(&one(&json!({"type": "integer"})), "1.5"), "`it` must be a whole number");
    assert_eq!(rejection(&one(&json!({"type": "number"})), "many"), "`it` must be a number");
    assert_eq!(rejection(&one(&json!({"type": "integer", "maximum": 3})), "4"), "`it` must be from … to 3");
    assert_eq!(rejection(&one(&json!({"type": "boolean"})), "perhaps"), "`it` must be `yes` or `no`");
    let short = one(&json!({"type": "string", "maxLength": 2}));
    assert_eq!(rejection(&short, "abc"), "`it` must have at least 0 characters, 2 at most");
}

#[test]
fn several_fields_are_lines_or_an_object() {
    let form = prompt(&json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "likes": {"type": "boolean"}},
        "required": ["name", "age"],
    }));
    let expected = json!({"name": "Ada: Countess", "age": 36});
    assert_eq!(accepted_content(&form, "age: 36\n\n name : Ada: Countess"), expected);
    assert_eq!(accepted_content(&form, r#"{"name": "Ada: Countess", "age": 36}"#), expected);
    assert_eq!(
        accepted_content(&form, "age: 1\nname: b\nlikes: yes"),
        json!({"name": "b", "age": 1, "likes": true})
    );
    assert_eq!(rejection(&form, "name: Ada"), "`age` is missing");
    assert_eq!(rejection(&form, "name: Ada\nage: 1\nhat: 2"), "there is no field `hat`");
    assert_eq!(rejection(&form, "Ada"), "each line must be `name: value`");
    assert_eq!(rejection(&form, r#"{"name": "Ada", "age": "36"}"#), "`age` must be a number");
    assert_eq!(form.question("s", None).options, None);
}

#[test]
fn nothing_is_given_where_a_person_declines() {
    for field in [json!({"type": "string"}), json!({"type": "integer"}), json!({"type": "boolean"})] {
        assert_eq!(action(&one(&field), "Decline"), ElicitationAction::Decline);
    }
    for word in ["cancel", "no"] {
        let expected = if word == "no" { ElicitationAction::Decline } else { ElicitationAction::Cancel };
        assert_eq!(action(&one(&json!({"type": "integer"})), word), expected);
        // In a text field it is a value like any other.
        assert_eq!(action(&one(&json!({"type": "string"})), word), ElicitationAction::Accept);
    }
}

#[test]
fn what_is_too_long_to_be_asked_is_not() {
    let is_accepted = |name: &str, field: Value| {
        let schema = json!({"type": "object", "properties": {name: field}});
        let params = json!({"mode": "form", "message": "Well?", "requestedSchema": schema});
        Prompt::from_params(&serde_json::from_value(params).unwrap()).is_some()
    };
    let choices = |count: usize| {
        let values: Vec<String> = (0..count).map(|number| format!("{number}{}", "x".repeat(2_000))).collect();
        json!({"type": "string", "enum": values})
    };
    assert!(is_accepted("a", choices(4)) && !is_accepted("a", choices(40)));
    let text = || json!({"type": "string"});
    assert!(is_accepted(&"a".repeat(128), text()));
    assert!(!is_accepted(&"a".repeat(129), text()) && !is_accepted("a\nb", text()));
}

#[test]
fn an_address_is_shown_and_confirmed() {
    let address = |url: &str| {
        let params = json!({"mode": "url", "message": "Pay.", "url": url, "elicitationId": "e"});
        Prompt::from_params(&serde_json::from_value(params).unwrap())
    };
    let pay = address("https://pay.example/x?a=b").unwrap();
    assert!(pay.question("s", None).text.contains("https://pay.example/x?a=b"));
    assert_eq!(pay.question("s", None).options, Some(vec!["done".into(), "decline".into()]));
    assert_eq!(action(&pay, "done"), ElicitationAction::Accept);
    assert_eq!(action(&pay, "no"), ElicitationAction::Decline);
    assert_eq!(rejection(&pay, "what?"), "the answer must be `done` or `decline`");
    assert_eq!(address("javascript:alert(1)"), None);
}

proptest! {
    #[test]
    fn whatever_is_answered_what_is_given_fits_the_form(answer in ".*", is_integer in any::<bool>(), kind in 0..4_usize) {
        let field = match kind {
            0 => json!({"type": "string", "minLength": 2, "maxLength": 5}),
            1 => json!({"type": if is_integer { "integer" } else { "number" }, "minimum": 0, "maximum": 9}),
            2 => json!({"type": "boolean"}),
            _ => json!({"type": "string", "enum": ["a", "b"]}),
        };
        let fits = |value: &Value| match kind {
            0 => value.as_str().is_some_and(|text| (2..=5).contains(&text.chars().count())),
            1 => value.as_f64().is_some_and(|n| (0.0..=9.0).contains(&n) && (!is_integer || n.fract() == 0.0)),
            2 => value.is_boolean(),
            _ => value == "a" || value == "b",
        };
        if let ParsedAnswer::Valid(ElicitResult { action: ElicitationAction::Accept, content, .. }) = one(&field).parse_answer(&answer) {
            prop_assert!(fits(&content.unwrap()["it"]));
        }
    }

    #[test]
    fn what_is_spelled_in_lines_comes_out(name in "[a-z]{1,8}", text in "[a-zA-Z:, ]{0,20}", number in any::<i32>()) {
        let form = prompt(&json!({
            "type": "object", "properties": {"t": {"type": "string"}, "n": {"type": "integer"}}, "required": ["t", "n"],
        }));
        let text = format!("{name}{text}");
        let lines = accepted_content(&form, &format!("t: {text}\nn: {number}"));
        prop_assert_eq!(&lines, &json!({"t": text.trim(), "n": number}));
        prop_assert_eq!(accepted_content(&form, &lines.to_string()), lines);
    }
}
