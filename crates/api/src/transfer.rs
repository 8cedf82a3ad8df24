//! An engine's memory on its way out of one engine and into another.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::serde_helpers::null_as_default;

/// What an import does with what is remembered already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportMode {
    /// It stays as it is, and what the document has beyond it is added.
    #[default]
    Merge,
    /// It is deleted: the engine then remembers what the document has, and nothing else.
    Replace,
}

/// Query of `POST /memory/import`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ImportMemory {
    /// What to do with what is remembered already; `merge` by default.
    #[serde(default, deserialize_with = "null_as_default")]
    pub mode: ImportMode,
}

/// Answer of `POST /memory/import`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// Always `imported`.
    pub status: ImportedStatus,
    /// What was done with what had been remembered.
    pub mode: ImportMode,
    /// How much was taken in. What was there already is not counted.
    pub counts: ImportCounts,
}

/// The status of an import that went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportedStatus {
    /// All of it is in force.
    Imported,
}

/// How many records of each kind an import took in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportCounts {
    /// Tasks, each with its whole conversation.
    pub tasks: u64,
    /// Turns of those tasks.
    pub turns: u64,
    /// Records of knowledge.
    pub knowledge: u64,
    /// What became of turns.
    pub episodes: u64,
    /// What turns did.
    pub trajectories: u64,
    /// Things that people had attached.
    pub media: u64,
    /// Skills of the user's own.
    pub skills: u64,
    /// What people said of turns.
    pub feedback: u64,
    /// Runs of the learning component.
    pub batches: u64,
    /// What was learned, beside the record of knowledge that it is.
    pub lessons: u64,
}
