//! Error codes, their HTTP status, and the envelope of every non-2xx response.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A stable error code. Clients should decide by the code, never by the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    /// Malformed JSON, a missing field or an invalid value; the message names it.
    InvalidRequest,
    /// The engine's configuration has no such model; the message names those that it has.
    ModelNotPermitted,
    /// The catalog or the operator does not allow this tool.
    ToolDenied,
    /// The tool failed, or refused its input; the message says why.
    ToolFailed,
    /// The `state` of an authorization is unknown, was already used, or is older than ten minutes.
    InvalidState,
    /// An authorization response came from another authorization server than the one that was asked.
    InvalidIssuer,
    /// The authorization server, or the user there, denied access.
    OauthDenied,
    /// `X-Platform-Key` is missing or unknown.
    InvalidPlatformKey,
    /// `X-Admin-Key` is missing or wrong.
    InvalidAdminKey,
    /// `X-Engine-Key` is missing or wrong.
    InvalidEngineKey,
    /// The browser token is malformed, of another engine, or was not signed for this engine's current key.
    InvalidToken,
    /// The browser token has expired. The product's backend mints another one.
    TokenExpired,
    /// The browser token was revoked.
    TokenRevoked,
    /// The browser token does not permit this call, or not for this task.
    TokenScope,
    /// The product's policy forbids the action.
    PolicyDenied,
    /// The operator has disabled the product, or is deleting it.
    ProductDisabled,
    /// The skill comes with the engine: it can be neither changed nor deleted.
    PlatformSkill,
    /// The catalog does not permit the user's own tool servers, or not this one.
    UserServersNotPermitted,
    /// There is no such path.
    NotFound,
    /// There is no such product.
    ProductNotFound,
    /// The user has no engine.
    EngineNotFound,
    /// There is no such task, or no task yet.
    TaskNotFound,
    /// No turn is running on this task.
    TaskNotRunning,
    /// There is no such message in this task.
    MessageNotFound,
    /// There is no such turn in this task, or it is not queued any more.
    TurnNotFound,
    /// This task has no pending request, or not the one that was answered.
    HitlNotPending,
    /// This user's engine has no such browser token in force.
    TokenNotFound,
    /// The product has no such platform key in force.
    KeyNotFound,
    /// There is no such schedule.
    ScheduleNotFound,
    /// There is no such delivery to the webhook.
    DeliveryNotFound,
    /// The product has no such webhook.
    WebhookNotFound,
    /// There is no such rollout.
    RolloutNotFound,
    /// There is no such approval request in this task.
    ApprovalNotFound,
    /// There is no such skill.
    SkillNotFound,
    /// There is no such tool server, neither in the catalog nor of the user.
    ServerNotFound,
    /// There is no such connection to a tool server.
    ConnectionNotFound,
    /// There is no such file or folder.
    FileNotFound,
    /// There is no such upload: it was completed or cancelled, or is too old.
    UploadNotFound,
    /// The system does not permit access to the file, or it is neither a file nor a folder.
    FileNotAccessible,
    /// `POST /rpc` has no such method or operation.
    MethodNotFound,
    /// The path does not support this method; `Allow` lists the supported ones.
    MethodNotAllowed,
    /// The body of the request did not arrive in time.
    RequestTimeout,
    /// The slug is already in use.
    ProductSlugExists,
    /// Only a disabled product can be deleted.
    ProductNotDisabled,
    /// The product is being deleted, which cannot be undone.
    ProductDeleting,
    /// The confirmation is of another product, has expired, or the product was enabled since. Ask for another one.
    ConfirmationInvalid,
    /// Another rollout is under way.
    RolloutUnderWay,
    /// The rollout is over, or a later one has begun.
    RolloutOver,
    /// The user already has an engine.
    EngineAlreadyExists,
    /// The action needs a running engine.
    EngineNotRunning,
    /// The engine is already running.
    EngineAlreadyRunning,
    /// The approval request was answered, or its turn has ended.
    ApprovalAnswered,
    /// Another turn is running on this task.
    TaskBusy,
    /// A task of this id exists already.
    TaskExists,
    /// A schedule of this id exists already.
    ScheduleExists,
    /// A skill of this name exists already.
    SkillExists,
    /// A tool server of this name exists already, in the catalog or with another address.
    ServerExists,
    /// The server's tools are no longer those that the user was shown. Show them again.
    ToolsChanged,
    /// The fact is no longer in force; the message names the one that is.
    FactReplaced,
    /// What is in the file's place does not permit the change: a folder, for example, or a folder that is not
    /// empty.
    FileConflict,
    /// The upload has received another number of bytes than the request assumes; `Upload-Offset` says how
    /// many.
    UploadConflict,
    /// The catalog names no webhook.
    WebhookNotConfigured,
    /// The call with this `Idempotency-Key` is still under way, or the caller has too many of them. Repeat it after
    /// `Retry-After`.
    IdempotencyKeyInUse,
    /// Another request was made with this `Idempotency-Key`. Each call needs a key of its own.
    IdempotencyKeyReused,
    /// A condition of the request (`If-Match`, `If-None-Match`) does not hold.
    PreconditionFailed,
    /// The file is shorter than the requested range.
    RangeNotSatisfiable,
    /// The body exceeds the size limit.
    PayloadTooLarge,
    /// The product has as many engines as its policy allows. Do not retry.
    QuotaExceeded,
    /// The product's request rate is exceeded. Retry with back-off, honouring `Retry-After`.
    RateLimited,
    /// The queue of the task, or all queues of the engine, are full; the message names the limit.
    QueueFull,
    /// The engine has as many schedules as it may have. Delete one first.
    ScheduleLimit,
    /// The engine has as many browser tokens in force as it may have. `Retry-After` says when one expires.
    TokenLimit,
    /// The product has as many platform keys in force as it may have. Revoke one first.
    KeyLimit,
    /// The product has as many webhooks as it may have. Delete one first.
    WebhookLimit,
    /// The user has as many tool servers as the catalog permits. Delete one first.
    ServerLimit,
    /// A cap on the usage of the day or of the task is reached. `Retry-After` says when a day's cap begins again.
    UsageCapReached,
    /// An unexpected failure.
    InternalError,
    /// The backend that runs the engines failed. Retry at most once.
    BackendError,
    /// The model's answer does not match the schema of the request, even after one correction; the message says where.
    OutputInvalid,
    /// A tool server or its authorization server cannot be reached, or refuses; the message says why.
    ServerFailed,
    /// Credentials cannot be stored: the engine has no key to seal them with.
    AssetsNotConfigured,
    /// The service is starting or is the standby. Retry with back-off.
    StartingUp,
    /// There is no free port in the engine port range.
    PortExhaustion,
    /// The host or its network is full.
    CapacityExhausted,
    /// The operator keeps the deployment under maintenance; the message is theirs. Engines that run are admitted.
    Maintenance,
    /// The service is stopping.
    ShuttingDown,
    /// The engine is about to be put to sleep. Retry with an admit, which wakes it.
    Quiesced,
    /// Too many turns are running.
    Overloaded,
    /// The engine was not healthy within the boot timeout. Do not retry.
    BootTimeout,
    /// The engine's quota of files is used up, or its disk is full. Retry once files have been deleted.
    StorageFull,
}

impl ErrorCode {
    /// Returns the HTTP status of the code.
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidRequest
            | Self::ModelNotPermitted
            | Self::ToolDenied
            | Self::ToolFailed
            | Self::InvalidState
            | Self::InvalidIssuer
            | Self::OauthDenied => 400,
            Self::InvalidPlatformKey
            | Self::InvalidAdminKey
            | Self::InvalidEngineKey
            | Self::InvalidToken
            | Self::TokenExpired
            | Self::TokenRevoked => 401,
            Self::PolicyDenied
            | Self::ProductDisabled
            | Self::PlatformSkill
            | Self::FileNotAccessible
            | Self::UserServersNotPermitted
            | Self::TokenScope => 403,
            Self::NotFound
            | Self::ProductNotFound
            | Self::EngineNotFound
            | Self::TaskNotFound
            | Self::TaskNotRunning
            | Self::MessageNotFound
            | Self::TurnNotFound
            | Self::HitlNotPending
            | Self::ApprovalNotFound
            | Self::SkillNotFound
            | Self::TokenNotFound
            | Self::KeyNotFound
            | Self::ScheduleNotFound
            | Self::DeliveryNotFound
            | Self::WebhookNotFound
            | Self::RolloutNotFound
            | Self::ServerNotFound
            | Self::ConnectionNotFound
            | Self::FileNotFound
            | Self::UploadNotFound
            | Self::MethodNotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::ProductSlugExists
            | Self::ProductNotDisabled
            | Self::ProductDeleting
            | Self::ConfirmationInvalid
            | Self::RolloutUnderWay
            | Self::RolloutOver
            | Self::EngineAlreadyExists
            | Self::EngineNotRunning
            | Self::EngineAlreadyRunning
            | Self::ApprovalAnswered
            | Self::TaskBusy
            | Self::TaskExists
            | Self::ScheduleExists
            | Self::SkillExists
            | Self::ServerExists
            | Self::ToolsChanged
            | Self::FactReplaced
            | Self::FileConflict
            | Self::UploadConflict
            | Self::WebhookNotConfigured
            | Self::IdempotencyKeyInUse => 409,
            Self::PreconditionFailed => 412,
            Self::PayloadTooLarge => 413,
            Self::RangeNotSatisfiable => 416,
            Self::IdempotencyKeyReused => 422,
            Self::QuotaExceeded
            | Self::RateLimited
            | Self::QueueFull
            | Self::ScheduleLimit
            | Self::ServerLimit
            | Self::TokenLimit
            | Self::KeyLimit
            | Self::WebhookLimit
            | Self::UsageCapReached => 429,
            Self::InternalError => 500,
            Self::BackendError | Self::OutputInvalid | Self::ServerFailed => 502,
            Self::AssetsNotConfigured
            | Self::StartingUp
            | Self::PortExhaustion
            | Self::CapacityExhausted
            | Self::Maintenance
            | Self::ShuttingDown
            | Self::Quiesced
            | Self::Overloaded => 503,
            Self::BootTimeout => 504,
            Self::StorageFull => 507,
        }
    }
}

/// Writes the code's name on the wire.
impl fmt::Display for ErrorCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// The body of every non-2xx response: `{"error": {"code": …, "message": …}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// The error, for programs (`code`) and for people (`message`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// The stable code.
    pub code: ErrorCode,
    /// What is wrong, where, and what to do. Not meant for matching.
    pub message: String,
}

impl ErrorBody {
    /// Creates the envelope with `code` and `message`.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { error: ErrorDetail { code, message: message.into() } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_envelope_is_nested_and_codes_are_upper_case() {
        let body = ErrorBody::new(ErrorCode::EngineNotFound, "no engine");
        assert_eq!(ErrorCode::EngineNotFound.to_string(), "ENGINE_NOT_FOUND");
        let json = serde_json::to_value(&body).unwrap();
        let expected = serde_json::json!({"error": {"code": "ENGINE_NOT_FOUND", "message": "no engine"}});
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<ErrorBody>(json).unwrap(), body);
    }
}
