//! When the text of a skill is sent again.

use api::{CallId, MessageId};
use llm::{Block, Message, ToolReply};
use serde_json::{Value, json};
use store::steps::Compacted;

use super::*;
use crate::agent::branch::MessageOrigin;
use crate::agent::compaction_view::RewriteKind;

const SKILL: &str = "To bake bread, knead the dough for ten minutes, let it rest for two hours, and put it into the \
                     oven at 230 degrees.";

fn call(name: &str, input: Value) -> ToolUse {
    let call_id = CallId::new();
    ToolUse {
        call_id,
        provider_id: call_id.to_string(),
        name: name.into(),
        input,
        signature: None,
        broken: None,
    }
}

fn load(skill: &str) -> ToolUse {
    call(LOAD_SKILL, json!({"skill": skill}))
}

/// Appends a call with its result.
fn push_call_with_result(branch: &mut Branch, call: ToolUse, text: &str, is_error: bool) {
    let (provider_id, text) = (call.provider_id.clone(), text.to_owned());
    let blocks = vec![Block::ToolUse(call)];
    branch.push(
        Message::Assistant { model: "m".into(), blocks },
        MessageOrigin::Answer { message_id: MessageId::new() },
    );
    let reply = ToolReply { provider_id, text, remarks: Vec::new(), is_error };
    branch.push(Message::Results(vec![reply]), MessageOrigin::Results);
}

fn compact(branch: &mut Branch, instead: Replacement, results_up_to: Option<u64>) {
    let covers = if results_up_to.is_some() { 0 } else { branch.all_messages().len() as u64 };
    branch.rewrite(RewriteKind::Compacted(Compacted { covers, instead, results_up_to, memory_up_to: None }));
}

fn summary() -> Replacement {
    Replacement::Summary { text: "They baked.".into() }
}

/// The result for the model when it loads something whose text is `text` now.
fn deduplicated(branch: &Branch, call: &ToolUse, text: &str) -> String {
    deduplicate(branch, call, text.to_owned())
}

#[test]
fn a_text_is_told_again_only_where_the_conversation_does_not_show_it() {
    let mut branch = Branch::default();
    assert_eq!(deduplicated(&branch, &load("bread"), SKILL), SKILL);
    push_call_with_result(&mut branch, load("bread"), "there is no such skill", true);
    assert_eq!(deduplicated(&branch, &load("bread"), "there is no such skill"), "there is no such skill");
    push_call_with_result(&mut branch, load("bread"), SKILL, false);
    assert_eq!(deduplicated(&branch, &load("bread"), SKILL), ALREADY_LOADED);
    push_call_with_result(&mut branch, load("bread"), ALREADY_LOADED, false);
    assert_eq!(deduplicated(&branch, &load("bread"), SKILL), ALREADY_LOADED);
    // Another skill, a file of this one, or another tool.
    for call in [
        load("cake"),
        call(LOAD_SKILL, json!({"skill": "bread", "file": "a.md"})),
        call("read_file", json!({"skill": "bread"})),
    ] {
        assert_eq!(deduplicated(&branch, &call, SKILL), SKILL);
    }
    // A reference to a short text would save nothing.
    push_call_with_result(&mut branch, load("short"), "Knead.", false);
    assert_eq!(deduplicated(&branch, &load("short"), "Knead."), "Knead.");

    compact(&mut branch, summary(), None);
    assert_eq!(deduplicated(&branch, &load("bread"), SKILL), ALREADY_LOADED, "the summary contains it");
    compact(&mut branch, Replacement::Reset, None);
    assert_eq!(deduplicated(&branch, &load("bread"), SKILL), SKILL);
}

#[test]
fn a_file_is_the_same_however_it_is_named() {
    let mut branch = Branch::default();
    let file = |name: &str| call(LOAD_SKILL, json!({"skill": "bread", "file": name}));
    push_call_with_result(&mut branch, file("./a.md"), SKILL, false);
    assert_eq!(deduplicated(&branch, &file("a.md"), SKILL), ALREADY_LOADED);
}

#[test]
fn what_says_again_what_it_said_before_it_changed_is_told_anew() {
    let mut branch = Branch::default();
    let changed = SKILL.replace("ten", "five");
    for text in [SKILL, &changed] {
        assert_eq!(deduplicated(&branch, &load("bread"), text), text);
        push_call_with_result(&mut branch, load("bread"), text, false);
    }
    assert_eq!(
        deduplicated(&branch, &load("bread"), SKILL),
        SKILL,
        "the newest version that the model sees differs"
    );
    // A summary repeats only the newest version.
    compact(&mut branch, summary(), None);
    let sent = format!("{:?}", branch.messages());
    assert!(sent.contains("five minutes") && !sent.contains("ten minutes"), "{sent}");
    assert_eq!(deduplicated(&branch, &load("bread"), SKILL), SKILL);
    assert_eq!(deduplicated(&branch, &load("bread"), &changed), ALREADY_LOADED);
}

#[test]
fn a_skill_stays_whole_where_results_are_cut() {
    let mut branch = Branch::default();
    push_call_with_result(&mut branch, load("bread"), SKILL, false);
    push_call_with_result(
        &mut branch,
        call("read_file", json!({"path": "a.txt"})),
        &SKILL.to_uppercase(),
        false,
    );
    compact(&mut branch, summary(), Some(50));
    let sent = format!("{:?}", branch.messages());
    assert!(sent.contains(SKILL) && !sent.contains(&SKILL.to_uppercase()), "{sent}");
    assert_eq!(deduplicated(&branch, &load("bread"), SKILL), ALREADY_LOADED);
}
