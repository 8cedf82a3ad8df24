//! What a kill leaves: each change under way, and how far it was.

use std::collections::BTreeSet;
use std::sync::Arc;

use contract::KeyHash;

use super::aim::{FOLDER, NEW_KEY, NO_FOLDER, NO_PROCESS, OLD_KEY, PHASES, PROCESS, Phase};
use super::deployment::Deployment;
use super::registry::{Engine, Seen, Snapshot};
use super::running::Running;
use super::world::World;
use crate::api::Asked;

/// What is there at one moment.
#[derive(Debug)]
pub(crate) struct Scene {
    /// Processes or containers.
    pub(crate) running: Vec<Running>,
    pub(crate) folders: BTreeSet<String>,
    pub(crate) registry: Snapshot,
}

/// Looks at processes or containers, folders and rows, in this order: it is the order in which they change on
/// their own after a kill.
pub(crate) async fn look(deployment: &Arc<Deployment>, seen: &Seen) -> anyhow::Result<Scene> {
    let there = Arc::clone(deployment);
    let (running, folders) = tokio::task::spawn_blocking(move || there_now(&there)).await??;
    Ok(Scene { running, folders, registry: deployment.registry().snapshot(seen).await? })
}

fn there_now(deployment: &Deployment) -> anyhow::Result<(Vec<Running>, BTreeSet<String>)> {
    let running = deployment.engines()?;
    let folders = match std::fs::read_dir(deployment.data_root()) {
        Ok(entries) => entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<std::io::Result<_>>()?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeSet::new(),
        Err(error) => return Err(error.into()),
    };
    Ok((running, folders))
}

/// The phases of all changes under way.
pub(crate) async fn phases_of(world: &World, scene: &Scene) -> Vec<Phase> {
    let mut phases = Vec::new();
    for row in &scene.registry.engines {
        let Some(kind) = row.claim.as_deref() else { continue };
        let has_process = scene.running.iter().any(|running| running.engine_id == row.engine_id);
        let state = match kind {
            "rotate" => match takes_its_old_key(world, row).await {
                Some(true) => OLD_KEY,
                Some(false) => NEW_KEY,
                None => {
                    world.tally.count("killed in rotate: nobody knows which key the engine takes");
                    continue;
                }
            },
            _ if has_process => PROCESS,
            "destroy" if scene.folders.contains(&row.engine_id) => FOLDER,
            "destroy" => NO_FOLDER,
            _ => NO_PROCESS,
        };
        match PHASES.iter().find(|phase| **phase == (kind, state)) {
            Some(phase) => phases.push(*phase),
            None => world.tally.violation(format!("a claim of an unknown kind: {row:?}")),
        }
    }
    phases
}

/// Whether the engine of a rotation still takes its old key; nothing if it does not say, or if nobody was given
/// that key.
async fn takes_its_old_key(world: &World, row: &Engine) -> Option<bool> {
    let ring = world.keys.of(&row.engine_id);
    let old = ring.keys().find(|key| KeyHash::of(key).to_hex() == row.key_hash)?;
    takes(world, &format!("http://127.0.0.1:{}", row.port?), old).await
}

/// Whether the engine at `url` takes `key`; nothing if it does not say.
pub(crate) async fn takes(world: &World, url: &str, key: &str) -> Option<bool> {
    match world.ask_engine(url, "/execute/replay?task_id=no-such-task", key).await {
        Asked::Answered(404 | 200, _) => Some(true),
        Asked::Answered(401, _) => Some(false),
        Asked::Answered(..) | Asked::Unsent | Asked::Unknown => None,
    }
}
