//! Notifications of new audit rows, so that followers of an audit log query the database only when there is
//! something to read.

use std::collections::HashMap;

use api::ProductId;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

/// Commits by which a follower of all products may lag before it looks for them itself.
const ALL_CAPACITY: usize = 1_024;

/// The followers by product. Products without followers have no entry.
pub(super) struct Notifier {
    listeners: Mutex<HashMap<ProductId, watch::Sender<()>>>,
    /// Names the product of each commit.
    all: broadcast::Sender<ProductId>,
}

impl Default for Notifier {
    fn default() -> Self {
        Self { listeners: Mutex::default(), all: broadcast::Sender::new(ALL_CAPACITY) }
    }
}

impl Notifier {
    /// Subscribes to a product's commits from now on. Several commits between two checks count as one.
    pub(super) fn subscribe(&self, product_id: ProductId) -> watch::Receiver<()> {
        self.listeners.lock().entry(product_id).or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    /// Subscribes to the commits of all products from now on.
    pub(super) fn subscribe_to_all(&self) -> broadcast::Receiver<ProductId> {
        self.all.subscribe()
    }

    /// Notifies the followers of `product_id` that rows have been committed.
    pub(super) fn notify(&self, product_id: ProductId) {
        // An error means that nobody follows all products.
        let _ = self.all.send(product_id);
        let mut listeners = self.listeners.lock();
        if listeners.get(&product_id).is_some_and(|listener| listener.send(()).is_err()) {
            listeners.remove(&product_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_comes_to_those_who_follow_the_product() {
        let (notifier, one, other) = (Notifier::default(), ProductId::new(), ProductId::new());
        let (mut first, mut second) = (notifier.subscribe(one), notifier.subscribe(one));
        notifier.notify(other);
        assert!(!first.has_changed().unwrap());
        notifier.notify(one);
        notifier.notify(one);
        assert!(first.has_changed().unwrap() && second.has_changed().unwrap());
        first.mark_unchanged();
        second.mark_unchanged();
        // A later subscriber is notified of later commits only.
        assert!(!notifier.subscribe(one).has_changed().unwrap());
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let (notifier, product) = (Notifier::default(), ProductId::new());
        drop(notifier.subscribe(product));
        notifier.notify(product);
        assert!(notifier.listeners.lock().is_empty());
        let follower = notifier.subscribe(product);
        notifier.notify(product);
        assert!(follower.has_changed().unwrap());
    }
}
