//! Content that a person attaches: text, images, documents and audio.
//!
//! Two forms are accepted. The plain one is `{"type": "image", "media_type": …, "data": <base64>, "name"?:
//! …}`. In the vendors' one the data is in a `source`: `{"type": "image", "source": {"type": "base64",
//! "media_type": …, "data": …}}`, or, for documents, `{"type": "text", "media_type": "text/plain", "data":
//! <text>}`. Instead of the data, either form may have the address of a file on the web: `{"type": "image",
//! "url": …}` or `"source": {"type": "url", "url": …}`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The maximum number of blocks in one request.
pub const MAX_CONTENT_BLOCKS: usize = 100;
/// The maximum length of an address, in bytes.
const MAX_URL_BYTES: usize = 2_048;

/// One block of `media` or `content_blocks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Given", into = "Wire")]
pub enum ContentBlock {
    /// Plain text.
    Text(String),
    /// An image, a document or audio.
    Media(Media),
    /// A file that is yet to be fetched.
    Link(MediaLink),
}

/// An image, a document or audio.
#[derive(Clone, PartialEq, Eq)]
pub struct Media {
    /// How the media is presented to a model.
    pub kind: MediaKind,
    /// The media type, such as `image/png`: lower case, without parameters, and of audio the [usual](usual_audio_type)
    /// one.
    pub media_type: String,
    /// The file's name, if it has one.
    pub name: Option<String>,
    /// The decoded bytes.
    pub data: Vec<u8>,
}

/// The address of an image, a document or audio on the web.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaLink {
    /// How the media is presented to a model.
    pub kind: MediaKind,
    /// The address, as it was given.
    pub url: String,
    /// The media type, if it is not the one that the server says: lower case, without parameters.
    pub media_type: Option<String>,
    /// The file's name, if it is not the one in the address.
    pub name: Option<String>,
}

impl std::fmt::Debug for Media {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, media_type, name, data } = self;
        write!(formatter, "Media({kind:?}, {media_type}, {name:?}, {} bytes)", data.len())
    }
}

/// How media is presented to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MediaKind {
    /// An image.
    Image,
    /// A document.
    Document,
    /// A sound recording.
    Audio,
}

/// Why a content block is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// It has neither of the two forms.
    #[error("must have `media_type` and `data`, or `url`, or a `source` that has them")]
    NoData,
    /// Data is given twice.
    #[error("must have one of `data`, `url` and `source`, not more of them")]
    TwoForms,
    /// The type of the source is not supported.
    #[error("`source.type` must be `base64` or `url`, or `text` for a document")]
    Source,
    /// The data cannot be decoded.
    #[error("`data` must be base64")]
    Base64,
    /// The data is empty.
    #[error("`data` must not be empty")]
    Empty,
    /// The address is malformed.
    #[error("`url` must be an address that begins with `http://` or `https://`, of at most 2048 bytes")]
    Url,
    /// The media type is malformed.
    #[error("`media_type` must be a type such as `image/png`, without parameters")]
    MediaType,
    /// The media type of an image is not an image type.
    #[error("`media_type` of an image must begin with `image/`")]
    NoImage,
    /// The media type of audio is not an audio type.
    #[error("`media_type` of audio must begin with `audio/`")]
    NoAudio,
    /// There is no text.
    #[error("must have `text`")]
    NoText,
    /// The text is blank.
    #[error("`text` must not be empty or blank")]
    BlankText,
    /// The name is too long.
    #[error("`name` must be at most 255 bytes without control characters")]
    Name,
}

/// A content block as received. It is parsed as one object, so that an error names the right field.
#[derive(Deserialize)]
struct Given {
    #[serde(rename = "type")]
    kind: GivenKind,
    text: Option<String>,
    media_type: Option<String>,
    data: Option<String>,
    url: Option<String>,
    source: Option<Source>,
    #[serde(alias = "title")]
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum GivenKind {
    Text,
    Image,
    Document,
    Audio,
}

/// A content block as it is serialized.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Wire {
    /// Plain text.
    Text {
        /// The text.
        text: String,
    },
    /// An image.
    Image(WireMedia),
    /// A document.
    Document(WireMedia),
    /// A sound recording.
    Audio(WireMedia),
}

/// An image, a document or audio in serialized form: with `media_type` and `data`, with `url`, or with a `source`
/// that has them.
#[derive(Serialize, ToSchema)]
#[schema(as = MediaSource)]
struct WireMedia {
    /// The media type, such as `image/png`.
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    /// The bytes in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    /// The address of the file on the web, instead of the bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// The vendors' form.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<Source>,
    /// The file's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// The vendors' form of data.
#[derive(Serialize, Deserialize, ToSchema)]
struct Source {
    /// `base64` or `url`, or `text` for a document.
    #[serde(rename = "type")]
    kind: String,
    /// The media type, such as `image/png`.
    #[serde(default)]
    media_type: Option<String>,
    /// The bytes in base64, or the text.
    #[serde(default)]
    data: Option<String>,
    /// The address of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

impl TryFrom<Given> for ContentBlock {
    type Error = ContentError;

    fn try_from(given: Given) -> Result<Self, ContentError> {
        let Given { kind, text, media_type, data, url, source, name } = given;
        let media = WireMedia { media_type, data, url, source, name };
        match kind {
            GivenKind::Text => match text {
                Some(text) if !text.trim().is_empty() => Ok(Self::Text(text)),
                Some(_) => Err(ContentError::BlankText),
                None => Err(ContentError::NoText),
            },
            GivenKind::Image => media.parse(MediaKind::Image),
            GivenKind::Document => media.parse(MediaKind::Document),
            GivenKind::Audio => media.parse(MediaKind::Audio),
        }
    }
}

impl WireMedia {
    fn parse(self, kind: MediaKind) -> Result<ContentBlock, ContentError> {
        let Self { media_type, data, url, source, name } = self;
        if name.as_ref().is_some_and(|name| name.len() > 255 || name.chars().any(char::is_control)) {
            return Err(ContentError::Name);
        }
        let (media_type, data, is_text) = match (data, url, source) {
            (Some(data), None, None) => (media_type, data, false),
            (None, Some(url), None) => return parse_link(kind, url, media_type, name),
            (None, None, Some(source)) => {
                let Source { kind: source_kind, media_type, data, url } = source;
                let is_text = match (source_kind.as_str(), url) {
                    ("base64", _) => false,
                    ("text", _) if kind == MediaKind::Document => true,
                    ("url", Some(url)) => return parse_link(kind, url, media_type, name),
                    ("url", None) => return Err(ContentError::Url),
                    _ => return Err(ContentError::Source),
                };
                let data = data.ok_or(ContentError::NoData)?;
                (media_type.or_else(|| is_text.then(|| "text/plain".into())), data, is_text)
            }
            (None, None, None) => return Err(ContentError::NoData),
            _ => return Err(ContentError::TwoForms),
        };
        let media_type = parse_media_type(kind, &media_type.ok_or(ContentError::NoData)?)?;
        let data = if is_text {
            data.into_bytes()
        } else {
            STANDARD.decode(data).map_err(|_| ContentError::Base64)?
        };
        if data.is_empty() {
            return Err(ContentError::Empty);
        }
        Ok(ContentBlock::Media(Media { kind, media_type, name, data }))
    }
}

fn parse_link(
    kind: MediaKind,
    url: String,
    media_type: Option<String>,
    name: Option<String>,
) -> Result<ContentBlock, ContentError> {
    let scheme = url.get(..8).unwrap_or(&url).to_ascii_lowercase();
    if url.len() > MAX_URL_BYTES || !(scheme.starts_with("http://") || scheme.starts_with("https://")) {
        return Err(ContentError::Url);
    }
    let media_type = media_type.map(|media_type| parse_media_type(kind, &media_type)).transpose()?;
    Ok(ContentBlock::Link(MediaLink { kind, url, media_type, name }))
}

/// Returns a media type in lower case, and of audio the [usual](usual_audio_type) one.
///
/// # Errors
/// See [`ContentError::MediaType`], [`ContentError::NoImage`] and [`ContentError::NoAudio`].
pub fn parse_media_type(kind: MediaKind, media_type: &str) -> Result<String, ContentError> {
    let media_type = media_type.to_ascii_lowercase();
    let (main, sub) = media_type.split_once('/').ok_or(ContentError::MediaType)?;
    if media_type.len() > 127 || !is_token(main) || !is_token(sub) {
        return Err(ContentError::MediaType);
    }
    match kind {
        MediaKind::Image if main != "image" => Err(ContentError::NoImage),
        MediaKind::Audio if main != "audio" => Err(ContentError::NoAudio),
        MediaKind::Audio => Ok(usual_audio_type(&media_type).to_owned()),
        MediaKind::Image | MediaKind::Document => Ok(media_type),
    }
}

/// The usual media type of an audio format, which has many.
pub fn usual_audio_type(media_type: &str) -> &str {
    match media_type {
        "audio/x-wav" | "audio/wave" | "audio/vnd.wave" | "audio/x-pn-wav" => "audio/wav",
        "audio/mp3" | "audio/x-mp3" | "audio/mpeg3" | "audio/x-mpeg" | "audio/x-mpeg-3" => "audio/mpeg",
        "audio/x-aiff" => "audio/aiff",
        "audio/x-aac" | "audio/aacp" | "audio/x-hx-aac-adts" => "audio/aac",
        "audio/x-ogg" | "audio/vorbis" | "audio/opus" => "audio/ogg",
        "audio/x-flac" => "audio/flac",
        other => other,
    }
}

/// Whether `text` is a valid part of a media type (RFC 6838, section 4.2).
fn is_token(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

impl From<ContentBlock> for Wire {
    fn from(block: ContentBlock) -> Self {
        match block {
            ContentBlock::Text(text) => Self::Text { text },
            ContentBlock::Media(Media { kind, media_type, name, data }) => {
                let data = Some(STANDARD.encode(data));
                Self::media(
                    kind,
                    WireMedia { media_type: Some(media_type), data, url: None, source: None, name },
                )
            }
            ContentBlock::Link(MediaLink { kind, url, media_type, name }) => {
                Self::media(kind, WireMedia { media_type, data: None, url: Some(url), source: None, name })
            }
        }
    }
}

impl Wire {
    fn media(kind: MediaKind, media: WireMedia) -> Self {
        match kind {
            MediaKind::Image => Self::Image(media),
            MediaKind::Document => Self::Document(media),
            MediaKind::Audio => Self::Audio(media),
        }
    }
}

impl utoipa::PartialSchema for ContentBlock {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        Wire::schema()
    }
}

impl utoipa::ToSchema for ContentBlock {
    fn name() -> std::borrow::Cow<'static, str> {
        "ContentBlock".into()
    }

    fn schemas(schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>) {
        Wire::schemas(schemas);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(value: Value) -> Result<ContentBlock, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn both_forms_mean_the_same_and_are_written_in_the_plain_one() {
        let plain = json!({"type": "image", "media_type": "image/png", "data": "aGk=", "name": "hi.png"});
        let block = parse(plain.clone()).unwrap();
        let source = json!({"type": "base64", "media_type": "Image/PNG", "data": "aGk="});
        assert_eq!(block, parse(json!({"type": "image", "source": source, "name": "hi.png"})).unwrap());
        assert_eq!(serde_json::to_value(&block).unwrap(), plain);
        let text = json!({"type": "document", "source": {"type": "text", "data": "hi"}, "title": "a"});
        let expected = Media {
            kind: MediaKind::Document,
            media_type: "text/plain".into(),
            name: Some("a".into()),
            data: b"hi".into(),
        };
        assert_eq!(parse(text), Ok(ContentBlock::Media(expected)));
        assert_eq!(parse(json!({"type": "text", "text": "x"})), Ok(ContentBlock::Text("x".into())));
    }

    #[test]
    fn both_forms_may_have_an_address_instead_of_the_data() {
        let plain = json!({"type": "document", "url": "HTTPS://example.org/a.pdf", "name": "a.pdf"});
        let block = parse(plain.clone()).unwrap();
        let source = json!({"type": "url", "url": "HTTPS://example.org/a.pdf"});
        assert_eq!(block, parse(json!({"type": "document", "source": source, "title": "a.pdf"})).unwrap());
        assert_eq!(serde_json::to_value(&block).unwrap(), plain);
    }

    #[test]
    fn audio_has_the_usual_media_type_of_its_format() {
        for (given, usual) in
            [("audio/wav", "audio/wav"), ("Audio/X-WAV", "audio/wav"), ("audio/mp3", "audio/mpeg")]
        {
            let plain = json!({"type": "audio", "media_type": given, "data": "aGk=", "name": "録音.wav"});
            let ContentBlock::Media(media) = parse(plain.clone()).unwrap() else { panic!("{plain}") };
            assert_eq!((media.kind, media.media_type.as_str()), (MediaKind::Audio, usual));
            let source = json!({"type": "base64", "media_type": given, "data": "aGk="});
            let block = parse(json!({"type": "audio", "source": source, "name": "録音.wav"})).unwrap();
            assert_eq!(block, ContentBlock::Media(media));
            let written = serde_json::to_value(&block).unwrap();
            assert_eq!((&written["type"], &written["media_type"]), (&json!("audio"), &json!(usual)));
            assert_eq!(parse(written), Ok(block));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let image = |fields: Value| {
            let mut image = json!({"type": "image"});
            image.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            image
        };
        for (value, words) in [
            (json!({"type": "text", "text": " "}), "`text` must not be empty"),
            (json!({"type": "text"}), "must have `text`"),
            (json!({"text": "a"}), "missing field `type`"),
            (json!({"type": "sound"}), "unknown variant `sound`"),
            (image(json!({})), "must have `media_type` and `data`"),
            (image(json!({"data": "aGk="})), "must have `media_type` and `data`"),
            (image(json!({"media_type": "image/png", "data": "%"})), "must be base64"),
            (image(json!({"media_type": "image/png", "data": ""})), "must not be empty"),
            (image(json!({"media_type": "png", "data": "aGk="})), "must be a type such as"),
            (image(json!({"media_type": "image/png;q=1", "data": "aGk="})), "without parameters"),
            (image(json!({"media_type": "text/plain", "data": "aGk="})), "must begin with `image/`"),
            (image(json!({"source": {"type": "file", "url": "http://x"}})), "`source.type` must be"),
            (image(json!({"source": {"type": "url"}})), "`url` must be an address"),
            (image(json!({"url": "ftp://x"})), "`url` must be an address"),
            (image(json!({"url": format!("http://{}", "x".repeat(2_048))})), "`url` must be an address"),
            (image(json!({"url": "http://x", "media_type": "text/plain"})), "must begin with `image/`"),
            (image(json!({"data": "aGk=", "source": {"type": "base64"}})), "not more of them"),
            (image(json!({"data": "aGk=", "url": "http://x"})), "not more of them"),
            (
                json!({"type": "audio", "media_type": "video/ogg", "data": "aGk="}),
                "`media_type` of audio must begin with `audio/`",
            ),
            (json!({"type": "audio", "source": {"type": "text", "data": "hi"}}), "`source.type` must be"),
        ] {
            let error = parse(value.clone()).unwrap_err();
            assert!(error.contains(words), "{value}: {error}");
        }
    }
}
