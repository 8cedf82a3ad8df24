//! Reads the events of a turn: sends the message, follows the stream across broken connections and restarts of the
//! engine, and passes on every event exactly once.

use std::sync::Arc;
use std::time::Instant;

use api::engine::Execute;
use api::event::{Event, HitlRequest, SentEvent};
use api::{ClientRequestId, ErrorCode, HitlId, TaskId};
use futures::StreamExt as _;
use serde_json::json;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::client::{ClientError, Engine, Events};
use crate::remote::{MAX_AWAY, RETRY_PAUSE, Remote};
use crate::terminal::escape_json;

/// What is to be read.
pub(crate) enum Start {
    /// Send a message and read its turn; first the rest of the turn before, if its end was not seen.
    Message { message: Box<Execute>, after_rest: bool },
    /// Read what is left of the turns that are running.
    Rest,
    /// Read the turn that is running to its end, also if the engine stops before.
    Turn,
}

/// What has happened.
pub(crate) enum TurnUpdate {
    Event(SentEvent),
    /// A request of the agent. Only one that is open needs an answer; others were answered already.
    Request {
        event: SentEvent,
        request: HitlRequest,
        is_open: bool,
    },
    /// The rest of the turn before follows, and then the message is sent.
    RestFirst,
    /// The events of the message's own turn follow.
    OwnTurn,
    /// The engine does not answer.
    Away,
    /// It answers again.
    Back,
    /// Nothing more follows.
    Ended(anyhow::Result<()>),
}

/// Where updates go. Whoever waits for them may have left.
pub(crate) type Updates = mpsc::Sender<TurnUpdate>;

/// Reads one turn.
pub(crate) struct TurnReader {
    remote: Remote,
    task: TaskId,
    /// The `ts` of the last event that was passed on.
    last_ts: i64,
    /// The request that is not answered yet.
    open_request: Option<HitlId>,
    /// Since when no event has arrived, if the engine was away after the last one.
    away_since: Option<Instant>,
    updates: Updates,
}

/// How far a stream is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// To the last event of a turn.
    EndOfTurn,
    /// To the end of the stream, which comes once no turn is running.
    EndOfStream,
}

impl TurnReader {
    pub(crate) const fn new(remote: Remote, task: TaskId, last_ts: i64, updates: Updates) -> Self {
        Self { remote, task, last_ts, open_request: None, away_since: None, updates }
    }

    /// Reads, and reports how it ended.
    pub(crate) async fn run(mut self, start: Start) {
        let ended = match start {
            Start::Rest => self.read_rest(Until::EndOfStream).await,
            Start::Turn => self.read_rest(Until::EndOfTurn).await,
            Start::Message { message, after_rest } => self.send_and_read(*message, after_rest).await,
        };
        self.report(TurnUpdate::Ended(ended)).await;
    }

    async fn report(&self, update: TurnUpdate) {
        // If nobody listens any more, the program is about to end.
        let _ = self.updates.send(update).await;
    }

    async fn send_and_read(&mut self, mut message: Execute, after_rest: bool) -> anyhow::Result<()> {
        // With this id, a repeated message is added only once.
        message.client_request_id = Some(ClientRequestId::new(Uuid::now_v7().to_string())?);
        if after_rest {
            self.report(TurnUpdate::RestFirst).await;
            self.read_rest(Until::EndOfStream).await?;
        }
        let events = match self.send(&message).await {
            // Another client is using the same task.
            Err(ClientError::Refused { code: ErrorCode::TaskBusy, .. }) => {
                self.report(TurnUpdate::RestFirst).await;
                self.read_rest(Until::EndOfStream).await?;
                self.send(&message).await?
            }
            events => events?,
        };
        self.read_first(events, &message).await
    }

    async fn send(&self, message: &Execute) -> Result<Events, ClientError> {
        self.remote.call(async |engine| engine.execute(message).await).await
    }

    /// Reads the turn of a message. Until its first event has arrived, the message is sent again after an interruption,
    /// which joins the turn: only then it is known after which event to continue.
    async fn read_first(&mut self, mut events: Events, message: &Execute) -> anyhow::Result<()> {
        loop {
            if let Some(Ok(event)) = events.next().await {
                self.report(TurnUpdate::OwnTurn).await;
                self.last_ts = event.ts.saturating_sub(1);
                return self.read(events, Some(event), Until::EndOfTurn).await;
            }
            self.report(TurnUpdate::Away).await;
            self.check_time_away()?;
            tokio::time::sleep(RETRY_PAUSE).await;
            events = self.send(message).await?;
            self.report(TurnUpdate::Back).await;
        }
    }

    async fn read_rest(&mut self, until: Until) -> anyhow::Result<()> {
        let (task, last_ts) = (self.task.clone(), self.last_ts);
        let replay = async |engine: Arc<Engine>| engine.replay(&task, last_ts).await;
        match self.remote.call(replay).await {
            Err(ClientError::Refused { code: ErrorCode::TaskNotFound, .. }) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(events) => self.read(events, None, until).await,
        }
    }

    async fn read(
        &mut self,
        mut events: Events,
        first: Option<SentEvent>,
        until: Until,
    ) -> anyhow::Result<()> {
        let mut next = first.map(Ok);
        loop {
            let event = match next.take() {
                Some(event) => Some(event),
                None => events.next().await,
            };
            match event {
                Some(Ok(event)) => {
                    let ends_turn = event.event.ends_turn();
                    match self.pass_on(event).await {
                        Ok(()) if ends_turn && until == Until::EndOfTurn => return Ok(()),
                        Ok(()) => {}
                        Err(_) => events = self.reconnect().await?,
                    }
                }
                // A turn that waits for an answer has not ended: the engine has stopped.
                None if until == Until::EndOfStream && self.open_request.is_none() => return Ok(()),
                Some(Err(_)) | None => events = self.reconnect().await?,
            }
        }
    }

    /// Passes on an event. One whose handling fails does not count as read, and is read again.
    async fn pass_on(&mut self, event: SentEvent) -> Result<(), ClientError> {
        self.away_since = None;
        // These two repeat the `ts` of the last event, and are not replayed.
        let is_stored = !matches!(event.event, Event::Heartbeat(_) | Event::BusyUpdate(_));
        if is_stored && event.ts <= self.last_ts {
            return Ok(());
        }
        let ts = event.ts;
        let update = match &event.event {
            Event::HitlRequest(request) => {
                let request = request.clone();
                let pending = self.remote.engine().pending().await?;
                let is_open = pending.iter().any(|waiting| waiting.request_id == request.request_id);
                self.open_request = is_open.then_some(request.request_id);
                TurnUpdate::Request { event, request, is_open }
            }
            Event::HitlResolved(resolved) => {
                self.open_request.take_if(|open| *open == resolved.request_id);
                TurnUpdate::Event(event)
            }
            other => {
                if other.ends_turn() {
                    self.open_request = None;
                }
                TurnUpdate::Event(event)
            }
        };
        self.report(update).await;
        self.last_ts = self.last_ts.max(ts);
        Ok(())
    }

    /// Continues after the last event, as soon as the engine answers again.
    async fn reconnect(&mut self) -> anyhow::Result<Events> {
        self.report(TurnUpdate::Away).await;
        loop {
            self.check_time_away()?;
            tokio::time::sleep(RETRY_PAUSE).await;
            let found = async {
                let engine = self.remote.find_again().await?;
                engine.replay(&self.task, self.last_ts).await
            };
            if let Ok(events) = found.await {
                self.report(TurnUpdate::Back).await;
                return Ok(events);
            }
        }
    }

    /// Fails if the engine has been away for too long. Streams that end without an event count as away.
    fn check_time_away(&mut self) -> anyhow::Result<()> {
        let since = *self.away_since.get_or_insert_with(Instant::now);
        anyhow::ensure!(
            since.elapsed() <= MAX_AWAY,
            "the engine does not answer, so it is not known what became of the turn; `roundhouse chat` shows it \
             once the engine is back"
        );
        Ok(())
    }
}

/// An event as a line of JSON, for programs.
pub(crate) fn json_line(event: &SentEvent) -> String {
    escape_json(&json!({"event": event.event.kind(), "data": event}).to_string()) + "\n"
}

#[cfg(test)]
mod tests {
    use api::TurnId;
    use api::event::Delta;
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_line_of_json_is_one_line_without_control_characters() {
        let text = "a\n\u{1b}[2J\u{9b}31m\u{7f}é";
        let event = SentEvent {
            task_id: TaskId::new("chat".to_owned()).unwrap(),
            turn_id: TurnId::new(),
            ts: 7,
            event: Event::TextDelta(Delta { text: text.into() }),
        };
        let line = json_line(&event);
        assert!(!line.trim_end_matches('\n').chars().any(char::is_control), "{line:?}");
        let parsed: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&parsed["event"], &parsed["data"]["ts"]), (&json!("text_delta"), &json!(7)));
        assert_eq!(parsed["data"]["text"], text);
    }
}
