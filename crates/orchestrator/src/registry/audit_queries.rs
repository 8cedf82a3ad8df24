//! Queries on the audit log: pages in descending order, and the rows after a given one.

use api::audit::AuditRow;
use api::fleet::AuditCursor;
use api::{ProductId, Timestamp, UserId};
use serde_json::value::RawValue;
use sqlx::Row as _;
use sqlx::any::AnyRow;
use tokio::sync::{broadcast, watch};

use super::access::with_deadline;
use super::audit_log::Event;
use super::{Registry, RegistryError};

/// The rows of a page, newest first.
#[derive(Clone, Debug)]
pub(crate) struct AuditFilter {
    /// Only rows older than this one.
    pub(crate) before: Option<i64>,
    pub(crate) event: Option<Event>,
    pub(crate) user_id: Option<UserId>,
    pub(crate) limit: i64,
}

/// A query for audit rows, with the columns in the order in which [`parse_row`] expects them.
macro_rules! select_rows {
    ($rest:literal) => {
        concat!(
            "SELECT id, at, product_id, engine_id, user_id, event, duration_ms, detail, hash FROM audit_log ",
            $rest
        )
    };
}

pub(super) const NEWEST: &str = select_rows!("WHERE product_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3");
pub(super) const NEWEST_OF_EVENT: &str =
    select_rows!("WHERE product_id = $1 AND id < $2 AND event = $4 ORDER BY id DESC LIMIT $3");
pub(super) const NEWEST_OF_USER: &str =
    select_rows!("WHERE product_id = $1 AND id < $2 AND user_id = $4 ORDER BY id DESC LIMIT $3");
/// A user has few rows, whereas an event may have most of all: the concatenation keeps the planner from using the
/// event's index.
pub(super) const NEWEST_OF_USER_AND_EVENT: &str = select_rows!(
    "WHERE product_id = $1 AND id < $2 AND user_id = $4 AND event || '' = $5 ORDER BY id DESC LIMIT $3"
);
/// Rows about one user's engines.
pub(super) const ROWS_OF_USER: &str =
    select_rows!("WHERE product_id = $1 AND user_id = $4 AND id > $2 AND id <= $5 ORDER BY id LIMIT $3");
/// Rows about no engine.
pub(super) const ROWS_OF_NO_USER: &str =
    select_rows!("WHERE product_id = $1 AND user_id IS NULL AND id > $2 AND id <= $4 ORDER BY id LIMIT $3");
pub(super) const ROWS_AFTER: &str = select_rows!("WHERE product_id = $1 AND id > $2 ORDER BY id LIMIT $3");
/// A binary search: ids have no gaps, and the times of their rows ascend but for rows that were committed late.
pub(super) const ROW_BEFORE: &str = "WITH RECURSIVE search (low, high) AS ( \
     SELECT CAST(0 AS BIGINT), audit_seq + 1 FROM products WHERE product_id = $1 \
     UNION ALL SELECT CASE WHEN at <= $2 THEN id ELSE low END, CASE WHEN at <= $2 THEN high ELSE id END \
     FROM search JOIN audit_log ON product_id = $1 AND id = (low + high) / 2 WHERE high - low > 1) \
     SELECT low FROM search WHERE high - low <= 1";
pub(super) const LAST_ROW_ID: &str = "SELECT audit_seq FROM products WHERE product_id = $1";

impl Registry {
    /// Returns a page of a product's rows, newest first.
    pub(crate) async fn audit_page(
        &self,
        product_id: ProductId,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditRow>, RegistryError> {
        let statement = match (&filter.user_id, filter.event) {
            (None, None) => NEWEST,
            (None, Some(_)) => NEWEST_OF_EVENT,
            (Some(_), None) => NEWEST_OF_USER,
            (Some(_), Some(_)) => NEWEST_OF_USER_AND_EVENT,
        };
        let mut query = sqlx::query(statement)
            .bind(product_id.to_string())
            .bind(filter.before.unwrap_or(i64::MAX))
            .bind(filter.limit);
        if let Some(user_id) = &filter.user_id {
            query = query.bind(user_id.as_str().to_owned());
        }
        if let Some(event) = filter.event {
            query = query.bind(event.as_str());
        }
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(parse_row).collect()
    }

    /// Returns at most `limit` of a product's rows after the row `after`, oldest first.
    pub(crate) async fn audit_rows_after(
        &self,
        product_id: ProductId,
        after: i64,
        limit: i64,
    ) -> Result<Vec<AuditRow>, RegistryError> {
        let query = sqlx::query(ROWS_AFTER).bind(product_id.to_string()).bind(after).bind(limit);
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(parse_row).collect()
    }

    /// Returns at most `limit` of a product's rows about the engines of `user_id`, or about none, after the row `after` and
    /// up to the row `end`, oldest first.
    pub(crate) async fn audit_rows_of(
        &self,
        product_id: ProductId,
        user_id: Option<&UserId>,
        (after, end): (i64, i64),
        limit: i64,
    ) -> Result<Vec<AuditRow>, RegistryError> {
        let query = match user_id {
            Some(user_id) => sqlx::query(ROWS_OF_USER)
                .bind(product_id.to_string())
                .bind(after)
                .bind(limit)
                .bind(user_id.as_str().to_owned())
                .bind(end),
            None => {
                sqlx::query(ROWS_OF_NO_USER).bind(product_id.to_string()).bind(after).bind(limit).bind(end)
            }
        };
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(parse_row).collect()
    }

    /// Returns at most `limit` of the rows of all products before `before`, or the newest, sorted by time, product and
    /// id, newest first. `event` and `user_id` of the filter apply.
    pub(crate) async fn fleet_audit_page(
        &self,
        product_id: Option<ProductId>,
        before: Option<AuditCursor>,
        filter: &AuditFilter,
    ) -> Result<Vec<AuditRow>, RegistryError> {
        let product_id = product_id.map(|product_id| product_id.to_string());
        let user_id = filter.user_id.as_ref().map(|user_id| user_id.as_str().to_owned());
        let event = filter.event.map(|event| event.as_str().to_owned());
        let (mut conditions, mut texts) = (String::new(), Vec::new());
        for (column, text) in [("product_id", product_id), ("user_id", user_id), ("event", event)] {
            if let Some(text) = text {
                texts.push(text);
                // After the three of the position and the limit.
                conditions.extend([" AND ", column, " = $", &(texts.len() + 4).to_string()]);
            }
        }
        let sql = format!(
            "{} WHERE (at, product_id, id) < ($1, $2, $3){conditions} \
             ORDER BY at DESC, product_id DESC, id DESC LIMIT $4",
            select_rows!("")
        );
        let (at, product, id) = match before {
            Some(AuditCursor { at, product_id, id }) => (at.unix_ms(), product_id.to_string(), id),
            None => (i64::MAX, String::new(), 0),
        };
        // Only the names of columns are part of the text.
        let mut query =
            sqlx::query(sqlx::AssertSqlSafe(sql)).bind(at).bind(product).bind(id).bind(filter.limit);
        for text in texts {
            query = query.bind(text);
        }
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(parse_row).collect()
    }

    /// Returns the id of the last row of every product.
    pub(crate) async fn audit_ends(&self) -> Result<Vec<(ProductId, i64)>, RegistryError> {
        let query = sqlx::query("SELECT product_id, audit_seq FROM products");
        product_positions(&with_deadline(query.fetch_all(&self.reads)).await?)
    }

    /// Returns the id of a row of the product that was written at `at` or earlier, while the next one was not; 0 if
    /// there is none. It takes a few steps however long the log is.
    pub(crate) async fn audit_row_before(
        &self,
        product_id: ProductId,
        at: Timestamp,
    ) -> Result<i64, RegistryError> {
        let query = sqlx::query(ROW_BEFORE).bind(product_id.to_string()).bind(at.unix_ms());
        let row = with_deadline(query.fetch_optional(&self.reads)).await?;
        row.map_or(Ok(0), |row| Ok(row.try_get(0)?))
    }

    /// Returns the id of a product's last row.
    pub(crate) async fn last_audit_id(&self, product_id: ProductId) -> Result<i64, RegistryError> {
        let row =
            with_deadline(sqlx::query(LAST_ROW_ID).bind(product_id.to_string()).fetch_optional(&self.reads))
                .await?;
        Ok(row.ok_or(RegistryError::ProductGone)?.try_get(0)?)
    }

    /// Wakes those who wait for a product's rows, although no commit was confirmed.
    pub(crate) fn notify_followers(&self, product_id: ProductId) {
        self.notifier.notify(product_id);
    }

    /// Subscribes to the commits of all products' rows from now on. Each names its product.
    pub(crate) fn subscribe_to_all(&self) -> broadcast::Receiver<ProductId> {
        self.notifier.subscribe_to_all()
    }

    /// Subscribes to the commits of a product's rows from now on.
    pub(crate) fn subscribe(&self, product_id: ProductId) -> watch::Receiver<()> {
        self.notifier.subscribe(product_id)
    }
}

/// Parses rows of a product and the id of an audit row. Products that this version cannot read are left out.
fn product_positions(rows: &[AnyRow]) -> Result<Vec<(ProductId, i64)>, RegistryError> {
    let mut positions = Vec::with_capacity(rows.len());
    for row in rows {
        if let Ok(product_id) = row.try_get::<String, _>(0)?.parse() {
            positions.push((product_id, row.try_get(1)?));
        }
    }
    Ok(positions)
}

pub(super) fn parse_row(row: &AnyRow) -> Result<AuditRow, RegistryError> {
    let text = |at: usize| row.try_get::<String, _>(at);
    let optional = |at: usize| row.try_get::<Option<String>, _>(at);
    let unreadable = |column| move || RegistryError::Unreadable { column };
    let engine_id = optional(3)?.map(|id| id.parse().ok().ok_or_else(unreadable("engine_id")));
    let user_id = optional(4)?.map(|id| UserId::new(id).ok().ok_or_else(unreadable("user_id")));
    Ok(AuditRow {
        id: row.try_get(0)?,
        at: Timestamp::from_unix_ms(row.try_get(1)?),
        product_id: text(2)?.parse().ok().ok_or_else(unreadable("product_id"))?,
        engine_id: engine_id.transpose()?,
        user_id: user_id.transpose()?,
        event: text(5)?.into(),
        duration_ms: row.try_get(6)?,
        detail: RawValue::from_string(text(7)?).ok().ok_or_else(unreadable("detail"))?,
        hash: text(8)?,
    })
}
