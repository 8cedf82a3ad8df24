//! The values that labels can have. Each label is a closed set, so that the number of series is bounded and no
//! data of a caller, such as a user id, can become one.

use api::ErrorCode;
use api::backup::BackupAction;
use api::orchestrator::EngineStatus;
use api::rollout::{RolloutCounts, RolloutPhase};
use backend::BackendError;

use crate::domain::lifecycle::Change;
use crate::domain::warm_pool::WarmState;
use crate::registry::RegistryError;

/// A label and all of its values.
pub(crate) trait Label: Copy + PartialEq + Send + Sync + std::fmt::Debug + 'static {
    /// The label's name.
    const NAME: &'static str;
    /// All values, the most frequent ones first.
    const ALL: &'static [Self];

    /// The value as it is exposed.
    fn value(self) -> &'static str;
}

/// Defines a label: its name and its values.
macro_rules! label {
    (
        $(#[$doc:meta])* $type:ident: $name:literal
        { $($(#[$variant_doc:meta])* $variant:ident => $value:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $type {
            $($(#[$variant_doc])* $variant,)+
        }

        impl Label for $type {
            const NAME: &'static str = $name;
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn value(self) -> &'static str {
                match self {
                    $(Self::$variant => $value,)+
                }
            }
        }
    };
}
pub(super) use label;

label! {
    /// What became of an attempt to deliver a row of the audit log.
    DeliveryOutcome: "outcome" {
        /// The receiver has accepted the row.
        Delivered => "delivered",
        /// The attempt has failed.
        Failed => "failed",
        /// The row was given up after its last attempt.
        Dead => "dead",
    }
}

label! {
    /// What a provision has found in the warm pool.
    WarmClaim: "outcome" {
        /// An engine that runs.
        Hit => "hit",
        /// No engine that is like a new one.
        Miss => "miss",
        /// An engine that was not healthy any more.
        Unhealthy => "unhealthy",
    }
}

impl Label for WarmState {
    const NAME: &'static str = "state";
    const ALL: &'static [Self] = &[Self::Ready, Self::Booting, Self::Ending];

    fn value(self) -> &'static str {
        self.as_str()
    }
}

impl Label for RolloutPhase {
    const NAME: &'static str = "phase";
    const ALL: &'static [Self] = &Self::ALL;

    fn value(self) -> &'static str {
        self.as_str()
    }
}

label! {
    /// How far a rollout is with an engine.
    RolloutStage: "state" {
        Waiting => "waiting",
        Moving => "moving",
        Moved => "moved",
        Failed => "failed",
        Unhealthy => "unhealthy",
        Skipped => "skipped",
        RolledBack => "rolled_back",
        Stuck => "stuck",
    }
}

impl RolloutStage {
    /// The number of engines with which a rollout is this far.
    pub(crate) const fn count(self, counts: &RolloutCounts) -> u64 {
        match self {
            Self::Waiting => counts.waiting,
            Self::Moving => counts.moving,
            Self::Moved => counts.moved,
            Self::Failed => counts.failed,
            Self::Unhealthy => counts.unhealthy,
            Self::Skipped => counts.skipped,
            Self::RolledBack => counts.rolled_back,
            Self::Stuck => counts.stuck,
        }
    }
}

label! {
    /// What became of an engine, or of the registry, in a job with backups.
    BackupOutcome: "outcome" {
        /// It was backed up, verified, restored or collected.
        Done => "done",
        /// There was nothing to do.
        Unchanged => "unchanged",
        Failed => "failed",
    }
}

impl Label for BackupAction {
    const NAME: &'static str = "action";
    const ALL: &'static [Self] = &[Self::BackUp, Self::Verify, Self::Restore, Self::Collect];

    fn value(self) -> &'static str {
        match self {
            Self::BackUp => "back_up",
            Self::Verify => "verify",
            Self::Restore => "restore",
            Self::Collect => "collect",
        }
    }
}

label! {
    /// How an admit ended.
    AdmitOutcome: "outcome" {
        /// The engine ran already.
        Running => "running",
        /// The engine runs after the admit waited for a boot.
        Started => "started",
        EngineNotFound => "engine_not_found",
        EngineSleeping => "engine_sleeping",
        EngineStopped => "engine_stopped",
        EngineUnhealthy => "engine_unhealthy",
        /// The product's rate limit was reached.
        RateLimited => "rate_limited",
        /// Another rule refused it, such as a quota or a suspension.
        Refused => "refused",
        /// The orchestrator, the registry or the backend failed, or had no capacity.
        Failed => "failed",
    }
}

label! {
    /// How an operation on an engine ended.
    OperationOutcome: "outcome" {
        Done => "done",
        /// A move to another version failed and was undone.
        RolledBack => "rolled_back",
        /// The engine was found in another state, or was repaired: its callers decide again.
        Stale => "stale",
        /// A delete took the engine over.
        Preempted => "preempted",
        Failed => "failed",
    }
}

label! {
    /// How a boot of an engine ended.
    BootOutcome: "outcome" {
        Ready => "ready",
        Exited => "exited",
        TimedOut => "timed_out",
        Backend => "backend",
        Registry => "registry",
        NoFreePort => "no_free_port",
        Keys => "keys",
    }
}

label! {
    /// The result of a health check.
    CheckResult: "result" {
        Healthy => "healthy",
        Unhealthy => "unhealthy",
    }
}

label! {
    /// Why a running engine was declared failed.
    FailureCause: "cause" {
        /// It exited by itself.
        Exit => "exit",
        /// It failed its health checks, or did not accept its key.
        Health => "health",
    }
}

label! {
    /// What reconciliation has repaired.
    RepairKind: "what" {
        Claim => "claim",
        Dead => "dead",
        Orphan => "orphan",
    }
}

label! {
    /// What an orchestrator does at the moment.
    Role: "role" {
        Active => "active",
        Standby => "standby",
        Starting => "starting",
    }
}

label! {
    /// The class of an HTTP status.
    StatusClass: "status" {
        Success => "2xx",
        Informational => "1xx",
        Redirection => "3xx",
        ClientError => "4xx",
        ServerError => "5xx",
    }
}

label! {
    /// Why an answer has the status 429.
    LimitCause: "cause" {
        RateLimited => "rate_limited",
        QuotaExceeded => "quota_exceeded",
        TokenLimit => "token_limit",
        /// The engine answered it, through the proxy.
        Engine => "engine",
    }
}

label! {
    /// A call of the backend.
    BackendCall: "operation" {
        IsRunning => "is_running",
        Ping => "ping",
        List => "list",
        HasData => "has_data",
        ListData => "list_data",
        Launch => "launch",
        Stop => "stop",
        Kill => "kill",
        RemoveInstance => "remove_instance",
        RemoveWithData => "remove_with_data",
        CopyBrain => "copy_brain",
        RestoreBrain => "restore_brain",
        BrainFormats => "brain_formats",
        CheckImage => "check_image",
        LogTail => "log_tail",
        ResourceLimits => "resource_limits",
    }
}

label! {
    /// Why a call of the backend failed.
    BackendErrorKind: "kind" {
        Unreachable => "unreachable",
        DataUnavailable => "data_unavailable",
        NoImage => "no_image",
        NoCapacity => "no_capacity",
        PortTaken => "port_taken",
        Superseded => "superseded",
        Failed => "failed",
        /// It was given up before it ended: its deadline passed, or its operation was taken over.
        Abandoned => "abandoned",
    }
}

label! {
    /// Why a call of the registry failed.
    RegistryErrorKind: "kind" {
        Unreachable => "unreachable",
        LostLeadership => "lost_leadership",
        /// Another operation had changed the row first; its change stands.
        ClaimLost => "claim_lost",
        Unreadable => "unreadable",
        Database => "database",
        Closed => "closed",
        Other => "other",
        /// It was given up before it ended.
        Abandoned => "abandoned",
    }
}

impl Label for Change {
    const NAME: &'static str = "operation";
    const ALL: &'static [Self] = &Self::ALL;

    fn value(self) -> &'static str {
        self.as_str()
    }
}

impl Label for EngineStatus {
    const NAME: &'static str = "state";
    const ALL: &'static [Self] = &Self::ALL;

    fn value(self) -> &'static str {
        self.as_str()
    }
}

impl AdmitOutcome {
    /// The outcome of an admit that ended with this code.
    pub(crate) const fn of_error(code: ErrorCode) -> Self {
        match code {
            ErrorCode::RateLimited => Self::RateLimited,
            code if code.status() < 500 => Self::Refused,
            _ => Self::Failed,
        }
    }
}

impl LimitCause {
    /// The cause of an answer 429 with this code; without a code it was passed on from an engine.
    pub(crate) const fn of(code: Option<ErrorCode>) -> Self {
        match code {
            Some(ErrorCode::QuotaExceeded) => Self::QuotaExceeded,
            Some(ErrorCode::TokenLimit) => Self::TokenLimit,
            Some(_) => Self::RateLimited,
            None => Self::Engine,
        }
    }
}

impl StatusClass {
    /// The class of `status`.
    pub(crate) const fn of(status: u16) -> Self {
        match status {
            ..=199 => Self::Informational,
            200..=299 => Self::Success,
            300..=399 => Self::Redirection,
            400..=499 => Self::ClientError,
            500.. => Self::ServerError,
        }
    }
}

impl BackendErrorKind {
    pub(super) const fn of(error: &BackendError) -> Self {
        match error {
            BackendError::Unreachable(_) => Self::Unreachable,
            BackendError::DataUnavailable(_) => Self::DataUnavailable,
            BackendError::NoImage(_) => Self::NoImage,
            BackendError::NoCapacity(_) => Self::NoCapacity,
            BackendError::PortTaken(_) => Self::PortTaken,
            BackendError::Superseded { .. } => Self::Superseded,
            BackendError::Failed(_) => Self::Failed,
        }
    }
}

impl RegistryErrorKind {
    pub(super) const fn of(error: &RegistryError) -> Self {
        match error {
            RegistryError::Unreachable(_) => Self::Unreachable,
            RegistryError::LostLeadership => Self::LostLeadership,
            RegistryError::ClaimLost { .. } => Self::ClaimLost,
            RegistryError::Unreadable { .. } => Self::Unreadable,
            RegistryError::Database(_) | RegistryError::HotRead(_) => Self::Database,
            RegistryError::Closed => Self::Closed,
            RegistryError::ProductGone
            | RegistryError::ProductDisabled { .. }
            | RegistryError::AnswerNotSealed(_)
            | RegistryError::AuditIncomplete => Self::Other,
        }
    }
}
