//! Limits the responses that may last: streams of the audit log and calls proxied to engines.
//!
//! Each holds a connection for as long as its caller likes. The limit keeps connections free for short calls, and
//! no product can use up the share of the others.

use std::collections::HashMap;
use std::sync::Arc;

use api::ProductId;
use parking_lot::{Mutex, MutexGuard};

/// Concurrent long-lived responses: three quarters of the connections that the service accepts.
const MAX_OPEN_STREAMS: usize = 12_288;

/// Grants permits for long-lived responses.
pub(crate) struct StreamLimiter {
    open: Arc<Mutex<OpenStreams>>,
}

struct OpenStreams {
    limit: usize,
    total: usize,
    by_holder: HashMap<StreamHolder, usize>,
}

/// Who holds long-lived responses, each with a share of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StreamHolder {
    Product(ProductId),
    /// The deployment's operator, for whichever product.
    Operator,
}

/// A permit for one long-lived response, returned when it is dropped.
pub(crate) struct StreamPermit {
    open: Arc<Mutex<OpenStreams>>,
    holder: StreamHolder,
}

impl StreamLimiter {
    pub(super) fn new() -> Self {
        Self {
            open: Arc::new(Mutex::new(OpenStreams {
                limit: MAX_OPEN_STREAMS,
                total: 0,
                by_holder: HashMap::new(),
            })),
        }
    }

    /// Acquires a permit. A holder may have at most half of the permits that others do not hold; `None` if it
    /// already holds that many.
    pub(crate) fn acquire(&self, holder: StreamHolder) -> Option<StreamPermit> {
        let mut open = lock(&self.open);
        let own = open.by_holder.get(&holder).copied().unwrap_or_default();
        let left_by_others = open.limit.saturating_sub(open.total.saturating_sub(own));
        if own >= left_by_others.div_ceil(2) {
            return None;
        }
        open.total += 1;
        open.by_holder.insert(holder, own + 1);
        Some(StreamPermit { open: Arc::clone(&self.open), holder })
    }

    /// Sets the number of concurrent long-lived responses.
    #[cfg(test)]
    pub(crate) fn set_limit(&self, limit: usize) {
        lock(&self.open).limit = limit;
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        open.total = open.total.saturating_sub(1);
        if let Some(own) = open.by_holder.get_mut(&self.holder) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                open.by_holder.remove(&self.holder);
            }
        }
    }
}

fn lock(open: &Mutex<OpenStreams>) -> MutexGuard<'_, OpenStreams> {
    open.lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_holder_has_half_of_what_the_others_leave() {
        let limiter = StreamLimiter::new();
        limiter.set_limit(8);
        let (one, other) = (StreamHolder::Product(ProductId::new()), StreamHolder::Operator);
        let fill = |holder| std::iter::from_fn(|| limiter.acquire(holder)).collect::<Vec<_>>();
        let one_permits = fill(one);
        assert_eq!(one_permits.len(), 4);
        let other_permits = fill(other);
        assert_eq!(other_permits.len(), 2);
        assert!(limiter.acquire(one).is_none());
        drop(one_permits);
        assert_eq!(fill(other).len(), 2, "now half of all");
        drop(other_permits);
        assert!(lock(&limiter.open).by_holder.is_empty());
    }
}
