//! The registry as the fleet calls it: its calls are measured.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use api::audit::AuditRow;
use api::browser::BrowserAccess;
use api::metrics::Metrics as ProductMetrics;
use api::orchestrator::EngineStatus;
use api::{AuditWebhookId, EngineId, KeyHash, ProductId, Timestamp};

use super::labels::{Label, RegistryErrorKind, label};
use super::{CallTimer, Metrics};
use crate::domain::EngineOwner;
use crate::registry::{
    AdmitView, AuditEntry, AuditFilter, Claim, ClaimRefused, EngineActivity, EngineMove, EngineRow,
    FleetFilter, ListedEngine, NewEngine, NextState, Page, PlacedEngine, Placements, Product, ProductCounts,
    ProgressUpdate, Registry, RegistryError, ScheduledWake, StoredKey, SupervisedEngine,
};

/// A registry whose calls are measured. Rare calls, which are not listed here, reach it unmeasured.
pub(crate) struct ObservedRegistry {
    registry: Registry,
    metrics: Metrics,
}

impl ObservedRegistry {
    pub(crate) fn new(registry: Registry, metrics: Metrics) -> Self {
        Self { registry, metrics }
    }

    /// Starts to measure a call; `None` if nothing is recorded.
    fn timer(
        &self,
        call: RegistryCall,
    ) -> Option<CallTimer<RegistryErrorKind, impl Fn(Duration, Option<RegistryErrorKind>)>> {
        let families = &self.metrics.0.as_deref()?.families;
        Some(CallTimer::new(RegistryErrorKind::Abandoned, move |elapsed, kind: Option<RegistryErrorKind>| {
            families.registry_call_duration.observe(call, elapsed);
            if let Some(errors) = kind.and_then(|kind| families.registry_errors.get(kind)) {
                errors.inc();
            }
        }))
    }
}

impl Deref for ObservedRegistry {
    type Target = Registry;

    fn deref(&self) -> &Registry {
        &self.registry
    }
}

/// Defines the measured calls: each one's label, and the method that passes it on.
macro_rules! observed_calls {
    ($($variant:ident => $name:literal $method:ident($($argument:ident: $type:ty),*) -> $result:ty;)+) => {
        label! {
            /// A call of the registry.
            RegistryCall: "operation" {
                $($variant => $name,)+
            }
        }

        impl ObservedRegistry {
            $(
                pub(crate) async fn $method(&self, $($argument: $type),*) -> Result<$result, RegistryError> {
                    let timer = self.timer(RegistryCall::$variant);
                    let result = self.registry.$method($($argument),*).await;
                    if let Some(timer) = timer {
                        timer.end(result.as_ref().err().map(RegistryErrorKind::of));
                    }
                    result
                }
            )+
        }
    };
}

observed_calls! {
    AdmitView => "admit_view" admit_view(owner: &EngineOwner) -> Option<AdmitView>;
    Engine => "engine" engine(owner: &EngineOwner) -> Option<EngineRow>;
    EngineById => "engine_by_id" engine_by_id(engine_id: EngineId) -> Option<EngineRow>;
    Claim => "claim" claim(seen: &EngineRow, claim: &Claim) -> Result<EngineRow, ClaimRefused>;
    ClaimAndPlace => "claim_and_place" claim_and_place(seen: &EngineRow, claim: &Claim, placements: &Placements)
        -> Result<PlacedEngine, ClaimRefused>;
    ClaimNewEngine => "claim_new_engine" claim_new_engine(engine: &NewEngine, claim: &Claim, placements: &Placements)
        -> Result<PlacedEngine, ClaimRefused>;
    Settle => "settle" settle(row: &EngineRow, next: NextState, entry: Option<&AuditEntry>) -> Option<EngineRow>;
    SettleAll => "settle_all" settle_all(product_id: ProductId, moves: &[EngineMove]) -> Vec<EngineRow>;
    SaveActivity => "save_activity" save_activity(activities: &[(EngineId, EngineActivity)]) -> ();
    CheckLeadership => "check_leadership" check_leadership() -> ();
    RunningEngines => "running_engines" running_engines() -> Vec<EngineRow>;
    Supervised => "supervised" supervised() -> Vec<SupervisedEngine>;
    ScheduledWakes => "scheduled_wakes"
        scheduled_wakes(until: Timestamp, limit: i64, limit_per_product: i64) -> Vec<ScheduledWake>;
    BrowserAccess => "browser_access"
        browser_access(engine_id: EngineId, product_id: ProductId, now: Timestamp) -> BrowserAccess;
    PlatformKey => "platform_key" platform_key(hash: KeyHash, now: Timestamp) -> Option<StoredKey>;
    Product => "product" product(product_id: ProductId) -> Option<Product>;
    Products => "products" products(limit: i64, offset: i64) -> (Vec<Product>, u64);
    Register => "register" register(product: &Product, entry: &AuditEntry) -> bool;
    List => "list" list(product_id: ProductId, page: Page) -> (Vec<EngineRow>, u64);
    FleetEngines => "fleet_engines" fleet_engines(filter: &FleetFilter, after: Option<EngineId>, limit: i64)
        -> (Vec<ListedEngine>, Option<EngineId>);
    FleetCounts => "fleet_counts" fleet_counts() -> (Vec<ProductCounts>, u64);
    CountByStatus => "count_by_status" count_by_status(product_id: ProductId) -> BTreeMap<EngineStatus, u64>;
    Metrics => "metrics" metrics(product_id: ProductId, now: Timestamp) -> ProductMetrics;
    AuditPage => "audit_page" audit_page(product_id: ProductId, filter: &AuditFilter) -> Vec<AuditRow>;
    AuditRowsAfter => "audit_rows_after" audit_rows_after(product_id: ProductId, after: i64, limit: i64)
        -> Vec<AuditRow>;
    SaveWebhookProgress => "save_webhook_progress"
        save_webhook_progress(webhook_id: AuditWebhookId, revision: i64, update: &ProgressUpdate, at: Timestamp) -> bool;
}
