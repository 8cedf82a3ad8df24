//! The request of a conversation to a model: its messages, checked and with their media, as a vendor accepts
//! them.

use api::TurnId;
use api::event::{Failure, FailureCode};
use api::response_format::ResponseFormat;
use llm::{self, EventStream, Message, RepairedHistory, Request, Route};

use super::attachments::{AttachmentError, Attachments, LoadedAttachments};
use super::conversation::Conversation;
use super::interrupt::Interrupt;
use super::turn_context::TurnDeps;

/// Loads the media of a request that is about to be sent.
pub(super) async fn load_attachments(
    deps: &TurnDeps,
    conversation: &mut Conversation<'_>,
    attachments: Attachments,
) -> Result<LoadedAttachments, Interrupt> {
    let turn_id = conversation.journal.turn_id();
    loop {
        let (brain, memory) = (deps.brain.clone(), deps.services.memory_budget.clone());
        let loading = attachments.clone().load(brain, memory);
        match conversation.inbox.run_until_stop(conversation.journal, loading).await? {
            Ok(loaded) => return Ok(loaded),
            Err(AttachmentError::Stopping) => return Err(Interrupt::EngineStopping),
            // Other requests hold their memory no longer than a provider takes to answer, so waiting is
            // worthwhile.
            Err(AttachmentError::NoMemory(error)) => {
                tracing::warn!(%turn_id, %error, "A turn is waiting for memory.");
            }
            Err(error @ AttachmentError::Read(_)) => {
                tracing::error!(
                    %turn_id, %error,
                    "The attachments of a conversation could not be loaded; the turn fails."
                );
                let (code, retryable) = (FailureCode::InternalError, true);
                return Err(Interrupt::Failed(Failure { code, message: error.to_string(), retryable }));
            }
        }
    }
}

/// Sends `messages`, whose media are `attachments`, with the prompt and the tools of the conversation.
/// `messages` are those of the conversation or, for a summary, derived from them. `format` is the form of the turn's
/// final answer.
pub(super) fn stream(
    conversation: &Conversation<'_>,
    route: &Route,
    messages: &[Message],
    attachments: LoadedAttachments,
    max_output: Option<u64>,
    format: Option<&ResponseFormat>,
) -> EventStream {
    let Conversation { agent, journal, .. } = conversation;
    let repaired = repair(messages, journal.turn_id());
    let messages = repaired.as_ref().map_or(messages, |repaired| &repaired.messages);
    let turn = journal.active_thread().turn();
    let options = turn.options();
    let effort = options.overrides.as_ref().and_then(|overrides| overrides.effort);
    let events = route.stream(&Request {
        system: agent.system_prompt(),
        messages: &agent.tools().messages_to_wire(&attachments.insert_into(messages)),
        tools: agent.tools().declarations(),
        thinking: options.super_thinking || effort.is_some(),
        effort,
        max_output,
        // All that is left to do is to correct the final answer.
        allow_tool_calls: format.is_none() || !turn.output_rejected(),
        output: format,
        cache_key: journal.task_id().as_str(),
    });
    // The request that is being sent holds the data itself.
    drop(attachments);
    events
}

/// The messages repaired so that every vendor accepts them; `None` if they are acceptable as they are.
fn repair(messages: &[Message], turn_id: TurnId) -> Option<RepairedHistory> {
    let repaired = llm::repair(messages)?;
    for note in &repaired.notes {
        tracing::warn!(%turn_id, note, "The conversation was repaired.");
    }
    Some(repaired)
}
