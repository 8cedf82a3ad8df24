//! Rotate: a running engine changes to another key, and no instant of a crash leaves its key in doubt.
//!
//! The new key is stored as pending before the engine hears of it. Whatever happens then, the engine itself can be
//! asked which of the two keys it takes.

use std::sync::Arc;
use std::time::Duration;

use contract::{EngineId, EngineKey};
use serde_json::json;

use super::exits::ended_by_itself;
use super::flight::{Ended, Flight, Outcome, Settled};
use super::lifecycle::Change;
use super::supervision::{KeyState, moment};
use super::{Fleet, FleetError};
use crate::backend::{Listed, Unwell};
use crate::keys::Purpose;
use crate::registry::{Claim, EngineRow, Event, Next, PendingKey};
use crate::sabotage::{self, Saboteur};

/// How long an engine may take to answer about its key.
const ANSWER: Duration = Duration::from_secs(5);

/// How long after a rotation that was given up its command may still reach the engine.
const LATE_COMMAND: Duration = Duration::from_mins(10);

/// How a rotation has ended that nobody saw confirmed.
pub(super) enum Resolved {
    /// The new key holds.
    New(Box<EngineRow>),
    /// The old one does.
    Old,
    /// The engine has failed, and is launched again with the old one.
    Failed,
}

/// Which of two keys an engine takes.
enum Takes {
    Pending,
    Current,
    Neither,
    /// It does not answer.
    Unknown(String),
}

fn backend(message: &str) -> Ended {
    Ended::Failed(FleetError::Backend(message.to_owned()))
}

impl Fleet {
    pub(super) async fn rotate_key(self: &Arc<Self>, flight: &Arc<Flight>, seen: EngineRow) -> Outcome {
        // Without its data the engine may be another orchestrator's.
        self.backend.check_data().await?;
        let key = EngineKey::generate().map_err(FleetError::internal)?;
        let owner = seen.engine_id.to_string();
        let pending = PendingKey {
            sealed: self.vault.seal(&owner, Purpose::EngineKey, key.expose())?,
            hash: key.hash(),
        };
        let claim = Claim { pending: Some(pending.clone()), ..self.claim(Change::Rotate) };
        let Ok(row) = self.registry.claim(&seen, &claim, None).await? else { return Err(Ended::Stale) };
        flight.claimed(row.generation);
        let current = self.engine_key(&row)?;
        let swap = json!({"subsystem": "control", "op": "set_key_hash", "key_hash": key.hash().to_hex()});
        match self.tell_engine(&row, &current, &swap).await {
            Ok(_) => self.rotated(&row, pending, "requested").await,
            Err(unwell) => {
                tracing::warn!(engine.id = %row.engine_id, %unwell, "An engine was told its new key and did not confirm it.");
                match self.settle_rotation(&row, "requested").await? {
                    Resolved::New(row) => Ok(Settled::Found(row)),
                    Resolved::Old => Err(backend("the engine did not take the new key; the old one holds")),
                    Resolved::Failed => {
                        Err(backend("the engine takes neither its key nor the new one; it is launched again"))
                    }
                }
            }
        }
    }

    /// Ends a rotation whose swap nobody saw confirmed, by what the engine takes. If it does not answer, the
    /// row keeps its claim and its pending key.
    pub(super) async fn settle_rotation(
        &self,
        row: &EngineRow,
        reason: &'static str,
    ) -> Result<Resolved, Ended> {
        let Some(pending) = self.registry.pending_key(row.engine_id).await? else {
            return Err(Ended::Stale);
        };
        match self.takes(row, &pending).await? {
            Takes::Pending => match self.rotated(row, pending, reason).await? {
                Settled::Found(row) => Ok(Resolved::New(row)),
                Settled::AtRest | Settled::Destroyed(_) | Settled::Denied(_) | Settled::Moved(_) => {
                    Err(Ended::Stale)
                }
            },
            Takes::Current => {
                let until = self.moment().saturating_add(moment(LATE_COMMAND));
                self.supervision.set_key_state(row.engine_id, KeyState::Unproven { until });
                self.settle(row, Next::Unchanged, None).await.map_err(Ended::unsettled)?;
                Ok(Resolved::Old)
            }
            Takes::Neither => {
                self.backend.kill(row.target()).await?;
                self.fail(row, "the engine takes neither its key nor the new one", "health").await?;
                Ok(Resolved::Failed)
            }
            Takes::Unknown(why) => {
                let listed = self.backend.list().await?;
                let runs = |listed: &Listed| listed.alive && Some(&listed.instance) == row.instance.as_ref();
                if listed.iter().any(runs) {
                    return Err(backend(&format!(
                        "the engine does not say which key it takes ({why}); this is settled when it answers"
                    )));
                }
                self.fail(row, &ended_by_itself(None), "exit").await?;
                Ok(Resolved::Failed)
            }
        }
    }

    async fn rotated(&self, row: &EngineRow, pending: PendingKey, reason: &'static str) -> Outcome {
        let entry = self.entry(row, Event::RotateKey, json!({"reason": reason}));
        let keeps_old = sabotage::by(Saboteur::ReturnOldKey);
        let next = if keeps_old { Next::Unchanged } else { Next::Rotated(pending) };
        match self.settle(row, next, Some(&entry)).await.map_err(Ended::unsettled)? {
            Some(row) => Ok(Settled::Found(Box::new(row))),
            None => Err(Ended::Stale),
        }
    }

    async fn takes(&self, row: &EngineRow, pending: &PendingKey) -> Result<Takes, FleetError> {
        let current = self.engine_key(row)?;
        let next = EngineRow { sealed_key: pending.sealed.clone(), ..row.clone() };
        let next = self.engine_key(&next)?;
        for (key, takes) in [(&next, Takes::Pending), (&current, Takes::Current)] {
            let port = row.port.unwrap_or_default();
            match self.within_answer(self.recognise(port, key)).await {
                Ok(()) => return Ok(takes),
                Err(Unwell::Refused { .. }) => {}
                Err(unwell) => return Ok(Takes::Unknown(unwell.to_string())),
            }
        }
        Ok(Takes::Neither)
    }

    /// Sends `command` to a running engine's `/rpc`.
    pub(super) async fn tell_engine(
        &self,
        row: &EngineRow,
        key: &EngineKey,
        command: &serde_json::Value,
    ) -> Result<serde_json::Value, Unwell> {
        let answer = self.within_answer(self.probe.rpc(row.port.unwrap_or_default(), key, command)).await;
        if matches!(answer, Err(Unwell::Refused { .. })) {
            self.doubt_key(row.engine_id);
        }
        answer
    }

    /// An engine refused a call that carried the registry's key: the checks ask it for the key from now on.
    pub(crate) fn doubt_key(&self, engine_id: EngineId) {
        self.supervision.set_key_state(engine_id, KeyState::Refused);
    }

    async fn within_answer<T>(&self, asked: impl Future<Output = Result<T, Unwell>>) -> Result<T, Unwell> {
        tokio::select! {
            answer = asked => answer,
            () = self.clock.sleep(ANSWER) => Err(Unwell::Late { seconds: ANSWER.as_secs() }),
        }
    }
}
