//! Skills that are run without a turn: a script on the leash, or one call of a model that is told the skill's prompt.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::aside::whole;
use super::asking::{Asking, Remedy};
use super::budget::room_beside;
use super::model_step::{LEAST_ANSWER, jitter};
use super::{Agent, AgentError, DirectError, Means};
use crate::brain::{Brain, SkillOutline, Spent};
use crate::models::{
    Answer, Message, ModelError, ModelErrorKind, Request, Route, StopCause, Tokens, estimate,
};
use crate::tools::{RUN_SKILL_SCRIPT, ToolError};

/// The most bytes that a model is given.
const MAX_INPUT: usize = 1024 * 1024;
/// What a model is told where it is given nothing.
const NO_INPUT: &str = "Go ahead.";
/// How long a model may take, with all attempts.
const DEADLINE: Duration = Duration::from_mins(10);
/// How a caller learns when the budget lets them ask again.
const FREE_AGAIN: &str = "`quota_state` tells when it is free again";

/// What a script of a skill is run with.
#[derive(Deserialize)]
struct ScriptParams {
    script: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    input: String,
}

impl Agent {
    /// Runs a skill: what its script wrote, or what the model answered.
    pub async fn run_skill(&self, name: &str, mut params: Map<String, Value>) -> Result<String, DirectError> {
        let skill = match self.find_skill(name).await {
            Err(AgentError::UnknownSkill) => return Err(DirectError::NoSuchSkill(name.to_owned())),
            skill => skill?,
        };
        // Null is what is left out.
        params.retain(|_, value| !value.is_null());
        if params.contains_key("script") {
            let ScriptParams { script, args, input } = ScriptParams::deserialize(Value::Object(params))
                .map_err(|error| DirectError::Invalid(format!("`params`: {error}")))?;
            return self.run_script(name, &script, args, input).await;
        }
        let Some(prompt) = skill.prompt() else {
            let scripts = skill.scripts().join(", ");
            let message =
                format!("`params.script`: is required, for the skill has no prompt; there are: {scripts}");
            return Err(DirectError::Invalid(message));
        };
        self.ask_skill(prompt.to_owned(), input(params)?).await
    }

    /// The skills that can be run, each with the JSON schema of what it takes.
    pub async fn skill_methods(&self) -> Result<Vec<(String, Value)>, AgentError> {
        let skills = self.skills_at_hand();
        let outlines = self.read(move |_| skills.outlines()).await?;
        Ok(outlines.into_iter().map(|outline| (outline.name.to_string(), schema(outline))).collect())
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
                DirectError::Failed(ToolError("this machine cannot confine programs, so none are run".into()))
            }
            error => error,
        })
    }

    async fn ask_skill(&self, system: String, input: String) -> Result<String, DirectError> {
        let at_work = self.begin_direct()?;
        let call = PromptCall {
            brain: self.brain.clone(),
            means: Arc::clone(&self.means),
            stopping: self.stopping.clone(),
            over: self.means.clock.monotonic().saturating_add(DEADLINE),
            system,
            messages: [Message::user(input)],
        };
        let asking = async move {
            let _at_work = at_work;
            call.ask().await
        };
        // Goes on by itself, also if the caller is gone: what it costs is to be on record.
        let asking = self.turns.spawn(asking.in_current_span());
        asking.await.unwrap_or_else(|_| Err(AgentError::Stopping.into()))
    }
}

/// A call of a model beside all turns, with a skill's prompt.
struct PromptCall {
    brain: Brain,
    means: Arc<Means>,
    stopping: CancellationToken,
    /// When it must be over, by the monotonic clock.
    over: Duration,
    system: String,
    messages: [Message; 1],
}

impl PromptCall {
    /// Asks until a model answers or there is no hope, as in a turn.
    async fn ask(&self) -> Result<String, DirectError> {
        let means = &self.means;
        let routes = means.gateway.routes().map_err(|error| failed(&error))?;
        let chain = means.gateway.chain(None, means.clock.monotonic()).map_err(|error| failed(&error))?;
        let usual = routes.chain.first().map(|route| route.name.clone()).unwrap_or_default();
        // There is no conversation to shorten.
        let Some(mut asking) = Asking::new(chain, usual, routes.retry, false) else {
            return Err(failed(&ModelError::new(ModelErrorKind::NotConfigured, "no model is configured")));
        };
        let prompt = estimate::text(&self.system) + estimate::messages(&self.messages);
        loop {
            let route = Arc::clone(asking.route());
            let most = route.max_output.min(route.context_window.saturating_sub(prompt)).max(LEAST_ANSWER);
            let room =
                room_beside(means, &self.brain, (prompt, most, LEAST_ANSWER)).map_err(AgentError::from)?;
            let Some(room) = room else {
                return Err(DirectError::NoAnswer(format!("the budget of tokens is used up; {FREE_AGAIN}")));
            };
            asking.begin();
            let error = match self.attempt(&route, prompt, room.bound.unwrap_or(most)).await? {
                Ok(answer) => return text_of(&answer, room.is_cut),
                Err(error) => error,
            };
            drop(room);
            let now = means.clock.monotonic();
            let pause = match asking.after(&error, now, jitter()) {
                Remedy::Wait(delay) => delay,
                Remedy::StandIn => {
                    means.gateway.gave_up(&route, now);
                    Duration::ZERO
                }
                Remedy::Shorten | Remedy::DropReasoning | Remedy::GiveUp => {
                    return Err(failed(&asking.gave_up(Some(error))));
                }
            };
            if now.saturating_add(pause) >= self.over {
                return Err(failed(&asking.gave_up(Some(error))));
            }
            self.pause(pause).await?;
        }
    }

    /// Asks once. What it cost is on record when this is over, also where the engine stops meanwhile.
    async fn attempt(
        &self,
        route: &Route,
        prompt: u64,
        bound: u64,
    ) -> Result<Result<Answer, ModelError>, AgentError> {
        let means = &self.means;
        let parts = route.model.ask(&Request {
            system: &self.system,
            messages: &self.messages,
            tools: &[],
            thinking: false,
            max_output: Some(bound),
            may_call: false,
            cache_key: "skill",
        });
        let left = self.over.saturating_sub(means.clock.monotonic());
        let outcome = tokio::select! {
            biased;
            outcome = whole(parts, prompt, &*means.clock, left) => outcome,
            () = self.stopping.cancelled() => {
                self.spent(route, Tokens { input: prompt, estimated: true, ..Tokens::default() }).await?;
                return Err(AgentError::Stopping);
            }
        };
        means.gateway.note(route, outcome.as_ref().map(|answer| &answer.usage), means.clock.monotonic());
        let spent = outcome.as_ref().map_or_else(|error| error.spent, |answer| answer.usage);
        self.spent(route, spent).await?;
        Ok(outcome)
    }

    async fn pause(&self, pause: Duration) -> Result<(), AgentError> {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => Err(AgentError::Stopping),
            () = self.means.clock.sleep(pause) => Ok(()),
        }
    }

    /// Takes down what a call cost, so that budgets count it.
    async fn spent(&self, route: &Route, tokens: Tokens) -> Result<(), AgentError> {
        if tokens == Tokens::default() {
            return Ok(());
        }
        let spent = Spent { model: route.model.name().to_owned(), tokens };
        let at = self.means.clock.now();
        Ok(self.brain.write(move |rows| rows.insert_spent(at, &spent)).await?)
    }
}

/// The text of an answer, if that is whole. `is_cut` where the budgets left it less room than the model gives.
fn text_of(answer: &Answer, is_cut: bool) -> Result<String, DirectError> {
    if let Some(error) = answer.declined() {
        return Err(failed(&error));
    }
    let cut_off = |why: &str| Err(DirectError::Failed(ToolError(format!("the answer was cut off: {why}"))));
    match answer.stop {
        StopCause::Length if is_cut => Err(DirectError::NoAnswer(format!(
            "the answer was cut off: it used the budget of tokens up; {FREE_AGAIN}"
        ))),
        StopCause::Length => {
            cut_off("it is longer than the model's `max_output`; ask for less, or raise that")
        }
        StopCause::ContextFull => cut_off("it filled the model's context window; give it less"),
        StopCause::Done | StopCause::Refusal | StopCause::Unknown => {
            let text = answer.text();
            if text.trim().is_empty() {
                return Err(DirectError::NoAnswer("the model answered without a text; ask again".into()));
            }
            Ok(text)
        }
    }
}

/// What a model is given: `input`, or all of the parameters as JSON.
fn input(mut params: Map<String, Value>) -> Result<String, DirectError> {
    let input = match params.remove("input") {
        Some(Value::String(input)) if params.is_empty() => input,
        Some(input) => {
            params.insert("input".into(), input);
            Value::Object(params).to_string()
        }
        None if params.is_empty() => String::new(),
        None => Value::Object(params).to_string(),
    };
    if input.len() > MAX_INPUT {
        return Err(DirectError::Invalid(format!("`params`: must be at most {MAX_INPUT} bytes long")));
    }
    Ok(if input.trim().is_empty() { NO_INPUT.to_owned() } else { input })
}

/// The JSON schema of what a skill takes.
fn schema(SkillOutline { scripts, has_prompt, .. }: SkillOutline) -> Value {
    let mut properties = Map::from_iter([("input".to_owned(), json!({"type": "string"}))]);
    if !scripts.is_empty() {
        properties.insert("script".into(), json!({"type": "string", "enum": scripts}));
        properties.insert("args".into(), json!({"type": "array", "items": {"type": "string"}}));
    }
    let required = if has_prompt { json!([]) } else { json!(["script"]) };
    json!({"type": "object", "properties": properties, "required": required})
}

/// A model gives no answer: what is asked is at fault, or else it is not the caller's doing.
fn failed(error: &ModelError) -> DirectError {
    let message = error.message.clone();
    if error.is_about_request() {
        DirectError::Failed(ToolError(message))
    } else {
        DirectError::NoAnswer(message)
    }
}
