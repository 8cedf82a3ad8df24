//! Questions beside the conversation, of which clients are shown nothing: for a plan, for a summary. They are asked
//! once, within a deadline, and where no answer comes the turn goes on without it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use service::clock::Clock;

use super::run::{Stopped, TurnRun};
use crate::models::{Answer, ModelError, ModelErrorKind, Part, Parts, Route};

/// The whole of an answer of which nothing is shown while it comes, if it does within `deadline`.
pub(super) async fn whole(
    mut parts: Parts,
    clock: &dyn Clock,
    deadline: Duration,
) -> Result<Answer, ModelError> {
    let broken = |what: &str| ModelError::new(ModelErrorKind::Broken, what);
    let answer = async move {
        while let Some(part) = parts.next().await {
            match part {
                Ok(Part::Done(answer)) => return Ok(answer),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Err(broken("the provider's answer ended before it was whole"))
    };
    tokio::select! {
        biased;
        answer = answer => answer,
        () = clock.sleep(deadline) => Err(broken("the provider took too long")),
    }
}

impl TurnRun {
    /// What `route` answers, if it does within `deadline`.
    pub(super) async fn ask_aside(
        &mut self,
        route: &Arc<Route>,
        parts: Parts,
        deadline: Duration,
    ) -> Result<Option<Answer>, Stopped> {
        let clock = self.life.means.clock.clone();
        let outcome = self.attend(async move { whole(parts, &*clock, deadline).await }).await?;
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
