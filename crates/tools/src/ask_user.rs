//! `ask_user`: the agent asks the user a question and waits for the answer.

use api::tool_names;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use serde::Deserialize;
use serde_json::json;

use super::{Invocation, Question, Tool, ToolError, ToolOutput, ToolStep, parse_input};

/// The maximum length of a question, in bytes.
const MAX_QUESTION_BYTES: usize = 4_000;
/// The maximum number of suggested answers.
const MAX_OPTIONS: usize = 20;
/// The maximum length of a suggested answer, in bytes.
const MAX_OPTION_BYTES: usize = 200;

pub(super) struct AskUser;

#[derive(Deserialize)]
struct AskUserInput {
    question: String,
    options: Option<Vec<String>>,
}

impl Tool for AskUser {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::ASK_USER.into(),
            description: "Asks the user a question and waits for the answer. Use it where only the user can \
                          decide or knows."
                .into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "question": {"type": "string", "description": "The question, as the user will read it."},
                    "options": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Answers to choose from, at most 20. The user may answer otherwise.",
                    },
                },
                "required": ["question"],
            }),
        }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn needs_turn(&self) -> bool {
        true
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let question = validate_question(parse_input(invocation.input)?)?;
            Ok(match invocation.answers.into_iter().next_back() {
                None => ToolStep::Ask(question),
                Some(given) => ToolStep::Done(ToolOutput { text: given.answer, ..ToolOutput::default() }),
            })
        })
    }
}

fn validate_question(AskUserInput { question, options }: AskUserInput) -> Result<Question, ToolError> {
    if question.trim().is_empty() || question.len() > MAX_QUESTION_BYTES {
        return Err(ToolError(format!(
            "`question` must be 1 to {MAX_QUESTION_BYTES} bytes long and not blank"
        )));
    }
    // An empty list of options means a free answer.
    let options = options.filter(|options| !options.is_empty());
    for option in options.iter().flatten() {
        if option.is_empty() || option.len() > MAX_OPTION_BYTES {
            return Err(ToolError(format!("each of `options` must be 1 to {MAX_OPTION_BYTES} bytes long")));
        }
    }
    if options.as_ref().is_some_and(|options| options.len() > MAX_OPTIONS) {
        return Err(ToolError(format!("there must be at most {MAX_OPTIONS} `options`")));
    }
    Ok(Question { text: question, options })
}

#[cfg(test)]
mod tests {
    use api::CallId;
    use serde_json::Value;

    use super::*;
    use crate::HumanAnswer;

    async fn run(input: Value, answers: &[&str]) -> Result<ToolStep, ToolError> {
        let answers = answers.iter().map(|answer| HumanAnswer { answer: (*answer).into() }).collect();
        AskUser
            .run(Invocation {
                call_id: CallId::new(),
                at: api::Timestamp::from_unix_ms(0),
                task: None,
                input,
                answers,
            })
            .await
    }

    fn asks(text: &str, options: Option<&[&str]>) -> ToolStep {
        let options = options.map(|options| options.iter().map(|option| (*option).into()).collect());
        ToolStep::Ask(Question { text: text.into(), options })
    }

    #[tokio::test]
    async fn asks_first_and_gives_the_answer_when_run_again() {
        let input = json!({"question": "Which colour?", "options": ["red", "green"]});
        assert_eq!(run(input.clone(), &[]).await, Ok(asks("Which colour?", Some(&["red", "green"]))));
        let answered = ToolStep::Done(ToolOutput { text: "blue".into(), ..ToolOutput::default() });
        assert_eq!(run(input, &["blue"]).await, Ok(answered));
        for free in [json!({"question": "Why?"}), json!({"question": "Why?", "options": []})] {
            assert_eq!(run(free, &[]).await, Ok(asks("Why?", None)));
        }
    }

    #[tokio::test]
    async fn bounds_are_kept() {
        let longest_prefix = json!({"question": "q".repeat(4_000), "options": vec!["o".repeat(200); 20]});
        assert!(matches!(run(longest_prefix, &[]).await, Ok(ToolStep::Ask(_))));
        for (input, why) in [
            (json!({}), "missing field `question`"),
            (json!({"question": 1}), "invalid type"),
            (json!({"question": "?", "options": "yes"}), "invalid type"),
            (json!({"question": ""}), "`question` must be 1 to 4000 bytes"),
            (json!({"question": " \n"}), "not blank"),
            (json!({"question": "q".repeat(4_001)}), "`question` must be 1 to 4000 bytes"),
            (json!({"question": "?", "options": vec!["o"; 21]}), "at most 20 `options`"),
            (json!({"question": "?", "options": ["yes", ""]}), "must be 1 to 200 bytes"),
            (json!({"question": "?", "options": ["o".repeat(201)]}), "must be 1 to 200 bytes"),
        ] {
            for answers in [&[] as &[&str], &["yes"]] {
                let refused = run(input.clone(), answers).await.unwrap_err();
                assert!(refused.0.contains(why), "{input}: {refused}");
            }
        }
    }
}
