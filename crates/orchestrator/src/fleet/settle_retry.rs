//! Retries the settlement of a change while the registry's server is unreachable, for as long as callers may wait.
//!
//! The row's generation tells whether the server committed an attempt before the connection was lost, even if an
//! abandoned commit arrives while the next attempt waits for it. So an engine that was launched during an outage
//! is settled as soon as the server is back. If the retries end without success, the row keeps its claim and is
//! repaired like any abandoned change.

use std::time::Duration;

use super::shared::Shared;
use crate::registry::{AuditEntry, EngineRow, NextState, RegistryError};

/// The pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The state of a change whose settlement was not confirmed.
enum SettleStatus {
    /// It is not settled yet.
    Pending,
    /// It was settled. Contains the row after it, if there is one.
    Settled(Option<Box<EngineRow>>),
    /// Another operation has taken it over.
    Superseded,
}

/// Settles a change in the registry, and retries for `timeout` while its server is unreachable.
pub(super) async fn settle_with_retry(
    shared: &Shared,
    timeout: Duration,
    row: &EngineRow,
    next: NextState,
    entry: Option<&AuditEntry>,
) -> Result<Option<EngineRow>, RegistryError> {
    let started = shared.clock.monotonic();
    let mut last_error = match shared.registry.settle(row, next.clone(), entry).await {
        Err(error @ RegistryError::Unreachable(_)) => error,
        settled => return settled,
    };
    {
        let error: &dyn std::error::Error = &last_error;
        tracing::warn!(
            engine_id = %row.engine_id,
            error,
            "The registry is unreachable; the change is settled when it is back."
        );
    }
    let mut claim_lost = false;
    while shared.clock.monotonic().saturating_sub(started) < timeout {
        shared.clock.sleep(RETRY_INTERVAL).await;
        let settled = match settle_status(shared, row, &next).await {
            Ok(SettleStatus::Pending) => shared.registry.settle(row, next.clone(), entry).await,
            Ok(SettleStatus::Settled(found)) => {
                shared.registry.notify_followers(row.owner.product_id);
                Ok(found.map(|found| *found))
            }
            Ok(SettleStatus::Superseded) => Err(RegistryError::ClaimLost { engine_id: row.engine_id }),
            Err(error) => Err(error),
        };
        match settled {
            Err(error @ RegistryError::Unreachable(_)) => last_error = error,
            // Settled by another operation or by the previous attempt: the row is read once more.
            Err(RegistryError::ClaimLost { .. }) if !claim_lost => claim_lost = true,
            settled => return settled,
        }
    }
    Err(last_error)
}

async fn settle_status(
    shared: &Shared,
    row: &EngineRow,
    next: &NextState,
) -> Result<SettleStatus, RegistryError> {
    let Some(found) = shared.registry.engine_by_id(row.engine_id).await? else {
        return Ok(if matches!(next, NextState::Removed) {
            SettleStatus::Settled(None)
        } else {
            SettleStatus::Superseded
        });
    };
    Ok(match found.generation - row.generation {
        0 => SettleStatus::Pending,
        // An operation that takes a change over claims the row.
        1 if found.claim.is_none() => SettleStatus::Settled(Some(Box::new(found))),
        _ => SettleStatus::Superseded,
    })
}
