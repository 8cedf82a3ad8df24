//! Reads a request's JSON and tracks paths, so that errors have the format of the vendor's validation.

use serde_json::{Map, Value};

use crate::protocol::ApiError;

/// A value and its path, such as `messages[0].tool_calls[1].id`.
#[derive(Clone, Debug)]
pub(crate) struct Node<'a> {
    pub(crate) path: String,
    pub(crate) value: &'a Value,
}

impl<'a> Node<'a> {
    /// The body of the request.
    pub(crate) fn root(value: &'a Value) -> Self {
        Self { path: String::new(), value }
    }

    /// A member. `None` if it is missing or null.
    pub(crate) fn member(&self, name: &str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(Self { path: self.path_to(name), value })
    }

    /// A required member.
    pub(crate) fn required(&self, name: &str) -> Result<Self, ApiError> {
        self.member(name).ok_or_else(|| {
            let path = self.path_to(name);
            ApiError::invalid(format!("Missing required parameter: '{path}'."))
                .with_param(path)
                .with_code("missing_required_parameter")
        })
    }

    /// An object that may have only these members.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), ApiError> {
        let members = self.object()?;
        match members.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(unknown) => {
                let path = self.path_to(unknown);
                Err(ApiError::invalid(format!("Unknown parameter: '{path}'."))
                    .with_param(path)
                    .with_code("unknown_parameter"))
            }
        }
    }

    pub(crate) fn object(&self) -> Result<&'a Map<String, Value>, ApiError> {
        self.value.as_object().ok_or_else(|| self.wrong_type("an object"))
    }

    pub(crate) fn string(&self) -> Result<&'a str, ApiError> {
        self.value.as_str().ok_or_else(|| self.wrong_type("a string"))
    }

    pub(crate) fn boolean(&self) -> Result<bool, ApiError> {
        self.value.as_bool().ok_or_else(|| self.wrong_type("a boolean"))
    }

    pub(crate) fn integer(&self) -> Result<i64, ApiError> {
        self.value.as_i64().ok_or_else(|| self.wrong_type("an integer"))
    }

    /// A number within limits.
    pub(crate) fn number_within(&self, lowest: f64, highest: f64) -> Result<f64, ApiError> {
        let number = self.value.as_f64().ok_or_else(|| self.wrong_type("a decimal"))?;
        let (side, sign, limit, code) = if number < lowest {
            ("below minimum", ">=", lowest, "decimal_below_min_value")
        } else if number > highest {
            ("above maximum", "<=", highest, "decimal_above_max_value")
        } else {
            return Ok(number);
        };
        let detail =
            format!("decimal {side} value. Expected a value {sign} {limit}, but got {number} instead.");
        Err(self.invalid(&detail).with_code(code))
    }

    pub(crate) fn list(&self) -> Result<Vec<Self>, ApiError> {
        let values = self.value.as_array().ok_or_else(|| self.wrong_type("an array"))?;
        let node = |(index, value)| Self { path: format!("{}[{index}]", self.path), value };
        Ok(values.iter().enumerate().map(node).collect())
    }

    /// A list with at least one item.
    pub(crate) fn non_empty_list(&self) -> Result<Vec<Self>, ApiError> {
        let items = self.list()?;
        if items.is_empty() {
            let detail =
                "empty array. Expected an array with minimum length 1, but got an empty array instead.";
            return Err(self.invalid(detail).with_code("empty_array"));
        }
        Ok(items)
    }

    /// A string, which must be one of these.
    pub(crate) fn one_of(&self, choices: &[&str]) -> Result<&'a str, ApiError> {
        let text = self.string()?;
        if choices.contains(&text) {
            return Ok(text);
        }
        let quoted: Vec<String> = choices.iter().map(|choice| format!("'{choice}'")).collect();
        let supported = match quoted.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{}, and {last}", rest.join(", ")),
            _ => quoted.join(""),
        };
        Err(ApiError::invalid(format!("Invalid value: '{text}'. Supported values are: {supported}."))
            .with_param(&self.path)
            .with_code("invalid_value"))
    }

    /// An error that names this path.
    pub(crate) fn invalid(&self, detail: &str) -> ApiError {
        ApiError::invalid(format!("Invalid '{}': {detail}", self.path)).with_param(&self.path)
    }

    fn wrong_type(&self, expected: &str) -> ApiError {
        let got = match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(number) if number.is_f64() => "a decimal",
            Value::Number(_) => "an integer",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        let message =
            format!("Invalid type for '{}': expected {expected}, but got {got} instead.", self.path);
        ApiError::invalid(message).with_param(&self.path).with_code("invalid_type")
    }

    fn path_to(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

/// The last text of the last user message that has one.
pub(crate) fn last_user_text(body: &Value) -> String {
    let messages = body.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let text_of = |content: &Value| match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            parts.iter().rev().find_map(|part| part.get("text").and_then(Value::as_str).map(str::to_owned))
        }
        _ => None,
    };
    messages
        .iter()
        .rev()
        .filter(|message| message.get("role").and_then(Value::as_str) == Some("user"))
        .find_map(|message| message.get("content").and_then(text_of))
        .unwrap_or_default()
}
