//! A schema for the answer, beside tools and without them.

use pretty_assertions::assert_eq;

use super::super::ToolSpec;
use super::tests::{body, request};
use super::*;

#[test]
fn a_schema_stands_beside_tools_only_for_models_that_take_both() {
    let format = super::super::answer_tool::tests::format(false);
    let tool =
        ToolSpec { name: "a".into(), description: "b".into(), input_schema: json!({"type": "object"}) };
    let (messages, tools) = ([Message::user("hi")], [tool.into()]);
    for (model, allow_tool_calls, is_native, declares_tools) in [
        ("gemini-3-pro", true, true, true),
        ("gemini-3-pro", false, true, true),
        ("gemini-2.5-flash", true, false, true),
        ("gemini-2.5-flash", false, true, false),
    ] {
        let request = Request { allow_tool_calls, output: Some(&format), ..request(&messages, &tools) };
        let body = body(&ModelProfile::for_tests(model), &request);
        let config = &body["generationConfig"];
        let expected =
            if is_native { json!([format.schema, "application/json"]) } else { json!([null, null]) };
        assert_eq!(json!([config["responseJsonSchema"], config["responseMimeType"]]), expected, "{model}");
        assert_eq!(body["tools"].is_array(), declares_tools, "{model}");
        assert_eq!(takes_schema(model, &request), is_native);
    }
}
