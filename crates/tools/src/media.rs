//! Pictures and documents for a model, as they are stored with a message or with the result of a tool.

use api::content::MediaKind;
use bytes::Bytes;
use documents::{Extracted, Format};
use llm::{Content, Media, MediaText, estimate};
use sha2::{Digest as _, Sha256};

/// The largest picture in the result of a tool, in bytes: what all vendors take. Anthropic's limit of 5 MB is one of
/// the base64, which is a third longer.
pub const MAX_PICTURE_BYTES: usize = 15 << 18;
/// [`MAX_PICTURE_BYTES`] for a person.
pub const MAX_PICTURE_SIZE: &str = "3.75 MiB";
/// The largest side of a picture in the result of a tool, in pixels: what all vendors take.
const MAX_TOOL_PICTURE_SIDE: u32 = 8_000;
/// The largest side of an attached picture, and its area, in pixels: more than any vendor takes, and more than a
/// screen, a scanner or a camera makes. A small file may claim any size.
const MAX_SIZE: (u32, u64) = (20_000, 120_000_000);

/// Refuses a picture that claims to be larger than any vendor takes. The error is for a person, or a model.
pub fn check_picture(bytes: &[u8]) -> Result<(), String> {
    let (side, area) = MAX_SIZE;
    match documents::picture_size(bytes) {
        Some((width, height))
            if width > side || height > side || u64::from(width) * u64::from(height) > area =>
        {
            Err(format!(
                "the picture has {width} × {height} pixels; at most {side} on a side and {} million in all are accepted",
                area / 1_000_000
            ))
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses a picture of a tool that some vendor might refuse: nobody has chosen it, and the user could not take it
/// back.
fn check_tool_picture(bytes: &[u8]) -> Result<(), String> {
    let side = MAX_TOOL_PICTURE_SIDE;
    if bytes.len() > MAX_PICTURE_BYTES {
        return Err(format!("the picture has {} bytes; at most {MAX_PICTURE_SIZE} are shown", bytes.len()));
    }
    match documents::picture_size(bytes) {
        None | Some((0, _) | (_, 0)) => Err("the picture is broken: its header does not say its size".into()),
        Some((width, height)) if width > side || height > side => {
            Err(format!("the picture has {width} × {height} pixels; at most {side} on a side are shown"))
        }
        Some(_) => Ok(()),
    }
}

/// What is stored of the text of a document.
pub fn media_text(Extracted { text, pages }: &Extracted) -> MediaText {
    let text = match (text.is_empty(), pages) {
        (false, _) => text.clone(),
        (true, Some(pages)) => format!("[No text was found on the {pages} pages; they may be pictures.]"),
        (true, None) => "[The document has no text.]".to_owned(),
    };
    let tokens = Some(estimate::text(&text));
    MediaText { hash: hex::encode(Sha256::digest(&text)), tokens, data: Some(Bytes::from(text)) }
}

/// A picture that a tool found; the error says why a model is not shown it.
pub(super) fn picture(name: Option<&str>, bytes: Vec<u8>) -> Result<Content, String> {
    let Some(media_type) = documents::picture_type(&bytes) else {
        return Err("it is not a PNG, JPEG, GIF or WebP".into());
    };
    check_tool_picture(&bytes)?;
    Ok(content(MediaKind::Image, media_type, name, bytes, None))
}

/// A picture of a tool server, in base64; the error says why a model is not shown it.
pub fn picture_from_base64(base64: &str) -> Result<Content, String> {
    if base64.len() / 4 * 3 > MAX_PICTURE_BYTES + 3 {
        return Err(format!("it is larger than {MAX_PICTURE_SIZE}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32, length: usize) -> Vec<u8> {
        let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
        let mut bytes = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &size].concat();
        bytes.resize(length, 0);
        bytes
    }

    #[test]
    fn a_tool_shows_only_pictures_that_every_vendor_takes() {
        let shown = |bytes: Vec<u8>| picture(None, bytes).map(|_| ());
        assert_eq!(shown(png(8_000, 8_000, MAX_PICTURE_BYTES)), Ok(()));
        for (bytes, words) in [
            (png(8_001, 1, 24), "8001 × 1 pixels"),
            (png(1, 8_001, 24), "1 × 8001 pixels"),
            (png(0, 1, 24), "broken"),
            (png(1, 1, 23), "broken"),
            (b"\x89PNG".to_vec(), "broken"),
            (b"\xff\xd8\xff".to_vec(), "broken"),
            (png(1, 1, MAX_PICTURE_BYTES + 1), "at most 3.75 MiB"),
            (b"hi".to_vec(), "not a PNG"),
        ] {
            let refused = shown(bytes).unwrap_err();
            assert!(refused.contains(words), "{words}: {refused}");
        }
        // An attached one may be larger.
        assert_eq!(check_picture(&png(8_001, 1, 24)), Ok(()));
    }
}
