//! The messages of a cassette, in both directions: from the conversation of the journal, and into what is sent to a
//! model.

use api::CallId;
use api::cassettes::{
    AssistantPart, CallResult, Cassette, CassetteMessage, CassettePart, CassetteResult, CassetteStep,
};
use api::content::ContentBlock;
use documents::{Extracted, Format};
use llm::{Block, ChatModel, Content, Media, Message, ToolReply, ToolUse};

use super::super::AgentError;
use super::super::turn_request::parse_attachments;
use super::tape::{RecordedCall, RecordedStep};

/// What a model reads in place of a file that is not in the cassette.
fn missing_file(media: &Media) -> CassettePart {
    let name = media.name.as_deref().unwrap_or("without a name");
    CassettePart::Note {
        text: format!("[A file that was attached here ({name}, {}) is not recorded.]", media.media_type),
    }
}

/// A message as a cassette records it: without reasoning, and with the files whose data is loaded.
pub(super) fn record_message(message: Message) -> CassetteMessage {
    match message {
        Message::User { content } => CassetteMessage::User { content: record_contents(content) },
        Message::Assistant { blocks, .. } => {
            CassetteMessage::Assistant { content: blocks.into_iter().filter_map(record_block).collect() }
        }
        Message::Results(replies) => {
            let results = replies
                .into_iter()
                .map(|reply| CassetteResult { id: reply.provider_id.clone(), result: record_reply(reply) });
            CassetteMessage::Tool { results: results.collect() }
        }
    }
}

/// A result as a cassette records it.
pub(super) fn record_reply(ToolReply { text, remarks, is_error, .. }: ToolReply) -> CallResult {
    CallResult { text, is_error, attached: record_contents(remarks) }
}

fn record_contents(contents: Vec<Content>) -> Vec<CassettePart> {
    contents
        .into_iter()
        .map(|content| match content {
            Content::Text { text } => CassettePart::Text { text },
            Content::Note { text } => CassettePart::Note { text },
            Content::Media(media) => record_file(media),
        })
        .collect()
}

/// A file as a cassette records it. A document that no model takes as it is was read as its text.
fn record_file(media: Media) -> CassettePart {
    let text = media.text.as_ref().and_then(|text| text.data.as_ref());
    let text = text.map(|text| String::from_utf8_lossy(text).into_owned());
    let (media_type, data, text) = match (&media.data, text) {
        (Some(data), text) => (media.media_type, data.to_vec(), text),
        (None, Some(text)) => (Format::Text.media_type().to_owned(), text.into_bytes(), None),
        (None, None) => return missing_file(&media),
    };
    let file = api::content::Media { kind: media.kind, media_type, name: media.name, data };
    CassettePart::File { file: ContentBlock::Media(file), text }
}

fn record_block(block: Block) -> Option<AssistantPart> {
    match block {
        Block::Text { text, .. } => Some(AssistantPart::Text { text }),
        Block::ToolUse(ToolUse { provider_id, name, input, .. }) => {
            Some(AssistantPart::ToolUse { id: provider_id, tool: name, input })
        }
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
    }
}

/// What of a cassette is sent to a model.
pub(super) struct Recorded {
    pub(super) messages: Vec<Message>,
    pub(super) steps: Vec<RecordedStep>,
}

impl Recorded {
    /// Takes the conversation out of a cassette, for `model`. Blocks, for as long as the files take to be hashed.
    ///
    /// # Errors
    /// A file is none.
    pub(super) fn take_from(cassette: &mut Cassette, model: &dyn ChatModel) -> Result<Self, AgentError> {
        let messages = std::mem::take(&mut cassette.prompt.messages);
        let messages = messages.into_iter().map(|message| send_message(message, model));
        let messages = messages.collect::<Result<_, _>>()?;
        let steps = cassette.steps.iter_mut().map(|step| take_step(step, model));
        Ok(Self { messages, steps: steps.collect::<Result<_, _>>()? })
    }
}

fn take_step(step: &mut CassetteStep, model: &dyn ChatModel) -> Result<RecordedStep, AgentError> {
    let calls = std::mem::take(&mut step.calls).into_iter().map(|call| {
        let CallResult { text, is_error, attached } = call.result;
        Ok(RecordedCall {
            tool: call.tool,
            input: call.input,
            ran_input: call.ran_input,
            text,
            is_error,
            remarks: send_parts(attached, model)?,
        })
    });
    Ok(RecordedStep {
        calls: calls.collect::<Result<_, AgentError>>()?,
        steered: std::mem::take(&mut step.steered),
    })
}

fn send_message(message: CassetteMessage, model: &dyn ChatModel) -> Result<Message, AgentError> {
    Ok(match message {
        CassetteMessage::User { content } => Message::User { content: send_parts(content, model)? },
        // An empty model name matches no model.
        CassetteMessage::Assistant { content } => {
            Message::Assistant { model: String::new(), blocks: content.into_iter().map(send_block).collect() }
        }
        CassetteMessage::Tool { results } => {
            let replies = results.into_iter().map(|CassetteResult { id, result }| {
                let CallResult { text, is_error, attached } = result;
                Ok(ToolReply { provider_id: id, text, remarks: send_parts(attached, model)?, is_error })
            });
            Message::Results(replies.collect::<Result<_, AgentError>>()?)
        }
    })
}

fn send_block(part: AssistantPart) -> Block {
    match part {
        AssistantPart::Text { text } => Block::Text { text, signature: None },
        AssistantPart::ToolUse { id, tool, input } => Block::ToolUse(ToolUse {
            call_id: CallId::new(),
            provider_id: id,
            name: tool,
            // Vendors refuse any other input.
            input: if input.is_object() { input } else { serde_json::Value::Object(serde_json::Map::new()) },
            signature: None,
            broken: None,
        }),
    }
}

fn send_parts(parts: Vec<CassettePart>, model: &dyn ChatModel) -> Result<Vec<Content>, AgentError> {
    let mut contents = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            CassettePart::Text { text } => contents.push(Content::Text { text }),
            CassettePart::Note { text } => contents.push(Content::Note { text }),
            CassettePart::File { file, text } => {
                let is_taken = match &file {
                    ContentBlock::Media(media) => model.supports_media(media.kind, &media.media_type).is_ok(),
                    ContentBlock::Text(_) | ContentBlock::Link(_) => true,
                };
                // A file that the model does not take, and that has no text, is sent as a note that it is left out.
                let checked_for = (is_taken || text.is_some()).then_some(model);
                let text = text.map(|text| Ok(Extracted { text, pages: None }));
                contents.extend(parse_attachments("cassette", vec![file], vec![text], checked_for)?);
            }
        }
    }
    Ok(contents)
}
