use super::*;

#[test]
fn what_changed_since_the_turn_is_said() {
    let hashes = |system: &str, tools: &str| PromptHashes { system: system.into(), tools: tools.into() };
    let now = hashes("s", "t");
    assert_eq!(prompt_gaps(Some(&now), &now), []);
    let parts = |then: Option<&PromptHashes>| {
        prompt_gaps(then, &now).into_iter().map(|gap| gap.part).collect::<Vec<_>>()
    };
    assert_eq!(parts(Some(&hashes("other", "t"))), [CassettePartName::System]);
    assert_eq!(parts(Some(&hashes("s", "other"))), [CassettePartName::Tools]);
    assert_eq!(parts(None), [CassettePartName::System, CassettePartName::Tools]);
}

#[test]
fn notes_stand_before_the_users_last_message() {
    let reply =
        llm::ToolReply { provider_id: "1".into(), text: "r".into(), remarks: Vec::new(), is_error: false };
    let mut messages = [Message::user("one"), Message::user("two"), Message::Results(vec![reply])];
    add_notes(&mut messages, vec!["note".into()]);
    let Message::User { content } = &messages[1] else { panic!("{messages:?}") };
    assert_eq!(content[0], Content::Note { text: "note".into() });
    assert_eq!(messages[0], Message::user("one"));
}
