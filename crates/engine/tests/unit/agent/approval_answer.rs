use std::sync::Arc;

use api::CallId;
use catalog::{Permission, Permissions};
use futures::future::BoxFuture;
use llm::ToolSpec;
use serde_json::json;
use tools::patterns::Subject;
use tools::{Invocation, Tool, ToolStep};

use super::*;

/// A tool about the file `path`, of at most ten characters.
struct PathTool;

impl Tool for PathTool {
    fn spec(&self) -> ToolSpec {
        let input_schema = json!({
            "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"],
        });
        ToolSpec { name: "touch".into(), description: String::new(), input_schema }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Ask
    }

    fn check_input(&self, input: &Value) -> Result<(), ToolError> {
        if input["path"].as_str().is_some_and(|path| path.len() > 10) {
            return Err(ToolError("`path` is too long".into()));
        }
        Ok(())
    }

    fn grant_subject(&self, input: &Value) -> Option<Subject> {
        Some(Subject::Path(input["path"].as_str()?.to_owned()))
    }

    fn run(&self, _: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        unreachable!("nothing is run")
    }
}

fn call() -> ToolUse {
    ToolUse {
        call_id: CallId::new(),
        provider_id: "1".into(),
        name: "touch".into(),
        input: json!({"path": "notes/a"}),
        broken: None,
        signature: None,
    }
}

fn refusal(answer: Value, reason: ApprovalReason, permissions: Permissions) -> String {
    let toolbox = Toolbox::new(vec![Arc::new(PathTool)], permissions);
    let parsed = ApprovalAnswer::parse(serde_json::from_value(answer).unwrap());
    match parsed.and_then(|(answer, _)| answer.validate(Some(reason), &call(), &toolbox)) {
        Ok(()) => String::new(),
        Err(AgentError::Invalid(message)) => message,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_answer_is_checked_as_the_call_was() {
    for (answer, expected) in [
        (json!({"decision": "allow_once"}), ""),
        (json!({"decision": "deny", "message": "Not now."}), ""),
        (json!({"decision": "allow_once", "input": {"path": "b"}}), ""),
        (json!({"decision": "allow_task", "pattern": "notes/*"}), ""),
        (json!({"decision": "allow_task", "input": {"path": "b/c"}, "pattern": "b/*"}), ""),
        (json!({"decision": "allow_once", "input": {"path": 7}}), "`input`"),
        (json!({"decision": "allow_once", "input": {}}), "`input`"),
        (json!({"decision": "allow_once", "input": "b"}), "`input`"),
        (json!({"decision": "allow_once", "input": {"path": "a/longer/path"}}), "`path` is too long"),
        (json!({"decision": "deny", "input": {"path": "b"}}), "`input`"),
        (json!({"decision": "allow_once", "pattern": "notes/*"}), "`pattern`"),
        (json!({"decision": "deny", "pattern": "notes/*"}), "`pattern`"),
        (json!({"decision": "allow_always", "pattern": "*"}), "`pattern`"),
        // The pattern is for what runs, not for what the model had sent.
        (json!({"decision": "allow_task", "input": {"path": "b/c"}, "pattern": "notes/*"}), "`pattern`"),
        (json!({"decision": "allow_once", "message": "x".repeat(4_001)}), "`message`"),
    ] {
        let message = refusal(answer.clone(), ApprovalReason::Permission, Permissions::default());
        assert_eq!(message.is_empty(), expected.is_empty(), "{answer}: {message}");
        assert!(message.contains(expected), "{answer}: {message}");
    }
    let large = json!({"decision": "allow_once", "input": {"path": "x".repeat(MAX_INPUT_BYTES)}});
    assert!(refusal(large, ApprovalReason::Permission, Permissions::default()).contains("bytes of JSON"));
}

#[test]
fn nothing_lasting_is_given_where_each_call_is_asked_about() {
    for (decision, expected) in
        [("allow_once", ""), ("deny", ""), ("allow_task", "`decision`"), ("allow_always", "`decision`")]
    {
        let answer = json!({"decision": decision});
        let message = refusal(answer, ApprovalReason::UntrustedContent, Permissions::default());
        assert_eq!(message.is_empty(), expected.is_empty(), "{decision}");
        assert!(message.contains(expected), "{decision}: {message}");
    }
}

#[test]
fn nothing_permits_what_the_catalog_denies() {
    let denied = || Permissions { default: Some(Permission::Deny), ..Permissions::default() };
    for answer in [
        json!({"decision": "allow_once", "input": {"path": "b"}}),
        json!({"decision": "allow_always", "pattern": "notes/*"}),
    ] {
        assert!(refusal(answer, ApprovalReason::Permission, denied()).contains("not permitted"));
    }
}
