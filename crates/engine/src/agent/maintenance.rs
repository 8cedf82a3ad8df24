//! Background maintenance: takes into memory and indexes what an earlier version of the engine left, removes the
//! deltas of turns that ended long ago, and removes old usage and old copies of the brain. The results of turns stay.

use std::sync::Arc;
use std::time::Duration;

use api::Timestamp;
use http_service::clock::Clock;
use store::{BACKUP_LIFETIME, Brain};

/// The number of turns processed in one commit, so that no running turn waits long for it.
const TURNS_PER_COMMIT: u32 = 50;
/// The number of turns indexed in one commit.
const INGESTED_TURNS_PER_COMMIT: usize = 20;
/// The number of messages indexed in one commit: some ten milliseconds of work.
const INDEXED_MESSAGES_PER_COMMIT: usize = 200;
/// The most rows of usage. Beyond it, the oldest days are kept without their tasks.
const MAX_USAGE_ROWS: i64 = 200_000;
/// The pause between commits, which leaves the writer to others.
const COMMIT_INTERVAL: Duration = Duration::from_millis(200);
/// The shortest pause if nothing is due.
const MIN_TICK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest pause. An idle engine does nothing else.
const MAX_TICK_INTERVAL: Duration = Duration::from_hours(1);

/// How often a reader that was opened on demand is looked at: it is closed if it was not used meanwhile.
const UNUSED_READER_INTERVAL: Duration = Duration::from_secs(30);

/// Closes the brain's readers when they are no longer used, forever. While none is open it does nothing.
pub(super) async fn close_unused_readers(brain: Brain, clock: Arc<dyn Clock>) {
    loop {
        brain.reader_opened().await;
        loop {
            clock.sleep(UNUSED_READER_INTERVAL).await;
            if !brain.close_unused_readers() {
                break;
            }
        }
    }
}

/// Runs maintenance forever. Deltas are kept for `replay_ttl` after their turn, and usage for `usage_retention`.
pub(super) async fn run(
    brain: Brain,
    clock: Arc<dyn Clock>,
    replay_ttl: Duration,
    usage_retention: Duration,
) {
    loop {
        let pause = match tick(&brain, &*clock, replay_ttl).await {
            Ok(pause) => pause,
            Err(reason) => {
                tracing::warn!(reason, "Maintenance of the brain failed and is retried.");
                MAX_TICK_INTERVAL
            }
        };
        if pause > COMMIT_INTERVAL {
            remove_old_copies(&brain).await;
            trim_usage(&brain, &*clock, usage_retention).await;
        }
        clock.sleep(pause).await;
    }
}

/// Removes copies of the brain made before upgrades that are too old to be needed for a rollback.
async fn remove_old_copies(brain: &Brain) {
    if let Some(Err(error)) = brain.run_blocking(|brain| brain.remove_backups(Some(BACKUP_LIFETIME))).await {
        tracing::warn!(%error, "An old backup of the brain could not be removed.");
    }
}

/// Removes usage that is older than `retention`, and bounds the number of its rows, in short commits.
async fn trim_usage(brain: &Brain, clock: &dyn Clock, retention: Duration) {
    let now = clock.now();
    let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
    let before = Timestamp::from_unix_ms(now.unix_ms().saturating_sub(retention));
    let check = move |brain: &Brain| brain.has_usage_to_trim(before, MAX_USAGE_ROWS);
    let mut is_due = matches!(brain.run_blocking(check).await, Some(Ok(true)));
    while is_due {
        match brain.write(move |rows| rows.trim_usage(before, now, MAX_USAGE_ROWS)).await {
            Ok(has_more) => is_due = has_more,
            Err(error) => {
                tracing::warn!(%error, "Old usage could not be removed; this is retried.");
                return;
            }
        }
        clock.sleep(COMMIT_INTERVAL).await;
    }
}

/// Does what is due. Returns the pause before the next check.
async fn tick(brain: &Brain, clock: &dyn Clock, replay_ttl: Duration) -> Result<Duration, String> {
    // Each commit records its progress, so a kill loses nothing.
    if brain.has_ingest_backlog().map_err(|error| error.to_string())? {
        match brain.write(|rows| rows.ingest_backlog(INGESTED_TURNS_PER_COMMIT)).await {
            Ok(()) => return Ok(COMMIT_INTERVAL),
            // The other work that is due may be what frees space.
            Err(error) => tracing::warn!(%error, "Ended turns could not be indexed; this is retried."),
        }
    }
    if brain.has_index_backlog().map_err(|error| error.to_string())? {
        match brain.write(|rows| rows.index_backlog(INDEXED_MESSAGES_PER_COMMIT)).await {
            Ok(()) => return Ok(COMMIT_INTERVAL),
            Err(error) => tracing::warn!(%error, "Memory could not be indexed; this is retried."),
        }
    }
    let Some(ended_at) = brain.first_unfolded().map_err(|error| error.to_string())? else {
        // A turn that ends from now on is due only after `replay_ttl`.
        return Ok(replay_ttl.clamp(MIN_TICK_INTERVAL, MAX_TICK_INTERVAL));
    };
    let ttl = i64::try_from(replay_ttl.as_millis()).unwrap_or(i64::MAX);
    let before = clock.now().unix_ms().saturating_sub(ttl);
    let due_in = ended_at.unix_ms().saturating_sub(before);
    if let Ok(due_in @ 1..) = u64::try_from(due_in) {
        return Ok(Duration::from_millis(due_in).min(MAX_TICK_INTERVAL));
    }
    let before = Timestamp::from_unix_ms(before);
    let folded = brain.write(move |rows| rows.fold_deltas(before, TURNS_PER_COMMIT)).await;
    folded.map(|()| COMMIT_INTERVAL).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use http_service::clock::ManualClock;
    use mock_llm::Wire;
    use pretty_assertions::assert_eq;
    use testkit::{SseEvent, with_deadline};

    use super::*;
    use crate::agent::harness::AgentHarness;

    #[tokio::test]
    async fn a_reader_is_closed_when_it_was_not_used_for_an_interval() {
        let harness = AgentHarness::new(Wire::AnthropicMessages).await;
        let read = |brain: &Brain| brain.media_sizes(Vec::new()).unwrap();
        harness.brain.run_blocking(read).await.unwrap();
        // What was used since the last look stays open, once.
        assert!(harness.brain.close_unused_readers());
        assert!(!harness.brain.close_unused_readers());
        harness.brain.run_blocking(read).await.unwrap();
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_ms(0)));
        let closing = close_unused_readers(harness.brain.clone(), Arc::clone(&clock) as Arc<dyn Clock>);
        let closing = tokio::spawn(closing);
        with_deadline(async {
            while harness.brain.close_unused_readers() {
                clock.advance(UNUSED_READER_INTERVAL);
                tokio::task::yield_now().await;
            }
        })
        .await;
        // The next read opens it again.
        harness.brain.run_blocking(read).await.unwrap();
        assert!(harness.brain.close_unused_readers());
        closing.abort();
    }

    #[tokio::test]
    async fn deltas_are_kept_for_their_time_and_taken_out_when_it_is_over() {
        let millisecond = Duration::from_millis(1);
        let almost = Duration::from_hours(3);
        let ttl = almost + millisecond;
        let harness = AgentHarness::new(Wire::AnthropicMessages).await;
        let before = harness.send("hello").await;
        // An event log in use replays from memory.
        with_deadline(async {
            while harness.live_counts() != [0; 3] {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let ended_at = harness.brain.first_unfolded().unwrap().unwrap();
        let clock = ManualClock::at(ended_at);
        // Nothing is due before its time, and the tick returns how long that is.
        assert_eq!(tick(&harness.brain, &clock, ttl).await, Ok(MAX_TICK_INTERVAL));
        clock.advance(almost);
        assert_eq!(tick(&harness.brain, &clock, ttl).await, Ok(millisecond));
        assert_eq!(harness.replay(0).await, before);
        clock.advance(millisecond);
        assert_eq!(tick(&harness.brain, &clock, ttl).await, Ok(COMMIT_INTERVAL));
        let deltas = ["text_delta", "content_block_start", "content_block_stop"];
        let kept: Vec<SseEvent> =
            before.into_iter().filter(|event| !deltas.contains(&event.kind.as_str())).collect();
        assert_eq!(harness.replay(0).await, kept);
        // A turn that ends from now on is due after a full `replay_ttl`.
        assert_eq!(tick(&harness.brain, &clock, Duration::from_mins(9)).await, Ok(Duration::from_mins(9)));
    }
}
