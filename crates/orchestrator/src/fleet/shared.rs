//! What most parts of the fleet call: the registry, the backend, the clock, the engines' keys, and the metrics.

use std::sync::Arc;

use backend::DeadlineBackend;
use http_service::clock::Clock;

use super::engine_keys::EngineKeys;
use crate::keys::Vault;
use crate::metrics::{Metrics, ObservedRegistry};
use crate::registry::{EngineRow, RunningEngine};

pub(crate) struct Shared {
    pub(super) registry: ObservedRegistry,
    pub(super) backend: DeadlineBackend,
    pub(super) keys: EngineKeys,
    pub(super) vault: Arc<Vault>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
}

impl Shared {
    /// Returns the engine as a running one, if it is.
    pub(super) fn running<'a>(&self, row: &'a EngineRow) -> Option<RunningEngine<'a>> {
        row.running(self.backend.addressing())
    }
}
