//! The stream of events of <https://platform.openai.com/docs/api-reference/responses-streaming>. Every event has
//! its type as its name, and a sequence number.

use serde_json::{Value, json};

use super::render::{Content, Item, summary_part, text_part};
use crate::reply::Chunking;
use crate::split::split;
use crate::transcript::{Transcript, TranscriptWriter, single_event};

/// Renders a stream. It ends with the response `ended`, in an event named `last_event`.
pub(super) fn stream(
    in_progress: &Value,
    items: &[Item],
    chunking: Chunking,
    last_event: &str,
    ended: &Value,
) -> Transcript {
    let mut events = NumberedEvents::default();
    for name in ["response.created", "response.in_progress"] {
        events.write(name, json!({"response": in_progress}));
    }
    for (index, item) in items.iter().enumerate() {
        events.write("response.output_item.added", json!({"output_index": index, "item": item.start_item()}));
        match &item.content {
            Content::Reasoning { summary: None, .. } => {}
            Content::Reasoning { summary: Some(text), .. } => {
                write_summary(&mut events, &item.id, index, text, chunking);
            }
            Content::Message { text } => write_text(&mut events, &item.id, index, text, chunking),
            Content::FunctionCall { arguments, .. } => {
                write_arguments(&mut events, &item.id, index, arguments, chunking);
            }
        }
        events.write("response.output_item.done", json!({"output_index": index, "item": item.complete()}));
    }
    let last = numbered(last_event, json!({"response": ended}), events.writer.events());
    events.writer.finish(single_event(Some(last_event), &last))
}

/// A transcript that numbers its events.
#[derive(Default)]
struct NumberedEvents {
    writer: TranscriptWriter,
}

impl NumberedEvents {
    fn write(&mut self, name: &str, members: Value) {
        let event = numbered(name, members, self.writer.events());
        self.writer.event(Some(name), &event);
    }

    fn write_delta(&mut self, name: &str, members: Value) {
        let event = numbered(name, members, self.writer.events());
        self.writer.delta(Some(name), &event);
    }
}

fn numbered(name: &str, mut members: Value, number: usize) -> Value {
    if let Some(members) = members.as_object_mut() {
        members.insert("type".to_owned(), name.into());
        members.insert("sequence_number".to_owned(), number.into());
    }
    members
}

fn write_summary(events: &mut NumberedEvents, id: &str, index: usize, text: &str, chunking: Chunking) {
    let part = |text: &str| {
        let part = summary_part(text);
        json!({"item_id": id, "output_index": index, "summary_index": 0, "part": part})
    };
    events.write("response.reasoning_summary_part.added", part(""));
    for delta in split(text, chunking) {
        events.write_delta(
            "response.reasoning_summary_text.delta",
            json!({"item_id": id, "output_index": index, "summary_index": 0, "delta": delta}),
        );
    }
    events.write(
        "response.reasoning_summary_text.done",
        json!({"item_id": id, "output_index": index, "summary_index": 0, "text": text}),
    );
    events.write("response.reasoning_summary_part.done", part(text));
}

fn write_text(events: &mut NumberedEvents, id: &str, index: usize, text: &str, chunking: Chunking) {
    let part = |text: &str| json!({"item_id": id, "output_index": index, "content_index": 0, "part": text_part(text)});
    events.write("response.content_part.added", part(""));
    for delta in split(text, chunking) {
        events.write_delta(
            "response.output_text.delta",
            json!({"item_id": id, "output_index": index, "content_index": 0, "delta": delta, "logprobs": []}),
        );
    }
    events.write(
        "response.output_text.done",
        json!({"item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": []}),
    );
    events.write("response.content_part.done", part(text));
}

fn write_arguments(events: &mut NumberedEvents, id: &str, index: usize, arguments: &str, chunking: Chunking) {
    for delta in split(arguments, chunking) {
        events.write_delta(
            "response.function_call_arguments.delta",
            json!({"item_id": id, "output_index": index, "delta": delta}),
        );
    }
    events.write(
        "response.function_call_arguments.done",
        json!({"item_id": id, "output_index": index, "arguments": arguments}),
    );
}
