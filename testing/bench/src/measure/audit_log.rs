//! Reads from a long audit log: `/status`, `/metrics` and `/audit`.

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use serde_json::Value;

use super::reads::{RegistryRead, RegistryReads};
use crate::context::{BenchContext, log_progress};
use crate::orchestrator::OrchestratorSetup;
use crate::registry;
use crate::report::Quantity;

/// Engines that the product has.
const ENGINE_COUNT: u32 = 1_000;
/// Rows on a page of the audit log.
const PAGE_SIZE: usize = 100;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let rows = bench.size.choose(100_000, 1_000_000);
    let site = OrchestratorSetup::with_few_ports(bench)?;
    // Makes the registry and the product.
    site.start().await?.shut_down()?;
    log_progress(&format!("ledger: {rows} rows are written"));
    registry::add_engines(&site.registry_file(), 0..ENGINE_COUNT)?;
    registry::write_audit_log(&site.registry_file(), rows)?;
    let counted = move |body: &Bytes| check_metrics(body, rows);
    let reads = [
        RegistryRead { name: "status", path: "/status".into(), check: &check_status },
        RegistryRead { name: "metrics", path: "/metrics".into(), check: &counted },
        RegistryRead { name: "audit, newest page", path: "/audit".into(), check: &check_audit },
    ];
    RegistryReads { site: &site, contents: format!("ledger of {rows} rows") }
        .measure(bench, "ledger", &reads)
        .await
}

fn check_status(body: &Bytes) -> anyhow::Result<()> {
    let status: Value = serde_json::from_slice(body)?;
    let total = field(&status, "total")?;
    ensure!(total == &Value::from(ENGINE_COUNT), "a total of {total}");
    Ok(())
}

/// One row in eight is a provision.
fn check_metrics(body: &Bytes, rows: u32) -> anyhow::Result<()> {
    let metrics: Value = serde_json::from_slice(body)?;
    let total = field(&metrics, "total_provisions")?;
    ensure!(total == &Value::from(rows / 8), "{total} provisions");
    let recent = field(&metrics, "provisions_1h")?;
    ensure!(recent.as_u64().is_some_and(|recent| recent > 0), "{recent} provisions in the last hour");
    Ok(())
}

fn check_audit(body: &Bytes) -> anyhow::Result<()> {
    let page: Value = serde_json::from_slice(body)?;
    let rows = field(&page, "rows")?.as_array().context("`rows` is no list")?;
    ensure!(rows.len() == PAGE_SIZE, "a page of {}", rows.len());
    Ok(())
}

fn field<'a>(body: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    body.get(name).with_context(|| format!("there is no `{name}`"))
}
