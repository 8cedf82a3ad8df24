//! What most parts of the fleet call: the registry, the backend, the clock, the engines' keys, and the metrics.

use std::sync::Arc;

use api::EngineId;
use backend::{DeadlineBackend, Placement};
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
    /// The URL of an engine at its placement, as callers reach it.
    pub(super) fn url(&self, engine_id: EngineId, placement: Placement) -> Option<String> {
        let authority = self.backend.url_authority(engine_id, placement)?;
        Some(format!("http://{authority}"))
    }

    /// The URL of an engine in any state that has leased `port`; `None` if it has no place.
    pub(super) fn last_url(&self, engine_id: EngineId, port: Option<u16>) -> Option<String> {
        self.url(engine_id, self.backend.addressing().placement(port)?)
    }

    /// Returns the engine as a running one, if it is.
    pub(super) fn running<'a>(&self, row: &'a EngineRow) -> Option<RunningEngine<'a>> {
        row.running(self.backend.addressing())
    }
}
