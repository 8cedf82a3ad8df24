//! The operations of the OpenAPI document, with the responses that it lists.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use api::ErrorCode;
use serde_json::Value;

/// A method of a path.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own that the document has")]
pub(crate) struct ApiOperation {
    pub(crate) method: String,
    /// The path in the router's syntax, with parameter names.
    pub(crate) path: String,
    /// The code of the response to an invalid key; `None` if the operation needs no key.
    pub(crate) invalid_key_code: Option<ErrorCode>,
    /// Whether an operator may make the call for a product.
    pub(crate) takes_operator: bool,
    pub(crate) has_body: bool,
    /// Whether it honours an `Idempotency-Key`.
    pub(crate) takes_key: bool,
    /// Whether a request has a body or parameters, which could be invalid.
    pub(crate) has_input: bool,
    /// Status and code of every response; no code for a success.
    pub(crate) responses: BTreeSet<(u16, Option<String>)>,
}

impl ApiOperation {
    /// Returns the path with every parameter replaced by `value`.
    pub(crate) fn path_with(&self, value: &str) -> String {
        let fill = |segment| if str::starts_with(segment, '{') { value } else { segment };
        self.path.split('/').map(fill).collect::<Vec<_>>().join("/")
    }
}

/// Returns all operations of the document.
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
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let responses = operation["responses"].as_object().unwrap();
    ApiOperation {
        method: method.to_uppercase(),
        // The router's syntax of a wildcard.
        path: path.replace("/proxy/{path}", "/proxy/{*path}"),
        invalid_key_code,
        takes_operator: operation["security"][1]["admin_key"].is_array(),
        has_body,
        takes_key: parameters.iter().any(|parameter| parameter["name"] == "Idempotency-Key"),
        has_input: has_body || operation["parameters"].is_array(),
        responses: responses.iter().flat_map(|(status, response)| response_codes(status, response)).collect(),
    }
}

/// Returns the status and codes of a response of the document. Its description names the codes.
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
