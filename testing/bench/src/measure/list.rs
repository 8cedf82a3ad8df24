//! A listing's page out of very many engines: the first one, and one from the middle.

use anyhow::ensure;
use api::orchestrator::EngineList;
use bytes::Bytes;

use super::reads::{RegistryRead, RegistryReads};
use crate::context::{BenchContext, log_progress};
use crate::orchestrator::OrchestratorSetup;
use crate::registry;
use crate::report::Quantity;

/// Engines that the product has.
const ROW_COUNT: u32 = 100_000;
/// Engines on a page.
const PAGE_SIZE: usize = 100;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let site = OrchestratorSetup::with_few_ports(bench)?;
    // Makes the registry and the product.
    site.start().await?.shut_down()?;
    log_progress(&format!("list: {ROW_COUNT} engines are written"));
    registry::add_engines(&site.registry_file(), 0..ROW_COUNT)?;
    let reads = [
        RegistryRead { name: "list, first page", path: "/engines?limit=100".into(), check: &check_page },
        RegistryRead {
            name: "list, page from the middle",
            path: "/engines?limit=100&offset=50000".into(),
            check: &check_page,
        },
    ];
    RegistryReads { site: &site, contents: format!("100 of {ROW_COUNT} engines") }
        .measure(bench, "list", &reads)
        .await
}

/// Whether this is a whole page of all engines.
fn check_page(body: &Bytes) -> anyhow::Result<()> {
    let list: EngineList = serde_json::from_slice(body)?;
    ensure!(list.engines.len() == PAGE_SIZE, "a page of {}", list.engines.len());
    ensure!(list.total == u64::from(ROW_COUNT), "a total of {}", list.total);
    Ok(())
}
