//! Skills that a conversation shows already: their text is told once. Pure.

use crate::models::{Content, Message, ToolUse};
use crate::tools::LOAD_SKILL;

/// What the model is told in the place of a skill that it can see already.
pub(super) const LOADED: &str =
    "This is loaded already, and has not changed: it stands word for word further up.";

/// What the model is told of what it loaded, in a conversation that is sent so. A skill that has changed since, or whose
/// text was left out of the conversation, is told anew.
pub(super) fn told_once(conversation: &[Message], call: &ToolUse, text: String) -> String {
    let is_shown = call.name == LOAD_SKILL && shows(conversation, &text);
    if is_shown && text.len() > LOADED.len() { LOADED.to_owned() } else { text }
}

/// Whether a conversation has this text as a result, or in what stands for messages that are left out.
fn shows(conversation: &[Message], text: &str) -> bool {
    conversation.iter().any(|message| match message {
        Message::User { content } => content.iter().any(|content| match content {
            Content::Text { text: said } | Content::Note { text: said } => said.contains(text),
            Content::Media(_) => false,
        }),
        Message::Results(replies) => replies.iter().any(|reply| !reply.is_error && reply.text == text),
        Message::Assistant { .. } => false,
    })
}

#[cfg(test)]
mod tests {
    use contract::CallId;
    use serde_json::json;

    use super::*;
    use crate::models::ToolReply;

    const SKILL: &str = "To bake bread, knead the dough for ten minutes, let it rest for two hours, and put it into \
                         the oven at 230 degrees.";

    fn call(name: &str) -> ToolUse {
        ToolUse {
            call_id: CallId::new(),
            provider_id: "call".into(),
            name: name.into(),
            input: json!({}),
            signature: None,
            broken: None,
        }
    }

    fn result(text: &str, is_error: bool) -> Message {
        let (provider_id, text) = ("call".into(), text.into());
        Message::Results(vec![ToolReply { provider_id, text, remarks: Vec::new(), is_error }])
    }

    #[test]
    fn a_text_is_told_again_only_where_the_conversation_does_not_show_it() {
        let told =
            |conversation: &[Message], tool: &str| told_once(conversation, &call(tool), SKILL.to_owned());
        let summary = Message::user(format!("This is a summary. A skill, word for word:\n\n{SKILL}"));
        for shown in [result(SKILL, false), summary] {
            let conversation = [Message::user("Bake."), shown];
            assert_eq!(told(&conversation, LOAD_SKILL), LOADED);
            assert_eq!(told(&conversation, "read_file"), SKILL);
        }
        let changed = SKILL.replace("ten", "five");
        for hidden in
            [result(&changed, false), result(&SKILL[..40], false), result(SKILL, true), result(LOADED, false)]
        {
            assert_eq!(told(&[hidden], LOAD_SKILL), SKILL);
        }
        // There is nothing to gain with a short one.
        assert_eq!(told_once(&[result("Knead.", false)], &call(LOAD_SKILL), "Knead.".into()), "Knead.");
    }
}
