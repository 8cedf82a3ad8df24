//! What the supervisor knows of its engines, kept so that the next orchestrator knows it too.
//!
//! These columns tell nothing about an engine's state: they are written in batches of their own, without the
//! audit log, and a moment later than they came to be.

use std::collections::HashMap;

use api::orchestrator::Policy;
use api::{EngineId, ProductId, Timestamp};
use serde_json::{Value, json};
use sqlx::Row as _;

use super::access::with_deadline;
use super::row::{EngineRow, select_engines};
use super::{Registry, RegistryError, RegistryLock};

/// What was learnt about a running engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineActivity {
    /// When its user was last admitted.
    pub(crate) admitted_at: Option<Timestamp>,
    /// When it last passed a health check.
    pub(crate) last_health_at: Option<Timestamp>,
    /// Since when it has passed them all.
    pub(crate) healthy_since: Option<Timestamp>,
    /// Consecutive checks that it failed.
    pub(crate) failed_checks: u32,
    /// Restarts attempted since it was last well for long.
    pub(crate) restarts: i64,
}

/// An engine that is supervised, and what was known of it.
#[derive(Clone, Debug)]
pub(crate) struct SupervisedEngine {
    pub(crate) row: EngineRow,
    pub(crate) activity: EngineActivity,
}

/// In two halves, each with an index of its own: of all engines most are at rest.
pub(super) const SELECT_SUPERVISED: &str = concat!(
    select_engines!("WHERE status = 'running' UNION ALL "),
    select_engines!("WHERE restart_at IS NOT NULL AND status <> 'running'")
);

/// What was stamped of them.
pub(super) const SELECT_ACTIVITY: &str = "SELECT engine_id, admitted_at, well_since, failed_checks FROM engines WHERE status = 'running' \
     UNION ALL \
     SELECT engine_id, admitted_at, well_since, failed_checks FROM engines \
     WHERE restart_at IS NOT NULL AND status <> 'running'";

/// Writes stamps, given as an array of objects in JSON.
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

/// Stamps in one transaction: few enough not to keep other writers waiting.
const ACTIVITY_ROWS_PER_TRANSACTION: usize = 500;

impl Registry {
    /// All engines that run or are to be restarted. Rows that cannot be read are set aside.
    pub(crate) async fn supervised(&self) -> Result<Vec<SupervisedEngine>, RegistryError> {
        // One transaction, so that the two lists are of the same moment.
        let mut transaction = with_deadline(self.reads.begin()).await?;
        let rows = with_deadline(sqlx::query(SELECT_SUPERVISED).fetch_all(&mut *transaction)).await?;
        let stamps = with_deadline(sqlx::query(SELECT_ACTIVITY).fetch_all(&mut *transaction)).await?;
        with_deadline(transaction.commit()).await?;
        let mut known = HashMap::new();
        for stamp in &stamps {
            let moment =
                |at: usize| stamp.try_get::<Option<i64>, _>(at).map(|ms| ms.map(Timestamp::from_unix_ms));
            let failed: i64 = stamp.try_get(3)?;
            let failed_checks = u32::try_from(failed).unwrap_or_default();
            let stamp_read = EngineActivity {
                admitted_at: moment(1)?,
                healthy_since: moment(2)?,
                failed_checks,
                ..EngineActivity::default()
            };
            known.insert(stamp.try_get::<String, _>(0)?, stamp_read);
        }
        let supervised = self.unreadable_rows.read_engines(&rows)?.into_iter().map(|row| {
            let mut stamp = known.get(&row.engine_id.to_string()).copied().unwrap_or_default();
            (stamp.last_health_at, stamp.restarts) = (row.last_health_at, row.restarts);
            SupervisedEngine { row, activity: stamp }
        });
        Ok(supervised.collect())
    }

    /// Writes what was learnt about running engines.
    pub(crate) async fn save_activity(
        &self,
        stamps: &[(EngineId, EngineActivity)],
    ) -> Result<(), RegistryError> {
        for batch in stamps.chunks(ACTIVITY_ROWS_PER_TRANSACTION) {
            self.save_activity_batch(batch).await?;
        }
        Ok(())
    }

    /// In one statement: on a server each costs a round trip, and others wait meanwhile who lease ports.
    async fn save_activity_batch(&self, stamps: &[(EngineId, EngineActivity)]) -> Result<(), RegistryError> {
        let ms = |moment: Option<Timestamp>| moment.map(Timestamp::unix_ms);
        let stamps = stamps.iter().map(|(engine_id, stamp)| {
            json!({
                "engine_id": engine_id, "admitted_at": ms(stamp.admitted_at),
                "last_health_at": ms(stamp.last_health_at), "well_since": ms(stamp.healthy_since),
                "failed_checks": stamp.failed_checks, "restarts": stamp.restarts,
            })
        });
        let stamps = stamps.collect::<Value>().to_string();
        let stamp = match &self.lock {
            RegistryLock::File { .. } => UPDATE_ACTIVITY_SQLITE,
            RegistryLock::Session(_) => UPDATE_ACTIVITY_POSTGRES,
        };
        let mut transaction = self.begin().await?;
        self.lock_multi_engine(&mut transaction).await?;
        with_deadline(sqlx::query(stamp).bind(stamps).execute(&mut *transaction)).await?;
        with_deadline(transaction.commit()).await?;
        Ok(())
    }

    /// Every product's policy as far as it can be read, with the last number of its audit log.
    pub(crate) async fn policies(&self) -> Result<Vec<(ProductId, i64, Policy)>, RegistryError> {
        let query = sqlx::query("SELECT product_id, policy, audit_seq FROM products");
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        let read = |row: &sqlx::any::AnyRow| {
            let (product_id, policy): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let Ok(id) = product_id.parse() else {
                self.unreadable_rows.log_once("product", &product_id, "product_id");
                return Ok(None);
            };
            Ok(Some((id, row.try_get(2)?, self.stored_policy(&product_id, &policy))))
        };
        rows.iter().filter_map(|row| read(row).transpose()).collect()
    }
}
