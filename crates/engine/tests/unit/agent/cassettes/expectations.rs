use serde_json::json;

use super::*;

fn passes(rule: Value, text: &str) -> bool {
    let run = Performed { text, tools: vec!["read_file"] };
    let result = check(serde_json::from_value(rule).unwrap(), &run);
    assert_eq!(result.passed, result.reason.is_none());
    result.passed
}

#[test]
fn each_rule_passes_and_fails() {
    for (rule, good, bad) in [
        (json!({"rule": "contains", "text": "grün"}), "Es ist grün.", "Es ist rot."),
        (json!({"rule": "lacks", "text": "rot"}), "Es ist grün.", "Es ist rot."),
        (json!({"rule": "matches", "pattern": "^\\d+ €$"}), "12 €", "twelve €"),
        (
            json!({"rule": "json_equals", "value": {"a": [1], "b": 2}}),
            " {\"b\":2.0,\"a\":[1]}\n",
            "{\"a\":[1]}",
        ),
        (json!({"rule": "json_equals", "value": null}), "null", "no JSON"),
    ] {
        assert!(passes(rule.clone(), good), "{rule}");
        assert!(!passes(rule.clone(), bad), "{rule}");
    }
    assert!(passes(json!({"rule": "calls", "tool": "read_file"}), ""));
    assert!(!passes(json!({"rule": "calls", "tool": "shell"}), ""));
    assert!(passes(json!({"rule": "never_calls", "tool": "shell"}), ""));
    assert!(!passes(json!({"rule": "never_calls", "tool": "read_file"}), ""));
}

#[test]
fn a_pattern_that_cannot_be_used_fails_and_says_why() {
    for pattern in ["(", "a{1000}{1000}{1000}", "(?=x)"] {
        let rule = serde_json::from_value(json!({"rule": "matches", "pattern": pattern})).unwrap();
        let result = check(rule, &Performed { text: "aaa", tools: Vec::new() });
        assert!(result.reason.unwrap().contains("cannot be used"), "{pattern}");
    }
}
