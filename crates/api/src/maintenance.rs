//! Maintenance: for a while, the engines that run are all that there is, and nothing changes an engine.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamp;
use crate::text::MaintenanceMessage;

/// Body of `PUT /fleet/maintenance`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BeginMaintenance {
    /// What whoever is refused meanwhile is told: why, and until when. 1 to 500 characters on one line.
    pub message: MaintenanceMessage,
}

/// A maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Maintenance {
    /// Since when it lasts.
    pub since: Timestamp,
    /// What whoever is refused is told.
    pub message: MaintenanceMessage,
}

/// Response of `GET`, `PUT` and `DELETE /fleet/maintenance`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MaintenanceStatus {
    /// The maintenance; null if there is none.
    #[schema(required)]
    pub maintenance: Option<Maintenance>,
    /// The number of engines that are being changed at the moment: what had begun before comes to its end.
    pub changes_under_way: u64,
}
