//! The tool calls that the model makes, chosen from the tools that the engine offers.
//!
//! Each edit adds a unique line to a log of its task, so that a tool that ran twice leaves a line twice.

use mock_llm::{CapturedRequest, Reply};
use serde_json::{Map, Value, json};

use crate::prompt::{self, ToolDeclaration};
use crate::rng::SeededRng;
use crate::workload::Workload;

/// The logs of a task. Concurrent calls edit different ones.
pub(crate) const LOG_NAMES: [&str; 2] = ["a", "b"];
/// The end mark of each log, before which the next line is inserted.
pub(crate) const LOG_END_MARK: &str = "END";

/// The log file of a task.
pub(crate) fn log_file_name(task: &str, which: &str) -> String {
    format!("log-{task}-{which}.txt")
}

/// The line that a call adds to its log; `None` if the input is not from this harness.
pub(crate) fn edit_line(input: &Value) -> Option<String> {
    let new = input.as_object()?.values().filter_map(Value::as_str);
    new.filter_map(|text| text.strip_suffix(LOG_END_MARK)?.strip_suffix('\n'))
        .find(|line| line.starts_with("line-"))
        .map(str::to_owned)
}

/// The task and request that calls belong to.
pub(crate) struct CallContext {
    /// The task.
    pub(crate) task: String,
    /// The unique number of the request to the model.
    pub(crate) request_number: u64,
}

/// The tools that a request offers.
pub(crate) struct OfferedTools(Vec<ToolDeclaration>);

impl OfferedTools {
    /// The tools of a request.
    pub(crate) fn from_request(request: &CapturedRequest) -> Self {
        Self(prompt::declared_tools(request))
    }

    fn properties(&self, name: &str) -> Option<&Map<String, Value>> {
        self.0.iter().find(|(offered, _)| offered == name).map(|(_, properties)| properties)
    }

    /// Adds some calls to a reply.
    pub(crate) fn add_calls(
        &self,
        mut reply: Reply,
        rng: &mut SeededRng,
        workload: &Workload,
        context: &CallContext,
    ) -> Reply {
        let idempotent = ["working_memory_set", "read_file", "list_files"];
        let mut logs = LOG_NAMES.into_iter();
        for index in 0..rng.between(1..=3) {
            let unique = format!("{}-{index}", context.request_number);
            if rng.chance(workload.edit_file)
                && let Some(properties) = self.properties("edit_file")
            {
                if let Some(which) = logs.next() {
                    reply = reply.tool_use(
                        "edit_file",
                        edit_input(properties, &log_file_name(&context.task, which), &unique),
                    );
                }
            } else if rng.chance(workload.ask_user)
                && let Some(properties) = self.properties("ask_user")
            {
                reply = reply.tool_use("ask_user", question_input(properties, &unique));
            } else if let Some(name) = rng.pick(&idempotent).filter(|name| self.properties(name).is_some()) {
                reply = reply.tool_use(*name, harmless_input(name, rng));
            }
        }
        reply
    }
}

/// Builds the input of an edit, with the field names from the schema.
fn edit_input(properties: &Map<String, Value>, path: &str, unique: &str) -> Value {
    let mut input = Map::new();
    for name in properties.keys() {
        let value = if name.contains("old") {
            LOG_END_MARK.to_owned()
        } else if name.contains("new") {
            format!("line-{unique}\n{LOG_END_MARK}")
        } else if name.contains("path") || name.contains("file") {
            path.to_owned()
        } else {
            continue;
        };
        input.insert(name.clone(), value.into());
    }
    Value::Object(input)
}

fn question_input(properties: &Map<String, Value>, unique: &str) -> Value {
    let field = properties.keys().find(|name| name.contains("question")).map_or("question", String::as_str);
    json!({field: format!("What of ask-{unique}?")})
}

fn harmless_input(name: &str, rng: &mut SeededRng) -> Value {
    let here = "./".repeat(usize::try_from(rng.between(1..=40)).unwrap_or(1));
    match name {
        "working_memory_set" => {
            json!({"key": format!("k{}", rng.between(0..=4)), "value": rng.between(0..=999_999)})
        }
        // Each call is written differently: identical calls would end the turn as a loop.
        "read_file" => {
            json!({"path": format!("{here}{}", rng.pick(&["note.txt", "missing.txt"]).unwrap_or(&""))})
        }
        _ => json!({"path": here}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_is_made_from_its_schema_and_found_again() {
        let schema = json!({"path": {}, "old_text": {}, "new_text": {}, "replace_all": {}});
        let input = edit_input(schema.as_object().unwrap(), "log-t-a.txt", "7-0");
        assert_eq!(input, json!({"path": "log-t-a.txt", "old_text": "END", "new_text": "line-7-0\nEND"}));
        assert_eq!(edit_line(&input).as_deref(), Some("line-7-0"));
        assert_eq!(edit_line(&json!({"path": "."})), None);
    }
}
