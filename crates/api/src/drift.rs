//! Drift: what exists of engines and should not, and what should exist and does not.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{EngineId, ErrorDetail, ProductId, UserId};

/// The most differences that one answer lists, and that one call repairs.
pub const MAX_DIFFERENCES: usize = 1_000;

/// The kind of a difference between the registry and what exists of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftKind {
    /// An instance of an engine that the registry does not have.
    OrphanInstance,
    /// An instance that runs beside the later one that the registry names.
    SupersededInstance,
    /// An instance, or what is left of one, of an engine that is not to run.
    UnexpectedInstance,
    /// The registry says that the engine runs, and its instance does not.
    MissingInstance,
    /// An operation on the engine that nobody works on any more.
    AbandonedOperation,
    /// The engine's instance was launched for a change that the registry does not have.
    RegistryBehind,
    /// Data of an engine that the registry does not have.
    DataWithoutEngine,
    /// An engine without its data.
    EngineWithoutData,
}

impl DriftKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::OrphanInstance,
        Self::SupersededInstance,
        Self::UnexpectedInstance,
        Self::MissingInstance,
        Self::AbandonedOperation,
        Self::RegistryBehind,
        Self::DataWithoutEngine,
        Self::EngineWithoutData,
    ];

    /// Returns the kind's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OrphanInstance => "orphan_instance",
            Self::SupersededInstance => "superseded_instance",
            Self::UnexpectedInstance => "unexpected_instance",
            Self::MissingInstance => "missing_instance",
            Self::AbandonedOperation => "abandoned_operation",
            Self::RegistryBehind => "registry_behind",
            Self::DataWithoutEngine => "data_without_engine",
            Self::EngineWithoutData => "engine_without_data",
        }
    }

    /// Parses the result of [`DriftKind::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// What a repair does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftRepair {
    /// The instance is killed, and what is left of it removed. Data stays.
    RemoveInstance,
    /// The engine becomes `failed`, and is restarted as ever.
    MarkFailed,
    /// The operation is completed, rolled back or dropped, as at a start of the orchestrator.
    EndOperation,
    /// The registry takes over the instance's generation.
    AdoptGeneration,
    /// The data is removed for good.
    RemoveData,
}

impl DriftRepair {
    /// Returns the repair's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RemoveInstance => "remove_instance",
            Self::MarkFailed => "mark_failed",
            Self::EndOperation => "end_operation",
            Self::AdoptGeneration => "adopt_generation",
            Self::RemoveData => "remove_data",
        }
    }
}

/// A difference between the registry and what exists of engines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// What it is.
    pub kind: DriftKind,
    /// The engine.
    pub engine_id: EngineId,
    /// The engine's product; null if neither the registry nor its audit log knows the engine.
    #[schema(required)]
    pub product_id: Option<ProductId>,
    /// The engine's user; null if neither the registry nor its audit log knows the engine.
    #[schema(required)]
    pub user_id: Option<UserId>,
    /// The backend's name of the instance; null if it is not about one.
    #[schema(required)]
    pub instance: Option<String>,
    /// What was seen, in words.
    pub seen: String,
    /// What a repair does; null if there is none.
    #[schema(required)]
    pub repair: Option<DriftRepair>,
    /// What a person is to do if there is no repair; null otherwise.
    #[schema(required)]
    pub advice: Option<String>,
}

/// Query of `GET /fleet/drift`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListDrift {
    /// Only differences of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DriftKind>,
    /// Only differences of engines of this product.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product_id: Option<ProductId>,
}

/// Response of `GET /fleet/drift`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drift {
    /// The differences, sorted by kind and engine: at most 1,000.
    pub differences: Vec<Difference>,
    /// How many there are.
    pub total: u64,
    /// Whether there are more than are listed.
    pub truncated: bool,
    /// Whether the engines' data was compared, too; false if the backend cannot list it.
    pub data_compared: bool,
}

/// Body of `POST /fleet/drift/repair`: which differences, all by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairDrift {
    /// Whether nothing is repaired, only said what would be; true by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
    /// Only differences of these kinds. Data is removed only if `data_without_engine` is among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<DriftKind>>,
    /// Only differences of this engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_id: Option<EngineId>,
}

/// What became of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RepairOutcome {
    /// It is repaired.
    Repaired,
    /// It would be repaired if this were no dry run.
    WouldRepair,
    /// There is no repair; `advice` says what to do.
    NoRepair,
    /// Its data would be removed: it is repaired only if `kinds` names `data_without_engine`.
    NeedsKind,
    /// It was gone before it was repaired, or something is at work on the engine.
    Gone,
    /// The repair failed; `error` says why.
    Failed,
}

/// A difference, and what became of its repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairResult {
    /// The difference.
    #[serde(flatten)]
    pub difference: Difference,
    /// What became of it.
    pub outcome: RepairOutcome,
    /// Why it failed; null if it did not.
    #[schema(required)]
    pub error: Option<ErrorDetail>,
}

/// Response of `POST /fleet/drift/repair`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DriftRepairs {
    /// Whether nothing was repaired.
    pub dry_run: bool,
    /// The differences that were asked for, sorted by kind and engine: at most 1,000.
    pub results: Vec<RepairResult>,
    /// How many there are.
    pub total: u64,
    /// Whether there are more than are listed; those were not touched.
    pub truncated: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_written_as_they_are_named() {
        for kind in DriftKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(DriftKind::from_name(kind.as_str()), Some(kind));
        }
        assert_eq!(DriftKind::from_name("nothing"), None);
    }
}
