//! The references of errors and events: each code and each event is there, with an example that this version reads.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use api::ErrorCode;
use api::audit::{AuditEvent, AuditRow};
use api::event::{FailureCode, SentEvent, TurnEvent};
use serde_json::Value;
use utoipa::PartialSchema;

fn page(name: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    fs::read_to_string(docs.join(name)).unwrap().replace("\r\n", "\n")
}

/// The values of an enum on the wire.
fn values<T: PartialSchema>() -> BTreeSet<String> {
    let schema = serde_json::to_value(T::schema()).unwrap();
    let values = schema["enum"].as_array().unwrap();
    values.iter().map(|value| value.as_str().unwrap().to_owned()).collect()
}

/// The headings of a level, each with the text up to the next heading.
fn sections<'a>(page: &'a str, mark: &str) -> Vec<(&'a str, &'a str)> {
    let mut found = Vec::new();
    for part in page.split(&format!("\n{mark} ")).skip(1) {
        let (heading, rest) = part.split_once('\n').unwrap();
        found.push((heading, rest.split("\n#").next().unwrap()));
    }
    found
}

/// The cells of the rows of the tables in a text, without their heads.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

fn code(text: &str) -> &str {
    text.trim_matches('`')
}

#[test]
fn every_error_code_is_below_its_status_with_cause_and_cure() {
    let page = page("errors.md");
    let mut documented = BTreeSet::new();
    for status in page.split("\n## ").skip(1) {
        let number = status.split(':').next().unwrap();
        for (heading, text) in sections(status, "###") {
            let name = code(heading);
            let code: ErrorCode = serde_json::from_value(name.into()).unwrap_or_else(|_| panic!("{name}"));
            assert_eq!(code.status().to_string(), number, "{name}");
            for part in ["*From:* ", "*Cause:* ", "*Cure:*"] {
                assert!(text.contains(part), "{name} has no {part}");
            }
            assert!(documented.insert(name.to_owned()), "{name} is there twice");
        }
    }
    assert_eq!(documented, values::<ErrorCode>());
}

#[test]
fn every_code_of_the_event_error_has_cause_and_cure() {
    let page = page("errors.md");
    let (_, table) = page.split_once("## Codes of the event `error`").unwrap();
    let documented: BTreeSet<String> = rows(table)
        .iter()
        .map(|cells| {
            assert!(cells.len() == 3 && cells.iter().all(|cell| !cell.is_empty()), "{cells:?}");
            code(cells[0]).to_owned()
        })
        .collect();
    assert_eq!(documented, values::<FailureCode>());
}

/// The examples of a section.
fn examples(text: &str) -> Vec<Value> {
    let blocks = text.split("```json\n").skip(1).map(|block| block.split("```").next().unwrap());
    blocks
        .map(|block| serde_json::from_str(block).unwrap_or_else(|error| panic!("{error}: {block}")))
        .collect()
}

#[test]
fn every_event_of_a_turn_has_an_example_that_can_be_read() {
    let page = page("events.md");
    let (turn, _) = page.split_once("\n## Events of the audit log").unwrap();
    let mut documented = BTreeSet::new();
    for (heading, text) in sections(turn, "###") {
        let kind = code(heading);
        let examples = examples(text);
        assert!(!examples.is_empty(), "{kind} has no example");
        for example in examples {
            assert_eq!(example["event"], kind);
            let event = SentEvent::from_sse(kind, &example["data"].to_string());
            let event = event.unwrap_or_else(|error| panic!("{kind}: {error}"));
            assert_eq!(event.event.kind(), kind);
            // The example has all fields that this version would send, and no other.
            let sent = event.to_sse().unwrap();
            let data = sent.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
            assert_eq!(serde_json::from_str::<Value>(data).unwrap(), example["data"], "{kind}");
            let id = sent.lines().find_map(|line| line.strip_prefix("id: "));
            assert_eq!(example.get("id").and_then(Value::as_str), id, "{kind}");
        }
        documented.insert(kind.to_owned());
    }
    assert_eq!(documented, TurnEvent::kinds().map(str::to_owned).collect());
}

#[test]
fn every_event_of_the_audit_log_has_an_example_of_its_detail() {
    let page = page("events.md");
    let (_, audit) = page.split_once("\n## Events of the audit log").unwrap();
    let example = examples(audit).remove(0);
    let row: AuditRow = serde_json::from_str(&example["data"].to_string()).unwrap();
    assert_eq!(
        (example["event"].as_str().unwrap(), example["id"].as_str().unwrap()),
        (&*row.event, &*row.id.to_string())
    );
    assert_eq!(serde_json::to_value(&row).unwrap(), example["data"]);
    let mut documented = Vec::new();
    for cells in rows(audit) {
        let [event, meaning, detail] = cells[..] else { panic!("{cells:?}") };
        let detail: Value =
            serde_json::from_str(code(detail)).unwrap_or_else(|error| panic!("{event}: {error}"));
        assert!(detail.is_object() && !meaning.is_empty(), "{event}");
        documented.push(code(event).to_owned());
    }
    let all: Vec<String> = AuditEvent::ALL.iter().map(|event| event.as_str().to_owned()).collect();
    assert_eq!(documented, all);
}
