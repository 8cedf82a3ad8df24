//! What the document promises, operation by operation.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use contract::ErrorCode;
use serde_json::Value;

/// One method of one path.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) method: String,
    /// With its parameters' names, as routes are written.
    pub(crate) path: String,
    /// The code that it answers without its key; none if it asks for none.
    pub(crate) unknown_key: Option<ErrorCode>,
    pub(crate) has_body: bool,
    /// Whether there is anything in a request that could be wrong.
    pub(crate) has_input: bool,
    /// Status and code of every answer; no code for a success.
    pub(crate) answers: BTreeSet<(u16, Option<String>)>,
}

impl Operation {
    /// The path with `value` in place of every parameter.
    pub(crate) fn filled(&self, value: &str) -> String {
        let fill = |segment| if str::starts_with(segment, '{') { value } else { segment };
        self.path.split('/').map(fill).collect::<Vec<_>>().join("/")
    }
}

/// All operations of the document.
pub(crate) fn operations() -> &'static [Operation] {
    static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| {
        let document = serde_json::to_value(crate::http::document()).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let all = paths.flat_map(|(path, item)| {
            item.as_object().unwrap().iter().map(|(method, operation)| read(method, path, operation))
        });
        all.collect()
    });
    &OPERATIONS
}

fn read(method: &str, path: &str, operation: &Value) -> Operation {
    let key = operation["security"][0].as_object().and_then(|keys| keys.keys().next());
    let unknown_key = key.map(|key| match key.as_str() {
        "admin_key" => ErrorCode::InvalidAdminKey,
        "platform_key" => ErrorCode::InvalidPlatformKey,
        _ => panic!("{method} {path}: an unknown key {key}"),
    });
    let has_body = operation["requestBody"].is_object();
    let responses = operation["responses"].as_object().unwrap();
    Operation {
        method: method.to_uppercase(),
        // The rest of a path, as the router has it.
        path: path.replace("/proxy/{path}", "/proxy/{*path}"),
        unknown_key,
        has_body,
        has_input: has_body || operation["parameters"].is_array(),
        answers: responses.iter().flat_map(|(status, response)| answers(status, response)).collect(),
    }
}

/// What one response of the document promises: its description names its codes.
fn answers(status: &str, response: &Value) -> Vec<(u16, Option<String>)> {
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
