//! The questions of engines that wait for a person, as the engines last reported them.

use std::collections::BTreeMap;

use api::inbox::{InboxQuestion, WaitingQuestion};
use api::{HitlId, ProductId, Timestamp, UserId};
use serde_json::json;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::access::with_deadline;
use super::audit_log::{AuditEntry, Event, ProductTx};
use super::row::EngineRow;
use super::{Registry, RegistryError};

/// What differs between the stored questions of an engine and those that it reports.
struct Difference<'a> {
    asked: Vec<&'a WaitingQuestion>,
    /// Known before, with another title by now.
    changed: Vec<&'a WaitingQuestion>,
    settled: Vec<WaitingQuestion>,
}

impl<'a> Difference<'a> {
    fn between(mut known: BTreeMap<HitlId, WaitingQuestion>, reported: &'a [WaitingQuestion]) -> Self {
        let mut difference = Self { asked: Vec::new(), changed: Vec::new(), settled: Vec::new() };
        for question in reported {
            match known.remove(&question.request_id) {
                None => difference.asked.push(question),
                Some(known) if known != *question => difference.changed.push(question),
                Some(_) => {}
            }
        }
        difference.settled = known.into_values().collect();
        difference
    }

    const fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.changed.is_empty() && self.settled.is_empty()
    }
}

impl Registry {
    /// Replaces the stored questions of an engine by those that it reports, with an audit row for each that was asked
    /// or settled. Callers make one replacement of an engine at a time.
    pub(crate) async fn replace_questions(
        &self,
        row: &EngineRow,
        reported: &[WaitingQuestion],
        now: Timestamp,
    ) -> Result<(), RegistryError> {
        let query =
            sqlx::query("SELECT question FROM inbox WHERE engine_id = $1").bind(row.engine_id.to_string());
        let known = with_deadline(query.fetch_all(&self.reads)).await?;
        let read = |row| read_question(row, 0).map(|question| (question.request_id, question));
        let known = known.iter().map(read);
        let difference = Difference::between(known.collect::<Result<_, RegistryError>>()?, reported);
        if difference.is_empty() {
            return Ok(());
        }
        let rows = difference.asked.len() + difference.settled.len();
        let rows = i64::try_from(rows).unwrap_or(i64::MAX);
        let mut tx = self.begin_product_tx(row.owner.product_id, rows).await?;
        for question in difference.asked {
            upsert(&mut tx, row, question).await?;
            let detail = json!({
                "request_id": question.request_id, "task_id": question.task_id, "turn_id": question.turn_id,
                "kind": question.kind, "tool": question.tool,
            });
            tx.append(&entry(row, Event::QuestionAsked, now, detail)).await?;
        }
        for question in difference.changed {
            upsert(&mut tx, row, question).await?;
        }
        for question in difference.settled {
            let delete = sqlx::query("DELETE FROM inbox WHERE engine_id = $1 AND request_id = $2")
                .bind(row.engine_id.to_string())
                .bind(question.request_id.to_string());
            with_deadline(delete.execute(tx.connection())).await?;
            let detail = json!({"request_id": question.request_id, "task_id": question.task_id});
            tx.append(&entry(row, Event::QuestionSettled, now, detail)).await?;
        }
        tx.commit().await
    }

    /// Returns a page of a product's questions that have not expired at `now`, oldest first.
    pub(crate) async fn questions(
        &self,
        product_id: ProductId,
        user_id: Option<&UserId>,
        after: Option<HitlId>,
        now: Timestamp,
        limit: i64,
    ) -> Result<Vec<InboxQuestion>, RegistryError> {
        let query = sqlx::query(
            "SELECT question, engine_id, user_id FROM inbox \
             WHERE product_id = $1 AND request_id > $2 AND expires_at > $3 AND ($4 = '' OR user_id = $4) \
             ORDER BY request_id LIMIT $5",
        )
        .bind(product_id.to_string())
        .bind(after.map(|after| after.to_string()).unwrap_or_default())
        .bind(now.unix_ms())
        .bind(user_id.map(|user_id| user_id.as_str().to_owned()).unwrap_or_default())
        .bind(limit);
        let read = |row: &AnyRow| {
            let unreadable = |column| move || RegistryError::Unreadable { column };
            Ok(InboxQuestion {
                engine_id: row.try_get::<String, _>(1)?.parse().ok().ok_or_else(unreadable("engine_id"))?,
                user_id: UserId::new(row.try_get::<String, _>(2)?).ok().ok_or_else(unreadable("user_id"))?,
                question: read_question(row, 0)?,
            })
        };
        with_deadline(query.fetch_all(&self.reads)).await?.iter().map(read).collect()
    }
}

async fn upsert(
    tx: &mut ProductTx,
    row: &EngineRow,
    question: &WaitingQuestion,
) -> Result<(), RegistryError> {
    let text =
        serde_json::to_string(question).map_err(|_| RegistryError::Unreadable { column: "question" })?;
    let upsert = sqlx::query(
        "INSERT INTO inbox (engine_id, request_id, product_id, user_id, expires_at, question) \
         VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (engine_id, request_id) DO UPDATE SET question = excluded.question",
    )
    .bind(row.engine_id.to_string())
    .bind(question.request_id.to_string())
    .bind(row.owner.product_id.to_string())
    .bind(row.owner.user_id.as_str().to_owned())
    .bind(question.expires_at.unix_ms())
    .bind(text);
    with_deadline(upsert.execute(tx.connection())).await?;
    Ok(())
}

fn read_question(row: &AnyRow, at: usize) -> Result<WaitingQuestion, RegistryError> {
    let text = row.try_get::<String, _>(at)?;
    serde_json::from_str(&text).map_err(|_| RegistryError::Unreadable { column: "question" })
}

fn entry(row: &EngineRow, event: Event, at: Timestamp, detail: serde_json::Value) -> AuditEntry {
    let engine = Some((row.engine_id, row.owner.user_id.clone()));
    AuditEntry { at, event, engine, duration_ms: None, detail, call: None }
}
