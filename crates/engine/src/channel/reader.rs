//! The reading end of a task's channel: live and replay as one path.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use contract::TurnId;
use contract::event::{Event, encode};
use tokio::sync::watch;

use super::outbox::{Progress, TaskChannel, shown};
use super::ring::Frame;
use crate::brain::{Brain, StoredEvent};

/// How often a stream on which nothing happens says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How many events, and about how many bytes of them, are read from the store at once.
const PAGE: (usize, usize) = (256, 256 * 1024);

/// Where a reader ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// After the last event of this turn.
    Turn(TurnId),
    /// After the last event there is, once no turn runs.
    Task,
}

/// Reads a task's events from a position, in order, each once. A slow reader holds nobody up: what it has not
/// taken yet it later reads from the store.
pub struct Reader {
    channel: Arc<TaskChannel>,
    position: i64,
    follow: Follow,
    progress: watch::Receiver<Progress>,
    ended: bool,
}

impl Reader {
    pub(super) fn new(
        channel: Arc<TaskChannel>,
        after: i64,
        follow: Follow,
        progress: watch::Receiver<Progress>,
    ) -> Self {
        Self { channel, position: after, follow, progress, ended: false }
    }

    /// The next events in their form on the wire, or a heartbeat; none at the end.
    ///
    /// # Errors
    /// The store could not be read.
    pub async fn next(&mut self) -> Result<Option<Bytes>, rusqlite::Error> {
        loop {
            if self.ended {
                return Ok(None);
            }
            // Looked at before the frames: a turn that ends in between is seen on the next round.
            let progress = *self.progress.borrow_and_update();
            let mut frames = self.frames().await?;
            if let Follow::Turn(turn) = self.follow {
                let ended = only_of(turn, &mut frames);
                if ended {
                    // What is read from the store may be on its way to be published: whoever sees the turn's end
                    // finds its task free.
                    let free = |progress: &Progress| progress.running != Some(turn);
                    // The channel, which this reader holds, is what tells.
                    let _ = self.progress.wait_for(free).await;
                }
                // Not before: a reader that is dropped while it waits reads the same again.
                self.ended = ended;
            }
            if let Some(last) = frames.last() {
                self.position = last.ts;
                return Ok(Some(concat(&frames)));
            }
            if self.ended {
                return Ok(None);
            }
            let Some(turn_id) = self.awaited(progress) else { return Ok(None) };
            tokio::select! {
                _ = self.progress.changed() => {}
                () = self.channel.clock.sleep(HEARTBEAT) => return Ok(Some(self.heartbeat(turn_id))),
            }
        }
    }

    /// The turn of which more may come, given that all up to `progress` was read.
    fn awaited(&self, progress: Progress) -> Option<TurnId> {
        progress.running.filter(|running| match self.follow {
            Follow::Turn(turn) => *running == turn,
            Follow::Task => true,
        })
    }

    async fn frames(&self) -> Result<Vec<Frame>, rusqlite::Error> {
        if let Some(frames) = self.channel.published_after(self.position) {
            return Ok(frames);
        }
        let (task, position) = (self.channel.task, self.position);
        let read = move |brain: &Brain| brain.events_after(task, position, PAGE);
        // None where the runtime is shutting down.
        let stored = self.channel.brain.blocking(read).await.transpose()?.unwrap_or_default();
        Ok(stored.into_iter().map(|event| self.stored(event)).collect())
    }

    fn stored(&self, event: StoredEvent) -> Frame {
        let StoredEvent { ts, turn_id, kind, data } = event;
        let sse = encode(&self.channel.task_id, turn_id, shown(ts), &kind, &data);
        let may_end = matches!(kind.as_str(), "error" | "thread_lifecycle");
        let event = || serde_json::from_str(&data).and_then(|data| Event::from_parts(&kind, data));
        let ends_turn = may_end && event().is_ok_and(|event| event.ends_turn());
        Frame { ts, turn_id, ends_turn, sse: Bytes::from(sse) }
    }

    fn heartbeat(&self, turn_id: TurnId) -> Bytes {
        Bytes::from(encode(&self.channel.task_id, turn_id, self.position, "heartbeat", "{}"))
    }
}

/// Leaves the frames of `turn` alone, up to its end; whether nothing more of it comes. Its end may have been taken
/// out by an edit, or never have come: then another turn's events tell that it is over.
fn only_of(turn: TurnId, frames: &mut Vec<Frame>) -> bool {
    let foreign = frames.iter().position(|frame| frame.turn_id != turn);
    let end = frames.iter().position(|frame| frame.ends_turn).map(|end| end + 1);
    let Some(keep) = foreign.into_iter().chain(end).min() else { return false };
    frames.truncate(keep);
    true
}

fn concat(frames: &[Frame]) -> Bytes {
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
