//! The listener for metrics: `GET /metrics` without a key, on an address of its own (`ORCH_METRICS_ADDR`).
//!
//! It answers from the start of the process, so that a standby can be monitored, too.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use api::Timestamp;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use axum::routing::get;
use http_service::http::{ApiError, apply_layers};
use http_service::serve::{ServeLimits, serve};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fleet::Fleet;
use crate::metrics::labels::Role;
use crate::metrics::{FleetGauges, Metrics, Recorder, TextFormat};

/// A scrape reads the numbers of engines from the registry, unless that was tried less than this long ago.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// How long a scrape waits for the numbers of engines; afterwards it exposes the previous ones.
const COUNT_TIMEOUT: Duration = Duration::from_secs(3);

/// Scrapers are few. A request has no body.
const LIMITS: ServeLimits = ServeLimits {
    max_connections: 64,
    header_read_timeout: Duration::from_secs(30),
    drain_timeout: Duration::from_secs(1),
};

/// The address for metrics cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for metrics (ORCH_METRICS_ADDR)")]
pub struct MetricsAddressError {
    address: SocketAddr,
    source: io::Error,
}

/// The listener for metrics, for as long as this lives.
pub(crate) struct Scrapes {
    state: Option<Arc<ScrapeState>>,
    /// Ends the listener.
    _shutdown: DropGuard,
}

/// The state behind the listener.
struct ScrapeState {
    recorder: Arc<Recorder>,
    is_standby: AtomicBool,
    /// Set once this orchestrator has opened the registry.
    fleet: OnceLock<Arc<Fleet>>,
    /// When the numbers of engines were asked for last.
    counted_at: Mutex<Option<Instant>>,
}

impl Scrapes {
    /// Listens on `address`, and returns the handle with which metrics are recorded. Without an address nothing
    /// listens, and nothing is recorded.
    pub(crate) async fn open(
        address: Option<SocketAddr>,
        started_at: Timestamp,
    ) -> Result<(Self, Metrics), MetricsAddressError> {
        let shutdown = CancellationToken::new();
        let mut opened = Self { state: None, _shutdown: shutdown.clone().drop_guard() };
        let Some(address) = address else { return Ok((opened, Metrics::default())) };
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| MetricsAddressError { address, source })?;
        // Another one than the configured one if that has the port 0.
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!(%address, "Metrics are exposed, without a key.");
        let metrics = Metrics::enabled(started_at);
        if let Some(recorder) = metrics.recorder() {
            let state = Arc::new(ScrapeState {
                recorder: Arc::clone(recorder),
                is_standby: AtomicBool::new(false),
                fleet: OnceLock::new(),
                counted_at: Mutex::default(),
            });
            let routes = Router::new().route("/metrics", get(scrape)).with_state(Arc::clone(&state));
            tokio::spawn(serve(listener, apply_layers(routes, 0), LIMITS, shutdown));
            opened.state = Some(state);
        }
        Ok((opened, metrics))
    }

    /// Reports from now on that another orchestrator holds the registry.
    pub(crate) fn stand_by(&self) {
        if let Some(state) = &self.state {
            state.is_standby.store(true, Ordering::Relaxed);
        }
    }

    /// Exposes the engines of `fleet` from now on.
    pub(crate) fn activate(&self, fleet: &Arc<Fleet>) {
        if let Some(state) = &self.state {
            // It is set once: a process opens one registry.
            let _ = state.fleet.set(Arc::clone(fleet));
            state.recorder.expect_engine_counts();
        }
    }
}

impl ScrapeState {
    fn role(&self) -> Role {
        match self.fleet.get() {
            Some(fleet) if fleet.is_ready() => Role::Active,
            None if self.is_standby.load(Ordering::Relaxed) => Role::Standby,
            Some(_) | None => Role::Starting,
        }
    }

    /// Reads the numbers of engines, unless that was tried recently. Concurrent scrapes share the attempt.
    async fn count_engines(&self, fleet: &Fleet) {
        let mut counted_at = self.counted_at.lock().await;
        if counted_at.is_some_and(|at| at.elapsed() < COUNT_INTERVAL) {
            return;
        }
        *counted_at = Some(Instant::now());
        match tokio::time::timeout(COUNT_TIMEOUT, fleet.count_engines()).await {
            Ok(Ok(products)) => self.recorder.set_engine_counts(&products),
            Ok(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "The engines could not be counted for the metrics.");
            }
            Err(_) => tracing::warn!("The engines could not be counted for the metrics in time."),
        }
    }
}

/// `GET /metrics`.
async fn scrape(
    State(state): State<Arc<ScrapeState>>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = TextFormat::negotiate(accept);
    let role = state.role();
    state.recorder.set_role(role);
    let mut gauges = FleetGauges::default();
    if let Some(fleet) = state.fleet.get() {
        if role == Role::Active {
            // Bounded, also while another scrape reads them.
            let _ = tokio::time::timeout(COUNT_TIMEOUT, state.count_engines(fleet)).await;
        }
        gauges = fleet.gauges();
    }
    // It reads files, and counts those that are open.
    let encoded = tokio::task::spawn_blocking(move || state.recorder.encode(gauges, format)).await;
    let text = encoded.map_err(|_| ApiError::internal())?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], text))
}
