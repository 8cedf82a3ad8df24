//! What a model is told of the tools, and how its words and ours are put into each other.
//!
//! Vendors take names of `[A-Za-z0-9_-]{1,64}` and refuse a whole request for another one, so each tool has a name on
//! the wire; a conversation is kept with our own names. Where the schemas would take too much of the context window,
//! those of connected servers are left out: the model finds them with `tool_search` and calls them by `tool_call`.
//! What it is told of tools thus never changes within a task, and its prompt keeps its beginning.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::Tool;
use super::tool_search::NAME as TOOL_SEARCH;
use crate::models::{Answer, Block, Message, ToldTool, ToolSpec, ToolUse, estimate, normalised_schema};
use crate::sabotage::{self, Saboteur};

/// By this a model calls a tool that it found: `{"tool", "input"}`.
pub(super) const TOOL_CALL: &str = "tool_call";
/// The share of the context window that schemas may take before some are left out: one of so many parts.
const SHARE: u64 = 10;
/// The longest name on the wire.
const MAX_NAME: usize = 64;
/// The longest description, in characters: OpenAI's bound for functions.
const MAX_DESCRIPTION: usize = 1_024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    /// As they go over the wire.
    specs: Vec<ToldTool>,
    /// Of each tool that is told of by itself: its name on the wire, and ours.
    told: BTreeMap<String, String>,
    /// Our names of those that must be searched for.
    searched: BTreeSet<String>,
    /// How many tokens it takes to tell of them.
    tokens: u64,
}

impl Offer {
    /// What a model with a context window of so many tokens is told of `tools`.
    pub(crate) fn new(tools: &[Arc<dyn Tool>], window: u64) -> Self {
        let specs: Vec<(ToolSpec, bool)> =
            tools.iter().map(|tool| (tool.spec(), tool.is_of_server())).collect();
        let searching = |spec: &ToolSpec| spec.name == TOOL_SEARCH;
        let whole = Self::of(specs.iter().filter(|(spec, _)| !searching(spec)));
        let room = window / SHARE;
        if whole.tokens() <= room || sabotage::by(Saboteur::TellAllTools) {
            return whole;
        }
        let (servers, own): (Vec<_>, Vec<_>) = specs.iter().partition(|(_, of_server)| *of_server);
        if servers.is_empty() {
            return whole;
        }
        let mut offer = Self::of(own);
        offer.specs.push(tool_call().into());
        offer.tokens = estimate::tools(&offer.specs);
        offer.searched = servers.into_iter().map(|(spec, _)| spec.name.clone()).collect();
        offer
    }

    fn of<'a>(specs: impl IntoIterator<Item = &'a (ToolSpec, bool)>) -> Self {
        let mut offer = Self::default();
        for (spec, _) in specs {
            let name = on_wire(&spec.name).into_owned();
            // Vendors refuse two tools of one name; of two the first is meant.
            if name == TOOL_CALL || offer.told.contains_key(&name) {
                tracing::warn!(tool = spec.name, "The tool is left out: its name is another one's.");
                continue;
            }
            let description = match spec.description.char_indices().nth(MAX_DESCRIPTION) {
                Some((end, _)) => spec.description.get(..end).unwrap_or_default().to_owned(),
                None => spec.description.clone(),
            };
            let input_schema = normalised_schema(&spec.input_schema);
            offer.specs.push(ToolSpec { name: name.clone(), description, input_schema }.into());
            offer.told.insert(name, spec.name.clone());
        }
        offer.tokens = estimate::tools(&offer.specs);
        offer
    }

    /// What the model is told.
    pub(crate) fn specs(&self) -> &[ToldTool] {
        &self.specs
    }

    /// How many tokens it takes to tell of them, about.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Whether a tool, by our name, is one that the model was told of or can find.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.searched.contains(name) || self.told.values().any(|told| told == name)
    }

    /// A conversation in the words of the wire.
    pub(crate) fn sent<'a>(&self, messages: &'a [Message]) -> Cow<'a, [Message]> {
        let calls = messages.iter().flat_map(calls_of);
        if calls.into_iter().all(|call| !self.is_searched(call) && on_wire(&call.name) == call.name) {
            return Cow::Borrowed(messages);
        }
        let mut messages = messages.to_vec();
        for block in messages.iter_mut().filter_map(blocks_of).flatten() {
            if let Block::ToolUse(call) = block {
                self.send(call);
            }
        }
        Cow::Owned(messages)
    }

    fn is_searched(&self, call: &ToolUse) -> bool {
        self.searched.contains(&call.name)
    }

    fn send(&self, call: &mut ToolUse) {
        let name = if self.is_searched(call) {
            call.input = json!({"tool": call.name, "input": call.input});
            TOOL_CALL.to_owned()
        } else {
            on_wire(&call.name).into_owned()
        };
        call.name = name;
    }

    /// An answer in our words.
    pub(crate) fn received(&self, mut answer: Answer) -> Answer {
        for block in &mut answer.blocks {
            if let Block::ToolUse(call) = block {
                self.receive(call);
            }
        }
        answer
    }

    fn receive(&self, call: &mut ToolUse) {
        if let Some(own) = self.told.get(&call.name) {
            call.name.clone_from(own);
        } else if call.name == TOOL_CALL && !self.searched.is_empty() {
            match found(&call.input).filter(|(tool, _)| self.searched.contains(tool)) {
                Some((tool, input)) => (call.name, call.input) = (tool, input),
                None => {
                    call.broken.get_or_insert_with(|| {
                        format!(
                            "`tool` must name a tool that `{TOOL_SEARCH}` finds, and `input` must be an object with \
                             its input"
                        )
                    });
                }
            }
        }
    }
}

/// Which tool is called with what.
fn found(input: &Value) -> Option<(String, Value)> {
    let tool = input.get("tool")?.as_str()?.to_owned();
    match input.get("input") {
        None => Some((tool, Value::Object(Map::new()))),
        Some(input @ Value::Object(_)) => Some((tool, input.clone())),
        Some(_) => None,
    }
}

fn tool_call() -> ToolSpec {
    ToolSpec {
        name: TOOL_CALL.into(),
        description: format!("Calls a tool that `{TOOL_SEARCH}` found."),
        input_schema: json!({
            "type": "object",
            "properties": {
                "tool": {"type": "string", "description": "The tool's name, as it was found."},
                "input": {"type": "object", "properties": {}, "description": "Its input, as its schema says."},
            },
            "required": ["tool", "input"],
        }),
    }
}

fn calls_of(message: &Message) -> impl Iterator<Item = &ToolUse> {
    let blocks = match message {
        Message::Assistant { blocks, .. } => blocks.as_slice(),
        Message::User { .. } | Message::Results(_) => &[],
    };
    blocks.iter().filter_map(|block| match block {
        Block::ToolUse(call) => Some(call),
        _ => None,
    })
}

fn blocks_of(message: &mut Message) -> Option<&mut Vec<Block>> {
    match message {
        Message::Assistant { blocks, .. } => Some(blocks),
        Message::User { .. } | Message::Results(_) => None,
    }
}

/// A tool's name on the wire: its own where that will do, else one made from it, always the same.
fn on_wire(name: &str) -> Cow<'_, str> {
    let takes = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(takes) {
        return Cow::Borrowed(name);
    }
    let hash = Sha256::digest(name);
    let mark = format!("{:08x}", hash.first_chunk().map_or(0, |start| u32::from_be_bytes(*start)));
    let start: String = name
        .chars()
        .take(MAX_NAME - 1 - mark.len())
        .map(|character| if takes(character) { character } else { '_' })
        .collect();
    Cow::Owned(format!("{start}_{mark}"))
}

#[cfg(test)]
#[path = "offer_tests.rs"]
mod tests;
