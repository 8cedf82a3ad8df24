//! DOCX: the text of the document, its footnotes and endnotes, as Markdown with headings, lists and tables.
//! Deleted text, comments, field codes, pictures and macros are left out.

use std::io::BufRead;

use crate::package::main_part;
use crate::text_writer::TextWriter;
use crate::xml::{XmlEvent, attribute, for_each_event};
use crate::zip_archive::Archive;
use crate::{DocumentError, Extracted, Format};

/// What the types of the main part of a document name.
const FORMATS: [&str; 2] = ["wordprocessingml", "ms-word"];
/// The deepest level of a list or a heading that is shown.
const MAX_LEVEL: usize = 8;

/// Extracts the text of a document.
pub(crate) fn extract(bytes: &[u8]) -> Result<Extracted, DocumentError> {
    let mut archive = Archive::open(bytes)?;
    let main = main_part(&mut archive, &FORMATS)?.ok_or_else(|| Format::Docx.other_format())?;
    let mut text = DocxText::default();
    let part = archive.part(&main)?;
    let part = part.ok_or_else(|| DocumentError::broken("its text is missing"))?;
    text.read(part)?;
    for (name, title) in [("word/footnotes.xml", "Footnotes"), ("word/endnotes.xml", "Endnotes")] {
        if let Some(part) = archive.part(name)? {
            text.read_notes(part, title)?;
        }
    }
    Ok(Extracted { text: text.writer.finish(), pages: None })
}

/// The text of a document, as it is read.
#[derive(Default)]
struct DocxText {
    writer: TextWriter,
    /// The paragraph that is being read.
    paragraph: Paragraph,
    /// Whether the characters that come next are text of the document.
    in_text: bool,
    /// How many elements are open within one that is skipped, itself included.
    skipped: usize,
    /// How many tables are open.
    tables: usize,
    /// Whether the row that is being read has a cell already.
    row_has_cells: bool,
}

/// What is known of a paragraph before its text.
#[derive(Default)]
struct Paragraph {
    /// The level of a heading.
    heading: Option<usize>,
    /// The level in a list, from 0.
    list_level: Option<usize>,
    has_text: bool,
}

impl DocxText {
    fn read(&mut self, part: impl BufRead) -> Result<(), DocumentError> {
        for_each_event(part, |event| {
            match event {
                XmlEvent::Start(_) if self.skipped > 0 => self.skipped += 1,
                XmlEvent::End(_) if self.skipped > 0 => self.skipped -= 1,
                XmlEvent::Start(start) => {
                    self.start(start.local_name().as_ref(), || attribute(start, "val"));
                }
                XmlEvent::End(name) => self.end(name),
                XmlEvent::Text(text) => self.text(text),
            }
            !self.writer.is_full()
        })
    }

    /// Reads footnotes or endnotes, under a heading if there are any.
    fn read_notes(&mut self, part: impl BufRead, title: &str) -> Result<(), DocumentError> {
        let mut notes = Self::default();
        notes.read(part)?;
        let notes = notes.writer.finish();
        if !notes.is_empty() {
            self.writer.end_paragraph();
            self.writer.push(&format!("## {title}\n\n{notes}"));
        }
        Ok(())
    }

    fn start(&mut self, name: &str, value: impl Fn() -> Option<String>) {
        match name {
            // What was moved away, and the second form of content that has two.
            "moveFrom" | "Fallback" => self.skipped = 1,
            "p" => {
                self.paragraph = Paragraph::default();
                if self.tables == 0 {
                    self.writer.end_line();
                } else if !self.writer.ends_with_space() {
                    self.writer.push(" ");
                }
            }
            "pStyle" => self.paragraph.heading = value().as_deref().and_then(heading_level),
            "ilvl" => {
                let level = value().and_then(|level| level.parse::<usize>().ok()).unwrap_or(0);
                self.paragraph.list_level = Some(level.min(MAX_LEVEL));
            }
            "t" => self.in_text = true,
            "tab" => self.text_of_paragraph("\t"),
            "br" | "cr" => self.text_of_paragraph(if self.tables == 0 { "\n" } else { " " }),
            "noBreakHyphen" => self.text_of_paragraph("-"),
            "tbl" => {
                self.writer.end_paragraph();
                self.tables += 1;
            }
            "tr" => {
                self.writer.end_line();
                self.row_has_cells = false;
            }
            "tc" if std::mem::replace(&mut self.row_has_cells, true) => self.writer.push(" | "),
            _ => {}
        }
    }

    fn end(&mut self, name: &str) {
        match name {
            "t" => self.in_text = false,
            "p" if self.tables == 0 && self.paragraph.has_text => {
                if self.paragraph.list_level.is_some() {
                    self.writer.end_line();
                } else {
                    self.writer.end_paragraph();
                }
            }
            "tbl" => {
                self.tables = self.tables.saturating_sub(1);
                self.writer.end_paragraph();
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        if self.in_text && self.skipped == 0 {
            self.text_of_paragraph(text);
        }
    }

    /// Adds text of the paragraph, after its marker.
    fn text_of_paragraph(&mut self, text: &str) {
        if !std::mem::replace(&mut self.paragraph.has_text, true) && self.tables == 0 {
            if let Some(level) = self.paragraph.heading {
                self.writer.end_paragraph();
                self.writer.push(&format!("{} ", "#".repeat(level)));
            } else if let Some(level) = self.paragraph.list_level {
                self.writer.push(&format!("{}- ", "  ".repeat(level)));
            }
        }
        self.writer.push(text);
    }
}

/// The level of the heading that a style is; `None` if it is none.
fn heading_level(style: &str) -> Option<usize> {
    let style = style.to_ascii_lowercase();
    if style == "title" {
        return Some(1);
    }
    let level = style.strip_prefix("heading")?.trim().parse::<usize>().ok()?;
    (level >= 1).then_some(level.min(MAX_LEVEL))
}
