//! The memory budget of large objects: one per engine, with a share for each use, so that a use competes only with
//! itself.
//!
//! A caller that is about to hold a large object reserves its memory at once, before reading it, and holds nothing
//! of the share while waiting, so that no two callers wait for each other. What arrives from outside at its own
//! pace is reserved as it arrives ([`GrowingReservation`]). Reservations are served in order. Small objects are
//! not counted; their number is bounded elsewhere.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The budget of an engine unless configured, in bytes.
pub const DEFAULT_BUDGET_BYTES: usize = 192 << 20;
/// The minimum budget, in bytes: each share then fits the largest common object.
pub const MIN_BUDGET_BYTES: usize = 64 << 20;
/// The size up to which an object is not counted, in bytes.
pub const MAX_UNCOUNTED_BYTES: usize = 256 << 10;

/// How long a reservation may wait.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The number of bytes per permit: semaphores count in 32 bits.
const PERMIT_BYTES: usize = 1 << 10;
/// The step in which a reservation grows, in bytes.
const GROWTH_STEP_BYTES: usize = 1 << 20;
/// The number of uses that share the budget.
const USE_COUNT: usize = 4;

/// The use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryUse {
    /// Data that tools read from servers, and values derived from it.
    Tools,
    /// Bodies of requests to the engine, and their parsed content.
    Requests,
    /// Attached media on their way to a model.
    Media,
    /// Lists that are as long as a task.
    Lists,
}

/// Memory for a large object was not available in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the engine's memory budget (ENGINE_MEMORY_BUDGET_MB) is exhausted, and too little was released within {} \
     seconds: try again later",
    RESERVE_TIMEOUT.as_secs()
)]
pub struct NoMemory;

/// The memory budget of an engine. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    shares: Arc<[Arc<Semaphore>; USE_COUNT]>,
    /// For each share, the one permit to grow beyond it.
    overflow: Arc<[Arc<Semaphore>; USE_COUNT]>,
    /// The number of permits of a share.
    permits_per_share: u32,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(DEFAULT_BUDGET_BYTES)
    }
}

impl MemoryBudget {
    /// Creates a budget of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        let permits_per_share =
            u32::try_from(bytes / USE_COUNT / PERMIT_BYTES).unwrap_or(u32::MAX >> 4).max(1);
        let shares = std::array::from_fn(|_| {
            Arc::new(Semaphore::new(usize::try_from(permits_per_share).unwrap_or(1)))
        });
        let overflow = std::array::from_fn(|_| Arc::new(Semaphore::new(1)));
        Self { shares: Arc::new(shares), overflow: Arc::new(overflow), permits_per_share }
    }

    /// Returns an empty reservation for an object that arrives in pieces.
    pub fn growing_reservation(&self, memory_use: MemoryUse) -> GrowingReservation {
        GrowingReservation {
            share: Arc::clone(share_for(&self.shares, memory_use)),
            overflow: Arc::clone(share_for(&self.overflow, memory_use)),
            share_permits: self.permits_per_share,
            permits: None,
            overflow_permit: None,
        }
    }

    /// Reserves `bytes` bytes; an object larger than the share gets all of it. Small objects are free.
    ///
    /// # Errors
    /// No memory became available in time.
    pub async fn reserve(&self, memory_use: MemoryUse, bytes: usize) -> Result<Reservation, NoMemory> {
        if bytes <= MAX_UNCOUNTED_BYTES {
            return Ok(Reservation(None));
        }
        let share = share_for(&self.shares, memory_use);
        let permits =
            u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX).min(self.permits_per_share);
        let reserved =
            tokio::time::timeout(RESERVE_TIMEOUT, Arc::clone(share).acquire_many_owned(permits)).await;
        // No semaphore is ever closed.
        Ok(Reservation(Some(reserved.map_err(|_| NoMemory)?.map_err(|_| NoMemory)?)))
    }
}

fn share_for(all: &[Arc<Semaphore>; USE_COUNT], memory_use: MemoryUse) -> &Arc<Semaphore> {
    let [tools, requests, media, lists] = all;
    match memory_use {
        MemoryUse::Tools => tools,
        MemoryUse::Requests => requests,
        MemoryUse::Media => media,
        MemoryUse::Lists => lists,
    }
}

/// Memory for an object that arrives in pieces, of unknown or untrusted size: it grows with what has arrived, so
/// that a slow sender holds little. It is reserved until this is dropped.
///
/// Several that each hold a part could wait for each other forever. Therefore one at a time in each share may grow
/// beyond the share, and that one waits for nobody until its end; an object larger than the share has to be that
/// one.
#[derive(Debug)]
pub struct GrowingReservation {
    share: Arc<Semaphore>,
    overflow: Arc<Semaphore>,
    /// The number of permits of the share.
    share_permits: u32,
    permits: Option<OwnedSemaphorePermit>,
    /// The permit to grow beyond the share, if this reservation has it.
    overflow_permit: Option<OwnedSemaphorePermit>,
}

impl GrowingReservation {
    /// Grows to `bytes` bytes in total. Small sizes are free.
    ///
    /// # Errors
    /// No memory became available in time.
    pub async fn grow_to(&mut self, bytes: usize) -> Result<(), NoMemory> {
        if bytes <= MAX_UNCOUNTED_BYTES || self.overflow_permit.is_some() {
            return Ok(());
        }
        let wanted_permits =
            u32::try_from(bytes.div_ceil(GROWTH_STEP_BYTES).saturating_mul(GROWTH_STEP_BYTES / PERMIT_BYTES))
                .unwrap_or(u32::MAX);
        let held_permits = self
            .permits
            .as_ref()
            .map_or(0, |permits| u32::try_from(permits.num_permits()).unwrap_or(u32::MAX));
        let more = wanted_permits.saturating_sub(held_permits);
        if more == 0 {
            return Ok(());
        }
        let reserved = async {
            tokio::select! {
                biased;
                more = Arc::clone(&self.share).acquire_many_owned(more), if wanted_permits <= self.share_permits =>
                    more.map(|more| (Some(more), None)),
                overflow = Arc::clone(&self.overflow).acquire_owned() =>
                    overflow.map(|overflow| (None, Some(overflow))),
            }
        };
        // No semaphore is ever closed.
        let reserved = tokio::time::timeout(RESERVE_TIMEOUT, reserved).await.map_err(|_| NoMemory)?;
        let (more, overflow) = reserved.map_err(|_| NoMemory)?;
        self.overflow_permit = overflow;
        match (&mut self.permits, more) {
            (Some(permits), Some(more)) => permits.merge(more),
            (permits @ None, more) => *permits = more,
            (Some(_), None) => {}
        }
        Ok(())
    }
}

/// Memory that is reserved until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Reservation(#[expect(dead_code, reason = "held, not read")] Option<OwnedSemaphorePermit>);

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
        // A smaller reservation does not overtake an earlier one.
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
        // The same holds for an object larger than the share, of which there is one at a time.
        let mut large = budget.growing_reservation(MemoryUse::Requests);
        large.grow_to(17 * MIB).await.unwrap();
        assert_eq!(budget.growing_reservation(MemoryUse::Requests).grow_to(17 * MIB).await, Err(NoMemory));
        // It is bounded: a third one waits for either, and not forever.
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
