//! The end of a change that the registry did not take because its server was away: tried again, for as long as its
//! callers may wait.
//!
//! Whether the server did what it was asked before it was gone, the row's generation tells; also where a commit that
//! was given up lands while the next attempt already waits for it. So an engine that was launched meanwhile is
//! settled as soon as the server is back. One whose change has been given up keeps its claim, and is put in order as
//! any other that nobody works on.

use std::time::Duration;

use super::Fleet;
use crate::registry::{EngineRow, Entry, Next, RegistryError};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// What has become of a change whose end was not confirmed.
enum Fate {
    /// It is still to be settled.
    Open,
    /// It was settled: the row as it is then, if there is one.
    Settled(Option<Box<EngineRow>>),
    /// Somebody else has taken it over.
    Overtaken,
}

impl Fleet {
    /// Settles a change in the registry, also if its server is away for a while.
    pub(super) async fn persist(
        &self,
        row: &EngineRow,
        next: Next,
        entry: Option<&Entry>,
    ) -> Result<Option<EngineRow>, RegistryError> {
        let begun = self.clock.monotonic();
        let mut away = match self.registry.settle(row, next.clone(), entry).await {
            Err(error @ RegistryError::Away(_)) => error,
            settled => return settled,
        };
        {
            let error: &dyn std::error::Error = &away;
            tracing::warn!(engine.id = %row.engine_id, error, "The registry is away; a change is settled when it is back.");
        }
        let mut lost = false;
        while self.clock.monotonic().saturating_sub(begun) < self.patience() {
            self.clock.sleep(PAUSE).await;
            let settled = match self.fate(row, &next).await {
                Ok(Fate::Open) => self.registry.settle(row, next.clone(), entry).await,
                Ok(Fate::Settled(found)) => {
                    self.registry.tell(row.seat.product_id);
                    Ok(found.map(|found| *found))
                }
                Ok(Fate::Overtaken) => Err(RegistryError::ClaimLost { engine_id: row.engine_id }),
                Err(error) => Err(error),
            };
            match settled {
                Err(error @ RegistryError::Away(_)) => away = error,
                // By somebody else, or by the attempt before: the row is looked at once more.
                Err(RegistryError::ClaimLost { .. }) if !lost => lost = true,
                settled => return settled,
            }
        }
        Err(away)
    }

    async fn fate(&self, row: &EngineRow, next: &Next) -> Result<Fate, RegistryError> {
        let Some(found) = self.registry.engine_by_id(row.engine_id).await? else {
            return Ok(if matches!(next, Next::Gone) { Fate::Settled(None) } else { Fate::Overtaken });
        };
        Ok(match found.generation - row.generation {
            0 => Fate::Open,
            // Whoever takes a change over claims the row.
            1 if found.claim.is_none() => Fate::Settled(Some(Box::new(found))),
            _ => Fate::Overtaken,
        })
    }
}
