//! What a request sets for its own turn only: checks it when the turn begins, and applies it while the turn
//! runs.
//!
//! It narrows what the configuration allows and never widens it. It is journaled with the opening of the
//! turn, so a turn that is resumed keeps it. What concerns the model is told in notes beside the message: the
//! beginning of the prompt stays the same, and stays cached.

use std::sync::Arc;

use api::tool_names::TOOL_SEARCH;
use api::turn_options::{AllowedTools, TurnOverrides};
use catalog::glob_matches;
use llm::{Content, Route, Routes};
use resources::text::{first_chars, shorten_to_chars};
use tools::Toolbox;

use super::turn::Turn;
use super::{AgentError, structured_output};

/// How each note begins about what a request sets for its turn.
pub(super) const NOTE_MARK: &str = "[For this message only";
/// The most characters of a name or a list of names in an error.
const MAX_SHOWN_NAME_CHARS: usize = 100;
const MAX_SHOWN_NAMES_CHARS: usize = 1_000;

/// Checks what a request sets against the models of the gateway and the tools. Returns the model that
/// answers, if any is configured; without one the turn itself reports that.
pub(super) fn validate(
    overrides: &TurnOverrides,
    models: Option<&Routes>,
    toolbox: Option<&Toolbox>,
) -> Result<Option<Arc<Route>>, AgentError> {
    if let (Some(allowed), Some(toolbox)) = (&overrides.allowed_tools, toolbox) {
        check_names(allowed, toolbox)?;
    }
    if let Some(format) = &overrides.response_format {
        structured_output::check_schema(format)?;
    }
    models.map(|models| validate_model(overrides, models)).transpose()
}

/// Checks what a request sets about the model. Returns the model that answers.
pub(super) fn validate_model(overrides: &TurnOverrides, models: &Routes) -> Result<Arc<Route>, AgentError> {
    let is_known = |name: &str| models.named.iter().any(|route| route.name == name);
    if let Some(name) = overrides.model.as_deref().filter(|name| !is_known(name)) {
        return Err(AgentError::ModelNotPermitted(unknown_model(name, models)));
    }
    let Some(route) = models.chain_for(overrides.model.as_deref()).into_iter().next() else {
        return Err(AgentError::Invalid("`model`: no model is configured".to_owned()));
    };
    if overrides.effort.is_some() {
        let check = route.model.supports_effort();
        check.map_err(|reason| AgentError::Invalid(format!("`effort`: {reason}")))?;
    }
    if overrides.max_cost_usd.is_some() && route.prices.is_none() {
        let message = format!(
            "`max_cost_usd`: the configuration has no prices for the model `{}`, so its cost is unknown",
            route.name
        );
        return Err(AgentError::Invalid(message));
    }
    Ok(route)
}

fn unknown_model(name: &str, models: &Routes) -> String {
    let names: Vec<&str> = models.named.iter().map(|route| route.name.as_str()).collect();
    let name = first_chars(name, MAX_SHOWN_NAME_CHARS);
    let names = shorten_to_chars(&names.join(", "), MAX_SHOWN_NAMES_CHARS);
    format!("`model`: `{name}` is not permitted; it must be one of: {names}")
}

/// Checks that every name that is no pattern is a tool's. A pattern may match nothing: which servers a user
/// has connected varies.
fn check_names(allowed: &AllowedTools, toolbox: &Toolbox) -> Result<(), AgentError> {
    for (at, name) in allowed.patterns().enumerate() {
        if !name.contains('*') && toolbox.find(name).is_none() {
            let message = format!("`allowed_tools[{at}]`: there is no tool called `{name}`");
            return Err(AgentError::Invalid(message));
        }
    }
    Ok(())
}

/// Whether the request allows calls of this tool.
pub(super) fn allows_tool(overrides: Option<&TurnOverrides>, name: &str) -> bool {
    let Some(allowed) = overrides.and_then(|overrides| overrides.allowed_tools.as_ref()) else {
        return true;
    };
    // The search only finds what is allowed or refused by its own name.
    let is_search = name == TOOL_SEARCH && !allowed.is_empty();
    is_search || allowed.patterns().any(|pattern| glob_matches(pattern, name))
}

/// What of it applies to a sub-agent of the turn by itself. The rest concerns the whole turn, or its answer.
pub(super) fn for_sub_agent(overrides: Option<&TurnOverrides>) -> Option<Box<TurnOverrides>> {
    let effort = overrides?.effort?;
    Some(Box::new(TurnOverrides { effort: Some(effort), ..TurnOverrides::default() }))
}

/// The most tokens of the turn, input and output.
pub(super) fn max_tokens(overrides: Option<&TurnOverrides>) -> Option<u64> {
    u64::try_from(overrides?.max_tokens?.get()).ok()
}

/// The number of output tokens that the request's budgets leave to the next call of `route`, whose prompt has
/// `prompt` tokens; `None` if the request has no such budget.
pub(super) fn output_left(turn: &Turn, route: &Route, prompt: u64) -> Option<u64> {
    let overrides = turn.overrides()?;
    let max_output = overrides.max_output_tokens.and_then(|max| u64::try_from(max.get()).ok());
    let output = max_output.map(|max| max.saturating_sub(turn.usage().output_tokens));
    let cost = overrides.max_cost_usd.map(|max| match (route.prices, turn.cost_usd()) {
        (Some(prices), Some(spent)) => prices.affordable_output(prompt, max.usd() - spent),
        // What is unknown may be more than is left.
        _ => 0,
    });
    output.into_iter().chain(cost).min()
}

/// Takes out the notes for the model about what the request sets.
pub(super) fn take_notes(overrides: &mut TurnOverrides) -> Vec<String> {
    let instructions = overrides.instructions.take().map(|text| {
        format!("{NOTE_MARK}, until it is answered, the application gives these instructions:]\n{text}")
    });
    let format = overrides.response_format.as_ref().map(structured_output::note);
    instructions.into_iter().chain(tools_note(overrides)).chain(format).collect()
}

/// The note about the tools that may be called.
pub(super) fn tools_note(overrides: &TurnOverrides) -> Option<String> {
    let allowed = overrides.allowed_tools.as_ref()?;
    if allowed.is_empty() {
        return Some(format!("{NOTE_MARK}: no tool may be called, every call is refused.]"));
    }
    let names: Vec<&str> = allowed.patterns().collect();
    let names = names.join(", ");
    Some(format!("{NOTE_MARK}: only these tools may be called, every other call is refused: {names}.]"))
}

/// Whether this is such a note, as it stands beside a message or below a result.
pub(super) fn is_note(content: &Content) -> bool {
    match content {
        Content::Note { text } | Content::Text { text } => text.starts_with(NOTE_MARK),
        Content::Media(_) => false,
    }
}

/// The notes beside a message about what its request set.
pub(super) fn notes_in(contents: &[Content]) -> impl Iterator<Item = &str> {
    contents.iter().filter_map(|content| match content {
        Content::Note { text } => Some(text.as_str()).filter(|text| text.starts_with(NOTE_MARK)),
        Content::Text { .. } | Content::Media(_) => None,
    })
}

#[cfg(test)]
#[path = "../../tests/unit/agent/turn_overrides.rs"]
mod tests;
