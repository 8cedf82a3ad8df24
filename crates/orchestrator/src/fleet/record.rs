//! Rows as the wire and the ledger show them.

use contract::orchestrator::{EngineRecord, EngineSummary};
use contract::{EngineId, EngineKey};
use serde_json::Value;

use super::lifecycle::{Change, View};
use super::{Fleet, FleetError};
use crate::keys::{KeyError, Purpose};
use crate::registry::{Claim, EngineRow, Entry, Event, Seat, Standing};
use contract::Timestamp;

impl Standing {
    /// The engine as the table sees it. Whether a restart is due it does not know.
    pub(super) fn view(&self) -> View {
        View { status: self.status, change: self.claim, restart_due: false }
    }
}

impl Fleet {
    /// The address of an engine on `port`, as its callers reach it.
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
            user_id: row.seat.user_id,
        }
    }

    /// The engine with its key.
    pub(super) fn record(&self, row: EngineRow) -> Result<EngineRecord, FleetError> {
        let api_key = self.engine_key(&row)?;
        Ok(EngineRecord { summary: self.summary(row), api_key })
    }

    /// The engine at `seat` with its key.
    pub(super) fn standing_record(&self, seat: Seat, engine: Standing) -> Result<EngineRecord, FleetError> {
        let api_key = self.unsealed(engine.engine_id, &engine.sealed_key)?;
        let summary = EngineSummary {
            engine_id: engine.engine_id,
            user_id: seat.user_id,
            status: engine.status,
            url: engine.port.map(|port| self.url(port)),
            engine_version: engine.engine_version,
            created_at: engine.created_at,
            last_health_at: engine.last_health_at,
        };
        Ok(EngineRecord { summary, api_key })
    }

    pub(super) fn engine_key(&self, row: &EngineRow) -> Result<EngineKey, KeyError> {
        self.unsealed(row.engine_id, &row.sealed_key)
    }

    fn unsealed(&self, engine_id: EngineId, sealed_key: &str) -> Result<EngineKey, KeyError> {
        let mut key = self.vault.open(&engine_id.to_string(), Purpose::EngineKey, sealed_key)?;
        Ok(EngineKey::from_text(std::mem::take(&mut *key)))
    }

    /// A claim of this process that begins now.
    pub(super) fn claim(&self, change: Change) -> Claim {
        let patience_ms = i64::try_from(self.patience().as_millis()).unwrap_or(i64::MAX);
        let deadline = Timestamp::from_unix_ms(self.now().unix_ms().saturating_add(patience_ms));
        let default_image = self.settings.engine_image.clone();
        let owner = self.settings.owner.clone();
        Claim { change, pending: None, image: None, default_image, owner, deadline }
    }

    /// A row of the ledger about an engine, as of now.
    pub(super) fn entry(&self, row: &EngineRow, event: Event, detail: Value) -> Entry {
        let engine = Some((row.engine_id, row.seat.user_id.clone()));
        Entry { at: self.now(), event, engine, duration_ms: None, detail }
    }
}
