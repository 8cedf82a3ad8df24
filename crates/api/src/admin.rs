//! `/admin` of the engine.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer of `POST /admin/reload-core-soul`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SoulReloaded {
    /// `reloaded`.
    pub status: ReloadedStatus,
    /// The `version` of the soul's front matter, else a hash of its content.
    pub version: String,
}

/// Answer of `POST /admin/reload-catalog`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CatalogReloaded {
    /// `reloaded`.
    pub status: ReloadedStatus,
    /// How much of it is in use now.
    pub counts: CatalogCounts,
    /// What was left out, kept as it was, or taken otherwise than it is written, and why: a line each, for a person.
    pub warnings: Vec<String>,
}

/// How many entries of each kind a catalog has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CatalogCounts {
    /// Agents.
    pub agents: usize,
    /// Skills of the platform.
    pub skills: usize,
    /// Tools beside the built-in ones and those of connected servers.
    pub tools: usize,
}

/// The one status of what was read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadedStatus {
    /// It is in use.
    Reloaded,
}
