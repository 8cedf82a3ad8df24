//! Responses of the engine's `/admin` endpoints: reloading the soul and the catalog.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Response of `POST /admin/reload-core-soul`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SoulReloaded {
    /// `reloaded`.
    pub status: ReloadedStatus,
    /// The `version` of the soul's front matter, or a hash of its content if there is none.
    pub version: String,
}

/// Response of `POST /admin/reload-catalog`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CatalogReloaded {
    /// `reloaded`.
    pub status: ReloadedStatus,
    /// The number of entries now in use.
    pub counts: CatalogCounts,
    /// One line for a person for each entry that was left out, kept unchanged or read differently from what is
    /// written, with the reason.
    pub warnings: Vec<String>,
}

/// The number of entries of each kind in a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CatalogCounts {
    /// The number of agents.
    pub agents: usize,
    /// The number of platform skills.
    pub skills: usize,
    /// The number of tools, without the built-in ones and those of connected servers.
    pub tools: usize,
}

/// The only status of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadedStatus {
    /// The new version is in use.
    Reloaded,
}
