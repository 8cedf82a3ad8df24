//! The types that the layers share: who owns an engine, which transitions it may make, and how it is watched.
//! Nothing here reads or changes anything.

pub(crate) mod drift;
pub(crate) mod idempotency;
pub(crate) mod lifecycle;
pub(crate) mod product_life;
pub(crate) mod rollout;
mod supervision_rules;
pub(crate) mod usage;
pub(crate) mod warm_pool;
pub(crate) mod webhook_progress;
mod webhook_rules;

use api::{ProductId, UserId};

pub use self::supervision_rules::SupervisionRules;
pub use self::webhook_rules::WebhookRules;

/// Who asks for a change. The audit log names an operator; every other actor follows from a row's event and reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Actor {
    /// The product, with its platform key, or the orchestrator itself.
    #[default]
    Implied,
    /// The operator, with the deployment's admin key.
    Operator,
}

/// The product and user that own an engine; each pair owns at most one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EngineOwner {
    pub(crate) product_id: ProductId,
    pub(crate) user_id: UserId,
}
