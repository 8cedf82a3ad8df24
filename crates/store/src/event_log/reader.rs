//! The reading end of a task's event log: live streaming and replay as one path.

use std::sync::Arc;
use std::time::Duration;

use api::TurnId;
use api::event::{Event, encode_sse};
use bytes::Bytes;
use tokio::sync::watch;

use super::outbox::{LogStatus, TaskEventLog};
use super::ring::Frame;
use crate::{Brain, StoreError, StoredEvent};

/// The interval of heartbeats on an idle stream.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// The limits of one page that is read from the store: the number of events, and their size in bytes
/// (approximate).
const PAGE_LIMITS: (usize, usize) = (256, 256 * 1024);

/// The condition under which a reader ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// After the last event of this turn.
    Turn(TurnId),
    /// After the last existing event, once no turn is running.
    Task,
}

/// Reads a task's events from a position, in order, each once. A slow reader delays nobody: events that it has not
/// received yet are read from the store later.
pub struct EventReader {
    event_log: Arc<TaskEventLog>,
    position: i64,
    follow: Follow,
    status: watch::Receiver<LogStatus>,
    ended: bool,
}

impl TaskEventLog {
    /// Creates a reader of the events with a `ts` above `after`.
    pub fn read(self: &Arc<Self>, after: i64, follow: Follow) -> EventReader {
        let status = self.status.subscribe();
        EventReader { event_log: Arc::clone(self), position: after, follow, status, ended: false }
    }
}

impl EventReader {
    /// The next events in their form on the wire, or a heartbeat; `None` at the end.
    ///
    /// # Errors
    /// The store could not be read.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        loop {
            if self.ended {
                return Ok(None);
            }
            // Read before the frames: a turn that ends in between is noticed in the next iteration.
            let status = *self.status.borrow_and_update();
            let mut frames = self.next_frames().await?;
            if let Follow::Turn(turn) = self.follow {
                let ended = retain_turn_frames(turn, &mut frames);
                if ended {
                    // Events that were read from the store may not be published yet. Waiting here guarantees that
                    // a client that sees the turn's end can begin another turn on the task.
                    let is_free = |status: &LogStatus| status.running_turn != Some(turn);
                    // The sender lives in the event log, which this reader holds, so this cannot fail.
                    let _ = self.status.wait_for(is_free).await;
                }
                // Set only after the wait: a reader that is dropped while it waits reads the same events again.
                self.ended = ended;
            }
            if let Some(last) = frames.last() {
                self.position = last.ts;
                return Ok(Some(concat_frames(&frames)));
            }
            if self.ended {
                return Ok(None);
            }
            let Some(turn_id) = self.awaited_turn(status) else { return Ok(None) };
            tokio::select! {
                _ = self.status.changed() => {}
                () = self.event_log.clock.sleep(HEARTBEAT_INTERVAL) => return Ok(Some(self.heartbeat(turn_id))),
            }
        }
    }

    /// Whether it has returned every event that was published so far.
    pub fn is_caught_up(&self) -> bool {
        self.position >= self.status.borrow().published_ts
    }

    /// The turn that more events are expected of, given that everything up to `status` was read.
    fn awaited_turn(&self, status: LogStatus) -> Option<TurnId> {
        status.running_turn.filter(|running| match self.follow {
            Follow::Turn(turn) => *running == turn,
            Follow::Task => true,
        })
    }

    async fn next_frames(&self) -> Result<Vec<Frame>, StoreError> {
        if let Some(frames) = self.event_log.published_after(self.position) {
            return Ok(frames);
        }
        let (task, position) = (self.event_log.task, self.position);
        let read = move |brain: &Brain| brain.events_after(task, position, PAGE_LIMITS);
        // `None` while the runtime is shutting down.
        let stored = self.event_log.brain.run_blocking(read).await.transpose()?.unwrap_or_default();
        Ok(stored.into_iter().map(|event| self.encode_stored_event(event)).collect())
    }

    fn encode_stored_event(&self, event: StoredEvent) -> Frame {
        let StoredEvent { ts, turn_id, kind, data } = event;
        let sse = encode_sse(&self.event_log.task_id, turn_id, ts, &kind, &data);
        let may_end = matches!(kind.as_str(), "error" | "thread_lifecycle");
        let event = || serde_json::from_str(&data).and_then(|data| Event::from_parts(&kind, data));
        let ends_turn = may_end && event().is_ok_and(|event| event.ends_turn());
        Frame { ts, turn_id, ends_turn, sse: Bytes::from(sse) }
    }

    fn heartbeat(&self, turn_id: TurnId) -> Bytes {
        Bytes::from(encode_sse(&self.event_log.task_id, turn_id, self.position, "heartbeat", "{}"))
    }
}

/// Keeps only the leading frames of `turn`, up to its end. Returns whether no more of it will come. The end may
/// have been removed by an edit or may never have been written; then events of another turn show that this one is
/// over.
fn retain_turn_frames(turn: TurnId, frames: &mut Vec<Frame>) -> bool {
    let foreign = frames.iter().position(|frame| frame.turn_id != turn);
    let end = frames.iter().position(|frame| frame.ends_turn).map(|end| end + 1);
    let Some(keep) = foreign.into_iter().chain(end).min() else { return false };
    frames.truncate(keep);
    true
}

fn concat_frames(frames: &[Frame]) -> Bytes {
    match frames {
        [only] => only.sse.clone(),
        several => several
            .iter()
            .fold(Vec::new(), |mut all, frame| {
                all.extend_from_slice(&frame.sse);
                all
            })
            .into(),
    }
}
