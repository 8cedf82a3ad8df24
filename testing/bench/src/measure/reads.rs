//! Reads of a registry with very many rows, one after the other on one connection, beside the same queries as
//! bare handlers on a copy of it.

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

/// Of each read in a round. The first is not looked at.
const READS_PER_ROUND: usize = 50;

/// One of them.
pub(super) struct RegistryRead<'a> {
    pub(super) name: &'a str,
    pub(super) path: String,
    /// Whether a body is the right answer.
    pub(super) check: &'a dyn Fn(&Bytes) -> anyhow::Result<()>,
}

/// The registry that is read. Its orchestrator does not run yet.
pub(super) struct RegistryReads<'a> {
    pub(super) site: &'a OrchestratorSetup,
    /// What is in it.
    pub(super) contents: String,
}

impl RegistryReads<'_> {
    /// The median time of each.
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
        let mut floor = Process::spawn(command, "the registry floor", log_file(&folder, "floor"))?;
        probe::wait_until_healthy(&mut floor, port)?;
        let floor_address = SocketAddr::from(([127, 0, 0, 1], port));
        let orchestrator = self.site.start().await?;
        let mut quantities: Vec<_> = reads.iter().map(|read| self.quantity(read)).collect();
        for round in 0..bench.rounds {
            bench.report_round(what, round);
            for (quantity, read) in quantities.iter_mut().zip(reads) {
                let ours = median_time(orchestrator.address, orchestrator.platform_key(), read).await?;
                quantity.add(ours, median_time(floor_address, orchestrator.platform_key(), read).await?);
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

/// The median of [`READS_PER_ROUND`] reads.
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
        ensure!(status == StatusCode::OK, "{} was answered {status}: {}", read.path, text());
        (read.check)(&body).with_context(|| format!("{} was answered {}", read.path, text()))?;
    }
    percentile(times.get(1..).unwrap_or_default(), 50).context("nothing was read")
}
