//! The options `--with NAME=VALUE`.

use std::fs;

use api::cassettes::ReplayWith;
use serde_json::{Map, Value};

use crate::error::Failure;

/// The names of the options.
const NAMES: &str = "model, effort, soul, instructions, catalog, agent, max_turns, max_tokens";

/// Parses the options of a run.
pub(super) fn parse(options: &[String]) -> Result<ReplayWith, Failure> {
    let mut members = Map::new();
    for option in options {
        let Some((name, text)) = option.split_once('=') else {
            return Err(Failure::usage(format!("--with: must be NAME=VALUE, where NAME is one of: {NAMES}")));
        };
        let value = match name {
            "model" | "effort" | "agent" => Value::from(text),
            "soul" | "instructions" => Value::from(read_text(name, text)?),
            "catalog" | "max_turns" | "max_tokens" => {
                serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
            }
            _ => {
                return Err(Failure::usage(format!(
                    "--with: there is no `{}`; it must be one of: {NAMES}",
                    crate::terminal::single_line(name, 100)
                )));
            }
        };
        if members.insert(name.to_owned(), value).is_some() {
            return Err(Failure::usage(format!("--with: `{name}` is given twice")));
        }
    }
    serde_json::from_value(Value::Object(members)).map_err(|error| Failure::usage(format!("--with: {error}")))
}

/// A text, or the content of the file `@FILE`.
fn read_text(name: &str, text: &str) -> Result<String, Failure> {
    let Some(file) = text.strip_prefix('@') else { return Ok(text.to_owned()) };
    fs::read_to_string(file).map_err(|error| Failure::usage(format!("--with {name}=@{file}: {error}")))
}

/// Parses a score.
pub(super) fn parse_score(text: &str) -> Result<f64, String> {
    let score = text.parse().ok().filter(|score| (0.0..=1.0).contains(score));
    score.ok_or_else(|| "must be a number from 0 to 1".to_owned())
}
