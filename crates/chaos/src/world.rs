//! What all parts of a run share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::api::Api;
use crate::journal::Stalls;
use crate::mix::Mix;
use crate::script::Script;
use crate::tally::Tally;
use crate::trap::Trap;

/// See the module.
#[derive(Debug)]
pub(crate) struct World {
    /// Where all choices come from.
    pub(crate) seed: u64,
    /// What the load is made of.
    pub(crate) mix: Mix,
    /// The client of the engine.
    pub(crate) api: Api,
    /// What happened.
    pub(crate) tally: Arc<Tally>,
    /// What kills the engine.
    pub(crate) trap: Arc<Trap>,
    /// The turns that did not get on.
    pub(crate) stalls: Stalls,
    /// What the model says.
    pub(crate) script: Arc<Script>,
    /// The agent's folder.
    pub(crate) workspace: PathBuf,
    /// The engine that runs and may be talked to.
    pub(crate) place: watch::Receiver<Option<Place>>,
    /// Set when the engine will not be killed any more, and turns are only to end.
    pub(crate) settling: watch::Receiver<bool>,
    /// When the run is over whatever happens.
    pub(crate) deadline: Instant,
}

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its address.
    pub(crate) base: String,
    /// Counts the engines of the run, from 1.
    pub(crate) engine: u64,
}

impl World {
    /// The engine that runs, once there is one; none when the run is over.
    pub(crate) async fn place(&self) -> Option<Place> {
        let mut place = self.place.clone();
        let up = place.wait_for(Option::is_some);
        let found = tokio::time::timeout(self.left(), up).await.ok()?.ok()?;
        found.clone()
    }

    /// The number of the engine that runs, or of none.
    pub(crate) fn engine(&self) -> Option<u64> {
        self.place.borrow().as_ref().map(|place| place.engine)
    }

    /// Whether turns are only to end.
    pub(crate) fn settles(&self) -> bool {
        *self.settling.borrow()
    }

    /// The time until the run is over.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether the run is over.
    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}
