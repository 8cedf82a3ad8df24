//! The rollout that is under way, and the deployment's image that rollouts lead to, as this process knows them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use api::rollout::RolloutEngineState;
use api::{EngineId, EngineImage};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::domain::rollout::CallCounts;
use crate::fleet::idempotency::Call;
use crate::fleet::policies::Policies;
use crate::fleet::shared::Shared;
use crate::registry::{RegistryError, RolloutRow};

/// Engines that are read at once.
const PAGE: i64 = 500;

/// What the registry stores of the deployment's image.
#[derive(Serialize, Deserialize)]
struct DeploymentImage {
    /// The image of the configuration at that time: another one there overrides what rollouts have led to.
    configured: EngineImage,
    /// The image of engines that do not request one.
    image: EngineImage,
}

pub(in crate::fleet) struct RolloutState {
    under_way: watch::Sender<Option<Arc<RolloutRow>>>,
    /// Serializes changes, so that memory and registry agree.
    pub(super) change_lock: tokio::sync::Mutex<()>,
    calls: Calls,
}

/// Proxied calls to the engines that were moved.
#[derive(Default)]
struct Calls {
    /// Whether any are counted: otherwise a call costs no more than a look at this.
    counts: AtomicBool,
    engines: RwLock<HashSet<EngineId>>,
    total: AtomicU64,
    failed: AtomicU64,
}

impl RolloutState {
    pub(in crate::fleet) fn new() -> Self {
        Self {
            under_way: watch::Sender::new(None),
            change_lock: tokio::sync::Mutex::default(),
            calls: Calls::default(),
        }
    }

    /// The rollout that is under way.
    pub(super) fn under_way(&self) -> Option<Arc<RolloutRow>> {
        self.under_way.borrow().clone()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<RolloutRow>>> {
        self.under_way.subscribe()
    }

    /// Loads what the registry says.
    pub(in crate::fleet) async fn load(
        &self,
        shared: &Shared,
        policies: &Policies,
    ) -> Result<(), RegistryError> {
        let stored = shared.registry.deployment_image().await?;
        let stored: Option<DeploymentImage> = stored
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|_| RegistryError::Unreadable { column: "value" })?;
        match stored.filter(|stored| stored.configured == *policies.configured_image()) {
            Some(stored) => policies.set_default_image(stored.image),
            None => policies.set_default_image(policies.configured_image().clone()),
        }
        let rollout = shared.registry.rollout_under_way().await?;
        self.calls.forget();
        if let Some(rollout) = &rollout {
            let mut after = None;
            loop {
                let state = Some(RolloutEngineState::Moved);
                let page = shared.registry.rollout_engines(rollout.rollout_id, state, after, PAGE).await?;
                for engine in &page {
                    self.calls.count(engine.engine_id);
                }
                after = page.last().map(|engine| engine.engine_id);
                if after.is_none() {
                    break;
                }
            }
        }
        self.apply(policies, rollout);
        Ok(())
    }

    /// Stores a change of a rollout, together with the deployment's image if that changes, and applies it. Marks the
    /// call for which that is done.
    pub(super) async fn store(
        &self,
        shared: &Shared,
        policies: &Policies,
        rollout: RolloutRow,
        image: Option<EngineImage>,
        call: Option<&Call>,
    ) -> Result<(), RegistryError> {
        let configured = policies.configured_image().clone();
        let text =
            image.clone().map(|image| serde_json::json!(DeploymentImage { configured, image }).to_string());
        let call = call.map(Call::applied);
        let call = call.as_ref().map(|call| (call, shared.clock.now()));
        shared.registry.update_rollout(&rollout, text.as_deref(), call).await?;
        if let Some(image) = image {
            policies.set_default_image(image);
        }
        self.apply(policies, Some(rollout));
        Ok(())
    }

    /// Applies a rollout as the registry has it.
    pub(super) fn apply(&self, policies: &Policies, rollout: Option<RolloutRow>) {
        let rollout = rollout.filter(|rollout| rollout.ended_at.is_none());
        let enters_phase = {
            let before = self.under_way.borrow();
            let phase = |rollout: &RolloutRow| (rollout.rollout_id, rollout.phase, rollout.paused);
            before.as_deref().map(phase) != rollout.as_ref().map(phase)
        };
        policies.set_rolling_out(rollout.is_some());
        if rollout.is_none() {
            self.calls.forget();
        } else if enters_phase {
            self.calls.restart();
        }
        self.under_way.send_replace(rollout.map(Arc::new));
    }

    /// Counts the calls to an engine that was moved.
    pub(super) fn watch_calls(&self, engine_id: EngineId) {
        self.calls.count(engine_id);
    }

    /// Notes a proxied call, and whether the engine has failed to answer it.
    pub(super) fn note_call(&self, engine_id: EngineId, failed: bool) {
        if self.calls.counts.load(Ordering::Relaxed) && self.calls.engines.read().contains(&engine_id) {
            self.calls.total.fetch_add(1, Ordering::Relaxed);
            self.calls.failed.fetch_add(u64::from(failed), Ordering::Relaxed);
        }
    }

    /// The calls in this phase so far.
    pub(super) fn call_counts(&self) -> CallCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CallCounts { total: count(&self.calls.total), failed: count(&self.calls.failed) }
    }
}

impl Calls {
    fn count(&self, engine_id: EngineId) {
        self.engines.write().insert(engine_id);
        self.counts.store(true, Ordering::Relaxed);
    }

    /// Begins to count anew.
    fn restart(&self) {
        self.total.store(0, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
    }

    fn forget(&self) {
        self.counts.store(false, Ordering::Relaxed);
        self.engines.write().clear();
        self.restart();
    }
}
