//! Reads a request's JSON and tracks paths, so that errors have the format of the vendor's parser. Paths use the
//! field names of the underlying protocol buffers, as in `tools[0].function_declarations`.

use serde_json::{Map, Value};

use super::error::{invalid, invalid_field};
use crate::protocol::ApiError;

/// A value and its path.
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

    /// A member. `None` if it is missing or null.
    pub(super) fn member(&self, name: &str) -> Option<Self> {
        let value = field(self.value, name).filter(|value| !value.is_null())?;
        let name = snake_case(name);
        let path = if self.path.is_empty() { name } else { format!("{}.{name}", self.path) };
        Some(Self { path, value })
    }

    /// An object that may have only these members.
    pub(super) fn only(&self, known: &[&str]) -> Result<&'a Map<String, Value>, ApiError> {
        let members = self.object()?;
        let is_known = |name: &str| known.iter().any(|known| *known == name || snake_case(known) == name);
        match members.keys().find(|name| !is_known(name)) {
            None => Ok(members),
            Some(unknown) => Err(self.unknown_name(unknown, "Cannot find field.")),
        }
    }

    pub(super) fn object(&self) -> Result<&'a Map<String, Value>, ApiError> {
        self.value.as_object().ok_or_else(|| self.wrong_type("TYPE_MESSAGE"))
    }

    pub(super) fn string(&self) -> Result<&'a str, ApiError> {
        self.value.as_str().ok_or_else(|| self.wrong_type("TYPE_STRING"))
    }

    pub(super) fn boolean(&self) -> Result<bool, ApiError> {
        self.value.as_bool().ok_or_else(|| self.wrong_type("TYPE_BOOL"))
    }

    pub(super) fn integer(&self) -> Result<i64, ApiError> {
        self.value.as_i64().ok_or_else(|| self.wrong_type("TYPE_INT32"))
    }

    pub(super) fn number(&self) -> Result<f64, ApiError> {
        self.value.as_f64().ok_or_else(|| self.wrong_type("TYPE_FLOAT"))
    }

    pub(super) fn list(&self) -> Result<Vec<Self>, ApiError> {
        let values = self.value.as_array().ok_or_else(|| self.wrong_type("TYPE_MESSAGE"))?;
        let node = |(index, value)| Self { path: format!("{}[{index}]", self.path), value };
        Ok(values.iter().enumerate().map(node).collect())
    }

    /// A value of an enumeration, in upper case. The vendor accepts either case.
    pub(super) fn one_of(&self, kind: &str, choices: &[&str]) -> Result<String, ApiError> {
        let text = self.string()?.to_ascii_uppercase();
        if choices.contains(&text.as_str()) {
            return Ok(text);
        }
        Err(self.wrong_type(&format!("type.googleapis.com/google.ai.generativelanguage.v1beta.{kind}")))
    }

    /// An error of the validation after parsing, which names this path.
    pub(super) fn violation(&self, detail: &str) -> ApiError {
        invalid(format!("* GenerateContentRequest.{}: {detail}\n", self.path))
    }

    /// An error about the name of a member.
    pub(super) fn unknown_name(&self, name: &str, reason: &str) -> ApiError {
        let location = if self.path.is_empty() { String::new() } else { format!(" at '{}'", self.path) };
        invalid_field(
            &self.path,
            format!("Invalid JSON payload received. Unknown name \"{name}\"{location}: {reason}"),
        )
    }

    fn wrong_type(&self, expected: &str) -> ApiError {
        invalid_field(&self.path, format!("Invalid value at '{}' ({expected}), {}", self.path, self.value))
    }
}

/// A field by its JSON name. The vendor also accepts the protocol buffers' names, some of which its SDK sends.
pub(super) fn field<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.get(name).or_else(|| object.get(snake_case(name)))
}

fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len());
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}

/// The parts of a content.
pub(super) fn parts(content: &Value) -> &[Value] {
    content.get("parts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice)
}

/// Whether a content is the model's. A content without a role is the user's.
pub(super) fn is_model(content: &Value) -> bool {
    content.get("role").and_then(Value::as_str) == Some("model")
}

/// The members of this name in the parts of a content.
pub(super) fn members_of_parts<'a>(content: &'a Value, name: &'a str) -> impl Iterator<Item = &'a Value> {
    parts(content).iter().filter_map(move |part| field(part, name))
}

/// The last text of the last user content that has one.
pub(super) fn last_user_text(body: &Value) -> String {
    let contents = body.get("contents").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let users = contents.iter().rev().filter(|content| !is_model(content));
    let text = |content: &'_ Value| members_of_parts(content, "text").last()?.as_str().map(str::to_owned);
    users.into_iter().find_map(text).unwrap_or_default()
}
