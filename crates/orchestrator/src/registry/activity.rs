//! The supervisor's observations of its engines, stored so that the next orchestrator continues from them.
//!
//! These columns are no part of an engine's state: they are written in batches of their own, without the audit
//! log, and with a delay.

use std::collections::HashMap;

use api::orchestrator::Policy;
use api::product_state::ProductState;
use api::{EngineId, ProductId, Timestamp};
use serde_json::{Value, json};
use sqlx::Row as _;

use super::access::with_deadline;
use super::product_states::stored_state;
use super::row::{EngineRow, select_engines};
use super::{Registry, RegistryError, RegistryLock};

/// The observations of a running engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineActivity {
    /// When its user was last admitted.
    pub(crate) admitted_at: Option<Timestamp>,
    /// When it last passed a health check.
    pub(crate) last_health_at: Option<Timestamp>,
    /// The time since which it has passed them all.
    pub(crate) healthy_since: Option<Timestamp>,
    /// The number of consecutive checks that it failed.
    pub(crate) failed_checks: u32,
    /// The number of restarts attempted since it was last healthy for long.
    pub(crate) restarts: i64,
}

/// A supervised engine with its stored activity.
#[derive(Clone, Debug)]
pub(crate) struct SupervisedEngine {
    pub(crate) row: EngineRow,
    pub(crate) activity: EngineActivity,
}

/// Selects the engines that run or are to be restarted. There are two halves, each with an index of its own: most
/// engines do not run.
pub(super) const SELECT_SUPERVISED: &str = concat!(
    select_engines!("WHERE status = 'running' UNION ALL "),
    select_engines!("WHERE restart_at IS NOT NULL AND status <> 'running'")
);

/// Selects the stored activity of the same engines.
pub(super) const SELECT_ACTIVITY: &str = "SELECT engine_id, admitted_at, well_since, failed_checks FROM engines WHERE status = 'running' \
     UNION ALL \
     SELECT engine_id, admitted_at, well_since, failed_checks FROM engines \
     WHERE restart_at IS NOT NULL AND status <> 'running'";

/// Writes activities, given as a JSON array of objects.
const UPDATE_ACTIVITY_SQLITE: &str = "UPDATE engines SET admitted_at = stamp.value ->> 'admitted_at', \
     last_health_at = stamp.value ->> 'last_health_at', well_since = stamp.value ->> 'well_since', \
     failed_checks = stamp.value ->> 'failed_checks', restarts = stamp.value ->> 'restarts' \
     FROM json_each($1) AS stamp \
     WHERE engine_id = stamp.value ->> 'engine_id' AND status = 'running'";
const UPDATE_ACTIVITY_POSTGRES: &str = "UPDATE engines SET admitted_at = stamp.admitted_at, \
     last_health_at = stamp.last_health_at, well_since = stamp.well_since, \
     failed_checks = stamp.failed_checks, restarts = stamp.restarts \
     FROM json_to_recordset(CAST($1 AS json)) AS stamp (engine_id text, admitted_at bigint, \
     last_health_at bigint, well_since bigint, failed_checks bigint, restarts bigint) \
     WHERE engines.engine_id = stamp.engine_id AND status = 'running'";

/// The number of engines written in one transaction: few enough not to keep other writers waiting.
const ACTIVITY_ROWS_PER_TRANSACTION: usize = 500;

impl Registry {
    /// Returns all engines that run or are to be restarted. Unreadable rows are skipped.
    pub(crate) async fn supervised(&self) -> Result<Vec<SupervisedEngine>, RegistryError> {
        // One transaction, so that both lists come from the same snapshot.
        let mut transaction = with_deadline(self.reads.begin()).await?;
        let rows = with_deadline(sqlx::query(SELECT_SUPERVISED).fetch_all(&mut *transaction)).await?;
        let activities = with_deadline(sqlx::query(SELECT_ACTIVITY).fetch_all(&mut *transaction)).await?;
        with_deadline(transaction.commit()).await?;
        let mut by_engine = HashMap::new();
        for row in &activities {
            let timestamp =
                |at: usize| row.try_get::<Option<i64>, _>(at).map(|ms| ms.map(Timestamp::from_unix_ms));
            let failed: i64 = row.try_get(3)?;
            let failed_checks = u32::try_from(failed).unwrap_or_default();
            let activity = EngineActivity {
                admitted_at: timestamp(1)?,
                healthy_since: timestamp(2)?,
                failed_checks,
                ..EngineActivity::default()
            };
            by_engine.insert(row.try_get::<String, _>(0)?, activity);
        }
        let supervised = self.unreadable_rows.read_engines(&rows)?.into_iter().map(|row| {
            let mut activity = by_engine.get(&row.engine_id.to_string()).copied().unwrap_or_default();
            (activity.last_health_at, activity.restarts) = (row.last_health_at, row.restarts);
            SupervisedEngine { row, activity }
        });
        Ok(supervised.collect())
    }

    /// Writes the activity of running engines.
    pub(crate) async fn save_activity(
        &self,
        activities: &[(EngineId, EngineActivity)],
    ) -> Result<(), RegistryError> {
        for batch in activities.chunks(ACTIVITY_ROWS_PER_TRANSACTION) {
            self.save_activity_batch(batch).await?;
        }
        Ok(())
    }

    /// Writes a batch in one statement: on a server each statement costs a round trip, during which port leases
    /// wait.
    async fn save_activity_batch(
        &self,
        activities: &[(EngineId, EngineActivity)],
    ) -> Result<(), RegistryError> {
        let ms = |timestamp: Option<Timestamp>| timestamp.map(Timestamp::unix_ms);
        let activities = activities.iter().map(|(engine_id, activity)| {
            json!({
                "engine_id": engine_id, "admitted_at": ms(activity.admitted_at),
                "last_health_at": ms(activity.last_health_at), "well_since": ms(activity.healthy_since),
                "failed_checks": activity.failed_checks, "restarts": activity.restarts,
            })
        });
        let activities = activities.collect::<Value>().to_string();
        let update = match &self.lock {
            RegistryLock::File { .. } => UPDATE_ACTIVITY_SQLITE,
            RegistryLock::Session(_) => UPDATE_ACTIVITY_POSTGRES,
        };
        let mut transaction = self.begin().await?;
        self.lock_multi_engine(&mut transaction).await?;
        with_deadline(sqlx::query(update).bind(activities).execute(&mut *transaction)).await?;
        with_deadline(transaction.commit()).await?;
        Ok(())
    }

    /// Returns the policy and the state of every product that is not deleted, as far as they can be read, with the id of
    /// the product's last audit row.
    pub(crate) async fn policies(
        &self,
    ) -> Result<Vec<(ProductId, i64, Policy, ProductState)>, RegistryError> {
        let query = sqlx::query(
            "SELECT product_id, policy, audit_seq, state FROM products WHERE state IS NULL OR state <> 'deleted'",
        );
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        let read = |row: &sqlx::any::AnyRow| {
            let (product_id, policy): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let Ok(id) = product_id.parse() else {
                self.unreadable_rows.log_once("product", &product_id, "product_id");
                return Ok(None);
            };
            // Nobody uses a product in a state of a later version.
            let state = stored_state(row.try_get(3)?).unwrap_or(ProductState::Disabled);
            Ok(Some((id, row.try_get(2)?, self.stored_policy(&product_id, &policy), state)))
        };
        rows.iter().filter_map(|row| read(row).transpose()).collect()
    }
}
