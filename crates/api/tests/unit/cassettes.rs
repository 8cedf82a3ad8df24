use serde_json::json;

use super::*;

fn document() -> Value {
    json!({
        "format": "roundhouse.cassette", "version": 1, "task_id": "task", "turn_id": TurnId::new(),
        "prompt": {
            "system": "s", "options": {"max_turns": 3},
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        },
        "steps": [{"model": "m", "text": "Hello."}], "outcome": {"state": "completed", "text": "Hello."},
    })
}

fn parse(document: &Value) -> Result<Cassette, String> {
    serde_json::from_str(&document.to_string()).map_err(|error| error.to_string())
}

/// The document with one member changed.
fn with(pointer: &str, value: Value) -> Value {
    let mut document = document();
    *document.pointer_mut(pointer).unwrap() = value;
    document
}

#[test]
fn a_cassette_is_written_as_it_was_read() {
    let cassette = parse(&document()).unwrap();
    let written = serde_json::to_string(&cassette).unwrap();
    assert_eq!(serde_json::from_str::<Cassette>(&written).unwrap(), cassette);
    // Also out of a value, and in a request.
    assert_eq!(serde_json::from_value::<Cassette>(document()).unwrap().prompt, cassette.prompt);
    let run = json!({"cassette": document(), "with": {"model": "other"}}).to_string();
    let run: RunCassette = serde_json::from_str(&run).unwrap();
    assert_eq!((run.cassette.steps, run.with.model.as_deref()), (cassette.steps, Some("other")));
}

#[test]
fn another_format_or_version_is_named_before_any_field() {
    let other = json!({"format": "roundhouse.cassette", "version": 2, "reels": []});
    assert!(parse(&other).unwrap_err().contains("its `version` is 2"));
    for other in [json!({}), json!({"format": "tape", "version": 1}), json!({"version": 1})] {
        assert!(parse(&other).unwrap_err().contains("`format` must be `roundhouse.cassette`"), "{other}");
    }
    for pointer in ["/format", "/version"] {
        let error = parse(&with(pointer, json!(vec![7; 100_000]))).unwrap_err();
        assert!(error.contains(&pointer[1..]) && error.len() < 300, "{error:.500}");
    }
    assert!(parse(&with("/version", json!("1"))).unwrap_err().contains("its `version` is \"1\""));
}

#[test]
fn what_is_no_cassette_is_refused_and_located() {
    for (pointer, value, expected) in [
        ("/turn_id", json!("turn"), "column"),
        ("/prompt/messages", json!([]), "`prompt.messages`"),
        ("/prompt/messages/0/role", json!("judge"), "judge"),
        ("/steps", json!({}), "column"),
        ("/steps", json!(vec![json!({"model": "m"}); MAX_STEPS + 1]), "1000 `steps`"),
        ("/outcome/state", json!("lost"), "lost"),
    ] {
        let error = parse(&with(pointer, value)).unwrap_err();
        assert!(error.contains(expected), "{pointer}: {error}");
    }
    let mut rules = document();
    rules["expect"] = json!([{"rule": "contains", "text": ""}]);
    assert!(parse(&rules).unwrap_err().contains("1 to 4096 bytes"));
    let text = document().to_string();
    assert!(serde_json::from_str::<Cassette>(&text[..text.len() - 2]).is_err());
}

#[test]
fn nesting_without_end_is_refused() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let text = json!({"calls": [{"tool": "t", "input": 7}], "model": "m"}).to_string().replace('7', &deep);
    let text = with("/steps", json!([8])).to_string().replace("[8]", &format!("[{text}]"));
    assert!(serde_json::from_str::<Cassette>(&text).unwrap_err().to_string().contains("recursion limit"));
}
