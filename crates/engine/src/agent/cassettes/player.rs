//! Runs a cassette: a loop of model calls whose tools are the recorded results.
//!
//! The player has the cassette and a function that calls a model, and nothing else: no tools, no store, no memory. So
//! nothing that a model asks for can act.

use api::cassettes::{
    CassetteOptions, CassetteUsage, MissingCall, ReplayEnd, ReplayState, ReplayedCall, ReplayedStep,
};
use api::event::StopReason;
use llm::{Answer, Message, ToolUse, estimate};
use tools::ExposedTools;

use super::super::{AgentError, structured_output};
use super::tape::{MAX_SERVED_BYTES, Served, Tape};

/// What a model is sent.
pub(super) struct Prompt {
    pub(super) system: String,
    pub(super) tools: ExposedTools,
    pub(super) messages: Vec<Message>,
    pub(super) options: CassetteOptions,
    /// Whether an answer is being corrected, so that no tool may be called.
    pub(super) is_correction: bool,
    /// A key that all prompts of the run share.
    pub(super) cache_key: String,
}

impl Prompt {
    /// The estimated number of tokens.
    pub(super) fn tokens(&self) -> u64 {
        estimate::text(&self.system) + self.tools.tokens() + estimate::messages(&self.messages)
    }
}

/// How much a run may do.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// The most model calls.
    pub(super) max_turns: usize,
    /// The most tokens, input and output.
    pub(super) max_tokens: u64,
}

/// An answer of a model.
pub(super) struct ModelAnswer {
    /// The vendor's name of the model.
    pub(super) model: String,
    pub(super) answer: Answer,
    pub(super) cost_usd: Option<f64>,
    /// Whether the budgets have cut it short.
    pub(super) is_cut: bool,
}

/// Why there is no answer.
pub(super) enum NoAnswer {
    /// The budgets leave too little for one.
    Budget,
    /// The model failed, for this reason.
    Failed(String),
    /// The run is over without a result.
    Ended(AgentError),
}

/// What the player may do: call a model.
pub(super) trait Models: Sync {
    /// Calls a model, which may use `tokens_left` tokens. The first answer of a run must not be empty.
    fn answer(
        &self,
        prompt: &Prompt,
        tokens_left: u64,
        is_first: bool,
    ) -> impl Future<Output = Result<ModelAnswer, NoAnswer>> + Send;
}

/// What a run did.
pub(super) struct Performance {
    pub(super) steps: Vec<ReplayedStep>,
    pub(super) missing: Vec<MissingCall>,
    pub(super) end: ReplayEnd,
}

impl Performance {
    /// The text of the last answer.
    pub(super) fn text(&self) -> &str {
        self.steps.last().map(|step| step.text.as_str()).unwrap_or_default()
    }
}

/// What follows an answer.
enum Next {
    Continue,
    End(ReplayEnd),
}

/// Runs a cassette to its end.
///
/// # Errors
/// The engine stops, or the usage of the run cannot be recorded.
pub(super) async fn play(
    prompt: Prompt,
    tape: Tape,
    limits: Limits,
    models: &impl Models,
) -> Result<Performance, AgentError> {
    let mut run = Run { prompt, tape, steps: Vec::new() };
    let mut tokens = 0_u64;
    let end = loop {
        if run.steps.len() >= limits.max_turns {
            break completed(StopReason::MaxTurns);
        }
        let left = limits.max_tokens.saturating_sub(tokens);
        match models.answer(&run.prompt, left, run.steps.is_empty()).await {
            Ok(answer) => {
                let usage = answer.answer.usage;
                tokens = tokens.saturating_add(usage.input).saturating_add(usage.output);
                if let Next::End(end) = run.apply(answer) {
                    break end;
                }
            }
            Err(NoAnswer::Budget) if run.steps.is_empty() => {
                break failed("the budgets and caps leave too little for an answer".to_owned());
            }
            Err(NoAnswer::Budget) => break completed(StopReason::Budget),
            Err(NoAnswer::Failed(reason)) => break failed(reason),
            Err(NoAnswer::Ended(error)) => return Err(error),
        }
    };
    Ok(Performance { steps: run.steps, missing: run.tape.into_missing(), end })
}

struct Run {
    prompt: Prompt,
    tape: Tape,
    steps: Vec<ReplayedStep>,
}

impl Run {
    /// Appends an answer, with the recorded results of its calls.
    fn apply(&mut self, ModelAnswer { model, answer, cost_usd, is_cut }: ModelAnswer) -> Next {
        let calls: Vec<ToolUse> = answer.calls().cloned().collect();
        let served = self.tape.serve(&calls);
        let is_too_much = served.is_err();
        let served = served.unwrap_or_default();
        let steered = self.tape.steered(self.steps.len()).to_vec();
        let (text, refusal) = (answer.text(), answer.refusal());
        let usage =
            CassetteUsage { input_tokens: answer.usage.input, output_tokens: answer.usage.output, cost_usd };
        self.prompt.messages.push(Message::Assistant { model: model.clone(), blocks: answer.blocks });
        let (replies, made): (Vec<_>, Vec<_>) =
            calls.into_iter().zip(served).map(|(call, served)| split(call, served)).unzip();
        let has_calls = !made.is_empty();
        self.steps.push(ReplayedStep { model, text: text.clone(), calls: made, usage });
        if let Some(refusal) = refusal {
            return Next::End(failed(refusal.message));
        }
        if is_too_much {
            return Next::End(failed(format!(
                "the results of its calls have together over {} MiB",
                MAX_SERVED_BYTES >> 20
            )));
        }
        if has_calls {
            self.prompt.messages.push(Message::Results(replies));
        } else if steered.is_empty() {
            return if is_cut {
                Next::End(completed(StopReason::Budget))
            } else {
                self.end_or_correct(&text)
            };
        }
        self.prompt.messages.extend(steered.into_iter().map(Message::user));
        Next::Continue
    }

    /// Ends the run, unless the final answer has to be corrected: as in a turn, once.
    fn end_or_correct(&mut self, text: &str) -> Next {
        let Some(format) = &self.prompt.options.response_format else {
            return Next::End(completed(StopReason::EndTurn));
        };
        match structured_output::validate(format, text) {
            Ok(()) => Next::End(completed(StopReason::EndTurn)),
            Err(errors) if self.prompt.is_correction => {
                Next::End(failed(structured_output::describe_failure(&errors)))
            }
            Err(errors) => {
                self.prompt.messages.push(Message::user(structured_output::rejection_note(&errors)));
                self.prompt.is_correction = true;
                Next::Continue
            }
        }
    }
}

fn split(call: ToolUse, served: Served) -> (llm::ToolReply, ReplayedCall) {
    let Served { pairing, recorded_input, reply } = served;
    (reply, ReplayedCall { tool: call.name, input: call.input, pairing, recorded_input })
}

fn completed(reason: StopReason) -> ReplayEnd {
    ReplayEnd { state: ReplayState::Completed, stop_reason: Some(reason), error: None }
}

fn failed(error: String) -> ReplayEnd {
    ReplayEnd { state: ReplayState::Failed, stop_reason: None, error: Some(error) }
}

#[cfg(test)]
#[path = "../../../tests/unit/agent/cassettes/player.rs"]
mod tests;
