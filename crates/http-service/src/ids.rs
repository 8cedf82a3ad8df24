//! Ids of requests, traces and spans. They only have to be unique, and every request needs three.
//!
//! So they come from a fast generator. `Uuid::now_v7` asks the operating system for randomness each time, which is
//! one of the larger costs of a short request. The ids are not secret: some of them may allow others to be
//! computed.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use uuid::{Builder, Uuid};

thread_local! {
    /// Seeded from the operating system's randomness, which keys `RandomState`.
    static RANDOM: RefCell<Rng> = RefCell::new(Rng::with_seed(RandomState::new().hash_one(())));
}

/// Returns a new `UUIDv7`.
pub(crate) fn uuid_v7() -> Uuid {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = [0; 10];
    RANDOM.with_borrow_mut(|rng| rng.fill(&mut random));
    let millis = u64::try_from(since_epoch.as_millis()).unwrap_or_default();
    Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
}

/// Returns a new span id, which is never 0.
pub(crate) fn span_id() -> u64 {
    RANDOM.with_borrow_mut(|rng| rng.u64(1..))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use super::*;

    #[test]
    fn ids_differ_within_and_between_threads() {
        let ids = || (0..1_000).map(|_| (uuid_v7(), span_id())).collect::<Vec<_>>();
        let threads: Vec<_> = (0..8).map(|_| thread::spawn(ids)).collect();
        let ids: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        let uuids: HashSet<_> = ids.iter().map(|(uuid, _)| *uuid).collect();
        let numbers: HashSet<_> = ids.iter().map(|(_, number)| *number).collect();
        assert_eq!((uuids.len(), numbers.len()), (8_000, 8_000));
        assert!(!numbers.contains(&0) && uuids.iter().all(|uuid| uuid.get_version_num() == 7));
    }

    #[test]
    fn an_id_tells_when_it_was_made() {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let before = now();
        let (made, _) = uuid_v7().get_timestamp().unwrap().to_unix();
        assert!((before..=now()).contains(&made));
    }
}
