//! Webhooks of the audit log: their settings, which callers change. Each change is committed with its audit row.

use api::audit::AuditEvent;
use api::audit_webhooks::{AuditWebhook, AuditWebhookState, MAX_AUDIT_WEBHOOKS};
use api::{AuditWebhookId, ProductId, Timestamp};
use sqlx::any::AnyRow;
use sqlx::{Any, Executor, Row as _};

use super::access::with_deadline;
use super::audit_log::{AuditEntry, ProductTx};
use super::idempotency::{self, CallMark};
use super::{Registry, RegistryError};
use crate::domain::webhook_progress::Lagging;

/// A webhook that is created.
#[derive(Clone)]
pub(crate) struct NewWebhook {
    pub(crate) webhook_id: AuditWebhookId,
    pub(crate) url: String,
    pub(crate) events: Vec<AuditEvent>,
    pub(crate) sealed_secret: String,
    /// Where it begins; `None` means behind the row of its creation.
    pub(crate) after: Option<i64>,
}

/// A webhook as it is stored.
#[derive(Clone)]
pub(crate) struct WebhookRow {
    pub(crate) product_id: ProductId,
    /// As callers see it.
    pub(crate) webhook: AuditWebhook,
    pub(crate) sealed_secret: String,
    pub(crate) old_sealed_secret: Option<String>,
    pub(crate) revision: i64,
    pub(crate) lagging: Vec<Lagging>,
}

/// A change of a webhook.
#[derive(Clone)]
pub(crate) enum WebhookChange {
    /// Other settings; what is `None` stays as it is.
    Update { url: Option<String>, events: Option<Vec<AuditEvent>>, state: Option<AuditWebhookState> },
    /// Another secret. The present one signs, too, until `old_expires_at`.
    RotateSecret { sealed_secret: String, old_expires_at: Timestamp },
    /// The rows after this one are sent again.
    Replay { after: i64 },
    /// Dead letters are sent once more: all, or those of these rows.
    RetryDeadLetters(Option<Vec<i64>>),
    /// Dead letters are removed: all, or those of these rows.
    DiscardDeadLetters(Option<Vec<i64>>),
    /// The webhook is deleted.
    Delete,
}

/// Why a webhook was not created or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WebhookRefused {
    /// The product has as many as it may have.
    Limit,
    /// The product has no such webhook.
    NoWebhook,
    /// The audit log ends before the row at which it should begin.
    Beyond { after: i64, end: i64 },
}

macro_rules! select_webhooks {
    ($rest:literal) => {
        concat!(
            "SELECT webhook_id, product_id, url, events, state, sealed_secret, old_sealed_secret, \
             old_secret_expires_at, created_at, updated_at, revision, position, lagging, delivered_at, last_error, \
             dead_letters_dropped, \
             (SELECT COUNT(*) FROM audit_dead_letters d WHERE d.webhook_id = audit_webhooks.webhook_id) \
             FROM audit_webhooks ",
            $rest
        )
    };
}

pub(super) const WEBHOOKS_OF_PRODUCT: &str = select_webhooks!("WHERE product_id = $1 ORDER BY webhook_id");
pub(super) const WEBHOOK_OF_PRODUCT: &str = select_webhooks!("WHERE webhook_id = $1 AND product_id = $2");
const WEBHOOK: &str = select_webhooks!("WHERE webhook_id = $1");

impl Registry {
    /// Returns the webhooks of a product, oldest first.
    pub(crate) async fn webhooks(&self, product_id: ProductId) -> Result<Vec<WebhookRow>, RegistryError> {
        let query = sqlx::query(WEBHOOKS_OF_PRODUCT).bind(product_id.to_string());
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(read_webhook).collect()
    }

    /// Returns a webhook of a product.
    pub(crate) async fn webhook_of(
        &self,
        product_id: ProductId,
        webhook_id: AuditWebhookId,
    ) -> Result<Option<WebhookRow>, RegistryError> {
        find(&self.reads, product_id, webhook_id).await
    }

    /// Returns a webhook.
    pub(crate) async fn webhook(
        &self,
        webhook_id: AuditWebhookId,
    ) -> Result<Option<WebhookRow>, RegistryError> {
        let query = sqlx::query(WEBHOOK).bind(webhook_id.to_string());
        with_deadline(query.fetch_optional(&self.reads)).await?.as_ref().map(read_webhook).transpose()
    }

    /// Returns the webhooks of all products that send. Unreadable ids are skipped.
    pub(crate) async fn active_webhooks(&self) -> Result<Vec<AuditWebhookId>, RegistryError> {
        let query = sqlx::query("SELECT webhook_id FROM audit_webhooks WHERE state = 'active'");
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        Ok(rows.iter().filter_map(|row| row.try_get::<String, _>(0).ok()?.parse().ok()).collect())
    }

    /// Creates a webhook, with its audit row. `call` is told how it is then, and returns the mark of the call with an
    /// `Idempotency-Key` whose change this is.
    pub(crate) async fn create_webhook(
        &self,
        product_id: ProductId,
        new: &NewWebhook,
        entry: &AuditEntry,
        call: impl FnOnce(&WebhookRow) -> Result<Option<CallMark>, RegistryError>,
    ) -> Result<Result<WebhookRow, WebhookRefused>, RegistryError> {
        let mut tx = self.begin_product_tx(product_id, 1).await?;
        let count = sqlx::query("SELECT COUNT(*) FROM audit_webhooks WHERE product_id = $1");
        let count = with_deadline(count.bind(product_id.to_string()).fetch_one(tx.connection())).await?;
        if usize::try_from(count.try_get::<i64, _>(0)?).unwrap_or(usize::MAX) >= MAX_AUDIT_WEBHOOKS {
            return Ok(Err(WebhookRefused::Limit));
        }
        let end = tx.last_id();
        if let Some(after) = new.after.filter(|after| *after > end) {
            return Ok(Err(WebhookRefused::Beyond { after, end }));
        }
        tx.append(entry).await?;
        let insert = sqlx::query(
            "INSERT INTO audit_webhooks (webhook_id, product_id, url, events, state, sealed_secret, created_at, \
             updated_at, revision, position, lagging) VALUES ($1, $2, $3, $4, 'active', $5, $6, $6, 1, $7, '[]')",
        )
        .bind(new.webhook_id.to_string())
        .bind(product_id.to_string())
        .bind(new.url.clone())
        .bind(json(&new.events, "events")?)
        .bind(new.sealed_secret.clone())
        .bind(entry.at.unix_ms())
        .bind(new.after.unwrap_or_else(|| tx.last_id()));
        with_deadline(insert.execute(tx.connection())).await?;
        let row = find(tx.connection(), product_id, new.webhook_id).await?;
        if let Some(row) = &row
            && let Some(call) = call(row)?
        {
            idempotency::mark(tx.connection(), &call, entry.at).await?;
        }
        tx.commit().await?;
        Ok(row.ok_or(WebhookRefused::NoWebhook))
    }

    /// Changes a webhook, with its audit row. Returns how it is then (how it was, if it is deleted), and how many dead
    /// letters the change concerns. `call` is told both, and returns the mark of the call with an `Idempotency-Key` whose
    /// change this is.
    pub(crate) async fn change_webhook(
        &self,
        product_id: ProductId,
        webhook_id: AuditWebhookId,
        change: &WebhookChange,
        entry: &AuditEntry,
        call: impl FnOnce(&WebhookRow, u64) -> Result<Option<CallMark>, RegistryError>,
    ) -> Result<Result<(WebhookRow, u64), WebhookRefused>, RegistryError> {
        let mut tx = self.begin_product_tx(product_id, 1).await?;
        let Some(before) = find(tx.connection(), product_id, webhook_id).await? else {
            return Ok(Err(WebhookRefused::NoWebhook));
        };
        if let WebhookChange::Replay { after } = change
            && *after > tx.last_id()
        {
            return Ok(Err(WebhookRefused::Beyond { after: *after, end: tx.last_id() }));
        }
        // The webhook's row first: whoever stores its progress locks it first, too.
        let touch = sqlx::query(
            "UPDATE audit_webhooks SET updated_at = $1, revision = revision + 1 WHERE webhook_id = $2",
        )
        .bind(entry.at.unix_ms())
        .bind(webhook_id.to_string());
        with_deadline(touch.execute(tx.connection())).await?;
        let letters = apply(&mut tx, webhook_id, change).await?;
        tx.append(entry).await?;
        let after = find(tx.connection(), product_id, webhook_id).await?.unwrap_or(before);
        if let Some(call) = call(&after, letters)? {
            idempotency::mark(tx.connection(), &call, entry.at).await?;
        }
        tx.commit().await?;
        Ok(Ok((after, letters)))
    }

    /// Stores that the receiver of a webhook is gone, with the audit row, if it is still at `revision`.
    pub(crate) async fn suspend_webhook(
        &self,
        row: &WebhookRow,
        error: &str,
        entry: &AuditEntry,
    ) -> Result<bool, RegistryError> {
        let mut tx = self.begin_product_tx(row.product_id, 1).await?;
        let suspend = sqlx::query(
            "UPDATE audit_webhooks SET state = $1, last_error = $2, updated_at = $3, revision = revision + 1 \
             WHERE webhook_id = $4 AND revision = $5",
        )
        .bind(AuditWebhookState::Gone.as_str())
        .bind(error.to_owned())
        .bind(entry.at.unix_ms())
        .bind(row.webhook.webhook_id.to_string())
        .bind(row.revision);
        if with_deadline(suspend.execute(tx.connection())).await?.rows_affected() == 0 {
            return Ok(false);
        }
        tx.append(entry).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// Applies a change. Returns how many dead letters it concerns.
async fn apply(
    tx: &mut ProductTx,
    webhook_id: AuditWebhookId,
    change: &WebhookChange,
) -> Result<u64, RegistryError> {
    let id = webhook_id.to_string();
    let statement = match change {
        WebhookChange::Update { url, events, state } => {
            let events = events.as_ref().map(|events| json(events, "events")).transpose()?;
            sqlx::query(
                "UPDATE audit_webhooks SET url = COALESCE($1, url), events = COALESCE($2, events), \
                 state = COALESCE($3, state), last_error = NULL WHERE webhook_id = $4",
            )
            .bind(url.clone())
            .bind(events)
            .bind(state.map(AuditWebhookState::as_str))
            .bind(id)
        }
        WebhookChange::RotateSecret { sealed_secret, old_expires_at } => sqlx::query(
            "UPDATE audit_webhooks SET old_sealed_secret = sealed_secret, old_secret_expires_at = $1, \
             sealed_secret = $2 WHERE webhook_id = $3",
        )
        .bind(old_expires_at.unix_ms())
        .bind(sealed_secret.clone())
        .bind(id),
        WebhookChange::Replay { after } => {
            // They are sent again anyway.
            let forget = sqlx::query("DELETE FROM audit_dead_letters WHERE webhook_id = $1 AND row_id > $2")
                .bind(id.clone())
                .bind(*after);
            with_deadline(forget.execute(tx.connection())).await?;
            sqlx::query("UPDATE audit_webhooks SET position = $1, lagging = '[]' WHERE webhook_id = $2")
                .bind(*after)
                .bind(id)
        }
        WebhookChange::RetryDeadLetters(rows) => {
            return each_letter(
                tx,
                &id,
                rows.as_deref(),
                "UPDATE audit_dead_letters SET retrying = 1 WHERE webhook_id = $1",
                "UPDATE audit_dead_letters SET retrying = 1 WHERE webhook_id = $1 AND row_id = $2",
            )
            .await;
        }
        WebhookChange::DiscardDeadLetters(rows) => {
            return each_letter(
                tx,
                &id,
                rows.as_deref(),
                "DELETE FROM audit_dead_letters WHERE webhook_id = $1",
                "DELETE FROM audit_dead_letters WHERE webhook_id = $1 AND row_id = $2",
            )
            .await;
        }
        WebhookChange::Delete => sqlx::query("DELETE FROM audit_webhooks WHERE webhook_id = $1").bind(id),
    };
    with_deadline(statement.execute(tx.connection())).await?;
    Ok(0)
}

/// Executes a statement for all dead letters, or one for each of `rows`. Returns how many there are.
async fn each_letter(
    tx: &mut ProductTx,
    id: &str,
    rows: Option<&[i64]>,
    all: &'static str,
    one: &'static str,
) -> Result<u64, RegistryError> {
    let Some(rows) = rows else {
        let statement = sqlx::query(all).bind(id.to_owned());
        return Ok(with_deadline(statement.execute(tx.connection())).await?.rows_affected());
    };
    let mut count = 0;
    for row in rows {
        let statement = sqlx::query(one).bind(id.to_owned()).bind(*row);
        count += with_deadline(statement.execute(tx.connection())).await?.rows_affected();
    }
    Ok(count)
}

async fn find(
    connection: impl Executor<'_, Database = Any>,
    product_id: ProductId,
    webhook_id: AuditWebhookId,
) -> Result<Option<WebhookRow>, RegistryError> {
    let query = sqlx::query(WEBHOOK_OF_PRODUCT).bind(webhook_id.to_string()).bind(product_id.to_string());
    with_deadline(query.fetch_optional(connection)).await?.as_ref().map(read_webhook).transpose()
}

/// The text of a column with JSON.
pub(super) fn json(value: &impl serde::Serialize, column: &'static str) -> Result<String, RegistryError> {
    serde_json::to_string(value).map_err(|_| RegistryError::Unreadable { column })
}

fn read_webhook(row: &AnyRow) -> Result<WebhookRow, RegistryError> {
    let unreadable = |column| move || RegistryError::Unreadable { column };
    let text = |at: usize| row.try_get::<String, _>(at);
    let time = |at: usize| Ok::<_, RegistryError>(Timestamp::from_unix_ms(row.try_get(at)?));
    let optional_time =
        |at: usize| Ok::<_, RegistryError>(row.try_get::<Option<i64>, _>(at)?.map(Timestamp::from_unix_ms));
    let count = |at: usize| Ok::<_, RegistryError>(row.try_get::<i64, _>(at)?.unsigned_abs());
    let state = text(4)?;
    let state = AuditWebhookState::ALL.into_iter().find(|known| known.as_str() == state);
    let lagging: Vec<Lagging> = serde_json::from_str(&text(12)?).ok().ok_or_else(unreadable("lagging"))?;
    Ok(WebhookRow {
        product_id: text(1)?.parse().ok().ok_or_else(unreadable("product_id"))?,
        sealed_secret: text(5)?,
        old_sealed_secret: row.try_get(6)?,
        revision: row.try_get(10)?,
        webhook: AuditWebhook {
            webhook_id: text(0)?.parse().ok().ok_or_else(unreadable("webhook_id"))?,
            url: text(2)?,
            events: serde_json::from_str(&text(3)?).ok().ok_or_else(unreadable("events"))?,
            state: state.ok_or_else(unreadable("state"))?,
            created_at: time(8)?,
            updated_at: time(9)?,
            position: row.try_get(11)?,
            behind: u64::try_from(lagging.len()).unwrap_or(u64::MAX),
            delivered_at: optional_time(13)?,
            last_error: row.try_get(14)?,
            dead_letters: count(16)?,
            dead_letters_dropped: count(15)?,
            old_secret_expires_at: optional_time(7)?,
        },
        lagging,
    })
}
