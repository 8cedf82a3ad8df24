//! What is read from a long ledger: `/status`, `/metrics` and `/audit`.

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use serde_json::Value;

use super::reads::{Read, Reads};
use crate::bench::{Bench, note};
use crate::orchestrator::Site;
use crate::registry;
use crate::report::Quantity;

/// Engines that the product has.
const ENGINES: u32 = 1_000;
/// Rows on a page of the ledger.
const PAGE: usize = 100;

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let rows = bench.size.of(100_000, 1_000_000);
    let site = Site::small(bench)?;
    // Makes the registry and the product.
    site.start().await?.end()?;
    note(&format!("ledger: {rows} rows are written"));
    registry::add_engines(&site.registry(), 0..ENGINES)?;
    registry::write_ledger(&site.registry(), rows)?;
    let counted = move |body: &Bytes| metrics(body, rows);
    let reads = [
        Read { name: "status", path: "/status".into(), check: &status },
        Read { name: "metrics", path: "/metrics".into(), check: &counted },
        Read { name: "audit, newest page", path: "/audit".into(), check: &audit },
    ];
    Reads { site: &site, of: format!("ledger of {rows} rows") }.measure(bench, "ledger", &reads).await
}

fn status(body: &Bytes) -> anyhow::Result<()> {
    let status: Value = serde_json::from_slice(body)?;
    let total = field(&status, "total")?;
    ensure!(total == &Value::from(ENGINES), "a total of {total}");
    Ok(())
}

/// One row in eight is a provision.
fn metrics(body: &Bytes, rows: u32) -> anyhow::Result<()> {
    let metrics: Value = serde_json::from_slice(body)?;
    let total = field(&metrics, "total_provisions")?;
    ensure!(total == &Value::from(rows / 8), "{total} provisions");
    let recent = field(&metrics, "provisions_1h")?;
    ensure!(recent.as_u64().is_some_and(|recent| recent > 0), "{recent} provisions in the last hour");
    Ok(())
}

fn audit(body: &Bytes) -> anyhow::Result<()> {
    let page: Value = serde_json::from_slice(body)?;
    let rows = field(&page, "rows")?.as_array().context("`rows` is no list")?;
    ensure!(rows.len() == PAGE, "a page of {}", rows.len());
    Ok(())
}

fn field<'a>(body: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    body.get(name).with_context(|| format!("there is no `{name}`"))
}
