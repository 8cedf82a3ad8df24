//! Documents made by code: good ones, and the parts from which hostile ones are made.

#![expect(clippy::missing_panics_doc, clippy::unwrap_used, missing_docs, reason = "tests fail as tests do")]

use std::io::{Cursor, Write as _};

use lopdf::content::{Content, Operation};
use lopdf::{Document, Object, Stream, dictionary};
use zip::write::SimpleFileOptions;

const DOCX_TYPES: &str = r#"<?xml version="1.0" encoding="UTF-8"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>"#;
const MACRO_TYPES: &str = r#"<Types><Override PartName="/word/document.xml" ContentType="application/vnd.ms-word.document.macroEnabled.main+xml"/><Default Extension="bin" ContentType="application/vnd.ms-office.vbaProject"/></Types>"#;
const XLSX_TYPES: &str = r#"<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName="/xl/workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/></Types>"#;
const PACKAGE_RELS: &str = r#"<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="xl/workbook.xml"/></Relationships>"#;
const WORKBOOK_RELS: &str = r#"<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet" Target="worksheets/sheet1.xml"/><Relationship Id="rId2" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/sharedStrings" Target="sharedStrings.xml"/><Relationship Id="rId3" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/styles" Target="styles.xml"/></Relationships>"#;
const STYLES: &str = r#"<styleSheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="14" applyNumberFormat="1"/></cellXfs></styleSheet>"#;

/// An archive with these parts, deflated.
pub fn archive(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in parts {
        writer.start_file(*name, SimpleFileOptions::default().compression_level(Some(1))).unwrap();
        writer.write_all(content).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// A DOCX whose `word/document.xml` has this body.
pub fn docx(body: &str) -> Vec<u8> {
    docx_with(&document_xml(body), &[])
}

/// A DOCX with this `word/document.xml` and further parts.
pub fn docx_with(document: &str, parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut all =
        vec![("[Content_Types].xml", DOCX_TYPES.as_bytes()), ("word/document.xml", document.as_bytes())];
    all.extend(parts);
    archive(&all)
}

/// A document with macros.
pub fn docm(body: &str, macros: &[u8]) -> Vec<u8> {
    archive(&[
        ("[Content_Types].xml", MACRO_TYPES.as_bytes()),
        ("word/document.xml", document_xml(body).as_bytes()),
        ("word/vbaProject.bin", macros),
    ])
}

pub fn document_xml(body: &str) -> String {
    format!(
        r#"<?xml version="1.0"?><w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>{body}</w:body></w:document>"#
    )
}

/// A paragraph of a DOCX.
pub fn paragraph(text: &str) -> String {
    format!("<w:p><w:r><w:t>{text}</w:t></w:r></w:p>")
}

/// An XLSX with one sheet of this `sheetData`, these shared strings, and further parts.
pub fn xlsx(sheet_data: &str, strings: &[&str], parts: &[(&str, &[u8])]) -> Vec<u8> {
    let sheet = format!(
        r#"<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>{sheet_data}</sheetData></worksheet>"#
    );
    let items = strings.iter().map(|text| format!("<si><t>{text}</t></si>")).collect::<Vec<_>>().concat();
    let strings =
        format!(r#"<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">{items}</sst>"#);
    let workbook = r#"<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets><sheet name="Ernte 2026" sheetId="1" r:id="rId1"/></sheets></workbook>"#;
    let mut all = vec![
        ("[Content_Types].xml", XLSX_TYPES.as_bytes()),
        ("_rels/.rels", PACKAGE_RELS.as_bytes()),
        ("xl/workbook.xml", workbook.as_bytes()),
        ("xl/_rels/workbook.xml.rels", WORKBOOK_RELS.as_bytes()),
        ("xl/sharedStrings.xml", strings.as_bytes()),
        ("xl/styles.xml", STYLES.as_bytes()),
        ("xl/worksheets/sheet1.xml", sheet.as_bytes()),
    ];
    all.extend(parts);
    archive(&all)
}

/// A PDF with these pages, each with these lines.
pub fn pdf(pages: &[&[&str]]) -> Vec<u8> {
    let mut document = Document::with_version("1.5");
    let tree = document.new_object_id();
    let font = document.add_object(dictionary! {
        "Type" => "Font", "Subtype" => "Type1", "BaseFont" => "Helvetica", "Encoding" => "WinAnsiEncoding",
    });
    let resources = document.add_object(dictionary! { "Font" => dictionary! { "F1" => font } });
    let kids: Vec<Object> = pages
        .iter()
        .map(|lines| {
            let mut operations =
                vec![Operation::new("BT", vec![]), Operation::new("Tf", vec!["F1".into(), 12.into()])];
            for line in *lines {
                operations.push(Operation::new("Td", vec![0.into(), (-14).into()]));
                let text = Object::string_literal(encode(line));
                operations.push(Operation::new("Tj", vec![text]));
            }
            operations.push(Operation::new("ET", vec![]));
            let content = Content { operations }.encode().unwrap();
            let content = document.add_object(Stream::new(dictionary! {}, content));
            document
                .add_object(dictionary! { "Type" => "Page", "Parent" => tree, "Contents" => content })
                .into()
        })
        .collect();
    let count = i64::try_from(kids.len()).unwrap();
    document.objects.insert(
        tree,
        Object::Dictionary(dictionary! {
            "Type" => "Pages", "Kids" => kids, "Count" => count, "Resources" => resources,
            "MediaBox" => vec![0.into(), 0.into(), 595.into(), 842.into()],
        }),
    );
    let catalog = document.add_object(dictionary! { "Type" => "Catalog", "Pages" => tree });
    document.trailer.set("Root", catalog);
    document.compress();
    let mut bytes = Vec::new();
    document.save_to(&mut bytes).unwrap();
    bytes
}

/// Latin characters in the encoding of Windows, which agrees with Unicode in them.
fn encode(text: &str) -> Vec<u8> {
    text.chars().map(|char| u8::try_from(u32::from(char)).unwrap()).collect()
}

/// A WAV of silence: 16 bits in one channel, at this rate, of this many seconds.
pub fn wav(rate: u32, seconds: u32) -> Vec<u8> {
    let (bytes_per_second, format, channels) = (rate * 2, 1_u16, 1_u16);
    let length = bytes_per_second * seconds;
    let header: [&[u8]; 12] = [
        b"RIFF",
        &(length + 36).to_le_bytes(),
        b"WAVEfmt ",
        &16_u32.to_le_bytes(),
        &format.to_le_bytes(),
        &channels.to_le_bytes(),
        &rate.to_le_bytes(),
        &bytes_per_second.to_le_bytes(),
        &2_u16.to_le_bytes(),
        &16_u16.to_le_bytes(),
        b"data",
        &length.to_le_bytes(),
    ];
    let mut bytes = header.concat();
    bytes.resize(bytes.len() + length as usize, 0);
    bytes
}
