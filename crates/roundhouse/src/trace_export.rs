//! The export of traces, for as long as a service runs.

use anyhow::Context as _;
use tokio::runtime::Handle;
use traces::{Exporter, Settings};

/// Begins the export, if there is to be one.
pub(crate) fn start(settings: Option<Settings>) -> anyhow::Result<Option<Exporter>> {
    let Some(settings) = settings else { return Ok(None) };
    let endpoint = settings.endpoint.clone();
    let exporter = traces::install(settings, Handle::current()).context("traces cannot be exported")?;
    tracing::info!(endpoint, "Traces are exported.");
    Ok(Some(exporter))
}

/// Sends what is left, within a deadline.
pub(crate) async fn end(exporter: Option<Exporter>) {
    if let Some(exporter) = exporter {
        exporter.shutdown().await;
    }
}
