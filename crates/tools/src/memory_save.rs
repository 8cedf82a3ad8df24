//! `memory_save`: remembers something that the agent should know in every later task.

use api::MemoryId;
use api::memory::SaveKnowledge;
use api::tool_names;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use serde_json::json;
use store::{Brain, KnowledgeDraft};

use super::{Invocation, Tool, ToolError, ToolOutput, ToolStep, parse_input};

pub(super) struct MemorySave(pub(super) Brain);

impl Tool for MemorySave {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::MEMORY_SAVE.into(),
            description: "Remembers a fact beyond this task: it is found again in later tasks. Save what stays \
                          true and is worth knowing, such as preferences, names and decisions, one fact at a time, \
                          in words that can be understood alone. Do not save secrets. Where a fact has changed, \
                          name the record that the new one supersedes; memory_search tells its id."
                .into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "content": {"type": "string", "description": "The fact."},
                    "tags": {
                        "type": "array", "items": {"type": "string"},
                        "description": "Words to file it under.",
                    },
                    "supersedes": {
                        "type": "string", "description": "The id (mem_…) of the record in whose place it comes.",
                    },
                },
                "required": ["content"],
            }),
        }
    }

    /// The record is committed together with the result, so a run without a result saved nothing.
    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    // The record is committed together with the call's result. Outside a turn there is `memory.save`.
    fn needs_turn(&self) -> bool {
        true
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let save: SaveKnowledge = parse_input(invocation.input)?;
            let draft = KnowledgeDraft::parse(save).map_err(|error| ToolError(error.to_string()))?;
            if let Some(superseded) = draft.supersedes {
                let active = self.0.check_knowledge_active(superseded);
                let active = active.map_err(|error| ToolError(format!("memory cannot be read: {error}")))?;
                active.map_err(|reason| ToolError(format!("`supersedes`: {reason}")))?;
            }
            let id = MemoryId::new();
            let text = format!("saved as {id}");
            Ok(ToolStep::Done(ToolOutput { text, knowledge: Some((id, draft)), ..ToolOutput::default() }))
        })
    }
}
