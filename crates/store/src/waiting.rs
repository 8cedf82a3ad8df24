//! What waits for a person, without its content, for the inbox of the product.

use api::inbox::WaitingQuestion;
use api::{HitlId, Timestamp};
use rusqlite::{Connection, Error};

use super::queries::{parse_column, task_id, timestamp};
use super::{Brain, StoreError};

impl Brain {
    /// The number of requests that wait for an answer of the user, and the latest one: together they change with the
    /// set, because ids grow.
    pub fn pending_set(&self) -> Result<(u64, Option<HitlId>), StoreError> {
        self.read(|reader| {
            reader.query_row("SELECT COUNT(*), MAX(request_id) FROM pending", [], |row| {
                let latest: Option<String> = row.get(1)?;
                let count = u64::try_from(row.get::<_, i64>(0)?).unwrap_or(0);
                Ok((count, latest.and_then(|latest| latest.parse().ok())))
            })
        })
    }

    /// The requests that wait for an answer of the user, oldest first: at most `limit`. They expire after `ttl_ms`.
    /// Blocks.
    pub fn waiting(&self, ttl_ms: i64, limit: usize) -> Result<Vec<WaitingQuestion>, StoreError> {
        self.read_long(|reader| waiting(reader, ttl_ms, limit))
    }
}

fn waiting(reader: &Connection, ttl_ms: i64, limit: usize) -> Result<Vec<WaitingQuestion>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT pending.request_id, task_id, turn_id, pending.kind, pending.created_at, title,
             (SELECT json_extract(data, '$.tool') FROM approvals
              WHERE approvals.request_id = pending.request_id)
         FROM pending JOIN tasks USING (task) JOIN turns USING (turn)
         LEFT JOIN conversations ON conversations.task = pending.task
         ORDER BY pending.created_at, pending.request_id LIMIT ?1",
    )?;
    let rows = query.query_map([i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
        let since = timestamp(row, 4)?;
        Ok(WaitingQuestion {
            request_id: parse_column(row, 0)?,
            task_id: task_id(row, 1)?,
            turn_id: parse_column(row, 2)?,
            kind: parse_column(row, 3)?,
            tool: row.get(6)?,
            title: row.get(5)?,
            since,
            expires_at: Timestamp::from_unix_ms(since.unix_ms().saturating_add(ttl_ms)),
        })
    })?;
    rows.collect()
}
