//! The response to a message: the events of its turn, after what becomes of it while its task is busy.

use std::sync::Arc;
use std::time::Duration;

use api::event::encode_sse;
use api::turns::BusyUpdate;
use api::{TaskId, TurnId};
use bytes::Bytes;
use http_service::clock::Clock;
use store::event_log::{EventLogs, EventReader, Follow};
use store::{QueueEnd, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::turn_queue::QueueProgress;

/// The interval of heartbeats while a message waits.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// What a person is told about a message whose turn could not begin.
const FAILED_MESSAGE: &str = "the message could not be read from the queue; send it again";
/// The same, if its turn was to edit or to retry something.
const UNKNOWN_MESSAGE: &str = "the message to edit or to retry is not in the conversation";

/// The events that the sender of a message receives.
pub struct TurnStream {
    first: Option<Bytes>,
    source: Source,
}

enum Source {
    Queue(QueueReader),
    Turn(EventReader),
    End,
}

/// Follows a message in the queue.
pub(super) struct QueueReader {
    pub(super) event_logs: EventLogs,
    pub(super) task_id: TaskId,
    pub(super) turn_id: TurnId,
    /// The `ts` that its events repeat.
    pub(super) last_ts: i64,
    pub(super) progress: watch::Receiver<QueueProgress>,
    /// The position that was sent last.
    pub(super) sent_position: Option<u64>,
    pub(super) clock: Arc<dyn Clock>,
    /// Cancelled when the engine stops; the message stays in the queue.
    pub(super) stopping: CancellationToken,
}

impl From<EventReader> for TurnStream {
    fn from(reader: EventReader) -> Self {
        Self { first: None, source: Source::Turn(reader) }
    }
}

impl TurnStream {
    /// The events of a message in the queue, and of its turn.
    pub(super) fn queued(reader: QueueReader) -> Self {
        Self { first: None, source: Source::Queue(reader) }
    }

    /// The events of the turn that was given a message, after an event that says so.
    pub(super) fn after(first: Bytes, reader: EventReader) -> Self {
        Self { first: Some(first), source: Source::Turn(reader) }
    }

    /// The only event of a message that left the queue without a turn.
    pub(super) fn ended(task_id: &TaskId, turn_id: TurnId, last_ts: i64, end: QueueEnd) -> Self {
        Self { first: Some(encode(task_id, turn_id, last_ts, &end_update(end))), source: Source::End }
    }

    /// Whether it has returned all that exists so far: more only comes with time, if at all.
    pub fn is_caught_up(&self) -> bool {
        self.first.is_none()
            && match &self.source {
                Source::Turn(reader) => reader.is_caught_up(),
                Source::Queue(reader) => reader.sent_position.is_some(),
                Source::End => true,
            }
    }

    /// The reader of the turn's events, once it has begun.
    #[cfg(test)]
    pub(super) fn into_reader(self) -> Option<EventReader> {
        match self.source {
            Source::Turn(reader) => Some(reader),
            Source::Queue(_) | Source::End => None,
        }
    }

    /// The next events in their form on the wire, or a heartbeat; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            match &mut self.source {
                Source::Turn(reader) => return reader.next().await,
                Source::End => return Ok(None),
                Source::Queue(reader) => {
                    let (event, next) = reader.next().await?;
                    if let Some(next) = next {
                        self.source = next;
                    }
                    if event.is_some() {
                        return Ok(event);
                    }
                }
            }
        }
    }
}

impl QueueReader {
    /// The next event, and where the events after it come from if that changes.
    async fn next(&mut self) -> Result<(Option<Bytes>, Option<Source>), StoreError> {
        loop {
            let progress = *self.progress.borrow_and_update();
            match progress {
                QueueProgress::Waiting { position } if self.sent_position != Some(position) => {
                    self.sent_position = Some(position);
                    return Ok((Some(self.encode(&BusyUpdate::Queued { position })), None));
                }
                QueueProgress::Storing | QueueProgress::Waiting { .. } => {}
                QueueProgress::Begun { events_after } => {
                    // An import may have replaced the event log that the task had before.
                    let event_log = self.event_logs.open(&self.task_id)?;
                    let reader = event_log.read(events_after, Follow::Turn(self.turn_id));
                    return Ok((None, Some(Source::Turn(reader))));
                }
                QueueProgress::Ended(end) => {
                    return Ok((Some(self.encode(&end_update(end))), Some(Source::End)));
                }
            }
            tokio::select! {
                biased;
                changed = self.progress.changed() => {
                    if changed.is_err() {
                        return Ok((None, Some(Source::End)));
                    }
                }
                () = self.stopping.cancelled() => return Ok((None, Some(Source::End))),
                () = self.clock.sleep(HEARTBEAT_INTERVAL) => {
                    let sse = encode_sse(&self.task_id, self.turn_id, self.last_ts, "heartbeat", "{}");
                    return Ok((Some(Bytes::from(sse)), None));
                }
            }
        }
    }

    fn encode(&self, update: &BusyUpdate) -> Bytes {
        encode(&self.task_id, self.turn_id, self.last_ts, update)
    }
}

fn end_update(end: QueueEnd) -> BusyUpdate {
    match end {
        QueueEnd::Cancelled => BusyUpdate::Cancelled {},
        QueueEnd::Failed => BusyUpdate::Failed { message: FAILED_MESSAGE.to_owned() },
        QueueEnd::UnknownMessage => BusyUpdate::Failed { message: UNKNOWN_MESSAGE.to_owned() },
    }
}

/// Encodes what became of a message. It is not stored, so it repeats the task's last `ts`.
pub(super) fn encode(task_id: &TaskId, turn_id: TurnId, last_ts: i64, update: &BusyUpdate) -> Bytes {
    // An enum of numbers and texts can always be serialized.
    let data = serde_json::to_string(update).unwrap_or_default();
    Bytes::from(encode_sse(task_id, turn_id, last_ts, "busy_update", &data))
}
