//! Questions beside the conversation, of which clients are shown nothing: for a plan, for a summary. They are asked
//! once, within a deadline, and where no answer comes the turn goes on without it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use service::clock::Clock;

use super::run::{Stopped, TurnRun};
use crate::models::{Answer, ModelError, ModelErrorKind, Part, Parts, Route, Tokens, estimate};

/// The whole of an answer of which nothing is shown while it comes, if it does within `deadline`. `prompt` is how many
/// tokens it was asked with, by an estimate: what the provider does not tell of its cost is estimated too.
pub(super) async fn whole(
    mut parts: Parts,
    prompt: u64,
    clock: &dyn Clock,
    deadline: Duration,
) -> Result<Answer, ModelError> {
    let answer = async move {
        while let Some(part) = parts.next().await {
            match part {
                Ok(Part::Done(answer)) => return Ok(billed_answer(answer, prompt)),
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
            // The provider bills the prompt all the same; how many tokens it counts is not known.
            let spent = Tokens { input: prompt, estimated: true, ..Tokens::default() };
            Err(ModelError { spent, ..ModelError::new(ModelErrorKind::Broken, "the provider took too long") })
        }
    }
}

/// A whole answer to a prompt of so many tokens, with what it cost: where the provider does not tell, an estimate.
pub(super) fn billed_answer(answer: Answer, prompt: u64) -> Answer {
    let usage = answer.usage.or_estimated(prompt, estimate::answer(&answer.blocks));
    Answer { usage, ..answer }
}

/// A failure of a call with a prompt of so many tokens, with what it cost: where the provider does not tell, an
/// estimate, if an answer had begun. One that was refused is not billed.
pub(super) fn billed_failure(error: ModelError, prompt: u64) -> ModelError {
    if error.received == 0 {
        return error;
    }
    let spent = error.spent.or_estimated(prompt, estimate::bytes_of_text(error.received));
    ModelError { spent, ..error }
}

impl TurnRun {
    /// What `route` answers to a prompt of so many tokens, if it does within `deadline`.
    pub(super) async fn ask_aside(
        &mut self,
        route: &Arc<Route>,
        (parts, prompt): (Parts, u64),
        deadline: Duration,
    ) -> Result<Option<Answer>, Stopped> {
        let clock = self.life.means.clock.clone();
        let outcome = self.attend(async move { whole(parts, prompt, &*clock, deadline).await }).await?;
        let now = self.life.means.clock.monotonic();
        self.life.means.gateway.note(route, outcome.as_ref().map(|answer| &answer.usage), now);
        match outcome {
            Ok(answer) => {
                self.spent(route, answer.usage).await?;
                Ok(Some(answer))
            }
            Err(error) => {
                self.spent(route, error.spent).await?;
                let turn_id = self.life.turn_id();
                tracing::warn!(turn.id = %turn_id, kind = ?error.kind, "A question beside the turn has no answer.");
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::event::BlockType;
    use futures::stream;

    use super::*;
    use crate::testing::{HastyClock, within};

    #[tokio::test]
    async fn an_answer_that_does_not_come_costs_its_prompt() {
        let second = Duration::from_secs(1);
        let silent = stream::pending().boxed();
        let error = within(whole(silent, 700, &HastyClock::new(), second)).await.unwrap_err();
        assert_eq!((error.kind, error.spent.input, error.spent.output), (ModelErrorKind::Broken, 700, 0));
        // One that breaks off costs its prompt, and what came of it.
        let broken = || ModelError { received: 8, ..ModelError::ended_early() };
        let parts = [Ok(Part::Start(BlockType::Text)), Ok(Part::Delta("12345678".into())), Err(broken())];
        let error = within(whole(stream::iter(parts).boxed(), 700, &HastyClock::new(), 60 * second)).await;
        let spent = error.unwrap_err().spent;
        assert_eq!((spent.input, spent.output, spent.estimated), (700, 2, true));
        // What the provider counted it has said itself.
        let told = Tokens { input: 5, output: 1, ..Tokens::default() };
        let broken = ModelError { spent: told, ..broken() };
        let parts = stream::iter([Ok(Part::Start(BlockType::Text)), Err(broken)]).boxed();
        assert_eq!(within(whole(parts, 700, &HastyClock::new(), 60 * second)).await.unwrap_err().spent, told);
        // A call that was refused is not billed.
        let ended = stream::empty().boxed();
        let error = within(whole(ended, 700, &HastyClock::new(), 60 * second)).await.unwrap_err();
        assert_eq!((error.kind, error.spent), (ModelErrorKind::Broken, Tokens::default()));
    }
}
