//! The text of a page of a PDF: what its drawing operations show, with a line break where the next text
//! begins on another line.

use std::collections::BTreeMap;

use lopdf::content::{Content, Operation};
use lopdf::{Dictionary, Document, Encoding, Object, ObjectId, Result, Stream};

use crate::limits::{MAX_FORM_DEPTH, MAX_PAGE_OPERATIONS, MAX_STREAM_BYTES, MAX_TEXT_CHARS};

/// A gap between two pieces of text that is a space, in thousandths of the size of the font.
const SPACE_WIDTH: f32 = 150.0;
/// A move to another line, as a part of a unit of the page. Less is a superscript.
const LINE_HEIGHT: f32 = 4.0;

type Encodings<'a> = BTreeMap<Vec<u8>, Encoding<'a>>;

/// The text of a page, as it is read.
pub(crate) struct PageText<'a> {
    document: &'a Document,
    text: String,
    /// The vertical position of the line, and whether it is known.
    line_y: Option<f32>,
    leading: f32,
    operations: usize,
}

impl<'a> PageText<'a> {
    /// Reads a page.
    pub(crate) fn read(document: &'a Document, page: ObjectId) -> Result<String> {
        let mut text = Self { document, text: String::new(), line_y: None, leading: 0.0, operations: 0 };
        let fonts = document.get_page_fonts(page)?;
        let content = document.get_page_content_with_limit(page, MAX_STREAM_BYTES)?;
        let (direct, referenced) = document.get_page_resources(page)?;
        let mut resources: Vec<&Dictionary> = direct.into_iter().collect();
        resources.extend(referenced.iter().filter_map(|id| document.get_dictionary(*id).ok()));
        text.interpret(&content, &text.encodings(fonts), &resources, 0);
        Ok(text.text)
    }

    fn encodings(&self, fonts: BTreeMap<Vec<u8>, &'a Dictionary>) -> Encodings<'a> {
        let encoding = |(name, font): (Vec<u8>, &'a Dictionary)| {
            Some((name, font.get_font_encoding_with_limit(self.document, MAX_STREAM_BYTES).ok()?))
        };
        fonts.into_iter().filter_map(encoding).collect()
    }

    fn interpret(
        &mut self,
        content: &[u8],
        encodings: &Encodings<'a>,
        resources: &[&'a Dictionary],
        depth: usize,
    ) {
        let mut font = None;
        for operation in Content::decode_iter(content) {
            // What was shown before the content breaks stays.
            let Ok(operation) = operation else { return };
            self.operations += 1;
            if self.operations > MAX_PAGE_OPERATIONS || self.text.len() > 4 * MAX_TEXT_CHARS {
                return;
            }
            match operation.operator.as_str() {
                "Tf" => {
                    let name = operation.operands.first().and_then(|name| name.as_name().ok());
                    font = name.and_then(|name| encodings.get(name));
                }
                "Tj" | "TJ" | "'" | "\"" => self.show(&operation, font),
                "Do" if depth < MAX_FORM_DEPTH => self.draw_form(&operation, resources, depth),
                _ => self.advance(&operation),
            }
        }
    }

    /// Follows the position of the text.
    fn advance(&mut self, operation: &Operation) {
        let operand = |index: usize| {
            operation.operands.get(index).and_then(|operand| operand.as_float().ok()).unwrap_or(0.0)
        };
        match operation.operator.as_str() {
            "BT" => self.line_y = None,
            "ET" | "T*" => self.break_line(),
            "TL" => self.leading = operand(0),
            "Td" | "TD" => {
                if operand(1).abs() >= LINE_HEIGHT || (operand(1) != 0.0 && operand(0) <= 0.0) {
                    self.break_line();
                } else if operand(0) != 0.0 {
                    self.space();
                }
                self.line_y = self.line_y.map(|y| y + operand(1));
            }
            "Tm" => {
                let y = operand(5);
                match self.line_y.replace(y) {
                    Some(before) if (before - y).abs() >= LINE_HEIGHT => self.break_line(),
                    _ => self.space(),
                }
            }
            _ => {}
        }
    }

    fn show(&mut self, operation: &Operation, font: Option<&Encoding<'a>>) {
        if matches!(operation.operator.as_str(), "'" | "\"") {
            self.break_line();
        }
        let Some(font) = font else { return };
        for operand in &operation.operands {
            match operand {
                Object::String(bytes, _) => self.push(font, bytes),
                Object::Array(pieces) => {
                    for piece in pieces {
                        match piece {
                            Object::String(bytes, _) => self.push(font, bytes),
                            gap if gap.as_float().is_ok_and(|gap| gap <= -SPACE_WIDTH) => self.space(),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn push(&mut self, font: &Encoding<'a>, bytes: &[u8]) {
        if let Ok(text) = Document::decode_text(font, bytes) {
            self.text.push_str(&text);
        }
    }

    fn space(&mut self) {
        if self.text.chars().next_back().is_some_and(|last| !last.is_whitespace()) {
            self.text.push(' ');
        }
    }

    fn break_line(&mut self) {
        if self.text.chars().next_back().is_some_and(|last| last != '\n') {
            self.text.push('\n');
        }
    }

    /// Reads a form, which is content that is drawn as one thing.
    fn draw_form(&mut self, operation: &Operation, resources: &[&'a Dictionary], depth: usize) {
        let name = operation.operands.first().and_then(|name| name.as_name().ok());
        let Some(form) = name.and_then(|name| self.find_form(name, resources)) else { return };
        let Ok(content) = form.decompressed_content_with_limit(MAX_STREAM_BYTES) else { return };
        let own = form.dict.get_deref(b"Resources", self.document).and_then(Object::as_dict).ok();
        let resources: Vec<&Dictionary> = own.map_or_else(|| resources.to_vec(), |own| vec![own]);
        let encodings = self.encodings(self.fonts_in(&resources));
        self.break_line();
        self.interpret(&content, &encodings, &resources, depth + 1);
        self.break_line();
    }

    fn find_form(&self, name: &[u8], resources: &[&'a Dictionary]) -> Option<&'a Stream> {
        let document = self.document;
        let find = |resources: &&'a Dictionary| {
            let objects = resources.get_deref(b"XObject", document).and_then(Object::as_dict).ok()?;
            objects.get_deref(name, document).and_then(Object::as_stream).ok()
        };
        let form = resources.iter().find_map(find)?;
        let kind = form.dict.get(b"Subtype").and_then(Object::as_name).ok()?;
        (kind == b"Form").then_some(form)
    }

    fn fonts_in(&self, resources: &[&'a Dictionary]) -> BTreeMap<Vec<u8>, &'a Dictionary> {
        let mut fonts = BTreeMap::new();
        for resources in resources {
            let Ok(named) = resources.get_deref(b"Font", self.document).and_then(Object::as_dict) else {
                continue;
            };
            for (name, _) in named {
                if let Ok(font) = named.get_deref(name, self.document).and_then(Object::as_dict) {
                    fonts.entry(name.clone()).or_insert(font);
                }
            }
        }
        fonts
    }
}
