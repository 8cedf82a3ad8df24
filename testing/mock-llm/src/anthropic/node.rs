//! Reads a request's JSON and tracks paths, so that errors have the format of the vendor's validation.

use serde_json::{Map, Value};

use crate::protocol::ApiError;

/// A value and its path, such as `messages.0.content.1.text`.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    pub(super) path: String,
    pub(super) value: &'a Value,
}

impl<'a> Node<'a> {
    /// The body of the request.
    pub(super) fn root(value: &'a Value) -> Self {
        Self { path: String::new(), value }
    }

    /// An error that names this path.
    pub(super) fn error(&self, message: &str) -> ApiError {
        if self.path.is_empty() {
            ApiError::invalid(message)
        } else {
            ApiError::invalid(format!("{}: {message}", self.path))
        }
    }

    /// The same value with a longer path: the vendor's validation names the variant that it tried.
    pub(super) fn as_variant(&self, variant: &str) -> Self {
        Self { path: self.path_to(variant), value: self.value }
    }

    /// A member. `None` if it is missing or null.
    pub(super) fn member(&self, name: &str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(Self { path: self.path_to(name), value })
    }

    /// A required member.
    pub(super) fn required(&self, name: &str) -> Result<Self, ApiError> {
        self.member(name).ok_or_else(|| ApiError::invalid(format!("{}: Field required", self.path_to(name))))
    }

    /// An object that may have only these members.
    pub(super) fn only(&self, known: &[&str]) -> Result<&'a Map<String, Value>, ApiError> {
        let members = self.object()?;
        match members.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(members),
            Some(unknown) => {
                let path = self.path_to(unknown);
                Err(ApiError::invalid(format!("{path}: Extra inputs are not permitted")))
            }
        }
    }

    pub(super) fn object(&self) -> Result<&'a Map<String, Value>, ApiError> {
        self.value.as_object().ok_or_else(|| self.error("Input should be a valid dictionary"))
    }

    pub(super) fn string(&self) -> Result<&'a str, ApiError> {
        self.value.as_str().ok_or_else(|| self.error("Input should be a valid string"))
    }

    pub(super) fn integer(&self) -> Result<i64, ApiError> {
        self.value.as_i64().ok_or_else(|| self.error("Input should be a valid integer"))
    }

    pub(super) fn number(&self) -> Result<f64, ApiError> {
        self.value.as_f64().ok_or_else(|| self.error("Input should be a valid number"))
    }

    pub(super) fn boolean(&self) -> Result<bool, ApiError> {
        self.value.as_bool().ok_or_else(|| self.error("Input should be a valid boolean"))
    }

    pub(super) fn list(&self) -> Result<Vec<Self>, ApiError> {
        let values = self.value.as_array().ok_or_else(|| self.error("Input should be a valid list"))?;
        Ok(values
            .iter()
            .enumerate()
            .map(|(index, value)| Self { path: self.path_to(&index.to_string()), value })
            .collect())
    }

    /// A string, which must be one of these.
    pub(super) fn one_of(&self, choices: &[&str]) -> Result<&'a str, ApiError> {
        let text = self.string()?;
        if choices.contains(&text) {
            return Ok(text);
        }
        Err(self.error(&format!("Input should be {}", quoted(choices, " or "))))
    }

    /// The `type` of a tagged object, which must be one of these.
    pub(super) fn tag(&self, choices: &[&str]) -> Result<&'a str, ApiError> {
        self.object()?;
        let tag = self.value.get("type").and_then(Value::as_str);
        match tag {
            Some(tag) if choices.contains(&tag) => Ok(tag),
            Some(tag) => Err(self.error(&format!(
                "Input tag '{tag}' found using 'type' does not match any of the expected tags: {}",
                quoted(choices, ", ")
            ))),
            None => Err(ApiError::invalid(format!("{}: Field required", self.path_to("type")))),
        }
    }

    fn path_to(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

fn quoted(choices: &[&str], last_separator: &str) -> String {
    let quoted: Vec<String> = choices.iter().map(|choice| format!("'{choice}'")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{}{last_separator}{last}", rest.join(", ")),
        _ => quoted.join(""),
    }
}

/// A content as blocks. The vendor defines a string as a shorthand for one text block.
pub(super) fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::Array(blocks) => blocks.clone(),
        Value::String(text) => vec![serde_json::json!({"type": "text", "text": text})],
        _ => Vec::new(),
    }
}

/// The `type` of a block.
pub(super) fn block_type(block: &Value) -> &str {
    block.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The last text block of the last user message that has one.
pub(super) fn last_user_text(body: &Value) -> String {
    let messages = body.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    messages
        .iter()
        .rev()
        .filter(|message| message.get("role").and_then(Value::as_str) == Some("user"))
        .filter_map(|message| message.get("content"))
        .flat_map(|content| blocks(content).into_iter().rev())
        .find_map(|block| block.get("text").and_then(Value::as_str).map(str::to_owned))
        .unwrap_or_default()
}
