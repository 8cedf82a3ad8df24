//! How the body of an answer is cut into events, in whatever pieces it comes.

use std::future::ready;
use std::io;

use bytes::Bytes;
use futures::stream::{BoxStream, iter, once};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use sse_stream::{Sse, SseStream};

use super::chain;

/// The longest line of a body, in bytes. No vendor's models write that much in a whole answer; a server that does
/// not end its lines must not fill the memory.
const MAX_LINE: usize = 16 * 1024 * 1024;

/// How a provider marks where an event of its stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Framing {
    /// Server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>).
    Sse,
    /// A JSON value on each line; it is given as the data of an event.
    Lines,
}

/// The events of a body, or why it broke off.
pub(super) type Events = BoxStream<'static, Result<Sse, String>>;

/// Cuts `bytes` into events. The last line of a body may lack its end.
pub(super) fn events<E>(
    bytes: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    framing: Framing,
) -> Events
where
    E: std::error::Error + Send + Sync + 'static,
{
    let bytes = bounded(bytes, MAX_LINE);
    let ended = |end: &'static [u8]| once(ready(Ok(Bytes::from_static(end))));
    match framing {
        Framing::Sse => {
            SseStream::from_bytes_stream(bytes.chain(ended(b"\n\n"))).map_err(|error| chain(&error)).boxed()
        }
        Framing::Lines => lines(bytes.chain(ended(b"\n"))).boxed(),
    }
}

/// Fails where a line becomes longer than `most` bytes.
fn bounded<E>(
    bytes: impl Stream<Item = Result<Bytes, E>>,
    most: usize,
) -> impl Stream<Item = io::Result<Bytes>>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let mut line = 0;
    bytes.map(move |piece| {
        let piece = piece.map_err(io::Error::other)?;
        line = match piece.iter().rev().position(|byte| *byte == b'\n') {
            Some(behind) => behind,
            None => line + piece.len(),
        };
        if line > most {
            return Err(io::Error::other(format!("a line has more than {most} bytes")));
        }
        Ok(piece)
    })
}

fn lines(bytes: impl Stream<Item = io::Result<Bytes>>) -> impl Stream<Item = Result<Sse, String>> {
    let mut begun = Vec::new();
    let complete = bytes.map(move |piece| match piece {
        Ok(piece) => complete(&mut begun, &piece),
        Err(error) => vec![Err(chain(&error))],
    });
    complete.flat_map(iter)
}

/// The lines that `piece` completes, without blank ones; what it begins is kept in `begun`.
fn complete(begun: &mut Vec<u8>, piece: &[u8]) -> Vec<Result<Sse, String>> {
    let mut lines = Vec::new();
    for piece in piece.split_inclusive(|byte| *byte == b'\n') {
        begun.extend_from_slice(piece);
        if piece.ends_with(b"\n") {
            lines.extend(event(begun));
            begun.clear();
        }
    }
    lines
}

fn event(line: &[u8]) -> Option<Result<Sse, String>> {
    match std::str::from_utf8(line) {
        Ok(line) if line.trim().is_empty() => None,
        Ok(line) => Some(Ok(Sse::default().data(line.trim()))),
        Err(error) => Some(Err(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::FutureExt as _;
    use pretty_assertions::assert_eq;

    use super::*;

    fn data(pieces: &[&'static [u8]], framing: Framing) -> Vec<Result<String, String>> {
        let pieces: Vec<_> =
            pieces.iter().map(|piece| Ok::<_, Infallible>(Bytes::from_static(piece))).collect();
        let events = events(iter(pieces), framing).map_ok(|event| event.data.unwrap());
        events.collect::<Vec<_>>().now_or_never().unwrap()
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        let pieces: [&[u8]; 5] =
            [b"{\"a\":\"Gr\xc3", b"\xbc\xc3\x9fe\"}\r", b"\n\n \n{\"b\"", b"", b":1}\n{\"c\":2}"];
        assert_eq!(
            data(&pieces, Framing::Lines),
            [
                Ok("{\"a\":\"Gr\u{fc}\u{df}e\"}".to_owned()),
                Ok("{\"b\":1}".to_owned()),
                Ok("{\"c\":2}".to_owned())
            ]
        );
        assert_eq!(data(&[b"", b"\n"], Framing::Lines), []);
        assert!(matches!(&data(&[b"{}\n\xff\n"], Framing::Lines)[..], [Ok(_), Err(_)]));
    }

    #[test]
    fn the_last_event_may_lack_its_end() {
        for end in ["", "\n", "\r", "\r\n", "\n\n"] {
            let body: &'static str = format!("data: 1\n\ndata: 2{end}").leak();
            assert_eq!(
                data(&[body.as_bytes()], Framing::Sse),
                [Ok("1".to_owned()), Ok("2".to_owned())],
                "{end:?}"
            );
        }
    }

    #[test]
    fn a_line_without_an_end_is_not_kept_for_ever() {
        let kept = |pieces: &[&'static [u8]]| {
            let pieces: Vec<_> =
                pieces.iter().map(|piece| Ok::<_, Infallible>(Bytes::from_static(piece))).collect();
            let kept: Vec<_> = bounded(iter(pieces), 4).collect().now_or_never().unwrap();
            kept.into_iter().map(|piece| piece.is_ok()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[b"12", b"34", b"\n12", b"34", b"5"]), [true, true, true, true, false]);
        assert_eq!(kept(&[b"123456\n12345"]), [false]);
    }
}
