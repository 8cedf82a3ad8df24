//! Pictures and documents for a model, as they are stored with a message or with the result of a tool.

use api::content::MediaKind;
use bytes::Bytes;
use documents::{Extracted, Format};
use llm::{Content, Media, MediaText, estimate};
use sha2::{Digest as _, Sha256};

/// The largest picture in the result of a tool, in bytes: what all vendors take.
pub const MAX_PICTURE_BYTES: usize = 5 << 20;
/// The largest side of a picture, and its area, in pixels: more than any vendor takes, and more than a
/// screen, a scanner or a camera makes. A small file may claim any size, and a conversation with a picture
/// that its provider refuses is refused for good.
const MAX_SIZE: (u32, u64) = (20_000, 120_000_000);

/// Refuses a picture that claims to be larger than any vendor takes. The error is for a person, or a model.
pub fn check_picture(bytes: &[u8]) -> Result<(), String> {
    let Some((width, height)) = documents::picture_size(bytes) else { return Ok(()) };
    let (side, area) = MAX_SIZE;
    if width > side || height > side || u64::from(width) * u64::from(height) > area {
        return Err(format!(
            "the picture has {width} × {height} pixels; at most {side} on a side and {} million in all are accepted",
            area / 1_000_000
        ));
    }
    Ok(())
}

/// What is stored of the text of a document.
pub fn media_text(Extracted { text, pages }: &Extracted) -> MediaText {
    let text = match (text.is_empty(), pages) {
        (false, _) => text.clone(),
        (true, Some(pages)) => format!("[No text was found on the {pages} pages; they may be pictures.]"),
        (true, None) => "[The document has no text.]".to_owned(),
    };
    MediaText { hash: hex::encode(Sha256::digest(&text)), data: Some(Bytes::from(text)) }
}

/// A picture that a tool found; the error says why a model is not shown it.
pub(super) fn picture(name: Option<&str>, bytes: Vec<u8>) -> Result<Content, String> {
    let Some(media_type) = documents::picture_type(&bytes) else {
        return Err("it is not a PNG, JPEG, GIF or WebP".into());
    };
    if bytes.len() > MAX_PICTURE_BYTES {
        let (size, limit) = (bytes.len(), MAX_PICTURE_BYTES >> 20);
        return Err(format!("the picture has {size} bytes; at most {limit} MiB are shown"));
    }
    check_picture(&bytes)?;
    Ok(content(MediaKind::Image, media_type, name, bytes, None))
}

/// A picture of a tool server, in base64; the error says why a model is not shown it.
pub fn picture_from_base64(base64: &str) -> Result<Content, String> {
    if base64.len() / 4 * 3 > MAX_PICTURE_BYTES + 3 {
        return Err(format!("it is larger than {} MiB", MAX_PICTURE_BYTES >> 20));
    }
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, base64);
    picture(None, bytes.map_err(|_| "its base64 is broken".to_owned())?)
}

/// A PDF that a tool found, with its text.
pub(super) fn pdf(name: &str, bytes: Vec<u8>, extracted: &Extracted) -> Content {
    content(MediaKind::Document, Format::Pdf.media_type(), Some(name), bytes, Some(extracted))
}

fn content(
    kind: MediaKind,
    media_type: &str,
    name: Option<&str>,
    bytes: Vec<u8>,
    extracted: Option<&Extracted>,
) -> Content {
    Content::Media(Media {
        kind,
        media_type: media_type.to_owned(),
        name: name.map(ToOwned::to_owned),
        hash: hex::encode(Sha256::digest(&bytes)),
        tokens: Some(estimate::attachment(
            media_type,
            &bytes,
            extracted.and_then(|extracted| extracted.pages),
        )),
        text: extracted.map(media_text),
        data: Some(Bytes::from(bytes)),
    })
}
