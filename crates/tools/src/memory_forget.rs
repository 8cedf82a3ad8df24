//! `memory_forget`: erases a fact with its history, at the user's wish.

use api::MemoryId;
use api::approvals::{ApprovalPreview, ApprovalRisk};
use api::facts::{Fact, Statement};
use api::tool_names;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use serde::Deserialize;
use serde_json::{Value, json};
use store::memory_format::{day, describe_source};
use store::{Brain, StoreError};

use super::{Invocation, KnowledgeChange, Tool, ToolError, ToolOutput, ToolStep, approval, parse_input};

/// The maximum length of the fact in the approval prompt, in characters.
const MAX_SHOWN_CHARS: usize = 2_000;
/// How many of the statements that go with it are shown, and the maximum length of each.
const MAX_SHOWN_OTHERS: usize = 10;
const MAX_SHOWN_CHARS_OF_OTHERS: usize = 300;

pub(super) struct MemoryForget(pub(super) Brain);

#[derive(Deserialize)]
struct Input {
    id: String,
}

/// A fact, and what is erased with it.
struct Extent {
    fact: Fact,
    /// The newest of the other statements, and how many they are in all.
    others: Vec<Statement>,
    other_count: usize,
}

impl MemoryForget {
    fn load(&self, id: &str) -> Result<Extent, ToolError> {
        let unknown = || ToolError("`id`: there is no such record; memory_search tells the ids".into());
        let unreadable = |error: StoreError| ToolError(format!("memory cannot be read: {error}"));
        let id: MemoryId = id.parse().map_err(|_| unknown())?;
        let fact = self.0.fact(id).map_err(unreadable)?.ok_or_else(unknown)?;
        if let Some(later) = &fact.replaced_by {
            // To erase it alone would leave what the user means.
            return Err(ToolError(format!(
                "`id`: it does not hold any more, since {} took its place; forget that one, which erases both",
                later.id
            )));
        }
        let (others, other_count) = self.0.erased_with(id, MAX_SHOWN_OTHERS).map_err(unreadable)?;
        Ok(Extent { fact, others, other_count })
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
            Ok(extent) => extent.question(),
            Err(ToolError(reason)) => {
                format!("{}\n\n{reason}", approval::default_prompt(tool_names::MEMORY_FORGET, input))
            }
        }
    }

    fn approval_preview(&self, input: &Value) -> ApprovalPreview {
        approval::text_preview(&self.approval_prompt(input))
    }

    /// What is erased cannot be restored.
    fn risk(&self) -> ApprovalRisk {
        ApprovalRisk::High
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
            let extent = loaded.ok_or_else(|| ToolError("the engine is stopping".into()))??;
            let text = format!(
                "erased{}. The conversations in which it was said still show it; the user can delete them.",
                extent.others_in_words()
            );
            let knowledge = Some(KnowledgeChange::Forget(extent.fact.id));
            Ok(ToolStep::Done(ToolOutput { text, knowledge, ..ToolOutput::default() }))
        })
    }
}

impl Extent {
    /// What the person is asked: the fact whole, and each of the others as far as there is room.
    fn question(&self) -> String {
        let Self { fact, others, other_count } = self;
        let mut question = format!(
            "Erase this from memory for good{}?\n\n{} ({}, {}):\n{}",
            self.others_in_words(),
            fact.id,
            day(fact.said_at),
            describe_source(fact.source),
            approval::excerpt(&fact.content, "> ", MAX_SHOWN_CHARS)
        );
        for other in others {
            let in_force = if other.held_until.is_none() { ", in force" } else { "" };
            let (said, origin) = (day(other.said_at), describe_source(other.source));
            let content = approval::excerpt(&other.content, "> ", MAX_SHOWN_CHARS_OF_OTHERS);
            let item = format!("\n\n{} ({said}, {origin}{in_force}):\n{content}", other.id);
            question.push_str(&item);
        }
        match other_count - others.len() {
            0 => question,
            left => question + &format!("\n\n… and {left} earlier"),
        }
    }

    /// Says what is erased with the fact.
    fn others_in_words(&self) -> String {
        match self.other_count {
            0 => String::new(),
            1 => ", with another statement that goes with it".to_owned(),
            count => format!(", with {count} other statements that go with it"),
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/memory_forget.rs"]
mod tests;
