//! What the document promises, operation by operation.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use api::ErrorCode;
use serde_json::Value;

/// One method of one path.
#[derive(Clone, Debug)]
pub(crate) struct ApiOperation {
    pub(crate) method: String,
    /// With its parameters' names, as routes are written.
    pub(crate) path: String,
    /// The code that it answers without its key; none if it asks for none.
    pub(crate) invalid_key_code: Option<ErrorCode>,
    pub(crate) has_body: bool,
    /// Whether there is anything in a request that could be wrong.
    pub(crate) has_input: bool,
    /// Status and code of every answer; no code for a success.
    pub(crate) responses: BTreeSet<(u16, Option<String>)>,
}

impl ApiOperation {
    /// The path with `value` in place of every parameter.
    pub(crate) fn path_with(&self, value: &str) -> String {
        let fill = |segment| if str::starts_with(segment, '{') { value } else { segment };
        self.path.split('/').map(fill).collect::<Vec<_>>().join("/")
    }
}

/// All operations of the document.
pub(crate) fn api_operations() -> &'static [ApiOperation] {
    static OPERATIONS: LazyLock<Vec<ApiOperation>> = LazyLock::new(|| {
        let document = serde_json::to_value(crate::http::document()).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let all = paths.flat_map(|(path, item)| {
            item.as_object()
                .unwrap()
                .iter()
                .map(|(method, operation)| parse_operation(method, path, operation))
        });
        all.collect()
    });
    &OPERATIONS
}

fn parse_operation(method: &str, path: &str, operation: &Value) -> ApiOperation {
    let key = operation["security"][0].as_object().and_then(|keys| keys.keys().next());
    let invalid_key_code = key.map(|key| match key.as_str() {
        "admin_key" => ErrorCode::InvalidAdminKey,
        "platform_key" => ErrorCode::InvalidPlatformKey,
        _ => panic!("{method} {path}: an unknown key {key}"),
    });
    let has_body = operation["requestBody"].is_object();
    let responses = operation["responses"].as_object().unwrap();
    ApiOperation {
        method: method.to_uppercase(),
        // The rest of a path, as the router has it.
        path: path.replace("/proxy/{path}", "/proxy/{*path}"),
        invalid_key_code,
        has_body,
        has_input: has_body || operation["parameters"].is_array(),
        responses: responses.iter().flat_map(|(status, response)| response_codes(status, response)).collect(),
    }
}

/// What one response of the document promises: its description names its codes.
fn response_codes(status: &str, response: &Value) -> Vec<(u16, Option<String>)> {
    let status: u16 = status.parse().unwrap();
    if status < 300 {
        return vec![(status, None)];
    }
    let quoted = response["description"].as_str().unwrap().split('`').skip(1).step_by(2);
    let codes = quoted.filter(|text| text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'));
    let codes: Vec<_> = codes
        .map(|code| {
            let known: ErrorCode =
                serde_json::from_value(code.into()).unwrap_or_else(|_| panic!("no such code: {code}"));
            assert_eq!(known.status(), status, "{code} has another status");
            (status, Some(code.to_owned()))
        })
        .collect();
    assert!(!codes.is_empty(), "{response} names no code");
    codes
}
