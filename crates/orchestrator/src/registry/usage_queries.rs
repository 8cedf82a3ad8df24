//! Reads what engines have used, and the admits, in groups: by day, by engine or by product.

use std::collections::HashMap;

use api::usage::Day;
use api::usage_days::{AdmitCounts, UsageCounts};
use api::{DisplayName, EngineId, ProductId, Slug, UserId};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::access::with_deadline;
use super::usage::read_counts;
use super::{Registry, RegistryError};

macro_rules! usage_sums {
    () => {
        "CAST(COALESCE(SUM(turns), 0) AS BIGINT), CAST(COALESCE(SUM(calls), 0) AS BIGINT), \
         CAST(COALESCE(SUM(failed_calls), 0) AS BIGINT), CAST(COALESCE(SUM(input_tokens), 0) AS BIGINT), \
         CAST(COALESCE(SUM(output_tokens), 0) AS BIGINT), CAST(COALESCE(SUM(cache_read_tokens), 0) AS BIGINT), \
         CAST(COALESCE(SUM(cost_nano_usd), 0) AS BIGINT), CAST(COALESCE(SUM(unpriced_calls), 0) AS BIGINT), \
         CAST(COALESCE(SUM(tool_calls), 0) AS BIGINT)"
    };
}

macro_rules! admit_sums {
    () => {
        "CAST(COALESCE(SUM(admitted), 0) AS BIGINT), CAST(COALESCE(SUM(denied), 0) AS BIGINT), \
         CAST(COALESCE(SUM(refused), 0) AS BIGINT), CAST(COALESCE(SUM(failed), 0) AS BIGINT)"
    };
}

/// Which days of which product, or of all: `$1` is the product or empty, `$2` the first day, `$3` the last one.
macro_rules! in_period {
    (product) => {
        " WHERE product_id = $1 AND day >= $2 AND day <= $3"
    };
    (fleet) => {
        " WHERE $1 = '' AND day >= $2 AND day <= $3"
    };
}

/// The place of the engines that were removed in the order of ids: before all of them.
pub(crate) const REMOVED_ENGINES: &str = "-";

/// The days of a query, both included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsagePeriod {
    pub(crate) from: Day,
    pub(crate) to: Day,
}

/// What was used, and the admits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsageTotal {
    pub(crate) usage: UsageCounts,
    pub(crate) admits: AdmitCounts,
}

/// A day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsageByDay {
    pub(crate) day: Day,
    /// The engines that have used something.
    pub(crate) engines: u64,
    pub(crate) total: UsageTotal,
}

/// An engine, or all that were removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsageByEngine {
    pub(crate) engine: Option<(EngineId, UserId)>,
    pub(crate) usage: UsageCounts,
}

/// A product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsageByProduct {
    pub(crate) product_id: ProductId,
    pub(crate) slug: Slug,
    pub(crate) display_name: DisplayName,
    pub(crate) total: UsageTotal,
}

impl Registry {
    /// Returns at most `limit` days, after `after`, on which engines of a product, or of all products, have used
    /// something or were admitted.
    pub(crate) async fn usage_by_day(
        &self,
        product_id: Option<ProductId>,
        period: UsagePeriod,
        after: Option<Day>,
        limit: usize,
    ) -> Result<Vec<UsageByDay>, RegistryError> {
        const OF_PRODUCT: [&str; 2] = [
            concat!(
                "SELECT day, CAST(SUM(engines) AS BIGINT), ",
                usage_sums!(),
                " FROM usage_days",
                in_period!(product),
                " GROUP BY day"
            ),
            concat!("SELECT day, ", admit_sums!(), " FROM admit_days", in_period!(product), " GROUP BY day"),
        ];
        const OF_FLEET: [&str; 2] = [
            concat!(
                "SELECT day, CAST(SUM(engines) AS BIGINT), ",
                usage_sums!(),
                " FROM usage_days",
                in_period!(fleet),
                " GROUP BY day"
            ),
            concat!("SELECT day, ", admit_sums!(), " FROM admit_days", in_period!(fleet), " GROUP BY day"),
        ];
        let [usage, admits] = if product_id.is_some() { OF_PRODUCT } else { OF_FLEET };
        let from = after.map_or(period.from.unix_days(), |after| after.unix_days() + 1);
        let period = UsagePeriod { from: Day::from_unix_days(from).max(period.from), ..period };
        let mut days = std::collections::BTreeMap::new();
        for row in self.grouped(usage, product_id, period).await? {
            let (day, engines): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
            let total = UsageTotal { usage: read_counts(&row, 2)?, ..UsageTotal::default() };
            days.insert(day, (engines.unsigned_abs(), total));
        }
        for row in self.grouped(admits, product_id, period).await? {
            let of_day: &mut (u64, UsageTotal) = days.entry(row.try_get::<i64, _>(0)?).or_default();
            of_day.1.admits = read_admits(&row, 1)?;
        }
        let day = |(day, (engines, total))| UsageByDay { day: Day::from_unix_days(day), engines, total };
        Ok(days.into_iter().map(day).take(limit).collect())
    }

    /// Returns the sum of a period, of a product or of all.
    pub(crate) async fn usage_total(
        &self,
        product_id: Option<ProductId>,
        period: UsagePeriod,
    ) -> Result<UsageTotal, RegistryError> {
        const OF_PRODUCT: [&str; 2] = [
            concat!("SELECT ", usage_sums!(), " FROM usage_days", in_period!(product)),
            concat!("SELECT ", admit_sums!(), " FROM admit_days", in_period!(product)),
        ];
        const OF_FLEET: [&str; 2] = [
            concat!("SELECT ", usage_sums!(), " FROM usage_days", in_period!(fleet)),
            concat!("SELECT ", admit_sums!(), " FROM admit_days", in_period!(fleet)),
        ];
        let [usage, admits] = if product_id.is_some() { OF_PRODUCT } else { OF_FLEET };
        let mut total = UsageTotal::default();
        for row in self.grouped(usage, product_id, period).await? {
            total.usage = read_counts(&row, 0)?;
        }
        for row in self.grouped(admits, product_id, period).await? {
            total.admits = read_admits(&row, 0)?;
        }
        Ok(total)
    }

    /// Returns at most `limit` engines of a product that have used something, after the id `after`. Before all of them
    /// come those that were removed, as one.
    pub(crate) async fn usage_by_engine(
        &self,
        product_id: ProductId,
        period: UsagePeriod,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<UsageByEngine>, RegistryError> {
        const SELECT: &str = concat!(
            "SELECT usage_days.engine_id, MIN(user_id), ",
            usage_sums!(),
            " FROM usage_days LEFT JOIN engines ON engines.engine_id = usage_days.engine_id \
             WHERE usage_days.product_id = $1 AND day >= $2 AND day <= $3 AND usage_days.engine_id > $4 \
             GROUP BY usage_days.engine_id ORDER BY usage_days.engine_id LIMIT $5"
        );
        let query = sqlx::query(SELECT)
            .bind(product_id.to_string())
            .bind(period.from.unix_days())
            .bind(period.to.unix_days())
            .bind(after.unwrap_or(REMOVED_ENGINES).to_owned())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let mut engines = Vec::new();
        if after.is_none() {
            engines.extend(self.usage_of_removed(product_id, period).await?);
        }
        for row in with_deadline(query.fetch_all(&self.reads)).await? {
            let id: String = row.try_get(0)?;
            let user: Option<String> = row.try_get(1)?;
            let engine = id.parse().ok().zip(user.and_then(|user| UserId::new(user).ok()));
            engines.push(UsageByEngine { engine, usage: read_counts(&row, 2)? });
        }
        engines.truncate(limit);
        Ok(engines)
    }

    /// Returns what the removed engines of a product have used, if there are any.
    async fn usage_of_removed(
        &self,
        product_id: ProductId,
        period: UsagePeriod,
    ) -> Result<Option<UsageByEngine>, RegistryError> {
        const SELECT: &str = concat!(
            "SELECT COUNT(*), ",
            usage_sums!(),
            " FROM usage_days",
            in_period!(product),
            " AND engine_id = ''"
        );
        let rows = self.grouped(SELECT, Some(product_id), period).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let exist = row.try_get::<i64, _>(0)? > 0;
        let usage = read_counts(row, 1)?;
        Ok(exist.then_some(UsageByEngine { engine: None, usage }))
    }

    /// Returns at most `limit` products whose engines have used something or were admitted, after the id `after`.
    pub(crate) async fn usage_by_product(
        &self,
        period: UsagePeriod,
        after: Option<ProductId>,
        limit: usize,
    ) -> Result<Vec<UsageByProduct>, RegistryError> {
        const USAGE: &str = concat!(
            "SELECT product_id, ",
            usage_sums!(),
            " FROM usage_days",
            in_period!(fleet),
            " GROUP BY product_id"
        );
        const ADMITS: &str = concat!(
            "SELECT product_id, ",
            admit_sums!(),
            " FROM admit_days",
            in_period!(fleet),
            " GROUP BY product_id"
        );
        let mut totals = HashMap::<String, UsageTotal>::new();
        for row in self.grouped(USAGE, None, period).await? {
            totals.entry(row.try_get(0)?).or_default().usage = read_counts(&row, 1)?;
        }
        for row in self.grouped(ADMITS, None, period).await? {
            totals.entry(row.try_get(0)?).or_default().admits = read_admits(&row, 1)?;
        }
        let products = sqlx::query(
            "SELECT product_id, COALESCE(former_slug, slug), display_name FROM products WHERE product_id > $1 \
             ORDER BY product_id",
        );
        let after = after.map(|after| after.to_string()).unwrap_or_default();
        let products = with_deadline(products.bind(after).fetch_all(&self.reads)).await?;
        let mut found = Vec::new();
        for row in &products {
            let Some(total) = totals.remove(&row.try_get::<String, _>(0)?) else { continue };
            let unreadable = |column| move || RegistryError::Unreadable { column };
            found.push(UsageByProduct {
                product_id: row.try_get::<String, _>(0)?.parse().ok().ok_or_else(unreadable("product_id"))?,
                slug: Slug::new(row.try_get::<String, _>(1)?).ok().ok_or_else(unreadable("slug"))?,
                display_name: DisplayName::new(row.try_get::<String, _>(2)?)
                    .ok()
                    .ok_or_else(unreadable("display_name"))?,
                total,
            });
            if found.len() == limit {
                break;
            }
        }
        Ok(found)
    }

    async fn grouped(
        &self,
        sql: &'static str,
        product_id: Option<ProductId>,
        period: UsagePeriod,
    ) -> Result<Vec<AnyRow>, RegistryError> {
        let query = sqlx::query(sql)
            .bind(product_id.map(|product_id| product_id.to_string()).unwrap_or_default())
            .bind(period.from.unix_days())
            .bind(period.to.unix_days());
        Ok(with_deadline(query.fetch_all(&self.reads)).await?)
    }
}

fn read_admits(row: &AnyRow, first: usize) -> Result<AdmitCounts, RegistryError> {
    let count = |at: usize| -> Result<u64, RegistryError> {
        Ok(u64::try_from(row.try_get::<i64, _>(first + at)?).unwrap_or(0))
    };
    Ok(AdmitCounts { admitted: count(0)?, denied: count(1)?, refused: count(2)?, failed: count(3)? })
}
