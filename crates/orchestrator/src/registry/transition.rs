//! The last move of one engine, as the ledger has it.

use contract::Timestamp;
use contract::orchestrator::{EngineStatus, Transition};
use serde_json::Value;
use sqlx::Row as _;

use super::row::EngineRow;
use super::{Registry, RegistryError};

impl Registry {
    /// The last move of the engine of `row`; none before its first.
    pub(crate) async fn last_transition(&self, row: &EngineRow) -> Result<Option<Transition>, RegistryError> {
        // By the user's rows, newest first: only those of their present engine count, and not all are moves.
        let found = sqlx::query(
            "SELECT at, event, detail FROM audit_log \
             WHERE product_id = $1 AND user_id = $2 AND engine_id = $3 AND event NOT IN ('rotate_key') \
             ORDER BY id DESC LIMIT 1",
        )
        .bind(row.seat.product_id.to_string())
        .bind(row.seat.user_id.as_str().to_owned())
        .bind(row.engine_id.to_string())
        .fetch_optional(&self.reads)
        .await?;
        let Some(found) = found else { return Ok(None) };
        let detail: String = found.try_get(2)?;
        let unreadable = |_| RegistryError::Unreadable { column: "detail" };
        let detail: Value = serde_json::from_str(&detail).map_err(unreadable)?;
        let text = |name: &str| detail.get(name).and_then(Value::as_str);
        Ok(Some(Transition {
            at: Timestamp::from_unix_ms(found.try_get(0)?),
            event: found.try_get(1)?,
            from: text("from").and_then(EngineStatus::from_name),
            to: text("to").and_then(EngineStatus::from_name),
            reason: text("reason").map(str::to_owned),
        }))
    }
}
