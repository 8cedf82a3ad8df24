//! What a person attached, in the terms that the vendors' protocols share.
//!
//! A history outlives what was attached to it: media that are lost from the store, or that a model does not take
//! which was chosen later, are told as a text, so that the request stays valid.

use std::borrow::Cow;

use contract::content::MediaKind;

use super::http::{is_hash, placeholder};
use super::{Content, Media};

/// The type of a PDF.
pub(super) const PDF: &str = "application/pdf";
/// The type of a plain text.
pub(super) const PLAIN_TEXT: &str = "text/plain";

/// The types of media that a vendor's models take.
#[derive(Debug)]
pub(super) struct SupportedMedia {
    images: &'static [&'static str],
    documents: &'static [&'static str],
}

/// What Anthropic and OpenAI take: both document the same types.
const COMMON_MEDIA: SupportedMedia = SupportedMedia {
    images: &["image/jpeg", "image/png", "image/gif", "image/webp"],
    documents: &[PDF, PLAIN_TEXT],
};

/// What Gemini takes (<https://ai.google.dev/gemini-api/docs/image-understanding#supported-formats>); plain texts are
/// sent as texts.
pub(super) const GEMINI_MEDIA: SupportedMedia = SupportedMedia {
    images: &["image/jpeg", "image/png", "image/webp", "image/heic", "image/heif"],
    documents: &[PDF, PLAIN_TEXT],
};

/// What Ollama takes: the images that its SDK knows (ollama-python, `_types.py`) and, as texts, plain texts.
pub(super) const OLLAMA_MEDIA: SupportedMedia =
    SupportedMedia { images: &["image/jpeg", "image/png", "image/webp"], documents: &[PLAIN_TEXT] };

impl SupportedMedia {
    /// Whether such media are taken.
    ///
    /// # Errors
    /// Why they are not and what is, for a person.
    pub(super) fn check(&self, kind: MediaKind, media_type: &str) -> Result<(), String> {
        let (what, types) = match kind {
            MediaKind::Image => ("images", self.images),
            MediaKind::Document => ("documents", self.documents),
        };
        if types.contains(&media_type) {
            return Ok(());
        }
        Err(format!("the model takes {what} of the types {}, not {media_type}", types.join(", ")))
    }

    /// What is sent of `content`: nothing of a blank text, which providers refuse.
    pub(super) fn outgoing<'a>(&self, content: &'a Content) -> Option<OutgoingContent<'a>> {
        match content {
            Content::Text { text } | Content::Note { text } if is_blank(text) => None,
            Content::Text { text } | Content::Note { text } => Some(OutgoingContent::Text(text.into())),
            Content::Media(media) => Some(self.outgoing_media(media)),
        }
    }

    fn outgoing_media<'a>(&self, media: &'a Media) -> OutgoingContent<'a> {
        let name = media.name.as_deref().filter(|name| !is_blank(name));
        let told = |what: &str| OutgoingContent::Text(placeholder_text(media.kind, name, what).into());
        let stored = media.data.as_ref().filter(|_| is_hash(&media.hash));
        let Some(data) = stored else { return told("is no longer stored") };
        if self.check(media.kind, &media.media_type).is_err() {
            return told("is of a type that this model does not take");
        }
        match media.kind {
            MediaKind::Image => {
                OutgoingContent::Image { media_type: &media.media_type, base64: placeholder(&media.hash) }
            }
            MediaKind::Document if media.media_type == PDF => {
                OutgoingContent::Pdf { name, base64: placeholder(&media.hash) }
            }
            MediaKind::Document => match String::from_utf8_lossy(data) {
                text if is_blank(&text) => told("is empty"),
                text => OutgoingContent::PlainText { name, text },
            },
        }
    }
}

/// Whether the models of Anthropic and OpenAI take such media.
pub(super) fn check_common_media(kind: MediaKind, media_type: &str) -> Result<(), String> {
    COMMON_MEDIA.check(kind, media_type)
}

/// What is sent of a content.
#[derive(Debug, PartialEq)]
pub(super) enum OutgoingContent<'a> {
    /// A text, never blank.
    Text(Cow<'a, str>),
    /// An image. What stands for its bytes becomes base64 when it is sent.
    Image { media_type: &'a str, base64: String },
    /// A PDF, in the same way.
    Pdf { name: Option<&'a str>, base64: String },
    /// A document of plain text, never blank.
    PlainText { name: Option<&'a str>, text: Cow<'a, str> },
}

impl<'a> OutgoingContent<'a> {
    /// What is sent of `content` to the models of Anthropic and OpenAI.
    pub(super) fn from_content(content: &'a Content) -> Option<Self> {
        COMMON_MEDIA.outgoing(content)
    }
}

/// A document of plain text, where there are only texts.
pub(super) fn titled_text(name: Option<&str>, text: &str) -> String {
    match name {
        Some(name) => format!("Document {name}:\n\n{text}"),
        None => text.to_owned(),
    }
}

/// What stands in the place of media that cannot be sent.
fn placeholder_text(kind: MediaKind, name: Option<&str>, what: &str) -> String {
    let kind = match kind {
        MediaKind::Image => "image",
        MediaKind::Document => "document",
    };
    match name {
        Some(name) => format!("[The {kind} {name} {what}.]"),
        None => format!("[The {kind} {what}.]"),
    }
}

/// Whether providers refuse a text, for there is nothing in it.
pub(super) fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// What a model is told in place of a blank result, which some providers refuse.
pub(super) const NO_OUTPUT: &str = "(no output)";

/// What introduces the media that a person added to a tool's result, where they cannot stand within it.
pub(super) fn attachments_intro(call: &str) -> String {
    format!("To the result of the call {call} the user added:")
}

#[cfg(test)]
#[path = "media_tests.rs"]
pub(super) mod tests;
