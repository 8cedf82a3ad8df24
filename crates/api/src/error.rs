//! Error codes, their HTTP status, and the envelope that every non-2xx answer has.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A stable error code. Clients decide by it, never by the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    /// Malformed JSON, a missing field or an invalid value; the message names it.
    InvalidRequest,
    /// The catalog or the operator does not let this tool be used.
    ToolDenied,
    /// The tool failed, or refused its input; the message says why.
    ToolFailed,
    /// The `state` of an authorization is unknown, was used already, or is older than ten minutes.
    InvalidState,
    /// An authorization was answered by another authorization server than the one that was asked.
    InvalidIssuer,
    /// The authorization server, or the person there, gave no leave.
    OauthDenied,
    /// `X-Platform-Key` missing or unknown.
    InvalidPlatformKey,
    /// `X-Admin-Key` missing or wrong.
    InvalidAdminKey,
    /// `X-Engine-Key` missing or wrong.
    InvalidEngineKey,
    /// The product's policy forbids the action.
    PolicyDenied,
    /// The skill comes with the engine: it can be neither changed nor deleted.
    PlatformSkill,
    /// No such path.
    NotFound,
    /// No such product.
    ProductNotFound,
    /// No engine for the user.
    EngineNotFound,
    /// No such task, or none yet.
    TaskNotFound,
    /// No turn runs on this task.
    TaskNotRunning,
    /// No such message in this task.
    MessageNotFound,
    /// Nothing waits for a person on this task, or not what was answered.
    HitlNotPending,
    /// No such skill.
    SkillNotFound,
    /// The catalog names no such tool server.
    ServerNotFound,
    /// There is no such connection to a tool server.
    ConnectionNotFound,
    /// `POST /rpc` knows no such method or operation.
    MethodNotFound,
    /// The path exists, the method does not; `Allow` lists those that do.
    MethodNotAllowed,
    /// The body of the request did not come in time.
    RequestTimeout,
    /// The slug is in use.
    ProductSlugExists,
    /// Provision for a user that has an engine.
    EngineAlreadyExists,
    /// The action needs a running engine.
    EngineNotRunning,
    /// Start of a running engine.
    EngineAlreadyRunning,
    /// Another turn is running on this task.
    TaskBusy,
    /// A skill of this name is there.
    SkillExists,
    /// The body is over the limit.
    PayloadTooLarge,
    /// The product has as many engines as its policy allows. Do not retry.
    QuotaExceeded,
    /// Over the product's request rate. Retry with back-off, honouring `Retry-After`.
    RateLimited,
    /// Unexpected failure.
    InternalError,
    /// The backend that runs the engines failed. Retry once at most.
    BackendError,
    /// A tool server or its authorization server cannot be reached, or refuses; the message says why.
    ServerFailed,
    /// Credentials cannot be kept: the engine has no key to seal them under.
    AssetsNotConfigured,
    /// The service is starting or is the standby. Retry with back-off.
    StartingUp,
    /// No free port in the engine port range.
    PortExhaustion,
    /// The host or its network is full.
    CapacityExhausted,
    /// The service is stopping.
    ShuttingDown,
    /// The engine is about to be put to sleep. Retry by way of admit, which wakes it.
    Quiesced,
    /// Too many turns at once.
    Overloaded,
    /// The engine was not healthy within the boot timeout. Do not retry.
    BootTimeout,
}

impl ErrorCode {
    /// The HTTP status that goes with the code.
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidRequest
            | Self::ToolDenied
            | Self::ToolFailed
            | Self::InvalidState
            | Self::InvalidIssuer
            | Self::OauthDenied => 400,
            Self::InvalidPlatformKey | Self::InvalidAdminKey | Self::InvalidEngineKey => 401,
            Self::PolicyDenied | Self::PlatformSkill => 403,
            Self::NotFound
            | Self::ProductNotFound
            | Self::EngineNotFound
            | Self::TaskNotFound
            | Self::TaskNotRunning
            | Self::MessageNotFound
            | Self::HitlNotPending
            | Self::SkillNotFound
            | Self::ServerNotFound
            | Self::ConnectionNotFound
            | Self::MethodNotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::ProductSlugExists
            | Self::EngineAlreadyExists
            | Self::EngineNotRunning
            | Self::EngineAlreadyRunning
            | Self::TaskBusy
            | Self::SkillExists => 409,
            Self::PayloadTooLarge => 413,
            Self::QuotaExceeded | Self::RateLimited => 429,
            Self::InternalError => 500,
            Self::BackendError | Self::ServerFailed => 502,
            Self::AssetsNotConfigured
            | Self::StartingUp
            | Self::PortExhaustion
            | Self::CapacityExhausted
            | Self::ShuttingDown
            | Self::Quiesced
            | Self::Overloaded => 503,
            Self::BootTimeout => 504,
        }
    }
}

/// As it is on the wire.
impl fmt::Display for ErrorCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// The body of every non-2xx answer: `{"error": {"code": …, "message": …}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong, for programs (`code`) and for people (`message`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// The stable code.
    pub code: ErrorCode,
    /// What is wrong, where, and what to do. Not to be matched.
    pub message: String,
}

impl ErrorBody {
    /// The envelope around `code` and `message`.
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
