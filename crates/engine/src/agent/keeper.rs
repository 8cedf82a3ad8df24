//! Keeps house: has memory take in what an earlier version of the engine left, and takes the deltas of turns that
//! ended long ago out of the brain, and removes old copies of it. What the turn came to stays.

use std::sync::Arc;
use std::time::Duration;

use contract::Timestamp;

use super::Means;
use crate::brain::{Brain, COPY_LIFETIME};

/// How many turns are seen to in one commit, so that no turn at work waits long for it.
const TURNS_AT_ONCE: u32 = 50;
/// How many turns memory takes in in one commit.
const TAKEN_IN_AT_ONCE: usize = 20;
/// How long to leave the writer to others in between.
const PAUSE: Duration = Duration::from_millis(200);
/// How long to wait at least where nothing is due.
const SHORTEST: Duration = Duration::from_secs(1);
/// How often to look at least. This is the only thing that an idle engine does.
const LONGEST: Duration = Duration::from_hours(1);

/// Keeps house for ever.
pub(super) async fn keep(brain: Brain, means: Arc<Means>) {
    loop {
        let pause = match see_to(&brain, &means).await {
            Ok(pause) => pause,
            Err(reason) => {
                tracing::warn!(reason, "The brain could not be kept in order; this is tried again.");
                LONGEST
            }
        };
        if pause > PAUSE {
            remove_old_copies(&brain).await;
        }
        means.clock.sleep(pause).await;
    }
}

/// Removes the copies of the brain from before upgrades that nobody will go back to any more.
async fn remove_old_copies(brain: &Brain) {
    if let Some(Err(error)) = brain.blocking(|brain| brain.remove_copies(Some(COPY_LIFETIME))).await {
        tracing::warn!(%error, "An old copy of the brain could not be removed.");
    }
}

/// Does what is due; when to look again.
async fn see_to(brain: &Brain, means: &Means) -> Result<Duration, String> {
    // Each commit says how far it came, so a kill costs nothing.
    if brain.has_left_turns().map_err(|error| error.to_string())? {
        match brain.write(|rows| rows.take_in_left(TAKEN_IN_AT_ONCE)).await {
            Ok(()) => return Ok(PAUSE),
            // What else is due may be what makes room.
            Err(error) => tracing::warn!(%error, "Turns could not be taken in; this is tried again."),
        }
    }
    let Some(ended_at) = brain.first_unfolded().map_err(|error| error.to_string())? else {
        // What ends from now on is due that much later.
        return Ok(means.replay_ttl.clamp(SHORTEST, LONGEST));
    };
    let ttl = i64::try_from(means.replay_ttl.as_millis()).unwrap_or(i64::MAX);
    let before = means.clock.now().unix_ms().saturating_sub(ttl);
    let due_in = ended_at.unix_ms().saturating_sub(before);
    if let Ok(due_in @ 1..) = u64::try_from(due_in) {
        return Ok(Duration::from_millis(due_in).min(LONGEST));
    }
    let before = Timestamp::from_unix_ms(before);
    let folded = brain.write(move |rows| rows.fold_deltas(before, TURNS_AT_ONCE)).await;
    folded.map(|()| PAUSE).map_err(|error| error.to_string())
}
