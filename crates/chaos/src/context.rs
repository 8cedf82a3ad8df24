//! What all parts of a run share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::api::EngineApi;
use crate::counters::Counters;
use crate::journal::StallTracker;
use crate::model_script::ModelScript;
use crate::trigger::KillTrigger;
use crate::workload::Workload;

/// See the module.
#[derive(Debug)]
pub(crate) struct RunContext {
    /// Where all choices come from.
    pub(crate) seed: u64,
    /// What the load is made of.
    pub(crate) workload: Workload,
    /// The client of the engine.
    pub(crate) api: EngineApi,
    /// What happened.
    pub(crate) counters: Arc<Counters>,
    /// What kills the engine.
    pub(crate) trigger: Arc<KillTrigger>,
    /// The turns that did not get on.
    pub(crate) stalls: StallTracker,
    /// What the model says.
    pub(crate) script: Arc<ModelScript>,
    /// The agent's folder.
    pub(crate) workspace: PathBuf,
    /// The engine that runs and may be talked to.
    pub(crate) endpoint: watch::Receiver<Option<EngineEndpoint>>,
    /// Set when the engine will not be killed any more, and turns are only to end.
    pub(crate) settling: watch::Receiver<bool>,
    /// When the run is over whatever happens.
    pub(crate) deadline: Instant,
}

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineEndpoint {
    /// Its address.
    pub(crate) base_url: String,
    /// Counts the engines of the run, from 1.
    pub(crate) engine_number: u64,
}

impl RunContext {
    /// The engine that runs, once there is one; none when the run is over.
    pub(crate) async fn wait_endpoint(&self) -> Option<EngineEndpoint> {
        let mut place = self.endpoint.clone();
        let up = place.wait_for(Option::is_some);
        let found = tokio::time::timeout(self.remaining(), up).await.ok()?.ok()?;
        found.clone()
    }

    /// The number of the engine that runs, or of none.
    pub(crate) fn engine_number(&self) -> Option<u64> {
        self.endpoint.borrow().as_ref().map(|place| place.engine_number)
    }

    /// Whether turns are only to end.
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
