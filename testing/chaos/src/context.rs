//! The state that all parts of a run share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::client::EngineApi;
use crate::counters::Counters;
use crate::journal::StallTracker;
use crate::model_script::ModelScript;
use crate::trigger::KillTrigger;
use crate::workload::Workload;

/// The shared state of a run against the engine.
#[derive(Debug)]
pub(crate) struct RunContext {
    /// The seed of all random choices.
    pub(crate) seed: u64,
    /// The probabilities of the load.
    pub(crate) workload: Workload,
    /// The client of the engine.
    pub(crate) api: EngineApi,
    /// The counts and violations of the run.
    pub(crate) counters: Arc<Counters>,
    /// Kills the engine at a chosen event.
    pub(crate) trigger: Arc<KillTrigger>,
    /// The turns without progress.
    pub(crate) stalls: StallTracker,
    /// The script of the model's answers.
    pub(crate) script: Arc<ModelScript>,
    /// The agent's workspace.
    pub(crate) workspace: PathBuf,
    /// The running engine, once it may be called.
    pub(crate) endpoint: watch::Receiver<Option<EngineEndpoint>>,
    /// Set after the last kill, when open turns only have to end.
    pub(crate) settling: watch::Receiver<bool>,
    /// When the run ends unconditionally.
    pub(crate) deadline: Instant,
}

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineEndpoint {
    /// Its address.
    pub(crate) base_url: String,
    /// The number of the engine in the run, from 1.
    pub(crate) engine_number: u64,
}

impl RunContext {
    /// Waits for a running engine; `None` when the run is over.
    pub(crate) async fn wait_endpoint(&self) -> Option<EngineEndpoint> {
        let mut endpoint = self.endpoint.clone();
        let available = endpoint.wait_for(Option::is_some);
        let found = tokio::time::timeout(self.remaining(), available).await.ok()?.ok()?;
        found.clone()
    }

    /// The number of the running engine, if there is one.
    pub(crate) fn engine_number(&self) -> Option<u64> {
        self.endpoint.borrow().as_ref().map(|endpoint| endpoint.engine_number)
    }

    /// Whether open turns only have to end.
    pub(crate) fn is_settling(&self) -> bool {
        *self.settling.borrow()
    }

    /// The time until the run is over.
    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether the run is over.
    pub(crate) fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }
}
