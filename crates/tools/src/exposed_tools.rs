//! The tools as declared to a model, and the mapping between our tool names and the names on the wire.
//!
//! Vendors accept names of the form `[A-Za-z0-9_-]{1,64}` and reject a whole request that contains another one, so
//! each tool has a wire name, while stored conversations use our own names. If the schemas would take too much of
//! the context window, those of connected servers are left out: the model finds them with `tool_search` and calls
//! them through `tool_call`. The declarations thus never change within a task, and the prompt keeps a stable
//! prefix.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use api::tool_names::{TOOL_CALL, TOOL_SEARCH};
use llm::{Answer, Block, Message, ToolDeclaration, ToolSpec, ToolUse, estimate, normalised_schema};
use resources::text::first_chars;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::Tool;

/// Schemas may take 1/`CONTEXT_SHARE_DIVISOR` of the context window before some are left out.
const CONTEXT_SHARE_DIVISOR: u64 = 10;
/// The maximum length of a wire name, in bytes.
const MAX_WIRE_NAME_BYTES: usize = 64;
/// The maximum length of a description, in characters: OpenAI's limit for functions.
const MAX_DESCRIPTION_CHARS: usize = 1_024;

/// The tools exposed to a model.
#[derive(Debug, Default)]
pub struct ExposedTools {
    /// The declarations as sent over the wire.
    declarations: Vec<ToolDeclaration>,
    /// Our name of each directly declared tool, by its wire name.
    names_by_wire_name: BTreeMap<String, String>,
    /// Our names of the tools that the model has to search for.
    searchable: BTreeSet<String>,
    /// The estimated number of tokens of the declarations.
    tokens: u64,
    /// The SHA-256 of the declarations, once it was needed.
    hash: OnceLock<String>,
}

impl ExposedTools {
    /// Selects what a model with a context window of `window` tokens receives of `tools`.
    pub fn new(tools: &[Arc<dyn Tool>], window: u64) -> Self {
        let declarations: Vec<(ToolSpec, bool)> =
            tools.iter().map(|tool| (tool.spec(), tool.is_mcp_tool())).collect();
        let searching = |spec: &ToolSpec| spec.name == TOOL_SEARCH;
        let complete = Self::from_specs(declarations.iter().filter(|(spec, _)| !searching(spec)));
        let room = window / CONTEXT_SHARE_DIVISOR;
        if complete.tokens() <= room {
            return complete;
        }
        let (servers, own): (Vec<_>, Vec<_>) =
            declarations.iter().partition(|(_, with_server_name)| *with_server_name);
        if servers.is_empty() {
            return complete;
        }
        let searchable = servers.into_iter().map(|(spec, _)| spec.name.clone()).collect();
        Self::from_specs(own).with_searchable(searchable)
    }

    fn from_specs<'a>(declarations: impl IntoIterator<Item = &'a (ToolSpec, bool)>) -> Self {
        let mut exposed = Self::default();
        for (spec, _) in declarations {
            let name = wire_name(&spec.name).into_owned();
            // Vendors reject two tools with the same name; the first one wins.
            if name == TOOL_CALL || exposed.names_by_wire_name.contains_key(&name) {
                tracing::warn!(tool = spec.name, "The tool is skipped: another tool has the same name.");
                continue;
            }
            let description = first_chars(&spec.description, MAX_DESCRIPTION_CHARS).to_owned();
            let input_schema = normalised_schema(&spec.input_schema);
            exposed.declarations.push(ToolSpec { name: name.clone(), description, input_schema }.into());
            exposed.names_by_wire_name.insert(name, spec.name.clone());
        }
        exposed.tokens = estimate::tools(&exposed.declarations);
        exposed
    }

    /// Exposes the tools that were declared before, as [`ExposedTools::specs`] and [`ExposedTools::searchable`] have
    /// returned them.
    pub fn from_recorded(specs: impl IntoIterator<Item = ToolSpec>, searchable: BTreeSet<String>) -> Self {
        let specs: Vec<_> = specs.into_iter().map(|spec| (spec, false)).collect();
        let exposed = Self::from_specs(&specs);
        if searchable.is_empty() { exposed } else { exposed.with_searchable(searchable) }
    }

    /// Leaves out `searchable`, which the model finds and calls by name.
    fn with_searchable(mut self, searchable: BTreeSet<String>) -> Self {
        self.declarations.push(tool_call_spec().into());
        self.tokens = estimate::tools(&self.declarations);
        self.searchable = searchable;
        self
    }

    /// The tools that were declared to the model, by our names.
    pub fn specs(&self) -> impl Iterator<Item = ToolSpec> {
        self.declarations.iter().filter_map(|declared| {
            let name = self.names_by_wire_name.get(&declared.name)?.clone();
            let input_schema = serde_json::from_str(declared.input_schema.get()).unwrap_or_default();
            Some(ToolSpec { name, description: declared.description.clone(), input_schema })
        })
    }

    /// Our names of the tools that the model has to search for.
    pub fn searchable(&self) -> impl Iterator<Item = &str> {
        self.searchable.iter().map(String::as_str)
    }

    /// The SHA-256 of the declarations and of the names that can be searched for, in hexadecimal digits.
    pub fn hash(&self) -> &str {
        self.hash.get_or_init(|| {
            let mut hasher = Sha256::new();
            let declared = self.declarations.iter().flat_map(|declared| {
                [declared.name.as_str(), &declared.description, declared.input_schema.get()]
            });
            for text in declared.chain(self.searchable()) {
                hasher.update(text.len().to_le_bytes());
                hasher.update(text);
            }
            hex::encode(hasher.finalize())
        })
    }

    /// Returns the declarations for the model.
    pub fn declarations(&self) -> &[ToolDeclaration] {
        &self.declarations
    }

    /// Returns the estimated number of tokens of the declarations.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Whether a tool, by our name, was declared to the model or can be found by it.
    pub fn contains(&self, name: &str) -> bool {
        self.searchable.contains(name) || self.names_by_wire_name.values().any(|declared| declared == name)
    }

    /// Returns a conversation with tool names replaced by wire names.
    pub fn messages_to_wire<'a>(&self, messages: &'a [Message]) -> Cow<'a, [Message]> {
        let calls = messages.iter().flat_map(tool_uses);
        if calls.into_iter().all(|call| !self.is_searchable(call) && wire_name(&call.name) == call.name) {
            return Cow::Borrowed(messages);
        }
        let mut messages = messages.to_vec();
        for block in messages.iter_mut().filter_map(assistant_blocks_mut).flatten() {
            if let Block::ToolUse(call) = block {
                self.call_to_wire(call);
            }
        }
        Cow::Owned(messages)
    }

    fn is_searchable(&self, call: &ToolUse) -> bool {
        self.searchable.contains(&call.name)
    }

    fn call_to_wire(&self, call: &mut ToolUse) {
        let name = if self.is_searchable(call) {
            call.input = json!({"tool": call.name, "input": call.input});
            TOOL_CALL.to_owned()
        } else {
            wire_name(&call.name).into_owned()
        };
        call.name = name;
    }

    /// Returns an answer with wire names replaced by our names.
    pub fn answer_from_wire(&self, mut answer: Answer) -> Answer {
        for block in &mut answer.blocks {
            if let Block::ToolUse(call) = block {
                self.call_from_wire(call);
            }
        }
        answer
    }

    fn call_from_wire(&self, call: &mut ToolUse) {
        if let Some(own) = self.names_by_wire_name.get(&call.name) {
            call.name.clone_from(own);
        } else if call.name == TOOL_CALL && !self.searchable.is_empty() {
            match parse_tool_call(&call.input).filter(|(tool, _)| self.searchable.contains(tool)) {
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

/// Returns the tool and the input of a call through [`TOOL_CALL`].
fn parse_tool_call(input: &Value) -> Option<(String, Value)> {
    let tool = input.get("tool")?.as_str()?.to_owned();
    match input.get("input") {
        None => Some((tool, Value::Object(Map::new()))),
        Some(input @ Value::Object(_)) => Some((tool, input.clone())),
        Some(_) => None,
    }
}

fn tool_call_spec() -> ToolSpec {
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

fn tool_uses(message: &Message) -> impl Iterator<Item = &ToolUse> {
    let blocks = match message {
        Message::Assistant { blocks, .. } => blocks.as_slice(),
        Message::User { .. } | Message::Results(_) => &[],
    };
    blocks.iter().filter_map(|block| match block {
        Block::ToolUse(call) => Some(call),
        _ => None,
    })
}

fn assistant_blocks_mut(message: &mut Message) -> Option<&mut Vec<Block>> {
    match message {
        Message::Assistant { blocks, .. } => Some(blocks),
        Message::User { .. } | Message::Results(_) => None,
    }
}

/// Returns a tool's wire name: its own name if it is valid, else one derived from it deterministically.
fn wire_name(name: &str) -> Cow<'_, str> {
    let is_valid = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    if (1..=MAX_WIRE_NAME_BYTES).contains(&name.len()) && name.chars().all(is_valid) {
        return Cow::Borrowed(name);
    }
    let hash = Sha256::digest(name);
    let mark = format!("{:08x}", hash.first_chunk().map_or(0, |start| u32::from_be_bytes(*start)));
    let start: String = name
        .chars()
        .take(MAX_WIRE_NAME_BYTES - 1 - mark.len())
        .map(|character| if is_valid(character) { character } else { '_' })
        .collect();
    Cow::Owned(format!("{start}_{mark}"))
}

#[cfg(test)]
#[path = "../tests/unit/exposed_tools.rs"]
mod tests;
