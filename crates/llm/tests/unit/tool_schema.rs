use proptest::prelude::*;

use super::*;

#[test]
fn a_plain_schema_stays_as_it_is() {
    let schema = json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where.", "minLength": 1},
            "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            "depth": {"type": ["integer", "null"], "default": 1},
        },
        "required": ["path"],
        "additionalProperties": false,
    });
    assert_eq!(normalised(&schema), schema);
}

#[test]
fn references_are_written_out_and_circles_end() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"who": {"$ref": "#/$defs/person", "description": "Whom."}, "far": {"$ref": "https://x.y/z"}},
        "$defs": {"person": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "boss": {"$ref": "#/$defs/person"}},
        }},
    });
    let normal = normalised(&schema);
    let text = normal.to_string();
    assert!(!text.contains("$ref") && !text.contains("$defs") && !text.contains("$schema"), "{text}");
    assert_eq!(normal["properties"]["who"]["description"], "Whom.");
    assert_eq!(normal["properties"]["who"]["properties"]["name"], json!({"type": "string"}));
    assert_eq!(normal["properties"]["far"], json!({}));
}

#[test]
fn a_reference_that_doubles_at_each_level_stays_small() {
    let level = |next: usize| {
        json!({"type": "object", "properties": {
            "a": {"$ref": format!("#/$defs/{next}")}, "b": {"$ref": format!("#/$defs/{next}")},
        }})
    };
    let defs: Map<String, Value> = (0..40).map(|at| (at.to_string(), level(at + 1))).collect();
    let schema = json!({"$ref": "#/$defs/0", "$defs": defs});
    assert!(normalised(&schema).to_string().len() <= MAX_SCHEMA_BYTES);
}

#[test]
fn alternatives_at_the_root_become_one_object() {
    let schema = json!({"oneOf": [
        {"properties": {"id": {"type": "string"}, "by": {"type": "string"}}, "required": ["id", "by"]},
        {"properties": {"name": {"type": "string"}, "by": {"type": "integer"}}, "required": ["name", "by"]},
    ]});
    assert_eq!(
        normalised(&schema),
        json!({
            "type": "object",
            "properties": {"id": {"type": "string"}, "by": {"type": "string"}, "name": {"type": "string"}},
            "required": ["by"],
        })
    );
}

#[test]
fn what_is_no_schema_becomes_one() {
    let any = json!({"type": "object", "properties": {}});
    for odd in
        [json!(null), json!(true), json!([]), json!("object"), json!({"type": "string"}), json!({"type": 7})]
    {
        assert_eq!(normalised(&odd), any, "{odd}");
    }
    assert_eq!(normalised(&json!({"type": "object", "properties": null, "required": null})), any);
    let odd = json!({"type": "object", "required": ["x", "a", "a"], "properties": {
        "a": true, "b": {"type": "array"}, "c": {"type": ["string", "text"], "enum": []}, "d e": {"type": "string"},
    }});
    assert_eq!(
        normalised(&odd),
        json!({"type": "object", "required": ["a"], "properties": {
            "a": {}, "b": {"type": "array", "items": {}}, "c": {"type": "string"},
        }})
    );
}

#[test]
fn a_schema_that_is_too_long_keeps_its_outline() {
    let long =
        json!({"type": "string", "description": "x".repeat(400), "enum": (0..200).collect::<Vec<_>>()});
    let properties: Map<String, Value> = (0..60).map(|at| (format!("p{at}"), long.clone())).collect();
    let normal = normalised(&json!({"type": "object", "properties": properties, "required": ["p0"]}));
    assert!(normal.to_string().len() <= MAX_SCHEMA_BYTES);
    assert_eq!(normal["properties"]["p0"], json!({"type": "string", "description": "x".repeat(400)}));
}

/// JSON that resembles schemas, both valid and malformed.
fn schemas() -> impl Strategy<Value = Value> {
    let keyword = prop::sample::select(vec![
        "type",
        "properties",
        "required",
        "items",
        "anyOf",
        "oneOf",
        "allOf",
        "enum",
        "$ref",
        "$defs",
        "const",
        "additionalProperties",
        "description",
        "format",
        "minimum",
        "not",
        "title",
        "a",
        "b c",
        "ü",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        prop::sample::select(vec!["object", "array", "string", "odd", "#", "#/$defs/a", "a"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(keyword.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The common requirements of all vendors.
fn check(schema: &Value, is_root: bool) -> Result<(), String> {
    let Value::Object(schema) = schema else { return Err(format!("not an object: {schema}")) };
    if is_root && schema.get("type") != Some(&json!("object")) {
        return Err("the root is no object".into());
    }
    if is_root
        && ["anyOf", "oneOf", "allOf", "enum", "not"].iter().any(|keyword| schema.contains_key(*keyword))
    {
        return Err("alternatives at the root".into());
    }
    if schema.keys().any(|keyword| keyword.starts_with('$')) {
        return Err("a keyword of documents".into());
    }
    let properties = match schema.get("properties") {
        None => Map::new(),
        Some(Value::Object(properties)) => properties.clone(),
        Some(other) => return Err(format!("properties: {other}")),
    };
    for (name, property) in &properties {
        if !is_property_name(name) {
            return Err(format!("a property called {name:?}"));
        }
        check(property, false)?;
    }
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !name.as_str().is_some_and(|name| properties.contains_key(name)) {
            return Err(format!("{name} is required"));
        }
    }
    if schema.get("type") == Some(&json!("array")) && !schema.contains_key("items") {
        return Err("an array of what?".into());
    }
    schema.get("items").map_or(Ok(()), |items| check(items, false))
}

proptest! {
    #[test]
    fn whatever_it_was_it_is_a_schema_that_vendors_take(schema in schemas()) {
        let normal = normalised(&schema);
        prop_assert_eq!(check(&normal, true), Ok(()), "{}", normal);
        // Normalization is idempotent.
        prop_assert_eq!(normalised(&normal), normal);
    }
}
