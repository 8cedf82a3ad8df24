//! Collects what engines have used, and reads it for products and the operator.
//!
//! Each proof of an engine's health has a tag that changes whenever the engine counts something. If it differs from the one
//! that was last seen, the engine is asked for its counts, from the last day that is known of it on. It is asked once more
//! before it is stopped, put to sleep or deleted. What it has used before a crash is in its brain, and is collected once it
//! runs again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::EngineId;
use api::usage::Day;
use api::usage_days::{
    FleetUsage, FleetUsageGroup, FleetUsageRow, MAX_DAYS_PER_REPORT, ProductUsage, ProductUsageGroup,
    ProductUsageRow, ReadUsage, UsageCounts,
};
use http_service::clock::Clock;
use parking_lot::Mutex;
use resources::keyed_locks::KeyedLocks;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::engine_client::EngineClient;
use super::shared::Shared;
use crate::registry::{
    Product, REMOVED_ENGINES, RunningEngine, UsageByDay, UsageByEngine, UsageByProduct, UsagePeriod,
};

/// How long the end of an engine may be delayed for its counts.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The most reports that are read of an engine at once: more days than one keeps.
const MAX_REPORTS: usize = 8;
/// How many days what was used is kept.
const RETENTION_DAYS: i64 = 400;
/// How often what is older is removed.
const PRUNE_INTERVAL: Duration = Duration::from_hours(1);
/// The most rows that are removed at once.
const PRUNE_BATCH: u64 = 5_000;
/// How many days are read by default.
const DEFAULT_DAYS: i64 = 30;
/// The size of a page unless the request sets it.
const DEFAULT_PAGE: usize = 100;

/// The day in UTC.
pub(super) fn today(clock: &dyn Clock) -> Day {
    const DAY_MS: i64 = 86_400_000;
    Day::from_unix_days(clock.now().unix_ms().max(0) / DAY_MS)
}

pub(super) struct UsageCollector {
    shared: Arc<Shared>,
    client: Arc<EngineClient>,
    /// The tag of each engine's counts that are stored.
    tags: Mutex<HashMap<EngineId, String>>,
    /// The reports of an engine are stored in the order in which it has made them.
    engine_locks: KeyedLocks<EngineId>,
}

impl UsageCollector {
    pub(super) fn new(shared: &Arc<Shared>, client: &Arc<EngineClient>) -> Self {
        Self {
            shared: Arc::clone(shared),
            client: Arc::clone(client),
            tags: Mutex::default(),
            engine_locks: KeyedLocks::default(),
        }
    }

    /// Asks an engine for its counts if their tag is not the one that was last seen.
    pub(super) async fn note_tag(&self, engine_id: EngineId, tag: String) {
        if self.tags.lock().get(&engine_id) == Some(&tag) {
            return;
        }
        // While it is being changed, its key may be in doubt; the next check asks again.
        let Ok(Some(row)) = self.shared.registry.engine_by_id(engine_id).await else { return };
        if let Some(engine) = self.shared.running(&row).filter(|_| row.claim.is_none())
            && self.collect(engine).await
        {
            self.tags.lock().insert(engine_id, tag);
        }
    }

    /// Asks an engine that is about to end for its counts, within a short time. What it does not say then, it says when
    /// it runs again.
    pub(super) async fn collect_before_end(&self, engine: RunningEngine<'_>) {
        tokio::select! {
            _ = self.collect(engine) => {}
            () = self.shared.clock.sleep(END_TIMEOUT) => {
                tracing::info!(
                    engine_id = %engine.row.engine_id,
                    "An engine that is about to end did not say in time what it has used."
                );
            }
        }
        self.tags.lock().remove(&engine.row.engine_id);
    }

    async fn collect(&self, engine: RunningEngine<'_>) -> bool {
        let collected = self.try_collect(engine).await;
        if let Err(error) = &collected {
            tracing::info!(
                engine_id = %engine.row.engine_id,
                error = error as &dyn std::error::Error,
                "What an engine has used is unknown for the moment."
            );
        }
        collected.is_ok()
    }

    async fn try_collect(&self, engine: RunningEngine<'_>) -> Result<(), FleetError> {
        let row = engine.row;
        let _lock = self.engine_locks.lock(row.engine_id).await;
        let key = self.shared.keys.key(row)?;
        let mut from = self.first_unknown_day(row.engine_id).await?;
        for _ in 0..MAX_REPORTS {
            let report = self.client.usage_days(engine, &key, from).await;
            let report = report.map_err(|error| FleetError::Backend(error.to_string()))?;
            let days = report.unwrap_or_default().days;
            // More than it may send is not read.
            let days = days.get(..days.len().min(MAX_DAYS_PER_REPORT)).unwrap_or_default();
            let Some(last) = days.last() else { break };
            let added = self.shared.registry.save_usage(row, days).await?;
            self.shared.metrics.used(row.owner.product_id, added);
            if days.len() < MAX_DAYS_PER_REPORT {
                break;
            }
            from = Some(Day::from_unix_days(last.day.unix_days().saturating_add(1)));
        }
        Ok(())
    }

    /// The first day of which an engine may have counts that are not known: the day before the last one that it has
    /// reported, as its clock may have been set back. `None` for all its days.
    async fn first_unknown_day(&self, engine_id: EngineId) -> Result<Option<Day>, FleetError> {
        let last = self.shared.registry.last_usage_day(engine_id).await?;
        let today = today(self.shared.clock.as_ref());
        Ok(last.map(|last| Day::from_unix_days(last.min(today).unix_days().saturating_sub(1).max(0))))
    }

    /// Removes what is too old, until `shutdown`.
    pub(super) async fn prune_periodically(
        self: Arc<Self>,
        mut ready: watch::Receiver<bool>,
        shutdown: CancellationToken,
    ) {
        let pruning = async {
            // The sender lives as long as the fleet.
            let _ = ready.wait_for(|ready| *ready).await;
            loop {
                self.prune().await;
                self.shared.clock.sleep(PRUNE_INTERVAL).await;
            }
        };
        shutdown.run_until_cancelled(pruning).await;
    }

    /// Removes what is too old.
    pub(super) async fn prune(&self) {
        let today = today(self.shared.clock.as_ref());
        let first = Day::from_unix_days(today.unix_days().saturating_sub(RETENTION_DAYS - 1).max(0));
        loop {
            match self.shared.registry.prune_usage(first, PRUNE_BATCH).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, "Old usage could not be removed; retrying.");
                    return;
                }
            }
        }
    }
}

/// Reads what engines have used.
pub(crate) struct UsageReports {
    shared: Arc<Shared>,
}

impl UsageReports {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    /// What the engines of a product have used.
    pub(crate) async fn of_product(
        &self,
        product: &Product,
        query: ReadUsage<ProductUsageGroup>,
    ) -> Result<ProductUsage, FleetError> {
        let period = self.period(query.from, query.to)?;
        let page = Page::new(query.limit, query.after);
        let (registry, product_id) = (&self.shared.registry, product.product_id);
        let (rows, next) = match query.group_by {
            ProductUsageGroup::Day => {
                let after = page.after_day()?;
                let days = registry.usage_by_day(Some(product_id), period, after, page.limit + 1).await?;
                page.cut(days, |day| day.day.to_string(), product_day)
            }
            ProductUsageGroup::Engine => {
                let after = page.after_engine()?;
                let engines = registry.usage_by_engine(product_id, period, after, page.limit + 1).await?;
                page.cut(engines, engine_place, product_engine)
            }
        };
        let total = registry.usage_total(Some(product_id), period).await?;
        let (total, total_admits) = (total.usage.into(), total.admits);
        Ok(ProductUsage { from: period.from, to: period.to, rows, total, total_admits, next })
    }

    /// What the engines of all products have used.
    pub(crate) async fn of_fleet(&self, query: ReadUsage<FleetUsageGroup>) -> Result<FleetUsage, FleetError> {
        let period = self.period(query.from, query.to)?;
        let page = Page::new(query.limit, query.after);
        let registry = &self.shared.registry;
        let (rows, next) = match query.group_by {
            FleetUsageGroup::Day => {
                let after = page.after_day()?;
                let days = registry.usage_by_day(None, period, after, page.limit + 1).await?;
                page.cut(days, |day| day.day.to_string(), fleet_day)
            }
            FleetUsageGroup::Product => {
                let after = page.after.as_deref().map(|after| after.parse().map_err(|_| no_cursor()));
                let products = registry.usage_by_product(period, after.transpose()?, page.limit + 1).await?;
                page.cut(products, |product| product.product_id.to_string(), fleet_product)
            }
        };
        let total = registry.usage_total(None, period).await?;
        let (total, total_admits) = (total.usage.into(), total.admits);
        Ok(FleetUsage { from: period.from, to: period.to, rows, total, total_admits, next })
    }

    fn period(&self, from: Option<Day>, to: Option<Day>) -> Result<UsagePeriod, FleetError> {
        let to = to.unwrap_or_else(|| today(self.shared.clock.as_ref()));
        let first = Day::from_unix_days(to.unix_days().saturating_sub(DEFAULT_DAYS - 1).max(0));
        let from = from.unwrap_or(first);
        if from > to {
            return Err(FleetError::InvalidUsageQuery("`from`: must not be after `to`".to_owned()));
        }
        Ok(UsagePeriod { from, to })
    }
}

/// Which page is read.
struct Page {
    limit: usize,
    after: Option<String>,
}

impl Page {
    fn new(limit: Option<api::serde_helpers::BoundedInt<1, 500>>, after: Option<String>) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit.get()).ok()).unwrap_or(DEFAULT_PAGE);
        Self { limit, after }
    }

    fn after_day(&self) -> Result<Option<Day>, FleetError> {
        self.after.as_deref().map(|after| after.parse().map_err(|_| no_cursor())).transpose()
    }

    fn after_engine(&self) -> Result<Option<&str>, FleetError> {
        let after = self.after.as_deref();
        let is_place = |after: &str| after == REMOVED_ENGINES || after.parse::<EngineId>().is_ok();
        if after.is_some_and(|after| !is_place(after)) { Err(no_cursor()) } else { Ok(after) }
    }

    /// The rows of the page, and where the next one begins, if `found` has one more than the page.
    fn cut<T, R>(
        &self,
        mut found: Vec<T>,
        place: impl Fn(&T) -> String,
        row: impl FnMut(T) -> R,
    ) -> (Vec<R>, Option<String>) {
        let has_more = found.len() > self.limit;
        found.truncate(self.limit);
        let next = found.last().filter(|_| has_more).map(place);
        (found.into_iter().map(row).collect(), next)
    }
}

fn no_cursor() -> FleetError {
    FleetError::InvalidUsageQuery("`after`: must be the `next` of a page".to_owned())
}

fn engine_place(engine: &UsageByEngine) -> String {
    engine.engine.as_ref().map_or_else(|| REMOVED_ENGINES.to_owned(), |(engine_id, _)| engine_id.to_string())
}

fn product_day(UsageByDay { day, engines, total }: UsageByDay) -> ProductUsageRow {
    ProductUsageRow {
        day: Some(day),
        engine_id: None,
        user_id: None,
        active_engines: Some(engines),
        admits: Some(total.admits),
        usage: total.usage.into(),
    }
}

fn product_engine(UsageByEngine { engine, usage }: UsageByEngine) -> ProductUsageRow {
    let (engine_id, user_id) = engine.unzip();
    ProductUsageRow {
        day: None,
        engine_id: Some(engine_id),
        user_id: Some(user_id),
        active_engines: None,
        admits: None,
        usage: UsageCounts::into(usage),
    }
}

fn fleet_day(UsageByDay { day, engines, total }: UsageByDay) -> FleetUsageRow {
    FleetUsageRow {
        day: Some(day),
        product_id: None,
        slug: None,
        display_name: None,
        active_engines: Some(engines),
        admits: total.admits,
        usage: total.usage.into(),
    }
}

fn fleet_product(product: UsageByProduct) -> FleetUsageRow {
    let UsageByProduct { product_id, slug, display_name, total } = product;
    FleetUsageRow {
        day: None,
        product_id: Some(product_id),
        slug: Some(slug),
        display_name: Some(display_name),
        active_engines: None,
        admits: total.admits,
        usage: total.usage.into(),
    }
}
