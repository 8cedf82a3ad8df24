//! Engines that end by themselves: noticed as the backend reports them.

use std::sync::Arc;
use std::time::Duration;

use contract::orchestrator::EngineStatus;
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Fleet;
use super::flight::Ended;
use crate::backend::Exit;
use crate::registry::RegistryError;

/// An engine that has ended is `failed` once it has stayed so for this long.
pub(super) const STILL_ENDED: Duration = Duration::from_secs(1);

impl Fleet {
    /// Takes note of exits until `shutdown`.
    pub(crate) async fn watch_exits(self: Arc<Self>, shutdown: CancellationToken) {
        let mut exits = self.backend.exits();
        let tasks = TaskTracker::new();
        while let Some(Some(exit)) = shutdown.run_until_cancelled(exits.next()).await {
            tracing::info!(engine.id = %exit.engine_id, how = exit.how, "An engine has ended.");
            // Boots wait for these; without any there is nobody to tell.
            let _ = self.exits.send(exit.clone());
            let fleet = Arc::clone(&self);
            let shutdown = shutdown.clone();
            tasks.spawn(async move { shutdown.run_until_cancelled(fleet.after_exit(exit)).await });
        }
        tasks.close();
        tasks.wait().await;
    }

    async fn after_exit(self: Arc<Self>, exit: Exit) {
        self.clock.sleep(STILL_ENDED).await;
        if let Err(error) = self.settle_exit(&exit).await {
            // The next comparison finds it dead.
            let error: &dyn std::error::Error = &error;
            tracing::error!(engine.id = %exit.engine_id, error, "An engine's end could not be recorded yet.");
        }
    }

    async fn settle_exit(self: &Arc<Self>, exit: &Exit) -> Result<(), RegistryError> {
        loop {
            let Some(row) = self.registry.engine_by_id(exit.engine_id).await? else { return Ok(()) };
            if row.claim.is_some()
                && let Some(flight) = self.flights.at(&row.seat)
            {
                // Whoever changes it may be the cause, or not know of it yet.
                let _ = flight.over().await;
                continue;
            }
            if row.status != EngineStatus::Running || row.instance.as_ref() != Some(&exit.instance) {
                return Ok(());
            }
            return match row.claim {
                // Left behind by a stop or a sleep of an earlier orchestrator: it is finished, not failed.
                Some(_) => match self.put_in_order(&row).await {
                    Err(Ended::Failed(error)) => {
                        tracing::warn!(engine.id = %row.engine_id, %error, "An engine could not be put in order yet.");
                        Ok(())
                    }
                    Ok(_) | Err(Ended::Stale | Ended::Overtaken) => Ok(()),
                },
                // It was begun anew behind our back, as by a person at the daemon.
                None if self.backend.runs(&exit.instance).await.unwrap_or(false) => Ok(()),
                None => self.fail(&row, &ended_by_itself(exit.how.as_deref()), "exit").await,
            };
        }
    }
}

/// Why an engine that was found to have ended has failed.
pub(super) fn ended_by_itself(how: Option<&str>) -> String {
    match how {
        Some(how) => format!("the engine ended by itself ({how})"),
        None => "the engine ended by itself".to_owned(),
    }
}
