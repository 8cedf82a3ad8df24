//! Validates the input of a call against the tool's JSON Schema. Invalid input never reaches the tool or the
//! person who would be asked for approval.

use std::sync::OnceLock;

use jsonschema::{PatternOptions, Validator};
use resources::text::shorten_to_chars;
use serde_json::Value;

use super::schema_cost::SchemaCost;

/// The maximum size of a schema, in bytes of JSON.
const MAX_SCHEMA_BYTES: usize = 256 * 1024;
/// The maximum number of errors reported to the model at once.
const MAX_REPORTED_ERRORS: usize = 5;
/// The maximum length of one reported error, in characters.
const MAX_ERROR_CHARS: usize = 300;
/// The maximum memory of a compiled pattern of a schema, in bytes.
const MAX_PATTERN_BYTES: usize = 1024 * 1024;

/// The schema of a tool's input, compiled at first use.
#[derive(Debug, Default)]
pub struct Schema(OnceLock<Option<Compiled>>);

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Compiled {
    validator: Validator,
    cost: SchemaCost,
}

impl Schema {
    /// Compiles a schema at once.
    ///
    /// # Errors
    /// Why the schema is invalid, for a person.
    pub(crate) fn compiled(schema: &Value) -> Result<Self, String> {
        Ok(Self(OnceLock::from(Some(compile(schema)?))))
    }

    /// Validates `input` against `schema`, which must be the same in each call.
    ///
    /// # Errors
    /// Where the input does not conform and what is expected there, for the model.
    pub fn validate(&self, schema: &Value, input: &Value) -> Result<(), String> {
        let compiled = self.0.get_or_init(|| {
            let compiled = compile(schema);
            if let Err(reason) = &compiled {
                tracing::warn!(reason, "A tool's input is not validated: its schema is invalid.");
            }
            compiled.ok()
        });
        // A tool with an invalid schema has to parse its input just as carefully.
        let Some(Compiled { validator, cost }) = compiled else { return Ok(()) };
        if !cost.is_affordable(input) {
            return Err("the input is nested too deeply to be checked against its schema".into());
        }
        match error_lines(validator, input) {
            Some(errors) => Err(format!("the input does not match its schema:\n{errors}")),
            None => Ok(()),
        }
    }
}

impl Compiled {
    /// Where `value` does not conform and what is expected there; `None` if it conforms.
    pub(super) fn errors(&self, value: &Value) -> Option<String> {
        if !self.cost.is_affordable(value) {
            return Some("- it is nested too deeply to be checked against its schema".into());
        }
        error_lines(&self.validator, value)
    }
}

/// The first errors of `value`; `None` if there is none.
fn error_lines(validator: &Validator, value: &Value) -> Option<String> {
    let mut faults = validator.iter_errors(value);
    let mut errors: Vec<String> =
        faults.by_ref().take(MAX_REPORTED_ERRORS).map(|fault| error_line(&fault)).collect();
    if errors.is_empty() {
        return None;
    }
    if faults.next().is_some() {
        errors.push("- and more".into());
    }
    Some(errors.join("\n"))
}

fn compile(schema: &Value) -> Result<Compiled, String> {
    compile_or_locate(schema).map_err(|InvalidSchema { reason, .. }| reason)
}

/// Why a schema is invalid, and where if that is known.
#[derive(Debug)]
pub(super) struct InvalidSchema {
    /// The JSON Pointer of the invalid part; empty for the whole schema.
    pub(super) path: String,
    /// What is wrong with it, for a person.
    pub(super) reason: String,
}

impl From<String> for InvalidSchema {
    fn from(reason: String) -> Self {
        Self { path: String::new(), reason }
    }
}

/// Compiles a schema.
pub(super) fn compile_or_locate(schema: &Value) -> Result<Compiled, InvalidSchema> {
    let size = schema.to_string().len();
    if size > MAX_SCHEMA_BYTES {
        return Err(format!("it has {size} bytes; at most {MAX_SCHEMA_BYTES} are allowed").into());
    }
    let cost = SchemaCost::of_schema(schema)?;
    // Patterns are matched in linear time, and nothing is fetched.
    let patterns = PatternOptions::regex().size_limit(MAX_PATTERN_BYTES).dfa_size_limit(MAX_PATTERN_BYTES);
    let compiled = jsonschema::options().offline().with_pattern_options(patterns).build(schema);
    let validator = compiled.map_err(|error| InvalidSchema {
        path: truncated(&error.instance_path().to_string()),
        reason: truncated(&error.masked().to_string()),
    })?;
    Ok(Compiled { validator, cost })
}

/// Formats an error without the offending value: the model has it, and it may be long.
fn error_line(fault: &jsonschema::ValidationError<'_>) -> String {
    let path = fault.instance_path().to_string();
    let path = if path.is_empty() { "/" } else { &path };
    truncated(&format!("- at `{path}`: {}", fault.masked_with("it")))
}

fn truncated(text: &str) -> String {
    shorten_to_chars(text, MAX_ERROR_CHARS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn check(schema: &Value, input: &Value) -> Result<(), String> {
        Schema::default().validate(schema, input)
    }

    #[test]
    fn path_and_expectation_are_told() {
        let schema = json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 1},
                "days": {"type": "array", "items": {"enum": ["mon", "tue"]}},
            },
            "required": ["city"],
            "additionalProperties": false,
        });
        assert_eq!(check(&schema, &json!({"city": "Bonn", "days": ["mon"]})), Ok(()));
        let errors = check(&schema, &json!({"city": 1, "days": ["mon", "x".repeat(9_000)], "more": 1}));
        insta::assert_snapshot!(errors.unwrap_err(), @r#"
        the input does not match its schema:
        - at `/city`: it is not of type "string"
        - at `/days/1`: it is not one of "mon" or "tue"
        - at `/`: Additional properties are not allowed ('more' was unexpected)
        "#);
        let errors = check(&schema, &json!([])).unwrap_err();
        assert!(errors.contains("at `/`") && errors.contains("object"), "{errors}");
    }

    #[test]
    fn what_is_told_is_bounded() {
        let schema = json!({"type": "object", "additionalProperties": {"type": "string"}});
        let many: serde_json::Map<_, _> = (0..9).map(|number| (number.to_string(), json!(1))).collect();
        let errors = check(&schema, &Value::Object(many)).unwrap_err();
        assert_eq!(errors.lines().count(), 7, "{errors}");
        let long = json!({"x".repeat(50_000): 1});
        assert!(check(&schema, &long).unwrap_err().len() < 500);
    }

    #[test]
    fn a_hostile_schema_is_refused_or_harmless() {
        let nested = (0..100).fold(json!({}), |inner, _| json!({"anyOf": [inner]}));
        for schema in [
            json!({"$ref": "http://127.0.0.1:1/schema"}),
            json!({"$ref": "file:///etc/passwd"}),
            json!({"type": "object", "properties": {"a": {"pattern": "("}}}),
            json!({"type": "object", "properties": {"a": {"pattern": "(a{1000}){1000}"}}}),
            json!({"type": 1}),
            json!({"x": "y".repeat(300_000)}),
        ] {
            assert!(Schema::compiled(&schema).is_err(), "{schema}");
        }
        for schema in [json!({"$ref": "#"}), json!({"anyOf": [{"$ref": "#"}, {"type": "string"}]}), nested] {
            let _ = check(&schema, &json!({"a": [{"a": 1}]}));
        }
        let slow = json!({"properties": {"a": {"pattern": "^(a+)+$"}}});
        assert!(check(&slow, &json!({"a": format!("{}b", "a".repeat(30_000))})).is_err());
    }

    #[test]
    fn a_schema_that_branches_without_end_is_checked_in_time() {
        // Each step of the first doubles the work on the same value, each step of the second on the next inner
        // value.
        let step = |number: u32| json!({"anyOf": vec![json!({"$ref": format!("#/$defs/{number}")}); 2]});
        let mut wide = step(0);
        for number in 0..40 {
            wide["$defs"][number.to_string()] = step(number + 1);
        }
        wide["$defs"]["40"] = json!({"type": "string"});
        let deep = json!({"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}});
        let nested = (0..60).fold(json!(1), |inner, _| json!([inner]));
        let began = std::time::Instant::now();
        assert_eq!(Schema::compiled(&wide).unwrap_err(), "it branches too often");
        assert!(check(&deep, &nested).unwrap_err().contains("nested too deeply"));
        assert!(check(&deep, &json!([[[[1]]]])).is_err());
        assert!(began.elapsed().as_secs() < 10);
    }

    proptest! {
        #[test]
        fn any_schema_is_taken_or_refused(
            schema in r#"[{}\[\]":,#a-z$0-9]{0,40}|\{"(type|\$ref|anyOf|items|properties|pattern|const)":[{}\[\]":,#a-z]{0,12}\}"#
        ) {
            if let Ok(schema) = serde_json::from_str(&schema) {
                let _ = check(&schema, &json!({"a": [1, "b"]}));
            }
        }
    }
}
