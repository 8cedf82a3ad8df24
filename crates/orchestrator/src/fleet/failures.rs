//! The engines that could not be put to sleep or destroyed at the last attempt, for the operator to see.

use std::collections::{HashMap, HashSet};

use api::fleet::EngineFailure;
use api::{EngineId, ErrorDetail, ProductId, Timestamp};
use parking_lot::Mutex;

use super::FleetError;
use crate::domain::EngineOwner;

/// How many failures are named.
const MAX_NAMED_FAILURES: usize = 100;

/// Engines whose operation fails and is tried again. There are never more than exist.
#[derive(Default)]
pub(super) struct Failures(Mutex<HashMap<EngineId, EngineFailure>>);

impl Failures {
    /// Notes the end of an attempt on an engine of `owner` at `now`. A failure is dropped unless `counts` says that the
    /// attempt still matters; whoever ends what it belongs to removes the failures after that.
    pub(super) fn note(
        &self,
        engine_id: EngineId,
        owner: EngineOwner,
        now: Timestamp,
        result: Result<(), FleetError>,
        counts: impl FnOnce() -> bool,
    ) {
        let mut failures = self.0.lock();
        match result {
            Ok(()) => drop(failures.remove(&engine_id)),
            Err(error) if counts() => {
                let EngineOwner { product_id, user_id } = owner;
                let error = ErrorDetail { code: error.code(), message: error.to_string() };
                let known = failures.entry(engine_id).or_insert_with(|| EngineFailure {
                    engine_id,
                    product_id,
                    user_id,
                    since: now,
                    attempts: 0,
                    error: error.clone(),
                });
                known.attempts = known.attempts.saturating_add(1);
                known.error = error;
            }
            Err(_) => {}
        }
    }

    /// Returns the failures, or those of one product: their number, and the first of them, the one that has been
    /// failing longest first.
    pub(super) fn named(&self, product_id: Option<ProductId>) -> (u64, Vec<EngineFailure>) {
        let failures = self.0.lock();
        let is_of =
            |failure: &&EngineFailure| product_id.is_none_or(|product_id| failure.product_id == product_id);
        let mut named: Vec<_> = failures.values().filter(is_of).collect();
        named.sort_by_key(|failure| (failure.since, failure.engine_id));
        let count = u64::try_from(named.len()).unwrap_or(u64::MAX);
        (count, named.into_iter().take(MAX_NAMED_FAILURES).cloned().collect())
    }

    /// Forgets all engines, or those of one product, that are not in `kept`.
    pub(super) fn retain(&self, product_id: Option<ProductId>, kept: &HashSet<EngineId>) {
        let is_of_other = |failure: &EngineFailure| product_id.is_some_and(|id| failure.product_id != id);
        self.0.lock().retain(|engine_id, failure| kept.contains(engine_id) || is_of_other(failure));
    }

    /// Forgets all engines.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}
