//! A client that reads a task's events, is disconnected at random bytes, and resumes where it was.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::TurnId;
use api::event::SentEvent;
use reqwest::Response;

use crate::client::{StreamOutcome, error_code};
use crate::context::RunContext;
use crate::rng::SeededRng;
use crate::sse::EventParser;
use crate::task::TrackedTask;

/// How long a client that has read everything waits before it reconnects by itself.
const IDLE_RETRY_DELAY: Duration = Duration::from_millis(150);
/// How long a client may take to catch up after the last event.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(20);

/// The events that a client received.
#[derive(Debug)]
pub(crate) struct ReceivedEvents {
    /// Its name, for messages.
    pub(crate) name: String,
    /// Only events after this timestamp were requested.
    pub(crate) after: i64,
    /// If set, only this turn was read.
    pub(crate) turn: Option<TurnId>,
    /// The events in the order of arrival.
    pub(crate) events: Vec<SentEvent>,
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
enum StreamEnd {
    /// The engine ended the stream.
    Complete,
    /// The client hung up.
    ClosedByClient,
    /// The connection broke.
    Broken,
}

struct StreamReader {
    context: Arc<RunContext>,
    task: Arc<TrackedTask>,
    rng: SeededRng,
    received: ReceivedEvents,
    last_ts: i64,
}

/// Follows a task from `from` until it closes.
pub(crate) async fn follow(
    context: Arc<RunContext>,
    task: Arc<TrackedTask>,
    name: String,
    from: i64,
) -> ReceivedEvents {
    let mut client = StreamReader::new(context, task, name, from);
    client.replay_until_closed().await;
    client.received
}

/// Reads the stream that answers an execute, and after a break the rest of its turn by replay. A client
/// disconnected before the first event has received nothing.
pub(crate) async fn read_turn(
    context: Arc<RunContext>,
    task: Arc<TrackedTask>,
    name: String,
    response: Response,
) -> ReceivedEvents {
    let mut client = StreamReader::new(context, task, name, 0);
    client.read_stream(response).await;
    let Some(first) = client.received.events.first() else { return client.received };
    let (turn, before) = (first.turn_id, first.ts - 1);
    client.received.turn = Some(turn);
    client.received.after = before;
    client.task.view().acknowledged.turns.insert(turn);
    client.replay_until_closed().await;
    client.received
}

impl StreamReader {
    fn new(context: Arc<RunContext>, task: Arc<TrackedTask>, name: String, from: i64) -> Self {
        let rng = SeededRng::new(context.seed, &name);
        let received = ReceivedEvents { name, after: from, turn: None, events: Vec::new() };
        Self { context, task, rng, received, last_ts: from }
    }

    fn is_complete(&self) -> bool {
        let turn_ended = self.received.events.last().is_some_and(|event| event.event.ends_turn());
        (self.received.turn.is_some() && turn_ended)
            || self.task.final_ts.borrow().is_some_and(|end| self.last_ts >= end)
    }

    async fn replay_until_closed(&mut self) {
        let mut changes = self.task.subscribe();
        let mut final_ts = self.task.final_ts.subscribe();
        let mut closed_at = None;
        while !self.is_complete() && !self.context.is_over() {
            // Events rewound by an edit are not sent any more.
            if self
                .received
                .turn
                .is_some_and(|turn| self.task.view().acknowledged.rewound_turns.contains(&turn))
            {
                return;
            }
            if final_ts.borrow().is_some()
                && closed_at.get_or_insert_with(Instant::now).elapsed() > CATCH_UP_TIMEOUT
            {
                self.context.counters.record_violation(format!(
                    "{}: after {} it did not receive the last events of turn {:?} in time",
                    self.received.name, self.last_ts, self.received.turn
                ));
                return;
            }
            if self.replay().await != StreamEnd::Complete || self.is_complete() {
                continue;
            }
            // The stream has sent everything there is until something happens.
            let last = self.last_ts;
            let _ = tokio::time::timeout(IDLE_RETRY_DELAY, async {
                tokio::select! {
                    news = changes.wait_for(|newest| *newest > last) => { let _ = news; }
                    end = final_ts.changed() => { let _ = end; }
                }
            })
            .await;
        }
    }

    async fn replay(&mut self) -> StreamEnd {
        let Some(endpoint) = self.context.wait_endpoint().await else { return StreamEnd::Broken };
        let by_header = self.rng.chance(0.5);
        let is_new = self.task.view().last_ts == 0;
        self.context.counters.count("connections of clients by replay");
        match self.context.api.replay(&endpoint.base_url, &self.task.name, self.last_ts, by_header).await {
            StreamOutcome::Stream(response) => return self.read_stream(response).await,
            StreamOutcome::Response(404, _) if is_new => {}
            StreamOutcome::Response(503, body) if error_code(&body) == "SHUTTING_DOWN" => {}
            StreamOutcome::Response(status, body) => {
                self.context
                    .counters
                    .record_violation(format!("{}: replay was refused: {status} {body}", self.received.name));
            }
            StreamOutcome::NotSent | StreamOutcome::Unknown => {
                // Until the next engine is announced, this address is dead.
                tokio::time::sleep(Duration::from_millis(2)).await;
                return StreamEnd::Broken;
            }
        }
        StreamEnd::Complete
    }

    /// Reads until the stream ends, breaks or is disconnected.
    async fn read_stream(&mut self, mut response: Response) -> StreamEnd {
        let mut budget =
            self.rng.chance(self.context.workload.disconnect).then(|| self.rng.between(0..=6_000));
        let mut parser = EventParser::default();
        loop {
            let chunk = match tokio::time::timeout(self.context.remaining(), response.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => return StreamEnd::Complete,
                Ok(Err(_)) => {
                    self.context.counters.count("connections broken by the engine's end");
                    return StreamEnd::Broken;
                }
                Err(_) => return StreamEnd::Broken,
            };
            let kept = budget
                .map_or(chunk.len(), |left| chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
            match parser.push(chunk.get(..kept).unwrap_or_default()) {
                Ok(events) => events.into_iter().for_each(|event| self.record(event)),
                Err(error) => {
                    self.context.counters.record_violation(format!("{}: {error}", self.received.name));
                }
            }
            if let Some(left) = &mut budget {
                *left = left.saturating_sub(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
                if *left == 0 {
                    self.context.counters.count("connections cut by clients");
                    return StreamEnd::ClosedByClient;
                }
            }
            if self.is_complete() {
                return StreamEnd::Complete;
            }
        }
    }

    fn record(&mut self, event: SentEvent) {
        // A replay that follows the task may send the next turn's events in the same chunk as the end of this one.
        if self.received.turn.is_some_and(|turn| turn != event.turn_id) {
            return;
        }
        if event.ts <= self.last_ts {
            let (name, last) = (&self.received.name, self.last_ts);
            self.context
                .counters
                .record_violation(format!("{name}: ts does not increase: {event:?} came after {last}"));
        }
        // The trigger first: any delay would let the engine proceed.
        if let Some(trigger_event) = self.task.observe(&event) {
            self.context.trigger.notify(trigger_event);
        }
        self.last_ts = self.last_ts.max(event.ts);
        self.received.events.push(event);
    }
}

/// Reads all events of a task in one uninterrupted stream, which must end with the end of a turn.
pub(crate) async fn replay_uninterrupted(context: &RunContext, task: &TrackedTask) -> Option<Vec<SentEvent>> {
    let begin = Instant::now();
    while begin.elapsed() < CATCH_UP_TIMEOUT && !context.is_over() {
        let endpoint = context.wait_endpoint().await?;
        if let StreamOutcome::Stream(mut response) =
            context.api.replay(&endpoint.base_url, &task.name, 0, false).await
        {
            let mut parser = EventParser::default();
            let mut events = Vec::new();
            let complete = loop {
                match tokio::time::timeout(Duration::from_secs(2), response.chunk()).await {
                    Ok(Ok(Some(chunk))) => events.extend(parser.push(&chunk).ok()?),
                    Ok(Ok(None)) => break true,
                    Ok(Err(_)) | Err(_) => break false,
                }
            };
            let ended = events.last().is_some_and(|event: &SentEvent| event.event.ends_turn());
            // A stream also ends when the engine is asked to stop.
            if complete && ended && events.last().map(|event| event.ts) >= Some(task.view().last_ts) {
                return Some(events);
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    None
}
