//! What a person attached, in the terms that the vendors' protocols share.
//!
//! A history outlives what was attached to it: media that are lost from the store, or that a model does not take
//! which was chosen later, are told as a text, so that the request stays valid.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use contract::content::MediaKind;

use super::{Content, Media};

const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];
/// The type of a PDF.
pub(super) const PDF: &str = "application/pdf";
/// The type of a plain text.
pub(super) const PLAIN_TEXT: &str = "text/plain";

/// Whether the vendors' models take such media: each vendor documents the same types.
pub(super) fn taken(kind: MediaKind, media_type: &str) -> Result<(), String> {
    let (what, types) = match kind {
        MediaKind::Image => ("images", &IMAGE_TYPES[..]),
        MediaKind::Document => ("documents", &[PDF, PLAIN_TEXT][..]),
    };
    if types.contains(&media_type) {
        return Ok(());
    }
    Err(format!("the model takes {what} of the types {}, not {media_type}", types.join(", ")))
}

/// What is sent of a content.
#[derive(Debug, PartialEq)]
pub(super) enum Sendable<'a> {
    /// A text, never blank.
    Text(Cow<'a, str>),
    /// An image.
    Image { media_type: &'a str, base64: String },
    /// A PDF.
    Pdf { name: Option<&'a str>, base64: String },
    /// A document of plain text, never blank.
    Plain { name: Option<&'a str>, text: Cow<'a, str> },
}

impl<'a> Sendable<'a> {
    /// What is sent of `content`: nothing of a blank text, which providers refuse.
    pub(super) fn of(content: &'a Content) -> Option<Self> {
        match content {
            Content::Text { text } if is_blank(text) => None,
            Content::Text { text } => Some(Self::Text(text.into())),
            Content::Media(media) => Some(Self::of_media(media)),
        }
    }

    fn of_media(media: &'a Media) -> Self {
        let name = media.name.as_deref().filter(|name| !is_blank(name));
        let told = |what: &str| Self::Text(told(media.kind, name, what).into());
        let Some(data) = &media.data else { return told("is no longer stored") };
        if taken(media.kind, &media.media_type).is_err() {
            return told("is of a type that this model does not take");
        }
        match media.kind {
            MediaKind::Image => Self::Image { media_type: &media.media_type, base64: STANDARD.encode(data) },
            MediaKind::Document if media.media_type == PDF => {
                Self::Pdf { name, base64: STANDARD.encode(data) }
            }
            MediaKind::Document => match String::from_utf8_lossy(data) {
                text if is_blank(&text) => told("is empty"),
                text => Self::Plain { name, text },
            },
        }
    }
}

/// What stands in the place of media that cannot be sent.
fn told(kind: MediaKind, name: Option<&str>, what: &str) -> String {
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
pub(super) fn introduction(call: &str) -> String {
    format!("To the result of the call {call} the user added:")
}

#[cfg(test)]
#[path = "media_tests.rs"]
pub(super) mod tests;
