//! The active conversation of a turn: its own, or that of the sub-agent that is running.

use std::sync::Arc;

use catalog::AgentSpec;
use llm::estimate;
use tools::ExposedTools;

use super::AgentSnapshot;
use super::inbox::Inbox;
use super::journal::Journal;
use super::turn_context::TurnDeps;

/// The agent of a conversation, as its model is to see it.
#[derive(Clone)]
pub(super) enum ActiveAgent {
    /// The user's own agent.
    Main {
        snapshot: Arc<AgentSnapshot>,
        /// The tools that it may call.
        tools: Arc<ExposedTools>,
    },
    /// A sub-agent.
    Sub {
        /// Its definition in the catalog.
        spec: Arc<AgentSpec>,
        /// The tools that it may call.
        tools: Arc<ExposedTools>,
    },
}

impl ActiveAgent {
    /// The user's own agent.
    pub(super) fn main(deps: &TurnDeps) -> Self {
        let tools = deps.snapshot.toolbox.exposed_tools(deps.services.gateway.context_window());
        Self::Main { snapshot: Arc::clone(&deps.snapshot), tools }
    }

    /// A sub-agent.
    pub(super) fn sub(deps: &TurnDeps, spec: Arc<AgentSpec>) -> Self {
        let window = deps.services.gateway.context_window();
        let tools = Arc::new(deps.snapshot.toolbox.exposed_tools_for(&spec, window));
        Self::Sub { spec, tools }
    }

    /// Whether it is a sub-agent.
    pub(super) fn is_sub_agent(&self) -> bool {
        matches!(self, Self::Sub { .. })
    }

    /// Its name, if it is a sub-agent.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Main { .. } => None,
            Self::Sub { spec, .. } => Some(&spec.name),
        }
    }

    /// Its system prompt.
    pub(super) fn system_prompt(&self) -> &str {
        match self {
            Self::Main { snapshot, .. } => &snapshot.soul,
            Self::Sub { spec, .. } => &spec.prompt,
        }
    }

    /// The tools that it may call.
    pub(super) fn tools(&self) -> &ExposedTools {
        match self {
            Self::Main { tools, .. } | Self::Sub { tools, .. } => tools,
        }
    }

    /// The model configured for it, if it is a sub-agent with a model of its own.
    pub(super) fn model(&self) -> Option<&str> {
        match self {
            Self::Main { .. } => None,
            Self::Sub { spec, .. } => spec.model.as_deref(),
        }
    }

    /// The tokens that it may spend, if it is a sub-agent with a budget.
    pub(super) fn max_tokens(&self) -> Option<u64> {
        match self {
            Self::Main { .. } => None,
            Self::Sub { spec, .. } => spec.max_tokens,
        }
    }
}

/// The active conversation, for one step of it.
pub(super) struct Conversation<'a> {
    pub(super) agent: &'a ActiveAgent,
    pub(super) journal: &'a mut Journal,
    /// The commands to handle while the step waits.
    pub(super) inbox: &'a mut Inbox,
}

impl Conversation<'_> {
    /// The number of tokens of the next prompt.
    pub(super) fn prompt_tokens(&self) -> u64 {
        let branch = self.journal.active_thread().branch();
        match branch.measured_tokens() {
            Some((counted, since)) => counted + estimate::messages(since),
            None => self.prefix_tokens() + estimate::messages(branch.messages()),
        }
    }

    /// The number of tokens before the conversation: system prompt and tools.
    pub(super) fn prefix_tokens(&self) -> u64 {
        estimate::text(self.agent.system_prompt()) + self.agent.tools().tokens()
    }

    /// The tokens that its agent may still spend, if it has a budget.
    pub(super) fn tokens_left(&self) -> Option<u64> {
        let usage = self.journal.active_thread().turn().usage();
        Some(self.agent.max_tokens()?.saturating_sub(usage.input_tokens + usage.output_tokens))
    }
}
