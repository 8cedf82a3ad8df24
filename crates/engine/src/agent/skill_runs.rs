//! Skills that are run without a turn: a script on the leash, or one call of a model that is told the skill's prompt.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::aside::whole;
use super::asking::{Asking, Remedy};
use super::budget::room_beside;
use super::model_step::{LEAST_ANSWER, jitter};
use super::{Agent, AgentError, DirectError};
use crate::brain::{SkillOutline, Spent};
use crate::models::{Message, ModelError, ModelErrorKind, Request, Route, StopCause, Tokens, estimate};
use crate::tools::{RUN_SKILL_SCRIPT, ToolError};

/// The most bytes that a model is given.
const MAX_INPUT: usize = 1024 * 1024;
/// What a model is told where it is given nothing.
const NO_INPUT: &str = "Go ahead.";
/// How long a model may take, with all attempts.
const DEADLINE: Duration = Duration::from_mins(10);

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
        self.ask_skill(prompt, input(params)?).await
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

    async fn ask_skill(&self, prompt: &str, input: String) -> Result<String, DirectError> {
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping.into());
        }
        self.running.turns().admit(self.means.clock.monotonic())?;
        let _place = self.direct.try_acquire().map_err(|_| AgentError::TooManyCalls)?;
        let messages = [Message::user(input)];
        let clock = &self.means.clock;
        tokio::select! {
            biased;
            answer = self.ask_beside(prompt, &messages) => answer,
            () = clock.sleep(DEADLINE) => {
                Err(failed(&ModelError::new(ModelErrorKind::Broken, "the model took too long")))
            }
            () = self.stopping.cancelled() => Err(AgentError::Stopping.into()),
        }
    }

    /// Asks until a model answers or there is no hope, as in a turn.
    async fn ask_beside(&self, system: &str, messages: &[Message]) -> Result<String, DirectError> {
        let means = &self.means;
        let routes = means.gateway.routes().map_err(|error| failed(&error))?;
        let chain = means.gateway.chain(None, means.clock.monotonic()).map_err(|error| failed(&error))?;
        // There is no conversation to shorten.
        let Some(mut asking) = Asking::new(chain, routes.retry, false) else {
            return Err(failed(&ModelError::new(ModelErrorKind::NotConfigured, "no model is configured")));
        };
        let prompt = estimate::beginning(system, &[]) + estimate::messages(messages);
        loop {
            let route = Arc::clone(asking.route());
            let most = route.max_output.min(route.context_window.saturating_sub(prompt)).max(LEAST_ANSWER);
            let room =
                room_beside(means, &self.brain, (prompt, most, LEAST_ANSWER)).map_err(AgentError::from)?;
            let Some(room) = room else {
                let spent = "the budget of tokens is used up; `quota_state` tells when it is free again";
                return Err(DirectError::Failed(ToolError(spent.into())));
            };
            asking.begin();
            let parts = route.model.ask(&Request {
                system,
                messages,
                tools: &[],
                thinking: false,
                max_output: Some(room.bound.unwrap_or(most)),
                may_call: false,
                cache_key: "skill",
            });
            let outcome = whole(parts, &*means.clock, DEADLINE).await;
            let now = means.clock.monotonic();
            means.gateway.note(&route, outcome.as_ref().map(|answer| &answer.usage), now);
            let spent = outcome.as_ref().map_or_else(|error| error.spent, |answer| answer.usage);
            self.spent_beside(&route, spent).await?;
            let error = match outcome {
                Ok(answer) if answer.stop == StopCause::Refusal && answer.text().trim().is_empty() => {
                    let message = "the model declined to answer this, or the provider's filter stopped it";
                    return Err(failed(&ModelError::new(ModelErrorKind::Refused, message)));
                }
                Ok(answer) => return Ok(answer.text()),
                Err(error) => error,
            };
            match asking.after(&error, now, jitter()) {
                Remedy::Wait(delay) => means.clock.sleep(delay).await,
                Remedy::StandIn => means.gateway.gave_up(&route, now),
                Remedy::Shorten | Remedy::DropReasoning | Remedy::GiveUp => {
                    return Err(failed(&asking.gave_up(error)));
                }
            }
        }
    }

    /// Takes down what a call cost, so that budgets count it.
    async fn spent_beside(&self, route: &Route, tokens: Tokens) -> Result<(), AgentError> {
        if tokens == Tokens::default() {
            return Ok(());
        }
        let spent = Spent { model: route.model.name().to_owned(), tokens };
        let at = self.means.clock.now();
        Ok(self.brain.write(move |rows| rows.insert_spent(at, &spent)).await?)
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

fn failed(error: &ModelError) -> DirectError {
    DirectError::Failed(ToolError(error.message.clone()))
}
