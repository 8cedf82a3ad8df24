//! The refusals and failures of the rules, and the only mapping to the API's error codes.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use api::browser::TokenRefusal;
use api::{EngineImage, ErrorCode, Timestamp};
use backend::BackendError;
use backup::BackupError;
use http_service::http::refusal_code;

use crate::domain::lifecycle::Refusal;
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
            Self::PolicyDenied(_) => ErrorCode::PolicyDenied,
            Self::BeyondAuditLog { .. } | Self::InvalidBackupJob(_) => ErrorCode::InvalidRequest,
            Self::SlugExists => ErrorCode::ProductSlugExists,
            Self::QuotaExceeded { .. } => ErrorCode::QuotaExceeded,
            Self::RateLimited { .. } => ErrorCode::RateLimited,
            Self::TokenRefused(refusal) => refusal_code(*refusal),
            Self::TokenNotFound => ErrorCode::TokenNotFound,
            Self::TokenLimit { .. } => ErrorCode::TokenLimit,
            Self::KeyNotFound => ErrorCode::KeyNotFound,
            Self::KeyLimit { .. } => ErrorCode::KeyLimit,
            Self::PortExhaustion => ErrorCode::PortExhaustion,
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
            | Self::BackupJobRunning => Some(30),
            Self::RegistryUnavailable(_) => Some(2),
            Self::EngineNotFound
            | Self::EngineAlreadyExists
            | Self::EngineAlreadyRunning
            | Self::EngineNotRunning
            | Self::ProductNotFound
            | Self::PolicyDenied(_)
            | Self::BeyondAuditLog { .. }
            | Self::SlugExists
            | Self::QuotaExceeded { .. }
            | Self::TokenRefused(_)
            | Self::TokenNotFound
            | Self::KeyNotFound
            | Self::KeyLimit { .. }
            | Self::BootTimeout(_)
            | Self::Backend(_)
            | Self::Backup(_)
            | Self::InvalidBackupJob(_)
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
