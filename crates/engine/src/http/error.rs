//! Maps the agent's errors to HTTP responses, in one place.

use api::ErrorCode;
use http_service::http::ApiError;

use crate::agent::AgentError;

impl From<AgentError> for ApiError {
    fn from(error: AgentError) -> Self {
        let code = match &error {
            AgentError::Invalid(_) => ErrorCode::InvalidRequest,
            AgentError::UnknownTask => ErrorCode::TaskNotFound,
            AgentError::UnknownMessage(_) => ErrorCode::MessageNotFound,
            AgentError::UnknownRecord(_) => ErrorCode::NotFound,
            AgentError::UnknownSkill => ErrorCode::SkillNotFound,
            AgentError::PlatformSkill => ErrorCode::PlatformSkill,
            AgentError::SkillExists(_) => ErrorCode::SkillExists,
            AgentError::NotRunning => ErrorCode::TaskNotRunning,
            AgentError::NotPending => ErrorCode::HitlNotPending,
            AgentError::Busy | AgentError::TurnsInProgress => ErrorCode::TaskBusy,
            AgentError::TooManyTurns
            | AgentError::TooManyCalls
            | AgentError::TooManyTransfers
            | AgentError::StoreBacklogFull
            | AgentError::TemporarilyUnreadable
            | AgentError::NoMemory(_) => {
                return Self::new(ErrorCode::Overloaded, error.to_string()).retry_after(1);
            }
            AgentError::Stopping => {
                return Self::new(ErrorCode::ShuttingDown, error.to_string()).retry_after(1);
            }
            AgentError::Quiesced => {
                return Self::new(ErrorCode::Quiesced, error.to_string()).retry_after(1);
            }
            AgentError::Write(_) | AgentError::Staging(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "A request could not be stored.");
                let advice = "look at the disk that holds the brain, then ask again";
                return Self::new(ErrorCode::InternalError, format!("{error}; {advice}"));
            }
            AgentError::Read(_) | AgentError::Unreadable(_) | AgentError::Workspace(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "A request failed.");
                return Self::internal();
            }
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use crate::store::WriteError;

    use super::*;

    #[test]
    fn what_could_not_be_stored_says_why() {
        let full = WriteError { reason: "database or disk is full".into() };
        let (code, message) = ApiError::from(AgentError::Write(full)).into_parts();
        assert_eq!(code, ErrorCode::InternalError);
        assert!(message.contains("database or disk is full"), "{message}");
    }
}
