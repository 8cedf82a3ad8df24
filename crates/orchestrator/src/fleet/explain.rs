//! Why an engine is as it is, and what happens to it next.

use std::sync::Arc;
use std::time::Duration;

use contract::orchestrator::{Action, Caps, EngineStatus, Explanation, NextAction, RestartAttempt};
use contract::{Timestamp, UserId};
use serde_json::{Value, json};

use super::calls::seat;
use super::supervision::{KeyState, Moment, Restart};
use super::{Fleet, FleetError};
use crate::backend::{self, BackendError};
use crate::registry::{EngineRow, Product};

/// Moments that lie closer are the same.
const SAME_MS: u64 = 100;

/// How long an engine may take to say what it does: an explanation is wanted now.
const ANSWER: Duration = Duration::from_secs(2);

impl Fleet {
    /// Explains one engine.
    pub(crate) async fn explain(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<Explanation, FleetError> {
        let row = self.registry.engine(&seat(product, user_id)).await?;
        let row = row.ok_or(FleetError::EngineNotFound)?;
        let max = self.supervision.rules().max_restarts;
        Ok(Explanation {
            engine_id: row.engine_id,
            status: row.status,
            last_transition: self.registry.last_transition(&row).await?,
            next_action: self.next_action(&row),
            awake_because: match self.no_data(&row).await {
                Some(why) => Some(vec![why]),
                None => self.awake_because(&row).await,
            },
            restart_attempt: u32::try_from(row.restarts)
                .ok()
                .filter(|n| *n > 0 || row.status == EngineStatus::Failed)
                .map(|n| RestartAttempt { n, max }),
            caps: self.caps(&row).await,
        })
    }

    /// The caps that the engine is held to; where it is held to none, or does not run, those that the product's
    /// policy sets; none if it sets none.
    async fn caps(&self, row: &EngineRow) -> Option<Caps> {
        let runs = row.status == EngineStatus::Running;
        let held = if runs { self.backend.caps(row.engine_id).await.ok().flatten() } else { None };
        let backend::Caps { memory_mb, cpus, pids } =
            held.unwrap_or_else(|| backend::Caps::of(&self.policies.of(row.seat.product_id)));
        let caps = Caps { memory_mb, cpus, pids, applied: held.is_some() };
        (memory_mb.is_some() || cpus.is_some() || pids.is_some()).then_some(caps)
    }

    /// Why the engine cannot be launched, if its data is not there: in a sentence.
    async fn no_data(&self, row: &EngineRow) -> Option<String> {
        // Before its first boot is over, and while it is removed, its folder may be missing.
        row.settled_status()?;
        match self.backend.check_data_of(row.engine_id).await {
            Err(BackendError::NoData(why)) => Some(format!("It cannot be launched: {why}")),
            Ok(()) | Err(_) => None,
        }
    }

    fn next_action(&self, row: &EngineRow) -> NextAction {
        let idle_at = self.supervision.idleness(row.engine_id).and_then(|(_, idle_at)| idle_at);
        match (row.status, idle_at, self.supervision.restart(row.engine_id)) {
            (EngineStatus::Running, Some(at), _) => {
                NextAction { action: Action::Sleep, at: Some(self.on_the_wall(at)) }
            }
            (EngineStatus::Failed, _, Some(restart)) => {
                let at = if let Restart::Due(at) = restart { at } else { self.moment() };
                let at = self.on_the_wall(at);
                // What was written down, unless it was put off or the wall clock was set: two clocks read one
                // after the other never agree to the millisecond.
                let near = |written: &Timestamp| written.unix_ms().abs_diff(at.unix_ms()) < SAME_MS;
                NextAction { action: Action::Restart, at: Some(row.restart_at.filter(near).unwrap_or(at)) }
            }
            // The supervisor is just about to hear of it.
            (EngineStatus::Failed, _, None) if row.restart_at.is_some() => {
                NextAction { action: Action::Restart, at: row.restart_at }
            }
            _ => NextAction { action: Action::None, at: None },
        }
    }

    /// The wall time of a moment, now if it has passed.
    fn on_the_wall(&self, at: Moment) -> Timestamp {
        let wait = at.saturating_sub(self.moment()).max(0);
        Timestamp::from_unix_ms(self.now().unix_ms().saturating_add(wait))
    }

    /// Why a running engine does not sleep, in sentences; none if it does not run.
    async fn awake_because(&self, row: &EngineRow) -> Option<Vec<String>> {
        if row.status != EngineStatus::Running {
            return None;
        }
        let mut because = Vec::new();
        match self.supervision.idleness(row.engine_id) {
            Some((admitted_at, Some(idle_at))) => because.push(format!(
                "Its user was last admitted, or it was last brought up, at {admitted_at}; without another admit it \
                 may sleep from {} on.",
                self.on_the_wall(idle_at)
            )),
            Some((_, None)) => {
                because.push("Its idle threshold is 0: it is never put to sleep.".to_owned());
            }
            None => because.push("It has only just come up.".to_owned()),
        }
        if self.supervision.key_state(row.engine_id) == Some(KeyState::Refused) {
            because.push(
                "It refuses the key that the registry has for it; unless it takes it again, its health checks fail and it \
                 is launched again with that key."
                    .to_owned(),
            );
        }
        let ask = json!({"subsystem": "telemetry", "op": "activity"});
        let said = match self.engine_key(row) {
            Ok(key) => tokio::select! {
                said = self.tell_engine(row, &key, &ask) => said.ok(),
                () = self.clock.sleep(ANSWER) => None,
            },
            Err(_) => None,
        };
        let Some(said) = said else {
            because.push(
                "It does not say whether it works; an engine that says nothing is not put to sleep."
                    .to_owned(),
            );
            return Some(because);
        };
        let count = |name: &str| said.get(name).and_then(Value::as_u64).unwrap_or_default();
        match count("running_turns") {
            0 => {}
            1 => because.push("A turn runs; as long as one does, it does not sleep.".to_owned()),
            turns => because.push(format!("{turns} turns run; as long as one does, it does not sleep.")),
        }
        match count("pending_hitl") {
            0 => {}
            pending => because.push(format!(
                "{pending} request(s) wait for a person; that does not keep it awake, and they are kept while it sleeps."
            )),
        }
        Some(because)
    }
}
