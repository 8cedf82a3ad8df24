//! Asks many engines in turn, again and again, whether they are well, and counts the answers that were none.

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

/// From one question to the next.
const PROBE_INTERVAL: Duration = Duration::from_millis(2);
/// How long an answer may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A watch that is under way.
pub(crate) struct HealthMonitor {
    task: JoinHandle<HealthReport>,
    stop: CancellationToken,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct HealthReport {
    pub(crate) requests: u32,
    pub(crate) failures: u32,
    pub(crate) first_failure: Option<String>,
    /// Of those that were answered.
    pub(crate) p99_ms: Option<f64>,
}

impl HealthMonitor {
    /// Begins to ask the engines at these addresses, of which there is at least one, each over a connection of
    /// its own that is kept.
    pub(crate) fn start(urls: Vec<String>) -> Self {
        let end = CancellationToken::new();
        let task = tokio::spawn(run_probes(urls, end.clone()));
        Self { task, stop: end }
    }

    /// Ends it, after one question at least.
    pub(crate) async fn stop(self) -> anyhow::Result<HealthReport> {
        self.stop.cancel();
        self.task.await.context("the watch failed")
    }
}

async fn run_probes(urls: Vec<String>, end: CancellationToken) -> HealthReport {
    let mut seen = HealthReport::default();
    let mut times = Vec::new();
    let mut clients: Vec<(String, Option<Client>)> = urls.into_iter().map(|url| (url, None)).collect();
    let mut pace = interval(PROBE_INTERVAL);
    pace.set_missed_tick_behavior(MissedTickBehavior::Skip);
    'watching: loop {
        for (url, client) in &mut clients {
            pace.tick().await;
            seen.requests += 1;
            let began = Instant::now();
            match timeout(PROBE_TIMEOUT, probe(url, client)).await.context("no answer in time").flatten() {
                Ok(()) => times.push(began.elapsed().as_secs_f64() * 1_000.0),
                Err(error) => {
                    *client = None;
                    seen.failures += 1;
                    seen.first_failure.get_or_insert_with(|| format!("{url}: {error:#}"));
                }
            }
            if end.is_cancelled() {
                break 'watching;
            }
        }
    }
    seen.p99_ms = percentile(&times, 99);
    seen
}

async fn probe(url: &str, client: &mut Option<Client>) -> anyhow::Result<()> {
    let client = match client {
        Some(client) => client,
        None => client.insert(Client::connect(parse_address(url)?).await?),
    };
    let request = client.request(Method::GET, "/health").body(Full::default())?;
    let health: EngineHealth = client.fetch_json(request).await?;
    ensure!(health.status == HEALTHY, "it is {}", health.status);
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
        let nobody = format!("http://{}", gone.local_addr().unwrap());
        drop(gone);
        for (url, well) in [(server(HEALTHY).await, true), (server("degraded").await, false), (nobody, false)]
        {
            let watch = HealthMonitor::start(vec![url]);
            let seen = watch.stop().await.unwrap();
            assert_eq!((seen.requests, seen.failures), (1, u32::from(!well)), "{seen:?}");
            assert_eq!((seen.p99_ms.is_some(), seen.first_failure.is_none()), (well, well), "{seen:?}");
        }
    }
}
