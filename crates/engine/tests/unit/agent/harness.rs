//! The test harness: an agent with a mock provider that refuses what the vendors refuse, and the events that
//! its clients see.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::event::{BlockType, Event, Failure};
use catalog::Permission;
use catalog::{AgentSpec, Catalog, Environment, Permissions};
use fetch::WebAllowlist;
use futures::future::BoxFuture;
use llm::ToolSpec;
use llm::config::ConfigSources;
use mcp::Mcp;
use mock_llm::{CapturedRequest, MockProvider, Wire};
use resources::memory_budget::MemoryBudget;
use serde_json::{Value, json};
use store::testing::read_all;
use tempfile::TempDir;
use testkit::{SkippingClock, SseEvent, task_id, test_sandbox, with_deadline};
use tokio::sync::Semaphore;
use tools::skills::SkillDirs;
use tools::{Invocation, Tool, ToolDeps, ToolError, ToolOutput, ToolStep, Toolbox};

pub(crate) use super::branch::Branch;
pub(crate) use super::thread::OUTCOME_UNKNOWN;
use super::*;

/// All protocols, for tests of behaviour that must be the same over each.
pub(crate) const WIRES: [Wire; Wire::COUNT] = Wire::ALL;

/// Whether a protocol streams a call's input in pieces, so that it can be cut off.
pub(crate) const fn streams_tool_input(wire: Wire) -> bool {
    match wire {
        Wire::AnthropicMessages | Wire::OpenAiChat | Wire::OpenAiResponses => true,
        Wire::Gemini | Wire::Ollama => false,
    }
}

/// An agent with a brain of its own. On drop, its provider fails the test if it had to refuse a request.
pub(crate) struct AgentHarness {
    pub(crate) agent: Agent,
    pub(crate) brain: Brain,
    pub(crate) clock: Arc<SkippingClock>,
    pub(crate) provider: MockProvider,
    env: BTreeMap<String, String>,
    pub(crate) tools: Vec<Arc<dyn Tool>>,
    /// The agents of its catalog, used from the next start on.
    pub(crate) agents: Vec<Arc<AgentSpec>>,
    /// The rest of its catalog, used from the next start on.
    pub(crate) catalog: Catalog,
    /// The permissions of its catalog, used from the next start on.
    pub(crate) permissions: Permissions,
    /// How long the user may take to answer, used from the next start on.
    pub(crate) hitl_ttl: Duration,
    /// The interval between learning batches, used from the next start on.
    pub(crate) batch_interval: Option<Duration>,
    folder: TempDir,
    kills: usize,
}

impl Agent {
    /// Begins a turn, or joins the turn that an earlier request began, and returns a reader of its events.
    pub(crate) async fn execute(&self, request: api::engine::Execute) -> Result<EventReader, AgentError> {
        Ok(self.submit(request).await?.stream.into_reader().unwrap())
    }

    /// All messages of a task.
    pub(crate) async fn all_messages(
        &self,
        task_id: &TaskId,
    ) -> Result<Vec<api::engine::TaskMessage>, AgentError> {
        Ok(self.messages(task_id, None, None).await?.messages)
    }
}

impl AgentHarness {
    pub(crate) async fn new(wire: Wire) -> Self {
        Self::with_tools(wire, Vec::new()).await
    }

    /// Creates a harness with these tools beside the built-in ones.
    pub(crate) async fn with_tools(wire: Wire, tools: Vec<Arc<dyn Tool>>) -> Self {
        let builder = MockProvider::builder().bind_thinking(true).track_cache(true);
        let provider = builder.start().await.unwrap();
        let gateway = gateway_config(&provider, &[(wire, "test-1")]);
        Self::build(&[("LLM_API_KEY", "sk-1")], Some(&gateway), provider, tools)
    }

    pub(crate) fn with_env(
        pairs: &[(&str, &str)],
        provider: MockProvider,
        tools: Vec<Arc<dyn Tool>>,
    ) -> Self {
        Self::build(pairs, None, provider, tools)
    }

    fn build(
        pairs: &[(&str, &str)],
        gateway: Option<&Value>,
        provider: MockProvider,
        tools: Vec<Arc<dyn Tool>>,
    ) -> Self {
        let env = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let folder = tempfile::tempdir().unwrap();
        if let Some(gateway) = gateway {
            write_gateway_config(folder.path(), gateway);
        }
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        let clock = Arc::new(SkippingClock::new());
        let hitl_ttl = Duration::from_hours(72);
        let times = (hitl_ttl, None);
        let agent = Agent::new(
            brain.clone(),
            services(&brain, &env, &clock, (&tools, Catalog::default()), folder.path(), times),
        );
        Self {
            agent,
            brain,
            clock,
            provider,
            env,
            tools,
            agents: Vec::new(),
            catalog: Catalog::default(),
            permissions: Permissions::default(),
            hitl_ttl,
            batch_interval: None,
            folder,
            kills: 0,
        }
    }

    /// Allows all tools without approval from here on.
    pub(crate) async fn allow_all(&mut self) {
        self.permissions.default = Some(Permission::Allow);
        self.restart().await;
    }

    /// The catalog's folder.
    pub(crate) fn catalog_folder(&self) -> std::path::PathBuf {
        self.folder.path().join(CATALOG_DIR)
    }

    /// The agent's connections to tool servers.
    pub(crate) fn mcp(&self) -> &Mcp {
        &self.agent.services.mcp
    }

    /// Restarts the engine with what is in the catalog's folder.
    pub(crate) async fn reload_catalog(&mut self) {
        self.catalog = Catalog::load(&self.catalog_folder(), Environment::default());
        self.permissions = self.catalog.permissions.clone();
        self.restart().await;
    }

    /// Stops the engine as SIGTERM does, and starts another one on its brain.
    pub(crate) async fn restart(&mut self) {
        with_deadline(self.agent.stop(Duration::ZERO)).await;
        with_deadline(self.brain.close()).await;
        let file = self.brain.file().to_owned();
        self.start(&file);
    }

    /// Kills the engine at this moment, and starts another one on what was committed so far.
    pub(crate) async fn kill(&mut self) {
        self.agent.stopped.cancel();
        self.agent.stopping.cancel();
        self.agent.tracker.close();
        with_deadline(self.agent.tracker.wait()).await;
        self.kills += 1;
        let copy = self.folder.path().join(format!("brain-{}.sqlite", self.kills));
        self.open_connection().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
        self.start(&copy);
    }

    fn start(&mut self, brain: &Path) {
        self.brain = Brain::open(brain).unwrap();
        let (agents, permissions) = (self.agents.clone(), self.permissions.clone());
        let catalog = Catalog { agents, permissions, ..self.catalog.clone() };
        let services = services(
            &self.brain,
            &self.env,
            &self.clock,
            (&self.tools, catalog),
            self.folder.path(),
            (self.hitl_ttl, self.batch_interval),
        );
        self.agent = Agent::new(self.brain.clone(), services);
    }

    /// A connection to the brain, as another program would open it.
    pub(crate) fn open_connection(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.brain.file()).unwrap()
    }

    /// Restarts with another model, over the protocol that it speaks.
    pub(crate) async fn switch_model(&mut self, wire: Wire, model: &str) {
        self.configure_gateway(&gateway_config(&self.provider, &[(wire, model)])).await;
    }

    /// Restarts with this gateway configuration.
    pub(crate) async fn configure_gateway(&mut self, gateway: &Value) {
        write_gateway_config(self.folder.path(), gateway);
        self.restart().await;
    }

    /// The numbers of open event logs, registered turns and running tasks of the agent.
    pub(crate) fn live_counts(&self) -> [usize; 3] {
        [self.agent.event_logs.open_count(), self.agent.registry.lock().len(), self.agent.tracker.len()]
    }

    /// Begins a turn.
    pub(crate) async fn begin(&self, request: Value) -> Result<EventReader, AgentError> {
        with_deadline(self.agent.execute(serde_json::from_value(request).unwrap())).await
    }

    /// Runs a turn to its end and checks the sequence of its events.
    pub(crate) async fn run(&self, request: Value) -> Vec<SseEvent> {
        let events = read_all(self.begin(request).await.unwrap()).await;
        assert_eq!(check_turn(&events), Ok(()), "{events:#?}");
        events
    }

    /// Runs a turn of task `t`.
    pub(crate) async fn send(&self, message: &str) -> Vec<SseEvent> {
        self.run(json!({"task_id": "t", "message": message})).await
    }

    /// All events of task `t` after `after`.
    pub(crate) async fn replay(&self, after: i64) -> Vec<SseEvent> {
        read_all(self.agent.replay(Some(task_id("t")), after).unwrap()).await
    }

    /// The last request that the provider received.
    pub(crate) fn last_request(&self) -> CapturedRequest {
        self.provider.requests().pop().unwrap()
    }

    pub(crate) fn workspace(&self) -> std::path::PathBuf {
        self.folder.path().join("workspace")
    }
}

/// A configuration in which the first model is the default and the others are its fallbacks, each over its
/// protocol.
pub(crate) fn gateway_config(provider: &MockProvider, models: &[(Wire, &str)]) -> Value {
    let entries: Vec<(String, Value)> =
        models.iter().map(|(wire, model)| model_entry(provider, *wire, model)).collect();
    let names: Vec<&String> = entries.iter().map(|(name, _)| name).collect();
    json!({
        "default": names[0],
        "fallbacks": names[1..],
        "models": entries.iter().cloned().collect::<serde_json::Map<_, _>>(),
    })
}

fn model_entry(provider: &MockProvider, wire: Wire, model: &str) -> (String, Value) {
    let (name, base) = match wire {
        Wire::AnthropicMessages => ("anthropic", provider.base_url()),
        Wire::OpenAiChat | Wire::OpenAiResponses => ("openai", provider.openai_base_url()),
        Wire::Gemini => ("gemini", provider.gemini_base_url()),
        Wire::Ollama => ("ollama", provider.ollama_base_url()),
    };
    // Only these models require signatures to be sent back with their calls.
    let model = if wire == Wire::Gemini { format!("gemini-3-{model}") } else { model.to_owned() };
    let mut entry = json!({"provider": name, "base_url": base, "model": model, "context_window": 200_000});
    if wire == Wire::OpenAiResponses {
        entry["api"] = "responses".into();
        entry["thinking"] = "effort".into();
    }
    (format!("{wire:?} {model}"), entry)
}

fn write_gateway_config(folder: &Path, gateway: &Value) {
    std::fs::create_dir_all(folder.join(CATALOG_DIR)).unwrap();
    std::fs::write(folder.join(CATALOG_DIR).join("gateway.json"), gateway.to_string()).unwrap();
}

/// The name of the catalog's folder.
const CATALOG_DIR: &str = "catalog";

fn services(
    brain: &Brain,
    env: &BTreeMap<String, String>,
    clock: &Arc<SkippingClock>,
    (tools, catalog): (&[Arc<dyn Tool>], Catalog),
    folder: &Path,
    (hitl_ttl, batch_interval): (Duration, Option<Duration>),
) -> Services {
    let sources = ConfigSources::new(env, Some(&folder.join(CATALOG_DIR)));
    let skill_dirs = Arc::new(SkillDirs::for_brain(&folder.join("brain.sqlite")));
    let setup = ToolDeps {
        workspace: folder.join("workspace"),
        workspace_lock: tools::WorkspaceLock::default(),
        brain: brain.clone(),
        catalog,
        sandbox: Some(test_sandbox(
            &folder.join("workspace"),
            &[&folder.join(CATALOG_DIR), skill_dirs.root()],
        )),
        skill_dirs,
        process_permits: tools::ProcessPermits::default(),
        web_allowlist: WebAllowlist::default(),
        memory_budget: MemoryBudget::default(),
        documents: tools::documents::DocumentReader::new(None, &folder.join("workspace")),
    };
    let built_in = Toolbox::built_in(&setup);
    let mut all = built_in.all().to_vec();
    all.extend(tools.iter().cloned());
    let snapshot = AgentSnapshot {
        soul: "You are a test.".into(),
        toolbox: Toolbox::new(all, setup.catalog.permissions.clone()).with_agents(&setup.catalog.agents),
        ..AgentSnapshot::from_setup(&setup)
    };
    let settings = mcp::McpSettings::default();
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    let mcp = Mcp::open(brain, settings, setup.sandbox.clone(), Arc::clone(&clock), setup.documents.clone())
        .unwrap();
    mcp.set_server_specs(&setup.catalog.mcp_servers);
    Services {
        snapshots: SnapshotSource::new(snapshot, mcp.clone()),
        mcp,
        gateway: Arc::new(Gateway::new(sources.load().map(|(checked, _)| checked.routes))),
        clock,
        sandbox: setup.sandbox,
        skill_dirs: setup.skill_dirs,
        outputs: SpillDir::new(&setup.workspace),
        memory_budget: setup.memory_budget.clone(),
        documents: setup.documents.clone(),
        web: fetch::WebClient::new(setup.web_allowlist.clone(), setup.memory_budget.clone()),
        tool_permits: Services::new_tool_permits(),
        reservations: Arc::default(),
        caps: Caps::new(llm::UsageLimits::default()),
        reactive_compaction: true,
        hitl_ttl,
        replay_ttl: Duration::from_hours(3),
        engine_id: None,
        usage_retention: Duration::from_hours(400 * 24),
        batch_interval,
    }
}

/// Checks that these are the events of one complete turn: blocks opened and closed in order, deltas within
/// blocks of their type, each call with its result, and an end that nothing follows.
pub(crate) fn check_turn(events: &[SseEvent]) -> Result<(), String> {
    let [first, .., last] = events else { return Err("too few events".into()) };
    if first.phase() != Some("started") {
        return Err(format!("the first event is {first:?}"));
    }
    let ends: Vec<usize> = (0..events.len()).filter(|at| events[*at].event().ends_turn()).collect();
    if ends != [events.len() - 1] {
        return Err(format!("the turn ends at {ends:?} of {} events", events.len()));
    }
    if last.kind == "error" && events[events.len() - 2].phase() != Some("errored") {
        return Err("an `error` event without the phase `errored` before it".into());
    }
    let (mut blocks, mut open, mut calls) = (0, None, Vec::new());
    for event in events {
        let fits = match event.event() {
            Event::ContentBlockStart(start) => {
                let fits = start.index == blocks && open.is_none();
                (blocks, open) = (blocks + 1, Some((start.index, start.block_type)));
                fits
            }
            Event::ContentBlockStop(stop) => open.take().is_some_and(|(index, _)| index == stop.index),
            Event::TextDelta(_) => open.is_some_and(|(_, kind)| kind == BlockType::Text),
            Event::ThinkingDelta(_) => open.is_some_and(|(_, kind)| kind == BlockType::Thinking),
            Event::ToolCall(call) => {
                calls.push(call.tool_call_id);
                true
            }
            Event::ToolResult(result) => {
                let at = calls.iter().position(|call| *call == result.tool_call_id);
                at.map(|at| calls.remove(at)).is_some()
            }
            _ => true,
        };
        if !fits {
            return Err(format!("unexpected event: {event:?}"));
        }
    }
    match (open, calls.as_slice()) {
        (None, []) => Ok(()),
        open => Err(format!("an open block or calls without a result: {open:?}")),
    }
}

/// Renders the events as text that is the same in each run: ids are numbered, and adjacent deltas are merged,
/// since timing may split them.
pub(crate) fn transcript(events: &[SseEvent]) -> String {
    let mut names: HashMap<String, String> = HashMap::new();
    let mut lines: Vec<(String, Value)> = Vec::new();
    for event in events {
        let mut data = event.data.clone();
        let fields = data.as_object_mut().unwrap();
        fields.retain(|name, _| !["task_id", "turn_id", "ts"].contains(&name.as_str()));
        for (name, value) in fields.iter_mut() {
            match name.as_str() {
                "duration_ms" => *value = json!(0),
                "void_after" => {
                    let line = events.iter().position(|event| event.ts() == value.as_i64().unwrap());
                    *value = json!(format!("event {}", line.unwrap()));
                }
                "message_id" | "answer_message_id" | "tool_call_id" => {
                    let id = value.as_str().unwrap().to_owned();
                    let next = format!("{}_{}", id.split('_').next().unwrap(), names.len());
                    *value = json!(names.entry(id).or_insert(next));
                }
                _ => {}
            }
        }
        match lines.last_mut() {
            Some((kind, last)) if *kind == event.kind && kind.ends_with("_delta") => {
                let joined = format!("{}{}", last["text"].as_str().unwrap(), data["text"].as_str().unwrap());
                *last = json!({"text": joined});
            }
            _ => lines.push((event.kind.clone(), data)),
        }
    }
    let lines: Vec<String> = lines.iter().map(|(kind, data)| format!("{kind} {data}")).collect();
    lines.join("\n")
}

/// The `error` that a turn ended with.
pub(crate) fn failure(events: &[SseEvent]) -> Failure {
    match events.last().unwrap().event() {
        Event::Error(failure) => failure,
        other => panic!("the turn ended with {other:?}"),
    }
}

/// The text of a completed turn.
pub(crate) fn final_text(events: &[SseEvent]) -> String {
    let last = events.last().unwrap();
    assert_eq!(last.phase(), Some("completed"), "{events:#?}");
    last.data["text"].as_str().unwrap().to_owned()
}

/// A tool that waits until the test releases it, and counts its runs.
pub(crate) struct GatedTool {
    idempotent: bool,
    permission: Permission,
    pub(crate) runs: AtomicUsize,
    pub(crate) may_end: Semaphore,
}

impl GatedTool {
    pub(crate) fn new(idempotent: bool) -> Arc<Self> {
        Self::with(idempotent, Permission::Allow)
    }

    pub(crate) fn with(idempotent: bool, permission: Permission) -> Arc<Self> {
        Arc::new(Self { idempotent, permission, runs: AtomicUsize::new(0), may_end: Semaphore::new(0) })
    }

    /// Waits until the tool was started `times` times.
    pub(crate) async fn wait_for_runs(&self, times: usize) {
        with_deadline(async {
            while self.runs.load(Ordering::Acquire) < times {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

impl Tool for GatedTool {
    fn spec(&self) -> ToolSpec {
        let input_schema = json!({"type": "object", "properties": {}});
        ToolSpec { name: "gated".into(), description: "Waits.".into(), input_schema }
    }

    fn idempotent(&self) -> bool {
        self.idempotent
    }

    fn permission(&self) -> Permission {
        self.permission
    }

    fn run(&self, _: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async {
            self.runs.fetch_add(1, Ordering::Release);
            self.may_end.acquire().await.unwrap().forget();
            let text = "let go".into();
            Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }))
        })
    }
}

/// The branch that results from a journal.
pub(crate) fn branch_from_steps(steps: Vec<store::StoredStep>) -> Branch {
    use super::thread::Thread;
    super::journal_fold::fold_journal(steps).unwrap().map(Thread::into_branch).unwrap_or_default()
}
