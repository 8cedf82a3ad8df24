//! The rules of a cassette for its run. Pure.

use api::cassettes::{Expectation, ExpectationResult};
use regex_lite::RegexBuilder;
use serde_json::Value;

use super::tape::same_value;

/// The size limit of a compiled expression, in bytes.
const MAX_REGEX_BYTES: usize = 32 * 1024;

/// What a run has said and called.
pub(super) struct Performed<'a> {
    /// The final text.
    pub(super) text: &'a str,
    /// The tools that were called.
    pub(super) tools: Vec<&'a str>,
}

/// Checks a run against a rule.
pub(super) fn check(expect: Expectation, run: &Performed<'_>) -> ExpectationResult {
    let reason = failure(&expect, run);
    ExpectationResult { expect, passed: reason.is_none(), reason }
}

/// Why a run does not keep a rule.
fn failure(expect: &Expectation, run: &Performed<'_>) -> Option<String> {
    let (is_kept, reason) = match expect {
        Expectation::Contains { text } => {
            (run.text.contains(text.as_str()), "the final text does not contain the text".to_owned())
        }
        Expectation::Lacks { text } => {
            (!run.text.contains(text.as_str()), "the final text contains the text".to_owned())
        }
        Expectation::Matches { pattern } => {
            match RegexBuilder::new(pattern.as_str()).size_limit(MAX_REGEX_BYTES).build() {
                Ok(regex) => {
                    (regex.is_match(run.text), "the pattern does not match in the final text".to_owned())
                }
                Err(error) => (false, format!("the pattern cannot be used: {error}")),
            }
        }
        Expectation::JsonEquals { value } => match serde_json::from_str::<Value>(run.text.trim()) {
            Ok(found) => (same_value(value, &found), "the final text is other JSON".to_owned()),
            Err(error) => (false, format!("the final text is no JSON: {error}")),
        },
        Expectation::Calls { tool } => {
            (run.tools.contains(&tool.as_str()), "the tool was not called".to_owned())
        }
        Expectation::NeverCalls { tool } => {
            (!run.tools.contains(&tool.as_str()), "the tool was called".to_owned())
        }
    };
    (!is_kept).then_some(reason)
}

#[cfg(test)]
#[path = "../../../tests/unit/agent/cassettes/expectations.rs"]
mod tests;
