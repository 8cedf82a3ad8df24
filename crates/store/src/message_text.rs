//! The text of the message that a step represents, and its speaker.

use std::borrow::Cow;

use api::MessageId;
use llm::Content;
use serde::Deserialize;

use super::steps::{PartialAnswer, Step, TurnBase, TurnOutcome};

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaker {
    User,
    Agent,
}

/// A message that has text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MessageText {
    pub(super) message_id: MessageId,
    pub(super) speaker: Speaker,
    pub(super) text: String,
}

impl MessageText {
    /// The message of a step, if it has one with text.
    pub(super) fn from_step(step: &Step) -> Option<Self> {
        match step {
            Step::Opened(opened) if !opened.base.is_retry() => {
                Self::new(opened.message_id, Speaker::User, user_text(&opened.message, &opened.media))
            }
            Step::Steered { message_id, message } => Self::new(*message_id, Speaker::User, message.clone()),
            Step::Answered { message_id, answer, .. } => {
                Self::new(*message_id, Speaker::Agent, answer.text())
            }
            Step::Ended {
                outcome: TurnOutcome::Cancelled { said: Some(PartialAnswer { message_id, text }) },
            } => Self::new(*message_id, Speaker::Agent, text.clone()),
            _ => None,
        }
    }

    /// The same for a step in its stored form, without parsing the rest of it: the search for one turn reads about
    /// a hundred steps. A step that cannot be parsed has no text; errors in fields that are not needed here are
    /// ignored.
    pub(super) fn from_stored(body: &str) -> Option<Self> {
        let StoredStepText { step, message_id, message, media, base, answer, outcome } =
            serde_json::from_str(body).ok()?;
        match &*step {
            "opened" if !base.is_retry() => {
                Self::new(message_id?, Speaker::User, user_text(&message, &media))
            }
            "steered" => Self::new(message_id?, Speaker::User, message),
            "answered" => Self::new(message_id?, Speaker::Agent, answer?.text()),
            "ended" => {
                let PartialAnswer { message_id, text } = outcome?.said?;
                Self::new(message_id, Speaker::Agent, text)
            }
            _ => None,
        }
    }

    fn new(message_id: MessageId, speaker: Speaker, text: String) -> Option<Self> {
        (!text.trim().is_empty()).then_some(Self { message_id, speaker, text })
    }
}

/// The text of a user's message together with the text of its attachments.
fn user_text(message: &str, media: &[Content]) -> String {
    let attached = Content::text_of(media);
    [message, &attached].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// The fields of the JSON form of [`Step`] that determine its text.
#[derive(Deserialize)]
struct StoredStepText<'a> {
    #[serde(borrow)]
    step: Cow<'a, str>,
    message_id: Option<MessageId>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    media: Vec<Content>,
    #[serde(default)]
    base: TurnBase,
    #[serde(borrow)]
    answer: Option<StoredAnswer<'a>>,
    outcome: Option<StoredOutcome>,
}

#[derive(Deserialize)]
struct StoredAnswer<'a> {
    #[serde(borrow)]
    blocks: Vec<StoredBlock<'a>>,
}

#[derive(Deserialize)]
struct StoredBlock<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct StoredOutcome {
    said: Option<PartialAnswer>,
}

impl StoredAnswer<'_> {
    fn text(&self) -> String {
        self.blocks.iter().filter(|block| block.kind == "text").map(|block| &*block.text).collect()
    }
}

#[cfg(test)]
mod tests {
    use api::content::MediaKind;
    use api::event::StopReason;
    use api::memory::Source;
    use api::{CallId, HitlId};
    use llm::{Answer, Block, FinishReason, Media, TokenUsage, ToolOutcome, ToolUse};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::steps::{Opened, TurnOptions};

    fn content() -> impl Strategy<Value = Content> {
        let media = |name| Media {
            kind: MediaKind::Image,
            media_type: "image/png".into(),
            name,
            hash: "0".repeat(64),
            tokens: None,
            text: None,
            data: None,
        };
        prop_oneof![
            any::<String>().prop_map(|text| Content::Text { text }),
            any::<String>().prop_map(|text| Content::Note { text }),
            any::<Option<String>>().prop_map(move |name| Content::Media(media(name))),
        ]
    }

    fn block() -> impl Strategy<Value = Block> {
        let call = |name| ToolUse {
            call_id: CallId::new(),
            provider_id: "toolu_1".into(),
            name,
            input: json!({"text": "is an input", "type": "text"}),
            signature: None,
            broken: None,
        };
        prop_oneof![
            (any::<String>(), any::<Option<String>>())
                .prop_map(|(text, signature)| Block::Text { text, signature }),
            any::<String>().prop_map(|thinking| Block::Thinking { thinking, signature: None }),
            any::<String>().prop_map(|data| Block::RedactedThinking { data }),
            any::<String>().prop_map(move |name| Block::ToolUse(call(name))),
        ]
    }

    fn opened() -> impl Strategy<Value = Step> {
        let message_id = MessageId::new();
        let base = prop_oneof![
            Just(TurnBase::End),
            Just(TurnBase::Edit { message_id }),
            Just(TurnBase::Retry { message_id })
        ];
        let media = prop::collection::vec(content(), 0..3);
        (any::<String>(), media, base).prop_map(|(message, media, base)| {
            let options = TurnOptions { max_turns: 5, super_thinking: false, direct: true, overrides: None };
            let notes = vec!["a note".into()];
            Step::Opened(Opened {
                message_id: MessageId::new(),
                notes,
                notes_source: Source::Agent.into(),
                recall_at: None,
                message,
                media,
                options,
                base,
                prompt: None,
                traceparent: None,
            })
        })
    }

    fn step() -> impl Strategy<Value = Step> {
        let answered = prop::collection::vec(block(), 0..4).prop_map(|blocks| Step::Answered {
            message_id: MessageId::new(),
            model: "m".into(),
            answer: Answer { blocks, usage: TokenUsage::default(), stop: FinishReason::default() },
            cost_usd: Some(0.5),
            capped: true,
        });
        let partial_answer = |text| PartialAnswer { message_id: MessageId::new(), text };
        prop_oneof![
            4 => opened(),
            4 => answered,
            1 => any::<String>().prop_map(|message| Step::Steered { message_id: MessageId::new(), message }),
            1 => any::<Option<String>>().prop_map(move |text| Step::Ended {
                outcome: TurnOutcome::Cancelled { said: text.map(partial_answer) },
            }),
            1 => Just(Step::Ended { outcome: TurnOutcome::Completed { stop_reason: StopReason::EndTurn } }),
            1 => Just(Step::Intended { call_id: CallId::new() }),
            // Their fields have the same names as those of other steps, but a different meaning.
            1 => any::<String>().prop_map(|answer| Step::Resolved {
                request_id: HitlId::new(),
                answer,
                remarks: Vec::new(),
                answer_id: None,
            }),
            1 => any::<String>().prop_map(|text| Step::Resulted {
                call_id: CallId::new(),
                outcome: ToolOutcome::new(text, None, 1),
                memory: Vec::new(),
                source: Source::Tool.into(),
            }),
            1 => Just(Step::ReasoningDropped),
            1 => Just(Step::MediaDropped),
        ]
    }

    proptest! {
        #[test]
        fn a_stored_step_says_what_the_step_says(step in step()) {
            let body = serde_json::to_string(&step).unwrap();
            prop_assert_eq!(MessageText::from_stored(&body), MessageText::from_step(&step));
        }
    }

    #[test]
    fn what_is_not_known_says_nothing() {
        for body in
            ["", "{}", r#"{"step":"dreamt","message":"of sheep"}"#, r#"{"step":"answered","answer":7}"#]
        {
            assert_eq!(MessageText::from_stored(body), None, "{body}");
        }
    }
}
