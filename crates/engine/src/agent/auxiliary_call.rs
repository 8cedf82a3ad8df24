//! One-shot model calls outside the conversation, for a plan or a summary. Clients see nothing of them. Each is
//! made once, within a deadline; without an answer the turn continues without it.

use std::sync::Arc;
use std::time::Duration;

use api::usage::UsagePurpose;
use futures::StreamExt as _;
use http_service::clock::Clock;
use llm::{Answer, EventStream, ModelError, ModelErrorKind, Route, StreamEvent, TokenUsage, estimate};
use store::steps::Step;
use store::{CallUsage, WriteError};

use super::Services;
use super::conversation::Conversation;
use super::interrupt::Interrupt;
use super::journal::Journal;

/// Collects a whole answer within `deadline`; clients see nothing of it while it arrives. `prompt` is the
/// estimated number of prompt tokens; usage that the provider does not report is estimated too.
pub(super) async fn collect_answer(
    mut events: EventStream,
    prompt: u64,
    clock: &dyn Clock,
    deadline: Duration,
) -> Result<Answer, ModelError> {
    let answer = async move {
        while let Some(event) = events.next().await {
            match event {
                Ok(StreamEvent::Done(answer)) => return Ok(billed_answer(answer, prompt)),
                Ok(_) => {}
                Err(error) => return Err(billed_failure(error, prompt)),
            }
        }
        Err(ModelError::ended_early())
    };
    tokio::select! {
        biased;
        answer = answer => answer,
        () = clock.sleep(deadline) => {
            // The provider bills the prompt all the same; its own token count is unknown.
            let usage = TokenUsage { input: prompt, estimated: true, ..TokenUsage::default() };
            Err(ModelError { usage, ..ModelError::new(ModelErrorKind::Broken, "the provider took too long") })
        }
    }
}

/// Returns a whole answer with its usage. `prompt` is the number of prompt tokens, used for an estimate if the
/// provider reports no usage.
pub(super) fn billed_answer(answer: Answer, prompt: u64) -> Answer {
    let usage = answer.usage.or_estimated(prompt, estimate::answer(&answer.blocks));
    Answer { usage, ..answer }
}

/// Returns a failed call with its usage. If the provider reports none and an answer had begun, the usage is
/// estimated from `prompt`, the number of prompt tokens. A refused call is not billed.
pub(super) fn billed_failure(error: ModelError, prompt: u64) -> ModelError {
    if error.received_bytes == 0 {
        return error;
    }
    let usage = error.usage.or_estimated(prompt, estimate::text_by_len(error.received_bytes));
    ModelError { usage, ..error }
}

/// Returns the answer of `route` to a prompt of that many tokens, or `None` if it fails or exceeds
/// `deadline`.
pub(super) async fn call_auxiliary(
    services: &Services,
    conversation: &mut Conversation<'_>,
    route: &Arc<Route>,
    (events, prompt): (EventStream, u64),
    deadline: Duration,
    purpose: UsagePurpose,
) -> Result<Option<Answer>, Interrupt> {
    let Conversation { journal, inbox, .. } = conversation;
    let clock = services.clock.clone();
    let answer = async move { collect_answer(events, prompt, &*clock, deadline).await };
    let outcome = inbox.run_while_handling_commands(journal, answer).await?;
    Ok(record_outcome(services, journal, route, outcome, purpose).await?)
}

/// Records how an auxiliary call ended and what it used. Returns its answer; `None` if it failed.
pub(super) async fn record_outcome(
    services: &Services,
    journal: &mut Journal,
    route: &Arc<Route>,
    outcome: Result<Answer, ModelError>,
    purpose: UsagePurpose,
) -> Result<Option<Answer>, WriteError> {
    let usage = outcome.as_ref().map(|answer| &answer.usage);
    services.gateway.record_outcome(route, usage, services.clock.monotonic());
    match outcome {
        Ok(answer) => {
            commit_usage(journal, route, answer.usage, (purpose, false)).await?;
            Ok(Some(answer))
        }
        Err(error) => {
            commit_usage(journal, route, error.usage, (purpose, true)).await?;
            let turn_id = journal.turn_id();
            tracing::warn!(%turn_id, kind = ?error.kind, "An auxiliary model call failed; the turn continues.");
            Ok(None)
        }
    }
}

/// Records the usage of a call, which is billed even without an answer: what it was for, and whether it failed.
pub(super) async fn commit_usage(
    journal: &mut Journal,
    route: &Route,
    tokens: TokenUsage,
    (purpose, is_failure): (UsagePurpose, bool),
) -> Result<(), WriteError> {
    journal.count_call(call_usage(route, tokens, purpose, is_failure));
    if tokens == TokenUsage::default() {
        return Ok(());
    }
    let cost_usd = cost_usd(route, &tokens);
    // Clients receive the usage with the answer or at the end of the turn.
    journal.commit(Step::Spent { model: route.model.name().to_owned(), tokens, cost_usd }, Vec::new()).await
}

/// The usage of a call of `route`, of no task.
pub(super) fn call_usage(
    route: &Route,
    tokens: TokenUsage,
    purpose: UsagePurpose,
    is_failure: bool,
) -> CallUsage {
    let (model, cost_usd) = (route.model.name().to_owned(), cost_usd(route, &tokens));
    CallUsage { model, tokens, cost_usd, is_failure, purpose, task: None, agent: None }
}

/// The cost of a call in US dollars, if the prices of the model are known.
pub(super) fn cost_usd(route: &Route, tokens: &TokenUsage) -> Option<f64> {
    route.prices.map(|prices| prices.cost(tokens))
}

#[cfg(test)]
mod tests {
    use api::event::BlockType;
    use futures::stream;
    use testkit::{SkippingClock, with_deadline};

    use super::*;

    #[tokio::test]
    async fn an_answer_that_does_not_come_costs_its_prompt() {
        let second = Duration::from_secs(1);
        let silent = stream::pending().boxed();
        let error =
            with_deadline(collect_answer(silent, 700, &SkippingClock::new(), second)).await.unwrap_err();
        assert_eq!((error.kind, error.usage.input, error.usage.output), (ModelErrorKind::Broken, 700, 0));
        // A call that breaks off costs its prompt and the output received so far.
        let broken = || ModelError { received_bytes: 8, ..ModelError::ended_early() };
        let events = [
            Ok(StreamEvent::BlockStart(BlockType::Text)),
            Ok(StreamEvent::Delta("12345678".into())),
            Err(broken()),
        ];
        let error = with_deadline(collect_answer(
            stream::iter(events).boxed(),
            700,
            &SkippingClock::new(),
            60 * second,
        ))
        .await;
        let usage = error.unwrap_err().usage;
        assert_eq!((usage.input, usage.output, usage.estimated), (700, 2, true));
        // If the provider reported usage, that counts.
        let reported = TokenUsage { input: 5, output: 1, ..TokenUsage::default() };
        let broken = ModelError { usage: reported, ..broken() };
        let events = stream::iter([Ok(StreamEvent::BlockStart(BlockType::Text)), Err(broken)]).boxed();
        assert_eq!(
            with_deadline(collect_answer(events, 700, &SkippingClock::new(), 60 * second))
                .await
                .unwrap_err()
                .usage,
            reported
        );
        // A refused call is not billed.
        let ended = stream::empty().boxed();
        let error =
            with_deadline(collect_answer(ended, 700, &SkippingClock::new(), 60 * second)).await.unwrap_err();
        assert_eq!((error.kind, error.usage), (ModelErrorKind::Broken, TokenUsage::default()));
    }
}
