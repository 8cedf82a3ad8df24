//! Measures the first page and a middle page of a list of very many engines.

use anyhow::ensure;
use api::orchestrator::EngineList;
use bytes::Bytes;

use super::reads::{RegistryRead, RegistryReads};
use crate::context::{BenchContext, log_progress};
use crate::orchestrator::OrchestratorSetup;
use crate::registry;
use crate::report::Quantity;

/// The number of engines of the product.
const ROW_COUNT: u32 = 100_000;
/// The number of engines on a page.
const PAGE_SIZE: usize = 100;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let setup = OrchestratorSetup::with_few_ports(bench)?;
    // Creates the registry and the product.
    setup.start().await?.shut_down()?;
    log_progress(&format!("list: writing {ROW_COUNT} engines"));
    registry::add_engines(&setup.registry_file(), 0..ROW_COUNT)?;
    let reads = [
        RegistryRead { name: "list, first page", path: "/engines?limit=100".into(), check: &check_page },
        RegistryRead {
            name: "list, page from the middle",
            path: "/engines?limit=100&offset=50000".into(),
            check: &check_page,
        },
    ];
    RegistryReads { site: &setup, contents: format!("100 of {ROW_COUNT} engines") }
        .measure(bench, "list", &reads)
        .await
}

/// Checks that this is a full page of all engines.
fn check_page(body: &Bytes) -> anyhow::Result<()> {
    let list: EngineList = serde_json::from_slice(body)?;
    ensure!(list.engines.len() == PAGE_SIZE, "the page has {} engines", list.engines.len());
    ensure!(list.total == u64::from(ROW_COUNT), "the total is {}", list.total);
    Ok(())
}
