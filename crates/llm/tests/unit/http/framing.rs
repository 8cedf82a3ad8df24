//! Bodies in all splits into chunks, compared with the results of a library.

use std::convert::Infallible;

use futures::{FutureExt as _, StreamExt as _};
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use sse_stream::SseStream;

use super::*;

/// The data of the events in a body that consists of these chunks, or the error.
fn data(pieces: &[&[u8]], framing: Framing) -> Result<Vec<String>, FramingError> {
    let (mut events, mut data) = (EventReader::new(framing), Vec::new());
    for piece in pieces {
        events.push(Bytes::copy_from_slice(piece));
        while let Some(event) = events.next_event()? {
            data.push(event.to_owned());
        }
    }
    events.finish();
    while let Some(event) = events.next_event()? {
        data.push(event.to_owned());
    }
    Ok(data)
}

fn strings(data: &[&str]) -> Vec<String> {
    data.iter().map(|data| (*data).to_owned()).collect()
}

#[test]
fn lines_are_whole_however_they_come() {
    let pieces: [&[u8]; 5] =
        [b"{\"a\":\"Gr\xc3", b"\xbc\xc3\x9fe\"}\r", b"\n\n \n{\"b\"", b"", b":1}\n{\"c\":2}"];
    let expected = strings(&["{\"a\":\"Gr\u{fc}\u{df}e\"}\r", "{\"b\":1}", "{\"c\":2}"]);
    assert_eq!(data(&pieces, Framing::Ndjson), Ok(expected));
    assert_eq!(data(&[b"", b"\n"], Framing::Ndjson), Ok(strings(&[])));
    // Whitespace of JSON, not a line end.
    assert_eq!(data(&[b"{\r}\n"], Framing::Ndjson), Ok(strings(&["{\r}"])));
    assert_eq!(data(&[b"{}\n\xff\n"], Framing::Ndjson), Err(FramingError::NotUtf8));
}

#[test]
fn the_last_event_may_lack_its_end() {
    for end in ["", "\n", "\r", "\r\n", "\n\n"] {
        let body = format!("data: 1\n\ndata: 2{end}");
        assert_eq!(data(&[body.as_bytes()], Framing::Sse), Ok(strings(&["1", "2"])), "{end:?}");
    }
}

/// As the standard demands; a stricter parser takes some of these for errors. The exception is text that is not
/// UTF-8, where the standard would substitute characters: such an answer cannot be displayed.
#[test]
fn what_says_nothing_is_passed_over() {
    for (body, expected) in [
        ("\u{feff}data: 1\n\n\u{feff}data: 2\n\ndata: 3\n\n", &["1", "3"][..]),
        (": ping\n\n:\n\nevent: a\nevent: b\nid: 1\nid: 2\nretry: x\ndata: 1\n\n", &["1"]),
        ("unknown: x\nno colon\ndata: 1\ndatas: 2\n data: 3\n\n", &["1"]),
        ("data:1\ndata:  2\ndata\ndata: 3\n\n", &["1\n 2\n\n3"]),
        ("data: \n\ndata\n\nevent: end\n\n\n\n", &[]),
        ("data: \u{feff}\n\n", &["\u{feff}"]),
    ] {
        assert_eq!(data(&[body.as_bytes()], Framing::Sse), Ok(strings(expected)), "{body:?}");
    }
    assert_eq!(data(&[b"data: 1\n\ndata: \xff\n\n"], Framing::Sse), Err(FramingError::NotUtf8));
    assert_eq!(data(&[b": \xff\n\ndata: 1\n\n"], Framing::Sse), Ok(strings(&["1"])));
}

#[test]
fn json_that_no_field_of_the_standard_names_is_an_event() {
    for (body, expected) in [
        ("data: 1\n\n{\n  \"error\": {\n  }\n}\n", &["1", "{\n  \"error\": {\n  }\n}"][..]),
        ("[{}]\n\ndata: 1\n\n", &["[{}]", "1"]),
        ("data: 1\n{}\n\n", &["1"]),
        ("data: 1\n\nerror: {\"code\":500}\n\ndata: 2\n\n", &["1", "{\"error\":{\"code\":500}}", "2"]),
        ("data: 1\nerror: {}\n\n", &["{\"error\":{}}"]),
        ("error:{}", &["{\"error\":{}}"]),
        ("error: none\nerror\nerrors: {}\ndata: 1\n\n", &["1"]),
    ] {
        assert_eq!(data(&[body.as_bytes()], Framing::Sse), Ok(strings(expected)), "{body:?}");
    }
}

#[test]
fn neither_a_line_nor_an_event_without_an_end_is_kept_for_ever() {
    let long = vec![b'x'; MAX_EVENT_BYTES / 2];
    for framing in [Framing::Sse, Framing::Ndjson] {
        assert_eq!(data(&[&long, &long, b"x"], framing), Err(FramingError::TooLong));
        assert!(data(&[&long, b"\n", &long, b"\n"], framing).is_ok());
    }
    let line = [b"data: ", &long[..], b"\n"].concat();
    assert_eq!(data(&[&line, &line], Framing::Sse), Err(FramingError::TooLong));
    assert_eq!(data(&[&line, b"\n", &line], Framing::Sse).unwrap().len(), 2);
}

/// A line of a body, of the kinds that both parsers accept.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-zü: ]{0,6}".prop_map(|value| format!("data: x{value}")),
        1 => "[a-zü: ]{0,6}".prop_map(|value| format!("data:x{value}")),
        1 => "[a-z: ]{0,6}".prop_map(|comment| format!(":{comment}")),
        3 => Just(String::new()),
    ]
}

proptest! {
    #[test]
    fn a_body_says_the_same_as_a_library_reads_and_however_it_is_cut(
        lines in prop::collection::vec((line(), prop::sample::select(vec!["\n", "\r\n", "\r"])), 0..20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let body = lines.iter().map(|(line, end)| [line, *end].concat()).collect::<Vec<_>>().concat();
        let body = body.as_bytes();
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        at.extend([0, body.len()]);
        at.sort_unstable();
        let chunks: Vec<&[u8]> = at.windows(2).map(|cut| &body[cut[0]..cut[1]]).collect();
        let body_parts = [Ok::<_, Infallible>(Bytes::copy_from_slice(body)), Ok(Bytes::from_static(b"\n\n"))];
        let library = SseStream::from_bytes_stream(futures::stream::iter(body_parts));
        let library: Vec<_> = library.map(|event| event.unwrap().data.unwrap()).collect().now_or_never().unwrap();
        prop_assert_eq!(data(&chunks, Framing::Sse), Ok(library));
    }
}
