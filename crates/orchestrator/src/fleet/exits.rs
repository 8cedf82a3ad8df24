//! Engines that end by themselves: noticed as the backend reports them.

use std::sync::Arc;
use std::time::Duration;

use contract::orchestrator::EngineStatus;
use futures::StreamExt as _;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Fleet;
use crate::backend::Exit;
use crate::registry::{EngineRow, Entry, Event, Next, RegistryError};

/// An engine that has ended is `failed` once it has stayed so for this long.
const STILL_ENDED: Duration = Duration::from_secs(1);

impl Fleet {
    /// Takes note of exits until `shutdown`.
    pub(crate) async fn watch_exits(self: Arc<Self>, shutdown: CancellationToken) {
        let mut exits = self.backend.exits();
        while let Some(Some(exit)) = shutdown.run_until_cancelled(exits.next()).await {
            tracing::info!(engine.id = %exit.engine_id, how = exit.how, "An engine has ended.");
            // Boots wait for these; without any there is nobody to tell.
            let _ = self.exits.send(exit.clone());
            let fleet = Arc::clone(&self);
            let shutdown = shutdown.clone();
            tokio::spawn(async move { shutdown.run_until_cancelled(fleet.after_exit(exit)).await });
        }
    }

    async fn after_exit(self: Arc<Self>, exit: Exit) {
        self.clock.sleep(STILL_ENDED).await;
        if let Err(error) = self.settle_exit(&exit).await {
            // The next comparison finds it dead.
            let error: &dyn std::error::Error = &error;
            tracing::error!(engine.id = %exit.engine_id, error, "An engine's end could not be recorded yet.");
        }
    }

    async fn settle_exit(&self, exit: &Exit) -> Result<(), RegistryError> {
        loop {
            let Some(row) = self.registry.engine_by_id(exit.engine_id).await? else { return Ok(()) };
            if row.claim.is_some() {
                // Whoever changes it may be the cause, or not know of it yet.
                let Some(flight) = self.flights.at(&row.seat) else { return Ok(()) };
                let _ = flight.over().await;
                continue;
            }
            if row.status != EngineStatus::Running || row.instance.as_ref() != Some(&exit.instance) {
                return Ok(());
            }
            let entry = self.crash(&row, exit.how.as_deref());
            match self.registry.settle(&row, Next::AtRest(EngineStatus::Failed), Some(&entry)).await {
                Ok(_) => {
                    tracing::warn!(engine.id = %row.engine_id, how = exit.how, "An engine has failed.");
                    return Ok(());
                }
                Err(RegistryError::ClaimLost { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The row of a running engine that was found to have ended.
    pub(super) fn crash(&self, row: &EngineRow, how: Option<&str>) -> Entry {
        let reason = match how {
            Some(how) => format!("the engine ended by itself ({how})"),
            None => "the engine ended by itself".to_owned(),
        };
        let detail = json!({
            "from": row.status, "to": EngineStatus::Failed, "reason": reason, "cause": "exit",
        });
        self.entry(row, Event::Crash, detail)
    }
}
