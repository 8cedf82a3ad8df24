//! Export and import of an engine's memory.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serde_helpers::null_as_default;

/// What an import does with existing memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportMode {
    /// Existing memory stays unchanged, and records of the document that it lacks are added.
    #[default]
    Merge,
    /// Existing memory is deleted: afterwards the engine remembers only what the document contains.
    Replace,
}

/// Query of `POST /memory/import`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ImportMemory {
    /// What to do with existing memory; `merge` by default.
    #[serde(default, deserialize_with = "null_as_default")]
    pub mode: ImportMode,
}

/// Response of `POST /memory/import`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// Always `imported`.
    pub status: ImportedStatus,
    /// What was done with existing memory.
    pub mode: ImportMode,
    /// The number of imported records. Records that existed already are not counted.
    pub counts: ImportCounts,
}

/// The only status of [`Imported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportedStatus {
    /// All imported records are in force.
    Imported,
}

/// The number of imported records of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportCounts {
    /// Tasks, each with its entire conversation.
    pub tasks: u64,
    /// Turns of those tasks.
    pub turns: u64,
    /// Records of knowledge.
    pub knowledge: u64,
    /// Summaries of turns.
    pub episodes: u64,
    /// Records of what turns did.
    pub trajectories: u64,
    /// Media attached by people.
    pub media: u64,
    /// The user's own skills.
    pub skills: u64,
    /// Feedback on turns.
    pub feedback: u64,
    /// Runs of the learning component.
    pub batches: u64,
    /// Lessons, beside the records of knowledge that they also are.
    pub lessons: u64,
}
