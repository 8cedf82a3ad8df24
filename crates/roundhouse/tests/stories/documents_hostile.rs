//! Thirty files that are made to do harm: each is refused with a clear error or read in part, in bounded time
//! and memory, while the engine serves others.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use documents::samples::{archive, docm, document_xml, docx, docx_with, paragraph, pdf, xlsx};
use serde_json::{Value, json};

use super::documents::{DOCX, XLSX, document, message_with};
use crate::documents::can_read_documents;
use crate::support::EngineFixture;
use crate::support::process_memory::{memory_and_peak_mib, reset_peak};

const PDF: &str = "application/pdf";

/// How long an engine may take with one of them: the time of the program that reads it, and its start.
const MAX_TIME: Duration = Duration::from_secs(20);
/// How much more memory the engine itself may take, in MiB. The program that reads a document is another
/// process.
const MAX_GROWTH_MIB: usize = 200;
/// How long others may wait for an answer meanwhile.
const MAX_LATENCY: Duration = Duration::from_secs(2);

/// What becomes of a file.
pub(crate) enum Outcome {
    /// It is refused with an error that has these words.
    Refused(&'static str),
    /// The model gets these words.
    Read(&'static str),
    /// One or the other, in time: a provider may know more of the format than the engine.
    Either,
}

use Outcome::{Either, Read, Refused};

/// A part that deflates to a thousandth.
fn zeros(mebibytes: usize) -> Vec<u8> {
    vec![b' '; mebibytes << 20]
}

/// A PDF of these objects, numbered from 1, with a table of their places.
pub(crate) fn raw_pdf(objects: &[String]) -> Vec<u8> {
    let mut file = String::from("%PDF-1.4\n");
    let mut places = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        places.push(file.len());
        writeln!(file, "{} 0 obj\n{object}\nendobj", number + 1).unwrap();
    }
    let table = file.len();
    writeln!(file, "xref\n0 {}\n0000000000 65535 f ", objects.len() + 1).unwrap();
    for place in places {
        writeln!(file, "{place:010} 00000 n ").unwrap();
    }
    write!(file, "trailer\n<</Size {}/Root 1 0 R>>\nstartxref\n{table}\n%%EOF", objects.len() + 1).unwrap();
    file.into_bytes()
}

fn objects<const N: usize>(objects: [&str; N]) -> Vec<String> {
    objects.map(ToOwned::to_owned).to_vec()
}

/// An archive whose directory names one compressed entry many times.
fn overlapping(entries: usize) -> Vec<u8> {
    let one = archive(&[("word/document.xml", &zeros(8))]);
    let directory = one.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let end = one.windows(4).position(|bytes| bytes == b"PK\x05\x06").unwrap();
    let mut file = one[..directory].to_vec();
    for _ in 0..entries {
        file.extend_from_slice(&one[directory..end]);
    }
    let size = u32::try_from((end - directory) * entries).unwrap();
    let count = u16::try_from(entries).unwrap().to_le_bytes();
    file.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    file.extend_from_slice(&[count, count].concat());
    file.extend_from_slice(&[size.to_le_bytes(), u32::try_from(directory).unwrap().to_le_bytes()].concat());
    file.extend_from_slice(b"\0\0");
    file
}

fn png(width: u32, height: u32) -> Value {
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), b"\x08\x02\0\0\0"].concat();
    let bytes = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &header].concat();
    json!({"type": "image", "media_type": "image/png", "data": document("", "", &bytes)["data"]})
}

fn archives() -> Vec<(&'static str, Value, Outcome)> {
    let docx_file = |name, bytes: &[u8], outcome| (name, document(DOCX, "a.docx", bytes), outcome);
    let xlsx_file = |name, bytes: &[u8], outcome| (name, document(XLSX, "a.xlsx", bytes), outcome);
    let whole = docx(&paragraph("Birne"));
    let bomb = document_xml(&String::from_utf8(zeros(70)).unwrap());
    let one_word = document_xml(&paragraph(&"x".repeat(70 << 20)));
    let nested = archive(&[("inner.zip", &archive(&[("inner.zip", &archive(&[("a", &zeros(16))]))]))]);
    let huge_strings = xlsx("", &[&"x".repeat(70 << 20)], &[]);
    // As many as a debug build reads within its time also on a machine that is busy.
    let empty = format!("<row r=\"1\">{}</row>", "<c/>".repeat(300_000));
    let far = "<row r=\"1048576\"><c r=\"XFD1048576\"><v>3</v></c></row>";
    vec![
        docx_file("a bomb in the text", &docx_with(&bomb, &[]), Refused("the document")),
        docx_file("one word of 70 MiB", &docx_with(&one_word, &[]), Refused("the document")),
        docx_file("archives in archives", &nested, Refused("not a DOCX document")),
        docx_file("entries that overlap", &overlapping(20_000), Refused("not a DOCX document")),
        docx_file("an archive without its end", &whole[..whole.len() - 40], Refused("broken")),
        docx_file(
            "an archive without its middle",
            &[&whole[..60], &whole[200..]].concat(),
            Refused("document"),
        ),
        docx_file("nothing but a signature", b"PK\x03\x04", Refused("broken")),
        docx_file("macros", &docm(&paragraph("Birne"), &[0xcc; 100_000]), Read("Birne")),
        xlsx_file("a workbook of 70 MiB of words", &huge_strings, Refused("unpacks to more")),
        xlsx_file("a cell at the end of a sheet", &xlsx(far, &[], &[]), Read("Ernte 2026")),
        xlsx_file(
            "macros in a workbook",
            &xlsx(far, &[], &[("xl/vbaProject.bin", b"Sub")]),
            Read("Ernte 2026"),
        ),
        xlsx_file("300,000 empty cells", &xlsx(&empty, &[], &[]), Read("has no text")),
    ]
}

fn xml() -> Vec<(&'static str, Value, Outcome)> {
    let docx_file =
        |name, xml: &str, outcome| (name, document(DOCX, "a.docx", &docx_with(xml, &[])), outcome);
    let laughs = (1..30)
        .map(|level| format!("<!ENTITY l{level} \"{}\">", format!("&l{};", level - 1).repeat(10)))
        .collect::<Vec<_>>()
        .concat();
    let laughs =
        format!("<!DOCTYPE a [<!ENTITY l0 \"ha\">{laughs}]>{}", document_xml(&paragraph("Birne &l29;")));
    let outside = "<!DOCTYPE a [<!ENTITY f SYSTEM \"file:///etc/passwd\">]>";
    let outside = format!("{outside}{}", document_xml(&paragraph("Birne &f;")));
    let deep = "<w:tbl><w:tr><w:tc>".repeat(100_000);
    let attributes = (0..200_000).map(|number| format!(" a{number}=\"x\"")).collect::<Vec<_>>().concat();
    vec![
        docx_file("a billion laughs", &laughs, Read("Birne")),
        docx_file("an entity of another file", &outside, Read("Birne")),
        docx_file("300,000 levels", &document_xml(&deep), Refused("nested deeper")),
        docx_file(
            "200,000 attributes",
            &document_xml(&format!("<w:p{attributes}/>{}", paragraph("Birne"))),
            Read("Birne"),
        ),
        docx_file("an element that never ends", "<w:document><w:body><w:p", Refused("broken")),
    ]
}

pub(crate) fn pdfs() -> Vec<(&'static str, Value, Outcome)> {
    let file = |name, bytes: &[u8], outcome| (name, document(PDF, "a.pdf", bytes), outcome);
    let whole = pdf(&[&["Birne"]]);
    let cyclic = objects([
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[2 0 R 3 0 R]/Parent 3 0 R/Count 2>>",
        "<</Type/Pages/Kids[2 0 R 3 0 R]/Parent 2 0 R/Count 2>>",
    ]);
    let form_calls_itself = objects([
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/Contents 4 0 R/Resources<</XObject<</F 4 0 R>>>>>>",
        "<</Type/XObject/Subtype/Form/Resources<</XObject<</F 4 0 R>>>>/Length 240>>stream\n/F Do /F Do /F Do /F Do \
         /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do\
         /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do /F Do\nendstream",
    ]);
    let endless_table =
        b"%PDF-1.4\nxref\n0 4294967295\n0000000000 65535 f \ntrailer\n<</Size 4294967295/Root 1 0 R/Prev 9>>\
                          \nstartxref\n9\n%%EOF";
    let lists = raw_pdf(&[format!("<</Type/Catalog/Pages 2 0 R/A {}>>", "[".repeat(1_000_000))]);
    vec![
        file("pages that contain each other", &raw_pdf(&cyclic), Either),
        file("a form that draws itself", &raw_pdf(&form_calls_itself), Either),
        file("a table without an end", endless_table, Either),
        file("a million brackets", &lists, Either),
        file("half a document", &whole[..whole.len() / 2], Either),
        file("a document that is another", &docx(&paragraph("Birne")), Either),
    ]
}

fn texts() -> Vec<(&'static str, Value, Outcome)> {
    let file = |media_type, bytes: &[u8]| document(media_type, "a", bytes);
    let deep_json = format!("{}{}", "[".repeat(2_000_000), "]".repeat(2_000_000));
    let tags = "<div><a href=x><table>".repeat(300_000);
    vec![
        ("one line of 15 MiB", file("text/csv", &b"a;".repeat(7 << 20)), Read("The document is longer")),
        (
            "two million levels of JSON",
            file("application/json", deep_json.as_bytes()),
            Read("The document is longer"),
        ),
        ("nine hundred thousand tags", file("text/html", format!("Birne{tags}").as_bytes()), Read("Birne")),
        ("a program as a table", file("text/csv", b"\x7fELF\x02\x01\x01\0\0\0"), Refused("binary")),
        ("a workbook as a document", file(DOCX, &xlsx("", &[], &[])), Refused("not a DOCX document")),
        ("a picture of 3.6 gigapixels", png(60_000, 60_000), Refused("60000 × 60000 pixels")),
        ("a picture of one line", png(4_000_000_000, 1), Refused("pixels")),
    ]
}

#[tokio::test]
async fn thirty_hostile_files_are_bounded_in_time_and_memory() {
    if !can_read_documents().await {
        return;
    }
    let files: Vec<_> = [archives(), xml(), pdfs(), texts()].into_iter().flatten().collect();
    assert_eq!(files.len(), 30);
    let fixture = EngineFixture::new([]).await;
    for (name, media, outcome) in files {
        let before = reset_peak(&fixture.program);
        let (calls, begun) = (fixture.model_calls(), Instant::now());
        let body = message_with(&[media]);
        let sending = fixture.engine.post_execute(&body);
        let (answer, latency) = while_serving_others(&fixture, sending).await;
        let elapsed = begun.elapsed();
        assert!(elapsed < MAX_TIME, "{name}: {elapsed:?}");
        assert!(latency < MAX_LATENCY, "{name}: others waited for {latency:?}");
        let (_, peak) = memory_and_peak_mib(&fixture.program);
        assert!(peak < before + MAX_GROWTH_MIB, "{name}: from {before} to {peak} MiB");
        let is_read = answer.status == 200;
        assert_eq!(is_read, fixture.model_calls() > calls, "{name}");
        match outcome {
            Refused(words) => {
                let message = answer.assert_error(400, "INVALID_REQUEST");
                assert!(message.contains("`media[0]`") && message.contains(words), "{name}: {message}");
            }
            Read(words) => {
                assert!(is_read, "{name}: {}", answer.body);
                fixture.last_messages().assert_contains(&[words]);
                fixture.last_messages().assert_lacks(&["root:x", "hahaha"]);
            }
            Either if is_read => {}
            Either => {
                answer.assert_error(400, "INVALID_REQUEST");
            }
        }
        // Each in a conversation of its own, so that what is asserted is about this file.
        if is_read {
            fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
        }
    }
}

/// Waits for a response and asks the engine for its health again and again meanwhile. Returns the response,
/// and the longest time that the engine took to say how it is.
async fn while_serving_others<T>(
    fixture: &EngineFixture,
    response: impl Future<Output = T>,
) -> (T, Duration) {
    let mut response = std::pin::pin!(response);
    let mut longest = Duration::ZERO;
    // Without pauses, the questions would take the processor from the program that reads the file.
    let mut questions = tokio::time::interval(Duration::from_millis(50));
    loop {
        questions.tick().await;
        let begun = Instant::now();
        let health = fixture.engine.get("/health");
        tokio::select! {
            response = &mut response => return (response, longest),
            health = health => {
                assert_eq!(health.status, 200);
                longest = longest.max(begun.elapsed());
            }
        }
    }
}
