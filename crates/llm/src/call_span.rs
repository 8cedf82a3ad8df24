//! The span of a model call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{Stream, StreamExt as _};
use traces::gen_ai::{self, ChatMessage, Part, Tokens};
use traces::{Attached, Span};

use super::{
    Answer, Block, Content, EventStream, FinishReason, Message, ModelError, Request, Route, StreamEvent,
    TokenUsage,
};

impl Route {
    /// Streams the model's answer to `request`, see [`super::ChatModel::stream`], within a span that ends with the answer.
    pub fn stream(&self, request: &Request<'_>) -> EventStream {
        let span =
            gen_ai::chat(self.provider, self.model.name(), request.max_output, request.output.is_some());
        gen_ai::set_input(&span, || {
            (request.system.to_owned(), request.messages.iter().map(message).collect())
        });
        let attached: Attached = span.attach();
        let events = self.model.stream(request);
        drop(attached);
        if span.is_recording() { TracedEvents { events, span: Some(span) }.boxed() } else { events }
    }
}

/// The events of an answer, and the span until they have ended.
struct TracedEvents {
    events: EventStream,
    span: Option<Span>,
}

impl Stream for TracedEvents {
    type Item = Result<StreamEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = ready!(self.events.poll_next_unpin(context));
        let (answer, error) = match &event {
            Some(Ok(StreamEvent::Done(answer))) => (Some(answer), None),
            Some(Ok(_)) => return Poll::Ready(event),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        if let Some(span) = self.span.take() {
            match (answer, error) {
                (Some(answer), _) => set_answer(&span, answer),
                (None, Some(error)) => {
                    gen_ai::set_tokens(&span, tokens(&error.usage));
                    span.fail(format!("{:?}", error.kind));
                }
                (None, None) => span.fail("ended_early"),
            }
        }
        Poll::Ready(event)
    }
}

/// Whoever drops the events before their end needs no answer any more.
impl Drop for TracedEvents {
    fn drop(&mut self) {
        if let Some(span) = &self.span {
            span.fail("cancelled");
        }
    }
}

fn set_answer(span: &Span, answer: &Answer) {
    gen_ai::set_tokens(span, tokens(&answer.usage));
    let has_calls = answer.calls().next().is_some();
    let finish_reason = match answer.stop {
        FinishReason::Done if has_calls => "tool_call",
        FinishReason::Done => "stop",
        FinishReason::Length | FinishReason::ContextFull => "length",
        FinishReason::Refusal => "content_filter",
        FinishReason::Unknown => "error",
    };
    gen_ai::set_output(span, finish_reason, || assistant(&answer.blocks));
}

const fn tokens(usage: &TokenUsage) -> Tokens {
    let TokenUsage { input, output, cache_read, cache_write, reasoning, .. } = *usage;
    Tokens { input, output, cache_read, cache_creation: cache_write, reasoning }
}

fn message(message: &Message) -> ChatMessage {
    match message {
        Message::User { content } => {
            ChatMessage { role: "user", parts: content.iter().map(content_part).collect() }
        }
        Message::Assistant { blocks, .. } => assistant(blocks),
        Message::Results(replies) => {
            let parts = replies.iter().map(|reply| Part::ToolResponse {
                id: reply.provider_id.clone(),
                response: reply.text.clone(),
            });
            ChatMessage { role: "tool", parts: parts.collect() }
        }
    }
}

fn content_part(content: &Content) -> Part {
    match content {
        Content::Text { text } | Content::Note { text } => Part::Text(text.clone()),
        Content::Media(media) => Part::Text(format!("[{}]", media.media_type)),
    }
}

/// A model's answer, without its reasoning.
fn assistant(blocks: &[Block]) -> ChatMessage {
    let parts = blocks.iter().filter_map(|block| match block {
        Block::Text { text, .. } => Some(Part::Text(text.clone())),
        Block::ToolUse(call) => Some(Part::ToolCall {
            id: call.provider_id.clone(),
            name: call.name.clone(),
            arguments: call.input.clone(),
        }),
        Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
    });
    ChatMessage { role: "assistant", parts: parts.collect() }
}
