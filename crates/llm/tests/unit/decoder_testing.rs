//! Feeds recorded streams to a decoder, split into chunks as a network would split them.

use std::convert::Infallible;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::executor::block_on;

use super::http::{DecodedStream, Decoder};
use super::{Answer, Block, ModelError, StreamEvent};

/// Decodes `chunks`, which are all available at once.
fn decode<D: Decoder>(chunks: Vec<Bytes>, decoder: D) -> Vec<Result<StreamEvent, ModelError>> {
    let chunks = futures::stream::iter(chunks.into_iter().map(Ok::<_, Infallible>));
    block_on(DecodedStream::new(chunks, decoder, None).collect())
}

/// Decodes a stream to one line per event, and asserts that the result does not depend on how the stream is split:
/// whole, byte by byte, and in two at every position.
pub(super) fn decode_to_lines<D: Decoder>(stream: &str, decoder: impl Fn() -> D) -> Vec<String> {
    let body = Bytes::from(stream.to_owned());
    let lines = event_lines(decode(vec![body.clone()], decoder()));
    let bytes = (0..body.len()).map(|at| body.slice(at..=at)).collect();
    assert_eq!(event_lines(decode(bytes, decoder())), lines, "cut into bytes");
    for at in 1..body.len() {
        let halves = vec![body.slice(..at), body.slice(at..)];
        assert_eq!(event_lines(decode(halves, decoder())), lines, "cut at {at}");
    }
    let lines_end_in_cr = Bytes::from(stream.replace('\n', "\r\n"));
    assert_eq!(event_lines(decode(vec![lines_end_in_cr], decoder())), lines, "with CR LF");
    lines
}

/// The answer at the end of a stream.
pub(super) fn final_answer<D: Decoder>(stream: &str, decoder: D) -> Answer {
    match decode(vec![Bytes::from(stream.to_owned())], decoder).pop().unwrap() {
        Ok(StreamEvent::Done(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

/// The error at the end of a stream.
pub(super) fn final_error<D: Decoder>(stream: &str, decoder: D) -> ModelError {
    match decode(vec![Bytes::from(stream.to_owned())], decoder).pop().unwrap() {
        Err(error) => error,
        Ok(event) => panic!("{event:?}"),
    }
}

fn event_lines(events: Vec<Result<StreamEvent, ModelError>>) -> Vec<String> {
    let mut lines = Vec::new();
    for event in events {
        match event {
            Ok(StreamEvent::BlockStart(kind)) => lines.push(format!("start {kind:?}")),
            Ok(StreamEvent::Delta(text)) => lines.push(format!("delta {text}")),
            Ok(StreamEvent::BlockStop) => lines.push("stop".into()),
            Ok(StreamEvent::Done(answer)) => {
                lines.extend(answer.blocks.iter().map(block_line));
                lines.push(format!("{:?}", answer.usage));
            }
            Err(error) => lines.push(format!("{:?}: {error}", error.kind)),
        }
    }
    lines
}

fn block_line(block: &Block) -> String {
    match block {
        Block::Text { text, .. } => format!("text {text}"),
        Block::Thinking { thinking, signature } => format!("thinking {thinking} {signature:?}"),
        Block::RedactedThinking { data } => format!("redacted {data}"),
        Block::ToolUse(call) => {
            format!("call {} {} {} {:?}", call.provider_id, call.name, call.input, call.broken)
        }
    }
}
