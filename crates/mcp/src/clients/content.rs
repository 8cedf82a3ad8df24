//! The result of a server's call, and what a model gets of it.

use std::time::Duration;

use llm::Content;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tools::ToolOutput;
use tools::documents::{DocumentReader, ReadError};
use tools::media::{MAX_SHOWN_PAGES, ServerFile, UnreadDocument};

/// The most pictures of a result that a model is shown.
const MAX_PICTURES: usize = 10;
/// The most documents of a result that are read.
const MAX_DOCUMENTS: usize = 10;
/// How long reading all of them may take.
const MAX_READ_TIME: Duration = Duration::from_mins(1);

/// The result of a `tools/call`, whose documents have yet to be read. Its server is not trusted.
#[derive(Debug)]
pub(crate) struct CallResult {
    parts: Vec<Part>,
    is_error: bool,
}

/// A part of a result.
#[derive(Debug)]
enum Part {
    /// A text for the model.
    Text(String),
    /// A file, which the model is shown or told of.
    File(Box<File>),
}

/// A file in a result.
#[derive(Debug)]
struct File {
    /// What stands above it.
    heading: Option<String>,
    /// How it is called where it is not shown, and its type and size.
    description: String,
    /// What it is; the error says why nothing of it is shown.
    content: Result<ServerFile, String>,
}

impl CallResult {
    /// Parses a result. Text is kept verbatim, pictures and documents are shown; other content is only described,
    /// because no model reads base64.
    pub(super) fn parse(result: &Value) -> Self {
        let blocks = result.get("content").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut parts: Vec<Part> = blocks.iter().map(parse_block).collect();
        let structured = result.get("structuredContent").filter(|structured| !structured.is_null());
        // Servers that return both repeat the structured content in the text, as the protocol asks them to.
        if let Some(structured) = structured.filter(|_| !blocks.iter().any(is_text)) {
            parts.push(Part::Text(structured.to_string()));
        }
        if parts.is_empty() {
            parts.push(Part::Text("(The tool returned nothing.)".into()));
        }
        let is_error = result.get("isError").and_then(Value::as_bool).unwrap_or(false);
        Self { parts, is_error }
    }

    /// Whether the tool reports an error.
    pub(crate) fn is_error(&self) -> bool {
        self.is_error
    }

    /// Reads the documents, and returns what a model gets. `shows_pdfs` says whether there is a model that is shown PDFs as
    /// they are.
    pub(crate) async fn show(self, documents: &DocumentReader, shows_pdfs: bool) -> ToolOutput {
        let mut showing = Showing {
            documents,
            deadline: Instant::now() + MAX_READ_TIME,
            pages_left: shows_pdfs.then_some(MAX_SHOWN_PAGES),
            picture_count: 0,
            document_count: 0,
            media: Vec::new(),
        };
        let mut texts = Vec::new();
        for part in self.parts {
            texts.push(match part {
                Part::Text(text) => text,
                Part::File(file) => showing.show(*file).await,
            });
        }
        let (text, media) = (texts.join("\n"), showing.media);
        ToolOutput { text, media, is_error: self.is_error, ..ToolOutput::default() }
    }
}

/// What has been shown of a result, and what may still be.
struct Showing<'a> {
    documents: &'a DocumentReader,
    /// When the last document must have been read.
    deadline: Instant,
    /// How many more pages of PDFs are shown as they are; `None` if none ever are.
    pages_left: Option<u32>,
    picture_count: usize,
    document_count: usize,
    media: Vec<Content>,
}

impl Showing<'_> {
    /// Shows a file if it can be; returns what stands in the text.
    async fn show(&mut self, File { heading, description, content }: File) -> String {
        let shown = match content {
            Ok(ServerFile::Picture(picture)) => self.show_picture(picture),
            Ok(ServerFile::Document(document)) => self.show_document(document).await,
            Err(reason) => Err(reason),
        };
        match (shown, heading) {
            (Ok(text), Some(heading)) => format!("{heading}\n{text}"),
            (Ok(text), None) => text,
            (Err(reason), _) => format!("[{description}, not shown: {reason}]"),
        }
    }

    fn show_picture(&mut self, picture: Content) -> Result<String, String> {
        if self.picture_count == MAX_PICTURES {
            return Err(format!("at most {MAX_PICTURES} pictures of a result are"));
        }
        self.picture_count += 1;
        self.media.push(picture);
        Ok(format!("[picture {}, shown with this result]", self.picture_count))
    }

    async fn show_document(&mut self, document: UnreadDocument) -> Result<String, String> {
        if self.document_count == MAX_DOCUMENTS {
            return Err(format!("at most {MAX_DOCUMENTS} documents of a result are"));
        }
        self.document_count += 1;
        let reading = timeout_at(self.deadline, document.show(self.documents, self.pages_left));
        let shown = reading.await.unwrap_or(Err(ReadError::Busy)).map_err(|error| error.to_string())?;
        if let Some((pdf, pages)) = shown.pdf {
            self.pages_left = self.pages_left.map(|left| left.saturating_sub(pages));
            self.media.push(pdf);
        }
        Ok(shown.text)
    }
}

fn is_text(block: &Value) -> bool {
    str_field(block, "type") == "text" && !str_field(block, "text").trim().is_empty()
}

fn parse_block(block: &Value) -> Part {
    match str_field(block, "type") {
        "text" => Part::Text(str_field(block, "text").to_owned()),
        "image" => parse_image(block),
        "audio" => Part::Text(format!("[{}, not shown]", describe("audio", block, str_field(block, "data")))),
        "resource" => parse_resource(block.get("resource").unwrap_or(&Value::Null)),
        "resource_link" => Part::Text(render_link(block)),
        other => Part::Text(format!("[content of the unknown type {other:?}, left out]")),
    }
}

fn parse_image(block: &Value) -> Part {
    let data = str_field(block, "data");
    let content = ServerFile::from_base64(data, str_field(block, "mimeType"), "");
    Part::File(Box::new(File { heading: None, description: describe("image", block, data), content }))
}

/// Parses an embedded resource: a text, which is kept verbatim below its URI, or a file.
fn parse_resource(resource: &Value) -> Part {
    let uri = str_field(resource, "uri");
    let heading = format!("[resource {uri}]");
    if let Some(text) = resource.get("text").and_then(Value::as_str) {
        return Part::Text(format!("{heading}\n{text}"));
    }
    let blob = str_field(resource, "blob");
    let content = ServerFile::from_base64(blob, str_field(resource, "mimeType"), uri);
    let description = describe(&format!("resource {uri}"), resource, blob);
    Part::File(Box::new(File { heading: Some(heading), description, content }))
}

fn render_link(link: &Value) -> String {
    let mut text = format!("[link to {}", str_field(link, "uri"));
    for part in ["name", "title", "mimeType", "description"] {
        let value = str_field(link, part);
        if !value.is_empty() {
            text.push_str(", ");
            text.push_str(value);
        }
    }
    text + "]"
}

/// Describes a file: its kind, its type and its size.
fn describe(kind: &str, block: &Value, base64: &str) -> String {
    let bytes = base64.trim_end_matches('=').len() / 4 * 3 + base64.trim_end_matches('=').len() % 4 * 3 / 4;
    let media_type = match str_field(block, "mimeType") {
        "" => "of no known type",
        media_type => media_type,
    };
    format!("{kind}, {media_type}, {bytes} bytes")
}

fn str_field<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
#[path = "../../tests/unit/clients/content.rs"]
mod tests;
