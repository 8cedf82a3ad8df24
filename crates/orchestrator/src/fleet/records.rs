//! Engines as the API shows them: their addresses and keys.

use std::sync::Arc;

use api::EngineKey;
use api::orchestrator::{EngineRecord, EngineSummary};

use super::shared::Shared;
use crate::domain::EngineOwner;
use crate::keys::KeyError;
use crate::registry::{AdmitView, EngineRow};

pub(super) struct Records {
    shared: Arc<Shared>,
    /// The host in engine URLs, as callers reach it.
    url_host: String,
}

impl Records {
    pub(super) const fn new(shared: Arc<Shared>, url_host: String) -> Self {
        Self { shared, url_host }
    }

    /// The URL of an engine on `port`, as callers reach it.
    pub(super) fn url(&self, port: u16) -> String {
        format!("http://{}:{port}", self.url_host)
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
            url: row.port.map(|port| self.url(port)),
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
            url: engine.port.map(|port| self.url(port)),
            engine_version: engine.engine_version,
            created_at: engine.created_at,
            last_health_at: engine.last_health_at,
        };
        Ok(EngineRecord { summary, api_key })
    }
}
