//! The formats that are read.

use crate::DocumentError;

/// A format whose text can be extracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A text without a format of its own, or one that is read as it is: XML, YAML, source code.
    Text,
    /// Tables with separated values.
    Csv,
    /// Markdown.
    Markdown,
    /// JSON, one value or one per line.
    Json,
    /// HTML.
    Html,
    /// A document of Word, with or without macros, which are not read.
    Docx,
    /// A workbook of Excel, with or without macros, which are not read.
    Xlsx,
    /// PDF.
    Pdf,
}

/// Media types that say nothing about the content, or something wrong where a program registered itself for
/// others: the ending of the name decides.
const VAGUE_TYPES: &[&str] = &[
    "",
    "application/octet-stream",
    "binary/octet-stream",
    "application/x-download",
    "application/force-download",
    "application/zip",
    "application/x-zip-compressed",
    "application/vnd.ms-excel",
    "application/msword",
];

/// Text types outside of `text/`.
const TEXT_TYPES: &[&str] = &[
    "application/xml",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/javascript",
    "application/sql",
    "application/x-sh",
];

impl Format {
    /// What is read, for a person.
    pub const NAMES: &str = "text, CSV, Markdown, JSON, HTML, DOCX, XLSX and PDF";

    /// The format of a document with this media type, which is in lower case and has no parameters, and this
    /// name; `None` if it is not read.
    pub fn detect(media_type: &str, name: Option<&str>) -> Option<Self> {
        if VAGUE_TYPES.contains(&media_type) {
            return name.and_then(Self::from_name);
        }
        let (main, sub) = media_type.split_once('/')?;
        match (main, sub) {
            ("text" | "application", "csv") | ("text", "tab-separated-values" | "x-csv") => Some(Self::Csv),
            ("text", "markdown" | "x-markdown") => Some(Self::Markdown),
            ("text" | "application", "json" | "x-ndjson" | "ndjson" | "jsonl" | "x-jsonl") => {
                Some(Self::Json)
            }
            ("application", sub) if sub.ends_with("+json") => Some(Self::Json),
            ("text", "html") | ("application", "xhtml+xml") => Some(Self::Html),
            ("application", "pdf" | "x-pdf") => Some(Self::Pdf),
            (
                "application",
                "vnd.openxmlformats-officedocument.wordprocessingml.document"
                | "vnd.openxmlformats-officedocument.wordprocessingml.template"
                | "vnd.ms-word.document.macroenabled.12"
                | "vnd.ms-word.template.macroenabled.12",
            ) => Some(Self::Docx),
            (
                "application",
                "vnd.openxmlformats-officedocument.spreadsheetml.sheet"
                | "vnd.openxmlformats-officedocument.spreadsheetml.template"
                | "vnd.ms-excel.sheet.macroenabled.12"
                | "vnd.ms-excel.template.macroenabled.12",
            ) => Some(Self::Xlsx),
            ("text", _) => Some(Self::Text),
            ("application", sub) if sub.ends_with("+xml") => Some(Self::Text),
            _ => TEXT_TYPES.contains(&media_type).then_some(Self::Text),
        }
    }

    /// The format of a file with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let (_, ending) = name.rsplit_once('.')?;
        match ending.to_ascii_lowercase().as_str() {
            "csv" | "tsv" => Some(Self::Csv),
            "md" | "markdown" => Some(Self::Markdown),
            "json" | "jsonl" | "ndjson" => Some(Self::Json),
            "html" | "htm" | "xhtml" => Some(Self::Html),
            "docx" | "docm" | "dotx" | "dotm" => Some(Self::Docx),
            "xlsx" | "xlsm" | "xltx" | "xltm" => Some(Self::Xlsx),
            "pdf" => Some(Self::Pdf),
            "txt" | "text" | "log" | "xml" | "yaml" | "yml" | "toml" => Some(Self::Text),
            _ => None,
        }
    }

    /// The format of a file that begins with these bytes and has this name, if a program is needed to read
    /// it.
    pub fn of_file(start: &[u8], name: &str) -> Option<Self> {
        if start.starts_with(b"%PDF-") {
            return Some(Self::Pdf);
        }
        let format = Self::from_name(name).filter(|format| format.needs_worker())?;
        format.check_signature(start).ok().map(|()| format)
    }

    /// Whether this media type says nothing about the content.
    pub fn is_vague(media_type: &str) -> bool {
        VAGUE_TYPES.contains(&media_type)
    }

    /// The media type, in the form that models and browsers know.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain",
            Self::Csv => "text/csv",
            Self::Markdown => "text/markdown",
            Self::Json => "application/json",
            Self::Html => "text/html",
            Self::Docx => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
            Self::Xlsx => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
            Self::Pdf => "application/pdf",
        }
    }

    /// Whether a document of this format is read in a process of its own. Texts need none: no parser
    /// interprets them, except for the one of HTML, which neither recurses nor grows faster than its input.
    pub const fn needs_worker(self) -> bool {
        matches!(self, Self::Docx | Self::Xlsx | Self::Pdf)
    }

    /// The format with an article.
    const fn with_article(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Csv => "a CSV file",
            Self::Markdown => "a Markdown file",
            Self::Json => "a JSON file",
            Self::Html => "an HTML page",
            Self::Docx => "a DOCX document",
            Self::Xlsx => "an XLSX workbook",
            Self::Pdf => "a PDF",
        }
    }

    /// The error for content that is of another format.
    pub(crate) fn other_format(self) -> DocumentError {
        DocumentError::OtherFormat(self.with_article().into())
    }

    /// Checks that a document begins like one of this format.
    pub(crate) fn check_signature(self, bytes: &[u8]) -> Result<(), DocumentError> {
        match self {
            Self::Docx | Self::Xlsx if bytes.starts_with(OLE_SIGNATURE) => {
                // A package with a password is encrypted as a whole, in an archive of the old format.
                if find(bytes, ENCRYPTED_PACKAGE).is_some() {
                    Err(DocumentError::Encrypted)
                } else {
                    Err(self.other_format())
                }
            }
            Self::Docx | Self::Xlsx if !bytes.starts_with(ZIP_SIGNATURE) => Err(self.other_format()),
            // Readers accept other bytes before the header (PDF 1.7, appendix H, note 13).
            Self::Pdf if find(bytes.get(..1_024).unwrap_or(bytes), b"%PDF-").is_none() => {
                Err(self.other_format())
            }
            _ => Ok(()),
        }
    }
}

/// How an archive begins.
const ZIP_SIGNATURE: &[u8] = b"PK\x03\x04";
/// How a file of the formats before 2007 begins.
const OLE_SIGNATURE: &[u8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1";
/// `EncryptedPackage` in UTF-16.
const ENCRYPTED_PACKAGE: &[u8] = b"E\0n\0c\0r\0y\0p\0t\0e\0d\0P\0a\0c\0k\0a\0g\0e\0";

/// The place of `pattern` in `bytes`.
fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}
