//! Feeds recorded streams to a decoder, cut into pieces as a network would.

use std::convert::Infallible;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::executor::block_on;

use super::http::{Decoder, Decoding};
use super::{Answer, Block, ModelError, Part};

/// What `decoder` makes of `pieces`, all of which are there at once.
fn decoded<D: Decoder>(pieces: Vec<Bytes>, decoder: D) -> Vec<Result<Part, ModelError>> {
    let pieces = futures::stream::iter(pieces.into_iter().map(Ok::<_, Infallible>));
    block_on(Decoding::new(pieces, decoder, None).collect())
}

/// What a stream says, after making sure that it says the same however it is cut: whole, byte by byte, and in two
/// at every place.
pub(super) fn told<D: Decoder>(stream: &str, decoder: impl Fn() -> D) -> Vec<String> {
    let whole = Bytes::from(stream.to_owned());
    let told = lines(decoded(vec![whole.clone()], decoder()));
    let bytes = (0..whole.len()).map(|at| whole.slice(at..=at)).collect();
    assert_eq!(lines(decoded(bytes, decoder())), told, "cut into bytes");
    for at in 1..whole.len() {
        let halves = vec![whole.slice(..at), whole.slice(at..)];
        assert_eq!(lines(decoded(halves, decoder())), told, "cut at {at}");
    }
    let lines_end_in_cr = Bytes::from(stream.replace('\n', "\r\n"));
    assert_eq!(lines(decoded(vec![lines_end_in_cr], decoder())), told, "with CR LF");
    told
}

/// The answer at the end of a stream.
pub(super) fn answer<D: Decoder>(stream: &str, decoder: D) -> Answer {
    match decoded(vec![Bytes::from(stream.to_owned())], decoder).pop().unwrap() {
        Ok(Part::Done(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

/// The error at the end of a stream.
pub(super) fn error<D: Decoder>(stream: &str, decoder: D) -> ModelError {
    match decoded(vec![Bytes::from(stream.to_owned())], decoder).pop().unwrap() {
        Err(error) => error,
        Ok(part) => panic!("{part:?}"),
    }
}

fn lines(parts: Vec<Result<Part, ModelError>>) -> Vec<String> {
    let mut lines = Vec::new();
    for part in parts {
        match part {
            Ok(Part::Start(kind)) => lines.push(format!("start {kind:?}")),
            Ok(Part::Delta(text)) => lines.push(format!("delta {text}")),
            Ok(Part::Stop) => lines.push("stop".into()),
            Ok(Part::Done(answer)) => {
                lines.extend(answer.blocks.iter().map(line));
                lines.push(format!("{:?}", answer.usage));
            }
            Err(error) => lines.push(format!("{:?}: {error}", error.kind)),
        }
    }
    lines
}

fn line(block: &Block) -> String {
    match block {
        Block::Text { text, .. } => format!("text {text}"),
        Block::Thinking { thinking, signature } => format!("thinking {thinking} {signature:?}"),
        Block::RedactedThinking { data } => format!("redacted {data}"),
        Block::ToolUse(call) => {
            format!("call {} {} {} {:?}", call.provider_id, call.name, call.input, call.broken)
        }
    }
}
