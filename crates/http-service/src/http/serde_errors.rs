//! Rephrases serde's errors in terms of JSON: a client knows objects and strings, not structs and variants.

/// Returns what a value must be, given serde's error message. The position, `at line 1 column 2`, is removed: the
/// caller names the field.
pub(super) fn rephrase(message: &str) -> String {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    let wrong = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    if let Some((given, wanted)) = wrong.and_then(|wrong| wrong.rsplit_once(", expected ")) {
        return format!("must be {}, not {}", self::describe_expected(wanted), self::describe_given(given));
    }
    if let Some((given, wanted)) = message.strip_prefix("unknown variant ").and_then(split_expected) {
        return format!("must be {wanted}, not {given}");
    }
    if let Some((given, wanted)) = message.strip_prefix("unknown field ").and_then(split_expected) {
        return format!("there is no field {given}; it must be {wanted}");
    }
    if let Some(field) = quoted(message, "missing field ") {
        return format!("`{field}` must be given");
    }
    if let Some(field) = quoted(message, "duplicate field ") {
        return format!("`{field}` must be given only once");
    }
    if message == "expected value" {
        return "must be a string, one of the allowed names".to_owned();
    }
    if NUMBER_PARSE_ERRORS.contains(&message) {
        return "must be a number".to_owned();
    }
    message.to_owned()
}

/// Returns the error of a field that an object does not have, in the words of [`rephrase`].
pub(super) fn unknown_field(name: &str, known: &[&str]) -> String {
    let quoted: Vec<String> = known.iter().map(|known| format!("`{known}`")).collect();
    match quoted.as_slice() {
        [] => format!("there is no field `{name}`"),
        [only] => format!("there is no field `{name}`; it must be {only}"),
        [first, second] => format!("there is no field `{name}`; it must be {first} or {second}"),
        _ => format!("there is no field `{name}`; it must be one of {}", quoted.join(", ")),
    }
}

/// Returns the field named by an error that serde reports at the enclosing object: a missing or duplicate field.
pub(super) fn field_name(message: &str) -> Option<&str> {
    quoted(message, "missing field ").or_else(|| quoted(message, "duplicate field "))
}

/// Rust's error messages for a text that is no number, such as one in a query.
const NUMBER_PARSE_ERRORS: [&str; 5] = [
    "invalid digit found in string",
    "cannot parse integer from empty string",
    "number too large to fit in target type",
    "number too small to fit in target type",
    "invalid float literal",
];

fn quoted<'a>(message: &'a str, before: &str) -> Option<&'a str> {
    let rest = message.strip_prefix(before)?.strip_prefix('`')?;
    rest.split_once('`').map(|(name, _)| name)
}

/// Splits a message into the given name and the list of accepted names.
fn split_expected(message: &str) -> Option<(&str, &str)> {
    message.rsplit_once(", expected ").filter(|(_, wanted)| wanted.contains('`'))
}

fn describe_expected(wanted: &str) -> &str {
    match wanted {
        "a string" | "a borrowed string" | "string" | "str" | "a character" | "variant identifier" => {
            "a string"
        }
        "a boolean" | "bool" => "true or false",
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "an integer of at least 0",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "an integer",
        "f32" | "f64" | "a JSON number" => "a number",
        "a map" | "map" => "an object",
        "a sequence" | "sequence" => "an array",
        "unit" => "null",
        _ if ["struct", "internally tagged", "adjacently tagged"]
            .iter()
            .any(|kind| wanted.starts_with(kind)) =>
        {
            "an object"
        }
        _ if ["tuple", "an array", "fewer elements"].iter().any(|kind| wanted.starts_with(kind)) => {
            "an array"
        }
        _ if wanted.starts_with("enum ") => "a string, one of the allowed names",
        _ => wanted,
    }
}

fn describe_given(given: &str) -> &str {
    match given {
        "map" => "an object",
        "sequence" => "an array",
        "unit value" | "Option value" => "null",
        _ => ["integer ", "floating point ", "boolean ", "string "]
            .iter()
            .find_map(|kind| given.strip_prefix(kind))
            .unwrap_or(given),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case", deny_unknown_fields)]
    #[expect(dead_code, reason = "only the errors of parsing it are examined")]
    struct Whole {
        text: String,
        flag: Option<bool>,
        count: Option<u32>,
        share: Option<f64>,
        list: Option<Vec<String>>,
        choice: Option<Choice>,
        inner: Option<Box<Whole>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        First,
        Second,
        Third,
    }

    #[test]
    fn no_word_of_rust_is_left() {
        for (body, expected) in [
            (r#"{"text": 7}"#, "must be a string, not `7`"),
            (r#"{"text": "a, expected b", "flag": "yes"}"#, "must be true or false, not \"yes\""),
            (r#"{"text": null}"#, "must be a string, not null"),
            (r#"{"text": {}}"#, "must be a string, not an object"),
            (r#"{"text": "", "count": -1}"#, "must be an integer of at least 0, not `-1`"),
            (r#"{"text": "", "count": 1.5}"#, "must be an integer of at least 0, not `1.5`"),
            (r#"{"text": "", "share": true}"#, "must be a number, not `true`"),
            (r#"{"text": "", "list": "a"}"#, "must be an array, not \"a\""),
            (r#"{"text": "", "inner": "a"}"#, "must be an object, not \"a\""),
            (r#"{"text": "", "choice": "x"}"#, "must be one of `first`, `second`, `third`, not `x`"),
            (r#"{"flag": true}"#, "`text` must be given"),
            (r#"{"text": "", "text": ""}"#, "`text` must be given only once"),
        ] {
            let error = serde_json::from_str::<Whole>(body).unwrap_err().to_string();
            assert_eq!(rephrase(&error), expected, "{error}");
        }
        let unknown = serde_json::from_str::<Whole>(r#"{"txt": 1}"#).unwrap_err().to_string();
        assert!(
            rephrase(&unknown).starts_with("there is no field `txt`; it must be one of `text`, "),
            "{unknown}"
        );
        assert_eq!(rephrase("must be 1 to 256 bytes"), "must be 1 to 256 bytes");
        let lists: [&'static [&'static str]; 3] = [&["a"], &["a", "b"], &["a", "b", "c"]];
        for known in lists {
            let serde: serde_json::Error = serde::de::Error::unknown_field("x", known);
            assert_eq!(unknown_field("x", known), rephrase(&serde.to_string()));
        }
    }
}
