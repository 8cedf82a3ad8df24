//! The admits of products by day. Each run of an orchestrator stores what it has counted in all, so a row that is stored
//! twice changes nothing; what earlier runs have counted is summed up when another begins.

use api::ProductId;
use api::usage::Day;
use api::usage_days::AdmitCounts;

use super::access::with_deadline;
use super::usage::stored_count;
use super::{Registry, RegistryError};

/// Adds what other runs have counted to the sum of those that have ended.
const FOLD: &str = "INSERT INTO admit_days (product_id, day, run_id, admitted, denied, refused, failed) \
     SELECT product_id, day, '', CAST(SUM(admitted) AS BIGINT), CAST(SUM(denied) AS BIGINT), \
         CAST(SUM(refused) AS BIGINT), CAST(SUM(failed) AS BIGINT) \
     FROM admit_days WHERE run_id <> '' AND run_id <> $1 GROUP BY product_id, day \
     ON CONFLICT (product_id, day, run_id) DO UPDATE SET \
     admitted = admit_days.admitted + excluded.admitted, denied = admit_days.denied + excluded.denied, \
     refused = admit_days.refused + excluded.refused, failed = admit_days.failed + excluded.failed";

const REPLACE: &str = "INSERT INTO admit_days (product_id, day, run_id, admitted, denied, refused, failed) \
     VALUES ($1, $2, $3, $4, $5, $6, $7) \
     ON CONFLICT (product_id, day, run_id) DO UPDATE SET \
     admitted = excluded.admitted, denied = excluded.denied, refused = excluded.refused, failed = excluded.failed";

/// The admits of a product on a day, as one run has counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmitsOfDay {
    pub(crate) product_id: ProductId,
    pub(crate) day: Day,
    pub(crate) counts: AdmitCounts,
}

impl Registry {
    /// Stores what the run `run_id` has counted.
    pub(crate) async fn save_admits(
        &self,
        run_id: &str,
        counted: &[AdmitsOfDay],
    ) -> Result<(), RegistryError> {
        let mut transaction = self.begin().await?;
        for AdmitsOfDay { product_id, day, counts } in counted {
            let AdmitCounts { admitted, denied, refused, failed } = *counts;
            let statement = sqlx::query(REPLACE)
                .bind(product_id.to_string())
                .bind(day.unix_days())
                .bind(run_id.to_owned())
                .bind(stored_count(admitted))
                .bind(stored_count(denied))
                .bind(stored_count(refused))
                .bind(stored_count(failed));
            with_deadline(statement.execute(&mut *transaction)).await?;
        }
        Ok(with_deadline(transaction.commit()).await?)
    }

    /// Sums up what all runs but `run_id` have counted: they have ended.
    pub(crate) async fn fold_admits(&self, run_id: &str) -> Result<(), RegistryError> {
        let mut transaction = self.begin().await?;
        for statement in [FOLD, "DELETE FROM admit_days WHERE run_id <> '' AND run_id <> $1"] {
            let statement = sqlx::query(statement).bind(run_id.to_owned());
            with_deadline(statement.execute(&mut *transaction)).await?;
        }
        Ok(with_deadline(transaction.commit()).await?)
    }
}
