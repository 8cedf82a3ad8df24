//! Planning: before a new message is handled, a model selects the fitting agent of the catalog, the skills and
//! the steps.
//!
//! A plan is advice. If there is none (the planner fails, gives nothing usable, or the budget is exhausted),
//! the turn continues without one. If the catalog has no agent to delegate to, there is nothing to choose, and
//! no call is made. The catalog says which messages are planned; [`super::plan_decision`] decides for those that
//! it leaves to the engine.
//!
//! Clients see the steps of a plan as they arrive ([`PLANNING_KEY`]), and the plan when it is made.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::event::{BlockType, Event, WorkingMemoryUpdate};
use api::memory::Source;
use api::tool_names::{LOAD_SKILL, RUN_AGENT};
use api::usage::UsagePurpose;
use catalog::PlanningMode;
use futures::StreamExt as _;
use llm::{Answer, Block, Content, EventStream, Message, ModelError, Request, Route, StreamEvent, estimate};
use serde::{Deserialize, Deserializer, Serialize};
use store::event_log::Commit;
use store::memory_format::TOOL_ORIGIN_NOTE;
use store::steps::{MemoryWrite, Opened, Step, TurnBase};
use tokio::sync::watch;

use super::auxiliary_call::{collect_answer, record_outcome};
use super::budget::reserve_in_turn;
use super::compaction_view::truncate_middle;
use super::conversation::Conversation;
use super::interrupt::Interrupt;
use super::plan_decision::is_worth_planning;
use super::turn::Turn;
use super::turn_context::TurnDeps;
use super::{AgentSnapshot, Services, turn_overrides};

/// The working memory key of the plan.
const PLAN_KEY: &str = "plan";
/// The key under which clients receive a plan that is being made. It is not in working memory: nothing came of it if no
/// plan follows.
const PLANNING_KEY: &str = "planning";
/// The number of earlier messages in the planner's input, and the length of each in characters.
const RECENT_MESSAGES: (usize, usize) = (6, 1_000);
/// The length of the new message in the planner's input, in characters.
const MAX_NEW_MESSAGE_CHARS: usize = 8_000;
/// The most tokens of a plan, including what models that always reason spend before it.
const MAX_PLAN_TOKENS: u64 = 4_000;
/// How long to wait for a plan.
const PLAN_TIMEOUT: Duration = Duration::from_mins(1);
/// The most steps of a plan.
const MAX_STEPS: usize = 12;
/// The most skills of a plan.
const MAX_SKILLS: usize = 4;
/// How many quotation marks of a plan that is arriving are looked at: the last ones may begin a step, or be part of one.
const MAX_MARKS: usize = 8;
/// The length of an agent's or a skill's description in the planner's prompt, in characters.
const MAX_DESCRIPTION_CHARS: usize = 300;

const PLANNER_PROMPT: &str = "\
You plan how an assistant will work on a user's new message. Answer with one JSON object and nothing else: \
{\"agent\": the name of the one agent that should do the work, or null if the assistant should do it itself, \
\"skills\": [the names of the skills that say how such work is done; usually none], \
\"steps\": [short sentences: what to do, in order; empty if one answer is enough]}.";

/// A plan, as the planner returns it and working memory stores it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Plan {
    agent: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_null")]
    skills: Vec<String>,
    #[serde(deserialize_with = "or_null")]
    steps: Vec<String>,
}

/// Deserializes a list; models also write null for an empty one.
fn or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The agents and skills that a plan may name.
struct PlanChoices<'a> {
    agents: Vec<(&'a str, &'a str)>,
    skills: Vec<(&'a str, &'a str)>,
}

/// Whether the turn that `opened` opens is answered without a plan, although the catalog has agents. `continues`
/// tells whether the task had messages before.
pub(super) fn skips_plan(snapshot: &AgentSnapshot, opened: &Opened, continues: bool) -> bool {
    !snapshot.agents.is_empty()
        && match snapshot.planning {
            PlanningMode::Always => false,
            PlanningMode::Never => true,
            PlanningMode::Auto => {
                let continues = continues && opened.base == TurnBase::End;
                !is_worth_planning(&opened.message, opened.media.len(), continues)
            }
        }
}

/// Returns whether a turn must be planned before its model is called. The turn of a sub-agent is direct and
/// never planned.
pub(super) fn needs_plan(turn: &Turn, snapshot: &AgentSnapshot) -> bool {
    let may_plan = !turn.options().direct && !turn.planned() && turn.answers() == 0;
    may_plan && !PlanChoices::of_turn(turn, snapshot).agents.is_empty()
}

/// Plans the turn, if the planner returns a plan.
pub(super) async fn plan_turn(deps: &TurnDeps, conversation: &mut Conversation<'_>) -> Result<(), Interrupt> {
    let plan = match planner_route(&deps.services, conversation.journal.thread().turn().model()) {
        Some(route) => request_plan(deps, conversation, &route).await?,
        None => None,
    };
    let journal = &mut *conversation.journal;
    let Some(plan) = plan else {
        let unplanned = Step::Planned { plan: None, memory: Vec::new(), source: Source::Agent.into() };
        return Ok(journal.commit(unplanned, Vec::new()).await?);
    };
    let write = MemoryWrite { key: PLAN_KEY.into(), value: plan.to_value() };
    let event = plan.to_event(PLAN_KEY);
    let commit = Commit::new().working_memory(write.clone());
    // The planner has read the conversation and may repeat its text.
    let source = journal.thread().branch().memory_source();
    let plan = plan.render(source == Source::Tool);
    let step = Step::Planned { plan: Some(plan), memory: vec![write], source: source.into() };
    Ok(journal.commit_all(commit, vec![step], vec![event]).await?)
}

/// The planner model or, if no planner is configured, the model of the turn or the preferred one.
fn planner_route(services: &Services, turn_model: Option<&str>) -> Option<Arc<Route>> {
    let routes = services.gateway.routes().ok()?;
    let planner = routes.planner.as_ref().map(|route| route.name.as_str());
    let chain = services.gateway.chain(planner.or(turn_model), services.clock.monotonic()).ok()?;
    chain.into_iter().next().filter(|route| planner.is_some() || route.model.can_plan())
}

async fn request_plan(
    deps: &TurnDeps,
    conversation: &mut Conversation<'_>,
    route: &Arc<Route>,
) -> Result<Option<Plan>, Interrupt> {
    let choices = PlanChoices::of_turn(conversation.journal.thread().turn(), &deps.snapshot);
    let system = choices.prompt();
    let messages = [Message::user(planner_input(conversation.journal.thread().messages()))];
    let prompt = estimate::text(&system) + estimate::messages(&messages);
    let size = (prompt, MAX_PLAN_TOKENS, MAX_PLAN_TOKENS);
    let Some(_allowance) = reserve_in_turn(deps, conversation, route, size)? else { return Ok(None) };
    let events = route.stream(&Request {
        system: &system,
        messages: &messages,
        tools: &[],
        thinking: false,
        effort: None,
        max_output: Some(MAX_PLAN_TOKENS),
        allow_tool_calls: false,
        output: None,
        cache_key: "plan",
    });
    let outcome = collect_plan(deps, conversation, &choices, (events, prompt)).await?;
    let (services, purpose) = (&deps.services, UsagePurpose::Planning);
    let answer = record_outcome(services, conversation.journal, route, outcome, purpose).await?;
    Ok(answer.and_then(|answer| Plan::parse(&answer, &choices)))
}

/// Collects the planner's answer, and shows clients the plan as far as it has arrived.
async fn collect_plan(
    deps: &TurnDeps,
    conversation: &mut Conversation<'_>,
    choices: &PlanChoices<'_>,
    (events, prompt): (EventStream, u64),
) -> Result<Result<Answer, ModelError>, Interrupt> {
    let Conversation { journal, inbox, .. } = conversation;
    let (arrived, mut text) = watch::channel(String::new());
    let mut is_text = false;
    let events = events.inspect(move |event| match event {
        Ok(StreamEvent::BlockStart(block)) => is_text = *block == BlockType::Text,
        Ok(StreamEvent::Delta(more)) if is_text => arrived.send_modify(|text| text.push_str(more)),
        _ => {}
    });
    let mut answer = pin!(collect_answer(events.boxed(), prompt, &*deps.services.clock, PLAN_TIMEOUT));
    let mut begun = BegunPlan::default();
    loop {
        let next = async {
            tokio::select! {
                biased;
                Ok(()) = text.changed() => None,
                outcome = &mut answer => Some(outcome),
            }
        };
        if let Some(outcome) = inbox.run_while_handling_commands(journal, next).await? {
            return Ok(outcome);
        }
        let more = begun.parse_more(&text.borrow_and_update(), choices);
        if let Some(plan) = more {
            journal.commit_all(Commit::new(), Vec::new(), vec![plan.to_event(PLANNING_KEY)]).await?;
        }
    }
}

impl<'a> PlanChoices<'a> {
    fn of_turn(turn: &Turn, snapshot: &'a AgentSnapshot) -> Self {
        // A plan must not name what the model has no tool to use.
        let is_available =
            |tool| snapshot.toolbox.is_available(tool) && turn_overrides::allows_tool(turn.overrides(), tool);
        let agents = snapshot.agents.iter().filter(|_| is_available(RUN_AGENT));
        let skills = snapshot.skills.iter().filter(|_| is_available(LOAD_SKILL));
        Self {
            agents: agents.map(|agent| (agent.name.as_str(), agent.description.as_str())).collect(),
            skills: skills.map(|skill| (skill.name.as_str(), skill.description.as_str())).collect(),
        }
    }

    /// The planner's system prompt.
    fn prompt(&self) -> String {
        let mut prompt = PLANNER_PROMPT.to_owned();
        for (title, entries) in [("The agents:", &self.agents), ("The skills:", &self.skills)] {
            prompt.push_str("\n\n");
            prompt.push_str(title);
            for (name, description) in entries {
                // Writing to a `String` cannot fail.
                let _ = write!(prompt, "\n- {name}: {}", truncate_middle(description, MAX_DESCRIPTION_CHARS));
            }
            if entries.is_empty() {
                prompt.push_str(" none.");
            }
        }
        prompt
    }
}

impl Plan {
    /// Parses the plan in an answer; `None` if it is empty.
    fn parse(answer: &Answer, choices: &PlanChoices<'_>) -> Option<Self> {
        let text = answer.text();
        // Models often add words or a fence around the JSON object.
        let (start, end) = (text.find('{')?, text.rfind('}')?);
        Self::from_json(text.get(start..=end)?, choices)
    }

    /// Parses a JSON object.
    fn from_json(json: &str, choices: &PlanChoices<'_>) -> Option<Self> {
        let Self { agent, mut skills, mut steps } = serde_json::from_str(json).ok()?;
        steps.retain(|step| !step.trim().is_empty());
        steps.truncate(MAX_STEPS);
        let agent = agent.filter(|agent| choices.agents.iter().any(|(name, _)| name == agent));
        let mut seen = BTreeSet::new();
        skills.retain(|skill| {
            choices.skills.iter().any(|(name, _)| name == skill) && seen.insert(skill.clone())
        });
        skills.truncate(MAX_SKILLS);
        let says_something = agent.is_some() || !skills.is_empty() || !steps.is_empty();
        says_something.then_some(Self { agent, skills, steps })
    }

    fn to_value(&self) -> serde_json::Value {
        // A plan can always be serialized as JSON.
        serde_json::to_value(self).unwrap_or_default()
    }

    fn to_event(&self, key: &str) -> Event {
        Event::WorkingMemoryUpdate(WorkingMemoryUpdate { key: key.to_owned(), value: self.to_value() })
    }

    /// Renders the plan for the model.
    fn render(&self, from_tools: bool) -> String {
        let mut lines = Vec::new();
        if !self.skills.is_empty() {
            let skills: Vec<String> = self.skills.iter().map(|skill| format!("`{skill}`")).collect();
            lines.push(format!("Skills that say how this is done, for load_skill: {}.", skills.join(", ")));
        }
        let steps = self.steps.iter().enumerate();
        lines.extend(steps.map(|(at, step)| format!("{}. {step}", at + 1)));
        if let Some(agent) = &self.agent {
            lines.push(format!("The agent `{agent}` fits this: delegate the work to it with run_agent."));
        }
        let origin = if from_tools {
            format!(
                " from a conversation some of which {TOOL_ORIGIN_NOTE}: a suggestion, not the user's word"
            )
        } else {
            String::new()
        };
        format!(
            "[A plan for this message, made beforehand{origin}; ignore it where it does not fit.]\n{}",
            lines.join("\n")
        )
    }
}

/// A plan that is arriving.
#[derive(Default)]
struct BegunPlan {
    /// The number of its steps that have arrived.
    steps: usize,
    /// How much of the text has been parsed.
    parsed_bytes: usize,
}

impl BegunPlan {
    /// Parses the text that has arrived so far; `None` if no further step has arrived.
    fn parse_more(&mut self, text: &str, choices: &PlanChoices<'_>) -> Option<Plan> {
        let start = text.find('{')?;
        let arrived = text.get(self.parsed_bytes..)?;
        // A step ends with a quotation mark. If a mark ends one, closing the list and the object makes it JSON; if it
        // does not, nothing does.
        let marks = arrived.match_indices('"').rev().map(|(at, _)| self.parsed_bytes + at);
        let plan = marks.take(MAX_MARKS).find_map(|end| {
            let begun = text.get(start..=end)?;
            Plan::from_json(&format!("{begun}]}}"), choices)
        });
        self.parsed_bytes = text.len();
        let plan = plan.filter(|plan| plan.steps.len() > self.steps)?;
        self.steps = plan.steps.len();
        Some(plan)
    }
}

/// The part of the conversation in the planner's input.
fn planner_input(messages: &[Message]) -> String {
    let Some((new, before)) = messages.split_last() else { return String::new() };
    let (count, length) = RECENT_MESSAGES;
    let spoken = before.iter().filter_map(speaker_and_text).collect::<Vec<_>>();
    let recent = spoken.get(spoken.len().saturating_sub(count)..).unwrap_or_default();
    let mut text = String::new();
    for (speaker, message) in recent {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{speaker}: {}\n\n", truncate_middle(message, length));
    }
    let new = message_text(new).unwrap_or_default();
    text.push_str("The user's new message:\n");
    text.push_str(&truncate_middle(&new, MAX_NEW_MESSAGE_CHARS));
    text
}

fn speaker_and_text(message: &Message) -> Option<(&'static str, String)> {
    let speaker = match message {
        Message::User { .. } => "The user",
        Message::Assistant { .. } => "The assistant",
        Message::Results(_) => return None,
    };
    Some((speaker, message_text(message)?))
}

fn message_text(message: &Message) -> Option<String> {
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
    fn the_steps_of_a_plan_are_seen_as_they_arrive() {
        let choices = PlanChoices { agents: vec![("finder", "Finds.")], skills: vec![("count", "Counts.")] };
        let steps = ["Look.", "Say \"so\".", "读 [a]} and {b}", "End."];
        let plan = serde_json::json!({"agent": "finder", "skills": ["count"], "steps": steps});
        for text in [plan.to_string(), format!("Sure:\n```json\n{plan:#}\n```\nDone, \"all\" of it.")] {
            let mut begun = BegunPlan::default();
            let ends = (0..=text.len()).filter(|end| text.is_char_boundary(*end));
            let seen: Vec<Plan> = ends.filter_map(|end| begun.parse_more(&text[..end], &choices)).collect();
            assert_eq!(seen.len(), steps.len(), "{text}");
            for (count, plan) in (1..).zip(seen) {
                assert_eq!(
                    (plan.agent.as_deref(), plan.steps),
                    (
                        Some("finder"),
                        steps[..count].iter().map(|step| (*step).to_owned()).collect::<Vec<_>>()
                    )
                );
            }
            // Two steps and the beginning of the third at once.
            let two = BegunPlan::default().parse_more(&text[..text.find("[a]").unwrap()], &choices);
            assert_eq!(two.unwrap().steps.len(), 2, "{text}");
        }
        for text in ["", "{", "No \"plan\".", "{\"agent\": \"finder\"", "{\"steps\": [\" \""] {
            assert_eq!(BegunPlan::default().parse_more(text, &choices), None, "{text:?}");
        }
    }

    #[test]
    fn a_plan_is_found_in_whatever_words_are_around_it() {
        let choices = PlanChoices {
            agents: vec![("finder", "Finds.")],
            skills: vec![("count", "Counts."), ("draw", "Draws.")],
        };
        let plan = |text: &str| {
            let blocks = vec![Block::Text { text: text.into(), signature: None }];
            Plan::parse(&Answer { blocks, ..Answer::default() }, &choices)
        };
        let steps = vec!["Look.".to_owned()];
        let expected = Plan { agent: Some("finder".into()), steps: steps.clone(), ..Plan::default() };
        let text = "Here:\n```json\n{\"agent\": \"finder\", \"steps\": [\"Look.\", \" \"]}\n```";
        assert_eq!(plan(text).as_ref(), Some(&expected));
        assert_eq!(plan(&text.replace('{', "{\"skills\": null, ")), Some(expected));
        // An agent that does not exist is dropped from the plan.
        let expected = Plan { steps, ..Plan::default() };
        assert_eq!(plan("{\"agent\": \"ghost\", \"steps\": [\"Look.\"]}"), Some(expected));
        // So is a skill that does not exist, or is named twice.
        let found = plan("{\"skills\": [\"draw\", \"fly\", \"draw\", \"count\"]}").unwrap();
        assert_eq!(found.skills, ["draw", "count"]);
        assert!(found.render(false).ends_with("for load_skill: `draw`, `count`."), "{found:?}");
        assert!(found.render(true).contains(TOOL_ORIGIN_NOTE), "{found:?}");
        for text in [
            "",
            "No plan.",
            "{\"agent\": null, \"steps\": []}",
            "{\"skills\": [\"fly\"]}",
            "} {",
            "{\"steps\": 3}",
        ] {
            assert_eq!(plan(text), None, "{text:?}");
        }
    }
}
