//! What a schedule's definition means: its limits and the request of a run. Pure.

use api::engine::Execute;
use api::schedules::{MAX_DEFINITION_BYTES, ScheduleDefinition};
use api::turns::OnBusy;
use api::{ClientRequestId, TaskId};

use super::AgentError;

/// Refuses a definition that is too large.
pub(super) fn check_size(definition: &ScheduleDefinition) -> Result<(), AgentError> {
    // Texts and numbers can always be serialized.
    let bytes = serde_json::to_vec(definition).map_or(usize::MAX, |json| json.len());
    if bytes <= MAX_DEFINITION_BYTES {
        return Ok(());
    }
    let kib = MAX_DEFINITION_BYTES / 1024;
    Err(AgentError::Invalid(format!("`options`: with the message, it must be at most {kib} KiB long")))
}

/// The request of a run in the task `task_id`.
pub(super) fn request(
    definition: &ScheduleDefinition,
    task_id: TaskId,
    client_request_id: Option<ClientRequestId>,
) -> Execute {
    let options = &definition.options;
    let overrides = options.overrides.clone();
    Execute {
        direct: options.direct,
        super_thinking: options.super_thinking,
        max_turns: options.max_turns,
        client_request_id,
        on_busy: OnBusy::Queue,
        background: true,
        model: overrides.model,
        effort: overrides.effort,
        instructions: overrides.instructions,
        allowed_tools: overrides.allowed_tools,
        max_output_tokens: overrides.max_output_tokens,
        max_tokens: overrides.max_tokens,
        max_cost_usd: overrides.max_cost_usd,
        metadata: overrides.metadata,
        response_format: overrides.response_format,
        ..Execute::new(task_id, definition.message.as_str())
    }
}

/// A task id for checks that no task matters to.
pub(super) fn sample_task() -> Result<TaskId, AgentError> {
    TaskId::new("schedule").map_err(|error| AgentError::Invalid(error.to_string()))
}
