//! The `content` of an answer: a text or, from Mistral's reasoning models, a list of chunks, some of which are
//! thoughts (<https://docs.mistral.ai/capabilities/reasoning>).

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::CONTENT_FIELD;
use crate::http::insert;

/// Streamed content.
#[derive(Debug)]
pub(super) enum DeltaContent {
    Text(String),
    Chunks(Vec<Chunk>),
}

#[derive(Debug, serde::Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Chunk {
    Text {
        text: String,
    },
    Thinking {
        thinking: Box<DeltaContent>,
        /// Sent by some models, which require it back.
        signature: Option<String>,
    },
    /// For example a reference to a source.
    #[serde(other)]
    Other,
}

impl DeltaContent {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Chunks(chunks) => chunks.iter().map(Chunk::text).collect(),
        }
    }
}

impl Chunk {
    /// The text of the chunk.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text { text } => text.clone(),
            Self::Thinking { thinking, .. } => thinking.text(),
            Self::Other => String::new(),
        }
    }
}

/// The stored signature of a thought from the content: the name of the field, and the thought's own signature.
pub(super) fn thought_signature(own: Option<String>) -> String {
    own.map_or_else(|| CONTENT_FIELD.to_owned(), |own| json!({CONTENT_FIELD: own}).to_string())
}

/// A thought as it is sent back; `None` if it did not come from the content.
pub(super) fn thinking_chunk(thinking: &str, signature: &str) -> Option<Value> {
    let mut thought = json!({"type": "thinking", "thinking": [text_chunk(thinking)], "closed": true});
    if signature != CONTENT_FIELD {
        let kept: Value = serde_json::from_str(signature).ok()?;
        insert(&mut thought, "signature", json!(kept.get(CONTENT_FIELD)?.as_str()?));
    }
    Some(thought)
}

fn text_chunk(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Content as it is sent back: with `thoughts` in the form in which they came, if there are any; `None` if it is
/// empty.
pub(super) fn to_request_content(thoughts: Vec<Value>, text: Option<&str>) -> Option<Value> {
    if thoughts.is_empty() {
        return text.map(|text| json!(text));
    }
    Some(thoughts.into_iter().chain(text.map(text_chunk)).collect())
}

/// Implemented by hand: an untagged enum would buffer a copy of every delta before it is parsed.
impl<'de> Deserialize<'de> for DeltaContent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = DeltaContent;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text or a list of chunks")
    }

    fn visit_str<E>(self, text: &str) -> Result<DeltaContent, E> {
        Ok(DeltaContent::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<DeltaContent, E> {
        Ok(DeltaContent::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, chunks: A) -> Result<DeltaContent, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(chunks)).map(DeltaContent::Chunks)
    }
}
