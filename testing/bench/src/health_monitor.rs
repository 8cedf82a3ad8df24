//! Checks the health of many engines repeatedly, one after another, and counts the failures.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::engine::{EngineHealth, HEALTHY};
use http_body_util::Full;
use hyper::Method;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::client::{Client, parse_address};
use crate::stats::percentile;

/// The time from one request to the next.
const PROBE_INTERVAL: Duration = Duration::from_millis(2);
/// The timeout of one request.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A running monitor.
pub(crate) struct HealthMonitor {
    task: JoinHandle<HealthReport>,
    stop: CancellationToken,
}

/// The result of a monitor.
#[derive(Debug, Default)]
pub(crate) struct HealthReport {
    pub(crate) requests: u32,
    pub(crate) failures: u32,
    pub(crate) first_failure: Option<String>,
    /// The 99th percentile of the latency of successful requests, in milliseconds.
    pub(crate) p99_ms: Option<f64>,
}

impl HealthMonitor {
    /// Starts to monitor the engines at these addresses (at least one), each over a kept connection of its own.
    pub(crate) fn start(urls: Vec<String>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(run_probes(urls, stop.clone()));
        Self { task, stop }
    }

    /// Stops the monitor after at least one request.
    pub(crate) async fn stop(self) -> anyhow::Result<HealthReport> {
        self.stop.cancel();
        self.task.await.context("the health monitor panicked")
    }
}

async fn run_probes(urls: Vec<String>, stop: CancellationToken) -> HealthReport {
    let mut report = HealthReport::default();
    let mut times = Vec::new();
    let mut clients: Vec<(String, Option<Client>)> = urls.into_iter().map(|url| (url, None)).collect();
    let mut pace = interval(PROBE_INTERVAL);
    pace.set_missed_tick_behavior(MissedTickBehavior::Skip);
    'watching: loop {
        for (url, client) in &mut clients {
            pace.tick().await;
            report.requests += 1;
            let began = Instant::now();
            match timeout(PROBE_TIMEOUT, probe(url, client)).await.context("no response in time").flatten() {
                Ok(()) => times.push(began.elapsed().as_secs_f64() * 1_000.0),
                Err(error) => {
                    *client = None;
                    report.failures += 1;
                    report.first_failure.get_or_insert_with(|| format!("{url}: {error:#}"));
                }
            }
            if stop.is_cancelled() {
                break 'watching;
            }
        }
    }
    report.p99_ms = percentile(&times, 99);
    report
}

async fn probe(url: &str, client: &mut Option<Client>) -> anyhow::Result<()> {
    let client = match client {
        Some(client) => client,
        None => client.insert(Client::connect(parse_address(url)?).await?),
    };
    let request = client.request(Method::GET, "/health").body(Full::default())?;
    let health: EngineHealth = client.fetch_json(request).await?;
    ensure!(health.status == HEALTHY, "its status is {}", health.status);
    Ok(())
}

#[cfg(test)]
mod tests {
    use api::engine::Subsystems;
    use axum::routing::get;
    use axum::{Json, Router};
    use tokio::net::TcpListener;

    use super::*;

    async fn server(status: &'static str) -> String {
        let ok = || HEALTHY.to_owned();
        let subsystems = move || Subsystems { database: ok(), llm_provider: ok(), asset_directory: ok() };
        let health =
            move || EngineHealth { status: status.to_owned(), uptime_seconds: 0.0, subsystems: subsystems() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/health", get(async move || Json(health())));
        tokio::spawn(async { axum::serve(listener, router).await });
        url
    }

    #[tokio::test]
    async fn what_is_not_well_or_not_there_counts_as_failed() {
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let unused = format!("http://{}", gone.local_addr().unwrap());
        drop(gone);
        for (url, healthy) in
            [(server(HEALTHY).await, true), (server("degraded").await, false), (unused, false)]
        {
            let monitor = HealthMonitor::start(vec![url]);
            let report = monitor.stop().await.unwrap();
            assert_eq!((report.requests, report.failures), (1, u32::from(!healthy)), "{report:?}");
            assert_eq!(
                (report.p99_ms.is_some(), report.first_failure.is_none()),
                (healthy, healthy),
                "{report:?}"
            );
        }
    }
}
