//! The end of a change that the registry did not take because its server was away: tried again, for as long as its
//! callers may wait.
//!
//! Whether the server did what it was asked before it was gone, the row's generation tells; also where a commit that
//! was given up lands while the next attempt already waits for it. So an engine that was launched meanwhile is
//! settled as soon as the server is back. One whose change has been given up keeps its claim, and is put in order as
//! any other that nobody works on.

use std::time::Duration;

use super::Fleet;
use crate::registry::{AuditEntry, EngineRow, NextState, RegistryError};

/// Between two tries.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// What has become of a change whose end was not confirmed.
enum SettleStatus {
    /// It is still to be settled.
    Pending,
    /// It was settled: the row as it is then, if there is one.
    Settled(Option<Box<EngineRow>>),
    /// Somebody else has taken it over.
    Superseded,
}

impl Fleet {
    /// Settles a change in the registry, also if its server is away for a while.
    pub(super) async fn settle_with_retry(
        &self,
        row: &EngineRow,
        next: NextState,
        entry: Option<&AuditEntry>,
    ) -> Result<Option<EngineRow>, RegistryError> {
        let begun = self.clock.monotonic();
        let mut away = match self.registry.settle(row, next.clone(), entry).await {
            Err(error @ RegistryError::Unreachable(_)) => error,
            settled => return settled,
        };
        {
            let error: &dyn std::error::Error = &away;
            tracing::warn!(engine.id = %row.engine_id, error, "The registry is away; a change is settled when it is back.");
        }
        let mut lost = false;
        while self.clock.monotonic().saturating_sub(begun) < self.operation_timeout() {
            self.clock.sleep(RETRY_INTERVAL).await;
            let settled = match self.settle_status(row, &next).await {
                Ok(SettleStatus::Pending) => self.registry.settle(row, next.clone(), entry).await,
                Ok(SettleStatus::Settled(found)) => {
                    self.registry.notify_followers(row.owner.product_id);
                    Ok(found.map(|found| *found))
                }
                Ok(SettleStatus::Superseded) => Err(RegistryError::ClaimLost { engine_id: row.engine_id }),
                Err(error) => Err(error),
            };
            match settled {
                Err(error @ RegistryError::Unreachable(_)) => away = error,
                // By somebody else, or by the attempt before: the row is looked at once more.
                Err(RegistryError::ClaimLost { .. }) if !lost => lost = true,
                settled => return settled,
            }
        }
        Err(away)
    }

    async fn settle_status(&self, row: &EngineRow, next: &NextState) -> Result<SettleStatus, RegistryError> {
        let Some(found) = self.registry.engine_by_id(row.engine_id).await? else {
            return Ok(if matches!(next, NextState::Removed) {
                SettleStatus::Settled(None)
            } else {
                SettleStatus::Superseded
            });
        };
        Ok(match found.generation - row.generation {
            0 => SettleStatus::Pending,
            // Whoever takes a change over claims the row.
            1 if found.claim.is_none() => SettleStatus::Settled(Some(Box::new(found))),
            _ => SettleStatus::Superseded,
        })
    }
}
