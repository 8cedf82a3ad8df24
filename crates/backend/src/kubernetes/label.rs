//! The names and labels of an engine's objects, which name its deployment, product, engine and generation.
//!
//! The API server finds a deployment's objects by these labels.

use std::collections::BTreeMap;

use api::{EngineId, ProductId};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::Target;

/// The names of the labels. Later versions find earlier versions' objects by them, so they never change.
const DEPLOYMENT_LABEL: &str = "roundhouse/deployment";
const PRODUCT_LABEL: &str = "roundhouse/product";
const ENGINE_LABEL: &str = "roundhouse/engine";
const GENERATION_LABEL: &str = "roundhouse/generation";
const ROLE_LABEL: &str = "roundhouse/role";

/// The labels by which others select engines, for example network policies.
const COMMON_LABELS: [(&str, &str); 2] =
    [("app.kubernetes.io/name", "roundhouse-engine"), ("app.kubernetes.io/managed-by", "roundhouse")];

/// What a Pod does for its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It runs the engine.
    Engine,
    /// It copies or restores the brain while the engine does not run.
    Copy,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Copy => "copy",
        }
    }
}

/// Returns the name of the engine's Pod and of its volume's claim, which is its host name too. It depends on the
/// id alone, so that an engine has at most one of each.
pub(super) fn engine_name(engine_id: EngineId) -> String {
    format!("roundhouse-{}", engine_id.to_string().replace('_', "-"))
}

/// Returns the name of the Pod that copies the engine's brain.
pub(super) fn copy_name(engine_id: EngineId) -> String {
    format!("{}-copy", engine_name(engine_id))
}

/// Returns the labels of every object of the engine.
pub(super) fn labels(deployment_id: &str, engine_id: EngineId) -> BTreeMap<String, String> {
    let own =
        [(DEPLOYMENT_LABEL, deployment_id.to_owned()), (ENGINE_LABEL, engine_id.to_string())].into_iter();
    let common = COMMON_LABELS.map(|(name, value)| (name, value.to_owned()));
    own.chain(common).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the labels of a Pod with this role.
pub(super) fn pod_labels(
    deployment_id: &str,
    target: Target,
    product_id: Option<ProductId>,
    role: Role,
) -> BTreeMap<String, String> {
    let mut labels = labels(deployment_id, target.engine_id);
    labels.insert(GENERATION_LABEL.to_owned(), target.generation.to_string());
    labels.insert(ROLE_LABEL.to_owned(), role.name().to_owned());
    labels.extend(product_id.map(|product_id| (PRODUCT_LABEL.to_owned(), product_id.to_string())));
    labels
}

/// Returns the engine of an object with this metadata; `None` if it does not belong to `deployment_id`.
pub(super) fn engine_of(deployment_id: &str, metadata: &ObjectMeta) -> Option<EngineId> {
    let labels = metadata.labels.as_ref()?;
    let deployment = labels.get(DEPLOYMENT_LABEL)?;
    labels.get(ENGINE_LABEL).filter(|_| deployment == deployment_id)?.parse().ok()
}

/// Returns the generation of the engine's row for which a Pod was created; 0 if absent.
pub(super) fn generation_of(metadata: &ObjectMeta) -> i64 {
    let generation = metadata.labels.as_ref().and_then(|labels| labels.get(GENERATION_LABEL));
    generation.and_then(|generation| generation.parse().ok()).unwrap_or_default()
}

/// Returns the role of a Pod.
pub(super) fn role_of(metadata: &ObjectMeta) -> Role {
    match metadata.labels.as_ref().and_then(|labels| labels.get(ROLE_LABEL)) {
        Some(role) if role == Role::Copy.name() => Role::Copy,
        _ => Role::Engine,
    }
}

/// Returns the selector of the objects of a deployment.
pub(super) fn selector(deployment_id: &str) -> String {
    format!("{DEPLOYMENT_LABEL}={deployment_id}")
}

/// Returns the selector of the Pods that the headless Service of the engines names.
pub(super) fn service_selector() -> BTreeMap<String, String> {
    BTreeMap::from([(ROLE_LABEL.to_owned(), Role::Engine.name().to_owned())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_host_names() {
        let engine_id = EngineId::new();
        for name in [engine_name(engine_id), copy_name(engine_id)] {
            assert!(name.len() <= 63, "{name}");
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            );
        }
    }

    #[test]
    fn an_object_of_another_deployment_is_nobodys() {
        let engine_id = EngineId::new();
        let metadata = ObjectMeta {
            labels: Some(pod_labels("d1", Target { engine_id, generation: 7 }, None, Role::Copy)),
            ..ObjectMeta::default()
        };
        assert_eq!(engine_of("d1", &metadata), Some(engine_id));
        assert_eq!((generation_of(&metadata), role_of(&metadata)), (7, Role::Copy));
        assert_eq!(engine_of("d2", &metadata), None);
        assert_eq!(engine_of("d1", &ObjectMeta::default()), None);
        assert_eq!(generation_of(&ObjectMeta::default()), 0);
    }
}
