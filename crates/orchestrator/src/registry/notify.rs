//! Word of new rows in the ledger, for those who wait for them: who follows the ledger asks the database only
//! when there is something to read.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::ProductId;
use tokio::sync::watch;

/// Whom to tell, by product. Products that nobody follows are not in it.
#[derive(Default)]
pub(super) struct Notifier {
    listeners: Mutex<HashMap<ProductId, watch::Sender<()>>>,
}

impl Notifier {
    /// Word of every commit from now on. Those that come before they are asked for count as one.
    pub(super) fn subscribe(&self, product_id: ProductId) -> watch::Receiver<()> {
        self.listeners().entry(product_id).or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    /// Rows of `product_id` have been committed.
    pub(super) fn notify(&self, product_id: ProductId) {
        let mut listeners = self.listeners();
        if listeners.get(&product_id).is_some_and(|listener| listener.send(()).is_err()) {
            listeners.remove(&product_id);
        }
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<ProductId, watch::Sender<()>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_comes_to_those_who_follow_the_product() {
        let (news, one, other) = (Notifier::default(), ProductId::new(), ProductId::new());
        let (mut first, mut second) = (news.subscribe(one), news.subscribe(one));
        news.notify(other);
        assert!(!first.has_changed().unwrap());
        news.notify(one);
        news.notify(one);
        assert!(first.has_changed().unwrap() && second.has_changed().unwrap());
        first.mark_unchanged();
        second.mark_unchanged();
        // Who comes later hears only of what comes later.
        assert!(!news.subscribe(one).has_changed().unwrap());
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let (news, product) = (Notifier::default(), ProductId::new());
        drop(news.subscribe(product));
        news.notify(product);
        assert!(news.listeners().is_empty());
        let follower = news.subscribe(product);
        news.notify(product);
        assert!(follower.has_changed().unwrap());
    }
}
