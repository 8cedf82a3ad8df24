//! A client that reads a task's events, is cut off at random bytes, and goes on where it was.

use std::sync::Arc;
use std::time::{Duration, Instant};

use contract::TurnId;
use contract::event::SentEvent;
use reqwest::Response;

use crate::api::{Opened, code};
use crate::dice::Dice;
use crate::sse::Splitter;
use crate::task::Task;
use crate::world::World;

/// How long a client at the end of what there is waits before it asks again by itself.
const IDLE: Duration = Duration::from_millis(150);
/// How long a client may take to catch up once nothing more will happen.
const CATCH_UP: Duration = Duration::from_secs(20);

/// What a client has at its end.
#[derive(Debug)]
pub(crate) struct Collected {
    /// Its name, for messages.
    pub(crate) name: String,
    /// It has what comes after this.
    pub(crate) from: i64,
    /// It read one turn only.
    pub(crate) turn: Option<TurnId>,
    /// The events in the order in which they came.
    pub(crate) events: Vec<SentEvent>,
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The engine ended the stream.
    Whole,
    /// The client hung up.
    Cut,
    /// The connection broke.
    Broken,
}

struct Client {
    world: Arc<World>,
    task: Arc<Task>,
    dice: Dice,
    collected: Collected,
    last: i64,
}

/// Follows a task from `from` until it closes.
pub(crate) async fn follow(world: Arc<World>, task: Arc<Task>, name: String, from: i64) -> Collected {
    let mut client = Client::new(world, task, name, from);
    client.replay_until_closed().await;
    client.collected
}

/// Reads the stream that answers an execute, and after a break the rest of its turn by replay. A client that
/// is cut before the first event has nothing.
pub(crate) async fn read_turn(
    world: Arc<World>,
    task: Arc<Task>,
    name: String,
    response: Response,
) -> Collected {
    let mut client = Client::new(world, task, name, 0);
    client.read(response).await;
    let Some(first) = client.collected.events.first() else { return client.collected };
    let (turn, before) = (first.turn_id, first.ts - 1);
    client.collected.turn = Some(turn);
    client.collected.from = before;
    client.task.view().promises.turns.insert(turn);
    client.replay_until_closed().await;
    client.collected
}

impl Client {
    fn new(world: Arc<World>, task: Arc<Task>, name: String, from: i64) -> Self {
        let dice = Dice::new(world.seed, &name);
        let collected = Collected { name, from, turn: None, events: Vec::new() };
        Self { world, task, dice, collected, last: from }
    }

    fn has_all(&self) -> bool {
        let turn_ended = self.collected.events.last().is_some_and(|event| event.event.ends_turn());
        (self.collected.turn.is_some() && turn_ended)
            || self.task.closing.borrow().is_some_and(|end| self.last >= end)
    }

    async fn replay_until_closed(&mut self) {
        let mut changes = self.task.changes();
        let mut closing = self.task.closing.subscribe();
        let mut closed_at = None;
        while !self.has_all() && !self.world.is_over() {
            // What an edit took out comes no more.
            if self.collected.turn.is_some_and(|turn| self.task.view().promises.taken_back.contains(&turn)) {
                return;
            }
            if closing.borrow().is_some() && closed_at.get_or_insert_with(Instant::now).elapsed() > CATCH_UP {
                self.world.tally.violation(format!(
                    "{}: after {} it did not get the last events in time, of turn {:?}",
                    self.collected.name, self.last, self.collected.turn
                ));
                return;
            }
            if self.replay().await != End::Whole || self.has_all() {
                continue;
            }
            // A stream that ended has told all that there is until something happens.
            let last = self.last;
            let _ = tokio::time::timeout(IDLE, async {
                tokio::select! {
                    news = changes.wait_for(|newest| *newest > last) => { let _ = news; }
                    end = closing.changed() => { let _ = end; }
                }
            })
            .await;
        }
    }

    async fn replay(&mut self) -> End {
        let Some(place) = self.world.place().await else { return End::Broken };
        let by_header = self.dice.chance(0.5);
        let is_new = self.task.view().last_ts == 0;
        self.world.tally.count("connections of clients by replay");
        match self.world.api.replay(&place.base, &self.task.name, self.last, by_header).await {
            Opened::Stream(response) => return self.read(response).await,
            Opened::Refused(404, _) if is_new => {}
            Opened::Refused(503, body) if code(&body) == "SHUTTING_DOWN" => {}
            Opened::Refused(status, body) => {
                self.world
                    .tally
                    .violation(format!("{}: replay was refused: {status} {body}", self.collected.name));
            }
            Opened::Unsent | Opened::Unknown => {
                // Until the next engine is announced, this one's address leads nowhere.
                tokio::time::sleep(Duration::from_millis(2)).await;
                return End::Broken;
            }
        }
        End::Whole
    }

    /// Reads until the stream ends, breaks or is cut.
    async fn read(&mut self, mut response: Response) -> End {
        let mut budget = self.dice.chance(self.world.mix.cut).then(|| self.dice.between(0..=6_000));
        let mut splitter = Splitter::default();
        loop {
            let chunk = match tokio::time::timeout(self.world.left(), response.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => return End::Whole,
                Ok(Err(_)) => {
                    self.world.tally.count("connections broken by the engine's end");
                    return End::Broken;
                }
                Err(_) => return End::Broken,
            };
            let kept = budget
                .map_or(chunk.len(), |left| chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
            match splitter.push(chunk.get(..kept).unwrap_or_default()) {
                Ok(events) => events.into_iter().for_each(|event| self.take(event)),
                Err(error) => self.world.tally.violation(format!("{}: {error}", self.collected.name)),
            }
            if let Some(left) = &mut budget {
                *left = left.saturating_sub(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
                if *left == 0 {
                    self.world.tally.count("connections cut by clients");
                    return End::Cut;
                }
            }
            if self.has_all() {
                return End::Whole;
            }
        }
    }

    fn take(&mut self, event: SentEvent) {
        // A replay that follows the task may tell of the next turn in one breath with the end of this one.
        if self.collected.turn.is_some_and(|turn| turn != event.turn_id) {
            return;
        }
        if event.ts <= self.last {
            let (name, last) = (&self.collected.name, self.last);
            self.world.tally.violation(format!("{name}: ts does not rise: {event:?} came after {last}"));
        }
        // The trap first: every detour lets the engine get on.
        if let Some(moment) = self.task.saw(&event) {
            self.world.trap.occurred(moment);
        }
        self.last = self.last.max(event.ts);
        self.collected.events.push(event);
    }
}

/// All events of a task in one uncut stream, which must end with the end of a turn.
pub(crate) async fn uncut(world: &World, task: &Task) -> Option<Vec<SentEvent>> {
    let begin = Instant::now();
    while begin.elapsed() < CATCH_UP && !world.is_over() {
        let place = world.place().await?;
        if let Opened::Stream(mut response) = world.api.replay(&place.base, &task.name, 0, false).await {
            let mut splitter = Splitter::default();
            let mut events = Vec::new();
            let whole = loop {
                match tokio::time::timeout(Duration::from_secs(2), response.chunk()).await {
                    Ok(Ok(Some(chunk))) => events.extend(splitter.push(&chunk).ok()?),
                    Ok(Ok(None)) => break true,
                    Ok(Err(_)) | Err(_) => break false,
                }
            };
            let ended = events.last().is_some_and(|event: &SentEvent| event.event.ends_turn());
            // A stream also ends when the engine is asked to end.
            if whole && ended && events.last().map(|event| event.ts) >= Some(task.view().last_ts) {
                return Some(events);
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    None
}
