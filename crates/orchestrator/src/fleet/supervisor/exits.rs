//! Handles engines that exit by themselves, as the backend reports them.

use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::EngineStatus;
use backend::InstanceExit;
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Supervisor;
use crate::fleet::request::OperationError;
use crate::fleet::transitions::unexpected_exit_message;
use crate::registry::RegistryError;

/// An engine that has exited becomes `failed` once it has been down for this long.
pub(in crate::fleet) const EXIT_CONFIRM_DELAY: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Handles exits until `shutdown`.
    pub(in crate::fleet) async fn watch_exits(self: Arc<Self>, shutdown: CancellationToken) {
        let mut exits = self.shared.backend.exits();
        let tasks = TaskTracker::new();
        while let Some(Some(exit)) = shutdown.run_until_cancelled(exits.next()).await {
            tracing::info!(engine_id = %exit.engine_id, reason = exit.reason, "An engine exited.");
            // Boots subscribe to these; without a boot there is no receiver.
            let _ = self.exits.send(exit.clone());
            let supervisor = Arc::clone(&self);
            let shutdown = shutdown.clone();
            tasks.spawn(async move { shutdown.run_until_cancelled(supervisor.after_exit(exit)).await });
        }
        tasks.close();
        tasks.wait().await;
    }

    async fn after_exit(self: Arc<Self>, exit: InstanceExit) {
        self.shared.clock.sleep(EXIT_CONFIRM_DELAY).await;
        if let Err(error) = self.record_exit(&exit).await {
            // The next reconciliation finds it dead.
            let error: &dyn std::error::Error = &error;
            tracing::error!(
                engine_id = %exit.engine_id,
                error,
                "An engine's exit could not be recorded; the next reconciliation retries."
            );
        }
    }

    /// Marks the engine of an instance that has exited as failed, unless something else has become of it.
    pub(super) async fn record_exit(self: &Arc<Self>, exit: &InstanceExit) -> Result<(), RegistryError> {
        loop {
            let Some(row) = self.shared.registry.engine_by_id(exit.engine_id).await? else { return Ok(()) };
            if let Some(operation) = self.executor.operations.get(&row.owner) {
                // The operation may have caused the exit, as one that kills a hung engine has, or may not have
                // noticed it yet.
                let _ = operation.outcome().await;
                continue;
            }
            if row.status != EngineStatus::Running || row.instance.as_ref() != Some(&exit.instance) {
                return Ok(());
            }
            return match row.claim {
                // Left behind by a stop or sleep of an earlier orchestrator: it is completed, not failed.
                Some(_) => match self.executor.repair(&row).await {
                    Err(OperationError::Failed(error)) => {
                        tracing::warn!(
                            engine_id = %row.engine_id,
                            %error,
                            "An engine could not be repaired; the next reconciliation retries."
                        );
                        Ok(())
                    }
                    Ok(_) | Err(OperationError::Stale | OperationError::Preempted) => Ok(()),
                },
                // It was restarted outside the orchestrator, for example by a person at the daemon.
                None if self.shared.backend.is_running(&exit.instance).await.unwrap_or(false) => Ok(()),
                None => {
                    let message = unexpected_exit_message(exit.reason.as_deref());
                    self.transitions.record_failure(&row, &message, "exit").await
                }
            };
        }
    }
}
