//! The body of a request: JSON in which placeholders are replaced by the attachments while it is sent. So an
//! attachment is in memory once, and neither as base64 nor as part of the JSON.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use memchr::memmem;

/// The prefix of an attachment's placeholder. It is random, so that no text from outside can be mistaken for one.
static PLACEHOLDER_MARKER: LazyLock<String> = LazyLock::new(|| {
    let mut random = [0_u8; 16];
    // Without randomness, a conversation could at most repeat its own attachments.
    let _ = getrandom::fill(&mut random);
    format!("attached{}", hex::encode(random))
});
/// The length of a hash, in characters.
const HASH_CHARS: usize = 64;
/// The number of bytes that are encoded at once. A multiple of three, so that base64 needs no padding between
/// chunks.
const ENCODE_CHUNK_BYTES: usize = 48 * 1024;

/// Whether a text has the form of a hash: an imported journal may contain anything.
pub(in super::super) fn is_hash(text: &str) -> bool {
    text.len() == HASH_CHARS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The placeholder for the base64 of the bytes with this hash.
pub(in super::super) fn placeholder(hash: &str) -> String {
    format!("{}{hash}", *PLACEHOLDER_MARKER)
}

/// A request body of JSON segments and the attachments between them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EncodedBody {
    parts: Vec<BodyPart>,
    /// The length of the encoded body, in bytes.
    pub(super) length: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum BodyPart {
    Json(Bytes),
    Attachment(Bytes),
}

impl EncodedBody {
    /// Creates a body from `json`, with the placeholders of `attached` to be replaced by its bytes.
    pub(super) fn new(json: Vec<u8>, attached: &HashMap<&str, Bytes>) -> Self {
        let mut rest = Bytes::from(json);
        let mut parts = Vec::new();
        if !attached.is_empty() {
            let finder = memmem::Finder::new(PLACEHOLDER_MARKER.as_bytes());
            while let Some(at) = finder.find(&rest) {
                parts.push(BodyPart::Json(rest.split_to(at)));
                let end = rest.len().min(PLACEHOLDER_MARKER.len() + HASH_CHARS);
                let placeholder = rest.split_to(end);
                let hash = placeholder
                    .get(PLACEHOLDER_MARKER.len()..)
                    .and_then(|hash| std::str::from_utf8(hash).ok());
                let bytes = hash.and_then(|hash| attached.get(hash)).cloned().unwrap_or_default();
                parts.push(BodyPart::Attachment(bytes));
            }
        }
        parts.push(BodyPart::Json(rest));
        let length = parts.iter().map(|part| match part {
            BodyPart::Json(text) => text.len(),
            BodyPart::Attachment(bytes) => bytes.len().div_ceil(3) * 4,
        });
        let length = length.sum();
        Self { parts, length }
    }

    /// The encoded body, chunk by chunk.
    pub(super) fn chunks(self) -> impl Iterator<Item = Bytes> + Send + 'static {
        self.parts.into_iter().flat_map(|part| -> Box<dyn Iterator<Item = Bytes> + Send> {
            match part {
                BodyPart::Json(text) => Box::new(std::iter::once(text)),
                BodyPart::Attachment(mut bytes) => Box::new(std::iter::from_fn(move || {
                    let chunk = bytes.split_to(bytes.len().min(ENCODE_CHUNK_BYTES));
                    (!chunk.is_empty()).then(|| Bytes::from(STANDARD.encode(chunk)))
                })),
            }
        })
    }

    /// Converts the body for the HTTP client.
    pub(super) fn into_body(self) -> reqwest::Body {
        match <[BodyPart; 1]>::try_from(self.parts) {
            Ok([BodyPart::Json(text) | BodyPart::Attachment(text)]) => text.into(),
            Err(parts) => {
                let chunks = Self { parts, length: 0 }.chunks().map(Ok::<_, Infallible>);
                reqwest::Body::wrap_stream(futures::stream::iter(chunks))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_attached_is_written_in_base64_where_it_stands() {
        let hashes = ["a", "b", "c"].map(|digit| digit.repeat(HASH_CHARS));
        let large: Vec<u8> = (0..=2 * ENCODE_CHUNK_BYTES).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let attached: HashMap<&str, Bytes> = HashMap::from([
            (hashes[0].as_str(), Bytes::from(large.clone())),
            (hashes[1].as_str(), Bytes::from_static(b"x")),
        ]);
        let [first, second, missing] = hashes.each_ref().map(|hash| placeholder(hash));
        let json = format!(r#"{{"a":"{first}","b":"data:x;base64,{second}","a":"{first}","c":"{missing}"}}"#);
        let outgoing = EncodedBody::new(json.into_bytes(), &attached);
        let length = outgoing.length;
        let sent: Vec<u8> = outgoing.chunks().flatten().collect();
        let large = STANDARD.encode(large);
        let expected = format!(r#"{{"a":"{large}","b":"data:x;base64,eA==","a":"{large}","c":""}}"#);
        assert_eq!((String::from_utf8(sent).unwrap(), length), (expected.clone(), expected.len()));
    }

    #[test]
    fn where_nothing_is_attached_the_json_is_sent_as_it_is() {
        let json = format!(r#""{}""#, placeholder(&"a".repeat(HASH_CHARS)));
        let outgoing = EncodedBody::new(json.clone().into_bytes(), &HashMap::new());
        assert_eq!(outgoing.chunks().collect::<Vec<_>>(), [Bytes::from(json)]);
    }
}
