//! Counts the admits of each product by outcome. They are counted in memory, because an admit is one read, and stored
//! every few seconds: a kill loses at most those since then.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::ProductId;
use api::usage::Day;
use api::usage_days::AdmitCounts;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::shared::Shared;
use super::usage::today;
use crate::metrics::labels::AdmitOutcome;
use crate::registry::AdmitsOfDay;

/// How often the counts are stored.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);
/// How many products' counts are stored in one transaction.
const SAVE_BATCH: usize = 200;

/// The counts of a product since this process began.
#[derive(Default)]
struct Counters {
    admitted: AtomicU64,
    denied: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    const fn of(&self, outcome: AdmitOutcome) -> &AtomicU64 {
        match outcome {
            AdmitOutcome::Running | AdmitOutcome::Started => &self.admitted,
            AdmitOutcome::EngineNotFound
            | AdmitOutcome::EngineSleeping
            | AdmitOutcome::EngineStopped
            | AdmitOutcome::EngineUnhealthy => &self.denied,
            AdmitOutcome::RateLimited | AdmitOutcome::Refused => &self.refused,
            AdmitOutcome::Failed => &self.failed,
        }
    }

    fn load(&self) -> AdmitCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        AdmitCounts {
            admitted: load(&self.admitted),
            denied: load(&self.denied),
            refused: load(&self.refused),
            failed: load(&self.failed),
        }
    }
}

/// What is stored of a product.
#[derive(Clone, Copy)]
struct Saved {
    day: Day,
    /// The counts when the day began.
    base: AdmitCounts,
    /// The counts that are stored.
    counts: AdmitCounts,
}

pub(super) struct AdmitCounters {
    shared: Arc<Shared>,
    /// Names this process among those that have counted.
    run_id: String,
    by_product: RwLock<HashMap<ProductId, Arc<Counters>>>,
    saved: Mutex<HashMap<ProductId, Saved>>,
}

impl AdmitCounters {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            run_id: Uuid::now_v7().simple().to_string(),
            by_product: RwLock::default(),
            saved: Mutex::default(),
        }
    }

    /// Counts an admit.
    pub(super) fn count(&self, product_id: ProductId, outcome: AdmitOutcome) {
        if let Some(counters) = self.by_product.read().get(&product_id) {
            counters.of(outcome).fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut by_product = self.by_product.write();
        by_product.entry(product_id).or_default().of(outcome).fetch_add(1, Ordering::Relaxed);
    }

    /// Stores the counts periodically until `shutdown`, and once more then.
    pub(super) async fn save_periodically(
        self: Arc<Self>,
        mut ready: watch::Receiver<bool>,
        shutdown: CancellationToken,
    ) {
        // The sender lives as long as the fleet.
        let is_ready = async { ready.wait_for(|ready| *ready).await.is_ok() };
        if shutdown.run_until_cancelled(is_ready).await.is_none() {
            return;
        }
        let mut is_folded = false;
        while shutdown.run_until_cancelled(self.shared.clock.sleep(SAVE_INTERVAL)).await.is_some() {
            if !is_folded {
                is_folded = self.shared.registry.fold_admits(&self.run_id).await.is_ok();
            }
            self.save().await;
        }
        self.save().await;
    }

    /// Stores the counts that have changed.
    pub(super) async fn save(&self) {
        for batch in self.unsaved().chunks(SAVE_BATCH) {
            let rows: Vec<_> = batch.iter().map(|(product_id, saved)| row(*product_id, saved)).collect();
            if let Err(error) = self.shared.registry.save_admits(&self.run_id, &rows).await {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "The numbers of admits could not be stored; retrying.");
                return;
            }
            self.saved.lock().extend(batch.iter().copied());
        }
    }

    /// What is to be stored of the products whose counts have changed.
    fn unsaved(&self) -> Vec<(ProductId, Saved)> {
        let today = today(self.shared.clock.as_ref());
        let saved = self.saved.lock();
        let by_product = self.by_product.read();
        let changed = by_product.iter().filter_map(|(product_id, counters)| {
            let counts = counters.load();
            let next = match saved.get(product_id) {
                None => Saved { day: today, base: AdmitCounts::default(), counts },
                Some(before) if before.counts == counts => return None,
                Some(before) if before.day == today => Saved { counts, ..*before },
                Some(before) => Saved { day: today, base: before.counts, counts },
            };
            Some((*product_id, next))
        });
        changed.collect()
    }
}

fn row(product_id: ProductId, Saved { day, base, counts }: &Saved) -> AdmitsOfDay {
    let counts = AdmitCounts {
        admitted: counts.admitted.saturating_sub(base.admitted),
        denied: counts.denied.saturating_sub(base.denied),
        refused: counts.refused.saturating_sub(base.refused),
        failed: counts.failed.saturating_sub(base.failed),
    };
    AdmitsOfDay { product_id, day: *day, counts }
}
