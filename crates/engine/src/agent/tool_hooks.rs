//! Runs the hooks of the catalog around tool calls, and commits what they decide before it takes effect.
//!
//! A decision that is committed is final: a resumed turn does not ask again. A hook whose decision was not
//! committed when the engine died is run again.

use std::sync::Arc;

use api::event::Event;
use api::memory::Source;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use llm::{ToolOutcome, ToolUse};
use serde_json::{Map, Value, json};
use store::WriteError;
use store::event_log::Commit;
use store::steps::Step;
use tools::hooks::{AfterRun, BeforeRun, HookedCall, ToolHooks};

use super::call_events::{tool_call_event, tool_result_event};
use super::conversation::Conversation;
use super::interrupt::Interrupt;
use super::journal::Journal;
use super::turn_context::TurnDeps;

/// A call whose hooks are to be run now.
pub(super) enum DueHooks {
    /// Those before it.
    Before {
        call: ToolUse,
        /// Whether clients know the call.
        sent: bool,
    },
    /// Those after it.
    After { call: ToolUse, outcome: ToolOutcome, source: Source },
}

/// What the hooks of a call have decided.
enum Decided {
    Before { call: ToolUse, sent: bool, run: BeforeRun },
    After { call: ToolUse, outcome: ToolOutcome, source: Source, run: AfterRun },
}

/// Runs the hooks of these calls at the same time, and commits what they decide as each call's are done.
pub(super) async fn run(
    deps: &TurnDeps,
    conversation: &mut Conversation<'_>,
    due: Vec<DueHooks>,
) -> Result<(), Interrupt> {
    let Conversation { agent, journal, inbox } = conversation;
    let context = context(journal, agent.name());
    let mut running: FuturesUnordered<_> =
        due.into_iter().map(|due| run_hooks(deps, due, context.clone())).collect();
    while let Some(decided) = inbox.run_until_stop(journal, running.next()).await? {
        commit(journal, decided).await?;
    }
    Ok(())
}

/// What every hook is sent about the turn.
fn context(journal: &Journal, agent: Option<&str>) -> Map<String, Value> {
    let overrides = journal.thread().turn().overrides();
    let metadata = overrides.and_then(|overrides| overrides.metadata.as_ref());
    let fields = [
        ("task_id", json!(journal.task_id())),
        ("turn_id", json!(journal.turn_id())),
        ("agent", json!(agent)),
        ("metadata", json!(metadata)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

async fn run_hooks(deps: &TurnDeps, due: DueHooks, context: Map<String, Value>) -> Decided {
    // The semaphore is never closed.
    let _permit = Arc::clone(&deps.services.tool_permits).acquire_owned().await;
    let hooks: &ToolHooks = &deps.snapshot.hooks;
    let hooked = |call: &ToolUse| HookedCall {
        call_id: call.call_id,
        tool: call.name.clone(),
        input: call.input.clone(),
        context,
    };
    match due {
        DueHooks::Before { call, sent } => {
            let validate = |input: &Value| deps.snapshot.toolbox.validate_input(&call.name, input);
            let run = hooks.run_before(&hooked(&call), validate).await;
            Decided::Before { call, sent, run }
        }
        DueHooks::After { call, outcome, source } => {
            let result = outcome.error.as_deref().map_or(Ok(outcome.output.as_str()), Err);
            let run = hooks.run_after(&hooked(&call), result).await;
            Decided::After { call, outcome, source, run }
        }
    }
}

async fn commit(journal: &mut Journal, decided: Decided) -> Result<(), WriteError> {
    let (mut steps, mut events) = (Vec::new(), Vec::new());
    match decided {
        Decided::Before { mut call, sent, run } => {
            let call_id = call.call_id;
            let source = if run.adds_text() { Source::Tool } else { Source::Agent };
            let BeforeRun { refusal, input, notes, reports } = run;
            if let Some(input) = &input {
                call.input = input.clone();
            }
            steps.push(Step::Hooked { call_id, input, notes, source: source.into() });
            let reports = reports.into_iter().map(Event::ToolHook);
            if let Some(reason) = refusal {
                let outcome = ToolOutcome::new(String::new(), Some(reason), 0);
                events.extend((!sent).then(|| tool_call_event(&call)));
                events.extend(reports);
                events.push(tool_result_event(&call, &outcome));
                steps.push(Step::Resulted { call_id, outcome, memory: Vec::new(), source: source.into() });
            } else {
                events.extend(reports);
            }
        }
        Decided::After { call, outcome, source, run } => {
            let call_id = call.call_id;
            let AfterRun { refusal, result, notes, reports } = run;
            let source = if refusal.is_some() || result.is_some() { Source::Tool } else { source };
            if !notes.is_empty() {
                steps.push(Step::Hooked { call_id, input: None, notes, source: Source::Tool.into() });
            }
            let outcome = checked_outcome(outcome, refusal, result);
            events.extend(reports.into_iter().map(Event::ToolHook));
            events.push(tool_result_event(&call, &outcome));
            steps.push(Step::Resulted { call_id, outcome, memory: Vec::new(), source: source.into() });
        }
    }
    journal.commit_all(Commit::new(), steps, events).await
}

/// The outcome of a tool as its hooks let it pass.
fn checked_outcome(outcome: ToolOutcome, refusal: Option<String>, result: Option<String>) -> ToolOutcome {
    let ToolOutcome { output, error, duration_ms, media } = outcome;
    // Hooks see the text only. Where they change that, what it was about is gone.
    let media = if refusal.is_some() || result.is_some() { Vec::new() } else { media };
    let (output, error) = match (refusal, result, error) {
        (Some(refusal), _, _) => (String::new(), Some(refusal)),
        (None, Some(result), None) => (result, None),
        (None, Some(result), Some(_)) => (String::new(), Some(result)),
        (None, None, error) => (output, error),
    };
    ToolOutcome { output, error, duration_ms, media }
}
