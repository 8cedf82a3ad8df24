//! Converts rows to the types of the API and of the audit log, and unseals keys.

use api::orchestrator::{EngineRecord, EngineSummary};
use api::{EngineId, EngineKey};
use serde_json::Value;

use super::lifecycle::{Change, EngineView};
use super::{Fleet, FleetError};
use crate::keys::{KeyError, Purpose};
use crate::registry::{AdmitView, AuditEntry, Claim, EngineOwner, EngineRow, Event};
use api::Timestamp;

impl AdmitView {
    /// The input of the decision table. It does not know whether a restart is due.
    pub(super) fn view(&self) -> EngineView {
        EngineView { status: self.status, change: self.claim, restart_due: false }
    }
}

impl Fleet {
    /// The URL of an engine on `port`, as callers reach it.
    pub(super) fn url(&self, port: u16) -> String {
        format!("http://{}:{port}", self.settings.url_host)
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
    pub(super) fn engine_record(&self, row: EngineRow) -> Result<EngineRecord, FleetError> {
        let api_key = self.engine_key(&row)?;
        Ok(EngineRecord { summary: self.summary(row), api_key })
    }

    /// The engine of `owner` with its key.
    pub(super) fn admit_record(
        &self,
        owner: EngineOwner,
        engine: AdmitView,
    ) -> Result<EngineRecord, FleetError> {
        let api_key = self.unseal_key(engine.engine_id, &engine.sealed_key)?;
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

    pub(super) fn engine_key(&self, row: &EngineRow) -> Result<EngineKey, KeyError> {
        self.unseal_key(row.engine_id, &row.sealed_key)
    }

    fn unseal_key(&self, engine_id: EngineId, sealed_key: &str) -> Result<EngineKey, KeyError> {
        let mut key = self.vault.open(&engine_id.to_string(), Purpose::EngineKey, sealed_key)?;
        Ok(EngineKey::from_text(std::mem::take(&mut *key)))
    }

    /// A claim of this process that starts now.
    pub(super) fn new_claim(&self, change: Change) -> Claim {
        let timeout_ms = i64::try_from(self.operation_timeout().as_millis()).unwrap_or(i64::MAX);
        let deadline = Timestamp::from_unix_ms(self.now().unix_ms().saturating_add(timeout_ms));
        let default_image = self.settings.engine_image.clone();
        let owner = self.settings.claim_owner.clone();
        Claim { change, pending: None, image: None, default_image, owner, deadline }
    }

    /// An audit log row about an engine, with the current time.
    pub(super) fn audit_entry(&self, row: &EngineRow, event: Event, detail: Value) -> AuditEntry {
        let engine = Some((row.engine_id, row.owner.user_id.clone()));
        AuditEntry { at: self.now(), event, engine, duration_ms: None, detail }
    }
}
