//! Tools that run twice. Wherever the engine is killed, no call takes effect twice, and the model is informed of
//! unknown outcomes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use api::CallId;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use mock_llm::{Reply, Wire};
use serde_json::json;
use store::steps::Step;
use store::testing::next_events;
use testkit::{task_id, with_deadline};
use tokio::sync::Semaphore;
use tools::{Invocation, Tool, ToolError, ToolOutput, ToolStep};

use crate::agent::harness::{AgentHarness, OUTCOME_UNKNOWN, WIRES, check_turn, final_text};

/// When the engine is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KillPoint {
    /// When a client has seen this many events.
    AfterEvents(usize),
    /// When this call is about to take effect.
    BeforeEffect(u64),
    /// When this call has taken effect.
    AfterEffect(u64),
}

/// A tool that appends its input to a file: a second run would show.
struct AppendTool {
    file: PathBuf,
    /// The brain of the running engine, read from outside.
    brain: Mutex<PathBuf>,
    runs: AtomicI64,
    /// The number of runs without a recorded intent.
    without_intent: AtomicI64,
    /// Where it waits to be killed.
    pause_point: Mutex<Option<KillPoint>>,
    paused: Semaphore,
}

impl AppendTool {
    async fn run(&self, number: u64) {
        let runs = 1 + self.runs.fetch_add(1, Ordering::AcqRel);
        if runs > self.stored_intents() {
            self.without_intent.fetch_add(1, Ordering::AcqRel);
        }
        self.pause_if_at(KillPoint::BeforeEffect(number)).await;
        let mut file = std::fs::OpenOptions::new().append(true).open(&self.file).unwrap();
        writeln!(file, "{number}").unwrap();
        self.pause_if_at(KillPoint::AfterEffect(number)).await;
    }

    async fn pause_if_at(&self, kill_point: KillPoint) {
        if *self.pause_point.lock().unwrap() == Some(kill_point) {
            self.paused.add_permits(1);
            std::future::pending::<()>().await;
        }
    }

    fn stored_intents(&self) -> i64 {
        let brain = rusqlite::Connection::open(&*self.brain.lock().unwrap()).unwrap();
        let count = "SELECT COUNT(*) FROM steps WHERE body ->> '$.step' = 'intended'";
        brain.query_row(count, [], |row| row.get(0)).unwrap()
    }

    /// Returns how often the call took effect.
    fn effect_count(&self, number: u64) -> usize {
        let text = std::fs::read_to_string(&self.file).unwrap();
        text.lines().filter(|line| *line == number.to_string()).count()
    }
}

impl Tool for AppendTool {
    fn spec(&self) -> ToolSpec {
        let input_schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        ToolSpec { name: "append".into(), description: "Appends a line.".into(), input_schema }
    }

    fn idempotent(&self) -> bool {
        false
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            AppendTool::run(self, invocation.input["n"].as_u64().unwrap()).await;
            let text = "appended".into();
            Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }))
        })
    }
}

/// The recorded state of the calls.
#[derive(Debug, Default)]
struct Journal {
    answered: bool,
    calls: Vec<(CallId, u64)>,
    intended: BTreeSet<CallId>,
    resulted: BTreeSet<CallId>,
}

impl Journal {
    fn load(harness: &AgentHarness) -> Self {
        let mut journal = Self::default();
        let Some(task) = harness.brain.task(&task_id("t")).unwrap() else { return journal };
        for stored in harness.brain.steps(task.row).unwrap() {
            match stored.step {
                Step::Answered { answer, .. } => {
                    journal.answered = true;
                    let numbered = |call: &llm::ToolUse| (call.call_id, call.input["n"].as_u64().unwrap());
                    journal.calls.extend(answer.calls().map(numbered));
                }
                Step::Intended { call_id } => drop(journal.intended.insert(call_id)),
                Step::Resulted { call_id, .. } => drop(journal.resulted.insert(call_id)),
                _ => {}
            }
        }
        journal
    }

    /// Returns the calls whose outcome is unknown.
    fn unknown_outcomes(&self) -> BTreeSet<CallId> {
        self.intended.difference(&self.resulted).copied().collect()
    }
}

/// Kills the engine at this point of a turn with two calls at once, and lets the next one continue.
async fn kill_at(wire: Wire, kill_point: KillPoint) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("effects");
    std::fs::write(&file, "").unwrap();
    let appends = Arc::new(AppendTool {
        file,
        brain: Mutex::default(),
        runs: AtomicI64::new(0),
        without_intent: AtomicI64::new(0),
        pause_point: Mutex::new(Some(kill_point)),
        paused: Semaphore::new(0),
    });
    let mut harness = AgentHarness::with_tools(wire, vec![appends.clone()]).await;
    harness.brain.file().clone_into(&mut appends.brain.lock().unwrap());
    harness.provider.set_default_reply(Reply::from_text("done"));
    let calls = || {
        let text = Reply::new().text("I append.").deltas(3);
        text.tool_use("append", json!({"n": 1})).tool_use("append", json!({"n": 2}))
    };
    harness.provider.enqueue(calls());
    let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    match kill_point {
        KillPoint::AfterEvents(count) => {
            let mut seen = 0;
            while seen < count
                && let Some(events) = next_events(&mut reader).await
            {
                seen += events.len();
            }
        }
        _ => with_deadline(appends.paused.acquire()).await.unwrap().forget(),
    }
    harness.kill().await;
    *appends.pause_point.lock().unwrap() = None;
    harness.brain.file().clone_into(&mut appends.brain.lock().unwrap());
    let journal = Journal::load(&harness);
    if !journal.answered && harness.provider.pending_replies() == 0 {
        harness.provider.enqueue(calls());
    }
    harness.agent.resume().unwrap();
    let events = harness.replay(0).await;
    for (call_id, number) in Journal::load(&harness).calls {
        let lines = appends.effect_count(number);
        let unknown = journal.unknown_outcomes().contains(&call_id);
        assert!(
            lines == 1 || unknown && lines == 0,
            "{kill_point:?}: call {number} took effect {lines} times"
        );
    }
    assert_eq!(
        appends.without_intent.load(Ordering::Acquire),
        0,
        "{kill_point:?}: run before the intent is stored"
    );
    assert_eq!(check_turn(&events), Ok(()));
    assert_eq!(final_text(&events), "done");
    let sent = String::from_utf8(harness.last_request().raw.to_vec()).unwrap();
    assert_eq!(sent.matches(OUTCOME_UNKNOWN).count(), journal.unknown_outcomes().len(), "{kill_point:?}");
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn regression_e02_killed_at_any_event_no_call_takes_effect_twice() {
    for wire in WIRES {
        for count in 0..=14 {
            kill_at(wire, KillPoint::AfterEvents(count)).await;
        }
    }
}

#[tokio::test]
async fn regression_e02_killed_inside_a_tool_its_call_does_not_take_effect_twice() {
    for wire in WIRES {
        for number in [1, 2] {
            kill_at(wire, KillPoint::BeforeEffect(number)).await;
            kill_at(wire, KillPoint::AfterEffect(number)).await;
        }
    }
}
