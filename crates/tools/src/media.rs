//! Pictures and documents for a model, as they are stored with a message or with the result of a tool.

use ::documents::{Extracted, Format};
use api::content::MediaKind;
use bytes::Bytes;
use llm::{Content, Media, MediaText, estimate};
use reqwest::Url;
use sha2::{Digest as _, Sha256};

use super::documents::{DocumentReader, ReadError};

/// The largest picture in the result of a tool, in bytes: what all vendors take. Anthropic's limit of 5 MB is one of
/// the base64, which is a third longer.
pub const MAX_PICTURE_BYTES: usize = 15 << 18;
/// [`MAX_PICTURE_BYTES`] for a person.
pub const MAX_PICTURE_SIZE: &str = "3.75 MiB";
/// The most pages of a PDF that is shown as it is in the result of a tool. Of a longer one the text is read, which costs
/// a tenth of the tokens.
pub const MAX_SHOWN_PAGES: u32 = 20;
/// The maximum length of a file's name, in bytes.
const MAX_NAME_BYTES: usize = 255;
/// The largest side of a picture in the result of a tool, in pixels: what all vendors take.
const MAX_TOOL_PICTURE_SIDE: u32 = 8_000;
/// The largest side of an attached picture, and its area, in pixels: more than any vendor takes, and more than a
/// screen, a scanner or a camera makes. A small file may claim any size.
const MAX_SIZE: (u32, u64) = (20_000, 120_000_000);

/// Refuses a picture that claims to be larger than any vendor takes. The error is for a person, or a model.
pub fn check_picture(bytes: &[u8]) -> Result<(), String> {
    let (side, area) = MAX_SIZE;
    match ::documents::picture_size(bytes) {
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
    match ::documents::picture_size(bytes) {
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
    let Some(media_type) = ::documents::picture_type(&bytes) else {
        return Err("it is not a PNG, JPEG, GIF or WebP".into());
    };
    check_tool_picture(&bytes)?;
    Ok(content(MediaKind::Image, media_type, name, bytes, None))
}

/// A file in the result of a tool server, by what its bytes are.
#[derive(Debug, PartialEq)]
pub enum ServerFile {
    /// A picture that a model is shown.
    Picture(Content),
    /// A document that has yet to be read.
    Document(UnreadDocument),
}

impl ServerFile {
    /// A file that a server sent as base64, with the media type and the URI that it states; the error says why a model
    /// gets nothing of it.
    pub fn from_base64(base64: &str, media_type: &str, uri: &str) -> Result<Self, String> {
        let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, base64);
        let bytes = bytes.map_err(|_| "its base64 is broken".to_owned())?;
        if ::documents::picture_type(&bytes).is_some() {
            return picture(None, bytes).map(Self::Picture);
        }
        let name = Url::parse(uri).ok().and_then(|uri| file_name(uri.path()));
        let name = name.unwrap_or_else(|| "document".to_owned());
        let declared = || {
            let media_type = fetch::media_type(media_type).to_ascii_lowercase();
            Format::detect(&media_type, Some(&name)).filter(|format| format.needs_worker())
        };
        let format = Format::of_file(&bytes, &name).or_else(declared);
        let format = format.ok_or_else(|| "it is no picture, PDF, DOCX or XLSX".to_owned())?;
        Ok(Self::Document(UnreadDocument { format, path: name, bytes: Bytes::from(bytes) }))
    }
}

/// A document that a tool found, and that has yet to be read.
#[derive(Debug, PartialEq)]
pub struct UnreadDocument {
    /// Its format.
    pub(super) format: Format,
    /// Its path or its name, for the text of the result.
    pub(super) path: String,
    /// Its bytes.
    pub(super) bytes: Bytes,
}

/// A document in the result of a tool.
#[derive(Debug, PartialEq)]
pub struct ShownDocument {
    /// What stands in the text of the result.
    pub text: String,
    /// A PDF that is shown as it is, and the number of its pages.
    pub pdf: Option<(Content, u32)>,
}

impl UnreadDocument {
    /// What a model gets of it: a PDF of at most so many pages as it is, of any other document the text. `None` stands for
    /// callers who are shown texts only.
    ///
    /// # Errors
    /// The document cannot be read; see [`ReadError`].
    pub async fn show(
        self,
        documents: &DocumentReader,
        shown_pages: Option<u32>,
    ) -> Result<ShownDocument, ReadError> {
        let Self { format, path, bytes } = self;
        let extracted = documents.read(format, bytes.clone()).await?;
        if let (Some(pages), Some(most)) = (extracted.pages, shown_pages)
            && pages <= most
        {
            let name = path.rsplit('/').next().unwrap_or(&path);
            let text = format!("[The PDF `{path}`, {pages} pages, is shown with this result.]");
            return Ok(ShownDocument { text, pdf: Some((pdf(name, bytes.into(), &extracted), pages)) });
        }
        let pages = extracted.pages.map(|pages| format!(", {pages} pages")).unwrap_or_default();
        let text = format!("[The text of `{path}`{pages}:]\n{}", extracted.text);
        Ok(ShownDocument { text, pdf: None })
    }
}

/// The name of the file at the path of an address; `None` if it has none that can be shown.
pub fn file_name(path: &str) -> Option<String> {
    let last = path.rsplit('/').next()?;
    let decoded = percent_decode(last)?;
    let is_name =
        !decoded.is_empty() && decoded.len() <= MAX_NAME_BYTES && !decoded.chars().any(char::is_control);
    is_name.then_some(decoded)
}

/// Decodes the escapes of a part of a path; `None` if that gives no text.
fn percent_decode(part: &str) -> Option<String> {
    let (mut decoded, mut bytes) = (Vec::new(), part.bytes());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex::decode([bytes.next()?, bytes.next()?]).ok()?.pop()?,
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

/// A PDF that a tool found, with its text.
fn pdf(name: &str, bytes: Vec<u8>, extracted: &Extracted) -> Content {
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
    fn the_name_of_a_file_is_the_last_part_of_its_path() {
        for (path, name) in [
            ("/a/Bericht%20M%C3%A4rz.pdf", Some("Bericht März.pdf")),
            ("/a+b=c&d.csv", Some("a+b=c&d.csv")),
            ("/50%", None),
            ("/", None),
            ("/a%0Ab", None),
        ] {
            assert_eq!(file_name(path).as_deref(), name, "{path}");
        }
    }

    #[test]
    fn a_file_of_a_server_is_what_its_bytes_are_or_what_it_was_declared_as() {
        let base64 = |bytes: &[u8]| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
        let of = |bytes: &[u8], media_type: &str, uri: &str| match ServerFile::from_base64(
            &base64(bytes),
            media_type,
            uri,
        ) {
            Ok(ServerFile::Document(document)) => Ok((document.format, document.path)),
            Ok(ServerFile::Picture(picture)) => panic!("{picture:?}"),
            Err(reason) => Err(reason),
        };
        let named = |format, name: &str| Ok((format, name.to_owned()));
        assert_eq!(
            of(b"%PDF-1.4", "text/plain", "file:///a/Mai%202026.pdf"),
            named(Format::Pdf, "Mai 2026.pdf")
        );
        assert_eq!(of(b"%PDF-1.4", "", "report"), named(Format::Pdf, "document"));
        assert_eq!(of(b"hi", "Application/PDF; a=b", "x:/a?b.pdf"), named(Format::Pdf, "a"));
        assert_eq!(of(b"hi", "application/octet-stream", "x:/b.docx"), named(Format::Docx, "b.docx"));
        assert_eq!(of(b"PK\x03\x04", Format::Xlsx.media_type(), "x:/c"), named(Format::Xlsx, "c"));
        for media_type in ["text/csv", "video/mp4", "application/zip", ""] {
            let refused = of(b"hi", media_type, "x:/a.csv").unwrap_err();
            assert!(refused.contains("no picture, PDF"), "{refused}");
        }
        let refused = ServerFile::from_base64("???", "application/pdf", "").unwrap_err();
        assert_eq!(refused, "its base64 is broken");
        let picture = ServerFile::from_base64(&base64(&png(1, 1, 24)), "application/pdf", "x:/a.pdf");
        assert!(matches!(picture, Ok(ServerFile::Picture(_))), "{picture:?}");
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
