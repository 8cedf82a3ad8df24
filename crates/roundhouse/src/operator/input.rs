//! What a command reads: a file, or the standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde_json::Value;

use crate::error::Failure;

/// The longest document that is read into memory.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Whether a file's name stands for the standard input.
pub(super) fn is_standard_input(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Reads a file, or the standard input for `-`.
pub(super) fn read_text(file: &Path) -> Result<String, Failure> {
    if is_standard_input(file) {
        return read(&mut io::stdin().lock(), "the standard input");
    }
    let shown = file.display().to_string();
    let mut opened =
        File::open(file).map_err(|error| Failure::usage(format!("{shown} cannot be read: {error}")))?;
    read(&mut opened, &shown)
}

/// Reads a JSON object.
pub(super) fn read_json(file: &Path) -> Result<Value, Failure> {
    let shown =
        if is_standard_input(file) { "the standard input".to_owned() } else { file.display().to_string() };
    let value = serde_json::from_str(&read_text(file)?)
        .map_err(|error| Failure::usage(format!("{shown} is not JSON: {error}")))?;
    match value {
        Value::Object(_) => Ok(value),
        _ => Err(Failure::usage(format!("{shown} must contain a JSON object"))),
    }
}

fn read(input: &mut impl Read, shown: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    input
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::usage(format!("{shown} cannot be read: {error}")))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::usage(format!("{shown} is longer than {MAX_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{shown} is not UTF-8 text")))
}
