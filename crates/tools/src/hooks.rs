//! Runs the catalog's hooks around a tool call, one after another, each within its time and all within a limit.
//!
//! Before a tool, a hook may refuse the call, change its input, or add a note. After it, a hook may withhold or
//! replace the result, or add a note. What each hook decided is folded by [`BeforeRun`] and [`AfterRun`], which are
//! pure; what it wrote is data from a program or a server, so its words count as untrusted.

mod answer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use answer::HookAnswer;
use api::CallId;
use api::event::{HookDecision, HookPhase, ToolHook};
use catalog::{Hook, HookAction, Hooks};
use resources::memory_budget::MemoryBudget;
use resources::text::first_chars;
use sandbox::{Command, ExitStatus, Limits};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};

use super::process::{ProcessOutcome, ProcessPermits, ProcessRunner};
use super::{ToolDeps, ToolError, http_tool, process_runner};

/// How long all hooks of a call may take, before it and after it.
const MAX_TOTAL_TIME: Duration = Duration::from_mins(1);
/// How long after its time limit the sandbox ends a program, should its caller not have done so.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// The maximum size of a hook's answer, in bytes. It may hold a whole new input.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// The most programs of hooks that run at a time. They do not wait for those of tools, because their time runs.
const MAX_HOOK_PROGRAMS: usize = 16;
/// The home of these programs: there is none.
const NO_HOME: &str = "/nonexistent";
/// The longest changed input that the model is shown, in characters.
const MAX_SHOWN_INPUT_CHARS: usize = 2_000;

/// The hooks of a catalog, and what they run with.
pub struct ToolHooks {
    hooks: Hooks,
    programs: Option<ProcessRunner>,
    memory_budget: MemoryBudget,
}

/// A call that hooks are to see.
#[derive(Clone, Debug)]
pub struct HookedCall {
    /// The id of the call.
    pub call_id: CallId,
    /// The name of the tool.
    pub tool: String,
    /// The input that runs, or ran.
    pub input: Value,
    /// What else a hook is sent: task, turn, agent, the request's metadata.
    pub context: Map<String, Value>,
}

/// What the hooks before a call have decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BeforeRun {
    /// Why the call is not run, if one refused it.
    pub refusal: Option<String>,
    /// The input that replaces the call's.
    pub input: Option<Value>,
    /// What the model reads with the result.
    pub notes: Vec<String>,
    /// What to tell clients.
    pub reports: Vec<ToolHook>,
}

/// What the hooks after a call have decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AfterRun {
    /// Why the result is withheld, if one did that.
    pub refusal: Option<String>,
    /// The text that replaces the result.
    pub result: Option<String>,
    /// What the model reads with the result.
    pub notes: Vec<String>,
    /// What to tell clients.
    pub reports: Vec<ToolHook>,
}

impl ToolHooks {
    /// Creates the hooks of the catalog in `setup`.
    pub fn new(setup: &ToolDeps) -> Self {
        Self {
            hooks: setup.catalog.hooks.clone(),
            programs: process_runner(setup, ProcessPermits::new(MAX_HOOK_PROGRAMS)),
            memory_budget: setup.memory_budget.clone(),
        }
    }

    /// Whether hooks are to see the calls of a tool. If the hooks are unknown, they are to see every call, refuse it and
    /// withhold its result.
    pub fn apply_to(&self, phase: HookPhase, tool: &str) -> bool {
        self.hooks.unreadable || self.hooks.for_tool(phase, tool).next().is_some()
    }

    /// Whether it is unknown which hooks there are, so that no call may run, whatever an earlier decision about it.
    pub fn are_unknown(&self) -> bool {
        self.hooks.unreadable
    }

    /// Runs the hooks before a call. `validate` checks a changed input as if the model had sent it.
    pub async fn run_before(
        &self,
        call: &HookedCall,
        validate: impl Fn(&Value) -> Result<(), String>,
    ) -> BeforeRun {
        let mut run = BeforeRun::default();
        if self.hooks.unreadable {
            run.refusal = Some("the product's hooks cannot be read, so no tool is run".to_owned());
            return run;
        }
        let deadline = Instant::now() + MAX_TOTAL_TIME;
        for hook in self.hooks.for_tool(HookPhase::Before, &call.tool) {
            let input = run.input.as_ref().unwrap_or(&call.input);
            let answer = self.call_hook(hook, request(hook, call, input), deadline).await;
            run.apply(hook, call, answer, &validate);
            if run.refusal.is_some() {
                break;
            }
        }
        run
    }

    /// Runs the hooks after a call with this result: its output, or the error with which it failed.
    pub async fn run_after(&self, call: &HookedCall, result: Result<&str, &str>) -> AfterRun {
        let mut run = AfterRun::default();
        if self.hooks.unreadable {
            run.refusal = Some("the product's hooks cannot be read, so the result is withheld".to_owned());
            return run;
        }
        let deadline = Instant::now() + MAX_TOTAL_TIME;
        for hook in self.hooks.for_tool(HookPhase::After, &call.tool) {
            let mut request = request(hook, call, &call.input);
            let (field, text) = match (run.result.as_deref(), result) {
                (Some(text), Ok(_)) | (None, Ok(text)) => ("output", text),
                (Some(text), Err(_)) | (None, Err(text)) => ("error", text),
            };
            let shown = first_chars(text, answer::MAX_RESULT_CHARS);
            request.insert("result".to_owned(), json!({field: shown, "cut": shown.len() < text.len()}));
            let answer = self.call_hook(hook, request, deadline).await;
            run.apply(hook, call, answer);
            if run.refusal.is_some() {
                break;
            }
        }
        run
    }

    /// Calls one hook. The error says why it failed, for the model and for clients.
    async fn call_hook(
        &self,
        hook: &Hook,
        request: Map<String, Value>,
        deadline: Instant,
    ) -> Result<HookAnswer, String> {
        let time = hook.timeout.min(deadline.saturating_duration_since(Instant::now()));
        let request = Value::Object(request);
        let answer = async {
            match &hook.action {
                HookAction::Command { command, network } => {
                    self.run_command(command, *network, time, &request).await
                }
                HookAction::Http(call) => http_tool::send(call, &request, &self.memory_budget)
                    .await
                    .map_err(|ToolError(reason)| first_chars(&reason, answer::MAX_REASON_CHARS).to_owned()),
            }
        };
        let answered = timeout(time, answer).await;
        let text = answered.map_err(|_| format!("it did not answer within {} s", time.as_secs_f32()))??;
        if text.len() > MAX_ANSWER_BYTES {
            return Err(too_long());
        }
        HookAnswer::parse(&text, hook.phase)
    }

    async fn run_command(
        &self,
        command: &[String],
        network: bool,
        time: Duration,
        request: &Value,
    ) -> Result<String, String> {
        let Some(programs) = &self.programs else {
            return Err("this machine cannot confine programs, so it runs none".to_owned());
        };
        let command = Command {
            argv: command.iter().map(OsString::from).collect(),
            folder: PathBuf::from("."),
            // In their home, which is the workspace, the agent could leave files that are run before the hook: those of
            // Python's user site, and configurations of git and others.
            env: vec![("HOME".into(), NO_HOME.into()), ("PYTHONNOUSERSITE".into(), "1".into())],
            network,
            // The caller's time is up first, so a hook that hangs is always reported in the same words.
            limits: Limits { time: Some(time + KILL_GRACE), ..Limits::default() },
        };
        let max_bytes = u64::try_from(MAX_ANSWER_BYTES).unwrap_or(u64::MAX);
        let ran = programs.run_bounded(command, request.to_string().into_bytes(), max_bytes).await;
        let ran = ran.map_err(|ToolError(reason)| reason)?;
        match ran.outcome {
            ProcessOutcome::Ended(ExitStatus::Exited(0)) => Ok(ran.output),
            ProcessOutcome::Ended(ExitStatus::Exited(code)) => {
                Err(format!("it failed with exit code {code}"))
            }
            ProcessOutcome::OutputLimitExceeded => Err(too_long()),
            ended @ ProcessOutcome::Ended(_) => {
                Err(ended.abort_reason(time).unwrap_or_else(|| "it failed".to_owned()))
            }
        }
    }
}

fn too_long() -> String {
    format!("its answer is longer than {MAX_ANSWER_BYTES} bytes")
}

/// What a hook is sent.
fn request(hook: &Hook, call: &HookedCall, input: &Value) -> Map<String, Value> {
    let mut request = call.context.clone();
    for (field, value) in [
        ("hook", json!(hook.name)),
        ("on", json!(hook.phase)),
        ("tool", json!(call.tool)),
        ("input", input.clone()),
        ("call_id", json!(call.call_id)),
    ] {
        request.insert(field.to_owned(), value);
    }
    request
}

/// A report of a hook that allows the call and does nothing else.
fn report(hook: &Hook, call: &HookedCall) -> ToolHook {
    ToolHook {
        tool_call_id: call.call_id,
        tool: call.tool.clone(),
        hook: hook.name.clone(),
        on: hook.phase,
        decision: HookDecision::Allow,
        reason: None,
        failure: None,
        input: None,
        note: None,
        result_replaced: false,
    }
}

impl BeforeRun {
    /// Applies the answer of the next hook, or its failure.
    fn apply(
        &mut self,
        hook: &Hook,
        call: &HookedCall,
        answer: Result<HookAnswer, String>,
        validate: impl Fn(&Value) -> Result<(), String>,
    ) {
        let mut report = report(hook, call);
        let checked = answer.and_then(|answer| match answer.input.as_ref().map(validate) {
            Some(Err(reason)) => Err(format!("it changed the input to an invalid one: {reason}")),
            _ => Ok(answer),
        });
        match checked {
            Ok(HookAnswer { refusal: Some(reason), .. }) => {
                self.refusal =
                    Some(format!("the hook `{}` of the product refused this call: {reason}", hook.name));
                report.reason = Some(reason);
            }
            Ok(HookAnswer { input, note, .. }) => {
                if let Some(input) = &input {
                    self.notes.push(changed_input_note(hook, input));
                }
                self.notes.extend(note.as_deref().map(|note| render_note(hook, note)));
                self.input = input.clone().or(self.input.take());
                (report.input, report.note) = (input, note);
            }
            Err(failure) => {
                if hook.refuses_on_failure {
                    self.refusal = Some(format!(
                        "the hook `{}` of the product failed, so this call was not run: {failure}",
                        hook.name
                    ));
                }
                report.failure = Some(failure);
            }
        }
        push_report(&mut self.reports, report, self.refusal.is_some());
    }

    /// Whether the hooks added something to the call that did not come from its model.
    pub fn adds_text(&self) -> bool {
        self.refusal.is_some() || self.input.is_some() || !self.notes.is_empty()
    }
}

impl AfterRun {
    /// Applies the answer of the next hook, or its failure.
    fn apply(&mut self, hook: &Hook, call: &HookedCall, answer: Result<HookAnswer, String>) {
        let mut report = report(hook, call);
        match answer {
            Ok(HookAnswer { refusal: Some(reason), .. }) => {
                self.refusal = Some(format!(
                    "the tool ran, but the hook `{}` of the product withheld its result: {reason}",
                    hook.name
                ));
                report.reason = Some(reason);
            }
            Ok(HookAnswer { result, note, .. }) => {
                self.notes.extend(note.as_deref().map(|note| render_note(hook, note)));
                report.result_replaced = result.is_some();
                report.note = note;
                self.result = result.or(self.result.take());
            }
            Err(failure) => {
                if hook.refuses_on_failure {
                    self.refusal = Some(format!(
                        "the tool ran, but the hook `{}` of the product failed, so its result is withheld: {failure}",
                        hook.name
                    ));
                }
                report.failure = Some(failure);
            }
        }
        push_report(&mut self.reports, report, self.refusal.is_some());
    }
}

/// Adds a report, unless its hook did nothing.
fn push_report(reports: &mut Vec<ToolHook>, mut report: ToolHook, refused: bool) {
    if refused {
        report.decision = HookDecision::Refuse;
    }
    let acted = refused
        || report.failure.is_some()
        || report.input.is_some()
        || report.note.is_some()
        || report.result_replaced;
    if acted {
        reports.push(report);
    }
}

fn render_note(hook: &Hook, note: &str) -> String {
    format!("[The hook `{}` of the product notes about this call:]\n{note}", hook.name)
}

/// Tells the model what really ran, which is not what its own message shows.
fn changed_input_note(hook: &Hook, input: &Value) -> String {
    let input = input.to_string();
    let shown = first_chars(&input, MAX_SHOWN_INPUT_CHARS);
    let cut = if shown.len() < input.len() { " [cut]" } else { "" };
    format!("[The hook `{}` of the product changed the input of this call to:]\n{shown}{cut}", hook.name)
}

#[cfg(test)]
#[path = "../tests/unit/hooks.rs"]
mod tests;
