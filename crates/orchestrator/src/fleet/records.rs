//! Engines as the API shows them: their addresses and keys.

use std::sync::Arc;

use api::orchestrator::{EngineRecord, EngineSummary};
use api::{EngineId, EngineKey};
use backend::Placement;

use super::shared::Shared;
use crate::domain::EngineOwner;
use crate::keys::KeyError;
use crate::registry::{AdmitView, EngineRow};

pub(super) struct Records {
    shared: Arc<Shared>,
}

impl Records {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The URL of an engine at its placement, as callers reach it.
    pub(super) fn url(&self, engine_id: EngineId, placement: Placement) -> Option<String> {
        self.shared.url(engine_id, placement)
    }

    /// The URL of an engine in any state that has leased `port`; `None` if it has no place.
    pub(super) fn last_url(&self, engine_id: EngineId, port: Option<u16>) -> Option<String> {
        self.shared.last_url(engine_id, port)
    }

    /// The engine's key.
    pub(super) fn key(&self, row: &EngineRow) -> Result<EngineKey, KeyError> {
        self.shared.keys.key(row)
    }

    /// The engine without its key.
    pub(super) fn summary(&self, row: EngineRow) -> EngineSummary {
        EngineSummary {
            engine_id: row.engine_id,
            status: row.status,
            url: self.last_url(row.engine_id, row.port),
            engine_version: row.engine_version,
            created_at: row.created_at,
            last_health_at: row.last_health_at,
            user_id: row.owner.user_id,
        }
    }

    /// The engine with its key.
    pub(super) fn record(&self, row: EngineRow) -> Result<EngineRecord, KeyError> {
        let api_key = self.key(&row)?;
        Ok(EngineRecord { summary: self.summary(row), api_key })
    }

    /// The engine of `owner` with its key.
    pub(super) fn admit_record(
        &self,
        owner: EngineOwner,
        engine: AdmitView,
    ) -> Result<EngineRecord, KeyError> {
        let api_key = self.shared.keys.unseal(engine.engine_id, &engine.sealed_key)?;
        let summary = EngineSummary {
            engine_id: engine.engine_id,
            user_id: owner.user_id,
            status: engine.status,
            url: self.last_url(engine.engine_id, engine.port),
            engine_version: engine.engine_version,
            created_at: engine.created_at,
            last_health_at: engine.last_health_at,
        };
        Ok(EngineRecord { summary, api_key })
    }
}
