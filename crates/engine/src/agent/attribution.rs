//! Attributes steps and events of a turn to the conversation that they belong to: the turn's own, or that of
//! the sub-agent which a call runs.

use api::CallId;
use api::event::{AgentEvent, Event};
use store::steps::Step;

/// Attributes a step to the sub-agent that the call `owner` runs, or to the turn itself.
pub(super) fn wrap_step(owner: Option<CallId>, step: Step) -> Step {
    match owner {
        Some(call_id) => Step::Delegated { call_id, did: Box::new(step) },
        None => step,
    }
}

/// Attributes an event to the sub-agent that the call runs, unless it concerns the turn as a whole.
pub(super) fn wrap_event(call_id: CallId, agent: &str, event: Event) -> Event {
    match &event {
        Event::HitlRequest(_)
        | Event::HitlResolved(_)
        | Event::ApprovalRequest(_)
        | Event::ApprovalResolved(_)
        | Event::UsageCap(_)
        | Event::WorkingMemoryUpdate(_)
        | Event::Usage(_)
        | Event::Error(_)
        | Event::BusyUpdate(_)
        | Event::Heartbeat(_)
        | Event::AgentEvent(_) => event,
        // An event can always be serialized as JSON.
        _ => AgentEvent::new(call_id, agent, &event).map_or(event, Event::AgentEvent),
    }
}

/// The agent that a call of `run_agent` names.
pub(super) fn agent_name(input: &serde_json::Value) -> &str {
    input.get("agent").and_then(serde_json::Value::as_str).unwrap_or_default()
}
