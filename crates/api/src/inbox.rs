//! The inbox: the questions of a product's engines that wait for a person.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::event::HitlKind;
use crate::orchestrator::PageLimit;
use crate::{EngineId, HitlId, TaskId, Timestamp, TurnId, UserId};

/// The most questions that an engine reports, the oldest ones.
pub const MAX_QUESTIONS: usize = 100;
/// The most bytes of an engine's report.
pub const MAX_REPORT_BYTES: usize = 48 * 1024;

/// Result of the telemetry operation `waiting`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingQuestions {
    /// The questions, oldest first: at most 100, and at most 48 KiB.
    pub questions: Vec<WaitingQuestion>,
}

/// A question that waits for a person. It has no content: the engine has that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingQuestion {
    /// The request's id.
    pub request_id: HitlId,
    /// The task whose agent is paused.
    pub task_id: TaskId,
    /// The turn that waits.
    pub turn_id: TurnId,
    /// What kind of answer is needed.
    pub kind: HitlKind,
    /// The tool that needs an approval; null for a question.
    #[schema(required)]
    pub tool: Option<String>,
    /// The title of the conversation; null if it has none.
    #[schema(required)]
    pub title: Option<String>,
    /// When it was asked.
    pub since: Timestamp,
    /// When the turn ends if nobody answers.
    pub expires_at: Timestamp,
}

/// A question in a product's inbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InboxQuestion {
    /// The engine that asks.
    pub engine_id: EngineId,
    /// The engine's user.
    pub user_id: UserId,
    /// The question.
    #[serde(flatten)]
    pub question: WaitingQuestion,
}

/// Query of `GET /inbox`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ListInbox {
    /// Page size; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PageLimit>,
    /// Only questions after the one with this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<HitlId>,
    /// Only questions of this user's engine, which is asked first if it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
}

/// Response of `GET /inbox`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Inbox {
    /// The page, oldest question first.
    pub questions: Vec<InboxQuestion>,
}
