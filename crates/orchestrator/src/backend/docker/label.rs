//! The labels of a container: which deployment it is of, and which engine.

use std::collections::HashMap;

use api::EngineId;

use crate::backend::LaunchSpec;
use crate::fault_injection::{self, Mutation};

/// Later versions find by these what earlier ones started: they never change.
const DEPLOYMENT_LABEL: &str = "roundhouse.deployment";
const PRODUCT_LABEL: &str = "roundhouse.product";
const GENERATION_LABEL: &str = "roundhouse.generation";

fn engine_label() -> &'static str {
    if fault_injection::active(Mutation::ForgetLabel) { "roundhouse.engine_id" } else { "roundhouse.engine" }
}

/// The name of an engine's container: from its id alone, so that no two engines ever share one.
pub(super) fn container_name(engine_id: EngineId) -> String {
    format!("roundhouse-{engine_id}")
}

/// The labels of the container that `launch` begins.
pub(super) fn labels(deployment_id: &str, launch: &LaunchSpec) -> HashMap<String, String> {
    let labels = [
        (DEPLOYMENT_LABEL, deployment_id.to_owned()),
        (PRODUCT_LABEL, launch.product_id.to_string()),
        (engine_label(), launch.engine_id.to_string()),
        (GENERATION_LABEL, launch.generation.to_string()),
    ];
    labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The engine that a container with these labels runs; none if it is not of `deployment_id`.
pub(super) fn engine_of(deployment_id: &str, labels: &HashMap<String, String>) -> Option<EngineId> {
    let deployment = labels.get(DEPLOYMENT_LABEL)?;
    let own = deployment == deployment_id || fault_injection::active(Mutation::TakeStrangers);
    labels.get(engine_label()).filter(|_| own)?.parse().ok()
}

/// The change of the engine's row that a container with these labels was created for.
pub(super) fn generation_of(labels: &HashMap<String, String>) -> i64 {
    labels.get(GENERATION_LABEL).and_then(|generation| generation.parse().ok()).unwrap_or_default()
}

/// What the daemon is asked for: the containers of a deployment, or of one engine of it.
pub(super) fn filters(deployment_id: &str, engine_id: Option<EngineId>) -> HashMap<String, Vec<String>> {
    let deployment = if fault_injection::active(Mutation::TakeStrangers) {
        DEPLOYMENT_LABEL.to_owned()
    } else {
        format!("{DEPLOYMENT_LABEL}={deployment_id}")
    };
    let engine = engine_id.map(|engine_id| format!("{}={engine_id}", engine_label()));
    let labels = std::iter::once(deployment).chain(engine).collect();
    HashMap::from([("label".to_owned(), labels)])
}
