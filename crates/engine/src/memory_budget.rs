//! How much memory large things may take at once: one budget per engine, in a share for each use, so that one use
//! waits for itself alone.
//!
//! Whoever is about to hold something large reserves it at one go, before it is read, and holds nothing of the share
//! while it waits: nobody waits for somebody who waits. What comes from outside at a pace of its own is reserved as it
//! comes ([`GrowingReservation`]). Who comes first is served first. What is small is not counted:
//! how many there are is bounded elsewhere.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How much an engine may take where nothing else is set, in bytes.
pub(crate) const DEFAULT_BUDGET_BYTES: usize = 192 << 20;
/// The least that can be set, in bytes: each share takes the largest of what is usual.
pub(crate) const MIN_BUDGET_BYTES: usize = 64 << 20;
/// What is smaller than this is not counted, in bytes.
pub(crate) const MAX_UNCOUNTED_BYTES: usize = 256 << 10;

/// How long memory is waited for.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The bytes of one permit: semaphores count in 32 bits.
const PERMIT_BYTES: usize = 1 << 10;
/// In what steps memory grows, in bytes.
const GROWTH_STEP_BYTES: usize = 1 << 20;
/// How many uses share the budget.
const USE_COUNT: usize = 4;

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryUse {
    /// What tools read from servers, and what is made of it.
    Tools,
    /// Bodies of requests to the engine, and what is read out of them.
    Requests,
    /// Attached media on their way to a model.
    Media,
    /// Lists that are as long as a task.
    Lists,
}

/// Why something large is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the engine holds as much in memory as it may (ENGINE_MEMORY_BUDGET_MB), and none of it was given back for {} \
     seconds: try again later",
    RESERVE_TIMEOUT.as_secs()
)]
pub struct NoMemory;

/// See the module. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    shares: Arc<[Arc<Semaphore>; USE_COUNT]>,
    /// Of each share, the one place for what grows beyond it.
    overflow: Arc<[Arc<Semaphore>; USE_COUNT]>,
    /// How many permits a share has.
    permits_per_share: u32,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(DEFAULT_BUDGET_BYTES)
    }
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let share = u32::try_from(bytes / USE_COUNT / PERMIT_BYTES).unwrap_or(u32::MAX >> 4).max(1);
        let shares = std::array::from_fn(|_| Arc::new(Semaphore::new(usize::try_from(share).unwrap_or(1))));
        let beyond = std::array::from_fn(|_| Arc::new(Semaphore::new(1)));
        Self { shares: Arc::new(shares), overflow: Arc::new(beyond), permits_per_share: share }
    }

    /// Memory for what comes bit by bit: nothing as yet.
    pub(crate) fn growing_reservation(&self, what: MemoryUse) -> GrowingReservation {
        GrowingReservation {
            share: Arc::clone(share_for(&self.shares, what)),
            overflow: Arc::clone(share_for(&self.overflow, what)),
            share_permits: self.permits_per_share,
            permits: None,
            overflow_permit: None,
        }
    }

    /// Reserves so many bytes; what is larger than the whole share has it alone. What is small is free.
    ///
    /// # Errors
    /// There was no room for some time.
    pub(crate) async fn reserve(&self, what: MemoryUse, bytes: usize) -> Result<Reservation, NoMemory> {
        if bytes <= MAX_UNCOUNTED_BYTES {
            return Ok(Reservation(None));
        }
        let share = share_for(&self.shares, what);
        let permits =
            u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX).min(self.permits_per_share);
        let reserved =
            tokio::time::timeout(RESERVE_TIMEOUT, Arc::clone(share).acquire_many_owned(permits)).await;
        // No share is ever closed.
        Ok(Reservation(Some(reserved.map_err(|_| NoMemory)?.map_err(|_| NoMemory)?)))
    }
}

fn share_for(all: &[Arc<Semaphore>; USE_COUNT], what: MemoryUse) -> &Arc<Semaphore> {
    let [tools, requests, media, lists] = all;
    match what {
        MemoryUse::Tools => tools,
        MemoryUse::Requests => requests,
        MemoryUse::Media => media,
        MemoryUse::Lists => lists,
    }
}

/// Memory for what comes bit by bit, of a size that is not known or not worth believing: it holds as much as has come, so
/// that one who sends slowly holds little. It is reserved until this is dropped.
///
/// Those that each hold a part could wait for each other for ever. So there is one in each share that may go beyond it, and
/// whoever is that one waits for nobody until its end; what is larger than the share has to be that one.
#[derive(Debug)]
pub(crate) struct GrowingReservation {
    share: Arc<Semaphore>,
    overflow: Arc<Semaphore>,
    /// How many permits the share has.
    share_permits: u32,
    permits: Option<OwnedSemaphorePermit>,
    /// Whether it is the one that goes beyond the share.
    overflow_permit: Option<OwnedSemaphorePermit>,
}

impl GrowingReservation {
    /// Reserves so many bytes in all. What is small is free.
    ///
    /// # Errors
    /// There was no room for some time.
    pub(crate) async fn grow_to(&mut self, bytes: usize) -> Result<(), NoMemory> {
        if bytes <= MAX_UNCOUNTED_BYTES || self.overflow_permit.is_some() {
            return Ok(());
        }
        let wanted =
            u32::try_from(bytes.div_ceil(GROWTH_STEP_BYTES).saturating_mul(GROWTH_STEP_BYTES / PERMIT_BYTES))
                .unwrap_or(u32::MAX);
        let held =
            self.permits.as_ref().map_or(0, |held| u32::try_from(held.num_permits()).unwrap_or(u32::MAX));
        let more = wanted.saturating_sub(held);
        if more == 0 {
            return Ok(());
        }
        let reserved = async {
            tokio::select! {
                biased;
                more = Arc::clone(&self.share).acquire_many_owned(more), if wanted <= self.share_permits =>
                    more.map(|more| (Some(more), None)),
                beyond = Arc::clone(&self.overflow).acquire_owned() => beyond.map(|beyond| (None, Some(beyond))),
            }
        };
        // Nothing of this is ever closed.
        let reserved = tokio::time::timeout(RESERVE_TIMEOUT, reserved).await.map_err(|_| NoMemory)?;
        let (more, beyond) = reserved.map_err(|_| NoMemory)?;
        self.overflow_permit = beyond;
        match (&mut self.permits, more) {
            (Some(held), Some(more)) => held.merge(more),
            (held @ None, more) => *held = more,
            (Some(_), None) => {}
        }
        Ok(())
    }
}

/// Memory that is somebody's until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Reservation(#[expect(dead_code, reason = "held, not read")] Option<OwnedSemaphorePermit>);

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const MIB: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn a_use_waits_for_itself_alone_and_in_its_order() {
        let budget = MemoryBudget::new(64 * MIB);
        let first = budget.reserve(MemoryUse::Tools, 10 * MIB).await.unwrap();
        let mut large = Box::pin(budget.reserve(MemoryUse::Tools, 16 * MIB));
        assert!((&mut large).now_or_never().is_none());
        // One that would fit does not pass one that came before it.
        let mut later = Box::pin(budget.reserve(MemoryUse::Tools, MIB));
        assert!((&mut later).now_or_never().is_none());
        drop(budget.reserve(MemoryUse::Requests, 16 * MIB).await.unwrap());
        drop(budget.reserve(MemoryUse::Tools, MAX_UNCOUNTED_BYTES).await.unwrap());
        drop(first);
        drop(large.await.unwrap());
        drop(later.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_larger_than_the_share_has_it_alone() {
        let budget = MemoryBudget::new(64 * MIB);
        let alone = budget.reserve(MemoryUse::Lists, usize::MAX).await.unwrap();
        assert_eq!(budget.reserve(MemoryUse::Lists, MIB).await.unwrap_err(), NoMemory);
        drop(alone);
        drop(budget.reserve(MemoryUse::Lists, MIB).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_slowly_holds_what_has_come() {
        let budget = MemoryBudget::new(64 * MIB);
        let mut slow = budget.growing_reservation(MemoryUse::Requests);
        slow.grow_to(MAX_UNCOUNTED_BYTES).await.unwrap();
        drop(budget.reserve(MemoryUse::Requests, 16 * MIB).await.unwrap());
        slow.grow_to(MAX_UNCOUNTED_BYTES + 1).await.unwrap();
        let rest = budget.reserve(MemoryUse::Requests, 15 * MIB).await.unwrap();
        assert!(budget.reserve(MemoryUse::Requests, MIB).now_or_never().is_none());
        drop(slow);
        drop(budget.reserve(MemoryUse::Requests, MIB).await.unwrap());
        drop(rest);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_grow_do_not_wait_for_each_other() {
        let budget = MemoryBudget::new(64 * MIB);
        let [mut one, mut other] = [(); 2].map(|()| budget.growing_reservation(MemoryUse::Tools));
        one.grow_to(8 * MIB).await.unwrap();
        other.grow_to(8 * MIB).await.unwrap();
        // The share is full: one of them may go beyond it, to its end.
        one.grow_to(9 * MIB).await.unwrap();
        one.grow_to(100 * MIB).await.unwrap();
        let mut waits = Box::pin(other.grow_to(9 * MIB));
        assert!((&mut waits).now_or_never().is_none());
        drop(one);
        waits.await.unwrap();
        // So is what is larger than the share, of which there is one at a time.
        let mut large = budget.growing_reservation(MemoryUse::Requests);
        large.grow_to(17 * MIB).await.unwrap();
        assert_eq!(budget.growing_reservation(MemoryUse::Requests).grow_to(17 * MIB).await, Err(NoMemory));
        // It is bounded: a third one waits for either, and not for ever.
        let mut third = budget.growing_reservation(MemoryUse::Tools);
        third.grow_to(7 * MIB).await.unwrap();
        third.grow_to(8 * MIB).await.unwrap();
        assert_eq!(budget.growing_reservation(MemoryUse::Tools).grow_to(MIB).await, Err(NoMemory));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_no_more_holds_up_nobody() {
        let budget = MemoryBudget::new(64 * MIB);
        let first = budget.reserve(MemoryUse::Lists, 15 * MIB).await.unwrap();
        assert!(budget.reserve(MemoryUse::Lists, 16 * MIB).now_or_never().is_none());
        drop(budget.reserve(MemoryUse::Lists, MIB).await.unwrap());
        drop(first);
    }
}
