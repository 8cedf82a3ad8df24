//! No tool runs twice: each edit leaves its line exactly once, or at most once if its outcome is unknown.

use std::collections::BTreeMap;

use api::CallId;
use api::event::{Event, SentEvent, ToolResult};

use crate::tool_calls::{LOG_END_MARK, edit_line};

/// Whether a result says that the outcome of the call is unknown.
pub(super) fn is_unknown_outcome(error: &str) -> bool {
    error.contains("unknown")
}

/// Returns the violations in a log, by the calls and results that clients saw. `complete` unless some may not have
/// been seen.
pub(super) fn check_log(name: &str, log: &str, seen: &[&SentEvent], complete: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for line in log.lines() {
        *lines.entry(line).or_default() += 1;
    }
    if lines.remove(LOG_END_MARK) != Some(1) || !log.ends_with(&format!("{LOG_END_MARK}\n")) {
        wrong.push(format!("{name} is damaged: it must end with {LOG_END_MARK}, once: {log:?}"));
    }
    wrong.extend(lines.iter().filter(|(_, count)| **count > 1).map(|(line, _)| format!("{line} ran twice")));
    let mut results: BTreeMap<CallId, &ToolResult> = BTreeMap::new();
    for event in seen {
        if let Event::ToolResult(result) = &event.event {
            results.insert(result.tool_call_id, result);
        }
    }
    for event in seen {
        let Event::ToolCall(call) = &event.event else { continue };
        let ours = call.input.as_object().is_some_and(|input| input.values().any(|value| value == name));
        let Some(line) = edit_line(&call.input).filter(|_| ours) else { continue };
        let count = lines.get(line.as_str()).copied().unwrap_or_default();
        let is_valid = match results.get(&call.tool_call_id).map(|result| &result.error) {
            None => count <= 1,
            Some(Some(error)) if is_unknown_outcome(error) => count <= 1,
            Some(Some(_)) => count == 0,
            Some(None) => count == 1,
        };
        if !is_valid {
            let result = results.get(&call.tool_call_id);
            wrong.push(format!("{line} occurs {count} times, but the result is {result:?}"));
        }
    }
    if complete {
        let is_known = |line: &&str| {
            let of_call = |event: &&&SentEvent| match &event.event {
                Event::ToolCall(call) => edit_line(&call.input).as_deref() == Some(*line),
                _ => false,
            };
            seen.iter().any(|event| of_call(&event))
        };
        let unknown = lines.keys().filter(|line| line.starts_with("line-") && !is_known(line));
        wrong.extend(unknown.map(|line| format!("{line} occurs, but no client received its call")));
    }
    wrong.sort();
    wrong.dedup();
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{call_id, event};

    #[test]
    fn a_line_is_there_as_often_as_its_result_allows() {
        let input = json!({"path": "log", "new": "line-1\nEND"});
        let call =
            event(1, "tool_call", json!({"tool_call_id": call_id(1), "tool": "edit_file", "input": input}));
        let result = |error: Option<&str>| {
            let mut data =
                json!({"tool_call_id": call_id(1), "tool": "edit_file", "output": "", "duration_ms": 0});
            if let Some(error) = error {
                data["error"] = error.into();
            }
            event(2, "tool_result", data)
        };
        let unknown = Some("the outcome is unknown");
        let (none, once_, twice) = ("END\n", "line-1\nEND\n", "line-1\nline-1\nEND\n");
        for (log, error, is_valid) in [
            (once_, None, true),
            (none, None, false),
            (twice, None, false),
            (once_, unknown, true),
            (none, unknown, true),
            (twice, unknown, false),
            (none, Some("refused"), true),
            (once_, Some("refused"), false),
            ("line-1\n", None, false),
            ("line-1\nline-2\nEND\n", None, false),
        ] {
            let wrong = check_log("log", log, &[&call, &result(error)], true);
            assert_eq!(wrong.is_empty(), is_valid, "{log:?} {error:?}: {wrong:?}");
        }
        assert!(check_log("log", once_, &[&call], true).is_empty());
        assert!(!check_log("log", once_, &[], true).is_empty());
        assert!(check_log("log", once_, &[], false).is_empty());
    }
}
