//! JSON-RPC 2.0, as the fronts whose protocols are based on it receive and send it. `POST /rpc` is not one of them:
//! its form is older.

use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use http_service::http::ApiError;
use serde_json::{Map, Value, json};

use super::AppState;
use super::admission::{BodyMemory, admit};

/// The body is not JSON.
const PARSE_ERROR: i64 = -32700;
/// The body is JSON, but no message.
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
pub(super) const INTERNAL_ERROR: i64 = -32603;

/// The most bytes of a request's id, which every answer to it repeats.
const MAX_ID_BYTES: usize = 256;

/// The id of a request: a text or an integer, as it was sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RequestId(Value);

impl RequestId {
    /// An id of a request of our own.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self(Value::String(text.into()))
    }

    /// The id in `value`, if it is one.
    pub(super) fn parse(value: Value) -> Option<Self> {
        let is_id = match &value {
            Value::String(text) => text.len() <= MAX_ID_BYTES,
            Value::Number(number) => number.is_i64() || number.is_u64(),
            _ => false,
        };
        is_id.then_some(Self(value))
    }

    /// The id, if it is a text.
    pub(super) fn as_text(&self) -> Option<&str> {
        self.0.as_str()
    }

    /// The id as JSON: `1` and `"1"` are two ids.
    pub(super) fn to_json(&self) -> String {
        self.0.to_string()
    }

    /// The id as a value.
    pub(super) const fn value(&self) -> &Value {
        &self.0
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    /// It wants an answer.
    Request { id: RequestId, method: String, params: Map<String, Value> },
    /// It wants none.
    Notification { method: String, params: Map<String, Value> },
    /// It is the answer to a request of the engine; `None` if that failed.
    Response { id: RequestId, result: Option<Value> },
}

/// Why a request is refused or failed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

impl Fault {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(super) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(INVALID_REQUEST, message)
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    /// The refusal of a method that does not exist.
    pub(super) fn unknown_method(method: &str) -> Self {
        let name: String = method.chars().take(64).collect();
        Self::new(METHOD_NOT_FOUND, format!("there is no method `{name}`"))
    }

    #[must_use]
    pub(super) fn with_data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }
}

/// The message of a body, or why it is none; and the memory of the body.
pub(super) struct RpcBody(pub(super) Result<Message, Fault>, pub(super) BodyMemory);

impl FromRequest<AppState> for RpcBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (message, memory) = admit(request, state, |body| Ok(parse(body))).await?;
        Ok(Self(message, memory))
    }
}

/// Parses a single message; a batch is refused.
pub(super) fn parse(body: &[u8]) -> Result<Message, Fault> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Fault::new(PARSE_ERROR, format!("the body is not valid JSON: {error}")))?;
    let mut fields = match value {
        Value::Object(fields) => fields,
        Value::Array(_) => return Err(Fault::invalid_request("batches are not supported; send one message")),
        _ => return Err(Fault::invalid_request("the body must be one JSON-RPC message, an object")),
    };
    if fields.get("jsonrpc").is_none_or(|version| version != "2.0") {
        return Err(Fault::invalid_request("`jsonrpc`: must be \"2.0\""));
    }
    let id = match fields.remove("id") {
        None => None,
        Some(id) => Some(RequestId::parse(id).ok_or_else(|| {
            Fault::invalid_request(format!(
                "`id`: must be an integer or a text of at most {MAX_ID_BYTES} bytes"
            ))
        })?),
    };
    let Some(method) = fields.remove("method") else { return parse_response(id, &mut fields) };
    let Value::String(method) = method else {
        return Err(Fault::invalid_request("`method`: must be a text"));
    };
    let params = match fields.remove("params") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(Fault::invalid_request("`params`: must be an object")),
    };
    Ok(match id {
        Some(id) => Message::Request { id, method, params },
        None => Message::Notification { method, params },
    })
}

fn parse_response(id: Option<RequestId>, fields: &mut Map<String, Value>) -> Result<Message, Fault> {
    let (result, has_error) = (fields.remove("result"), fields.contains_key("error"));
    match id {
        Some(id) if result.is_some() != has_error => Ok(Message::Response { id, result }),
        _ => Err(Fault::invalid_request("`method`: must be given")),
    }
}

/// The answer to a request that succeeded.
pub(super) fn result(id: &RequestId, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.value(), "result": result})
}

/// The answer to a request that is refused or failed; without an id if that of the request is not known.
pub(super) fn error(id: Option<&RequestId>, fault: &Fault) -> Value {
    let mut error = json!({"code": fault.code, "message": fault.message});
    if let (Some(data), Some(fields)) = (&fault.data, error.as_object_mut()) {
        fields.insert("data".to_owned(), data.clone());
    }
    json!({"jsonrpc": "2.0", "id": id.map(RequestId::value), "error": error})
}

/// A request of our own, or a notification if it has no id.
pub(super) fn call(id: Option<&RequestId>, method: &str, params: &Value) -> Value {
    let mut message = json!({"jsonrpc": "2.0", "method": method, "params": params});
    if let (Some(id), Some(fields)) = (id, message.as_object_mut()) {
        fields.insert("id".to_owned(), id.value().clone());
    }
    message
}

/// The response with `body`, a message.
pub(super) fn respond(status: StatusCode, body: Value) -> Response {
    (status, axum::Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use proptest::prelude::*;

    use super::*;

    fn code(body: &str) -> Option<i64> {
        parse(body.as_bytes()).err().map(|fault| fault.code)
    }

    #[test]
    fn a_body_is_one_message_or_refused() {
        for (body, expected) in [
            ("", Some(PARSE_ERROR)),
            ("{", Some(PARSE_ERROR)),
            ("\"a\"", Some(INVALID_REQUEST)),
            ("[]", Some(INVALID_REQUEST)),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, Some(INVALID_REQUEST)),
            (r#"{"id":1,"method":"ping"}"#, Some(INVALID_REQUEST)),
            (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, Some(INVALID_REQUEST)),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, Some(INVALID_REQUEST)),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, Some(INVALID_REQUEST)),
            (r#"{"jsonrpc":"2.0","id":[],"method":"ping"}"#, Some(INVALID_REQUEST)),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, Some(INVALID_REQUEST)),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#, Some(INVALID_REQUEST)),
            (r#"{"jsonrpc":"2.0","id":1}"#, Some(INVALID_REQUEST)),
            (r#"{"jsonrpc":"2.0","result":{}}"#, Some(INVALID_REQUEST)),
            (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#, Some(INVALID_REQUEST)),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, None),
            (r#"{"jsonrpc":"2.0","id":"a","error":{}}"#, None),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":null}"#, None),
            (r#"{"jsonrpc":"2.0","method":"ping"}"#, None),
        ] {
            assert_eq!(code(body), expected, "{body}");
        }
        let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(MAX_ID_BYTES + 1));
        assert_eq!(code(&long), Some(INVALID_REQUEST));
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(code(&deep), Some(PARSE_ERROR));
    }

    #[test]
    fn an_id_comes_back_as_it_was() {
        for id in [json!(1), json!("1"), json!(-7), json!(u64::MAX)] {
            let id = RequestId::parse(id).unwrap();
            assert_eq!(&result(&id, &json!({}))["id"], id.value());
        }
        assert_ne!(RequestId::parse(json!(1)).unwrap().to_json(), RequestId::text("1").to_json());
        assert_eq!(error(None, &Fault::invalid_request("no"))["id"], Value::Null);
    }

    proptest! {
        #[test]
        fn no_bytes_stop_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
