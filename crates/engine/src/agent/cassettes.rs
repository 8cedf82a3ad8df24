//! Turn cassettes: a turn is exported as one document, and a document is run again, on any model and with tools that
//! only return what was recorded.

mod document;
mod expectations;
mod export;
mod gateway_models;
mod player;
mod report;
mod tape;
mod text_diff;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::cassettes::{
    CASSETTE_FORMAT, CASSETTE_VERSION, Cassette, CassetteGap, CassetteOptions, CassetteOutcome,
    CassettePartName, CassettePrompt, CassetteReport, CassetteTool, MAX_CASSETTE_BYTES, ReplayWith,
    RunCassette,
};
use api::turn_options::TurnOverrides;
use api::turns::{TurnRecord, TurnState};
use api::usage::UsagePurpose;
use api::{TaskId, TurnId};
use document::{Recorded, record_message, record_reply};
use export::RecordedTurn;
use gateway_models::GatewayModel;
use llm::{Content, Message, Route, ToolSpec};
use player::{Limits, Prompt};
use resources::memory_budget::MemoryUse;
use store::steps::PromptHashes;
use tape::Tape;
use tools::ExposedTools;
use tracing::Instrument as _;

use super::attachments::{Attachments, LoadedAttachments};
use super::{Agent, AgentError, AgentSnapshot, caps, structured_output, turn_overrides};

/// The most bytes of files in a cassette.
const MAX_FILE_BYTES: usize = 8 << 20;
/// How long a run may take.
const RUN_TIMEOUT: Duration = Duration::from_mins(10);
/// The most model calls of a run.
const MAX_TURNS: u64 = 100;
/// The most tokens of a run unless the request sets it.
const DEFAULT_MAX_TOKENS: u64 = 1_000_000;

impl Agent {
    /// The cassette of a turn that has ended, as JSON. Without a task, the turn is looked up in all.
    pub async fn export_cassette(
        &self,
        task_id: Option<&TaskId>,
        turn_id: &str,
    ) -> Result<Vec<u8>, AgentError> {
        let unknown = || AgentError::UnknownTurn("there is no such turn, or it left nothing to export");
        let turn: TurnId = turn_id.parse().map_err(|_| unknown())?;
        let task_id = match task_id {
            Some(task_id) => task_id.clone(),
            None => self.brain.task_of_turn(turn)?.ok_or_else(unknown)?,
        };
        let task = self.brain.task(&task_id)?.ok_or(AgentError::UnknownTask)?.row;
        // What an edit has removed is not found.
        let record = self.turn(&task_id, turn_id).await?;
        if record.ended_at.is_none() {
            return Err(AgentError::TurnNotEnded);
        }
        let _reserved = self.services.memory_budget.reserve(MemoryUse::Lists, MAX_CASSETTE_BYTES).await?;
        let read = self.brain.run_blocking(move |brain| export::read(brain, task, turn)).await;
        let mut recorded = read.ok_or(AgentError::Stopping)??.ok_or_else(unknown)?;
        let files = self.load_files(&mut recorded).await?;
        let snapshot = self.services.snapshots.current();
        let window = self.services.gateway.context_window();
        let json = move || {
            let cassette = build(&snapshot, window, (task_id, record), recorded, &files);
            // A cassette consists of texts and numbers.
            serde_json::to_vec(&cassette).unwrap_or_default()
        };
        let json = resources::threads::run_blocking(json).await.ok_or(AgentError::Stopping)?;
        if json.len() > MAX_CASSETTE_BYTES {
            return Err(AgentError::CassetteTooLarge(json.len()));
        }
        Ok(json)
    }

    /// Loads the files of a turn, as many as a cassette takes.
    async fn load_files(&self, recorded: &mut RecordedTurn) -> Result<LoadedAttachments, AgentError> {
        let replies = recorded.steps.iter_mut().flat_map(export::StepRecord::replies_mut);
        let replies = Message::Results(replies.map(|reply| reply.clone()).collect());
        let messages: Vec<Message> = recorded.messages.iter().cloned().chain([replies]).collect();
        let (brain, memory) = (self.brain.clone(), self.services.memory_budget.clone());
        let files = Attachments::in_messages(&messages).load_up_to(MAX_FILE_BYTES, brain, memory).await?;
        if files.has_left_out() {
            recorded.gaps.push(CassetteGap {
                part: CassettePartName::Files,
                reason: format!(
                    "the oldest files are left out: a cassette has at most {MAX_FILE_BYTES} bytes of them"
                ),
            });
        }
        if files.has_lost(&messages) {
            let reason = "a file is no longer stored".to_owned();
            recorded.gaps.push(CassetteGap { part: CassettePartName::Files, reason });
        }
        Ok(files)
    }

    /// Runs a cassette. It ends when the returned future is dropped.
    pub async fn run_cassette(&self, run: RunCassette) -> Result<CassetteReport, AgentError> {
        if let Some(cap) = caps::reached(&self.services, &self.brain, None)? {
            return Err(AgentError::UsageCapReached(cap));
        }
        let RunCassette { cassette, with } = run;
        let source = PromptSource::new(&self.services.snapshots.current(), &with)?;
        let route = self.route_for(&cassette, &source, &with)?;
        let busy_guard = self.begin_direct_call()?;
        let stopping = self.stopping.child_token();
        let _cancelled_with_the_caller = stopping.clone().drop_guard();
        let caller = self.outside_caller(UsagePurpose::Replay, RUN_TIMEOUT, stopping);
        let services = Arc::clone(&self.services);
        let running = async move {
            let _busy_guard = busy_guard;
            let retry = services.gateway.routes().map(|routes| routes.retry).unwrap_or_default();
            let model = GatewayModel { caller, route: Arc::clone(&route), retry };
            let window = services.gateway.context_window();
            let name = route.name.clone();
            let prepared =
                resources::threads::run_blocking(move || prepare(cassette, source, &with, &route, window));
            let (cassette, prompt, tape, limits) = prepared.await.ok_or(AgentError::Stopping)??;
            let performance = player::play(prompt, tape, limits, &model).await?;
            let report =
                resources::threads::run_blocking(move || report::report(cassette, name, performance));
            report.await.ok_or(AgentError::Stopping)
        };
        // Runs in a task of its own, so that its cost is recorded even if the caller is gone.
        self.tracker
            .spawn(traces::in_current_span(running.in_current_span()))
            .await
            .unwrap_or(Err(AgentError::Stopping))
    }

    /// The model of a run: the one that is asked for, that of the agent, the one that is recorded, or the default one.
    fn route_for(
        &self,
        cassette: &Cassette,
        source: &PromptSource,
        with: &ReplayWith,
    ) -> Result<Arc<Route>, AgentError> {
        let routes = self.services.gateway.routes();
        let routes = routes.map_err(|error| AgentError::Invalid(format!("`model`: {}", error.message)))?;
        let recorded = cassette.steps.first().map(|step| step.model.as_str());
        let recorded = routes.named.iter().find(|route| Some(route.model.name()) == recorded);
        let model = with.model.clone().or_else(|| source.model().map(str::to_owned));
        let model = model.or_else(|| recorded.map(|route| route.name.clone()));
        let overrides = TurnOverrides { model, effort: with.effort, ..TurnOverrides::default() };
        turn_overrides::validate_model(&overrides, &routes)
    }
}

/// Where the system prompt and the tools of a run come from.
enum PromptSource {
    Cassette,
    Catalog(Arc<AgentSnapshot>),
    Agent(Arc<AgentSnapshot>, Arc<catalog::AgentSpec>),
}

impl PromptSource {
    fn new(snapshot: &Arc<AgentSnapshot>, with: &ReplayWith) -> Result<Self, AgentError> {
        match &with.agent {
            Some(_) if with.catalog || with.soul.is_some() => Err(AgentError::Invalid(
                "`with.agent`: has its own prompt and tools; leave out `soul` and `catalog`".to_owned(),
            )),
            Some(name) => {
                let agent = snapshot.agents.iter().find(|agent| agent.name == *name).ok_or_else(|| {
                    let names: Vec<&str> = snapshot.agents.iter().map(|agent| agent.name.as_str()).collect();
                    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                    AgentError::Invalid(format!(
                        "`with.agent`: the catalog has no such agent; it has: {known}"
                    ))
                })?;
                Ok(Self::Agent(Arc::clone(snapshot), Arc::clone(agent)))
            }
            None if with.catalog => Ok(Self::Catalog(Arc::clone(snapshot))),
            None => Ok(Self::Cassette),
        }
    }

    /// The model of the agent.
    fn model(&self) -> Option<&str> {
        match self {
            Self::Agent(_, agent) => agent.model.as_deref(),
            Self::Cassette | Self::Catalog(_) => None,
        }
    }

    /// The system prompt and the tools, where the default model has a context window of `window` tokens.
    fn take(self, cassette: &mut Cassette, window: u64) -> (String, ExposedTools) {
        let (snapshot, system) = match self {
            Self::Cassette => return recorded_prompt(&mut cassette.prompt),
            Self::Agent(snapshot, agent) => {
                let tools = snapshot.toolbox.exposed_tools_for(&agent, window);
                return (agent.prompt.clone(), tools);
            }
            Self::Catalog(snapshot) => {
                let soul = snapshot.soul.clone();
                (snapshot, soul)
            }
        };
        let tools = snapshot.toolbox.exposed_tools(window);
        let searchable = tools.searchable().map(str::to_owned).collect();
        (system, ExposedTools::from_recorded(tools.specs(), searchable))
    }
}

fn recorded_prompt(prompt: &mut CassettePrompt) -> (String, ExposedTools) {
    let specs = std::mem::take(&mut prompt.tools)
        .into_iter()
        .map(|CassetteTool { name, description, input_schema }| ToolSpec { name, description, input_schema });
    let searchable = std::mem::take(&mut prompt.searchable_tools).into_iter().collect::<BTreeSet<_>>();
    (std::mem::take(&mut prompt.system), ExposedTools::from_recorded(specs, searchable))
}

/// What a run begins with. Blocks.
fn prepare(
    mut cassette: Cassette,
    source: PromptSource,
    with: &ReplayWith,
    route: &Route,
    window: u64,
) -> Result<(Cassette, Prompt, Tape, Limits), AgentError> {
    if let Some(format) = &cassette.prompt.options.response_format {
        structured_output::check_schema(format)?;
    }
    let (system, tools) = source.take(&mut cassette, window);
    let system = with.soul.as_ref().map_or(system, |soul| soul.as_str().to_owned());
    let Recorded { mut messages, steps } = Recorded::take_from(&mut cassette, &*route.model)?;
    if let Some(instructions) = with.instructions.clone() {
        let mut overrides = TurnOverrides { instructions: Some(instructions), ..TurnOverrides::default() };
        add_notes(&mut messages, turn_overrides::take_notes(&mut overrides));
    }
    let options = &cassette.prompt.options;
    // A model that takes no effort is not asked for what the recorded one was.
    let recorded_effort = options.effort.filter(|_| route.model.supports_effort().is_ok());
    let max_turns = with.max_turns.and_then(|max| u64::try_from(max.get()).ok()).unwrap_or(options.max_turns);
    let max_tokens = with.max_tokens.and_then(|max| u64::try_from(max.get()).ok());
    let limits = Limits {
        max_turns: usize::try_from(max_turns.clamp(1, MAX_TURNS)).unwrap_or(1),
        max_tokens: max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
    };
    let prompt = Prompt {
        system,
        tools,
        messages,
        options: CassetteOptions { effort: with.effort.or(recorded_effort), ..options.clone() },
        is_correction: false,
        cache_key: cassette.turn_id.to_string(),
    };
    Ok((cassette, prompt, Tape::new(steps), limits))
}

/// Adds notes to the user's last message.
fn add_notes(messages: &mut [Message], notes: Vec<String>) {
    let last = messages.iter_mut().rev().find_map(|message| match message {
        Message::User { content } => Some(content),
        Message::Assistant { .. } | Message::Results(_) => None,
    });
    if let Some(content) = last {
        content.splice(..0, notes.into_iter().map(|text| Content::Note { text }));
    }
}

/// Builds the cassette of a turn.
fn build(
    snapshot: &AgentSnapshot,
    window: u64,
    (task_id, record): (TaskId, TurnRecord),
    recorded: RecordedTurn,
    files: &LoadedAttachments,
) -> Cassette {
    let tools = snapshot.toolbox.exposed_tools(window);
    let mut incomplete = prompt_gaps(recorded.prompt.as_ref(), &snapshot.prompt_hashes(window));
    incomplete.extend(recorded.gaps);
    let overrides = recorded.options.overrides.unwrap_or_default();
    let messages = files.insert_into(&recorded.messages).into_owned();
    let steps: Vec<_> = recorded
        .steps
        .into_iter()
        .map(|step| {
            step.into_step(|reply| {
                let with_files = files.insert_into(&[Message::Results(vec![reply.clone()])]).into_owned();
                match with_files.into_iter().next() {
                    Some(Message::Results(replies)) => {
                        replies.into_iter().next().map(record_reply).unwrap_or_default()
                    }
                    _ => record_reply(reply),
                }
            })
        })
        .collect();
    Cassette {
        format: CASSETTE_FORMAT.to_owned(),
        version: CASSETTE_VERSION,
        task_id,
        turn_id: record.turn_id,
        started_at: record.started_at,
        ended_at: record.ended_at.or(Some(recorded.last_at)),
        incomplete,
        prompt: CassettePrompt {
            system: snapshot.soul.clone(),
            tools: tools
                .specs()
                .map(|ToolSpec { name, description, input_schema }| CassetteTool {
                    name,
                    description,
                    input_schema,
                })
                .collect(),
            searchable_tools: tools.searchable().map(str::to_owned).collect(),
            messages: messages.into_iter().map(record_message).collect(),
            options: CassetteOptions {
                max_turns: recorded.options.max_turns,
                thinking: recorded.options.super_thinking,
                effort: overrides.effort,
                response_format: overrides.response_format,
            },
        },
        outcome: CassetteOutcome {
            state: record.state,
            stop_reason: record.stop_reason,
            text: match record.state {
                TurnState::Completed => record.text.unwrap_or_default(),
                _ => steps
                    .last()
                    .map(|step: &api::cassettes::CassetteStep| step.text.clone())
                    .unwrap_or_default(),
            },
            error: record.error.map(|failure| failure.message),
        },
        steps,
        expect: Vec::new(),
    }
}

/// What is not as it was when the turn began.
fn prompt_gaps(then: Option<&PromptHashes>, now: &PromptHashes) -> Vec<CassetteGap> {
    let gap = |part, is_same: Option<bool>, what: &str| {
        let reason = match is_same {
            Some(true) => return None,
            Some(false) => format!("{what} changed since the turn; this is what it is now"),
            None => format!("whether {what} changed since the turn is not recorded; this is what it is now"),
        };
        Some(CassetteGap { part, reason })
    };
    let system = gap(CassettePartName::System, then.map(|then| then.system == now.system), "the soul has");
    let tools =
        gap(CassettePartName::Tools, then.map(|then| then.tools == now.tools), "the set of tools has");
    system.into_iter().chain(tools).collect()
}

#[cfg(test)]
#[path = "../../tests/unit/agent/cassettes.rs"]
mod tests;
