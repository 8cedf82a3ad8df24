//! Tool calls as the protocol shows them: what kind they are, what they are called, and what they would change.

use api::approvals::{ApprovalPreview, PresentFile};
use api::event::{ToolCall, ToolResult};
use api::tool_names as names;
use serde_json::{Value, json};

use crate::terminal::single_line;

/// The longest part of an input in a title, in characters.
const MAX_TITLE_CHARS: usize = 120;

/// The parameter of a built-in tool that says most about a call.
const SUBJECTS: [&str; 7] = ["path", "command", "url", "query", "agent", "question", "key"];

/// The protocol's word for what a tool does.
pub(super) fn kind(tool: &str) -> &'static str {
    match tool {
        names::READ_FILE | names::LIST_FILES | names::LOAD_SKILL | names::SCHEDULE_LIST => "read",
        names::WRITE_FILE | names::EDIT_FILE => "edit",
        names::MEMORY_FORGET | names::SCHEDULE_DELETE => "delete",
        names::MEMORY_SEARCH | names::WEB_SEARCH | names::TOOL_SEARCH => "search",
        names::SHELL | names::RUN_SKILL_SCRIPT => "execute",
        names::WEB_FETCH => "fetch",
        names::RUN_AGENT => "think",
        _ => "other",
    }
}

/// The name of the tool, and what it is called with.
pub(super) fn title(tool: &str, input: &Value) -> String {
    let subject = SUBJECTS.iter().find_map(|name| input.get(name)).and_then(Value::as_str);
    match subject {
        Some(subject) if kind(tool) != "other" => {
            format!("{tool}: {}", single_line(subject, MAX_TITLE_CHARS))
        }
        _ => tool.to_owned(),
    }
}

/// The update that announces a call.
pub(super) fn announcement(call: &ToolCall) -> Value {
    let ToolCall { tool_call_id, tool, input } = call;
    json!({
        "sessionUpdate": "tool_call", "toolCallId": tool_call_id, "title": title(tool, input), "name": tool,
        "kind": kind(tool), "status": "in_progress", "rawInput": input,
    })
}

/// The update that ends a call. `before` is its content so far, which stays.
pub(super) fn outcome(result: &ToolResult, before: &[Value]) -> Value {
    let (status, text) = match &result.error {
        None => ("completed", &result.output),
        Some(error) => ("failed", error),
    };
    let mut content = before.to_vec();
    content.push(text_content(text));
    let mut raw = json!({"output": result.output, "duration_ms": result.duration_ms});
    if let (Some(error), Some(fields)) = (&result.error, raw.as_object_mut()) {
        fields.insert("error".to_owned(), json!(error));
    }
    json!({
        "sessionUpdate": "tool_call_update", "toolCallId": result.tool_call_id, "status": status,
        "content": content, "rawOutput": raw,
    })
}

/// An update of a call's status.
pub(super) fn status(tool_call_id: api::CallId, status: &str) -> Value {
    json!({"sessionUpdate": "tool_call_update", "toolCallId": tool_call_id, "status": status})
}

pub(super) fn text_content(text: &str) -> Value {
    json!({"type": "content", "content": {"type": "text", "text": text}})
}

/// What a call would do, as content of the call.
pub(super) fn preview_content(preview: &ApprovalPreview) -> Vec<Value> {
    match preview {
        ApprovalPreview::Diff { path, present, diff, truncated: false } => hunks(diff)
            .map(|(old, new)| {
                let old = (*present == PresentFile::Text).then_some(old);
                // A path must be absolute; the workspace is the root of what the agent sees.
                let path = format!("/{}", path.trim_start_matches('/'));
                json!({"type": "diff", "path": path, "oldText": old, "newText": new})
            })
            .collect(),
        ApprovalPreview::Diff { path, diff, .. } => {
            vec![text_content(&format!("{path}:\n```diff\n{diff}\n… (there is more)\n```"))]
        }
        ApprovalPreview::Command { command, folder, network } => {
            let folder = folder.as_ref().map(|folder| format!(" in {folder}")).unwrap_or_default();
            let network = if *network { " with network" } else { "" };
            vec![text_content(&format!("Runs{folder}{network}:\n```\n{command}\n```"))]
        }
        ApprovalPreview::Address { method, url } => vec![text_content(&format!("{method} {url}"))],
        ApprovalPreview::Text { text, truncated } => {
            let more = if *truncated { "\n… (there is more)" } else { "" };
            vec![text_content(&format!("{text}{more}"))]
        }
    }
}

/// The hunks of a diff of lines: what was there, and what will be.
fn hunks(diff: &str) -> impl Iterator<Item = (String, String)> {
    diff.split("\n…\n").map(|hunk| {
        let side = |dropped: char| {
            let mut text = String::new();
            for line in hunk.lines().filter(|line| !line.starts_with(dropped)) {
                text.push_str(line.get(1..).unwrap_or_default());
                text.push('\n');
            }
            text
        };
        (side('+'), side('-'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_built_in_tool_has_a_kind_unless_the_protocol_has_no_word_for_it() {
        let other: Vec<&str> = names::BUILT_IN.into_iter().filter(|tool| kind(tool) == "other").collect();
        let expected = [
            names::WORKING_MEMORY_SET,
            names::MEMORY_SAVE,
            names::SCHEDULE_CREATE,
            names::ASK_USER,
            names::TOOL_CALL,
        ];
        assert_eq!(
            other, expected,
            "`kind` says what a new built-in tool does, or this list that nothing fits"
        );
    }

    #[test]
    fn a_title_has_the_subject_of_the_call() {
        assert_eq!(title("write_file", &json!({"path": "a\nb"})), "write_file: a\\nb");
        assert_eq!(title("shell", &json!({"command": "ls"})), "shell: ls");
        assert_eq!(title("their__tool", &json!({"path": "x"})), "their__tool");
        assert_eq!(title("read_file", &json!(null)), "read_file");
    }

    #[test]
    fn a_diff_is_given_as_both_sides_of_each_hunk() {
        let diff = |present, truncated| ApprovalPreview::Diff {
            path: "notes/a.txt".into(),
            present,
            diff: "-red\n+green\n last\n…\n+é".into(),
            truncated,
        };
        let expected = [
            json!({"type": "diff", "path": "/notes/a.txt", "oldText": "red\nlast\n", "newText": "green\nlast\n"}),
            json!({"type": "diff", "path": "/notes/a.txt", "oldText": "", "newText": "é\n"}),
        ];
        assert_eq!(preview_content(&diff(PresentFile::Text, false)), expected);
        let new = preview_content(&diff(PresentFile::Missing, false));
        assert_eq!(new[0]["oldText"], Value::Null);
        let cut = preview_content(&diff(PresentFile::Text, true));
        assert_eq!(cut[0]["type"], "content");
    }
}
