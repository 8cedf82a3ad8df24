//! One lock per key, created on first use and removed when nobody holds or awaits it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Admits one holder at a time per key; waiters are served in order.
pub struct KeyedLocks<K> {
    locks: Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>,
}

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self { locks: Mutex::new(HashMap::new()) }
    }
}

impl<K: Eq + Hash> KeyedLocks<K> {
    /// Waits for the lock of `key`, and holds it until the guard is dropped.
    pub async fn lock(&self, key: K) -> OwnedMutexGuard<()> {
        let lock = self.lock_for(key);
        lock.lock_owned().await
    }

    fn lock_for(&self, key: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        // Removes unused locks here because a new one is about to be added.
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(key, Arc::downgrade(&lock));
        lock
    }
}
