//! Planning: before a new message is worked on, a model says which agent of the catalog fits and in which steps.
//!
//! A plan is advice. Where none comes (the planner fails, says nothing of use, or the budget is used up) the turn
//! goes on without one. Where the catalog has nobody to hand work to there is nothing to choose, and no call is spent.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use contract::event::{Event, WorkingMemoryUpdate};
use serde::{Deserialize, Serialize};

use super::rewrite::shortened;
use super::run::{Stopped, TurnRun};
use crate::brain::steps::{MemoryWrite, Step};
use crate::catalog::AgentSpec;
use crate::channel::Record;
use crate::models::{Answer, Block, Content, Message, Request, Route, estimate};

/// Where working memory keeps the plan.
const KEY: &str = "plan";
/// How many messages before the new one the planner is shown, and how much of each.
const SHOWN: (usize, usize) = (6, 1_000);
/// How much of the new message the planner is shown, in characters.
const NEW_MESSAGE: usize = 8_000;
/// The most tokens of a plan, with what models that always reason spend before it.
const MAX_PLAN: u64 = 4_000;
/// How long a plan is waited for.
const DEADLINE: Duration = Duration::from_mins(1);
/// The most steps of a plan.
const MAX_STEPS: usize = 12;

const PLANNER: &str = "\
You plan how an assistant will work on a user's new message. Answer with one JSON object and nothing else: \
{\"agent\": the name of the one agent that should do the work, or null where the assistant does it best itself, \
\"steps\": [short sentences, what to do in which order; empty where one answer is enough]}. The agents:";

/// A plan, as the planner gives it and working memory keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Plan {
    agent: Option<String>,
    steps: Vec<String>,
}

impl TurnRun {
    /// Whether the turn is to be planned before its model is asked.
    pub(super) fn must_plan(&self) -> bool {
        let turn = self.thread.turn();
        let may_plan = !turn.options().direct && !turn.planned() && turn.answers() == 0;
        may_plan && !self.life.kit.agents.is_empty()
    }

    /// Plans the turn, if a plan comes of it.
    pub(super) async fn plan(&mut self) -> Result<(), Stopped> {
        let plan = match self.planner() {
            Some(route) => self.ask_planner(&route).await?,
            None => None,
        };
        let Some(plan) = plan else {
            return Ok(self.commit(Step::Planned { plan: None, memory: Vec::new() }, Vec::new()).await?);
        };
        // A plan can always be written as JSON.
        let value = serde_json::to_value(&plan).unwrap_or_default();
        let write = MemoryWrite { key: KEY.into(), value: value.clone() };
        let event = Event::WorkingMemoryUpdate(WorkingMemoryUpdate { key: KEY.into(), value });
        let record = Record::new().memory(write.clone());
        let step = Step::Planned { plan: Some(plan.told()), memory: vec![write] };
        Ok(self.commit_all(record, vec![step], vec![event]).await?)
    }

    /// The model that plans, or that answers where none does.
    fn planner(&self) -> Option<Arc<Route>> {
        let means = &self.life.means;
        let routes = means.gateway.routes().ok()?;
        let planner = routes.planner.as_ref().map(|route| route.name.as_str());
        let chain = means.gateway.chain(planner, means.clock.monotonic()).ok()?;
        chain.into_iter().next()
    }

    async fn ask_planner(&mut self, route: &Arc<Route>) -> Result<Option<Plan>, Stopped> {
        let agents = &self.life.kit.agents;
        let known: Vec<String> = agents.iter().map(|agent| agent.name.clone()).collect();
        let lines =
            agents.iter().map(|agent: &Arc<AgentSpec>| format!("\n- {}: {}", agent.name, agent.description));
        let system: String = std::iter::once(PLANNER.to_owned()).chain(lines).collect();
        let messages = [Message::user(shown(self.thread.messages()))];
        let prompt = estimate::beginning(&system, &[]) + estimate::messages(&messages);
        let Some(_room) = self.room_for(prompt, MAX_PLAN, MAX_PLAN)? else { return Ok(None) };
        let parts = route.model.ask(&Request {
            system: &system,
            messages: &messages,
            tools: &[],
            thinking: false,
            max_output: Some(MAX_PLAN),
            may_call: false,
            cache_key: "plan",
        });
        let answer = self.ask_aside(route, parts, DEADLINE).await?;
        Ok(answer.and_then(|answer| Plan::of(&answer, &known)))
    }
}

impl Plan {
    /// The plan that an answer holds; none if there is nothing in it.
    fn of(answer: &Answer, known: &[String]) -> Option<Self> {
        let text = answer.text();
        // Models like to put words or a fence around what they were asked for alone.
        let (start, end) = (text.find('{')?, text.rfind('}')?);
        let Self { agent, mut steps } = serde_json::from_str(text.get(start..=end)?).ok()?;
        steps.retain(|step| !step.trim().is_empty());
        steps.truncate(MAX_STEPS);
        let agent = agent.filter(|agent| known.contains(agent));
        (agent.is_some() || !steps.is_empty()).then_some(Self { agent, steps })
    }

    /// The plan, as the model is told it.
    fn told(&self) -> String {
        let steps = self.steps.iter().enumerate();
        let mut lines: Vec<String> = steps.map(|(at, step)| format!("{}. {step}", at + 1)).collect();
        if let Some(agent) = &self.agent {
            lines.push(format!("The agent `{agent}` fits this: hand it the work with run_agent."));
        }
        format!(
            "[A plan for this message, made beforehand; leave it where it does not fit.]\n{}",
            lines.join("\n")
        )
    }
}

/// What the planner is shown of the conversation.
fn shown(messages: &[Message]) -> String {
    let Some((new, before)) = messages.split_last() else { return String::new() };
    let (count, length) = SHOWN;
    let said = before.iter().filter_map(said).collect::<Vec<_>>();
    let recent = said.get(said.len().saturating_sub(count)..).unwrap_or_default();
    let mut text = String::new();
    for (who, what) in recent {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{who}: {}\n\n", shortened(what, length));
    }
    let new = said_by(new).unwrap_or_default();
    text.push_str("The user's new message:\n");
    text.push_str(&shortened(&new, NEW_MESSAGE));
    text
}

fn said(message: &Message) -> Option<(&'static str, String)> {
    let who = match message {
        Message::User { .. } => "The user",
        Message::Assistant { .. } => "The assistant",
        Message::Results(_) => return None,
    };
    Some((who, said_by(message)?))
}

fn said_by(message: &Message) -> Option<String> {
    let text = match message {
        Message::User { content } => Content::text_of(content),
        Message::Assistant { blocks, .. } => {
            let texts = blocks.iter().filter_map(|block| match block {
                Block::Text { text, .. } => Some(text.as_str()),
                _ => None,
            });
            texts.collect()
        }
        Message::Results(_) => return None,
    };
    (!text.trim().is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_found_in_whatever_words_are_around_it() {
        let known = ["finder".to_owned()];
        let plan = |text: &str| {
            let blocks = vec![Block::Text { text: text.into(), signature: None }];
            Plan::of(&Answer { blocks, ..Answer::default() }, &known)
        };
        let steps = vec!["Look.".to_owned()];
        let expected = Some(Plan { agent: Some("finder".into()), steps: steps.clone() });
        assert_eq!(
            plan("Here:\n```json\n{\"agent\": \"finder\", \"steps\": [\"Look.\", \" \"]}\n```"),
            expected
        );
        // Nobody is sent to an agent that is not there.
        let expected = Some(Plan { agent: None, steps });
        assert_eq!(plan("{\"agent\": \"ghost\", \"steps\": [\"Look.\"]}"), expected);
        for nothing in ["", "No plan.", "{\"agent\": null, \"steps\": []}", "} {", "{\"steps\": 3}"] {
            assert_eq!(plan(nothing), None, "{nothing:?}");
        }
    }
}
