//! A product's policy: what it says in a few words, and its replacement.

use api::orchestrator::{Policy, ProductSummary, ReplacedPolicy};
use reqwest::Method;
use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

use super::confirm::{Expected, confirm};
use super::output::{self, OutputOptions, View};
use super::session::Session;
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::escape_json;
use crate::terminal::style::Style;

/// A policy on one line.
pub(super) fn summary(policy: &Policy) -> String {
    let fields = serde_json::to_value(policy).unwrap_or_default();
    let fields = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let texts: Vec<_> = fields.map(|(name, value)| format!("{name} {value}")).collect();
    if texts.is_empty() { "no limits".to_owned() } else { texts.join(", ") }
}

/// Replaces the policy of a product, once a person has seen the difference.
pub(super) async fn replace(
    session: &Session,
    product: &ProductSummary,
    policy: Value,
    yes: bool,
    options: OutputOptions,
) -> Result<(), Failure> {
    let current = serde_json::to_value(&product.policy)?;
    let difference = difference(&current, &policy, output::errors_have_colours())?;
    match &difference {
        Some(difference) => {
            output::note(difference);
            let question = format!("This replaces the policy of `{}`.", product.slug.as_str());
            confirm(&question, Expected::Yes, yes).await?;
        }
        None => output::note("The policy is the same as before."),
    }
    let id = product.product_id.to_string();
    let body = json!({"policy": policy});
    let path = ["products", &id, "policy"];
    let call = Call::new(Method::PUT, &path).json(&body);
    output::print(&session.call(&call).await?, options, &replaced)
}

fn replaced(document: &Document, view: View) -> anyhow::Result<String> {
    let ReplacedPolicy { slug, policy, updated_at, .. } = document.parse()?;
    let when = view.ago(updated_at);
    Ok(format!(
        "The policy of `{}` is in force since {when}: {}",
        slug.as_str(),
        escape_json(&summary(&policy))
    ))
}

/// What changes, line by line; `None` if nothing does.
fn difference(current: &Value, new: &Value, colours: bool) -> serde_json::Result<Option<String>> {
    let (current, new) = (serde_json::to_string_pretty(current)?, serde_json::to_string_pretty(new)?);
    if current == new {
        return Ok(None);
    }
    let difference = TextDiff::from_lines(&current, &new);
    let lines = difference.iter_all_changes().map(|change| {
        let (sign, style) = match change.tag() {
            ChangeTag::Delete => ('-', Style::Red),
            ChangeTag::Insert => ('+', Style::Green),
            ChangeTag::Equal => (' ', Style::Plain),
        };
        style.paint(&escape_json(&format!("{sign} {}", change.value().trim_end_matches('\n'))), colours)
    });
    Ok(Some(lines.collect::<Vec<_>>().join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_summed_up_and_compared() {
        let policy = |value: Value| serde_json::from_value::<Policy>(value).unwrap();
        assert_eq!(summary(&policy(json!({}))), "no limits");
        assert_eq!(
            summary(&policy(json!({"max_engines": 3, "suspended": true}))),
            "max_engines 3, suspended true"
        );
        let (old, new) = (json!({"max_engines": 3}), json!({"max_engines": 4}));
        assert_eq!(difference(&old, &old, true).unwrap(), None);
        assert_eq!(
            difference(&old, &new, false).unwrap().unwrap(),
            "  {\n-   \"max_engines\": 3\n+   \"max_engines\": 4\n  }"
        );
    }
}
