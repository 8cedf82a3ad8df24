//! The life of a product: its operator disables and enables it, and deletes one that is disabled.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::fleet::EngineFailure;
use crate::orchestrator::{EngineStatus, ProductSummary};
use crate::{ProductId, Slug, Timestamp};

/// Whether a product is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProductState {
    /// It is.
    #[default]
    Active,
    /// Its operator has disabled it: its keys and tokens are refused, and its engines sleep.
    Disabled,
    /// Its engines are being destroyed.
    Deleting,
    /// Only its audit log is left.
    Deleted,
}

impl ProductState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Active, Self::Disabled, Self::Deleting, Self::Deleted];

    /// Returns the state's name on the wire and in the registry.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Disabled => "disabled",
            Self::Deleting => "deleting",
            Self::Deleted => "deleted",
        }
    }

    /// Parses the result of [`ProductState::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// Response of `GET /products/{product_id}`, of `POST …/disable` and `…/enable`, and of `DELETE /products/{product_id}`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProductDetails {
    /// The fields of the listing. A deleted product has the slug that it had.
    #[serde(flatten)]
    pub summary: ProductSummary,
    /// Since when it has been in its state; null if it was never disabled.
    #[schema(required)]
    pub state_since: Option<Timestamp>,
    /// The number of its engines, in any state.
    pub engines: u64,
    /// The number of its engines that run or are being changed. A disabled product has none once all of them sleep.
    pub awake: u64,
    /// The number of engines when its deletion began; null if it is not being deleted and was not.
    #[schema(required)]
    pub engines_to_delete: Option<u64>,
    /// The number of engines that could not be put to sleep or destroyed at the last attempt. Each is tried again.
    pub failing: u64,
    /// The first 100 of those, the one that has been failing longest first.
    pub failures: Vec<EngineFailure>,
}

/// Response of `GET /products/{product_id}/deletion`: what a deletion would remove, and the confirmation for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeletionPlan {
    /// The product's id.
    pub product_id: ProductId,
    /// Its short name, which is free again once it is deleted.
    pub slug: Slug,
    /// The number of engines that would be destroyed, each with all data of its user.
    pub engines: u64,
    /// The number of engines in each state; only states that occur.
    pub by_status: BTreeMap<EngineStatus, u64>,
    /// The number of platform keys that would be removed.
    pub platform_keys: u64,
    /// The number of audit rows, which are kept.
    pub audit_rows: u64,
    /// What `DELETE /products/{product_id}` takes as `confirmation`.
    pub confirmation: String,
    /// Until when it takes it.
    pub expires_at: Timestamp,
}

/// Query of `DELETE /products/{product_id}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeleteProduct {
    /// That of `GET /products/{product_id}/deletion`.
    pub confirmation: String,
}
