//! The labels of a container, which name its deployment, product, engine and generation.
//!
//! The daemon finds a deployment's containers by these labels.

use std::collections::HashMap;

use api::EngineId;

use crate::LaunchSpec;

/// The names of the labels. Later versions find earlier versions' containers by them, so they never change.
const DEPLOYMENT_LABEL: &str = "roundhouse.deployment";
const PRODUCT_LABEL: &str = "roundhouse.product";
const ENGINE_LABEL: &str = "roundhouse.engine";
const GENERATION_LABEL: &str = "roundhouse.generation";

/// Returns the name of an engine's container. It depends on the id alone, so that an engine has at most one
/// container.
pub(super) fn container_name(engine_id: EngineId) -> String {
    format!("roundhouse-{engine_id}")
}

/// Returns the labels of the container of `launch`.
pub(super) fn labels(deployment_id: &str, launch: &LaunchSpec) -> HashMap<String, String> {
    let labels = [
        (DEPLOYMENT_LABEL, deployment_id.to_owned()),
        (PRODUCT_LABEL, launch.product_id.to_string()),
        (ENGINE_LABEL, launch.engine_id.to_string()),
        (GENERATION_LABEL, launch.generation.to_string()),
    ];
    labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the engine of a container with these labels; `None` if it does not belong to `deployment_id`.
pub(super) fn engine_of(deployment_id: &str, labels: &HashMap<String, String>) -> Option<EngineId> {
    let deployment = labels.get(DEPLOYMENT_LABEL)?;
    labels.get(ENGINE_LABEL).filter(|_| deployment == deployment_id)?.parse().ok()
}

/// Returns the generation of the engine's row for which a container with these labels was created; 0 if absent.
pub(super) fn generation_of(labels: &HashMap<String, String>) -> i64 {
    labels.get(GENERATION_LABEL).and_then(|generation| generation.parse().ok()).unwrap_or_default()
}

/// Returns the daemon's filters for the containers of a deployment, or of one of its engines.
pub(super) fn filters(deployment_id: &str, engine_id: Option<EngineId>) -> HashMap<String, Vec<String>> {
    let deployment = format!("{DEPLOYMENT_LABEL}={deployment_id}");
    let engine = engine_id.map(|engine_id| format!("{ENGINE_LABEL}={engine_id}"));
    let labels = std::iter::once(deployment).chain(engine).collect();
    HashMap::from([("label".to_owned(), labels)])
}
