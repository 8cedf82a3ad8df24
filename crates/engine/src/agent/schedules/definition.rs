//! What a schedule's definition means: its due times and the request of a run. Pure.

use api::engine::Execute;
use api::schedules::{MAX_DEFINITION_BYTES, ScheduleDefinition, ScheduleTime};
use api::turns::OnBusy;
use api::{ClientRequestId, TaskId, Timestamp};
use schedule::{Cron, Timing, Zone};

use super::AgentError;

/// Sets the start of an interval without one: the first due time comes when it has passed once.
pub(super) fn set_start(when: &mut ScheduleTime, now: Timestamp) {
    if let (Some(every), None) = (when.every_seconds, when.start) {
        when.start = Some(after_seconds(now, every.get()));
    }
}

fn after_seconds(at: Timestamp, seconds: i64) -> Timestamp {
    Timestamp::from_unix_ms(at.unix_ms().saturating_add(seconds.saturating_mul(1_000)))
}

/// The due times of a schedule that was set at `set_at`. Fails with a message for the caller.
pub(super) fn timing(when: &ScheduleTime, set_at: Timestamp) -> Result<Timing, String> {
    let ScheduleTime { cron, time_zone, at, every_seconds, start } = when;
    if time_zone.is_some() && cron.is_none() {
        return Err("`when.time_zone`: can be given only with `cron`".to_owned());
    }
    if start.is_some() && every_seconds.is_none() {
        return Err("`when.start`: can be given only with `every_seconds`".to_owned());
    }
    match (cron, at, every_seconds) {
        (Some(cron), None, None) => {
            let cron = Cron::parse(cron).map_err(|error| format!("`when.cron`: {error}"))?;
            let zone = Zone::find(time_zone.as_deref().unwrap_or("UTC"));
            Ok(Timing::Cron(cron, zone.map_err(|error| format!("`when.time_zone`: {error}"))?))
        }
        (None, Some(at), None) => Ok(Timing::Once(*at)),
        (None, None, Some(every)) => {
            let seconds = every.get();
            Ok(Timing::Every { start: start.unwrap_or_else(|| after_seconds(set_at, seconds)), seconds })
        }
        _ => Err("`when`: exactly one of `cron`, `at` and `every_seconds` must be given".to_owned()),
    }
}

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
