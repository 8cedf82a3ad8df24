//! A listing's page out of very many engines: the first one, and one from the middle.

use anyhow::ensure;
use bytes::Bytes;
use contract::orchestrator::EngineList;

use super::reads::{Read, Reads};
use crate::bench::{Bench, note};
use crate::orchestrator::Site;
use crate::registry;
use crate::report::Quantity;

/// Engines that the product has.
const ROWS: u32 = 100_000;
/// Engines on a page.
const PAGE: usize = 100;

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let site = Site::small(bench)?;
    // Makes the registry and the product.
    site.start().await?.end()?;
    note(&format!("list: {ROWS} engines are written"));
    registry::add_engines(&site.registry(), 0..ROWS)?;
    let reads = [
        Read { name: "list, first page", path: "/engines?limit=100".into(), check: &page },
        Read {
            name: "list, page from the middle",
            path: "/engines?limit=100&offset=50000".into(),
            check: &page,
        },
    ];
    Reads { site: &site, of: format!("100 of {ROWS} engines") }.measure(bench, "list", &reads).await
}

/// Whether this is a whole page of all engines.
fn page(body: &Bytes) -> anyhow::Result<()> {
    let list: EngineList = serde_json::from_slice(body)?;
    ensure!(list.engines.len() == PAGE, "a page of {}", list.engines.len());
    ensure!(list.total == u64::from(ROWS), "a total of {}", list.total);
    Ok(())
}
