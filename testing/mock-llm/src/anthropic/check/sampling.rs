//! The rules of `temperature`, `top_p` and `top_k`, which thinking restricts
//! (<https://platform.claude.com/docs/en/build-with-claude/extended-thinking#feature-compatibility>).

use super::super::node::Node;
use super::thinking::ThinkingConfig;
use crate::protocol::ApiError;

/// The sampling parameters, which version 2026-10-21 of the API removed.
pub(super) const PARAMETERS: &[&str] = &["temperature", "top_p", "top_k"];

const DOCS_HINT: &str = "Please consult our documentation at \
                   https://docs.claude.com/en/docs/build-with-claude/extended-thinking";

/// The lowest `top_p` that thinking allows.
const MIN_THINKING_TOP_P: f64 = 0.95;

pub(super) fn check(root: &Node<'_>, thinking: ThinkingConfig) -> Result<(), ApiError> {
    let temperature = unit_interval(root, "temperature")?;
    let top_p = unit_interval(root, "top_p")?;
    let top_k = root.member("top_k");
    if let Some(top_k) = &top_k
        && top_k.integer()? < 0
    {
        return Err(top_k.error("Input should be greater than or equal to 0"));
    }
    if thinking == ThinkingConfig::Off {
        return Ok(());
    }
    if temperature.is_some_and(|temperature| temperature < 1.0) {
        let rule = "`temperature` may only be set to 1 when thinking is enabled";
        return Err(ApiError::invalid(format!("{rule}. {DOCS_HINT}")));
    }
    if top_p.is_some_and(|top_p| top_p < MIN_THINKING_TOP_P) {
        let rule = "`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled";
        return Err(ApiError::invalid(format!("{rule}. {DOCS_HINT}")));
    }
    if top_k.is_some() {
        return Err(ApiError::invalid(format!(
            "`top_k` must be unset when thinking is enabled. {DOCS_HINT}"
        )));
    }
    Ok(())
}

/// Reads an optional number from 0 to 1.
fn unit_interval(root: &Node<'_>, name: &str) -> Result<Option<f64>, ApiError> {
    let Some(node) = root.member(name) else { return Ok(None) };
    let number = node.number()?;
    if !(0.0..=1.0).contains(&number) {
        return Err(node.error("range: 0..1"));
    }
    Ok(Some(number))
}
