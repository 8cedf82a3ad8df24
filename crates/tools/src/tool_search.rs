//! `tool_search`: finds tools of connected MCP servers when there are too many to declare all of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::tool_names;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::{ToolSpec, normalised_schema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Invocation, Tool, ToolError, ToolOutput, ToolStep, parse_input};

/// The maximum number of results.
const MAX_RESULTS: usize = 8;
/// The maximum total length of the results, in bytes.
const MAX_RESULT_BYTES: usize = 32 * 1024;
/// The weight of a match in a name relative to one in a description.
const NAME_WEIGHT: usize = 4;

/// The `tool_search` tool.
pub(super) struct ToolSearch {
    tools: Vec<Arc<dyn Tool>>,
}

#[derive(Deserialize)]
struct ToolSearchInput {
    query: String,
}

impl ToolSearch {
    /// Creates a search among these tools.
    pub(super) fn new(tools: Vec<Arc<dyn Tool>>) -> Self {
        Self { tools }
    }

    /// Returns the servers with their numbers of tools.
    fn server_summary(&self) -> String {
        let mut servers: Vec<(String, usize)> = Vec::new();
        for tool in &self.tools {
            let name = tool.spec().name;
            let server = name.split_once("__").map_or(name.as_str(), |(server, _)| server);
            match servers.iter_mut().find(|(known, _)| known == server) {
                Some((_, tools)) => *tools += 1,
                None => servers.push((server.to_owned(), 1)),
            }
        }
        let listed = servers.iter().map(|(server, tools)| format!("{server} ({tools})"));
        listed.collect::<Vec<_>>().join(", ")
    }
}

impl Tool for ToolSearch {
    fn spec(&self) -> ToolSpec {
        let description =
            "Finds tools of connected servers by what they do; call what it finds with `tool_call`."
                .to_owned();
        // Listed here because vendors limit a tool's description.
        let query = format!(
            "What the tool is to do, in a few words; or the name of a tool or a server. The servers, with how many \
             tools they have: {}",
            self.server_summary()
        );
        let input_schema = json!({
            "type": "object",
            "properties": {"query": {"type": "string", "description": query}},
            "required": ["query"],
        });
        ToolSpec { name: tool_names::TOOL_SEARCH.into(), description, input_schema }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let ToolSearchInput { query } = parse_input(invocation.input)?;
            let declarations: Vec<ToolSpec> = self.tools.iter().map(|tool| tool.spec()).collect();
            let text = format_results(&rank(&declarations, &query));
            Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }))
        })
    }
}

/// Returns the tools that match `query`, best match first.
fn rank<'a>(declarations: &'a [ToolSpec], query: &str) -> Vec<&'a ToolSpec> {
    let wanted = words(query);
    let documents: Vec<(BTreeSet<String>, BTreeSet<String>)> =
        declarations.iter().map(|spec| (words(&spec.name), words(&spec.description))).collect();
    let has = |words: &BTreeSet<String>, wanted: &String| {
        words.iter().any(|word| word == wanted || (wanted.len() > 3 && word.starts_with(wanted.as_str())))
    };
    let mut scored = vec![0_usize; declarations.len()];
    for word in &wanted {
        let within = documents.iter().filter(|(name, about)| has(name, word) || has(about, word)).count();
        // A word that few tools contain is more significant than one that all contain.
        let weight = (1 + declarations.len() / within.max(1)).ilog2() as usize + 1;
        for ((name, about), score) in documents.iter().zip(&mut scored) {
            *score += weight * (NAME_WEIGHT * usize::from(has(name, word)) + usize::from(has(about, word)));
        }
    }
    let mut found: Vec<(usize, &ToolSpec)> = scored
        .into_iter()
        .zip(declarations)
        .map(|(score, spec)| (if spec.name == query.trim() { usize::MAX } else { score }, spec))
        .filter(|(score, _)| *score > 0)
        .collect();
    // The sort is stable: among equal scores the earlier tool comes first.
    found.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    found.into_iter().take(MAX_RESULTS).map(|(_, spec)| spec).collect()
}

fn words(text: &str) -> BTreeSet<String> {
    let split = text.split(|character: char| !character.is_alphanumeric()).filter(|word| !word.is_empty());
    split.map(str::to_lowercase).collect()
}

fn format_results(found: &[&ToolSpec]) -> String {
    if found.is_empty() {
        return "No tool was found. Try other words, or the name of a server.".to_owned();
    }
    let mut text = String::new();
    for spec in found {
        let schema: Value = normalised_schema(&spec.input_schema);
        let next = format!("{}\n{}\ninput: {schema}\n\n", spec.name, spec.description);
        if text.len() + next.len() > MAX_RESULT_BYTES {
            text.push_str("More were found; ask more precisely.");
            break;
        }
        text.push_str(&next);
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, description: &str) -> ToolSpec {
        let input_schema = json!({"type": "object", "properties": {}});
        ToolSpec { name: name.into(), description: description.into(), input_schema }
    }

    #[test]
    fn it_finds_by_what_tools_do_and_by_their_names() {
        let declarations = [
            spec("mail__send", "Sends a message to a person."),
            spec("calendar__create_event", "Creates an event in the calendar."),
            spec("calendar__list", "Lists the events of a day."),
            spec("files__list", "Lists the files of a folder."),
        ];
        let names = |query: &str| {
            rank(&declarations, query).into_iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(names("create an event")[0], "calendar__create_event");
        assert_eq!(names("write a message to a person")[0], "mail__send");
        assert_eq!(names("files__list")[0], "files__list");
        assert_eq!(names("calendar").len(), 2);
        assert!(names("qwertz").is_empty() && names("").is_empty());
        assert!(format_results(&[]).contains("No tool was found"));
    }

    #[test]
    fn what_is_told_is_bounded() {
        let long = spec("a__b", &"x".repeat(20_000));
        assert!(format_results(&[&long, &long, &long]).len() < MAX_RESULT_BYTES + 100);
    }
}
