//! What a kill interrupted: each operation in progress, and how far it was.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::KeyHash;

use super::context::FleetContext;
use super::deployment::Deployment;
use super::engine_host::EngineInstance;
use super::registry::{AuditCursor, EngineRow, Snapshot};
use super::schedule::{FOLDER, NEW_KEY, NO_FOLDER, NO_PROCESS, OLD_KEY, PHASES, PROCESS, Phase};
use crate::client::CallOutcome;

/// The rows, instances and folders at one moment.
#[derive(Debug)]
pub(crate) struct FleetSnapshot {
    /// Processes, containers or Pods.
    pub(crate) instances: Vec<EngineInstance>,
    /// The engines that have data: folders, or claims.
    pub(crate) folders: BTreeSet<String>,
    pub(crate) registry: Snapshot,
}

/// Captures instances, folders and rows, in this order: it is the order in which they change on their own after a
/// kill.
pub(crate) async fn capture(
    deployment: &Arc<Deployment>,
    cursor: &AuditCursor,
) -> anyhow::Result<FleetSnapshot> {
    let owned_deployment = Arc::clone(deployment);
    let (running, folders) = tokio::task::spawn_blocking(move || {
        anyhow::Ok((owned_deployment.engines()?, owned_deployment.engines_with_data()?))
    })
    .await??;
    Ok(FleetSnapshot { instances: running, folders, registry: deployment.registry().snapshot(cursor).await? })
}

/// Returns the phases of all operations in progress.
pub(crate) async fn phases_hit(context: &FleetContext, snapshot: &FleetSnapshot) -> Vec<Phase> {
    let mut phases = Vec::new();
    for row in &snapshot.registry.engines {
        let Some(kind) = row.claim.as_deref() else { continue };
        let has_process = snapshot.instances.iter().any(|running| running.engine_id == row.engine_id);
        let state = match kind {
            "rotate" => match accepts_old_key(context, row, &snapshot.instances).await {
                Some(true) => OLD_KEY,
                Some(false) => NEW_KEY,
                None => {
                    context.counters.count("killed in rotate: nobody knows which key the engine takes");
                    continue;
                }
            },
            _ if has_process => PROCESS,
            "destroy" if snapshot.folders.contains(&row.engine_id) => FOLDER,
            "destroy" => NO_FOLDER,
            _ => NO_PROCESS,
        };
        match PHASES.iter().find(|phase| **phase == (kind, state)) {
            Some(phase) => phases.push(*phase),
            None => context.counters.record_violation(format!("a claim of an unknown kind: {row:?}")),
        }
    }
    phases
}

/// Whether the engine of a rotation still accepts its old key; `None` if it does not answer, or if nobody was
/// given that key.
async fn accepts_old_key(
    context: &FleetContext,
    row: &EngineRow,
    instances: &[EngineInstance],
) -> Option<bool> {
    let engine_keys = context.keys.for_engine(&row.engine_id);
    let old = engine_keys.keys().find(|key| KeyHash::of(key).to_hex() == row.key_hash)?;
    let mut alive = instances.iter().filter(|running| running.is_alive && running.engine_id == row.engine_id);
    accepts_key(context, &format!("http://{}", alive.next()?.address?), old).await
}

/// Whether the engine at `url` accepts `key`; `None` if it does not answer.
pub(crate) async fn accepts_key(context: &FleetContext, url: &str, key: &str) -> Option<bool> {
    match context.call_engine(url, "/execute/replay?task_id=no-such-task", key).await {
        CallOutcome::Response(404 | 200, _) => Some(true),
        CallOutcome::Response(401, _) => Some(false),
        CallOutcome::Response(..) | CallOutcome::NotSent | CallOutcome::Unknown => None,
    }
}
