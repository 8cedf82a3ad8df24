//! Drives tasks: begins turns, sees to what they ask for, and has each task judged at its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use contract::event::SentEvent;
use contract::{MessageId, TurnId};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::api::{Opened, code};
use crate::calls::{END, LOGS, log};
use crate::client::{Collected, follow, read_turn, uncut};
use crate::dice::{Dice, hash};
use crate::judge;
use crate::killer::Tasks;
use crate::person::Person;
use crate::script::{greeting, mark};
use crate::task::Task;
use crate::world::{Place, World};

/// How long a turn may take while the engine is killed all the time, and once it is not.
const TURN: Duration = Duration::from_mins(1);
/// How long to look for a turn whose beginning nobody confirmed, while an engine runs.
const LOOK: Duration = Duration::from_millis(500);
/// Clients that read a task from its beginning to its end.
const OBSERVERS: usize = 2;

/// A task that was judged, for a second look at the end of the run.
#[derive(Debug)]
pub(crate) struct Retired {
    /// The task.
    pub(crate) task: Arc<Task>,
    /// The fingerprint of its events.
    pub(crate) digest: u64,
}

/// A fingerprint of events.
pub(crate) fn digest(events: &[SentEvent]) -> u64 {
    hash(format!("{events:?}"))
}

/// Runs one task after another until the run settles.
pub(crate) async fn drive(
    world: Arc<World>,
    tasks: Tasks,
    label: String,
    turns_per_task: u64,
) -> anyhow::Result<Vec<Retired>> {
    let mut retired = Vec::new();
    let mut number = 0;
    while !world.settles() && !world.is_over() {
        number += 1;
        let task = Arc::new(Task::new(format!("{label}-{number}")));
        tasks.lock().map_err(|_| anyhow::anyhow!("a part of the run panicked"))?.push(Arc::downgrade(&task));
        let mut drive = Drive::begin(&world, &task)?;
        for _ in 0..drive.dice.between(1..=turns_per_task) {
            if world.settles() || !drive.turn().await {
                break;
            }
        }
        retired.extend(drive.retire().await?);
    }
    Ok(retired)
}

struct Drive {
    world: Arc<World>,
    task: Arc<Task>,
    dice: Dice,
    clients: JoinSet<Collected>,
    person: Person,
    posts: u64,
    /// The message of the last request whose outcome nobody knows, with which it may be repeated.
    unsure: Option<Value>,
}

impl Drive {
    fn begin(world: &Arc<World>, task: &Arc<Task>) -> anyhow::Result<Self> {
        for which in LOGS {
            let file = world.workspace.join(log(&task.name, which));
            std::fs::write(&file, format!("{END}\n")).context("a log cannot be written")?;
        }
        let mut clients = JoinSet::new();
        for observer in 0..OBSERVERS {
            let name = format!("{} observer {observer}", task.name);
            clients.spawn(follow(Arc::clone(world), Arc::clone(task), name, 0));
        }
        let person = Person::new(Arc::clone(world), Arc::clone(task));
        let dice = Dice::new(world.seed, &task.name);
        Ok(Self {
            world: Arc::clone(world),
            task: Arc::clone(task),
            dice,
            clients,
            person,
            posts: 0,
            unsure: None,
        })
    }

    /// One turn from its beginning to its end. False when the run is over or the turn does not end.
    async fn turn(&mut self) -> bool {
        let ended = self.task.view().ended;
        let begin = Instant::now();
        while self.task.view().open.is_none() && self.task.view().ended == ended {
            if begin.elapsed() > TURN {
                self.world.tally.violation(format!("{}: no turn can be begun", self.task.name));
                return false;
            }
            let Some(place) = self.world.place().await else { return false };
            if !self.post(&place).await {
                return false;
            }
            self.look(ended).await;
        }
        self.unsure = None;
        self.attend().await
    }

    /// Sends a request that begins a turn. False when the run is over.
    async fn post(&mut self, place: &Place) -> bool {
        let body = match self.unsure.take() {
            Some(body) if body.get("client_request_id").is_some() => body,
            _ => self.request(),
        };
        match self.world.api.execute(&place.base, &body).await {
            Opened::Stream(response) => {
                self.world.trap.occurred("execute accepted");
                let name = format!("{} turn {}", self.task.name, self.posts);
                let (world, task) = (Arc::clone(&self.world), Arc::clone(&self.task));
                self.clients.spawn(read_turn(world, task, name, response));
                self.unsure = Some(body);
            }
            Opened::Unsent => self.take_back_nothing(&body),
            Opened::Unknown => self.unsure = Some(body),
            // An earlier request of which nobody knew, or one that another client has not seen end yet.
            Opened::Refused(409, _) if self.posts > 1 => {}
            Opened::Refused(503, answer) if code(&answer) == "SHUTTING_DOWN" => {
                self.take_back_nothing(&body);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Opened::Refused(status, answer) => {
                self.world
                    .tally
                    .violation(format!("{}: {body} was refused: {status} {answer}", self.task.name));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        !self.world.is_over()
    }

    /// What to send: a message, an edit of an earlier one, or a retry.
    fn request(&mut self) -> Value {
        self.posts += 1;
        let number = hash((&self.task.name, self.posts)) >> 16;
        let mut body = json!({
            "task_id": self.task.name,
            "message": format!("{} {} What now?", greeting(&self.task.name), mark(number)),
            "direct": true,
            "super_thinking": self.dice.chance(self.world.mix.thinking),
        });
        let mut set = |name: &str, value: Value| {
            _ = body.as_object_mut().map(|body| body.insert(name.to_owned(), value));
        };
        if self.dice.chance(self.world.mix.capped) {
            set("max_turns", 2.into());
        }
        if self.dice.chance(self.world.mix.request_id) {
            set("client_request_id", format!("{}-{}", self.task.name, self.posts).into());
        }
        let mut view = self.task.view();
        let live: Vec<_> = view
            .messages
            .iter()
            .filter(|(message, turn)| {
                !view.promises.taken_back.contains(turn) && !view.superseded.contains(message)
            })
            .copied()
            .collect();
        if self.dice.chance(self.world.mix.edit)
            && let Some((message, _)) = self.dice.pick(&live)
        {
            set("edit_message_id", message.to_string().into());
            // A retry of the message has named it again.
            let after = view.messages.iter().skip_while(|(of, _)| of != message);
            let after: Vec<TurnId> = after.map(|(_, turn)| *turn).collect();
            view.promises.taken_back.extend(after);
            self.world.tally.count("edits");
        } else if self.dice.chance(self.world.mix.retry)
            && let Some((message, _)) = self.dice.pick(&live)
        {
            set("retry_message_id", message.to_string().into());
            let after = view.messages.iter().skip_while(|(of, _)| of != message);
            let after: Vec<MessageId> = after.map(|(of, _)| *of).filter(|of| of != message).collect();
            view.superseded.extend(after);
            self.world.tally.count("retries");
        }
        body
    }

    /// A request that never arrived is sent again as it was.
    fn take_back_nothing(&mut self, body: &Value) {
        if body.get("edit_message_id").is_some() || body.get("client_request_id").is_some() {
            self.unsure = Some(body.clone());
        }
    }

    /// Waits until a turn is seen to have begun, or none was begun.
    async fn look(&mut self, ended: u64) {
        let mut changes = self.task.changes();
        let engine = self.world.engine();
        let begin = Instant::now();
        loop {
            {
                let view = self.task.view();
                if view.open.is_some() || view.ended > ended {
                    return;
                }
            }
            // Another engine may never have heard of it.
            if begin.elapsed() > LOOK
                && self.world.engine().is_some()
                && (self.world.engine() == engine || begin.elapsed() > 4 * LOOK)
            {
                return;
            }
            let _ = tokio::time::timeout(Duration::from_millis(20), changes.changed()).await;
        }
    }

    /// Sees to the open turn until it ends.
    async fn attend(&mut self) -> bool {
        let Some(turn) = self.task.view().open else { return true };
        let begin = Instant::now();
        let mut changes = self.task.changes();
        self.person.meets(turn);
        while self.task.view().open == Some(turn) {
            if begin.elapsed() > TURN || self.world.is_over() {
                let view = self.task.view();
                self.world.tally.violation(format!(
                    "{}: {turn} does not end; it waits for {:?}",
                    self.task.name, view.pending
                ));
                return false;
            }
            let wait = self.person.act(turn).await;
            let _ = tokio::time::timeout(wait, changes.changed()).await;
        }
        self.world.tally.count("turns");
        true
    }

    /// Has the task judged.
    async fn retire(mut self) -> anyhow::Result<Option<Retired>> {
        while let Some(turn) = self.begun().await {
            if !self.attend().await {
                self.world.tally.violation(format!("{}: {turn} was left open", self.task.name));
                return Ok(None);
            }
        }
        if self.task.view().last_ts == 0 {
            self.clients.shutdown().await;
            return Ok(None);
        }
        let Some(events) = uncut(&self.world, &self.task).await else {
            if !self.world.is_over() {
                self.world
                    .tally
                    .violation(format!("{}: its events cannot be replayed whole", self.task.name));
            }
            return Ok(None);
        };
        self.task.closing.send_replace(events.last().map(|event| event.ts));
        let mut clients = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            clients.push(client.context("a client panicked")?);
        }
        judge::task(&self.world, &self.task, &events, &clients)?;
        Ok(Some(Retired { digest: digest(&events), task: self.task }))
    }

    /// A turn that is open, once the clients have had the time to see one.
    async fn begun(&mut self) -> Option<TurnId> {
        let ended = self.task.view().ended;
        if self.task.view().open.is_none() && self.unsure.take().is_some() {
            self.look(ended).await;
        }
        self.task.view().open
    }
}
