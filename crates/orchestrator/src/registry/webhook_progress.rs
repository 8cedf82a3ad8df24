//! How far the webhooks of the audit log have come, and the rows that they have given up.
//!
//! Progress is stored under the webhook's revision: what was sent under settings that a caller has changed meanwhile is
//! not recorded, and is sent again.

use api::audit_webhooks::{DeadLetter, MAX_DEAD_LETTERS};
use api::{AuditWebhookId, Timestamp};
use sqlx::any::AnyRow;
use sqlx::{Any, Row as _, Transaction};

use super::access::with_deadline;
use super::audit_queries::parse_row;
use super::audit_webhooks::json;
use super::{Registry, RegistryError};
use crate::domain::webhook_progress::{GivenUp, Lagging};

/// What a webhook has done since its progress was stored last.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgressUpdate {
    pub(crate) position: i64,
    pub(crate) lagging: Vec<Lagging>,
    pub(crate) delivered_at: Option<Timestamp>,
    pub(crate) last_error: Option<String>,
    /// The rows that it has given up.
    pub(crate) given_up: Vec<GivenUp>,
    /// The dead letters that were sent once more.
    pub(crate) retried: Vec<RetriedLetter>,
}

/// What became of a dead letter that was sent once more.
#[derive(Clone, Debug)]
pub(crate) struct RetriedLetter {
    pub(crate) row: i64,
    /// Why it was not delivered; `None` if it was.
    pub(crate) error: Option<String>,
}

/// The dead letters of a webhook, with the columns in the order in which `parse_row` expects them first.
pub(super) const DEAD_LETTERS: &str = "SELECT a.id, a.at, a.product_id, a.engine_id, a.user_id, a.event, \
    a.duration_ms, a.detail, a.hash, d.failed_at, d.attempts, d.error, d.retrying \
    FROM audit_dead_letters d JOIN audit_webhooks w ON w.webhook_id = d.webhook_id \
    JOIN audit_log a ON a.product_id = w.product_id AND a.id = d.row_id \
    WHERE d.webhook_id = $1 AND d.row_id > $2 ORDER BY d.row_id LIMIT $3";

impl Registry {
    /// Stores the progress of a webhook that is still at `revision`. Returns whether it is.
    pub(crate) async fn save_webhook_progress(
        &self,
        webhook_id: AuditWebhookId,
        revision: i64,
        update: &ProgressUpdate,
        at: Timestamp,
    ) -> Result<bool, RegistryError> {
        let mut transaction = self.begin().await?;
        let id = webhook_id.to_string();
        let save = sqlx::query(
            "UPDATE audit_webhooks SET position = $1, lagging = $2, delivered_at = $3, \
             last_error = COALESCE($4, last_error) WHERE webhook_id = $5 AND revision = $6",
        )
        .bind(update.position)
        .bind(json(&update.lagging, "lagging")?)
        .bind(update.delivered_at.map(Timestamp::unix_ms))
        .bind(update.last_error.clone())
        .bind(id.clone())
        .bind(revision);
        if with_deadline(save.execute(&mut *transaction)).await?.rows_affected() == 0 {
            return Ok(false);
        }
        for GivenUp { row, attempts, error } in &update.given_up {
            let insert = sqlx::query(
                "INSERT INTO audit_dead_letters (webhook_id, row_id, failed_at, attempts, error, retrying) \
                 VALUES ($1, $2, $3, $4, $5, 0) ON CONFLICT (webhook_id, row_id) DO UPDATE SET \
                 failed_at = excluded.failed_at, attempts = excluded.attempts, error = excluded.error",
            )
            .bind(id.clone())
            .bind(*row)
            .bind(at.unix_ms())
            .bind(i64::from(*attempts))
            .bind(error.clone());
            with_deadline(insert.execute(&mut *transaction)).await?;
        }
        if !update.given_up.is_empty() {
            drop_oldest(&mut transaction, &id).await?;
        }
        for RetriedLetter { row, error } in &update.retried {
            let settle = match error {
                None => sqlx::query("DELETE FROM audit_dead_letters WHERE webhook_id = $1 AND row_id = $2"),
                Some(_) => sqlx::query(
                    "UPDATE audit_dead_letters SET retrying = 0, attempts = attempts + 1, error = $3 \
                     WHERE webhook_id = $1 AND row_id = $2",
                ),
            };
            let settle = settle.bind(id.clone()).bind(*row);
            let settle = if let Some(error) = error { settle.bind(error.clone()) } else { settle };
            with_deadline(settle.execute(&mut *transaction)).await?;
        }
        with_deadline(transaction.commit()).await?;
        Ok(true)
    }

    /// Returns a page of the dead letters of a webhook, oldest row first.
    pub(crate) async fn dead_letters(
        &self,
        webhook_id: AuditWebhookId,
        after: i64,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, RegistryError> {
        let query = sqlx::query(DEAD_LETTERS).bind(webhook_id.to_string()).bind(after).bind(limit);
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(read_letter).collect()
    }

    /// Returns the dead letters of a webhook that are to be sent once more, with the number of their attempts.
    pub(crate) async fn letters_to_retry(
        &self,
        webhook_id: AuditWebhookId,
    ) -> Result<Vec<(i64, u32)>, RegistryError> {
        let query = sqlx::query(
            "SELECT row_id, attempts FROM audit_dead_letters WHERE webhook_id = $1 AND retrying = 1 ORDER BY row_id",
        )
        .bind(webhook_id.to_string());
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        rows.iter()
            .map(|row| Ok((row.try_get(0)?, u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or(u32::MAX))))
            .collect()
    }
}

/// Drops the oldest dead letters of a webhook if it has too many, and counts them.
async fn drop_oldest(transaction: &mut Transaction<'_, Any>, id: &str) -> Result<(), RegistryError> {
    let drop = sqlx::query(
        "DELETE FROM audit_dead_letters WHERE webhook_id = $1 AND row_id <= (SELECT row_id FROM audit_dead_letters \
         WHERE webhook_id = $1 ORDER BY row_id DESC LIMIT 1 OFFSET $2)",
    )
    .bind(id.to_owned())
    .bind(i64::try_from(MAX_DEAD_LETTERS).unwrap_or(i64::MAX));
    let dropped = with_deadline(drop.execute(&mut **transaction)).await?.rows_affected();
    let count = sqlx::query(
        "UPDATE audit_webhooks SET dead_letters_dropped = dead_letters_dropped + $1 WHERE webhook_id = $2",
    )
    .bind(i64::try_from(dropped).unwrap_or(i64::MAX))
    .bind(id.to_owned());
    with_deadline(count.execute(&mut **transaction)).await?;
    Ok(())
}

fn read_letter(row: &AnyRow) -> Result<DeadLetter, RegistryError> {
    Ok(DeadLetter {
        row: parse_row(row)?,
        failed_at: Timestamp::from_unix_ms(row.try_get(9)?),
        attempts: u32::try_from(row.try_get::<i64, _>(10)?).unwrap_or(u32::MAX),
        error: row.try_get(11)?,
        retrying: row.try_get::<i64, _>(12)? != 0,
    })
}
