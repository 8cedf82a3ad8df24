//! The tools that an agent may call: their trait, their permissions, and the set that a model gets.
//!
//! A tool that fails reports the reason to the model; nothing that a tool does ends the turn or the engine.

pub mod approval;
mod ask_user;
mod beneath;
mod citable;
mod command;
pub mod documents;
mod exposed_tools;
mod files;
pub mod fingerprint;
#[cfg(test)]
#[path = "../tests/unit/fixture.rs"]
pub mod fixture;
pub mod grants;
pub mod hooks;
mod http_tool;
mod load_skill;
pub mod media;
mod memory_forget;
mod memory_save;
mod memory_search;
pub mod patterns;
mod process;
mod read;
mod run_agent;
mod run_skill_script;
mod schedules;
mod shell;
pub mod skills;
mod spill;
mod spill_name;
#[cfg(test)]
#[path = "../tests/unit/testing.rs"]
mod testing;
mod tool_search;
pub mod user_files;
mod web_fetch;
mod web_search;
mod working_memory;
mod write;

use std::path::PathBuf;
use std::sync::Arc;

use api::approvals::{ApprovalPreview, ApprovalRisk};
use api::memory::Source;
use api::tool_names::{RUN_AGENT, RUN_SKILL_SCRIPT, SHELL, TOOL_SEARCH};
use api::{CallId, MemoryId, Timestamp};
use catalog::{
    AgentSpec, Catalog, CatalogTool, Permission, Permissions, Schema, ToolImplementation, glob_matches,
};
pub use citable::{CitablePage, insert_numbers, insert_own_numbers};
pub use exposed_tools::ExposedTools;
pub use files::WorkspaceLock;
use futures::future::BoxFuture;
use llm::{Content, ToolSpec};
use parking_lot::Mutex;
use patterns::Subject;
pub use process::ProcessPermits;
use resources::memory_budget::MemoryBudget;
use resources::threads;
pub use run_agent::Delegation;
use sandbox::Sandbox;
pub use schedules::no_schedule_place;
use serde::de::DeserializeOwned;
use serde_json::Value;
pub use spill::SpillDir;
use store::{Brain, KnowledgeDraft, ScheduleChange, TaskRow};
pub use working_memory::validate_working_memory;

use crate::documents::DocumentReader;
use crate::skills::{SkillDirs, Skills};

/// A tool that a model can call.
pub trait Tool: Send + Sync {
    /// Returns the declaration that the model receives: name, description and input schema.
    fn spec(&self) -> ToolSpec;

    /// Whether a second run with the same input leaves everything as one run does, although its result may differ.
    /// After a crash during a call, an idempotent tool is run again; for any other tool the model is informed that
    /// the outcome is unknown.
    fn idempotent(&self) -> bool;

    /// The default permission, which applies if the catalog sets none.
    fn permission(&self) -> Permission;

    /// Whether a call is put to a person, although the tool is allowed, if the conversation has seen content that
    /// nobody has vouched for.
    fn asks_after_untrusted_content(&self) -> bool {
        false
    }

    /// Returns the text of the approval prompt for a call: what will happen, in words that a person can judge. It
    /// may read the present state, for example of a file. Blocks.
    fn approval_prompt(&self, input: &Value) -> String {
        approval::default_prompt(&self.spec().name, input)
    }

    /// Returns the preview of a call, for a product to show in its own way. It reads no more than
    /// [`Tool::approval_prompt`], and changes nothing. Blocks.
    fn approval_preview(&self, input: &Value) -> ApprovalPreview {
        approval::input_preview(input)
    }

    /// How much harm a call could do.
    fn risk(&self) -> ApprovalRisk {
        match self.permission() {
            Permission::Allow => ApprovalRisk::Low,
            Permission::Ask | Permission::Deny if self.idempotent() => ApprovalRisk::Medium,
            Permission::Ask | Permission::Deny => ApprovalRisk::High,
        }
    }

    /// Checks what the schema of an input cannot express, as far as the input alone tells: limits, forms of
    /// addresses. A call checks it too; this is for an input that a person is about to send.
    ///
    /// # Errors
    /// What is wrong, in words for a person.
    fn check_input(&self, _input: &Value) -> Result<(), ToolError> {
        Ok(())
    }

    /// What the pattern of a lasting approval is matched against; `None` if the approval covers the whole tool.
    fn grant_subject(&self, input: &Value) -> Option<Subject> {
        self.command(input).map(Subject::Command)
    }

    /// Returns a hash of the tool's definition and location; a lasting grant holds for as long as this value stays
    /// the same. `None` for a tool that comes with the engine.
    fn binding(&self) -> Option<String> {
        None
    }

    /// Whether the tool works only within a turn.
    fn needs_turn(&self) -> bool {
        false
    }

    /// Whether the tool belongs to a connected MCP server; if there are too many such tools, the model has to
    /// search for them.
    fn is_mcp_tool(&self) -> bool {
        false
    }

    /// Whether it belongs to a server that the user has added, which the operator does not know.
    fn is_of_user_server(&self) -> bool {
        false
    }

    /// The maximum number of bytes of a call's output that the model receives whole. Of a longer output it
    /// receives the head, the tail, and the path of the rest.
    fn inline_limit(&self, _input: &Value) -> usize {
        spill::MAX_INLINE_BYTES
    }

    /// The command that a call runs, if the tool runs commands. A person's `always` covers only commands that
    /// begin alike.
    fn command(&self, _input: &Value) -> Option<String> {
        None
    }

    /// The sub-agent that a call runs, or the reason why it cannot; `None` for a tool that does its own work.
    fn sub_agent(&self, _input: &Value) -> Option<Result<Delegation, ToolError>> {
        None
    }

    /// Runs the tool. A tool that asks a person a question is run again with the answer; what it did before the
    /// question is then already recorded.
    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>>;
}

/// The input of one run of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Invocation {
    /// The id of the call.
    pub call_id: CallId,
    /// When the tool is run.
    pub at: Timestamp,
    /// The task that makes the call; `None` for a call outside any task.
    pub task: Option<TaskRow>,
    /// The model's input, a JSON object.
    pub input: Value,
    /// The answers to the tool's questions so far, oldest first.
    pub answers: Vec<HumanAnswer>,
}

/// A person's answer to a tool's question. Anything else that the person wrote reaches the model as a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HumanAnswer {
    /// The text of the answer.
    pub answer: String,
}

/// The result of one run of a tool.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolStep {
    /// The tool has finished.
    Done(ToolOutput),
    /// The tool needs a person's answer and will be run again with it.
    Ask(Question),
}

/// A question to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The text to show.
    pub text: String,
    /// Suggested answers, if any; the person may also answer something else.
    pub options: Option<Vec<String>>,
}

/// The output of a finished tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolOutput {
    /// The text for the model.
    pub text: String,
    /// The source of the text, only for a trusted tool that shows memory records, which carry their own; otherwise
    /// `None`. A tool that is not trusted cannot claim one.
    pub source: Option<Source>,
    /// Changes to the task's working memory, committed together with the result.
    pub working_memory: Vec<(String, Value)>,
    /// A change of what is remembered beyond the task, committed together with the result.
    pub knowledge: Option<KnowledgeChange>,
    /// A change of the schedules, committed together with the result.
    pub schedule: Option<ScheduleChange>,
    /// The pages that the text shows, in their order in it. The engine numbers them.
    pub pages: Vec<CitablePage>,
    /// Pictures and documents that belong to the text. Outside of turns only the text is returned.
    pub media: Vec<Content>,
    /// Whether the tool failed. The text and the media then say why. A failure that is only a text is a [`ToolError`].
    pub is_error: bool,
}

/// A change of what is remembered beyond the task.
#[derive(Clone, Debug, PartialEq)]
pub enum KnowledgeChange {
    /// Saves a record under this id. The engine adds its provenance.
    Save(MemoryId, KnowledgeDraft),
    /// Erases a record with all that it replaced.
    Forget(MemoryId),
}

/// Why a tool failed, in words for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

/// The dependencies of the built-in tools.
#[derive(Clone)]
pub struct ToolDeps {
    /// The root folder of the file tools.
    pub workspace: PathBuf,
    /// Excludes concurrent changes of its files.
    pub workspace_lock: WorkspaceLock,
    /// The user's store.
    pub brain: Brain,
    /// The product's catalog.
    pub catalog: Catalog,
    /// Where the user's own skills are materialised as folders for programs.
    pub skill_dirs: Arc<SkillDirs>,
    /// The sandbox that runs programs; without it, tools that run programs are not available.
    pub sandbox: Option<Arc<Sandbox>>,
    /// Limits how many programs run at the same time.
    pub process_permits: ProcessPermits,
    /// Addresses that may be fetched although they are not public.
    pub web_allowlist: fetch::WebAllowlist,
    /// The memory budget for large objects.
    pub memory_budget: MemoryBudget,
    /// What reads documents.
    pub documents: DocumentReader,
}

/// The tools available to an agent, with their permissions.
pub struct Toolbox {
    tools: Vec<Arc<dyn Tool>>,
    names: Vec<String>,
    schemas: Vec<Schema>,
    permissions: Permissions,
    /// The tools as exposed to a model with this context window, cached because there may be many tools.
    exposed_cache: Mutex<Option<(u64, Arc<ExposedTools>)>>,
}

impl Toolbox {
    /// Returns the built-in tools, followed by those of the catalog.
    pub fn built_in(setup: &ToolDeps) -> Self {
        let workspace = files::Workspace::with_lock(&setup.workspace, setup.workspace_lock.clone());
        let mut tools: Vec<Arc<dyn Tool>> = vec![
            Arc::new(working_memory::WorkingMemorySet),
            Arc::new(memory_save::MemorySave(setup.brain.clone())),
            Arc::new(memory_search::MemorySearch(setup.brain.clone())),
            Arc::new(memory_forget::MemoryForget(setup.brain.clone())),
            Arc::new(schedules::ScheduleCreate(setup.brain.clone())),
            Arc::new(schedules::ScheduleList(setup.brain.clone())),
            Arc::new(schedules::ScheduleDelete(setup.brain.clone())),
            Arc::new(ask_user::AskUser),
            Arc::new(read::ReadFile::new(
                workspace.clone(),
                setup.documents.clone(),
                setup.memory_budget.clone(),
            )),
            Arc::new(read::ListFiles(workspace.clone())),
            Arc::new(write::WriteFile(workspace.clone())),
            Arc::new(write::EditFile(workspace.clone())),
            Arc::new(web_fetch::WebFetch::new(
                fetch::WebClient::new(setup.web_allowlist.clone(), setup.memory_budget.clone()),
                setup.documents.clone(),
            )),
        ];
        let Catalog { skills, permissions, search_providers, .. } = &setup.catalog;
        if let Some(search) = web_search::WebSearch::new(search_providers, &setup.memory_budget) {
            tools.push(Arc::new(search));
        }
        // Available even without any skills, because the user may create some in the middle of a task.
        let skills = Skills::new(skills.clone(), setup.brain.clone());
        tools.push(Arc::new(load_skill::LoadSkill(skills.clone())));
        let programs = process_runner(setup, setup.process_permits.clone());
        if let Some(programs) = &programs {
            let network = permissions.allows_network(RUN_SKILL_SCRIPT);
            let skill_dirs = Arc::clone(&setup.skill_dirs);
            let run = run_skill_script::RunSkillScript::new(skills, skill_dirs, programs.clone(), network);
            tools.push(Arc::new(run));
            tools.push(Arc::new(shell::Shell::new(
                programs.clone(),
                workspace,
                permissions.allows_network(SHELL),
            )));
        }
        let catalog = setup.catalog.tools.iter();
        tools.extend(catalog.filter_map(|tool| catalog_tool(tool, programs.as_ref(), &setup.memory_budget)));
        Self::new(tools, permissions.clone())
    }

    /// Adds the `run_agent` tool if there are agents.
    #[must_use]
    pub fn with_agents(mut self, agents: &[Arc<AgentSpec>]) -> Self {
        if agents.is_empty() {
            return self;
        }
        self.tools.push(Arc::new(run_agent::RunAgent::new(agents.to_vec())));
        Self::new(self.tools, self.permissions)
    }

    /// Returns these tools, followed by those of MCP servers.
    #[must_use]
    pub fn with_mcp_tools(&self, mcp_tools: Vec<Arc<dyn Tool>>) -> Self {
        Self::new(self.tools.iter().cloned().chain(mcp_tools).collect(), self.permissions.clone())
    }

    /// Creates a toolbox with these tools, in this order, under the operator's permissions.
    pub fn new(mut tools: Vec<Arc<dyn Tool>>, permissions: Permissions) -> Self {
        let mcp_tools: Vec<_> = tools.iter().filter(|tool| tool.is_mcp_tool()).cloned().collect();
        if !mcp_tools.is_empty() && tools.iter().all(|tool| tool.spec().name != TOOL_SEARCH) {
            tools.push(Arc::new(tool_search::ToolSearch::new(mcp_tools)));
        }
        let names = tools.iter().map(|tool| tool.spec().name).collect();
        let schemas = tools.iter().map(|_| Schema::default()).collect();
        Self { tools, names, schemas, permissions, exposed_cache: Mutex::default() }
    }

    /// Returns the tools as exposed to the agent's model, whose context window has `window` tokens.
    pub fn exposed_tools(&self, window: u64) -> Arc<ExposedTools> {
        let mut cached = self.exposed_cache.lock();
        match &*cached {
            Some((cached_window, exposed)) if *cached_window == window => Arc::clone(exposed),
            _ => {
                let exposed = Arc::new(ExposedTools::new(&self.allowed(|_| true), window));
                *cached = Some((window, Arc::clone(&exposed)));
                exposed
            }
        }
    }

    /// Returns the tools as exposed to a sub-agent's model. A sub-agent runs no agents of its own.
    pub fn exposed_tools_for(&self, agent: &AgentSpec, window: u64) -> ExposedTools {
        let is_allowed = |name: &String| {
            let listed = |globs: &Vec<String>| globs.iter().any(|glob| glob_matches(glob, name));
            // The search is exposed only if there is something to find.
            name == TOOL_SEARCH || (name != RUN_AGENT && agent.tools.as_ref().is_none_or(listed))
        };
        ExposedTools::new(&self.allowed(is_allowed), window)
    }

    /// Whether the tool `name` exists and is not denied.
    pub fn is_available(&self, name: &str) -> bool {
        self.find(name).is_some_and(|tool| self.permission(name, &*tool) != Permission::Deny)
    }

    /// Returns the tools that are not denied and that `may` accepts.
    fn allowed(&self, is_allowed: impl Fn(&String) -> bool) -> Vec<Arc<dyn Tool>> {
        let named =
            self.names.iter().zip(&self.tools).filter(|(name, tool)| {
                is_allowed(name) && self.permission(name, &***tool) != Permission::Deny
            });
        named.map(|(_, tool)| Arc::clone(tool)).collect()
    }

    /// Returns the tool with this name.
    pub fn find(&self, name: &str) -> Option<Arc<dyn Tool>> {
        let named = self.names.iter().zip(&self.tools).find(|(known, _)| *known == name);
        named.map(|(_, tool)| Arc::clone(tool))
    }

    /// Returns the permission of a tool: the catalog's setting, else the tool's default.
    pub fn permission(&self, name: &str, tool: &dyn Tool) -> Permission {
        let decision = if tool.is_of_user_server() {
            self.permissions.decision_for_user_server(name)
        } else {
            self.permissions.decision(name)
        };
        match (decision, tool.permission()) {
            // If the permissions file could not be read, it is unknown whether it would allow more.
            (_, Permission::Deny) if self.permissions.unreadable => Permission::Deny,
            (decision, primary) => decision.unwrap_or(primary),
        }
    }

    /// Whether a tool may be used when no person can be asked.
    pub fn may_run_unattended(&self, name: &str, tool: &dyn Tool) -> bool {
        !self.permissions.unreadable && self.permission(name, tool) != Permission::Deny
    }

    /// Returns all tools, denied ones included.
    pub fn all(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }

    /// Checks an input against the schema of the tool `name`.
    ///
    /// # Errors
    /// The places where the input does not conform, in words for the model.
    pub fn validate_input(&self, name: &str, input: &Value) -> Result<(), String> {
        let mut named = self.names.iter().zip(&self.tools).zip(&self.schemas);
        let found = named.find(|((known, _), _)| *known == name);
        found.map_or(Ok(()), |((_, tool), schema)| schema.validate(&tool.spec().input_schema, input))
    }
}

/// Creates what runs programs, with these permits; `None` if there is no sandbox.
fn process_runner(setup: &ToolDeps, permits: ProcessPermits) -> Option<process::ProcessRunner> {
    let sandbox = setup.sandbox.as_ref().filter(|sandbox| sandbox.is_usable())?;
    let outputs = SpillDir::new(&setup.workspace);
    Some(process::ProcessRunner::new(Arc::clone(sandbox), outputs, permits))
}

/// Creates a tool of the catalog; `None` if it runs a program and there is no sandbox.
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

/// Runs blocking work of a tool, other than on files of the workspace: these have a lane of their own.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    threads::run_blocking(work).await.unwrap_or_else(|| Err(ToolError("the tool failed".into())))
}

/// Deserializes a tool's input.
fn parse_input<T: DeserializeOwned>(input: Value) -> Result<T, ToolError> {
    serde_json::from_value(input)
        .map_err(|error| ToolError(format!("the input does not match its schema: {error}")))
}
