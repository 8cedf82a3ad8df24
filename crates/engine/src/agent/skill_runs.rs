//! Runs skills outside a turn: a script in the sandbox, or one model call with the skill's prompt.

use std::sync::Arc;
use std::time::Duration;

use api::tool_names::RUN_SKILL_SCRIPT;
use api::turn_options::TurnOverrides;
use api::usage::UsagePurpose;
use http_service::backoff::jitter;
use llm::{Answer, Content, FinishReason, Message, ModelError, ModelErrorKind, Request, Route, estimate};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use store::SkillOutline;
use tools::ToolError;
use tracing::Instrument as _;

use super::model_step::MIN_ANSWER_TOKENS;
use super::outside_call::OutsideCaller;
use super::retry_policy::{Remedy, StepAttempts};
use super::{Agent, AgentError, DirectError, structured_output, turn_overrides};

/// The most bytes of input for a model.
const MAX_INPUT_BYTES: usize = 1024 * 1024;
/// The input for a model if the caller gives none.
const DEFAULT_INPUT: &str = "Go ahead.";
/// How long a model may take, including all attempts.
const RUN_TIMEOUT: Duration = Duration::from_mins(10);
/// The hint for callers about when the budget permits another call.
const QUOTA_HINT: &str = "`quota_state` shows when it is available again";

/// The parameters of a skill's script.
#[derive(Deserialize)]
struct ScriptParams {
    script: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    input: String,
}

impl Agent {
    /// Runs a skill. Returns the output of its script or the answer of the model, to which `overrides` apply.
    pub async fn run_skill(
        &self,
        name: &str,
        mut params: Map<String, Value>,
        overrides: TurnOverrides,
    ) -> Result<String, DirectError> {
        let skill = match self.find_skill(name).await {
            Err(AgentError::UnknownSkill) => return Err(DirectError::NoSuchSkill(name.to_owned())),
            skill => skill?,
        };
        // A null parameter counts as omitted.
        params.retain(|_, value| !value.is_null());
        if let Some(field) = turn_only_field(&overrides) {
            let message = format!("`{field}`: only a turn can have it; a skill is called without one");
            return Err(DirectError::Invalid(message));
        }
        if params.contains_key("script") {
            if !overrides.is_empty() {
                let message =
                    "`params.script`: a script calls no model, so no options of a model can be given";
                return Err(DirectError::Invalid(message.to_owned()));
            }
            let ScriptParams { script, args, input } = ScriptParams::deserialize(Value::Object(params))
                .map_err(|error| DirectError::Invalid(format!("`params`: {error}")))?;
            return self.run_script(name, &script, args, input).await;
        }
        let Some(prompt) = skill.prompt() else {
            let scripts = skill.scripts().join(", ");
            let message = format!(
                "`params.script`: is required because the skill has no prompt; its scripts: {scripts}"
            );
            return Err(DirectError::Invalid(message));
        };
        self.run_prompt(prompt.to_owned(), model_input(params)?, overrides).await
    }

    /// The skills that can be run, each with the JSON schema of its parameters.
    pub async fn skill_methods(&self) -> Result<Vec<(String, Value)>, AgentError> {
        let skills = self.available_skills();
        let outlines = self.read(move |_| skills.outlines()).await?;
        Ok(outlines.into_iter().map(|outline| (outline.name.to_string(), params_schema(outline))).collect())
    }

    async fn run_script(
        &self,
        skill: &str,
        script: &str,
        args: Vec<String>,
        input: String,
    ) -> Result<String, DirectError> {
        let call = json!({"skill": skill, "script": script, "args": args, "input": input});
        self.call_tool(RUN_SKILL_SCRIPT, call).await.map_err(|error| match error {
            DirectError::NoSuchTool(_) => {
                DirectError::Failed(ToolError("this machine cannot confine programs, so it runs none".into()))
            }
            error => error,
        })
    }

    async fn run_prompt(
        &self,
        system: String,
        input: String,
        mut overrides: TurnOverrides,
    ) -> Result<String, DirectError> {
        if let Ok(models) = self.services.gateway.routes() {
            turn_overrides::validate_model(&overrides, &models)?;
        }
        if let Some(format) = &overrides.response_format {
            structured_output::check_schema(format)?;
        }
        let notes = turn_overrides::take_notes(&mut overrides);
        let notes = notes.into_iter().map(|text| Content::Note { text });
        let content = notes.chain([Content::Text { text: input }]).collect();
        let busy_guard = self.begin_direct_call()?;
        let call = PromptCall {
            caller: self.outside_caller(UsagePurpose::Skill, RUN_TIMEOUT, self.stopping.clone()),
            system,
            messages: vec![Message::User { content }],
            overrides,
            output_tokens: 0,
            cost_usd: 0.0,
        };
        let running = async move {
            let _busy_guard = busy_guard;
            call.run().await
        };
        // Runs in a task of its own, so that its cost is recorded even if the caller is gone.
        let running = self.tracker.spawn(traces::in_current_span(running.in_current_span()));
        running.await.unwrap_or_else(|_| Err(AgentError::Stopping.into()))
    }
}

/// A model call outside turns, with a skill's prompt.
struct PromptCall {
    caller: OutsideCaller,
    system: String,
    messages: Vec<Message>,
    /// What the request sets.
    overrides: TurnOverrides,
    /// The output tokens and the cost of the answer that is being corrected.
    output_tokens: u64,
    cost_usd: f64,
}

impl PromptCall {
    /// Returns the text of the answer. One that does not match the schema of the request is corrected once.
    async fn run(mut self) -> Result<String, DirectError> {
        let (answer, text) = self.answer().await?;
        let Some(format) = self.overrides.response_format.clone() else { return Ok(text) };
        let Err(errors) = structured_output::validate(&format, &text) else { return Ok(text) };
        self.messages.extend([answer, Message::user(structured_output::rejection_note(&errors))]);
        let (_, text) = self.answer().await?;
        match structured_output::validate(&format, &text) {
            Ok(()) => Ok(text),
            Err(errors) => Err(DirectError::OutputInvalid(structured_output::describe_failure(&errors))),
        }
    }

    /// Calls models until one answers or no remedy is left, as in a turn. Returns the answer and its text.
    async fn answer(&mut self) -> Result<(Message, String), DirectError> {
        let services = Arc::clone(self.caller.services());
        let model = self.overrides.model.as_deref();
        let routes = services.gateway.routes().map_err(|error| model_failure(&error))?;
        let chain = services
            .gateway
            .chain(model, services.clock.monotonic())
            .map_err(|error| model_failure(&error))?;
        let primary = routes.chain_for(model).first().map(|route| route.name.clone()).unwrap_or_default();
        // There is no conversation to compact.
        let Some(mut attempts) = StepAttempts::new(chain, primary, routes.retry, false) else {
            return Err(model_failure(&ModelError::new(
                ModelErrorKind::NotConfigured,
                "no model is configured",
            )));
        };
        let prompt = estimate::text(&self.system) + estimate::messages(&self.messages);
        loop {
            let route = Arc::clone(attempts.route());
            let max_tokens =
                route.max_output.min(route.context_window.saturating_sub(prompt)).max(MIN_ANSWER_TOKENS);
            let output_left = self.output_left(&route, prompt).unwrap_or(u64::MAX);
            if output_left < MIN_ANSWER_TOKENS {
                return Err(DirectError::Invalid("`max_cost_usd`: it does not pay for an answer".to_owned()));
            }
            let is_cut = output_left < max_tokens;
            let max_tokens = output_left.min(max_tokens);
            let size = (prompt, max_tokens, MIN_ANSWER_TOKENS);
            let Some(allowance) = self.caller.reserve(&route, size)? else {
                return Err(DirectError::NoAnswer(format!("the token budget is used up; {QUOTA_HINT}")));
            };
            attempts.begin_attempt();
            let error = match self.attempt(&route, prompt, allowance.max_tokens.unwrap_or(max_tokens)).await?
            {
                Ok(answer) if is_cut && answer.stop == FinishReason::Length => {
                    let message = "the answer was cut off at the budget that the call sets for it".to_owned();
                    return Err(DirectError::Failed(ToolError(message)));
                }
                Ok(answer) => {
                    let text = complete_text(&answer, allowance.is_reduced)?;
                    self.output_tokens += answer.usage.output;
                    self.cost_usd += route.prices.map_or(0.0, |prices| prices.cost(&answer.usage));
                    let model = route.model.name().to_owned();
                    return Ok((Message::Assistant { model, blocks: answer.blocks }, text));
                }
                Err(error) => error,
            };
            drop(allowance);
            let now = services.clock.monotonic();
            let pause = match attempts.remedy_for(&error, now, jitter()) {
                Remedy::Wait(delay) => delay,
                Remedy::Fallback => {
                    services.gateway.open_circuit(&route, now);
                    Duration::ZERO
                }
                Remedy::Compact | Remedy::DropReasoning | Remedy::DropMedia | Remedy::GiveUp => {
                    return Err(model_failure(&attempts.into_error(Some(error))));
                }
            };
            if !self.caller.has_time_for(pause) {
                return Err(model_failure(&attempts.into_error(Some(error))));
            }
            self.caller.pause(pause).await?;
        }
    }

    /// Calls the model once.
    async fn attempt(
        &self,
        route: &Route,
        prompt: u64,
        max_output: u64,
    ) -> Result<Result<Answer, ModelError>, AgentError> {
        let events = route.stream(&Request {
            system: &self.system,
            messages: &self.messages,
            tools: &[],
            thinking: self.overrides.effort.is_some(),
            effort: self.overrides.effort,
            max_output: Some(max_output),
            allow_tool_calls: false,
            output: self.overrides.response_format.as_ref(),
            cache_key: "skill",
        });
        self.caller.collect(route, events, prompt).await
    }

    /// The number of output tokens that the call's budgets leave to an answer of `route`; `None` if it has none.
    fn output_left(&self, route: &Route, prompt: u64) -> Option<u64> {
        let max_output = self.overrides.max_output_tokens.and_then(|max| u64::try_from(max.get()).ok());
        let output = max_output.map(|max| max.saturating_sub(self.output_tokens));
        let cost = self.overrides.max_cost_usd.map(|max| {
            route.prices.map_or(0, |prices| prices.affordable_output(prompt, max.usd() - self.cost_usd))
        });
        output.into_iter().chain(cost).min()
    }
}

/// The first field that only a turn can have.
fn turn_only_field(overrides: &TurnOverrides) -> Option<&'static str> {
    let TurnOverrides { allowed_tools, max_tokens, metadata, .. } = overrides;
    let fields = [
        ("allowed_tools", allowed_tools.is_some()),
        ("max_tokens", max_tokens.is_some()),
        ("metadata", metadata.is_some()),
    ];
    fields.into_iter().find_map(|(field, is_set)| is_set.then_some(field))
}

/// The text of a complete answer, else an error. `is_reduced` says whether the budgets gave it less room than
/// the model would.
fn complete_text(answer: &Answer, is_reduced: bool) -> Result<String, DirectError> {
    if let Some(error) = answer.refusal() {
        return Err(model_failure(&error));
    }
    let cut_off =
        |reason: &str| Err(DirectError::Failed(ToolError(format!("the answer was cut off: {reason}"))));
    match answer.stop {
        FinishReason::Length if is_reduced => Err(DirectError::NoAnswer(format!(
            "the answer was cut off because it used up the token budget; {QUOTA_HINT}"
        ))),
        FinishReason::Length => cut_off(
            "it is longer than the model's `max_output`; ask for a shorter answer or raise `max_output`",
        ),
        FinishReason::ContextFull => cut_off("it filled the model's context window; send less input"),
        FinishReason::Done | FinishReason::Refusal | FinishReason::Unknown => {
            let text = answer.text();
            if text.trim().is_empty() {
                return Err(DirectError::NoAnswer(
                    "the model answered without a text part; try again".into(),
                ));
            }
            Ok(text)
        }
    }
}

/// The input for a model: `input` alone, or all parameters as JSON.
fn model_input(mut params: Map<String, Value>) -> Result<String, DirectError> {
    let input = match params.remove("input") {
        Some(Value::String(input)) if params.is_empty() => input,
        Some(input) => {
            params.insert("input".into(), input);
            Value::Object(params).to_string()
        }
        None if params.is_empty() => String::new(),
        None => Value::Object(params).to_string(),
    };
    if input.len() > MAX_INPUT_BYTES {
        return Err(DirectError::Invalid(format!("`params`: must be at most {MAX_INPUT_BYTES} bytes long")));
    }
    Ok(if input.trim().is_empty() { DEFAULT_INPUT.to_owned() } else { input })
}

/// The JSON schema of a skill's parameters.
fn params_schema(SkillOutline { scripts, has_prompt, .. }: SkillOutline) -> Value {
    let mut properties = Map::from_iter([("input".to_owned(), json!({"type": "string"}))]);
    if !scripts.is_empty() {
        properties.insert("script".into(), json!({"type": "string", "enum": scripts}));
        properties.insert("args".into(), json!({"type": "array", "items": {"type": "string"}}));
    }
    let required = if has_prompt { json!([]) } else { json!(["script"]) };
    json!({"type": "object", "properties": properties, "required": required})
}

/// The error for a model that gives no answer: either the request is at fault, or the cause is outside the
/// caller's control.
fn model_failure(error: &ModelError) -> DirectError {
    let message = error.message.clone();
    if error.is_request_error() {
        DirectError::Failed(ToolError(message))
    } else {
        DirectError::NoAnswer(message)
    }
}
