//! Makes the attachments of a message ready before it is accepted: fetches those that are given by an
//! address, and extracts the text of documents. What was fetched and extracted is stored together with the
//! message, so nothing of it is done again, whatever happens to the turn.

use std::time::Duration;

use api::content::{self, ContentBlock, MAX_CONTENT_BLOCKS, Media, MediaKind, MediaLink};
use bytes::Bytes;
use documents::{DocumentError, Extracted, Format};
use fetch::{BodyMemory, FetchError, Target, Wanted, decode, media_type};
use store::IdempotencyKey;
use tools::documents::{DocumentReader, ReadError};
use tools::media::file_name;

use super::{AgentError, Services};

/// How long fetching and reading all attachments of a message may take. A caller waits as long for the first
/// byte of the response, and callers behind proxies wait little longer.
const MAX_TIME: Duration = Duration::from_mins(1);
/// The most attachments of a message that are given by an address.
const MAX_LINKS: usize = 10;
/// The most bytes that are fetched for a message. One request to a model carries little more.
const MAX_FETCHED_BYTES: usize = 20 << 20;
/// The most documents of a message whose text is extracted.
const MAX_DOCUMENTS: usize = 20;
/// The media type that says nothing.
const VAGUE_TYPE: &str = "application/octet-stream";
/// How often a document of an accepted message is read if the program that reads it fails.
const MAX_READS: usize = 3;

/// What is known of the attachments of a message beside their bytes.
#[derive(Default)]
pub(super) struct Intake {
    /// For each attachment, the outcome of reading it; `None` for what is not read.
    pub(super) extracted: Vec<Option<Result<Extracted, ReadError>>>,
    /// The idempotency key of the request as it was sent.
    pub(super) key: Option<IdempotencyKey>,
    /// The memory of what was fetched.
    fetched_memory: Vec<BodyMemory>,
}

/// Whether attachments have to be made ready.
pub(super) fn is_needed(blocks: &[ContentBlock]) -> bool {
    blocks.iter().any(|block| match block {
        ContentBlock::Text(_) => false,
        ContentBlock::Link(_) => true,
        ContentBlock::Media(media) => media.kind == MediaKind::Image || format_of(media).is_some(),
    })
}

/// The format of a document whose text is extracted.
fn format_of(media: &Media) -> Option<Format> {
    let format = Format::detect(&media.media_type, media.name.as_deref());
    format.filter(|_| media.kind == MediaKind::Document)
}

/// The media type that the bytes show: servers often do not know that of audio, and providers refuse a picture that is
/// of another type than it is said to be. What the caller says of audio is checked, not corrected.
fn type_by_bytes(link: &MediaLink, bytes: &[u8]) -> Option<&'static str> {
    match link.kind {
        MediaKind::Image => documents::picture_type(bytes),
        MediaKind::Audio if link.media_type.is_none() => documents::audio_type(bytes),
        MediaKind::Audio | MediaKind::Document => None,
    }
}

/// Refuses a file that was given as one of another kind than its media type says.
fn check_kind(kind: MediaKind, media_type: String) -> Result<String, LinkError> {
    let (said, name) = match media_type.split_once('/') {
        Some(("image", _)) => (MediaKind::Image, "image"),
        Some(("audio", _)) => (MediaKind::Audio, "audio"),
        _ => (MediaKind::Document, "document"),
    };
    if said == kind {
        return Ok(media_type);
    }
    Err(LinkError::Content(format!("the server says that it is {media_type}: give it as `{name}`")))
}

/// The media type that a server declares. One that is malformed says nothing, and could not be read back.
fn declared_type(content_type: &str) -> String {
    let declared = content::parse_media_type(MediaKind::Document, media_type(content_type));
    declared.unwrap_or_else(|_| VAGUE_TYPE.to_owned())
}

impl Services {
    /// Makes the attachments of the request's field `field` ready: in place of addresses there is what they
    /// lead to.
    pub(super) async fn take_in(
        &self,
        field: &str,
        blocks: &mut [ContentBlock],
    ) -> Result<Intake, AgentError> {
        check_count(field, blocks)?;
        let links = blocks.iter().filter(|block| matches!(block, ContentBlock::Link(_))).count();
        if links > MAX_LINKS {
            return Err(AgentError::Invalid(format!("`{field}`: at most {MAX_LINKS} may be given by `url`")));
        }
        let late = || {
            let seconds = MAX_TIME.as_secs();
            AgentError::Invalid(format!("`{field}`: fetching and reading them took longer than {seconds} s"))
        };
        let taking_in = async {
            let mut intake = self.fetch_links(field, blocks).await?;
            intake.extracted = self.extract(field, blocks).await?;
            Ok(intake)
        };
        tokio::time::timeout(MAX_TIME, taking_in).await.unwrap_or_else(|_| Err(late()))
    }

    /// Reads the documents of a message that was accepted earlier. One that can no longer be read is not
    /// refused any more: the model is told why it is missing. What may pass is an error: others are being read, or it
    /// takes too long altogether.
    pub(super) async fn take_in_accepted(&self, blocks: &mut [ContentBlock]) -> Result<Intake, AgentError> {
        let reading = async {
            let mut extracted = Vec::new();
            for block in blocks {
                let read = match block {
                    ContentBlock::Media(media) => read_accepted(&self.documents, media).await?,
                    ContentBlock::Text(_) | ContentBlock::Link(_) => None,
                };
                extracted.push(read.map(Ok));
            }
            Ok(Intake { extracted, ..Intake::default() })
        };
        tokio::time::timeout(MAX_TIME, reading).await.unwrap_or(Err(AgentError::DocumentsBusy))
    }

    async fn fetch_links(&self, field: &str, blocks: &mut [ContentBlock]) -> Result<Intake, AgentError> {
        let (mut intake, mut left) = (Intake::default(), MAX_FETCHED_BYTES);
        for (number, block) in blocks.iter_mut().enumerate() {
            let ContentBlock::Link(link) = block else { continue };
            let (media, memory) = self.fetch(link, left).await.map_err(|error| error.of(field, number))?;
            left = left.saturating_sub(media.data.len());
            intake.fetched_memory.push(memory);
            *block = ContentBlock::Media(media);
        }
        Ok(intake)
    }

    async fn fetch(&self, link: &MediaLink, max_bytes: usize) -> Result<(Media, BodyMemory), LinkError> {
        let target = Target::parse(&link.url).map_err(FetchError::from)?;
        let wanted = Wanted { accept: "*/*", max_bytes: &|_, _| Some(max_bytes) };
        let page = self.web.fetch_wanted(target, wanted).await?;
        if !page.status.is_success() {
            return Err(LinkError::Content(format!("the server answered with the status {}", page.status)));
        }
        if !page.body.is_complete {
            let limit = MAX_FETCHED_BYTES >> 20;
            return Err(LinkError::Content(format!(
                "the files that are fetched are larger than {limit} MiB"
            )));
        }
        let name = link.name.clone().or_else(|| file_name(page.url.path()));
        let media_type = link.media_type.clone().unwrap_or_else(|| declared_type(&page.content_type));
        let (bytes, memory) = page.body.into_parts();
        if bytes.is_empty() {
            return Err(LinkError::Content("the file is empty".into()));
        }
        let media_type = match type_by_bytes(link, &bytes) {
            Some(found) => found.to_owned(),
            None => check_kind(link.kind, media_type)?,
        };
        let mut media = Media { kind: link.kind, media_type, name, data: bytes };
        if page.content_type.contains("charset")
            && format_of(&media).is_some_and(|format| !format.needs_worker())
        {
            // Only the server knows the encoding. The mark says that it is UTF-8 now.
            media.data = format!("\u{feff}{}", decode(&media.data, &page.content_type)).into_bytes();
        }
        Ok((media, memory))
    }

    async fn extract(
        &self,
        field: &str,
        blocks: &mut [ContentBlock],
    ) -> Result<Vec<Option<Result<Extracted, ReadError>>>, AgentError> {
        let (mut extracted, mut documents) = (Vec::new(), 0);
        for (number, block) in blocks.iter_mut().enumerate() {
            let ContentBlock::Media(media) = block else {
                extracted.push(None);
                continue;
            };
            check_picture(media)
                .map_err(|reason| AgentError::Invalid(format!("`{field}[{number}]`: {reason}")))?;
            let read = read(&self.documents, media).await;
            // Of plain texts there may be as many as there may be blocks.
            documents += usize::from(read.is_some() && media.media_type != Format::Text.media_type());
            if documents > MAX_DOCUMENTS {
                return Err(AgentError::Invalid(format!(
                    "`{field}`: at most {MAX_DOCUMENTS} documents are read"
                )));
            }
            extracted.push(read);
        }
        Ok(extracted)
    }
}

/// Reads a document; `None` if its text is not extracted. A media type that says nothing becomes the one
/// that the name stands for.
async fn read(documents: &DocumentReader, media: &mut Media) -> Option<Result<Extracted, ReadError>> {
    let format = format_of(media)?;
    if Format::is_vague(&media.media_type) {
        format.media_type().clone_into(&mut media.media_type);
    }
    let document = Bytes::from(std::mem::take(&mut media.data));
    let read = documents.read(format, document.clone()).await;
    media.data = document.into();
    Some(read)
}

/// Reads a document of a message that was accepted earlier. What is wrong with it becomes its text.
async fn read_accepted(
    documents: &DocumentReader,
    media: &mut Media,
) -> Result<Option<Extracted>, AgentError> {
    let mut reads = 0;
    loop {
        reads += 1;
        return match read(documents, media).await {
            Some(Err(ReadError::Busy)) => Err(AgentError::DocumentsBusy),
            // It could be read before, so something else may have ended the program.
            Some(Err(ReadError::Failed)) if reads < MAX_READS => continue,
            Some(Err(error)) => Ok(Some(Extracted { text: format!("[{error}]"), pages: None })),
            Some(Ok(extracted)) => Ok(Some(extracted)),
            None => Ok(None),
        };
    }
}

/// Checks the number of attachments.
pub(super) fn check_count(field: &str, blocks: &[ContentBlock]) -> Result<(), AgentError> {
    if blocks.len() > MAX_CONTENT_BLOCKS {
        return Err(AgentError::Invalid(format!("`{field}`: must have at most {MAX_CONTENT_BLOCKS} blocks")));
    }
    Ok(())
}

/// Why a file could not be fetched.
enum LinkError {
    Fetch(FetchError),
    Content(String),
}

impl From<FetchError> for LinkError {
    fn from(error: FetchError) -> Self {
        Self::Fetch(error)
    }
}

impl LinkError {
    fn of(self, field: &str, number: usize) -> AgentError {
        let reason = match self {
            Self::Fetch(FetchError::NoMemory(error)) => return AgentError::NoMemory(error),
            Self::Fetch(error) => error.to_string(),
            Self::Content(reason) => reason,
        };
        AgentError::Invalid(format!("`{field}[{number}]`: `url` could not be fetched: {reason}"))
    }
}

/// Refuses a picture that claims to be larger than any vendor takes.
fn check_picture(media: &Media) -> Result<(), String> {
    if media.kind == MediaKind::Image { tools::media::check_picture(&media.data) } else { Ok(()) }
}

/// The error for a document that could not be read, and that the model does not take as it is.
pub(super) fn read_error(field: &str, number: usize, error: &ReadError) -> AgentError {
    match error {
        ReadError::Busy => AgentError::DocumentsBusy,
        ReadError::Document(DocumentError::Binary) => AgentError::Invalid(format!(
            "`{field}[{number}]`: its media type says that it is text, but {error}"
        )),
        error => AgentError::Invalid(format!("`{field}[{number}]`: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_may_pass_does_not_become_the_text_of_a_queued_document() {
        let mut document = Media {
            kind: MediaKind::Document,
            media_type: Format::Docx.media_type().into(),
            name: None,
            data: b"PK\x03\x04".into(),
        };
        let folder = tempfile::tempdir().unwrap();
        let mut read = async |program: &str| {
            let sandbox = sandbox::Sandbox::new(sandbox::Settings {
                helper: sandbox::HelperCommand { program: program.into(), args: Vec::new() },
                workspace: folder.path().to_owned(),
                readable: Vec::new(),
                hidden: Vec::new(),
                allow_unconfined: false,
            });
            let documents = DocumentReader::new(Some(&std::sync::Arc::new(sandbox)), folder.path());
            read_accepted(&documents, &mut document).await
        };
        if testkit::can_confine() {
            // No program can be started at the moment.
            let later = read("/nonexistent").await.map(|_| ());
            assert!(matches!(later, Err(AgentError::DocumentsBusy)), "{later:?}");
        }
        let broken = read_accepted(&DocumentReader::new(None, folder.path()), &mut document).await;
        let text = broken.unwrap().unwrap().text;
        assert!(text.starts_with("[this engine's machine cannot confine programs"), "{text}");
    }

    #[test]
    fn a_type_that_could_not_be_read_back_says_nothing() {
        let long = format!("text/{}", "x".repeat(128));
        for (declared, expected) in [
            ("Text/CSV; charset=utf-8", "text/csv"),
            ("text/plain charset=utf-8", VAGUE_TYPE),
            (&long, VAGUE_TYPE),
            ("pdf", VAGUE_TYPE),
            ("", VAGUE_TYPE),
        ] {
            let media_type = declared_type(declared);
            assert_eq!(media_type, expected, "{declared}");
            assert!(Format::is_vague(&media_type) == (expected == VAGUE_TYPE));
            let media = Media { kind: MediaKind::Document, media_type, name: None, data: vec![b'x'] };
            let body = serde_json::to_string(&ContentBlock::Media(media)).unwrap();
            assert!(serde_json::from_str::<ContentBlock>(&body).is_ok(), "{body}");
        }
    }
}
