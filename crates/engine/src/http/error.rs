//! Maps the agent's errors to HTTP responses, in one place.

use api::ErrorCode;
use http_service::http::ApiError;
use mcp::McpError;

use crate::agent::AgentError;

/// The answer to a failed request about MCP servers and connections.
#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
pub(super) fn mcp_error(error: McpError) -> ApiError {
    let code = match &error {
        McpError::Invalid(_) => ErrorCode::InvalidRequest,
        McpError::UnknownServer(_) | McpError::UnknownUserServer(_) => ErrorCode::ServerNotFound,
        McpError::NotPermitted(_) => ErrorCode::UserServersNotPermitted,
        McpError::ServerExists(_) => ErrorCode::ServerExists,
        McpError::ServerLimit(_) => ErrorCode::ServerLimit,
        McpError::ToolsChanged(_) => ErrorCode::ToolsChanged,
        McpError::UnknownConnection => ErrorCode::ConnectionNotFound,
        McpError::NotConfigured(_) => ErrorCode::AssetsNotConfigured,
        McpError::InvalidState => ErrorCode::InvalidState,
        McpError::InvalidIssuer => ErrorCode::InvalidIssuer,
        McpError::Denied(_) => ErrorCode::OauthDenied,
        McpError::Unauthorized(_) | McpError::Failed(_) => ErrorCode::ServerFailed,
        McpError::Stopping => {
            return ApiError::new(ErrorCode::ShuttingDown, error.to_string()).retry_after(1);
        }
        McpError::Write(error) => return AgentError::Write(error.clone()).into(),
        McpError::Read(_) => {
            tracing::error!(error = &error as &dyn std::error::Error, "A request failed.");
            return ApiError::internal();
        }
    };
    ApiError::new(code, error.to_string())
}

impl From<AgentError> for ApiError {
    fn from(error: AgentError) -> Self {
        let code = match &error {
            AgentError::Invalid(_) | AgentError::NeverDue => ErrorCode::InvalidRequest,
            AgentError::ModelNotPermitted(_) => ErrorCode::ModelNotPermitted,
            AgentError::UnknownTask => ErrorCode::TaskNotFound,
            AgentError::UnknownMessage(_) => ErrorCode::MessageNotFound,
            AgentError::UnknownTurn(_) => ErrorCode::TurnNotFound,
            AgentError::QueueFull(_) => ErrorCode::QueueFull,
            AgentError::UnknownRecord(_) => ErrorCode::NotFound,
            AgentError::UnknownSchedule => ErrorCode::ScheduleNotFound,
            AgentError::UnknownDelivery => ErrorCode::DeliveryNotFound,
            AgentError::NoWebhook => ErrorCode::WebhookNotConfigured,
            AgentError::ScheduleExists => ErrorCode::ScheduleExists,
            AgentError::ScheduleLimit(_) => ErrorCode::ScheduleLimit,
            AgentError::UnknownSkill => ErrorCode::SkillNotFound,
            AgentError::PlatformSkill => ErrorCode::PlatformSkill,
            AgentError::FactReplaced(_) => ErrorCode::FactReplaced,
            AgentError::SkillExists(_) => ErrorCode::SkillExists,
            AgentError::TaskExists => ErrorCode::TaskExists,
            AgentError::NotRunning => ErrorCode::TaskNotRunning,
            AgentError::NotPending => ErrorCode::HitlNotPending,
            AgentError::UnknownApproval => ErrorCode::ApprovalNotFound,
            AgentError::ApprovalAnswered(_) => ErrorCode::ApprovalAnswered,
            AgentError::TaskBusy | AgentError::TurnsInProgress | AgentError::TurnNotEnded => {
                ErrorCode::TaskBusy
            }
            AgentError::CassetteTooLarge(_) => ErrorCode::PayloadTooLarge,
            AgentError::TooManyTurns
            | AgentError::DocumentsBusy
            | AgentError::TooManyCalls
            | AgentError::TooManyTransfers
            | AgentError::StoreBacklogFull
            | AgentError::TemporarilyUnreadable
            | AgentError::ScheduleInUse
            | AgentError::NoMemory(_) => {
                return Self::new(ErrorCode::Overloaded, error.to_string()).retry_after(1);
            }
            AgentError::UsageCapReached(cap) => {
                let refused = Self::new(ErrorCode::UsageCapReached, error.to_string());
                return match cap.retry_after_s {
                    Some(seconds) => refused.retry_after(seconds),
                    None => refused,
                };
            }
            AgentError::Stopping => {
                return Self::new(ErrorCode::ShuttingDown, error.to_string()).retry_after(1);
            }
            AgentError::Quiesced => {
                return Self::new(ErrorCode::Quiesced, error.to_string()).retry_after(1);
            }
            AgentError::Write(_) | AgentError::Staging(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "A request could not be stored.");
                let advice = "check the disk that holds the brain, then try again";
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
    use store::WriteError;

    use super::*;

    #[test]
    fn what_could_not_be_stored_says_why() {
        let full = WriteError { reason: "database or disk is full".into() };
        let (code, message) = ApiError::from(AgentError::Write(full)).into_parts();
        assert_eq!(code, ErrorCode::InternalError);
        assert!(message.contains("database or disk is full"), "{message}");
    }
}
