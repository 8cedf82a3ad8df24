//! Approvals as API callers list and answer them, and the lasting ones.

use api::approvals::{ApprovalGrant, ApprovalRequest, ApprovalRespond, ApprovalResponded};
use api::{HitlId, TaskId};
use store::{ApprovalState, Brain, TaskRow};

use super::approval_answer::ApprovalAnswer;
use super::hitl::HitlResponse;
use super::{Agent, AgentError};

impl Agent {
    /// The calls of a task that wait for an approval, oldest first.
    pub async fn approvals(&self, task_id: TaskId) -> Result<Vec<ApprovalRequest>, AgentError> {
        let read = move |brain: &Brain| match brain.task(&task_id)? {
            Some(task) => Ok(Some(brain.open_approvals(task.row)?)),
            None => Ok(None),
        };
        self.read(read).await?.ok_or(AgentError::UnknownTask)
    }

    /// Decides about a call that waits for an approval.
    pub async fn answer_approval(
        &self,
        task_id: TaskId,
        request_id: &str,
        respond: ApprovalRespond,
    ) -> Result<ApprovalResponded, AgentError> {
        let task = self.brain.task(&task_id)?.ok_or(AgentError::UnknownTask)?.row;
        let request_id: HitlId = request_id.parse().map_err(|_| AgentError::UnknownApproval)?;
        self.check_open(task, request_id)?;
        let decision = respond.decision;
        let (answer, message) = ApprovalAnswer::parse(respond)?;
        let response = HitlResponse::for_approval(request_id, answer, message);
        let now = self.services.clock.monotonic();
        match self.refine_error(&task_id, self.registry.respond(&task_id, response, now).await) {
            Ok(request_id) => Ok(ApprovalResponded { request_id, decision }),
            // Another answer or the end of the turn came first.
            Err(AgentError::NotRunning | AgentError::NotPending) => {
                self.check_open(task, request_id)?;
                Err(AgentError::ApprovalAnswered("its turn has ended".into()))
            }
            Err(error) => Err(error),
        }
    }

    fn check_open(&self, task: TaskRow, request_id: HitlId) -> Result<(), AgentError> {
        match self.brain.approval_state(task, request_id)? {
            None => Err(AgentError::UnknownApproval),
            Some(ApprovalState::Open) => Ok(()),
            Some(ApprovalState::Decided(decision)) => {
                Err(AgentError::ApprovalAnswered(format!("it was decided before: `{decision}`")))
            }
            Some(ApprovalState::Ended) => Err(AgentError::ApprovalAnswered("its turn has ended".into())),
        }
    }

    /// The user's lasting approvals.
    pub async fn approval_grants(&self) -> Result<Vec<ApprovalGrant>, AgentError> {
        self.read(Brain::approval_grants).await
    }
}
