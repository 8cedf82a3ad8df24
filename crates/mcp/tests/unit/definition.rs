//! Tests of definitions as servers send them.

use proptest::prelude::*;
use serde_json::json;
use testkit::LogCapture;

use super::*;

fn names(listed: &[Value]) -> Vec<String> {
    validate_tools("server", ServerOrigin::Catalog, listed).into_iter().map(|tool| tool.name).collect()
}

#[test]
fn a_definition_is_taken_as_it_is() {
    let schema = json!({"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]});
    let tool = json!({
        "name": "search.web/v2", "title": "Search", "description": "Searches.", "inputSchema": schema,
        "annotations": {"readOnlyHint": true, "idempotentHint": true},
    });
    let name = "search.web/v2".to_owned();
    let (read_only, idempotent) = (true, true);
    let expected =
        ToolDefinition { name, description: "Searches.".into(), input_schema: schema, read_only, idempotent };
    assert_eq!(validate_tools("server", ServerOrigin::Catalog, &[tool]), [expected]);
}

#[test]
fn all_together_have_a_bound() {
    let large = |n: usize| json!({"name": format!("t{n}"), "inputSchema": {"type": "object", "x": "x".repeat(60_000)}});
    let listed: Vec<Value> = (0..100).map(large).collect();
    let accepted = names(&listed);
    assert!((30..=34).contains(&accepted.len()), "{}", accepted.len());
}

#[test]
fn a_schema_without_a_type_is_one_for_objects() {
    let listed = [json!({"name": "t", "inputSchema": {"properties": {}}})];
    assert_eq!(
        validate_tools("server", ServerOrigin::Catalog, &listed)[0].input_schema,
        json!({"type": "object", "properties": {}})
    );
}

#[test]
fn faulty_definitions_get_a_short_line_of_the_log_however_many_there_are() {
    let log = LogCapture::start(tracing::Level::TRACE);
    let name = |n: usize| format!("t{n}{}", "x".repeat(MAX_NAME_CHARS - 5));
    let schemas = (0..400).map(|n| json!({"name": name(n), "inputSchema": {"type": "array"}}));
    let nameless = (0..400).map(|n| json!({"name": format!("\u{1b}{n}{}", "\u{10ffff}".repeat(10_000))}));
    let listed: Vec<Value> = schemas.chain(nameless).collect();
    assert_eq!(validate_tools("server", ServerOrigin::Catalog, &listed).len(), 400);
    let log = log.text();
    assert_eq!(log.lines().count(), 2, "{log}");
    assert_eq!(log.matches("count=400").count(), 2, "{log}");
    assert!(log.contains(&name(0)) && !log.contains(&name(MAX_LOGGED_FAULTS)), "{log}");
    assert!(log.lines().all(|line| line.len() < 16 * 1024));
}

#[test]
fn a_users_tool_whose_schema_hides_text_is_left_out() {
    let listed = |property: Value| {
        let schema = json!({"type": "object", "properties": {"q": property}});
        [json!({"name": "t", "inputSchema": schema})]
    };
    let taken = |origin, property: Value| validate_tools("server", origin, &listed(property)).len();
    let smuggled = "a\u{e0041}";
    for property in [
        json!({"default": smuggled}),
        json!({"examples": ["fine", "a\u{fe01}"]}),
        json!({"enum": ["a\u{e0101}"]}),
        json!({"const": {"deep": "a\u{34f}"}}),
        json!({"properties": {"\u{3164}": {}}}),
        json!({"pattern": "a\u{1b}[2K"}),
    ] {
        assert_eq!(taken(ServerOrigin::User, property.clone()), 0, "{property}");
        assert_eq!(taken(ServerOrigin::Catalog, property), 1);
    }
    let described = json!({"description": smuggled, "default": "Größe\n見る"});
    assert_eq!(taken(ServerOrigin::User, described), 1);
    assert!(!is_valid_name("to\u{3164}ol"));
}

#[test]
fn a_users_schema_is_not_nested_too_deep() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |value, _| json!([value]));
    let taken = |origin, levels| {
        let schema = json!({"type": "object", "x": nested(levels)});
        validate_tools("server", origin, &[json!({"name": "t", "inputSchema": schema})]).len()
    };
    let most = MAX_USER_SCHEMA_DEPTH - 1;
    assert_eq!([taken(ServerOrigin::User, most), taken(ServerOrigin::User, most + 1)], [1, 0]);
    assert_eq!(taken(ServerOrigin::Catalog, most + 1), 1);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        Just(Value::from("object")),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let key =
            prop_oneof!["name", "description", "inputSchema", "annotations", "type", "properties", ".*"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_is_listed_what_is_taken_can_be_used(listed in prop::collection::vec(any_json(), 0..8)) {
        let accepted = validate_tools("server", ServerOrigin::Catalog, &listed);
        let mut names: Vec<&str> = accepted.iter().map(|tool| tool.name.as_str()).collect();
        prop_assert!(names.iter().all(|name| is_valid_name(name)));
        prop_assert!(accepted.iter().all(|tool| tool.input_schema["type"] == "object"));
        prop_assert!(accepted.iter().all(|tool| tool.size() <= MAX_TOOL_BYTES && tool.description.len() <= MAX_DESCRIPTION_BYTES));
        names.sort_unstable();
        names.dedup();
        prop_assert_eq!(names.len(), accepted.len());
    }

    #[test]
    fn one_bad_tool_costs_no_other(bad in any_json()) {
        let good = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
        let accepted = names(&[good("first-of-all"), bad, good("last-of-all")]);
        prop_assert_eq!(accepted.first().map(String::as_str), Some("first-of-all"));
        prop_assert_eq!(accepted.last().map(String::as_str), Some("last-of-all"));
    }
}
