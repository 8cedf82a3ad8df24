//! One-shot model calls outside the conversation, for a plan or a summary. Clients see nothing of them. Each is
//! made once, within a deadline; without an answer the turn continues without it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http_service::clock::Clock;

use super::active_turn::{ActiveTurn, Interrupt};
use crate::llm::{Answer, EventStream, ModelError, ModelErrorKind, Route, StreamEvent, TokenUsage, estimate};

/// Collects a whole answer, of which nothing is shown while it arrives, within `deadline`. `prompt` is the
/// estimated number of prompt tokens; usage that the provider does not report is estimated too.
pub(super) async fn collect_answer(
    mut parts: EventStream,
    prompt: u64,
    clock: &dyn Clock,
    deadline: Duration,
) -> Result<Answer, ModelError> {
    let answer = async move {
        while let Some(part) = parts.next().await {
            match part {
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
            let spent = TokenUsage { input: prompt, estimated: true, ..TokenUsage::default() };
            Err(ModelError { usage: spent, ..ModelError::new(ModelErrorKind::Broken, "the provider took too long") })
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
    let spent = error.usage.or_estimated(prompt, estimate::text_by_len(error.received_bytes));
    ModelError { usage: spent, ..error }
}

impl ActiveTurn {
    /// Returns the answer of `route` to a prompt of that many tokens, or `None` if it fails or exceeds
    /// `deadline`.
    pub(super) async fn call_auxiliary(
        &mut self,
        route: &Arc<Route>,
        (parts, prompt): (EventStream, u64),
        deadline: Duration,
    ) -> Result<Option<Answer>, Interrupt> {
        let clock = self.context.services.clock.clone();
        let outcome = self
            .run_while_handling_commands(
                async move { collect_answer(parts, prompt, &*clock, deadline).await },
            )
            .await?;
        let now = self.context.services.clock.monotonic();
        self.context.services.gateway.record_outcome(
            route,
            outcome.as_ref().map(|answer| &answer.usage),
            now,
        );
        match outcome {
            Ok(answer) => {
                self.commit_usage(route, answer.usage).await?;
                Ok(Some(answer))
            }
            Err(error) => {
                self.commit_usage(route, error.usage).await?;
                let turn_id = self.context.turn_id();
                tracing::warn!(turn.id = %turn_id, kind = ?error.kind, "A question beside the turn has no answer.");
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use api::event::BlockType;
    use futures::stream;

    use super::*;
    use crate::testing::{SkippingClock, with_deadline};

    #[tokio::test]
    async fn an_answer_that_does_not_come_costs_its_prompt() {
        let second = Duration::from_secs(1);
        let silent = stream::pending().boxed();
        let error =
            with_deadline(collect_answer(silent, 700, &SkippingClock::new(), second)).await.unwrap_err();
        assert_eq!((error.kind, error.usage.input, error.usage.output), (ModelErrorKind::Broken, 700, 0));
        // A call that breaks off costs its prompt and the output received so far.
        let broken = || ModelError { received_bytes: 8, ..ModelError::ended_early() };
        let parts = [
            Ok(StreamEvent::BlockStart(BlockType::Text)),
            Ok(StreamEvent::Delta("12345678".into())),
            Err(broken()),
        ];
        let error = with_deadline(collect_answer(
            stream::iter(parts).boxed(),
            700,
            &SkippingClock::new(),
            60 * second,
        ))
        .await;
        let spent = error.unwrap_err().usage;
        assert_eq!((spent.input, spent.output, spent.estimated), (700, 2, true));
        // If the provider reported usage, that counts.
        let told = TokenUsage { input: 5, output: 1, ..TokenUsage::default() };
        let broken = ModelError { usage: told, ..broken() };
        let parts = stream::iter([Ok(StreamEvent::BlockStart(BlockType::Text)), Err(broken)]).boxed();
        assert_eq!(
            with_deadline(collect_answer(parts, 700, &SkippingClock::new(), 60 * second))
                .await
                .unwrap_err()
                .usage,
            told
        );
        // A refused call is not billed.
        let ended = stream::empty().boxed();
        let error =
            with_deadline(collect_answer(ended, 700, &SkippingClock::new(), 60 * second)).await.unwrap_err();
        assert_eq!((error.kind, error.usage), (ModelErrorKind::Broken, TokenUsage::default()));
    }
}
