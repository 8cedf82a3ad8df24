use serde_json::{Value, json};

use super::*;

fn parse(format: Value) -> Result<ResponseFormat, String> {
    serde_json::from_value(format).map_err(|error| error.to_string())
}

fn with_schema(schema: &Value) -> Result<ResponseFormat, String> {
    parse(json!({"type": "json_schema", "name": "answer", "schema": schema}))
}

/// A schema whose objects are nested `depth` deep.
fn nested(depth: usize) -> Value {
    (1..depth).fold(json!({"type": "object"}), |inner, _| json!({"type": "object", "not": inner}))
}

#[test]
fn a_form_has_a_type_a_name_and_a_schema() {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let format = with_schema(&schema).unwrap();
    assert_eq!((format.schema.as_value(), format.strict), (&schema, false));
    let json = json!({"type": "json_schema", "name": "a-B_9", "schema": schema, "strict": true});
    assert_eq!(json!(parse(json.clone()).unwrap()), json);
    for (member, value) in [
        ("type", json!("json_object")),
        ("name", json!("")),
        ("name", json!("x".repeat(65))),
        ("name", json!("two words")),
        ("schema", Value::Null),
        ("strict", json!("yes")),
    ] {
        let mut bad = json.clone();
        bad[member] = value;
        assert!(parse(bad).is_err(), "{member}");
    }
}

#[test]
fn a_schema_is_bounded_in_size_and_depth_and_describes_an_object() {
    assert!(with_schema(&nested(MAX_SCHEMA_DEPTH)).is_ok());
    assert!(with_schema(&nested(MAX_SCHEMA_DEPTH + 1)).unwrap_err().contains("32 deep"));
    let described = |bytes: usize| {
        let mut schema = json!({"type": "object", "description": ""});
        schema["description"] = json!("x".repeat(bytes - schema.to_string().len()));
        schema
    };
    assert!(with_schema(&described(MAX_SCHEMA_BYTES)).is_ok());
    assert!(with_schema(&described(MAX_SCHEMA_BYTES + 1)).unwrap_err().contains("16384 bytes"));
    for schema in [json!({}), json!(true), json!([]), json!({"type": "string"}), json!({"type": ["object"]})]
    {
        assert!(with_schema(&schema).unwrap_err().contains("`type` `object`"), "{schema}");
    }
}
