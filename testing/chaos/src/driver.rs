//! Drives tasks: starts turns, handles their requests, and has each task checked at its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::event::SentEvent;
use api::{MessageId, TurnId};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::checker;
use crate::client::{StreamOutcome, error_code};
use crate::context::{EngineEndpoint, RunContext};
use crate::model_script::{message_marker, task_marker};
use crate::rng::{SeededRng, stable_hash};
use crate::stream_reader::{ReceivedEvents, follow, read_turn, replay_uninterrupted};
use crate::supervisor::ActiveTasks;
use crate::task::TrackedTask;
use crate::tool_calls::{LOG_END_MARK, LOG_NAMES, log_file_name};
use crate::user::SimulatedUser;

/// How long a turn may take while the engine is being killed, and once it no longer is.
const TURN_TIMEOUT: Duration = Duration::from_mins(1);
/// How long to wait for a turn whose beginning was not confirmed, while an engine runs.
const TURN_START_TIMEOUT: Duration = Duration::from_millis(500);
/// The number of clients that read a task from its beginning to its end.
const OBSERVER_COUNT: usize = 2;

/// A task that was checked, kept for a second check at the end of the run.
#[derive(Debug)]
pub(crate) struct CheckedTask {
    /// The task.
    pub(crate) task: Arc<TrackedTask>,
    /// The hash of its events.
    pub(crate) digest: u64,
}

/// Hashes events.
pub(crate) fn digest(events: &[SentEvent]) -> u64 {
    stable_hash(format!("{events:?}"))
}

/// Runs one task after another until the run settles.
pub(crate) async fn drive_tasks(
    context: Arc<RunContext>,
    tasks: ActiveTasks,
    label: String,
    turns_per_task: u64,
) -> anyhow::Result<Vec<CheckedTask>> {
    let mut retired = Vec::new();
    let mut number = 0;
    while !context.is_settling() && !context.is_over() {
        number += 1;
        let task = Arc::new(TrackedTask::new(format!("{label}-{number}")));
        tasks.lock().map_err(|_| anyhow::anyhow!("a task of the run panicked"))?.push(Arc::downgrade(&task));
        let mut driver = TaskDriver::start(&context, &task)?;
        for _ in 0..driver.rng.between(1..=turns_per_task) {
            if context.is_settling() || !driver.run_turn().await {
                break;
            }
        }
        retired.extend(driver.check().await?);
    }
    Ok(retired)
}

struct TaskDriver {
    context: Arc<RunContext>,
    task: Arc<TrackedTask>,
    rng: SeededRng,
    clients: JoinSet<ReceivedEvents>,
    user: SimulatedUser,
    request_count: u64,
    /// The body of the last request whose outcome is unknown, so that it can be repeated.
    unconfirmed_request: Option<Value>,
}

impl TaskDriver {
    fn start(context: &Arc<RunContext>, task: &Arc<TrackedTask>) -> anyhow::Result<Self> {
        for which in LOG_NAMES {
            let file = context.workspace.join(log_file_name(&task.name, which));
            std::fs::write(&file, format!("{LOG_END_MARK}\n")).context("a log file cannot be written")?;
        }
        let mut clients = JoinSet::new();
        for observer in 0..OBSERVER_COUNT {
            let name = format!("{} observer {observer}", task.name);
            clients.spawn(follow(Arc::clone(context), Arc::clone(task), name, 0));
        }
        let user = SimulatedUser::new(Arc::clone(context), Arc::clone(task));
        let rng = SeededRng::new(context.seed, &task.name);
        Ok(Self {
            context: Arc::clone(context),
            task: Arc::clone(task),
            rng,
            clients,
            user,
            request_count: 0,
            unconfirmed_request: None,
        })
    }

    /// Runs one turn from its beginning to its end. False when the run is over or the turn does not end.
    async fn run_turn(&mut self) -> bool {
        let ended = self.task.view().ended_turns;
        let begin = Instant::now();
        while self.task.view().open_turn.is_none() && self.task.view().ended_turns == ended {
            if begin.elapsed() > TURN_TIMEOUT {
                self.context.counters.record_violation(format!("{}: no turn can be started", self.task.name));
                return false;
            }
            let Some(endpoint) = self.context.wait_endpoint().await else { return false };
            if !self.submit(&endpoint).await {
                return false;
            }
            self.await_turn_start(ended).await;
        }
        self.unconfirmed_request = None;
        self.run_until_turn_end().await
    }

    /// Sends a request that starts a turn. False when the run is over.
    async fn submit(&mut self, endpoint: &EngineEndpoint) -> bool {
        let body = match self.unconfirmed_request.take() {
            Some(body) if body.get("client_request_id").is_some() => body,
            _ => self.build_request(),
        };
        match self.context.api.execute(&endpoint.base_url, &body).await {
            StreamOutcome::Stream(response) => {
                self.context.trigger.notify("execute accepted");
                let name = format!("{} turn {}", self.task.name, self.request_count);
                let (context, task) = (Arc::clone(&self.context), Arc::clone(&self.task));
                self.clients.spawn(read_turn(context, task, name, response));
                self.unconfirmed_request = Some(body);
            }
            StreamOutcome::NotSent => self.keep_for_resend(&body),
            StreamOutcome::Unknown => self.unconfirmed_request = Some(body),
            // An earlier request of which nobody knew, or one that another client has not seen end yet.
            StreamOutcome::Response(409, _) if self.request_count > 1 => {}
            StreamOutcome::Response(503, answer) if error_code(&answer) == "SHUTTING_DOWN" => {
                self.keep_for_resend(&body);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            StreamOutcome::Response(status, answer) => {
                self.context
                    .counters
                    .record_violation(format!("{}: {body} was refused: {status} {answer}", self.task.name));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        !self.context.is_over()
    }

    /// Builds a request: a message, an edit of an earlier one, or a retry.
    fn build_request(&mut self) -> Value {
        self.request_count += 1;
        let number = stable_hash((&self.task.name, self.request_count)) >> 16;
        let mut body = json!({
            "task_id": self.task.name,
            "message": format!("{} {} What now?", task_marker(&self.task.name), message_marker(number)),
            "direct": true,
            "super_thinking": self.rng.chance(self.context.workload.thinking),
        });
        let mut set = |name: &str, value: Value| {
            _ = body.as_object_mut().map(|body| body.insert(name.to_owned(), value));
        };
        if self.rng.chance(self.context.workload.call_limited) {
            set("max_turns", 2.into());
        }
        if self.rng.chance(self.context.workload.request_id) {
            set("client_request_id", format!("{}-{}", self.task.name, self.request_count).into());
        }
        let mut view = self.task.view();
        let live: Vec<_> = view
            .messages
            .iter()
            .filter(|(message, turn)| {
                !view.acknowledged.rewound_turns.contains(turn) && !view.superseded.contains(message)
            })
            .copied()
            .collect();
        if self.rng.chance(self.context.workload.edit)
            && let Some((message, _)) = self.rng.pick(&live)
        {
            set("edit_message_id", message.to_string().into());
            // A retry of the message has named it again.
            let after = view.messages.iter().skip_while(|(id, _)| id != message);
            let after: Vec<TurnId> = after.map(|(_, turn)| *turn).collect();
            view.acknowledged.rewound_turns.extend(after);
            self.context.counters.count("edits");
        } else if self.rng.chance(self.context.workload.retry)
            && let Some((message, _)) = self.rng.pick(&live)
        {
            set("retry_message_id", message.to_string().into());
            let after = view.messages.iter().skip_while(|(id, _)| id != message);
            let after: Vec<MessageId> = after.map(|(id, _)| *id).filter(|id| id != message).collect();
            view.superseded.extend(after);
            self.context.counters.count("retries");
        }
        body
    }

    /// Keeps a request that never arrived, to send it again unchanged.
    fn keep_for_resend(&mut self, body: &Value) {
        if body.get("edit_message_id").is_some() || body.get("client_request_id").is_some() {
            self.unconfirmed_request = Some(body.clone());
        }
    }

    /// Waits until a turn is seen to have started, or none was started.
    async fn await_turn_start(&mut self, ended: u64) {
        let mut changes = self.task.subscribe();
        let engine = self.context.engine_number();
        let begin = Instant::now();
        loop {
            {
                let view = self.task.view();
                if view.open_turn.is_some() || view.ended_turns > ended {
                    return;
                }
            }
            // Another engine may never have received it.
            if begin.elapsed() > TURN_START_TIMEOUT
                && self.context.engine_number().is_some()
                && (self.context.engine_number() == engine || begin.elapsed() > 4 * TURN_START_TIMEOUT)
            {
                return;
            }
            let _ = tokio::time::timeout(Duration::from_millis(20), changes.changed()).await;
        }
    }

    /// Handles the open turn until it ends.
    async fn run_until_turn_end(&mut self) -> bool {
        let Some(turn) = self.task.view().open_turn else { return true };
        let begin = Instant::now();
        let mut changes = self.task.subscribe();
        self.user.plan_turn(turn);
        while self.task.view().open_turn == Some(turn) {
            if begin.elapsed() > TURN_TIMEOUT || self.context.is_over() {
                let view = self.task.view();
                self.context.counters.record_violation(format!(
                    "{}: {turn} does not end; it waits for {:?}",
                    self.task.name, view.pending
                ));
                return false;
            }
            let wait = self.user.act(turn).await;
            let _ = tokio::time::timeout(wait, changes.changed()).await;
        }
        self.context.counters.count("turns");
        true
    }

    /// Has the task checked.
    async fn check(mut self) -> anyhow::Result<Option<CheckedTask>> {
        while let Some(turn) = self.open_turn().await {
            if !self.run_until_turn_end().await {
                self.context.counters.record_violation(format!("{}: {turn} is still open", self.task.name));
                return Ok(None);
            }
        }
        if self.task.view().last_ts == 0 {
            self.clients.shutdown().await;
            return Ok(None);
        }
        let Some(events) = replay_uninterrupted(&self.context, &self.task).await else {
            if !self.context.is_over() {
                self.context.counters.record_violation(format!(
                    "{}: its events cannot be replayed completely",
                    self.task.name
                ));
            }
            return Ok(None);
        };
        self.task.final_ts.send_replace(events.last().map(|event| event.ts));
        let mut clients = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            clients.push(client.context("a client panicked")?);
        }
        checker::check_task(&self.context, &self.task, &events, &clients)?;
        Ok(Some(CheckedTask { digest: digest(&events), task: self.task }))
    }

    /// Returns an open turn, once the clients have had the time to see one.
    async fn open_turn(&mut self) -> Option<TurnId> {
        let ended = self.task.view().ended_turns;
        if self.task.view().open_turn.is_none() && self.unconfirmed_request.take().is_some() {
            self.await_turn_start(ended).await;
        }
        self.task.view().open_turn
    }
}
