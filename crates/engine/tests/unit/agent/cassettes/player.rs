use std::collections::VecDeque;

use api::CallId;
use api::cassettes::CallPairing;
use llm::{Block, FinishReason, TokenUsage};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tools::ExposedTools;

use super::super::tape::{RecordedCall, RecordedStep};
use super::*;

/// A model with these answers. It is all that the player has: there is no tool, store or network here.
#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<Result<Answer, NoAnswer>>>,
    /// The messages of each call.
    seen: Mutex<Vec<Vec<Message>>>,
}

impl Models for Script {
    async fn answer(&self, prompt: &Prompt, _: u64, _: bool) -> Result<ModelAnswer, NoAnswer> {
        self.seen.lock().push(prompt.messages.clone());
        let answer = self.answers.lock().pop_front().unwrap_or(Err(NoAnswer::Failed("no more".into())))?;
        let is_cut = answer.stop == FinishReason::Length;
        Ok(ModelAnswer { model: "m".into(), answer, cost_usd: Some(0.5), is_cut })
    }
}

fn text(text: &str) -> Answer {
    let blocks = vec![Block::Text { text: text.into(), signature: None }];
    Answer {
        blocks,
        usage: TokenUsage { input: 10, output: 5, ..TokenUsage::default() },
        ..Answer::default()
    }
}

fn calling(calls: &[(&str, Value)]) -> Answer {
    let blocks = calls.iter().map(|(name, input)| {
        let call_id = CallId::new();
        Block::ToolUse(ToolUse {
            call_id,
            provider_id: call_id.to_string(),
            name: (*name).into(),
            input: input.clone(),
            signature: None,
            broken: None,
        })
    });
    Answer { blocks: blocks.collect(), ..text("") }
}

fn prompt() -> Prompt {
    Prompt {
        system: "You are a test.".into(),
        tools: ExposedTools::default(),
        messages: vec![Message::user("Go.")],
        options: serde_json::from_value(json!({"max_turns": 9})).unwrap(),
        is_correction: false,
        cache_key: "run".into(),
    }
}

fn recorded(tool: &str, input: Value, steered: &[&str]) -> RecordedStep {
    let (ran_input, text, is_error, remarks) = (None, "found".into(), false, Vec::new());
    let call = RecordedCall { tool: tool.into(), input, ran_input, text, is_error, remarks };
    RecordedStep { calls: vec![call], steered: steered.iter().map(|&text| text.to_owned()).collect() }
}

fn script(answers: impl IntoIterator<Item = Answer>) -> Script {
    Script { answers: Mutex::new(answers.into_iter().map(Ok).collect()), ..Script::default() }
}

const LIMITS: Limits = Limits { max_turns: 5, max_tokens: 1_000 };

async fn run(prompt: Prompt, steps: Vec<RecordedStep>, limits: Limits, models: &Script) -> Performance {
    play(prompt, Tape::new(steps), limits, models).await.unwrap()
}

#[tokio::test]
async fn recorded_results_are_served_until_the_model_is_done() {
    let models = script([calling(&[("read", json!({"a": 1}))]), text("It is green.")]);
    let steps = vec![recorded("read", json!({"a": 1}), &["In French."])];
    let run = run(prompt(), steps, LIMITS, &models).await;
    assert_eq!((run.end.clone(), run.text()), (completed(StopReason::EndTurn), "It is green."));
    assert_eq!(run.steps[0].calls[0].pairing, CallPairing::Same);
    let seen = models.seen.lock();
    let [.., Message::Results(replies), Message::User { .. }] = &seen[1][..] else { panic!("{seen:?}") };
    assert_eq!(replies[0].text, "found");
}

#[tokio::test]
async fn what_the_user_sent_to_a_final_answer_is_answered() {
    let steps = vec![RecordedStep { calls: Vec::new(), steered: vec!["And in French?".into()] }];
    let models = script([text("Green."), text("Vert.")]);
    let run = run(prompt(), steps, LIMITS, &models).await;
    assert_eq!((run.steps.len(), run.text()), (2, "Vert."));
}

#[tokio::test]
async fn a_run_is_bounded_by_calls_and_failures_end_it() {
    let endless = || calling(&[("read", json!({}))]);
    let models = script((0..20).map(|_| endless()));
    let run_1 = run(prompt(), Vec::new(), LIMITS, &models).await;
    assert_eq!((run_1.steps.len(), run_1.end), (5, completed(StopReason::MaxTurns)));
    let run_2 = run(prompt(), Vec::new(), LIMITS, &script([endless()])).await;
    assert_eq!((run_2.end.state, run_2.end.error.as_deref()), (ReplayState::Failed, Some("no more")));
    for (answers, state) in [(vec![], ReplayState::Failed), (vec![Ok(endless())], ReplayState::Completed)] {
        let answers = answers.into_iter().chain([Err(NoAnswer::Budget)]).collect();
        let models = Script { answers: Mutex::new(answers), ..Script::default() };
        assert_eq!(run(prompt(), Vec::new(), LIMITS, &models).await.end.state, state);
    }
}

#[tokio::test]
async fn an_answer_without_the_form_is_corrected_once() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let format = json!({"type": "json_schema", "name": "a", "schema": schema});
    let with_format = || {
        let options = serde_json::from_value(json!({"max_turns": 9, "response_format": format})).unwrap();
        Prompt { options, ..prompt() }
    };
    let good = run(with_format(), Vec::new(), LIMITS, &script([text("no"), text("{\"a\":1}")])).await;
    assert_eq!((good.steps.len(), good.end), (2, completed(StopReason::EndTurn)));
    let bad = run(with_format(), Vec::new(), LIMITS, &script([text("no"), text("{}"), text("{}")])).await;
    assert_eq!((bad.steps.len(), bad.end.state), (2, ReplayState::Failed));
}

#[tokio::test]
async fn an_answer_that_a_budget_cuts_ends_the_run_with_that() {
    let cut = Answer { stop: FinishReason::Length, ..text("It is gr") };
    let run = run(prompt(), Vec::new(), LIMITS, &script([cut])).await;
    assert_eq!((run.end.clone(), run.text()), (completed(StopReason::Budget), "It is gr"));
}

#[tokio::test]
async fn a_large_result_that_is_wanted_again_and_again_ends_the_run() {
    let mut step = recorded("read", json!({}), &[]);
    step.calls[0].text = "x".repeat(MAX_SERVED_BYTES / 2);
    let many: Vec<_> = (0..200).map(|_| ("read", json!({}))).collect();
    let run = run(prompt(), vec![step], LIMITS, &script([calling(&many)])).await;
    assert_eq!((run.steps.len(), run.end.state), (1, ReplayState::Failed));
    assert!(run.end.error.unwrap().contains("24 MiB"));
}
