//! The refusals and failures of the rules, and the only mapping to the API's error codes.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use api::browser::TokenRefusal;
use api::maintenance::Maintenance;
use api::product_state::ProductState;
use api::{EngineImage, ErrorCode, RolloutId, Timestamp};
use backend::BackendError;
use backup::BackupError;
use http_service::http::refusal_code;

use crate::domain::lifecycle::Refusal;
use crate::domain::product_life::ProductRefusal;
use crate::domain::rollout::RolloutRefusal;
use crate::keys::KeyError;
use crate::registry::RegistryError;

/// A refusal or a failure. Its message is for people and contains no secret.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FleetError {
    /// The user has no engine.
    #[error("this user has no engine")]
    EngineNotFound,
    /// A provision for a user who has an engine.
    #[error("this user already has an engine; admit returns its address and key")]
    EngineAlreadyExists,
    /// A start of an engine that runs or is about to.
    #[error("this engine is already running")]
    EngineAlreadyRunning,
    /// A stop of an engine that does not run.
    #[error("this engine is not running")]
    EngineNotRunning,
    /// The product does not exist.
    #[error("there is no product with this id")]
    ProductNotFound,
    /// The operator has disabled the product, or is deleting it.
    #[error("the operator {} this product", if *.deleting { "is deleting" } else { "has disabled" })]
    ProductDisabled {
        /// Whether it is being deleted.
        deleting: bool,
    },
    /// A deletion of a product that is in use.
    #[error("this product is in use; disable it first")]
    ProductNotDisabled,
    /// The product is being deleted.
    #[error("this product is being deleted, which cannot be undone")]
    ProductDeleting,
    /// A deletion without a confirmation in force.
    #[error(
        "this confirmation is of another product, is older than ten minutes, or the product was enabled since; \
         ask for another one"
    )]
    ConfirmationInvalid,
    /// The product's policy forbids it.
    #[error("the product's policy does not allow this: {0}")]
    PolicyDenied(String),
    /// A position beyond the end of the audit log.
    #[error("the audit log has no row {after} yet, its last row is {end}; start again from 0 or from now on")]
    BeyondAuditLog {
        /// The requested position.
        after: i64,
        /// The id of the last row.
        end: i64,
    },
    /// The slug is in use by another product.
    #[error("another product has this slug")]
    SlugExists,
    /// The product has as many engines as its policy allows.
    #[error("the product has as many engines as its policy allows ({max_engines})")]
    QuotaExceeded {
        /// The limit of the policy.
        max_engines: u64,
    },
    /// The product exceeds its rate limit on admits.
    #[error("the product's policy allows no more admits in this minute")]
    RateLimited {
        /// Whole seconds until an admit would pass; `None` if none ever will.
        retry_after_s: Option<u64>,
    },
    /// A browser token is refused.
    #[error("{0}")]
    TokenRefused(TokenRefusal),
    /// The engine has no such token in force.
    #[error("this engine has no such token in force")]
    TokenNotFound,
    /// The engine has as many tokens as it may have.
    #[error("the engine has as many browser tokens in force as it may have; keep a token until it expires")]
    TokenLimit {
        /// Whole seconds until the first one expires.
        retry_after_s: u64,
    },
    /// The product has no such key in force.
    #[error("this product has no such platform key in force")]
    KeyNotFound,
    /// The product has as many keys as it may have.
    #[error("the product has as many platform keys in force as it may have ({max}); revoke one first")]
    KeyLimit {
        /// The limit.
        max: usize,
    },
    /// The product has no such webhook.
    #[error("this product has no such webhook")]
    WebhookNotFound,
    /// The product has as many webhooks as it may have.
    #[error("the product has as many webhooks as it may have ({max}); delete one first")]
    WebhookLimit {
        /// The limit.
        max: usize,
    },
    /// There is no such rollout.
    #[error("there is no rollout with this id")]
    RolloutNotFound,
    /// Another rollout is under way.
    #[error("the rollout {rollout_id} is under way; wait until it has ended, or roll it back")]
    RolloutUnderWay {
        /// The other one.
        rollout_id: RolloutId,
    },
    /// A later rollout has built on this one.
    #[error("the rollout {rollout_id} has begun since; roll that one back")]
    RolloutSuperseded {
        /// The last one.
        rollout_id: RolloutId,
    },
    /// The rollout is over.
    #[error("this rollout is over")]
    RolloutOver,
    /// The rollout is rolled back, and no engine was left behind.
    #[error("this rollout is rolled back already")]
    RolloutRolledBack,
    /// The backend has no other image than its own.
    #[error(
        "the engines of this deployment are processes of the orchestrator's own version: update its binary instead"
    )]
    SingleImage,
    /// A query of usage that has no answer.
    #[error("{0}")]
    InvalidUsageQuery(String),
    /// A webhook cannot have these settings.
    #[error("{0}")]
    InvalidWebhook(String),
    /// Another request was made with this `Idempotency-Key`.
    #[error("this Idempotency-Key was used for another request; each call needs a key of its own")]
    IdempotencyKeyReused,
    /// The call with this `Idempotency-Key` is still under way.
    #[error("the call with this Idempotency-Key is still under way; repeat it for its answer")]
    IdempotencyKeyInUse,
    /// The caller has as many calls with keys under way as it may have.
    #[error("the caller has {max} calls with an Idempotency-Key under way, and may have no more")]
    TooManyKeyedCalls {
        /// The limit.
        max: usize,
    },
    /// No port is free.
    #[error("no port is free for an engine; stop engines, or widen the range ORCH_PORT_MIN to ORCH_PORT_MAX")]
    PortExhaustion,
    /// An operator drains the deployment.
    #[error(
        "the deployment is drained for maintenance since {since}: no engine is started until its operator lifts that"
    )]
    Drained {
        /// Since when.
        since: Timestamp,
    },
    /// An operator keeps the deployment under maintenance.
    #[error("the deployment is under maintenance since {}: {}", .0.since, .0.message.as_str())]
    Maintenance(Maintenance),
    /// The host has no capacity for another engine.
    #[error("{0}")]
    CapacityExhausted(String),
    /// A booting engine did not become healthy in time.
    #[error("the engine was not healthy in time: {0}")]
    BootTimeout(String),
    /// The backend failed, or a booting engine exited.
    #[error("{0}")]
    Backend(String),
    /// A job with backups that cannot be done.
    #[error("{0}")]
    InvalidBackupJob(String),
    /// Another job with backups is under way.
    #[error("another job with backups is under way; `roundhouse backup status` shows it")]
    BackupJobRunning,
    /// A backup could not be made, read or removed.
    #[error("{0}")]
    Backup(String),
    /// The registry's server is unreachable.
    #[error("the registry is unreachable; whether the call had an effect is unknown, retry in a moment")]
    RegistryUnavailable(#[source] Cause),
    /// The engine's row was written by another version.
    #[error(
        "the registry's row of this engine has a value that this version cannot read (column {0}); \
         use the version that wrote it, or a later one"
    )]
    UnreadableRow(&'static str),
    /// The operation did not end within its time limit.
    #[error("the operation on this engine did not end in time; it continues, check the engine again later")]
    OperationTimeout,
    /// An internal failure.
    #[error("an unexpected failure")]
    Internal(#[source] Cause),
}

/// The cause of an internal failure, shared by all callers who waited for the same operation.
#[derive(Clone, Debug)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// An operation's task ended without an outcome: it panicked, or the runtime is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the task of an operation ended without an outcome")]
pub(super) struct TaskAborted;

impl FleetError {
    /// The error code in the API.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::EngineNotFound => ErrorCode::EngineNotFound,
            Self::EngineAlreadyExists => ErrorCode::EngineAlreadyExists,
            Self::EngineAlreadyRunning => ErrorCode::EngineAlreadyRunning,
            Self::EngineNotRunning => ErrorCode::EngineNotRunning,
            Self::ProductNotFound => ErrorCode::ProductNotFound,
            Self::ProductDisabled { .. } => ErrorCode::ProductDisabled,
            Self::ProductNotDisabled => ErrorCode::ProductNotDisabled,
            Self::ProductDeleting => ErrorCode::ProductDeleting,
            Self::ConfirmationInvalid => ErrorCode::ConfirmationInvalid,
            Self::PolicyDenied(_) => ErrorCode::PolicyDenied,
            Self::BeyondAuditLog { .. }
            | Self::InvalidWebhook(_)
            | Self::InvalidBackupJob(_)
            | Self::InvalidUsageQuery(_)
            | Self::SingleImage => ErrorCode::InvalidRequest,
            Self::RolloutNotFound => ErrorCode::RolloutNotFound,
            Self::RolloutUnderWay { .. } => ErrorCode::RolloutUnderWay,
            Self::RolloutSuperseded { .. } | Self::RolloutOver | Self::RolloutRolledBack => {
                ErrorCode::RolloutOver
            }
            Self::SlugExists => ErrorCode::ProductSlugExists,
            Self::QuotaExceeded { .. } => ErrorCode::QuotaExceeded,
            Self::RateLimited { .. } => ErrorCode::RateLimited,
            Self::TokenRefused(refusal) => refusal_code(*refusal),
            Self::TokenNotFound => ErrorCode::TokenNotFound,
            Self::TokenLimit { .. } => ErrorCode::TokenLimit,
            Self::KeyNotFound => ErrorCode::KeyNotFound,
            Self::KeyLimit { .. } => ErrorCode::KeyLimit,
            Self::WebhookNotFound => ErrorCode::WebhookNotFound,
            Self::WebhookLimit { .. } => ErrorCode::WebhookLimit,
            Self::IdempotencyKeyReused => ErrorCode::IdempotencyKeyReused,
            Self::IdempotencyKeyInUse | Self::TooManyKeyedCalls { .. } => ErrorCode::IdempotencyKeyInUse,
            Self::PortExhaustion => ErrorCode::PortExhaustion,
            Self::Maintenance(_) => ErrorCode::Maintenance,
            Self::CapacityExhausted(_) | Self::Drained { .. } | Self::BackupJobRunning => {
                ErrorCode::CapacityExhausted
            }
            Self::BootTimeout(_) => ErrorCode::BootTimeout,
            Self::Backend(_) | Self::Backup(_) | Self::OperationTimeout => ErrorCode::BackendError,
            Self::RegistryUnavailable(_) => ErrorCode::StartingUp,
            Self::UnreadableRow(_) | Self::Internal(_) => ErrorCode::InternalError,
        }
    }

    /// The seconds after which a retry makes sense, if any.
    pub const fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::RateLimited { retry_after_s } => *retry_after_s,
            Self::TokenLimit { retry_after_s } => Some(*retry_after_s),
            // Capacity is freed when engines stop, and nobody knows when.
            Self::PortExhaustion
            | Self::CapacityExhausted(_)
            | Self::Drained { .. }
            | Self::Maintenance(_)
            | Self::BackupJobRunning => Some(30),
            Self::RegistryUnavailable(_) => Some(2),
            Self::IdempotencyKeyInUse | Self::TooManyKeyedCalls { .. } => Some(1),
            Self::EngineNotFound
            | Self::EngineAlreadyExists
            | Self::EngineAlreadyRunning
            | Self::EngineNotRunning
            | Self::ProductNotFound
            | Self::ProductDisabled { .. }
            | Self::ProductNotDisabled
            | Self::ProductDeleting
            | Self::ConfirmationInvalid
            | Self::PolicyDenied(_)
            | Self::BeyondAuditLog { .. }
            | Self::SlugExists
            | Self::QuotaExceeded { .. }
            | Self::TokenRefused(_)
            | Self::TokenNotFound
            | Self::KeyNotFound
            | Self::KeyLimit { .. }
            | Self::WebhookNotFound
            | Self::WebhookLimit { .. }
            | Self::InvalidWebhook(_)
            | Self::RolloutNotFound
            | Self::RolloutUnderWay { .. }
            | Self::RolloutSuperseded { .. }
            | Self::RolloutOver
            | Self::RolloutRolledBack
            | Self::SingleImage
            | Self::IdempotencyKeyReused
            | Self::BootTimeout(_)
            | Self::Backend(_)
            | Self::Backup(_)
            | Self::InvalidBackupJob(_)
            | Self::InvalidUsageQuery(_)
            | Self::OperationTimeout
            | Self::UnreadableRow(_)
            | Self::Internal(_) => None,
        }
    }

    /// The error for calls of a suspended product.
    pub(super) fn suspended() -> Self {
        Self::PolicyDenied("the product is suspended; it may only read".to_owned())
    }

    /// The error for a product whose policy does not allow `image`.
    pub(super) fn image_denied(image: &EngineImage) -> Self {
        Self::PolicyDenied(format!(
            "{image} is not among its allowed_engine_versions, which by default are the versions of the \
             deployment's image"
        ))
    }

    /// Checks that a product in `state` is in use.
    pub(super) const fn check_in_use(state: ProductState) -> Result<(), Self> {
        match state {
            ProductState::Active => Ok(()),
            ProductState::Disabled => Err(Self::ProductDisabled { deleting: false }),
            ProductState::Deleting => Err(Self::ProductDisabled { deleting: true }),
            ProductState::Deleted => Err(Self::ProductNotFound),
        }
    }

    pub(super) fn internal(cause: impl Error + Send + Sync + 'static) -> Self {
        Self::Internal(Cause(Arc::new(cause)))
    }
}

impl From<Refusal> for FleetError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotFound => Self::EngineNotFound,
            Refusal::AlreadyExists => Self::EngineAlreadyExists,
            Refusal::AlreadyRunning => Self::EngineAlreadyRunning,
            Refusal::NotRunning => Self::EngineNotRunning,
        }
    }
}

impl From<RolloutRefusal> for FleetError {
    fn from(refusal: RolloutRefusal) -> Self {
        match refusal {
            RolloutRefusal::Over => Self::RolloutOver,
            RolloutRefusal::NothingToRollBack => Self::RolloutRolledBack,
        }
    }
}

impl From<ProductRefusal> for FleetError {
    fn from(refusal: ProductRefusal) -> Self {
        match refusal {
            ProductRefusal::NotFound => Self::ProductNotFound,
            ProductRefusal::NotDisabled => Self::ProductNotDisabled,
            ProductRefusal::Deleting => Self::ProductDeleting,
        }
    }
}

impl From<RegistryError> for FleetError {
    fn from(error: RegistryError) -> Self {
        Arc::new(error).into()
    }
}

impl From<Arc<RegistryError>> for FleetError {
    fn from(error: Arc<RegistryError>) -> Self {
        match &*error {
            RegistryError::Unreachable(_) | RegistryError::LostLeadership => {
                Self::RegistryUnavailable(Cause(error))
            }
            RegistryError::Unreadable { column } => Self::UnreadableRow(column),
            // It never says that the product is in use.
            RegistryError::ProductDisabled { state } if let Err(disabled) = Self::check_in_use(*state) => {
                disabled
            }
            _ => Self::Internal(Cause(error)),
        }
    }
}

impl From<KeyError> for FleetError {
    fn from(error: KeyError) -> Self {
        Self::internal(error)
    }
}

impl From<BackupError> for FleetError {
    fn from(error: BackupError) -> Self {
        Self::Backup(error.to_string())
    }
}

impl From<BackendError> for FleetError {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::NoCapacity(_) => Self::CapacityExhausted(error.to_string()),
            error => Self::Backend(error.to_string()),
        }
    }
}
