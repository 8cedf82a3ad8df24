//! Converts a user's attachments to the terms that the vendors' protocols share.
//!
//! A history outlives its attachments: media that were lost from the store, or that a model chosen later does not
//! accept, are replaced by a text, so that the request stays valid.

use std::borrow::Cow;

use api::content::MediaKind;

use super::http::{is_hash, placeholder};
use super::profile::ModelProfile;
use super::provider::Provider;
use super::{Content, Media, MediaText};

/// The media type of PDFs.
pub(super) const PDF: &str = "application/pdf";
/// The media type of WAV.
pub(super) const WAV: &str = "audio/wav";
/// The media type of MP3.
pub(super) const MP3: &str = "audio/mpeg";
/// The media type of plain texts.
pub(super) const PLAIN_TEXT: &str = "text/plain";

/// The media types that a vendor's models accept.
#[derive(Clone, Copy, Debug)]
pub(super) struct SupportedMedia {
    images: &'static [&'static str],
    documents: &'static [&'static str],
    audio: &'static [&'static str],
}

/// The types of Anthropic and OpenAI: both document the same ones.
const COMMON_MEDIA: SupportedMedia = SupportedMedia {
    images: &["image/jpeg", "image/png", "image/gif", "image/webp"],
    documents: &[PDF, PLAIN_TEXT],
    audio: &[],
};

/// The types of OpenAI's models that take audio, in Chat Completions (<https://platform.openai.com/docs/guides/audio>).
const OPENAI_AUDIO_MEDIA: SupportedMedia = SupportedMedia { audio: &[WAV, MP3], ..COMMON_MEDIA };

/// The types of Gemini (<https://ai.google.dev/gemini-api/docs/image-understanding#supported-formats>); plain-text
/// documents are sent as text (<https://ai.google.dev/gemini-api/docs/audio#supported-formats>).
const GEMINI_MEDIA: SupportedMedia = SupportedMedia {
    images: &["image/jpeg", "image/png", "image/webp", "image/heic", "image/heif"],
    documents: &[PDF, PLAIN_TEXT],
    audio: &[WAV, MP3, "audio/aiff", "audio/aac", "audio/ogg", "audio/flac"],
};

/// The types of Ollama: the images that its SDK accepts (ollama-python, `_types.py`), and plain texts, which are
/// sent as text.
pub(super) const OLLAMA_MEDIA: SupportedMedia = SupportedMedia {
    images: &["image/jpeg", "image/png", "image/webp"],
    documents: &[PLAIN_TEXT],
    audio: &[],
};

/// The types that a model takes in Chat Completions.
pub(super) fn openai_media(profile: &ModelProfile) -> SupportedMedia {
    if profile.takes_audio { OPENAI_AUDIO_MEDIA } else { COMMON_MEDIA }
}

/// The types that a model of Gemini takes.
pub(super) fn gemini_media(profile: &ModelProfile) -> SupportedMedia {
    let audio = if profile.takes_audio { GEMINI_MEDIA.audio } else { &[] };
    SupportedMedia { audio, ..GEMINI_MEDIA }
}

impl SupportedMedia {
    /// Checks whether media of this kind and type are accepted.
    ///
    /// # Errors
    /// Returns a message for the user that says why they are not accepted, and which are.
    pub(super) fn check(&self, kind: MediaKind, media_type: &str) -> Result<(), String> {
        let (kind_name, types) = match kind {
            MediaKind::Image => ("images", self.images),
            MediaKind::Document => ("documents", self.documents),
            MediaKind::Audio => ("audio", self.audio),
        };
        if types.contains(&media_type) {
            return Ok(());
        }
        if types.is_empty() {
            return Err(format!("the model accepts no {kind_name}"));
        }
        Err(format!("the model accepts {kind_name} of the types {}, not {media_type}", types.join(", ")))
    }

    /// Converts `content` for sending; `None` for a blank text, which providers refuse.
    pub(super) fn outgoing<'a>(&self, content: &'a Content) -> Option<OutgoingContent<'a>> {
        match content {
            Content::Text { text } | Content::Note { text } if is_blank(text) => None,
            Content::Text { text } | Content::Note { text } => Some(OutgoingContent::Text(text.into())),
            Content::Media(media) => Some(self.outgoing_media(media)),
        }
    }

    fn outgoing_media<'a>(&self, media: &'a Media) -> OutgoingContent<'a> {
        let name = media.name.as_deref().filter(|name| !is_blank(name));
        let replaced =
            |reason: &str| OutgoingContent::Text(placeholder_text(media.kind, name, reason).into());
        let plain_text = |text| match String::from_utf8_lossy(text) {
            text if is_blank(&text) => replaced("is empty"),
            text => OutgoingContent::PlainText { name, text },
        };
        let is_accepted = self.check(media.kind, &media.media_type).is_ok();
        let stored = media.data.as_ref().filter(|_| is_hash(&media.hash));
        let Some(data) = stored.filter(|_| is_accepted) else {
            return match &media.text {
                Some(MediaText { data: Some(text), .. }) => plain_text(text),
                // Its bytes need not be loaded.
                None if !is_accepted => replaced("is of a type that this model does not accept"),
                _ => replaced("is no longer stored"),
            };
        };
        match media.kind {
            MediaKind::Image => {
                OutgoingContent::Image { media_type: &media.media_type, base64: placeholder(&media.hash) }
            }
            MediaKind::Document if media.media_type == PDF => {
                OutgoingContent::Pdf { name, base64: placeholder(&media.hash) }
            }
            MediaKind::Document => plain_text(data),
            MediaKind::Audio => {
                OutgoingContent::Audio { media_type: &media.media_type, base64: placeholder(&media.hash) }
            }
        }
    }
}

/// Whether some vendor's models accept media of this kind and type.
pub(super) fn is_taken_by_some(kind: MediaKind, media_type: &str) -> bool {
    Provider::ALL.into_iter().any(|provider| widest_media(provider).check(kind, media_type).is_ok())
}

/// What a provider's models accept at most.
fn widest_media(provider: Provider) -> SupportedMedia {
    match provider {
        Provider::Anthropic => COMMON_MEDIA,
        Provider::OpenAi | Provider::OpenAiCompatible => OPENAI_AUDIO_MEDIA,
        Provider::Gemini => GEMINI_MEDIA,
        Provider::Ollama => OLLAMA_MEDIA,
        // It sends nothing.
        Provider::Scripted => SupportedMedia { images: &[], documents: &[], audio: &[] },
    }
}

/// Checks whether the models of Anthropic and OpenAI accept media of this kind and type.
pub(super) fn check_common_media(kind: MediaKind, media_type: &str) -> Result<(), String> {
    COMMON_MEDIA.check(kind, media_type)
}

/// Content in the form in which it is sent.
#[derive(Debug, PartialEq)]
pub(super) enum OutgoingContent<'a> {
    /// A text, never blank.
    Text(Cow<'a, str>),
    /// An image. `base64` is a placeholder for its bytes, which are encoded while they are sent.
    Image { media_type: &'a str, base64: String },
    /// A PDF, with the same placeholder.
    Pdf { name: Option<&'a str>, base64: String },
    /// A sound recording, with the same placeholder.
    Audio { media_type: &'a str, base64: String },
    /// A plain-text document, never blank.
    PlainText { name: Option<&'a str>, text: Cow<'a, str> },
}

impl<'a> OutgoingContent<'a> {
    /// Converts `content` for the models of Anthropic, and for those of OpenAI, except that some of these take audio.
    pub(super) fn from_content(content: &'a Content) -> Option<Self> {
        COMMON_MEDIA.outgoing(content)
    }
}

/// A plain-text document as a titled text, for protocols without documents.
pub(super) fn titled_text(name: Option<&str>, text: &str) -> String {
    match name {
        Some(name) => format!("Document {name}:\n\n{text}"),
        None => text.to_owned(),
    }
}

/// The text that replaces media that cannot be sent.
pub(super) fn placeholder_text(kind: MediaKind, name: Option<&str>, reason: &str) -> String {
    let kind = match kind {
        MediaKind::Image => "image",
        MediaKind::Document => "document",
        MediaKind::Audio => "audio",
    };
    match name {
        Some(name) => format!("[The {kind} {name} {reason}.]"),
        None => format!("[The {kind} {reason}.]"),
    }
}

/// Whether a text is blank, so that providers refuse it.
pub(super) fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// The text that replaces a blank result, which some providers refuse.
pub(super) const NO_OUTPUT: &str = "(no output)";

/// The introduction to media of a tool's result, if the media cannot be part of it.
pub(super) fn attachments_intro(call: &str) -> String {
    format!("Belonging to the result of the call {call}:")
}

#[cfg(test)]
#[path = "../tests/unit/media.rs"]
pub(super) mod tests;
