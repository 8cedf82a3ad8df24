//! A closed-loop load generator: a number of kept-alive connections, each of which sends its next request when the
//! previous one was answered. It is bounded in time and count.
//!
//! One thread connections all connections, whatever the number of cores, and leaves the others to the server.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use hyper::StatusCode;

use crate::client::{Client, HttpRequest};
use crate::stats::percentile;

/// The requests to send, and how many.
pub(crate) struct LoadPlan<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) connections: usize,
    pub(crate) duration: Duration,
    pub(crate) max_requests: u64,
    /// Builds the request with this number.
    pub(crate) request: &'a dyn Fn(&Client, u64) -> anyhow::Result<HttpRequest>,
    /// Checks the response to the request with this number. An error ends the run.
    pub(crate) check: &'a dyn Fn(u64, StatusCode, &Bytes) -> anyhow::Result<()>,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct LoadResult {
    pub(crate) completed: u64,
    pub(crate) elapsed: Duration,
    latencies_ms: Vec<f64>,
}

impl LoadResult {
    /// Returns the completed requests per second.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub(crate) fn throughput(&self) -> f64 {
        self.completed as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the percentile `percent` of the latency, from sending a request to the end of its response.
    pub(crate) fn latency_ms(&self, percent: usize) -> anyhow::Result<f64> {
        percentile(&self.latencies_ms, percent).context("nothing was answered")
    }
}

/// Runs a plan. Call it on a single-threaded runtime.
///
/// # Errors
/// A connection broke or a response was wrong.
pub(crate) async fn run(plan: &LoadPlan<'_>) -> anyhow::Result<LoadResult> {
    // Connecting is not measured.
    let clients = try_join_all((0..plan.connections).map(|_| Client::connect(plan.address))).await?;
    let next = Cell::new(0);
    let began = Instant::now();
    let connections: FuturesUnordered<_> =
        clients.into_iter().map(|client| drive_connection(plan, client, &next, began)).collect();
    let latencies_ms: Vec<f64> = connections.try_concat().await?;
    let elapsed = began.elapsed();
    ensure!(!latencies_ms.is_empty(), "nothing was answered");
    Ok(LoadResult { completed: latencies_ms.len() as u64, elapsed, latencies_ms })
}

async fn drive_connection(
    plan: &LoadPlan<'_>,
    mut client: Client,
    next: &Cell<u64>,
    began: Instant,
) -> anyhow::Result<Vec<f64>> {
    let mut latencies = Vec::new();
    while began.elapsed() < plan.duration && next.get() < plan.max_requests {
        let number = next.replace(next.get() + 1);
        let request = (plan.request)(&client, number)?;
        let sent = Instant::now();
        let (status, body) = client.fetch(request).await?;
        latencies.push(sent.elapsed().as_secs_f64() * 1_000.0);
        (plan.check)(number, status, &body).with_context(|| format!("request {number} of the load"))?;
    }
    Ok(latencies)
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
