//! The types that the layers share: who owns an engine, which transitions it may make, and how it is watched.
//! Nothing here reads or changes anything.

pub(crate) mod lifecycle;
mod supervision_rules;

use api::{ProductId, UserId};

pub use self::supervision_rules::SupervisionRules;

/// The product and user that own an engine; each pair owns at most one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EngineOwner {
    pub(crate) product_id: ProductId,
    pub(crate) user_id: UserId,
}
