//! Measures reads of a registry with very many rows, one after another on one connection. The baseline runs the
//! same queries in bare handlers on a copy of the registry.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use api::orchestrator::PLATFORM_KEY_HEADER;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, StatusCode};

use crate::baselines::{self, BaselineKind};
use crate::client::Client;
use crate::context::BenchContext;
use crate::orchestrator::OrchestratorSetup;
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::registry;
use crate::report::{Quantity, Subject, Unit};
use crate::stats::percentile;

/// How often each read is repeated in a round, after a first one that is not counted.
const READS_PER_ROUND: usize = 50;

/// A measured read.
pub(super) struct RegistryRead<'a> {
    pub(super) name: &'a str,
    pub(super) path: String,
    /// Checks that a response body is correct.
    pub(super) check: &'a dyn Fn(&Bytes) -> anyhow::Result<()>,
}

/// The registry that is read. Its orchestrator must not be running yet.
pub(super) struct RegistryReads<'a> {
    pub(super) site: &'a OrchestratorSetup,
    /// A description of the registry's contents for the report.
    pub(super) contents: String,
}

impl RegistryReads<'_> {
    /// Measures the median time of each read.
    pub(super) async fn measure(
        &self,
        bench: &BenchContext,
        what: &str,
        reads: &[RegistryRead<'_>],
    ) -> anyhow::Result<Vec<Quantity>> {
        let folder = bench.new_folder()?;
        registry::copy(&self.site.registry_file(), &baselines::database_file(&folder))?;
        let port = free_port()?;
        let command = baselines::command(&bench.baseline_program, BaselineKind::Registry, port, &folder)?;
        let mut baseline = Process::spawn(command, "the registry baseline", log_file(&folder, "baseline"))?;
        probe::wait_until_healthy(&mut baseline, port)?;
        let baseline_address = SocketAddr::from(([127, 0, 0, 1], port));
        let orchestrator = self.site.start().await?;
        let mut quantities: Vec<_> = reads.iter().map(|read| self.quantity(read)).collect();
        for round in 0..bench.rounds {
            bench.report_round(what, round);
            for (quantity, read) in quantities.iter_mut().zip(reads) {
                let ours = median_time(orchestrator.address, orchestrator.platform_key(), read).await?;
                quantity.add(ours, median_time(baseline_address, orchestrator.platform_key(), read).await?);
            }
        }
        orchestrator.shut_down()?;
        Ok(quantities)
    }

    fn quantity(&self, read: &RegistryRead<'_>) -> Quantity {
        Quantity {
            name: read.name.into(),
            unit: Unit::Milliseconds,
            subject: Subject::new(self.contents.clone()),
            baselines: vec![Subject::new("axum, the same queries")],
            budget: None,
        }
    }
}

/// Returns the median time of [`READS_PER_ROUND`] reads in milliseconds.
async fn median_time(address: SocketAddr, key: &str, read: &RegistryRead<'_>) -> anyhow::Result<f64> {
    let mut client = Client::connect(address).await?;
    let mut times = Vec::new();
    for _ in 0..=READS_PER_ROUND {
        let request = client.request(Method::GET, &read.path).header(PLATFORM_KEY_HEADER, key);
        let request = request.body(Full::default())?;
        let began = Instant::now();
        let (status, body) = client.fetch(request).await?;
        times.push(began.elapsed().as_secs_f64() * 1_000.0);
        let text = || String::from_utf8_lossy(&body).chars().take(200).collect::<String>();
        ensure!(status == StatusCode::OK, "{} was answered with {status}: {}", read.path, text());
        (read.check)(&body).with_context(|| format!("{} was answered with {}", read.path, text()))?;
    }
    percentile(times.get(1..).unwrap_or_default(), 50).context("nothing was read")
}
