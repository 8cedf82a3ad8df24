//! `memory_forget`: erases a fact with its history, at the user's wish.

use api::MemoryId;
use api::facts::Fact;
use api::tool_names;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use serde::Deserialize;
use serde_json::{Value, json};
use store::Brain;
use store::memory_format::{day, describe_source};

use super::{Invocation, KnowledgeChange, Tool, ToolError, ToolOutput, ToolStep, approval, parse_input};

/// The maximum length of the fact in the approval prompt, in characters.
const MAX_SHOWN_CHARS: usize = 2_000;

pub(super) struct MemoryForget(pub(super) Brain);

#[derive(Deserialize)]
struct Input {
    id: String,
}

impl MemoryForget {
    fn load(&self, id: &str) -> Result<Fact, ToolError> {
        let unknown = || ToolError("`id`: there is no such record; memory_search tells the ids".into());
        let id: MemoryId = id.parse().map_err(|_| unknown())?;
        let found = self.0.fact(id);
        found.map_err(|error| ToolError(format!("memory cannot be read: {error}")))?.ok_or_else(unknown)
    }
}

impl Tool for MemoryForget {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::MEMORY_FORGET.into(),
            description: "Erases a saved fact for good, with the earlier statements that it replaced. Use it only \
                          when the user wants something forgotten. Where a fact has changed or was wrong, use \
                          memory_save with `supersedes` instead. memory_search tells the ids."
                .into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": "The id (mem_…) of the record."},
                },
                "required": ["id"],
            }),
        }
    }

    /// The erasure is committed together with the result, so a run without a result erased nothing.
    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Ask
    }

    fn asks_after_untrusted_content(&self) -> bool {
        true
    }

    fn approval_prompt(&self, input: &Value) -> String {
        let Some(id) = input.get("id").and_then(Value::as_str) else {
            return approval::default_prompt(tool_names::MEMORY_FORGET, input);
        };
        match self.load(id) {
            Ok(fact) => {
                let origin = format!("{}, {}", day(fact.said_at), describe_source(fact.source));
                let content = approval::excerpt(&fact.content, "> ", MAX_SHOWN_CHARS);
                let history = history(&fact);
                format!("Erase this from memory for good{history}?\n\n{id} ({origin}):\n{content}")
            }
            Err(ToolError(reason)) => {
                format!("{}\n\n{reason}", approval::default_prompt(tool_names::MEMORY_FORGET, input))
            }
        }
    }

    // The erasure is committed together with the call's result. Outside a turn there is `memory.forget`.
    fn needs_turn(&self) -> bool {
        true
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let Input { id } = parse_input(invocation.input)?;
            let brain = self.0.clone();
            let loaded = self.0.run_blocking(move |_| Self(brain).load(&id)).await;
            let fact = loaded.ok_or_else(|| ToolError("the engine is stopping".into()))??;
            let text = format!(
                "erased{}. The conversations in which it was said still show it; the user can delete them.",
                history(&fact)
            );
            let knowledge = Some(KnowledgeChange::Forget(fact.id));
            Ok(ToolStep::Done(ToolOutput { text, knowledge, ..ToolOutput::default() }))
        })
    }
}

/// Says what is erased with a fact.
fn history(fact: &Fact) -> String {
    match fact.replaced_total {
        0 => String::new(),
        1 => ", with the earlier statement that it replaced".to_owned(),
        count => format!(", with the {count} earlier statements that it replaced"),
    }
}

#[cfg(test)]
#[path = "../tests/unit/memory_forget.rs"]
mod tests;
