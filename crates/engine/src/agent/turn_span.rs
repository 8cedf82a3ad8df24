//! The span of a turn's work: one from each beginning or resumption to the next end or question to the user. All of a
//! turn's spans belong to the trace of the request that opened it, also after a restart of the engine.

use serde_json::Value;
use traces::{Span, gen_ai};

use super::interrupt::{Interrupt, StepsOutcome};
use super::journal::Journal;

/// Begins the span of the turn's work from now on.
pub(super) fn start(journal: &Journal) -> Span {
    if !traces::is_on() {
        return Span::default();
    }
    let span = gen_ai::invoke_agent(gen_ai::MAIN_AGENT, journal.thread().turn().trace_parent());
    span.set("roundhouse.turn.id", || journal.turn_id().to_string());
    span
}

/// Says how the work ended; `None` if it panicked.
pub(super) fn set_outcome(span: &Span, ended: Option<&Result<StepsOutcome, Interrupt>>) {
    let outcome = match ended {
        Some(Ok(StepsOutcome::Complete(_))) => "completed",
        Some(Ok(StepsOutcome::AwaitingHuman)) => "awaiting_human",
        Some(Err(Interrupt::Cancelled(_))) => "cancelled",
        Some(Err(Interrupt::EngineStopping)) => "engine_stopping",
        Some(Err(Interrupt::Failed(failure))) => {
            // The code as clients see it.
            let code = serde_json::to_value(failure.code).ok();
            let code = code.as_ref().and_then(Value::as_str).unwrap_or("failed");
            span.fail(code.to_owned());
            "failed"
        }
        Some(Err(Interrupt::StoreUnavailable(_))) => {
            span.fail("store_unavailable");
            "store_unavailable"
        }
        None => {
            span.fail("panic");
            "failed"
        }
    };
    span.set("roundhouse.turn.outcome", || outcome);
}
