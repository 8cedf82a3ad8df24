//! The page with the operations of both services, from the documents that the services' tests compare with what they serve.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::files::invalid;
use crate::markdown::{Section, escaped};

/// The services, and the files with their documents.
pub(crate) const SNAPSHOTS: [(&str, &str); 2] = [
    ("orchestrator", "crates/orchestrator/tests/unit/http/snapshots/orchestrator__http__tests__openapi.snap"),
    ("engine", "crates/engine/tests/unit/snapshots/engine__http__tests__openapi.snap"),
];
const METHODS: [&str; 6] = ["get", "head", "post", "put", "patch", "delete"];

/// The document of a service.
pub(crate) struct Document {
    pub(crate) service: &'static str,
    content: Value,
}

/// Reads the documents.
pub(crate) fn read(workspace: &Path) -> io::Result<Vec<Document>> {
    let read = |(service, snapshot): (&'static str, &str)| {
        let text = crate::read_text(workspace, snapshot)?;
        // The head of a snapshot ends with the second line of three dashes.
        let document = text.splitn(3, "---\n").nth(2).unwrap_or_default();
        let content = serde_json::from_str(document)
            .map_err(|error| invalid(&format!("{snapshot} has no document: {error}")))?;
        Ok(Document { service, content })
    };
    SNAPSHOTS.into_iter().map(read).collect()
}

impl Document {
    /// The document without the spaces of its snapshot.
    pub(crate) fn compact(&self) -> String {
        self.content.to_string()
    }
}

/// An operation, as the page lists it.
struct Operation<'a> {
    id: &'a str,
    method: &'a str,
    path: &'a str,
    tag: &'a str,
    summary: &'a str,
    description: &'a str,
}

/// The page without a script: all operations by service and tag. Returns its HTML and its sections.
pub(crate) fn page(documents: &[Document]) -> (String, Vec<Section>) {
    let mut html = "<h1 id=\"every-endpoint\">Every endpoint</h1>\n<div id=\"api\">\n".to_owned();
    let mut sections = vec![section(1, "every-endpoint", "Every endpoint", String::new())];
    for document in documents {
        let (service, title) = (document.service, service_title(document.service));
        let _ = writeln!(html, "<h2 id=\"{service}\">{title}</h2>");
        sections.push(section(2, service, title, String::new()));
        let operations = operations(&document.content);
        for tag in document.content.get("tags").and_then(Value::as_array).into_iter().flatten() {
            let (name, about) = (text(tag, "/name"), text(tag, "/description"));
            let _ = writeln!(
                html,
                "<h3 id=\"{service}.{name}\">{}</h3>\n<p>{}.</p>\n<ul>",
                escaped(name),
                escaped(about)
            );
            for operation in operations.iter().filter(|operation| operation.tag == name) {
                let Operation { id, method, path, summary, description, .. } = operation;
                let method = method.to_uppercase();
                let _ = writeln!(
                    html,
                    "<li id=\"{service}/{id}\"><a href=\"#{service}/{id}\"><code>{method} {}</code></a> {}</li>",
                    escaped(path),
                    with_code(summary)
                );
                let title = format!("{method} {path}");
                sections.push(section(
                    4,
                    &format!("{service}/{id}"),
                    &title,
                    format!("{summary} {description}"),
                ));
            }
            html.push_str("</ul>\n");
        }
    }
    html.push_str("</div>\n");
    (html, sections)
}

/// A line of text as HTML, in which code is between backticks.
fn with_code(text: &str) -> String {
    let pieces = text.split('`').map(escaped).enumerate();
    pieces.map(|(at, piece)| if at % 2 == 1 { format!("<code>{piece}</code>") } else { piece }).collect()
}

fn service_title(service: &str) -> &'static str {
    if service == "engine" { "Engine" } else { "Orchestrator" }
}

fn section(level: u8, id: &str, title: &str, text: String) -> Section {
    Section { level, id: id.to_owned(), title: title.to_owned(), text }
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let mut found = Vec::new();
    for (path, item) in document.get("paths").and_then(Value::as_object).into_iter().flatten() {
        for method in METHODS {
            let Some(operation) = item.get(method) else { continue };
            found.push(Operation {
                id: text(operation, "/operationId"),
                method,
                path,
                tag: text(operation, "/tags/0"),
                summary: text(operation, "/summary"),
                description: text(operation, "/description"),
            });
        }
    }
    found
}

/// The text at a place in a value; nothing if there is none.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
