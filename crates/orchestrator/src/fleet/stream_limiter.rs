//! Answers that may last: streams of the audit log, and calls that are passed on to engines. Each holds a connection for as
//! long as its caller likes, so all together are kept from taking every connection, and no product takes the others'.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::ProductId;

use crate::fault_injection::{self, Mutation};

/// How many may be open at once: three quarters of the connections that the service accepts.
const MAX_OPEN_STREAMS: usize = 12_288;

/// The answers that are open.
pub(crate) struct StreamLimiter {
    open: Arc<Mutex<OpenStreams>>,
}

struct OpenStreams {
    limit: usize,
    total: usize,
    by_product: HashMap<ProductId, usize>,
}

/// One of them: it is open until this is dropped.
pub(crate) struct StreamPermit {
    open: Arc<Mutex<OpenStreams>>,
    product_id: ProductId,
}

impl StreamLimiter {
    pub(super) fn new() -> Self {
        Self {
            open: Arc::new(Mutex::new(OpenStreams {
                limit: MAX_OPEN_STREAMS,
                total: 0,
                by_product: HashMap::new(),
            })),
        }
    }

    /// Opens one for a product, which may have half of what the others leave; none if it has as many.
    pub(crate) fn acquire(&self, product_id: ProductId) -> Option<StreamPermit> {
        let mut open = lock(&self.open);
        let own = open.by_product.get(&product_id).copied().unwrap_or_default();
        let left_by_others = open.limit.saturating_sub(open.total.saturating_sub(own));
        if own >= left_by_others.div_ceil(2) && !fault_injection::active(Mutation::NoShares) {
            return None;
        }
        open.total += 1;
        open.by_product.insert(product_id, own + 1);
        Some(StreamPermit { open: Arc::clone(&self.open), product_id })
    }

    /// Lets so many be open at once.
    #[cfg(test)]
    pub(crate) fn set_limit(&self, at_most: usize) {
        lock(&self.open).limit = at_most;
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        open.total = open.total.saturating_sub(1);
        if let Some(own) = open.by_product.get_mut(&self.product_id) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                open.by_product.remove(&self.product_id);
            }
        }
    }
}

fn lock(open: &Mutex<OpenStreams>) -> MutexGuard<'_, OpenStreams> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_product_has_half_of_what_the_others_leave() {
        let answers = StreamLimiter::new();
        answers.set_limit(8);
        let (one, other) = (ProductId::new(), ProductId::new());
        let fill = |product| std::iter::from_fn(|| answers.acquire(product)).collect::<Vec<_>>();
        let of_one = fill(one);
        assert_eq!(of_one.len(), 4);
        let of_other = fill(other);
        assert_eq!(of_other.len(), 2);
        assert!(answers.acquire(one).is_none());
        drop(of_one);
        assert_eq!(fill(other).len(), 2, "now half of all");
        drop(of_other);
        assert!(lock(&answers.open).by_product.is_empty());
    }
}
