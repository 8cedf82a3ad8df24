//! Queries on the engines of all products, for the operator.

use api::orchestrator::EngineStatus;
use api::product_state::ProductState;
use api::{EngineId, EngineImage, ProductId, Slug, Timestamp, UserId};
use sqlx::Row as _;

use super::access::with_deadline;
use super::product_states::stored_state;
use super::row::{EngineRow, engine_columns};
use super::{Registry, RegistryError};

/// Which engines a listing contains.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetFilter {
    pub(crate) product_id: Option<ProductId>,
    /// Any of these states; all if there are none.
    pub(crate) states: Vec<EngineStatus>,
    pub(crate) image: Option<EngineImage>,
    /// The beginning of the user's id.
    pub(crate) user_prefix: Option<UserId>,
}

/// An engine of a listing.
#[derive(Clone, Debug)]
pub(crate) struct ListedEngine {
    pub(crate) row: EngineRow,
    /// When it came into its state; `None` during a provision and a delete.
    pub(crate) since: Option<Timestamp>,
    /// The number of consecutive health checks that it failed.
    pub(crate) failed_checks: u64,
}

/// The number of a product's engines in each state.
#[derive(Clone, Debug)]
pub(crate) struct ProductCounts {
    pub(crate) product_id: ProductId,
    pub(crate) slug: Slug,
    pub(crate) state: ProductState,
    pub(crate) by_status: Vec<(EngineStatus, u64)>,
}

/// When an engine came into its state: its last event that led there. A restart that failed leaves a failed engine's
/// state as it is.
const STATE_SINCE: &str = "(SELECT audit_log.at FROM audit_log \
     WHERE audit_log.product_id = engines.product_id AND audit_log.user_id = engines.user_id \
     AND audit_log.engine_id = engines.engine_id AND ( \
     (engines.status = 'running' AND audit_log.event IN ('provision', 'start', 'wake', 'restart')) \
     OR (engines.status = 'stopped' AND audit_log.event = 'stop') \
     OR (engines.status = 'sleeping' AND audit_log.event = 'sleep') \
     OR (engines.status = 'failed' AND audit_log.event = 'crash')) \
     ORDER BY audit_log.id DESC LIMIT 1)";

/// A `SELECT` and the values that it binds, in order.
pub(super) struct FleetQuery {
    pub(super) sql: String,
    pub(super) texts: Vec<String>,
}

impl FleetFilter {
    /// The query for at most `limit` engines after `after`. Each state is a literal, so that the partial indexes of
    /// running and failed engines serve it.
    pub(super) fn query(&self, after: Option<EngineId>, limit: i64) -> FleetQuery {
        let mut texts = vec![after.map(|after| after.to_string()).unwrap_or_default()];
        let mut conditions = vec!["engine_id > $1".to_owned()];
        match self.states.as_slice() {
            [] => {}
            [state] => conditions.push(format!("status = '{}'", state.as_str())),
            states => {
                let names: Vec<_> = states.iter().map(|state| format!("'{}'", state.as_str())).collect();
                conditions.push(format!("status IN ({})", names.join(", ")));
            }
        }
        let mut equals = |column: &str, text: Option<String>| {
            if let Some(text) = text {
                texts.push(text);
                conditions.push(format!("{column} = ${}", texts.len()));
            }
        };
        equals("product_id", self.product_id.map(|product_id| product_id.to_string()));
        equals("engine_version", self.image.as_ref().map(|image| image.as_str().to_owned()));
        if let Some(prefix) = &self.user_prefix {
            texts.push(prefix.as_str().to_owned());
            // The lower bound is for an index; both databases count characters.
            let (at, length) = (texts.len(), prefix.as_str().chars().count());
            conditions.push(format!("user_id >= ${at} AND substr(user_id, 1, {length}) = ${at}"));
        }
        let sql = format!(
            "SELECT {}, failed_checks, {STATE_SINCE} FROM engines WHERE {} ORDER BY engine_id LIMIT {limit}",
            engine_columns!(),
            conditions.join(" AND ")
        );
        FleetQuery { sql, texts }
    }
}

/// The engines of all products by state. The index of the listings covers it.
pub(super) const COUNT_ENGINES: &str =
    "SELECT product_id, status, COUNT(*) FROM engines GROUP BY product_id, status";

/// How many engines run or are being changed, warm ones included, and how many sleep, in one snapshot. Each of the counts
/// has an index, or is of few rows.
pub(super) const COUNT_AWAKE_AND_ASLEEP: &str = "SELECT \
     (SELECT COUNT(*) FROM engines WHERE status = 'running') \
     + (SELECT COUNT(*) FROM engines WHERE claim_kind IS NOT NULL AND status <> 'running') \
     + (SELECT COUNT(*) FROM warm_engines), \
     (SELECT COUNT(*) FROM engines WHERE status = 'sleeping')";

impl Registry {
    /// Returns at most `limit` engines that `filter` lets through, after `after` in the order of their ids, and the id
    /// after which the next page begins. Unreadable rows are left out.
    pub(crate) async fn fleet_engines(
        &self,
        filter: &FleetFilter,
        after: Option<EngineId>,
        limit: i64,
    ) -> Result<(Vec<ListedEngine>, Option<EngineId>), RegistryError> {
        let FleetQuery { sql, texts } = filter.query(after, limit);
        // Only column names, the names of states and numbers are part of the text.
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql));
        for text in texts {
            query = query.bind(text);
        }
        let rows = with_deadline(query.fetch_all(&self.reads)).await?;
        let mut engines = Vec::with_capacity(rows.len());
        for row in &rows {
            // One at a time, because the other columns belong to it.
            let Some(engine) = self.unreadable_rows.read_engines(std::slice::from_ref(row))?.pop() else {
                continue;
            };
            let failed_checks: i64 = row.try_get(18)?;
            let since: Option<i64> = row.try_get(19)?;
            engines.push(ListedEngine {
                row: engine,
                since: since.map(Timestamp::from_unix_ms),
                failed_checks: failed_checks.unsigned_abs(),
            });
        }
        let is_full = i64::try_from(rows.len()).is_ok_and(|found| found == limit);
        let next = rows.last().filter(|_| is_full).map(|row| row.try_get::<String, _>(0)).transpose()?;
        // A page that ends with an unreadable id cannot be continued.
        Ok((engines, next.and_then(|next| next.parse().ok())))
    }

    /// Returns the number of engines that run or are being changed, and of those that sleep.
    pub(crate) async fn count_awake_and_asleep(&self) -> Result<(u64, u64), RegistryError> {
        let row = with_deadline(sqlx::query(COUNT_AWAKE_AND_ASLEEP).fetch_one(&self.reads)).await?;
        let (awake, asleep): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        Ok((awake.unsigned_abs(), asleep.unsigned_abs()))
    }

    /// Returns the number of engines of every product by state, sorted by product, and the number of leased ports.
    /// States that this version does not know are left out.
    pub(crate) async fn fleet_counts(&self) -> Result<(Vec<ProductCounts>, u64), RegistryError> {
        // One transaction, so that the numbers come from the same snapshot.
        let mut transaction = with_deadline(self.reads.begin()).await?;
        let products = sqlx::query(
            "SELECT product_id, slug, state FROM products WHERE state IS NULL OR state <> 'deleted' \
             ORDER BY product_id",
        );
        let products = with_deadline(products.fetch_all(&mut *transaction)).await?;
        let counted = with_deadline(sqlx::query(COUNT_ENGINES).fetch_all(&mut *transaction)).await?;
        let leased =
            sqlx::query("SELECT (SELECT COUNT(port) FROM engines) + (SELECT COUNT(port) FROM warm_engines)");
        let leased: i64 = with_deadline(leased.fetch_one(&mut *transaction)).await?.try_get(0)?;
        with_deadline(transaction.commit()).await?;
        let mut by_product = std::collections::HashMap::<String, Vec<(EngineStatus, u64)>>::new();
        for row in &counted {
            if let Some(status) = EngineStatus::from_name(&row.try_get::<String, _>(1)?) {
                let count = row.try_get::<i64, _>(2)?.unsigned_abs();
                by_product.entry(row.try_get(0)?).or_default().push((status, count));
            }
        }
        let mut counts = Vec::with_capacity(products.len());
        for row in &products {
            let (id, slug): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let by_status = by_product.remove(&id).unwrap_or_default();
            let state = stored_state(row.try_get(2)?).unwrap_or(ProductState::Disabled);
            if let (Ok(product_id), Ok(slug)) = (id.parse(), Slug::new(slug)) {
                counts.push(ProductCounts { product_id, slug, state, by_status });
            }
        }
        Ok((counts, leased.unsigned_abs()))
    }
}
