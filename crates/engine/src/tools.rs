//! The tools that an agent may call.
//!
//! A tool that fails tells the model why; nothing that a tool does ends the turn or the engine.

pub(crate) mod approval;
mod ask_user;
mod command;
mod exposed_tools;
mod files;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod grants;
mod http_tool;
mod load_skill;
mod memory_save;
mod memory_search;
mod process;
mod read;
mod run_agent;
mod run_skill_script;
mod schema;
mod schema_cost;
mod shell;
mod spill;
mod tool_search;
mod web;
mod web_fetch;
mod working_memory;
mod write;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use contract::{CallId, MemoryId};
use futures::future::BoxFuture;
use leash::Sandbox;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::catalog::{AgentSpec, Catalog, CatalogTool, Permissions, ToolImplementation};
use crate::llm::ToolSpec;
use crate::memory_budget::MemoryBudget;
use crate::skills::{SkillDirs, Skills};
use crate::store::{Brain, KnowledgeDraft, TaskRow};

pub(crate) use ask_user::NAME as ASK_USER;
pub(crate) use exposed_tools::ExposedTools;
pub use http_tool::HttpCall;
pub(crate) use load_skill::NAME as LOAD_SKILL;
pub(crate) use memory_save::NAME as MEMORY_SAVE;
pub(crate) use memory_search::NAME as MEMORY_SEARCH;
pub use process::ProcessPermits;
pub use run_agent::Delegation;
pub(crate) use run_agent::NAME as RUN_AGENT;
pub(crate) use run_skill_script::NAME as RUN_SKILL_SCRIPT;
pub(crate) use schema::Schema;
pub(crate) use spill::SpillDir;
pub use web::WebAllowlist;
pub(crate) use web::{error_chain, read_body, special_purpose};
pub(crate) use working_memory::{NAME as WORKING_MEMORY_SET, validate_working_memory};

/// The names of the built-in tools, whether they are offered or not: no other tool may have one of them.
pub(crate) const BUILT_IN_NAMES: [&str; 15] = [
    WORKING_MEMORY_SET,
    MEMORY_SEARCH,
    MEMORY_SAVE,
    ASK_USER,
    load_skill::NAME,
    run_skill_script::NAME,
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "shell",
    web_fetch::NAME,
    RUN_AGENT,
    tool_search::NAME,
    exposed_tools::TOOL_CALL,
];

/// A tool.
pub trait Tool: Send + Sync {
    /// What the model is told of it.
    fn spec(&self) -> ToolSpec;

    /// Whether running it twice with the same input is as good as once. After a crash in its middle such a
    /// tool is simply run again; of any other the model is told that the outcome is unknown.
    fn idempotent(&self) -> bool;

    /// Whether it needs a person's leave where nobody has decided otherwise.
    fn permission(&self) -> Permission;

    /// What a person is told of a call that wants leave: what will happen, in words that they can judge. It may
    /// look at what is there now. Blocks.
    fn approval_prompt(&self, input: &Value) -> String {
        approval::default_prompt(&self.spec().name, input)
    }

    /// A hash of what it is and where it works: what a person allows for good holds for as long as that stays the same.
    /// None for a tool that comes with the engine.
    fn binding(&self) -> Option<String> {
        None
    }

    /// Whether it works in a turn only.
    fn needs_turn(&self) -> bool {
        false
    }

    /// Whether it is a tool of a connected server: such tools are searched for where there are too many.
    fn is_mcp_tool(&self) -> bool {
        false
    }

    /// How many bytes of what a call gives the model is told whole; of more it is told the ends, and where the rest is.
    fn inline_limit(&self, _input: &Value) -> usize {
        spill::MAX_INLINE_BYTES
    }

    /// The command that a call of it runs, if it runs commands: a person's `always` covers only those that begin
    /// alike.
    fn command(&self, _input: &Value) -> Option<String> {
        None
    }

    /// The sub-agent that a call of it runs, or why it cannot; none for a tool that runs by itself.
    fn sub_agent(&self, _input: &Value) -> Option<Result<Delegation, ToolError>> {
        None
    }

    /// Runs it. A tool that asks a person something is run again with the answer; what it did before it asked is
    /// then on record as done.
    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>>;
}

/// Whether a tool may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Without asking.
    Allow,
    /// If a person gives leave.
    Ask,
    /// Never.
    Deny,
}

impl Permission {
    /// The permission that a catalog calls so.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "allow" => Some(Self::Allow),
            "ask" => Some(Self::Ask),
            "deny" => Some(Self::Deny),
            _ => None,
        }
    }
}

/// What a tool is run with.
#[derive(Clone, Debug, PartialEq)]
pub struct Invocation {
    /// The call.
    pub call_id: CallId,
    /// The task in which it is made; none where it is made beside all tasks.
    pub task: Option<TaskRow>,
    /// What the model gave it, a JSON object.
    pub input: Value,
    /// The answers to what it asked so far, oldest first.
    pub answers: Vec<HumanAnswer>,
}

/// A person's answer to what a tool asked. What else the person said reaches the model by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HumanAnswer {
    /// The answer.
    pub answer: String,
}

/// How far a run of a tool came.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolStep {
    /// To its end.
    Done(ToolOutput),
    /// To a question for a person.
    Ask(Question),
}

/// A question for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The text to show.
    pub text: String,
    /// Answers to choose from, if there are some; another answer is taken too.
    pub options: Option<Vec<String>>,
}

/// What a tool gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolOutput {
    /// What the model is told.
    pub text: String,
    /// What it changes in the task's working memory, committed together with the result.
    pub working_memory: Vec<(String, Value)>,
    /// What is to be known beyond the task, committed together with the result. The engine says where it came from.
    pub knowledge: Option<(MemoryId, KnowledgeDraft)>,
}

/// Why a tool failed, as the model is told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

/// What the built-in tools work with.
#[derive(Clone)]
pub struct ToolDeps {
    /// The folder that the tools for files work in.
    pub workspace: PathBuf,
    /// What the agent remembers.
    pub brain: Brain,
    /// What the product gives the agent.
    pub catalog: Catalog,
    /// Where the user's own skills are laid out for programs.
    pub(crate) skill_dirs: Arc<SkillDirs>,
    /// What runs programs; without it tools that run some are not offered.
    pub sandbox: Option<Arc<Sandbox>>,
    /// Where programs run at once.
    pub process_permits: ProcessPermits,
    /// What of the web may be reached although it is not public.
    pub web_allowlist: WebAllowlist,
    /// What large things may take of the memory.
    pub(crate) memory_budget: MemoryBudget,
}

/// The tools at hand.
pub struct Toolbox {
    tools: Vec<Arc<dyn Tool>>,
    names: Vec<String>,
    schemas: Vec<Schema>,
    permissions: Permissions,
    /// What a model with such a context window is told: made once, for there may be many tools.
    exposed_cache: Mutex<Option<(u64, Arc<ExposedTools>)>>,
}

impl Toolbox {
    /// The built-in tools, and behind them those of the catalog.
    pub fn built_in(setup: &ToolDeps) -> Self {
        let workspace = files::Workspace::new(&setup.workspace);
        let mut tools: Vec<Arc<dyn Tool>> = vec![
            Arc::new(working_memory::WorkingMemorySet),
            Arc::new(memory_save::MemorySave(setup.brain.clone())),
            Arc::new(memory_search::MemorySearch(setup.brain.clone())),
            Arc::new(ask_user::AskUser),
            Arc::new(read::ReadFile(workspace.clone())),
            Arc::new(read::ListFiles(workspace.clone())),
            Arc::new(write::WriteFile(workspace.clone())),
            Arc::new(write::EditFile(workspace.clone())),
            Arc::new(web_fetch::WebFetch::new(web::WebClient::new(
                setup.web_allowlist.clone(),
                setup.memory_budget.clone(),
            ))),
        ];
        let Catalog { skills, permissions, .. } = &setup.catalog;
        // Offered also while there are no skills: the user may make some in the middle of a task.
        let skills = Skills::new(skills.clone(), setup.brain.clone());
        tools.push(Arc::new(load_skill::LoadSkill(skills.clone())));
        let usable = setup.sandbox.as_ref().filter(|leash| leash.is_usable());
        let programs = usable.map(|leash| {
            process::ProcessRunner::new(
                Arc::clone(leash),
                SpillDir::new(&setup.workspace),
                setup.process_permits.clone(),
            )
        });
        if let Some(programs) = &programs {
            let network = permissions.allows_network(run_skill_script::NAME);
            let shelf = Arc::clone(&setup.skill_dirs);
            let run = run_skill_script::RunSkillScript::new(skills, shelf, programs.clone(), network);
            tools.push(Arc::new(run));
            tools.push(Arc::new(shell::Shell::new(
                programs.clone(),
                workspace,
                permissions.allows_network("shell"),
            )));
        }
        let catalog = setup.catalog.tools.iter();
        tools.extend(catalog.filter_map(|tool| catalog_tool(tool, programs.as_ref(), &setup.memory_budget)));
        Self::new(tools, permissions.clone())
    }

    /// These tools, and one that runs the agents if there are some.
    #[must_use]
    pub fn with_agents(mut self, agents: &[Arc<AgentSpec>]) -> Self {
        if agents.is_empty() {
            return self;
        }
        self.tools.push(Arc::new(run_agent::RunAgent::new(agents.to_vec())));
        Self::new(self.tools, self.permissions)
    }

    /// These tools, and behind them those of servers.
    pub(crate) fn with_mcp_tools(&self, of_servers: Vec<Arc<dyn Tool>>) -> Self {
        Self::new(self.tools.iter().cloned().chain(of_servers).collect(), self.permissions.clone())
    }

    /// These tools, in this order, on which the operator has decided so.
    pub fn new(mut tools: Vec<Arc<dyn Tool>>, permissions: Permissions) -> Self {
        let of_servers: Vec<_> = tools.iter().filter(|tool| tool.is_mcp_tool()).cloned().collect();
        if !of_servers.is_empty() && tools.iter().all(|tool| tool.spec().name != tool_search::NAME) {
            tools.push(Arc::new(tool_search::ToolSearch::new(of_servers)));
        }
        let names = tools.iter().map(|tool| tool.spec().name).collect();
        let schemas = tools.iter().map(|_| Schema::default()).collect();
        Self { tools, names, schemas, permissions, exposed_cache: Mutex::default() }
    }

    /// What the agent's model is told, if its context window has so many tokens.
    pub(crate) fn exposed_tools(&self, window: u64) -> Arc<ExposedTools> {
        let mut made = self.exposed_cache.lock().unwrap_or_else(PoisonError::into_inner);
        match &*made {
            Some((its, offer)) if *its == window => Arc::clone(offer),
            _ => {
                let offer = Arc::new(ExposedTools::new(&self.allowed(|_| true), window));
                *made = Some((window, Arc::clone(&offer)));
                offer
            }
        }
    }

    /// What a sub-agent's model is told of the tools that it may call. It runs no agents of its own.
    pub(crate) fn exposed_tools_for(&self, agent: &AgentSpec, window: u64) -> ExposedTools {
        let may = |name: &String| {
            let listed = |globs: &Vec<String>| globs.iter().any(|glob| glob_matches(glob, name));
            // The search is told of only where there is something to find.
            name == tool_search::NAME || (name != RUN_AGENT && agent.tools.as_ref().is_none_or(listed))
        };
        ExposedTools::new(&self.allowed(may), window)
    }

    /// Whether the tool `name` is there and not denied.
    pub(crate) fn is_available(&self, name: &str) -> bool {
        self.find(name).is_some_and(|tool| self.permission(name, &*tool) != Permission::Deny)
    }

    /// Those that are not denied, as far as `may` says.
    fn allowed(&self, may: impl Fn(&String) -> bool) -> Vec<Arc<dyn Tool>> {
        let named = self
            .names
            .iter()
            .zip(&self.tools)
            .filter(|(name, tool)| may(name) && self.permission(name, &***tool) != Permission::Deny);
        named.map(|(_, tool)| Arc::clone(tool)).collect()
    }

    /// The tool called `name`.
    pub fn find(&self, name: &str) -> Option<Arc<dyn Tool>> {
        let named = self.names.iter().zip(&self.tools).find(|(known, _)| *known == name);
        named.map(|(_, tool)| Arc::clone(tool))
    }

    /// Whether a tool may be used: as the catalog has it, else as is usual for the tool.
    pub fn permission(&self, name: &str, tool: &dyn Tool) -> Permission {
        match (self.permissions.decision(name), tool.permission()) {
            // Of a file that could not be read nobody knows that it allows more.
            (_, Permission::Deny) if self.permissions.unreadable => Permission::Deny,
            (decision, primary) => decision.unwrap_or(primary),
        }
    }

    /// Whether a tool may be used where nobody could be asked.
    pub(crate) fn may_run_unattended(&self, name: &str, tool: &dyn Tool) -> bool {
        !self.permissions.unreadable && self.permission(name, tool) != Permission::Deny
    }

    /// All of them.
    pub fn all(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }

    /// Whether an input is as the schema of the tool `name` says.
    ///
    /// # Errors
    /// For the model: where it is not.
    pub(crate) fn validate_input(&self, name: &str, input: &Value) -> Result<(), String> {
        let mut named = self.names.iter().zip(&self.tools).zip(&self.schemas);
        let found = named.find(|((known, _), _)| *known == name);
        found.map_or(Ok(()), |((_, tool), schema)| schema.validate(&tool.spec().input_schema, input))
    }
}

/// A tool of the catalog; none where it runs a program and none can be run.
fn catalog_tool(
    tool: &Arc<CatalogTool>,
    programs: Option<&process::ProcessRunner>,
    memory: &MemoryBudget,
) -> Option<Arc<dyn Tool>> {
    match &tool.implementation {
        ToolImplementation::Command(command) => {
            Some(Arc::new(command::CommandTool::new(Arc::clone(tool), command.clone(), programs?.clone())))
        }
        ToolImplementation::Http(call) => {
            let spec = ToolSpec {
                name: tool.name.clone(),
                description: tool.description.clone(),
                input_schema: tool.input_schema.clone(),
            };
            let (permission, idempotent) = (tool.permission, tool.idempotent);
            Some(Arc::new(http_tool::HttpTool::new(
                spec,
                permission,
                idempotent,
                call.clone(),
                memory.clone(),
            )))
        }
    }
}

/// Whether a glob, in which `*` stands for any characters, is a name.
pub(crate) fn glob_matches(glob: &str, name: &str) -> bool {
    let Some((head, rest)) = glob.split_once('*') else { return glob == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    // Each part at its first place leaves the most room for those behind it.
    for part in middle.split('*') {
        let Some(found) = name.find(part).and_then(|at| name.get(at + part.len()..)) else { return false };
        name = found;
    }
    name.ends_with(tail)
}

/// Reads a tool's input.
fn parse_input<T: DeserializeOwned>(input: Value) -> Result<T, ToolError> {
    serde_json::from_value(input)
        .map_err(|error| ToolError(format!("the input is not as its schema says: {error}")))
}
