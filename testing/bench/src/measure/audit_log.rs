//! Measures reads from a long audit log: `/status`, `/metrics` and `/audit`.

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use serde_json::Value;

use super::reads::{RegistryRead, RegistryReads};
use crate::context::{BenchContext, log_progress};
use crate::orchestrator::OrchestratorSetup;
use crate::registry;
use crate::report::Quantity;

/// The number of engines of the product.
const ENGINE_COUNT: u32 = 1_000;
/// The number of rows on a page of the audit log.
const PAGE_SIZE: usize = 100;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let rows = bench.size.choose(100_000, 1_000_000);
    let setup = OrchestratorSetup::with_few_ports(bench)?;
    // Creates the registry and the product.
    setup.start().await?.shut_down()?;
    log_progress(&format!("ledger: writing {rows} rows"));
    registry::add_engines(&setup.registry_file(), 0..ENGINE_COUNT)?;
    registry::write_audit_log(&setup.registry_file(), rows)?;
    let check_counts = move |body: &Bytes| check_metrics(body, rows);
    let reads = [
        RegistryRead { name: "status", path: "/status".into(), check: &check_status },
        RegistryRead { name: "metrics", path: "/metrics".into(), check: &check_counts },
        RegistryRead { name: "audit, newest page", path: "/audit".into(), check: &check_audit },
    ];
    RegistryReads { site: &setup, contents: format!("ledger of {rows} rows") }
        .measure(bench, "ledger", &reads)
        .await
}

fn check_status(body: &Bytes) -> anyhow::Result<()> {
    let status: Value = serde_json::from_slice(body)?;
    let total = field(&status, "total")?;
    ensure!(total == &Value::from(ENGINE_COUNT), "the total is {total}");
    Ok(())
}

/// Checks the counts; every eighth row is a provision.
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
    let rows = field(&page, "rows")?.as_array().context("`rows` is not a list")?;
    ensure!(rows.len() == PAGE_SIZE, "the page has {} rows", rows.len());
    Ok(())
}

fn field<'a>(body: &'a Value, name: &str) -> anyhow::Result<&'a Value> {
    body.get(name).with_context(|| format!("the response has no `{name}`"))
}
