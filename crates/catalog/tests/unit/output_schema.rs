use serde_json::json;

use super::*;

fn schema() -> CompiledOutputSchema {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
        "required": ["city"],
        "additionalProperties": false,
    });
    CompiledOutputSchema::compile(&schema).unwrap()
}

#[test]
fn an_answer_must_be_json_alone_and_match() {
    let schema = schema();
    for answer in [r#"{"city": "Bonn"}"#, " {\"city\": \"Bonn\", \"days\": [1]}\n"] {
        assert_eq!(schema.validate(answer), Ok(()));
    }
    for (answer, error) in [
        ("", "- it is empty"),
        ("Here it is: {}", "not JSON alone: expected value at line 1 column 1"),
        ("```json\n{\"city\": \"Bonn\"}\n```", "not JSON alone"),
        (r#"{"city": "Bo"#, "EOF"),
        (r#"{"city": "Bonn"} and more"#, "trailing characters"),
        ("{}", "- at `/`: \"city\" is a required property"),
        (r#"{"city": 7}"#, "- at `/city`: it is not of type \"string\""),
        (r#"{"city": "Bonn", "days": [1, "x"]}"#, "- at `/days/1`: it is not of type \"integer\""),
    ] {
        let errors = schema.validate(answer).unwrap_err();
        assert!(errors.contains(error), "{answer}: {errors}");
    }
    let many = format!(r#"{{"city": "Bonn", "days": [{}"x"]}}"#, r#""x","#.repeat(1_000));
    assert!(schema.validate(&many).unwrap_err().len() < 2_000);
}

#[test]
fn an_invalid_schema_is_located() {
    for (schema, expected) in [
        (json!({"type": "object", "properties": {"a": {"type": "text"}}}), "`/properties/a/type`"),
        (json!({"type": "object", "required": "a"}), "`/required`"),
        (json!({"type": "object", "properties": {"a": {"$ref": "https://example.com/schema"}}}), "invalid"),
    ] {
        let error = CompiledOutputSchema::compile(&schema).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
