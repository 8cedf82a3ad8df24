use pretty_assertions::assert_eq;
use proptest::prelude::*;

use super::samples::{archive, docm, document_xml, docx, docx_with, paragraph, pdf, xlsx};
use super::*;
use crate::limits::MAX_PAGES;

fn text(format: Format, bytes: &[u8]) -> String {
    extract(format, bytes).unwrap().text
}

fn error(format: Format, bytes: &[u8]) -> String {
    extract(format, bytes).unwrap_err().to_string()
}

#[test]
fn texts_are_given_as_they_are() {
    assert_eq!(text(Format::Csv, "Obst;Preis\nBirne;2,50 €\n".as_bytes()), "Obst;Preis\nBirne;2,50 €");
    assert_eq!(text(Format::Json, br#"{"a": [1, 2]}"#), r#"{"a": [1, 2]}"#);
    assert_eq!(text(Format::Markdown, "# 梨\n".as_bytes()), "# 梨");
    assert_eq!(text(Format::Text, b"a\r\nb\x07\x1b[31m"), "a\nb[31m");
    // UTF-16 with its mark.
    assert_eq!(text(Format::Csv, b"\xff\xfea\0;\0b\0"), "a;b");
    assert_eq!(text(Format::Csv, b""), "");
}

#[test]
fn html_becomes_markdown() {
    let html = "<title>Obst</title><h1>Birnen</h1><p>Sie sind <a href='https://example.org/'>grün</a> \
                und <a href='/rot'>rot</a>.<script>alert(1)</script>";
    assert_eq!(
        text(Format::Html, html.as_bytes()),
        "Title: Obst\n\n# Birnen\n\nSie sind [grün](https://example.org/) und rot."
    );
}

#[test]
fn a_docx_becomes_markdown() {
    let body = "<w:p><w:pPr><w:pStyle w:val=\"Heading2\"/></w:pPr><w:r><w:t>Obst &amp; Gemüse</w:t></w:r></w:p>\
                <w:p><w:r><w:t xml:space=\"preserve\">Birnen </w:t></w:r><w:del><w:r><w:delText>nicht</w:delText></w:r></w:del>\
                <w:r><w:t>sind&#x20;grün.</w:t><w:br/><w:t>梨</w:t></w:r></w:p>\
                <w:p><w:pPr><w:numPr><w:ilvl w:val=\"1\"/></w:numPr></w:pPr><w:r><w:t>eins</w:t></w:r></w:p>\
                <w:moveFrom><w:p><w:r><w:t>fort</w:t></w:r></w:p></w:moveFrom>\
                <w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc>\
                <w:tc><w:p><w:r><w:t>c</w:t></w:r></w:p></w:tc></w:tr><w:tr><w:tc><w:p/></w:tc>\
                <w:tc><w:p><w:r><w:t>d</w:t></w:r></w:p></w:tc></w:tr></w:tbl><w:p><w:r><w:instrText>PAGE</w:instrText></w:r></w:p>";
    let notes = document_xml(&paragraph("Quelle"));
    let file = docx_with(&document_xml(body), &[("word/footnotes.xml", notes.as_bytes())]);
    assert_eq!(
        text(Format::Docx, &file),
        "## Obst & Gemüse\n\nBirnen sind grün.\n梨\n\n  - eins\n\na b | c\n | d\n\n## Footnotes\n\nQuelle"
    );
    assert_eq!(text(Format::Docx, &docx("")), "");
}

#[test]
fn macros_are_not_read() {
    assert_eq!(text(Format::Docx, &docm(&paragraph("Text"), b"Sub AutoOpen()")), "Text");
    let file = xlsx("<row r=\"1\"><c r=\"A1\"><v>1</v></c></row>", &[], &[("xl/vbaProject.bin", b"Sub")]);
    assert_eq!(text(Format::Xlsx, &file), "## Sheet Ernte 2026\n\n1");
}

#[test]
fn the_values_of_an_xlsx_are_given_row_by_row() {
    let sheet = "<row r=\"1\"><c r=\"A1\" t=\"s\"><v>0</v></c><c r=\"B1\" t=\"s\"><v>1</v></c></row>\
                 <row r=\"2\"><c r=\"A2\" s=\"1\"><v>45943</v></c><c r=\"D2\"><f>1+1</f><v>2.5</v></c></row>\
                 <row r=\"9\"><c r=\"B9\" t=\"b\"><v>1</v></c><c r=\"C9\" t=\"inlineStr\"><is><t>a\nb</t></is></c></row>";
    assert_eq!(
        text(Format::Xlsx, &xlsx(sheet, &["Datum", "Menge"], &[])),
        "## Sheet Ernte 2026\n\nDatum\tMenge\n2025-10-13\t\t\t2.5\n\tTRUE\ta b"
    );
    assert_eq!(text(Format::Xlsx, &xlsx("", &[], &[])), "");
}

#[test]
fn the_pages_of_a_pdf_are_read_and_counted() {
    let file = pdf(&[&["Äpfel und Birnen", "sind Obst."], &[], &["Ende"]]);
    let read = extract(Format::Pdf, &file).unwrap();
    assert_eq!(read.text, "[Page 1]\nÄpfel und Birnen\nsind Obst.\n\n[Page 3]\nEnde");
    assert_eq!(read.pages, Some(3));
    // Of a scan there are only the pages.
    let read = extract(Format::Pdf, &pdf(&[&[], &[]])).unwrap();
    assert_eq!(read, Extracted { text: String::new(), pages: Some(2) });
}

#[test]
fn what_is_left_out_is_said() {
    let long = text(Format::Csv, "ü".repeat(MAX_TEXT_CHARS + 1).as_bytes());
    assert!(
        long.ends_with("[The document is longer: only its first 200000 characters are here.]"),
        "{}",
        &long[long.len() - 200..]
    );
    assert!(long.chars().count() < MAX_TEXT_CHARS + 100);
    let whole = "ü".repeat(MAX_TEXT_CHARS);
    assert_eq!(text(Format::Csv, whole.as_bytes()), whole);
    // Whatever is not shown of what is not decoded.
    assert!(text(Format::Csv, "\u{7}".repeat(2_000_000).as_bytes()).contains("longer"));
    let rows = (1..=60_000)
        .map(|row| format!("<row r=\"{row}\"><c r=\"A{row}\"><v>1234</v></c></row>"))
        .collect::<Vec<_>>()
        .concat();
    assert!(text(Format::Xlsx, &xlsx(&rows, &[], &[])).contains("only its first 200000 characters are here"));
    let page: &[&str] = &[];
    let read = extract(Format::Pdf, &pdf(&vec![page; MAX_PAGES + 1])).unwrap();
    assert_eq!(read.pages, Some(1_001));
}

#[test]
fn a_cell_far_away_costs_nothing() {
    let sheet = "<row r=\"1\"><c r=\"A1\"><v>1</v></c><c r=\"XFD1\"><v>2</v></c></row>\
                 <row r=\"1048576\"><c r=\"XFD1048576\"><v>3</v></c></row>";
    assert!(text(Format::Xlsx, &xlsx(sheet, &[], &[])).len() < 300);
}

#[test]
fn wrong_formats_are_named() {
    let pdf = pdf(&[&["a"]]);
    let docx = docx(&paragraph("a"));
    let xlsx = xlsx("", &[], &[]);
    assert_eq!(error(Format::Docx, &pdf), "this is not a DOCX document: its content has another format");
    assert_eq!(error(Format::Pdf, &docx), "this is not a PDF: its content has another format");
    assert!(error(Format::Docx, &xlsx).contains("not a DOCX document"));
    assert!(error(Format::Xlsx, &docx).contains("not an XLSX workbook"));
    assert_eq!(error(Format::Csv, &docx), "this is binary, not text");
    assert!(error(Format::Docx, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 old").contains("another format"));
    let encrypted = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1E\0n\0c\0r\0y\0p\0t\0e\0d\0P\0a\0c\0k\0a\0g\0e\0";
    assert!(error(Format::Xlsx, encrypted).contains("password"));
    assert!(error(Format::Docx, &archive(&[("a", b"b")])).contains("not a DOCX document"));
    assert!(error(Format::Docx, &docx[..docx.len() - 30]).contains("broken"));
}

#[test]
fn formats_are_known_by_type_and_by_name() {
    for (media_type, name, format) in [
        ("text/csv", None, Some(Format::Csv)),
        ("application/vnd.ms-excel", Some("a.csv"), Some(Format::Csv)),
        ("application/octet-stream", Some("Bericht.DOCX"), Some(Format::Docx)),
        ("application/octet-stream", None, None),
        ("application/octet-stream", Some("a.exe"), None),
        ("application/zip", Some("a.zip"), None),
        ("text/x-rust", None, Some(Format::Text)),
        ("application/ld+json", None, Some(Format::Json)),
        ("application/msword", Some("a.doc"), None),
        ("application/pdf", Some("a.csv"), Some(Format::Pdf)),
        ("video/mp4", Some("a.pdf"), None),
        ("pdf", None, None),
    ] {
        assert_eq!(Format::detect(media_type, name), format, "{media_type} {name:?}");
    }
    for format in
        [Format::Csv, Format::Markdown, Format::Json, Format::Html, Format::Docx, Format::Xlsx, Format::Pdf]
    {
        assert_eq!(Format::detect(format.media_type(), None), Some(format));
    }
}

#[test]
fn an_answer_of_the_worker_is_held_to_its_limits() {
    let answer = format!(r#"{{"Read":{{"text":"{}\u0007","pages":null}}}}"#, "x".repeat(300_000));
    assert_eq!(parse_answer(&answer).unwrap().unwrap().text.len(), MAX_TEXT_CHARS + 1_000);
    let answer = format!(r#"{{"Failed":{{"broken":"{}"}}}}"#, "x".repeat(1_000));
    assert_eq!(parse_answer(&answer).unwrap().unwrap_err(), DocumentError::Broken("x".repeat(200)));
    assert!(parse_answer("").is_none() && parse_answer("{}").is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the bytes are, there is an answer within the limits, and no panic.
    #[test]
    fn any_bytes_are_read_or_refused(
        body in prop::collection::vec(any::<u8>(), 0..400),
        place in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 1..8),
    ) {
        let samples = [
            (Format::Docx, docx(&paragraph("Birne"))),
            (Format::Xlsx, xlsx("<row r=\"1\"><c r=\"A1\"><v>1</v></c></row>", &["a"], &[])),
            (Format::Pdf, pdf(&[&["Birne"]])),
            (Format::Csv, b"a;b\nc;d".to_vec()),
            (Format::Html, b"<p>Birne</p>".to_vec()),
        ];
        for (format, mut sample) in samples {
            let at = place.index(sample.len());
            let end = (at + bytes.len()).min(sample.len());
            sample.splice(at..end, bytes.iter().copied());
            let _ = extract(format, &sample);
            let _ = extract(format, &body);
        }
    }

    /// A text is given back whole, but for control characters.
    #[test]
    fn texts_are_kept(text in "[^\\p{Cc}\u{feff}\u{fffe}]{0,200}") {
        let read = extract(Format::Markdown, text.as_bytes()).unwrap();
        prop_assert_eq!(read.text, text.trim_end());
    }
}
