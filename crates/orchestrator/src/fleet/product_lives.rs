//! Disables, enables and deletes products.
//!
//! The state of a product is committed first, and what it implies follows: the engines of a disabled product are put to
//! sleep, those of one that is being deleted are destroyed, and once it has none, what else it has is removed. Each of
//! these is repeated until it is done, by whichever orchestrator leads.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::orchestrator::EngineStatus;
use api::product_state::{DeletionPlan, ProductDetails, ProductState};
use api::{EngineId, PlatformKey, ProductId, Timestamp};
use futures::StreamExt as _;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::FleetError;
use super::drain::put_to_sleep;
use super::execute::Executor;
use super::failures::Failures;
use super::idempotency::Call;
use super::products::{self, Products};
use super::request::{OperationError, OperationRequest, RequestKind};
use super::shared::Shared;
use crate::domain::product_life::ProductAct;
use crate::domain::{Actor, EngineOwner};
use crate::registry::{AuditEntry, EngineRow, Event, Product, RegistryError};

/// How long a confirmation of a deletion is accepted.
const CONFIRMATION_LIFETIME_MS: i64 = 10 * 60 * 1_000;
/// The reason that the audit log has for what happens to the engines of a product.
const DISABLED_REASON: &str = "product_disabled";
const DELETED_REASON: &str = "product_deleted";

/// The pause before what is left to do is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Every which pass looks at a product again of whose engines none was awake: it may have been restored from a backup.
const QUIET_PASSES: u64 = 15;
/// Engines of one product that are put to sleep or destroyed concurrently.
const MAX_CONCURRENT_ENGINES: usize = 8;
/// Engines that are read at once.
const PAGE: i64 = 200;

pub(crate) struct ProductLives {
    shared: Arc<Shared>,
    products: Arc<Products>,
    executor: Arc<Executor>,
    /// Whether the registry has been compared with the running instances.
    ready: watch::Receiver<bool>,
    failures: Failures,
    /// Begins the next pass at once.
    changed: Notify,
    passes: Mutex<Passes>,
}

/// What the passes over the products know of each other.
#[derive(Default)]
struct Passes {
    count: u64,
    /// The products that a pass is at.
    in_progress: HashSet<ProductId>,
    /// The disabled products of whose engines none was awake.
    quiet: HashSet<ProductId>,
}

impl ProductLives {
    pub(super) fn new(
        shared: &Arc<Shared>,
        products: &Arc<Products>,
        executor: &Arc<Executor>,
        ready: &watch::Receiver<bool>,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            products: Arc::clone(products),
            executor: Arc::clone(executor),
            ready: ready.clone(),
            failures: Failures::default(),
            changed: Notify::new(),
            passes: Mutex::default(),
        })
    }

    /// Returns a product, also a deleted one.
    pub(crate) async fn get(&self, product_id: ProductId) -> Result<ProductDetails, FleetError> {
        let product = self.shared.registry.product(product_id).await?.ok_or(FleetError::ProductNotFound)?;
        self.details(product).await
    }

    async fn details(&self, product: Product) -> Result<ProductDetails, FleetError> {
        let (engines, awake) = self.shared.registry.count_engines_of(product.product_id).await?;
        let (failing, failures) = self.failures.named(Some(product.product_id));
        Ok(ProductDetails {
            state_since: product.state_since,
            engines,
            awake,
            engines_to_delete: product.engines_to_delete.map(i64::unsigned_abs),
            failing,
            failures,
            summary: products::summary(product),
        })
    }

    /// Disables a product. Once this has returned, every call of it is refused.
    pub(crate) async fn disable(
        self: &Arc<Self>,
        product_id: ProductId,
        call: Option<Call>,
    ) -> Result<ProductDetails, FleetError> {
        self.act(product_id, ProductAct::Disable, Event::Disable, Consent::NotNeeded, call).await
    }

    /// Enables a product.
    pub(crate) async fn enable(
        self: &Arc<Self>,
        product_id: ProductId,
        call: Option<Call>,
    ) -> Result<ProductDetails, FleetError> {
        self.act(product_id, ProductAct::Enable, Event::Enable, Consent::NotNeeded, call).await
    }

    /// Returns what a deletion of a disabled product would remove, and the confirmation for it.
    pub(crate) async fn plan_deletion(&self, product_id: ProductId) -> Result<DeletionPlan, FleetError> {
        let registry = &self.shared.registry;
        let product = registry.product(product_id).await?.ok_or(FleetError::ProductNotFound)?;
        match product.state {
            ProductState::Disabled => {}
            ProductState::Active => return Err(FleetError::ProductNotDisabled),
            ProductState::Deleting => return Err(FleetError::ProductDeleting),
            ProductState::Deleted => return Err(FleetError::ProductNotFound),
        }
        let now = self.shared.clock.now();
        let expires_at = Timestamp::from_unix_ms(now.unix_ms().saturating_add(CONFIRMATION_LIFETIME_MS));
        let by_status = registry.count_by_status(product_id).await?;
        let platform_keys = registry.platform_keys(product_id, now).await?.len();
        let confirmation = Confirmation { disabled_since: product.state_since, expires_at };
        Ok(DeletionPlan {
            product_id,
            slug: product.slug,
            engines: by_status.values().sum(),
            by_status,
            platform_keys: u64::try_from(platform_keys).unwrap_or(u64::MAX),
            audit_rows: product.audit_seq.unsigned_abs(),
            confirmation: self.shared.keys.seal_confirmation(product_id, &confirmation.to_text())?,
            expires_at,
        })
    }

    /// Begins to delete a disabled product. It may be repeated.
    pub(crate) async fn delete(
        self: &Arc<Self>,
        product_id: ProductId,
        confirmation: &str,
        call: Option<Call>,
    ) -> Result<ProductDetails, FleetError> {
        let opened = self.shared.keys.open_confirmation(product_id, confirmation);
        let confirmation = opened.as_deref().and_then(Confirmation::parse);
        let consent = Consent::Given(confirmation);
        self.act(product_id, ProductAct::BeginDeletion, Event::DeleteProduct, consent, call).await
    }

    /// Changes the state of a product in the registry, and then in memory. For a deletion there has to be a
    /// confirmation.
    async fn act(
        self: &Arc<Self>,
        product_id: ProductId,
        act: ProductAct,
        event: Event,
        consent: Consent,
        call: Option<Call>,
    ) -> Result<ProductDetails, FleetError> {
        if call.as_ref().is_some_and(Call::is_applied) {
            // Whatever the product has become since then stays.
            return self.get(product_id).await;
        }
        let lives = Arc::clone(self);
        // In a task of its own: a caller who disconnects must not leave registry and memory with different states.
        let acted = tokio::spawn(async move {
            let _lock = lives.products.update_lock.lock().await;
            let at = lives.shared.clock.now();
            if let Consent::Given(confirmation) = consent {
                // Nobody else changes the state while the lock is held.
                lives.check_confirmation(product_id, confirmation, at).await?;
            }
            let call = call.as_ref().map(Call::applied);
            let entry = AuditEntry { at, event, engine: None, duration_ms: None, detail: json!({}), call };
            let acted =
                lives.shared.registry.act_on_product(product_id, act, &entry.by(Actor::Operator)).await;
            let (product, is_changed) = match acted {
                Ok(acted) => acted?,
                Err(error) => {
                    if matches!(error, RegistryError::Unreachable(_)) {
                        // It may have been committed.
                        lives.products.reload_later(product_id);
                    }
                    return Err(error.into());
                }
            };
            lives.products.apply_product(&product);
            if is_changed {
                tracing::warn!(%product_id, state = product.state.as_str(), "An operator has changed a product's state.");
                lives.changed.notify_one();
            }
            Ok(product)
        });
        let product = acted.await.unwrap_or_else(|error| Err(FleetError::internal(error)))?;
        self.details(product).await
    }

    /// Checks that a deletion of a product that is not being deleted yet was confirmed.
    async fn check_confirmation(
        &self,
        product_id: ProductId,
        confirmation: Option<Confirmation>,
        now: Timestamp,
    ) -> Result<(), FleetError> {
        let product = self.shared.registry.product(product_id).await?.ok_or(FleetError::ProductNotFound)?;
        let is_valid = confirmation.is_some_and(|confirmation| {
            now < confirmation.expires_at && confirmation.disabled_since == product.state_since
        });
        if product.state == ProductState::Disabled && !is_valid {
            return Err(FleetError::ConfirmationInvalid);
        }
        Ok(())
    }

    /// Does what the states of products imply, until `shutdown`.
    pub(super) async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        let mut ready = self.ready.clone();
        let run = async {
            // The sender lives as long as the fleet.
            let _ = ready.wait_for(|ready| *ready).await;
            loop {
                self.begin_pass(&tasks, &shutdown);
                tokio::select! {
                    () = self.changed.notified() => {}
                    () = self.shared.clock.sleep(RETRY_INTERVAL) => {}
                }
            }
        };
        shutdown.run_until_cancelled(run).await;
        tasks.close();
        tasks.wait().await;
    }

    /// Begins what is left to do for each product that is out of use: products do not wait for each other's engines.
    fn begin_pass(self: &Arc<Self>, tasks: &TaskTracker, shutdown: &CancellationToken) {
        let products = self.products.out_of_use();
        let mut passes = self.passes.lock();
        passes.count = passes.count.wrapping_add(1);
        let is_disabled = |product: &&Arc<Product>| product.state == ProductState::Disabled;
        let disabled: HashSet<_> =
            products.iter().filter(is_disabled).map(|product| product.product_id).collect();
        passes.quiet.retain(|product_id| disabled.contains(product_id));
        let skips_quiet = !passes.count.is_multiple_of(QUIET_PASSES);
        for product in products {
            let product_id = product.product_id;
            if (skips_quiet && passes.quiet.contains(&product_id)) || !passes.in_progress.insert(product_id) {
                continue;
            }
            let (lives, shutdown) = (Arc::clone(self), shutdown.clone());
            tasks.spawn(async move {
                shutdown.run_until_cancelled(lives.continue_with(&product)).await;
                lives.passes.lock().in_progress.remove(&product_id);
            });
        }
    }

    async fn continue_with(self: &Arc<Self>, product: &Product) {
        let product_id = product.product_id;
        let result = if product.state == ProductState::Deleting {
            self.continue_deletion(product_id).await
        } else {
            self.sleep_engines(product_id).await
        };
        if let Err(error) = result {
            tracing::warn!(%product_id, %error, "A product that is out of use could not be looked at; retrying.");
        }
    }

    /// The state of a product as it is known by now.
    fn is_still(&self, product_id: ProductId, state: ProductState) -> bool {
        let products = self.products.out_of_use();
        products.iter().any(|product| product.product_id == product_id && product.state == state)
    }

    /// Puts the engines of a disabled product to sleep.
    async fn sleep_engines(&self, product_id: ProductId) -> Result<(), FleetError> {
        let awake = self.shared.registry.awake_engines_of(product_id).await?;
        let ids: HashSet<_> = awake.iter().map(|row| row.engine_id).collect();
        self.failures.retain(Some(product_id), &ids);
        if awake.is_empty() {
            self.passes.lock().quiet.insert(product_id);
            return Ok(());
        }
        let sleep = async |row: EngineRow| {
            // It may have been enabled again meanwhile.
            if self.is_still(product_id, ProductState::Disabled) {
                let (engine_id, owner) = (row.engine_id, row.owner.clone());
                let slept = put_to_sleep(&self.executor, row, DISABLED_REASON).await;
                self.note(engine_id, owner, slept, ProductState::Disabled);
            }
        };
        futures::stream::iter(awake).for_each_concurrent(MAX_CONCURRENT_ENGINES, sleep).await;
        Ok(())
    }

    /// Destroys the engines of a product that is being deleted, and ends the deletion once there is none.
    async fn continue_deletion(&self, product_id: ProductId) -> Result<(), FleetError> {
        let (mut after, mut seen) = (String::new(), HashSet::new());
        loop {
            let (rows, next) = self.shared.registry.engines_of(product_id, &after, PAGE).await?;
            seen.extend(rows.iter().map(|row| row.engine_id));
            let destroy = async |row: EngineRow| {
                let (engine_id, owner) = (row.engine_id, row.owner.clone());
                let destroyed = self.destroy(row).await;
                self.note(engine_id, owner, destroyed, ProductState::Deleting);
            };
            futures::stream::iter(rows).for_each_concurrent(MAX_CONCURRENT_ENGINES, destroy).await;
            let Some(next) = next else { break };
            after = next;
        }
        self.failures.retain(Some(product_id), &seen);
        self.finish_deletion(product_id).await
    }

    /// Destroys an engine, or completes a delete that was abandoned.
    async fn destroy(&self, row: EngineRow) -> Result<(), FleetError> {
        if row.status == EngineStatus::Destroying {
            return match self.executor.repair(&row).await {
                Err(OperationError::Failed(error)) => Err(error),
                Ok(_) | Err(OperationError::Stale | OperationError::Preempted) => Ok(()),
            };
        }
        let request = OperationRequest::new(row.owner, RequestKind::Destroy, DELETED_REASON);
        match self.executor.execute(&request.by(Actor::Operator)).await {
            Ok(_) | Err(FleetError::EngineNotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn note(
        &self,
        engine_id: EngineId,
        owner: EngineOwner,
        result: Result<(), FleetError>,
        state: ProductState,
    ) {
        if let Err(error) = &result {
            tracing::warn!(%engine_id, %error, "An engine of a product that is out of use could not be ended; retrying.");
        }
        let (now, product_id) = (self.shared.clock.now(), owner.product_id);
        self.failures.note(engine_id, owner, now, result, || self.is_still(product_id, state));
    }

    async fn finish_deletion(&self, product_id: ProductId) -> Result<(), FleetError> {
        let nobody = PlatformKey::generate().map_err(FleetError::internal)?.hash();
        let _lock = self.products.update_lock.lock().await;
        let at = self.shared.clock.now();
        let entry = AuditEntry {
            at,
            event: Event::ProductDeleted,
            engine: None,
            duration_ms: None,
            detail: json!({}),
            call: None,
        };
        let finished = self.shared.registry.finish_product_deletion(product_id, nobody, &entry).await?;
        if let Some(product) = finished {
            self.products.cache.replace_keys(product_id, &[]);
            self.products.apply_product(&product);
            tracing::warn!(%product_id, slug = %product.slug.as_str(), "A product was deleted.");
        }
        Ok(())
    }
}

/// What an act needs besides its caller's key.
enum Consent {
    /// Nothing.
    NotNeeded,
    /// A confirmation; `None` if what was given is none.
    Given(Option<Confirmation>),
}

/// What a confirmation of a deletion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Confirmation {
    /// Since when the product had been disabled: it is void once the product was enabled.
    disabled_since: Option<Timestamp>,
    expires_at: Timestamp,
}

impl Confirmation {
    fn to_text(self) -> String {
        let since = self.disabled_since.map(Timestamp::unix_ms).unwrap_or_default();
        format!("{since} {}", self.expires_at.unix_ms())
    }

    fn parse(text: &str) -> Option<Self> {
        let (since, expires_at) = text.split_once(' ')?;
        let time = |text: &str| text.parse().ok().map(Timestamp::from_unix_ms);
        Some(Self { disabled_since: Some(time(since)?), expires_at: time(expires_at)? })
    }
}
