//! JSON-RPC 2.0, as the Agent Client Protocol uses it: messages are parsed here, and nowhere else.

use api::ErrorCode;
use serde_json::{Value, json};

use crate::client::ClientError;

/// A message of the client.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// The answer to a request of ours.
    Answer {
        id: Value,
        answer: Answer,
    },
    /// No valid message; the error is the answer to the request with this id, if that is known.
    Invalid {
        id: Value,
        error: RpcError,
    },
}

/// The result of a request, or the client's error.
pub(super) type Answer = Result<Value, Value>;

/// An error as the protocol has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RpcError {
    code: i64,
    message: String,
    data: Option<Value>,
}

impl RpcError {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(super) fn parse(message: impl Into<String>) -> Self {
        Self::new(-32700, message)
    }

    pub(super) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(-32600, message)
    }

    pub(super) fn method_not_found(method: &str) -> Self {
        Self::new(-32601, format!("there is no method `{method}` here"))
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(-32603, message)
    }

    /// A session, or something else that the client names, does not exist.
    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(-32002, message)
    }

    /// Adds what a program can use.
    pub(super) fn with_data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    fn to_json(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let (Some(data), Some(fields)) = (&self.data, error.as_object_mut()) {
            fields.insert("data".to_owned(), data.clone());
        }
        error
    }
}

impl From<ClientError> for RpcError {
    fn from(error: ClientError) -> Self {
        let ClientError::Refused { code, message } = &error else {
            return Self::internal(format!("{:#}", anyhow::Error::new(error)));
        };
        let message = message.clone();
        let translated = match code {
            ErrorCode::InvalidRequest | ErrorCode::ModelNotPermitted | ErrorCode::PayloadTooLarge => {
                Self::invalid_params(message)
            }
            ErrorCode::TaskNotFound => Self::not_found(message),
            _ => Self::internal(message),
        };
        translated.with_data(json!({"code": code}))
    }
}

impl From<anyhow::Error> for RpcError {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<ClientError>() {
            Ok(error) => error.into(),
            Err(error) => Self::internal(format!("{error:#}")),
        }
    }
}

/// Parses a line. A blank one is no message.
pub(super) fn parse(line: &[u8]) -> Option<Incoming> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return None;
    }
    let invalid = |id, error| Incoming::Invalid { id, error };
    let mut message = match serde_json::from_slice(line) {
        Ok(Value::Object(message)) => message,
        Ok(_) => {
            let error = RpcError::invalid_request("a message is one object; there are no batches");
            return Some(invalid(Value::Null, error));
        }
        Err(error) => {
            return Some(invalid(Value::Null, RpcError::parse(format!("the line is no JSON: {error}"))));
        }
    };
    let id = message.remove("id");
    let has_valid_id =
        id.as_ref().is_none_or(|id| id.is_null() || id.is_string() || id.is_i64() || id.is_u64());
    let answered_id = id.clone().filter(|_| has_valid_id).unwrap_or_default();
    if !has_valid_id || message.get("jsonrpc").is_none_or(|version| version != "2.0") {
        let error = RpcError::invalid_request("`jsonrpc` must be \"2.0\", and `id` a string or an integer");
        return Some(invalid(answered_id, error));
    }
    let params = message.remove("params").unwrap_or_default();
    Some(match (message.remove("method"), id) {
        (Some(Value::String(method)), Some(id)) => Incoming::Request { id, method, params },
        (Some(Value::String(method)), None) => Incoming::Notification { method, params },
        (None, Some(id)) if message.contains_key("result") => {
            Incoming::Answer { id, answer: Ok(message.remove("result").unwrap_or_default()) }
        }
        (None, Some(id)) if message.contains_key("error") => {
            Incoming::Answer { id, answer: Err(message.remove("error").unwrap_or_default()) }
        }
        _ => invalid(
            answered_id,
            RpcError::invalid_request("a message has a `method`, a `result` or an `error`"),
        ),
    })
}

pub(super) fn request(id: u64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

pub(super) fn notification(method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()
}

pub(super) fn response(id: &Value, outcome: Result<Value, RpcError>) -> String {
    let message = match outcome {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error.to_json()}),
    };
    message.to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn code(line: &str) -> Option<i64> {
        match parse(line.as_bytes()) {
            Some(Incoming::Invalid { error, .. }) => Some(error.code),
            _ => None,
        }
    }

    #[test]
    fn messages_are_told_apart() {
        assert_eq!(parse(b" \t"), None);
        let request = br#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}"#;
        let expected = Incoming::Request { id: json!("a"), method: "m".into(), params: json!({"x": 1}) };
        assert_eq!(parse(request), Some(expected));
        let expected = Incoming::Notification { method: "m".into(), params: Value::Null };
        assert_eq!(parse(br#"{"jsonrpc":"2.0","method":"m"}"#), Some(expected));
        let expected = Incoming::Answer { id: json!(1), answer: Ok(Value::Null) };
        assert_eq!(parse(br#"{"jsonrpc":"2.0","id":1,"result":null}"#), Some(expected));
        let expected = Incoming::Answer { id: json!(1), answer: Err(json!({"code": 1})) };
        assert_eq!(parse(br#"{"jsonrpc":"2.0","id":1,"error":{"code":1}}"#), Some(expected));
    }

    #[test]
    fn what_is_no_message_is_refused_with_the_right_code() {
        for line in ["{", "hello", "\u{0}", "{\"jsonrpc\":\"2.0\"} {}"] {
            assert_eq!(code(line), Some(-32700), "{line}");
        }
        for line in [
            "[]",
            "1",
            r#"{"id":1,"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":[],"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":2}"#,
            r#"{"jsonrpc":"2.0","result":1}"#,
        ] {
            assert_eq!(code(line), Some(-32600), "{line}");
        }
        assert!(matches!(parse(&[0xff, 0xfe]), Some(Incoming::Invalid { .. })));
    }

    proptest! {
        #[test]
        fn no_line_breaks_the_parser(line in prop::collection::vec(any::<u8>(), 0..200)) {
            parse(&line);
        }
    }
}
