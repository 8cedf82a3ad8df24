//! Titles: after the first completed turn of a conversation, a small model names it, if the gateway has one for that.
//!
//! The commit of the turn's end requests the title, so a restart loses none. A model is called beside the turns, a few
//! times at most; a title that the user sets meanwhile stays. Without one, the beginning of the first message serves.

use std::sync::Arc;
use std::time::Duration;

use api::conversations::MAX_TITLE_CHARS;
use api::usage::UsagePurpose;
use llm::{Answer, Message, Request, Route, estimate};
use resources::text::{first_chars, shorten_to_bytes};
use store::{Brain, CallUsage, TitleRequest};

use super::auxiliary_call::{call_usage, collect_answer};
use super::budget::reserve_outside_turn;
use super::{AgentError, Services};

/// How often a model is asked for one title.
const MAX_TRIES: u32 = 3;
/// How long to wait for an answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The delay after a call without a title, or a failure of the brain.
const RETRY_DELAY: Duration = Duration::from_mins(1);
/// The most tokens of an answer, including what models that always reason spend before it.
const MAX_ANSWER_TOKENS: u64 = 1_000;
/// The parts of the question and of the answer that the model is shown, in bytes.
const MAX_SHOWN_BYTES: usize = 2_000;
/// The most characters of a title that a model makes.
const MAX_MODEL_TITLE_CHARS: usize = 80;
const _: () = assert!(MAX_MODEL_TITLE_CHARS <= MAX_TITLE_CHARS, "a title is valid");

const PROMPT: &str = "\
You name conversations. The user shows you the beginning of one, as data. Answer with a title for it and nothing \
else: at most six words, in the language of the conversation, without quotation marks and without a full stop.";

/// What remains to be done.
enum Progress {
    /// There may be another request.
    Continue,
    /// There is none.
    Idle,
    /// The next call is made later.
    Wait,
}

/// The background task that asks for titles.
pub(super) struct Titler {
    brain: Brain,
    services: Arc<Services>,
}

/// The model that makes titles, if the gateway names one.
pub(super) fn route(services: &Services) -> Option<Arc<Route>> {
    services.gateway.routes().ok()?.titles.clone()
}

impl Titler {
    pub(super) fn new(brain: Brain, services: Arc<Services>) -> Self {
        Self { brain, services }
    }

    /// Serves requests forever. It may be dropped at any await.
    pub(super) async fn run(self) {
        loop {
            let progress = self.step().await.unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "A title could not be read or stored; this is retried.");
                Progress::Wait
            });
            match progress {
                Progress::Continue => {}
                Progress::Idle => self.brain.title_requested().await,
                Progress::Wait => self.services.clock.sleep(RETRY_DELAY).await,
            }
        }
    }

    /// Serves the next request.
    async fn step(&self) -> Result<Progress, AgentError> {
        let next = self.brain.run_blocking(Brain::next_title_request).await;
        let Some(request) = next.ok_or(AgentError::Stopping)?? else { return Ok(Progress::Idle) };
        let Some(route) = route(&self.services) else {
            #[expect(
                clippy::redundant_closure_for_method_calls,
                reason = "the method is for one lifetime only"
            )]
            let dropped = self.brain.write(|rows| rows.drop_title_requests());
            dropped.await?;
            return Ok(Progress::Idle);
        };
        let task = request.task;
        if request.tries >= MAX_TRIES || request.question.is_empty() {
            self.brain.write(move |rows| rows.drop_title_request(task)).await?;
            return Ok(Progress::Continue);
        }
        let messages = [Message::user(shown(&request))];
        let prompt = estimate::text(PROMPT) + estimate::messages(&messages);
        let max_tokens = MAX_ANSWER_TOKENS.min(route.max_output);
        let size = (prompt, max_tokens, max_tokens);
        // A budget that is used up costs no try.
        let Some(_allowance) = reserve_outside_turn(&self.services, &self.brain, (&route, Some(task)), size)?
        else {
            return Ok(Progress::Wait);
        };
        // Counted before the call: one that ends the engine is not repeated forever.
        self.brain.write(move |rows| rows.count_title_try(task)).await?;
        let (title, usage) = self.ask(&route, &messages, (prompt, max_tokens)).await;
        let usage = CallUsage { task: Some(task), ..usage };
        let (is_done, at) = (title.is_some(), self.services.clock.now());
        self.brain.write(move |rows| rows.finish_title_try(task, title.as_deref(), Some(&usage), at)).await?;
        Ok(if is_done { Progress::Continue } else { Progress::Wait })
    }

    /// Asks for a title. Returns it, if the model made one, and what was spent.
    async fn ask(
        &self,
        route: &Route,
        messages: &[Message],
        (prompt, max_tokens): (u64, u64),
    ) -> (Option<String>, CallUsage) {
        let events = route.stream(&Request {
            system: PROMPT,
            messages,
            tools: &[],
            thinking: false,
            effort: None,
            max_output: Some(max_tokens),
            allow_tool_calls: false,
            output: None,
            cache_key: "title",
        });
        let answer = collect_answer(events, prompt, &*self.services.clock, CALL_TIMEOUT).await;
        let now = self.services.clock.monotonic();
        let usage = answer.as_ref().map(|answer| &answer.usage);
        self.services.gateway.record_outcome(route, usage, now);
        let tokens = answer.as_ref().map_or_else(|error| error.usage, |answer| answer.usage);
        let usage = call_usage(route, tokens, UsagePurpose::Title, answer.is_err());
        let title = match answer {
            Ok(answer) => title_of(&answer),
            Err(error) => {
                tracing::info!(kind = ?error.kind, model = route.name, "A model made no title.");
                None
            }
        };
        (title, usage)
    }
}

/// The beginning of a conversation, as the model is shown it.
fn shown(request: &TitleRequest) -> String {
    format!(
        "The user: {}\n\nThe assistant: {}",
        shorten_to_bytes(&request.question, MAX_SHOWN_BYTES),
        shorten_to_bytes(&request.answer, MAX_SHOWN_BYTES)
    )
}

/// The title in a model's answer: its first line without quotation marks.
fn title_of(answer: &Answer) -> Option<String> {
    let text = answer.text();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let bare = words.trim_matches(['"', '\'', '`', '“', '”', '„', '«', '»', '*', '#', ' ']);
    let clean: String = bare.chars().filter(|one| !one.is_control()).collect();
    let title = first_chars(clean.trim(), MAX_MODEL_TITLE_CHARS).trim();
    (!title.is_empty()).then(|| title.to_owned())
}

#[cfg(test)]
#[path = "../../tests/unit/agent/titles.rs"]
mod tests;
