//! Rows as the wire and the ledger show them.

use contract::EngineKey;
use contract::orchestrator::{EngineRecord, EngineSummary};
use serde_json::Value;

use super::lifecycle::Change;
use super::{Fleet, FleetError};
use crate::keys::{KeyError, Purpose};
use crate::registry::{Claim, EngineRow, Entry, Event};
use contract::Timestamp;

/// Where engines listen, towards their callers.
const ENGINE_HOST: &str = "127.0.0.1";

/// The engine without its key.
pub(super) fn summary(row: EngineRow) -> EngineSummary {
    EngineSummary {
        engine_id: row.engine_id,
        status: row.status,
        url: row.port.map(url),
        engine_version: row.engine_version,
        created_at: row.created_at,
        last_health_at: row.last_health_at,
        user_id: row.seat.user_id,
    }
}

/// The address of an engine on `port`.
pub(super) fn url(port: u16) -> String {
    format!("http://{ENGINE_HOST}:{port}")
}

impl Fleet {
    /// The engine with its key.
    pub(super) fn record(&self, row: EngineRow) -> Result<EngineRecord, FleetError> {
        let api_key = self.engine_key(&row)?;
        Ok(EngineRecord { summary: summary(row), api_key })
    }

    pub(super) fn engine_key(&self, row: &EngineRow) -> Result<EngineKey, KeyError> {
        let mut key = self.vault.open(&row.engine_id.to_string(), Purpose::EngineKey, &row.sealed_key)?;
        Ok(EngineKey::from_text(std::mem::take(&mut *key)))
    }

    /// A claim of this process that begins now.
    pub(super) fn claim(&self, change: Change) -> Claim {
        let patience_ms = i64::try_from(self.patience().as_millis()).unwrap_or(i64::MAX);
        let deadline = Timestamp::from_unix_ms(self.now().unix_ms().saturating_add(patience_ms));
        Claim { change, pending: None, owner: self.settings.owner.clone(), deadline }
    }

    /// A row of the ledger about an engine, as of now.
    pub(super) fn entry(&self, row: &EngineRow, event: Event, detail: Value) -> Entry {
        let engine = Some((row.engine_id, row.seat.user_id.clone()));
        Entry { at: self.now(), event, engine, duration_ms: None, detail }
    }
}
