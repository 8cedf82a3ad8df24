//! The last state transition of one engine, read from the audit log.

use api::Timestamp;
use api::orchestrator::{EngineStatus, Transition};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::access::with_deadline;
use super::row::EngineRow;
use super::{Registry, RegistryError};

/// The number of rows searched for a transition: far more than one failure has restart attempts.
const MAX_ROWS_SCANNED: i64 = 100;

impl Registry {
    /// Returns the last transition of the engine of `row`; `None` before its first.
    pub(crate) async fn last_transition(&self, row: &EngineRow) -> Result<Option<Transition>, RegistryError> {
        // Reads the user's rows, newest first: only those of the user's present engine count, and not all are
        // transitions.
        let found = with_deadline(
            sqlx::query(
                "SELECT at, event, detail FROM audit_log \
             WHERE product_id = $1 AND user_id = $2 AND engine_id = $3 AND event NOT IN ('rotate_key') \
             ORDER BY id DESC LIMIT $4",
            )
            .bind(row.owner.product_id.to_string())
            .bind(row.owner.user_id.as_str().to_owned())
            .bind(row.engine_id.to_string())
            .bind(MAX_ROWS_SCANNED)
            .fetch_all(&self.reads),
        )
        .await?;
        let transitions = found.iter().map(parse_transition).collect::<Result<Vec<_>, _>>()?;
        // A failed restart attempt is no transition.
        Ok(transitions.into_iter().find(|transition| transition.from != transition.to))
    }
}

fn parse_transition(row: &AnyRow) -> Result<Transition, RegistryError> {
    let detail: String = row.try_get(2)?;
    let unreadable = |_| RegistryError::Unreadable { column: "detail" };
    let detail: Value = serde_json::from_str(&detail).map_err(unreadable)?;
    let text = |name: &str| detail.get(name).and_then(Value::as_str);
    Ok(Transition {
        at: Timestamp::from_unix_ms(row.try_get(0)?),
        event: row.try_get(1)?,
        from: text("from").and_then(EngineStatus::from_name),
        to: text("to").and_then(EngineStatus::from_name),
        reason: text("reason").map(str::to_owned),
    })
}
