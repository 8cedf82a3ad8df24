//! The outbox of the webhook: what is to be reported to the product. A row is written by the commit in which it
//! happens, so a kill at any instant loses no report and invents none.

use std::collections::BTreeSet;

use api::webhooks::{DeliveryState, WebhookDelivery, WebhookEvent};
use api::{HitlId, TaskId, Timestamp, TurnId};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::queries::{optional_timestamp, parse_column, task_id, timestamp};
use super::{Brain, StoreError, TaskRow, WriteTx};

/// The most deliveries that are pending.
const MAX_PENDING: u32 = 1_000;
/// How long a delivery is tried, in milliseconds.
pub const DELIVERY_LIFETIME_MS: i64 = 3 * 24 * 60 * 60 * 1_000;
/// Longer delays than this are not set, so they come of a clock that was ahead.
const MAX_DELAY_MS: i64 = 27 * 60 * 60 * 1_000;
/// How many other deliveries are kept.
const KEPT_DELIVERIES: u32 = 200;

/// A delivery that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDelivery {
    /// The id of the event.
    pub id: String,
    /// What happened.
    pub event: WebhookEvent,
    /// The row of the task.
    pub task: TaskRow,
    /// The task.
    pub task_id: TaskId,
    /// The turn.
    pub turn_id: TurnId,
    /// With [`WebhookEvent::TurnWaiting`]: the request to the person.
    pub request_id: Option<HitlId>,
    /// When it happened.
    pub created_at: Timestamp,
    /// When it is given up if it is not delivered.
    pub give_up_at: Timestamp,
    /// How often it has failed since it was queued, or was to be sent again.
    pub failures: u32,
}

/// What came of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The receiver has accepted it.
    Delivered,
    /// It is sent again later.
    Retry {
        /// When.
        at: Timestamp,
        /// If the fault is the receiver's, when others are sent, at the earliest.
        others_at: Option<Timestamp>,
        /// When it is given up.
        give_up_at: Timestamp,
        /// Why, for a person.
        error: String,
    },
    /// It is given up.
    Failed {
        /// Why, for a person.
        error: String,
    },
    /// There is nothing to report any more, so it was not sent.
    Obsolete,
}

impl WriteTx<'_> {
    /// Sets which events are reported from now on.
    pub fn set_webhook_events(&self, events: &BTreeSet<WebhookEvent>) -> Result<(), StoreError> {
        self.execute("DELETE FROM webhook_events", [])?;
        self.execute("DELETE FROM webhook_pause", [])?;
        self.wakes_webhook.set(true);
        events.iter().try_for_each(|event| {
            self.execute("INSERT INTO webhook_events (event) VALUES (?1)", [event.as_str()])
        })
    }

    /// Queues the report of what happened to a turn, if that is reported. Its id is made of what happened, so it is
    /// queued once. If too many are pending, the oldest are given up.
    pub(super) fn report_event(
        &self,
        event: WebhookEvent,
        TaskRow(task): TaskRow,
        turn_id: &str,
        request_id: Option<HitlId>,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let request_id = request_id.map(|request_id| request_id.to_string());
        let id = request_id.clone().unwrap_or_else(|| format!("{turn_id}_ended"));
        let sql = "INSERT INTO webhook_deliveries
                       (id, event, task, turn_id, request_id, state, created_at, give_up_at, next_attempt_at)
                   SELECT ?1, event, ?3, ?4, ?5, 'pending', ?6, ?6 + ?7,
                          COALESCE((SELECT until FROM webhook_pause), 0)
                   FROM webhook_events WHERE event = ?2
                   ON CONFLICT DO NOTHING";
        let values =
            params![id, event.as_str(), task, turn_id, request_id, at.unix_ms(), DELIVERY_LIFETIME_MS];
        if self.transaction.prepare_cached(sql)?.execute(values)? == 0 {
            return Ok(());
        }
        self.wakes_webhook.set(true);
        self.execute(
            "UPDATE webhook_deliveries SET state = 'failed', next_attempt_at = NULL, error = ?2
             WHERE state = 'pending' AND delivery <= (
                 SELECT delivery FROM webhook_deliveries WHERE state = 'pending'
                 ORDER BY delivery DESC LIMIT 1 OFFSET ?1)",
            params![MAX_PENDING, format!("more than {MAX_PENDING} were pending")],
        )?;
        self.prune_deliveries()
    }

    /// Records what came of a delivery, unless it was changed since it was read.
    pub fn record_attempt(
        &self,
        delivery: &DueDelivery,
        outcome: &AttemptOutcome,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let (state, next, error) = match outcome {
            AttemptOutcome::Delivered => (DeliveryState::Delivered, None, None),
            AttemptOutcome::Retry { at, error, .. } => {
                (DeliveryState::Pending, Some(at.unix_ms()), Some(error))
            }
            AttemptOutcome::Failed { error } => (DeliveryState::Failed, None, Some(error)),
            AttemptOutcome::Obsolete => (DeliveryState::Obsolete, None, None),
        };
        let (is_sent, has_failed) = (state != DeliveryState::Obsolete, error.is_some());
        let give_up_at = match outcome {
            AttemptOutcome::Retry { give_up_at, .. } => *give_up_at,
            _ => delivery.give_up_at,
        };
        // Whoever has it sent again meanwhile has changed when it is given up.
        self.execute(
            "UPDATE webhook_deliveries SET
                 state = ?4, next_attempt_at = ?5, error = ?6, attempts = attempts + ?7, failures = failures + ?8,
                 last_attempt_at = IIF(?7, ?9, last_attempt_at), give_up_at = ?10
             WHERE id = ?1 AND state = 'pending' AND failures = ?2 AND give_up_at = ?3",
            params![
                delivery.id,
                delivery.failures,
                delivery.give_up_at.unix_ms(),
                state.as_str(),
                next,
                error,
                is_sent,
                has_failed,
                at.unix_ms(),
                give_up_at.unix_ms(),
            ],
        )?;
        match outcome {
            AttemptOutcome::Retry { others_at: Some(others_at), .. } => {
                self.pause_others(&delivery.id, *others_at)?;
            }
            AttemptOutcome::Delivered => self.execute("DELETE FROM webhook_pause", [])?,
            _ => {}
        }
        self.prune_deliveries()
    }

    /// Leaves the receiver alone, but for one delivery.
    fn pause_others(&self, id: &str, until: Timestamp) -> Result<(), StoreError> {
        self.execute("DELETE FROM webhook_pause", [])?;
        self.execute("INSERT INTO webhook_pause (until) VALUES (?1)", [until.unix_ms()])?;
        self.execute(
            "UPDATE webhook_deliveries SET next_attempt_at = ?2
             WHERE state = 'pending' AND id <> ?1 AND next_attempt_at < ?2",
            params![id, until.unix_ms()],
        )
    }

    /// Sends a delivery again, whatever became of it. Returns whether there is one with this id.
    pub fn retry_delivery(&self, id: &str, at: Timestamp) -> Result<bool, StoreError> {
        let sql = "UPDATE webhook_deliveries SET state = 'pending', next_attempt_at = 0, failures = 0, give_up_at = ?2
                   WHERE id = ?1";
        let give_up_at = at.unix_ms().saturating_add(DELIVERY_LIFETIME_MS);
        let is_known = self.transaction.prepare_cached(sql)?.execute(params![id, give_up_at])? > 0;
        self.wakes_webhook.set(is_known || self.wakes_webhook.get());
        Ok(is_known)
    }

    fn prune_deliveries(&self) -> Result<(), StoreError> {
        self.execute(
            "DELETE FROM webhook_deliveries WHERE state <> 'pending' AND delivery <= (
                 SELECT delivery FROM webhook_deliveries WHERE state <> 'pending'
                 ORDER BY delivery DESC LIMIT 1 OFFSET ?1)",
            [KEPT_DELIVERIES],
        )
    }
}

impl Brain {
    /// Reports that the receiver may be another one. Commits that queue a delivery report that by themselves.
    pub fn notify_webhook(&self) {
        self.shared.webhook_changed.notify_one();
    }

    /// Waits until a delivery was queued, or the receiver changed, since the last call.
    pub async fn webhook_changed(&self) {
        self.shared.webhook_changed.notified().await;
    }

    /// When a delivery is sent next; 0 for one that was not tried yet. What is pending waits while nothing is
    /// reported.
    pub fn next_delivery_at(&self, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        self.read(|reader| {
            let mut query = reader.prepare_cached(
                "SELECT MIN(IIF(next_attempt_at > ?1 + ?2, 0, next_attempt_at)) FROM webhook_deliveries
                 WHERE state = 'pending' AND event IN (SELECT event FROM webhook_events)",
            )?;
            query.query_row([now.unix_ms(), MAX_DELAY_MS], |row| optional_timestamp(row, 0))
        })
    }

    /// The delivery that is to be sent next, if its time has come. Blocks.
    pub fn due_delivery(&self, now: Timestamp) -> Result<Option<DueDelivery>, StoreError> {
        self.read_long(|reader| {
            let mut query = reader.prepare_cached(
                "SELECT id, event, task, task_id, turn_id, request_id, webhook_deliveries.created_at, give_up_at,
                        failures
                 FROM webhook_deliveries JOIN tasks USING (task)
                 WHERE state = 'pending' AND event IN (SELECT event FROM webhook_events)
                 AND (next_attempt_at <= ?1 OR next_attempt_at > ?1 + ?2)
                 ORDER BY next_attempt_at, delivery LIMIT 1",
            )?;
            query.query_row([now.unix_ms(), MAX_DELAY_MS], read_due).optional()
        })
    }

    /// The deliveries in this state, or in any, the newest first. Blocks.
    pub fn deliveries(&self, state: Option<DeliveryState>) -> Result<Vec<WebhookDelivery>, StoreError> {
        self.read_long(|reader| {
            let mut query = reader.prepare_cached(
                "SELECT id, event, state, task_id, turn_id, webhook_deliveries.created_at, attempts,
                        MAX(next_attempt_at, webhook_deliveries.created_at), last_attempt_at, error
                 FROM webhook_deliveries JOIN tasks USING (task)
                 WHERE state = COALESCE(?1, state) ORDER BY delivery DESC",
            )?;
            query.query_map([state.map(DeliveryState::as_str)], read_delivery)?.collect()
        })
    }

    /// How many deliveries are pending, and how many of those that are kept have failed.
    pub fn delivery_counts(&self) -> Result<(u64, u64), StoreError> {
        self.read(|reader| {
            Ok((count(reader, DeliveryState::Pending)?, count(reader, DeliveryState::Failed)?))
        })
    }
}

fn count(reader: &Connection, state: DeliveryState) -> Result<u64, Error> {
    let mut query = reader.prepare_cached("SELECT COUNT(*) FROM webhook_deliveries WHERE state = ?1")?;
    let count: i64 = query.query_row([state.as_str()], |row| row.get(0))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

fn read_due(row: &Row<'_>) -> Result<DueDelivery, Error> {
    let request_id: Option<String> = row.get(5)?;
    Ok(DueDelivery {
        id: row.get(0)?,
        event: event(row, 1)?,
        task: TaskRow(row.get(2)?),
        task_id: task_id(row, 3)?,
        turn_id: parse_column(row, 4)?,
        request_id: request_id.and_then(|id| id.parse().ok()),
        created_at: timestamp(row, 6)?,
        give_up_at: timestamp(row, 7)?,
        failures: row.get(8)?,
    })
}

fn read_delivery(row: &Row<'_>) -> Result<WebhookDelivery, Error> {
    let name: String = row.get(2)?;
    let state = DeliveryState::ALL.into_iter().find(|state| state.as_str() == name);
    Ok(WebhookDelivery {
        id: row.get(0)?,
        event: event(row, 1)?,
        state: state.ok_or_else(|| unknown(2, &name))?,
        task_id: task_id(row, 3)?,
        turn_id: parse_column(row, 4)?,
        created_at: timestamp(row, 5)?,
        attempts: row.get(6)?,
        next_attempt_at: optional_timestamp(row, 7)?,
        last_attempt_at: optional_timestamp(row, 8)?,
        error: row.get(9)?,
    })
}

fn event(row: &Row<'_>, column: usize) -> Result<WebhookEvent, Error> {
    let name: String = row.get(column)?;
    WebhookEvent::parse(&name).ok_or_else(|| unknown(column, &name))
}

/// The error for a name that this version does not know.
fn unknown(column: usize, name: &str) -> Error {
    Error::FromSqlConversionFailure(column, Type::Text, format!("unknown name `{name}`").into())
}

#[cfg(test)]
#[path = "../tests/unit/webhooks.rs"]
mod tests;
