//! Limits how many engines boot at once, and shares the permits among products.
//!
//! A backend handles a limited number of launches at a time; more would only wait inside it, against their
//! deadlines. Boots that hang hold their permits for a long time, so no product gets all of them: a product is
//! granted at most half of the permits that others do not hold. The boots of four products may hang, and a fifth
//! still finds a permit. Boots that a caller waits for go first, and among them those of the product that holds
//! the fewest permits.

use std::collections::HashMap;
use std::sync::Arc;

use api::{EngineId, ProductId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// The kind of boot for which a permit is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BootRequest {
    /// A boot that a caller waits for: a provision, a start or a wake.
    OnDemand,
    /// A restart by the supervisor after a failure.
    Restart {
        engine_id: EngineId,
        /// Whether a caller waits for it.
        urgent: bool,
    },
    /// A boot of a warm engine, which nobody waits for: it comes last.
    Warm,
}

impl BootRequest {
    /// Whether it gets only such permits as are left to boots that no caller has begun.
    const fn is_restart(self) -> bool {
        matches!(self, Self::Restart { .. } | Self::Warm)
    }

    const fn is_urgent(self) -> bool {
        matches!(self, Self::OnDemand | Self::Restart { urgent: true, .. })
    }
}

/// Grants permits to boot.
pub(super) struct BootLimiter {
    state: Arc<Mutex<State>>,
}

struct State {
    boots: PermitPool,
    restarts: PermitPool,
    waiters: Vec<Waiter>,
}

/// The permits of one kind, and how many of them each product holds.
struct PermitPool {
    free: usize,
    held: HashMap<ProductId, usize>,
}

struct Waiter {
    product_id: ProductId,
    request: BootRequest,
    grant: oneshot::Sender<Permit>,
}

/// A permit to boot one engine, returned when it is dropped.
pub(super) struct Permit {
    product_id: ProductId,
    restart: bool,
    /// `None` once it is returned.
    state: Option<Arc<Mutex<State>>>,
}

impl PermitPool {
    fn new(free: usize) -> Self {
        Self { free, held: HashMap::new() }
    }

    fn held_by(&self, product_id: ProductId) -> usize {
        self.held.get(&product_id).copied().unwrap_or_default()
    }

    /// Whether the product would then hold at most half of the permits that others do not hold.
    fn can_grant(&self, product_id: ProductId) -> bool {
        let held = self.held_by(product_id);
        let share = self.free.saturating_add(held).div_ceil(2);
        self.free > 0 && held < share
    }

    fn acquire(&mut self, product_id: ProductId) {
        self.free -= 1;
        *self.held.entry(product_id).or_default() += 1;
    }

    fn release(&mut self, product_id: ProductId) {
        self.free += 1;
        if let Some(held) = self.held.get_mut(&product_id) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&product_id);
            }
        }
    }
}

impl State {
    fn can_grant(&self, product_id: ProductId, restart: bool) -> bool {
        self.boots.can_grant(product_id) && (!restart || self.restarts.can_grant(product_id))
    }

    fn acquire(&mut self, product_id: ProductId, restart: bool) {
        self.boots.acquire(product_id);
        if restart {
            self.restarts.acquire(product_id);
        }
    }

    /// Removes the next waiter from the queue that may be granted a permit.
    fn pop_grantable(&mut self) -> Option<Waiter> {
        let can_grant =
            |(_, waiter): &(usize, &Waiter)| self.can_grant(waiter.product_id, waiter.request.is_restart());
        // Among equals, the first has waited longest.
        let rank = |(_, waiter): &(usize, &Waiter)| {
            let is_warm = waiter.request == BootRequest::Warm;
            (is_warm, !waiter.request.is_urgent(), self.boots.held_by(waiter.product_id))
        };
        let (index, _) = self.waiters.iter().enumerate().filter(can_grant).min_by_key(rank)?;
        Some(self.waiters.remove(index))
    }
}

impl BootLimiter {
    /// Creates a limiter of `boots` at once, of which at most half may be restarts, across all products.
    pub(super) fn new(boots: usize) -> Self {
        Self::with_limits(boots, boots.div_ceil(2))
    }

    fn with_limits(boots: usize, restarts: usize) -> Self {
        let state =
            State { boots: PermitPool::new(boots), restarts: PermitPool::new(restarts), waiters: Vec::new() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Waits for a permit to boot an engine of the product.
    pub(super) async fn acquire(&self, product_id: ProductId, request: BootRequest) -> Permit {
        let (grant, granted) = oneshot::channel();
        lock(&self.state).waiters.push(Waiter { product_id, request, grant });
        grant_permits(&self.state);
        match granted.await {
            Ok(permit) => permit,
            // The sender is dropped only with the limiter itself.
            Err(_) => std::future::pending().await,
        }
    }

    /// The numbers of permits held and of waiters.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.boots.held.values().sum(), state.waiters.len())
    }

    /// Marks the queued restart of `engine_id` as urgent, because a caller now waits for it.
    pub(super) fn prioritize(&self, engine_id: EngineId) {
        for waiter in &mut lock(&self.state).waiters {
            if let BootRequest::Restart { engine_id: waiting_engine, urgent } = &mut waiter.request {
                *urgent |= *waiting_engine == engine_id;
            }
        }
    }
}

/// Grants permits as long as a waiter is eligible for one.
fn grant_permits(state: &Arc<Mutex<State>>) {
    loop {
        let (next, permit) = {
            let mut locked = lock(state);
            let Some(next) = locked.pop_grantable() else { return };
            let restart = next.request.is_restart();
            locked.acquire(next.product_id, restart);
            let permit = Permit { product_id: next.product_id, restart, state: Some(Arc::clone(state)) };
            (next, permit)
        };
        // The permit of a waiter that has gone is returned and goes to the next one; not by its drop, which would
        // re-enter this function.
        if let Err(mut refused) = next.grant.send(permit) {
            refused.release();
        }
    }
}

impl Permit {
    fn release(&mut self) -> Option<Arc<Mutex<State>>> {
        let state = self.state.take()?;
        {
            let mut locked = lock(&state);
            locked.boots.release(self.product_id);
            if self.restart {
                locked.restarts.release(self.product_id);
            }
        }
        Some(state)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(state) = self.release() {
            grant_permits(&state);
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock()
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    fn restart(engine_id: EngineId) -> BootRequest {
        BootRequest::Restart { engine_id, urgent: false }
    }

    /// Acquires all permits that the product can hold at once.
    fn acquire_all(limiter: &BootLimiter, product_id: ProductId, request: BootRequest) -> Vec<Permit> {
        std::iter::from_fn(|| limiter.acquire(product_id, request).now_or_never()).collect()
    }

    #[test]
    fn while_the_boots_of_four_products_hang_a_fifth_finds_a_permit() {
        let limiter = BootLimiter::with_limits(16, 8);
        let mut held = Vec::new();
        for expected in [8, 4, 2, 1, 1] {
            let permits = acquire_all(&limiter, ProductId::new(), BootRequest::OnDemand);
            assert_eq!(permits.len(), expected);
            held.push(permits);
        }
        held.clear();
        // The same holds for restarts, which leave room for the boots that callers wait for.
        let product_id = ProductId::new();
        let restarts = acquire_all(&limiter, product_id, restart(EngineId::new()));
        assert_eq!(restarts.len(), 4);
        assert_eq!(acquire_all(&limiter, ProductId::new(), restart(EngineId::new())).len(), 2);
        assert_eq!(acquire_all(&limiter, product_id, BootRequest::OnDemand).len(), 4);
    }

    #[tokio::test]
    async fn a_warm_engine_comes_after_everything_that_somebody_wants() {
        let limiter = BootLimiter::with_limits(1, 1);
        let product_id = ProductId::new();
        let held = limiter.acquire(product_id, BootRequest::OnDemand).await;
        let mut warm = Box::pin(limiter.acquire(ProductId::new(), BootRequest::Warm));
        assert!(warm.as_mut().now_or_never().is_none());
        let mut restarted = Box::pin(limiter.acquire(product_id, restart(EngineId::new())));
        assert!(restarted.as_mut().now_or_never().is_none());
        drop(held);
        let held = restarted.await;
        assert!(warm.as_mut().now_or_never().is_none());
        drop(held);
        drop(warm.await);
    }

    #[tokio::test]
    async fn who_is_waited_for_comes_first_then_whose_product_has_least_and_who_gave_up_not_at_all() {
        let limiter = BootLimiter::with_limits(2, 2);
        let (mine, other) = (ProductId::new(), ProductId::new());
        let engines = [EngineId::new(), EngineId::new(), EngineId::new()];
        let held = limiter.acquire(mine, restart(EngineId::new())).await;
        let other_permit = limiter.acquire(other, restart(EngineId::new())).await;
        let mut cancelled = Box::pin(limiter.acquire(mine, BootRequest::OnDemand));
        let mut waiting = engines.map(|engine_id| Box::pin(limiter.acquire(mine, restart(engine_id))));
        let mut on_demand = Box::pin(limiter.acquire(mine, BootRequest::OnDemand));
        assert!(cancelled.as_mut().now_or_never().is_none());
        assert!(waiting.iter_mut().all(|waiting| waiting.as_mut().now_or_never().is_none()));
        assert!(on_demand.as_mut().now_or_never().is_none());
        drop(cancelled);
        limiter.prioritize(engines[1]);
        drop(held);
        // It was queued before the one that was prioritized, and callers wait for both.
        let held = waiting[1].as_mut().await;
        drop(held);
        let held = on_demand.await;
        drop(held);
        let held = waiting[0].as_mut().await;
        assert!(waiting[2].as_mut().now_or_never().is_none());
        drop((held, other_permit));
        drop(waiting[2].as_mut().await);
    }

    proptest! {
        /// Whatever the order of arrivals, completions and cancellations, the number of permits is constant, and
        /// nobody waits while a permit is available.
        #[test]
        fn no_permit_is_lost_or_made(actions in proptest::collection::vec((0_usize..3, 0_usize..4, any::<bool>()), 1..200)) {
            let limiter = BootLimiter::with_limits(5, 3);
            let products = [ProductId::new(), ProductId::new(), ProductId::new(), ProductId::new()];
            let mut held: Vec<Permit> = Vec::new();
            let mut waiting: Vec<Pin<Box<dyn Future<Output = Permit> + '_>>> = Vec::new();
            for (action, index, is_restart) in actions {
                match action {
                    0 => {
                        let request = if is_restart { restart(EngineId::new()) } else { BootRequest::OnDemand };
                        waiting.push(Box::pin(limiter.acquire(products[index], request)));
                    }
                    1 if !held.is_empty() => drop(held.swap_remove(index % held.len())),
                    2 if !waiting.is_empty() => drop(waiting.swap_remove(index % waiting.len())),
                    _ => {}
                }
                let mut still_waiting = Vec::new();
                for mut future in waiting {
                    match future.as_mut().now_or_never() {
                        Some(permit) => held.push(permit),
                        None => still_waiting.push(future),
                    }
                }
                waiting = still_waiting;
                let restarts = held.iter().filter(|permit| permit.restart).count();
                prop_assert!(held.len() <= 5 && restarts <= 3);
                let state = lock(&limiter.state);
                prop_assert_eq!(state.boots.free, 5 - held.len());
                prop_assert_eq!(state.restarts.free, 3 - restarts);
                for waiter in &state.waiters {
                    let is_gone = waiter.grant.is_closed();
                    let restart = waiter.request.is_restart();
                    prop_assert!(is_gone || !state.can_grant(waiter.product_id, restart));
                }
            }
            drop((held, waiting));
            let state = lock(&limiter.state);
            prop_assert_eq!((state.boots.free, state.restarts.free), (5, 3));
        }
    }
}
