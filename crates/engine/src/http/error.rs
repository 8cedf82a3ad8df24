//! What a caller is told where the agent did not do what it was asked to: the one place that maps it.

use contract::ErrorCode;
use service::http::ApiError;

use crate::agent::AgentError;

impl From<AgentError> for ApiError {
    fn from(error: AgentError) -> Self {
        let code = match &error {
            AgentError::Invalid(_) => ErrorCode::InvalidRequest,
            AgentError::UnknownTask => ErrorCode::TaskNotFound,
            AgentError::UnknownMessage(_) => ErrorCode::MessageNotFound,
            AgentError::NotRunning => ErrorCode::TaskNotRunning,
            AgentError::NotPending => ErrorCode::HitlNotPending,
            AgentError::Busy => ErrorCode::TaskBusy,
            AgentError::TooManyTurns | AgentError::TooMuchWaiting => {
                return Self::new(ErrorCode::Overloaded, error.to_string()).retry_after(1);
            }
            AgentError::Stopping => {
                return Self::new(ErrorCode::ShuttingDown, error.to_string()).retry_after(1);
            }
            AgentError::Quiesced => {
                return Self::new(ErrorCode::Quiesced, error.to_string()).retry_after(1);
            }
            AgentError::Read(_) | AgentError::Unreadable(_) | AgentError::Write(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "A request failed.");
                return Self::internal();
            }
        };
        Self::new(code, error.to_string())
    }
}
