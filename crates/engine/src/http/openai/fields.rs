//! The fields of a request: each is taken, and what is left is refused by name.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::VendorError;

/// What a request was taken with although it has no effect. The response names it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::http) struct WithoutEffect(Vec<String>);

impl WithoutEffect {
    /// Adds a name, once.
    pub(in crate::http) fn add(&mut self, name: impl Into<String>) {
        let name = name.into();
        if !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    pub(in crate::http) fn extend(&mut self, others: Self) {
        for name in others.0 {
            self.add(name);
        }
    }

    /// The names as a text; `None` if there are none.
    pub(in crate::http) fn list(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join(", "))
    }
}

/// Fields that were not taken yet.
pub(in crate::http) struct Fields {
    fields: Map<String, Value>,
    /// The path before their names, such as `stream_options.`.
    path: String,
}

impl Fields {
    pub(in crate::http) fn new(fields: Map<String, Value>) -> Self {
        Self { fields, path: String::new() }
    }

    /// The name of a field, from the body's root on.
    pub(in crate::http) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// Takes a field. `null` counts as absent.
    pub(in crate::http) fn take(&mut self, field: &str) -> Option<Value> {
        self.fields.remove(field).filter(|value| !value.is_null())
    }

    /// Takes a field of a type of the API, whose error says what it must be.
    pub(in crate::http) fn parse<T: DeserializeOwned>(
        &mut self,
        field: &str,
    ) -> Result<Option<T>, VendorError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        let invalid = |error: serde_json::Error| VendorError::invalid(&self.name(field), error);
        serde_json::from_value(value).map(Some).map_err(invalid)
    }

    pub(in crate::http) fn text(&mut self, field: &str) -> Result<Option<String>, VendorError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(VendorError::invalid(&self.name(field), "must be a string")),
        }
    }

    pub(in crate::http) fn flag(&mut self, field: &str) -> Result<Option<bool>, VendorError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(VendorError::invalid(&self.name(field), "must be true or false")),
        }
    }

    pub(in crate::http) fn list(&mut self, field: &str) -> Result<Option<Vec<Value>>, VendorError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(VendorError::invalid(&self.name(field), "must be a list")),
        }
    }

    pub(in crate::http) fn object(&mut self, field: &str) -> Result<Option<Self>, VendorError> {
        match self.take(field) {
            None => Ok(None),
            Some(value) => object_of(value, &self.name(field)).map(Some),
        }
    }

    /// Takes a field that may only have a value that changes nothing.
    pub(in crate::http) fn neutral(
        &mut self,
        field: &str,
        allowed: &[Value],
        reason: &str,
    ) -> Result<(), VendorError> {
        match self.take(field) {
            Some(value) if !allowed.iter().any(|allowed| is_same(allowed, &value)) => {
                Err(VendorError::unsupported(&self.name(field), reason))
            }
            _ => Ok(()),
        }
    }

    /// Takes fields that have no effect here, and adds those that were sent to `without_effect`.
    pub(in crate::http) fn hints(&mut self, names: &[&str], without_effect: &mut WithoutEffect) {
        for name in names {
            self.hint_unless(name, &[], without_effect);
        }
    }

    /// Takes a field that has no effect here. A value that would change nothing anyway need not be named.
    pub(in crate::http) fn hint_unless(
        &mut self,
        name: &str,
        neutral: &[Value],
        without_effect: &mut WithoutEffect,
    ) {
        if self.take(name).is_some_and(|value| !neutral.contains(&value)) {
            without_effect.add(without_places(&self.name(name)));
        }
    }

    /// Takes fields that only repeat what an answer had beside its content.
    pub(in crate::http) fn discard(&mut self, names: &[&str]) {
        for name in names {
            self.take(name);
        }
    }

    /// Refuses the fields that were not taken, unless they are null.
    pub(in crate::http) fn finish(mut self) -> Result<(), VendorError> {
        self.fields.retain(|_, value| !value.is_null());
        match self.fields.keys().next() {
            Some(name) => Err(VendorError::unknown(&self.name(name))),
            None => Ok(()),
        }
    }
}

/// The fields of `value`, which is called `name`.
pub(in crate::http) fn object_of(value: Value, name: &str) -> Result<Fields, VendorError> {
    match value {
        Value::Object(fields) => Ok(Fields { fields, path: format!("{name}.") }),
        _ => Err(VendorError::invalid(name, "must be an object")),
    }
}

/// The name of a field for all elements of a list: `messages[].name` instead of `messages[7].name`, so that a long
/// list does not become a long header.
fn without_places(name: &str) -> String {
    name.chars()
        .fold((String::new(), false), |(mut text, is_place), each| {
            let is_place = is_place && each != ']';
            if !is_place {
                text.push(each);
            }
            (text, is_place || each == '[')
        })
        .0
}

/// Whether two values are equal; numbers by their value, however they are written.
fn is_same(allowed: &Value, value: &Value) -> bool {
    match (allowed.as_f64(), value.as_f64()) {
        #[expect(clippy::float_cmp, reason = "a value that changes nothing is exactly one of these")]
        (Some(allowed), Some(value)) => allowed == value,
        _ => allowed == value,
    }
}
