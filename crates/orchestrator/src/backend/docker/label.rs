//! The labels of a container: which deployment it is of, and which engine.

use std::collections::HashMap;

use contract::EngineId;

use crate::backend::Launch;
use crate::sabotage::{self, Saboteur};

/// Later versions find by these what earlier ones started: they never change.
const DEPLOYMENT: &str = "roundhouse.deployment";
const PRODUCT: &str = "roundhouse.product";
const GENERATION: &str = "roundhouse.generation";

fn engine_label() -> &'static str {
    if sabotage::by(Saboteur::ForgetLabel) { "roundhouse.engine_id" } else { "roundhouse.engine" }
}

/// The name of an engine's container: from its id alone, so that no two engines ever share one.
pub(super) fn container_name(engine_id: EngineId) -> String {
    format!("roundhouse-{engine_id}")
}

/// The labels of the container that `launch` begins.
pub(super) fn labels(deployment_id: &str, launch: &Launch) -> HashMap<String, String> {
    let labels = [
        (DEPLOYMENT, deployment_id.to_owned()),
        (PRODUCT, launch.product_id.to_string()),
        (engine_label(), launch.engine_id.to_string()),
        (GENERATION, launch.generation.to_string()),
    ];
    labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The engine that a container with these labels runs; none if it is not of `deployment_id`.
pub(super) fn engine_of(deployment_id: &str, labels: &HashMap<String, String>) -> Option<EngineId> {
    let deployment = labels.get(DEPLOYMENT)?;
    let own = deployment == deployment_id || sabotage::by(Saboteur::TakeStrangers);
    labels.get(engine_label()).filter(|_| own)?.parse().ok()
}

/// The change of the engine's row that a container with these labels was created for.
pub(super) fn generation_of(labels: &HashMap<String, String>) -> i64 {
    labels.get(GENERATION).and_then(|generation| generation.parse().ok()).unwrap_or_default()
}

/// What the daemon is asked for: the containers of a deployment, or of one engine of it.
pub(super) fn filters(deployment_id: &str, engine_id: Option<EngineId>) -> HashMap<String, Vec<String>> {
    let deployment = if sabotage::by(Saboteur::TakeStrangers) {
        DEPLOYMENT.to_owned()
    } else {
        format!("{DEPLOYMENT}={deployment_id}")
    };
    let engine = engine_id.map(|engine_id| format!("{}={engine_id}", engine_label()));
    let labels = std::iter::once(deployment).chain(engine).collect();
    HashMap::from([("label".to_owned(), labels)])
}
