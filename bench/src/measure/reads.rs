//! Reads of a registry with very many rows, one after the other on one connection, beside the same queries as
//! bare handlers on a copy of it.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use contract::orchestrator::PLATFORM_KEY_HEADER;
use http_body_util::Full;
use hyper::{Method, StatusCode};

use crate::bench::Bench;
use crate::client::Client;
use crate::floors::{self, Kind};
use crate::orchestrator::Site;
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::registry;
use crate::report::{Quantity, Subject, Unit};
use crate::stats::percentile;

/// Of each read in a round. The first is not looked at.
const TIMES: usize = 50;

/// One of them.
pub(super) struct Read<'a> {
    pub(super) name: &'a str,
    pub(super) path: String,
    /// Whether a body is the right answer.
    pub(super) check: &'a dyn Fn(&Bytes) -> anyhow::Result<()>,
}

/// The registry that is read. Its orchestrator does not run yet.
pub(super) struct Reads<'a> {
    pub(super) site: &'a Site,
    /// What is in it.
    pub(super) of: String,
}

impl Reads<'_> {
    /// The median time of each.
    pub(super) async fn measure(
        &self,
        bench: &Bench,
        what: &str,
        reads: &[Read<'_>],
    ) -> anyhow::Result<Vec<Quantity>> {
        let folder = bench.folder()?;
        registry::copy(&self.site.registry(), &floors::database(&folder))?;
        let port = free_port()?;
        let command = floors::command(&bench.floors, Kind::Registry, port, &folder)?;
        let mut floor = Process::spawn(command, "the registry floor", log_file(&folder, "floor"))?;
        probe::until_well(&mut floor, port)?;
        let floor_address = SocketAddr::from(([127, 0, 0, 1], port));
        let orchestrator = self.site.start().await?;
        let mut quantities: Vec<_> = reads.iter().map(|read| self.quantity(read)).collect();
        for round in 0..bench.rounds {
            bench.progress(what, round);
            for (quantity, read) in quantities.iter_mut().zip(reads) {
                let ours = time(orchestrator.address, orchestrator.key(), read).await?;
                quantity.add(ours, time(floor_address, orchestrator.key(), read).await?);
            }
        }
        orchestrator.end()?;
        Ok(quantities)
    }

    fn quantity(&self, read: &Read<'_>) -> Quantity {
        Quantity {
            what: read.name.into(),
            unit: Unit::Milliseconds,
            ours: Subject::new(self.of.clone()),
            floors: vec![Subject::new("axum, the same queries")],
            budget: None,
        }
    }
}

/// The median of [`TIMES`] reads.
async fn time(address: SocketAddr, key: &str, read: &Read<'_>) -> anyhow::Result<f64> {
    let mut client = Client::connect(address).await?;
    let mut times = Vec::new();
    for _ in 0..=TIMES {
        let request = client.request(Method::GET, &read.path).header(PLATFORM_KEY_HEADER, key);
        let request = request.body(Full::default())?;
        let began = Instant::now();
        let (status, body) = client.whole(request).await?;
        times.push(began.elapsed().as_secs_f64() * 1_000.0);
        let text = || String::from_utf8_lossy(&body).chars().take(200).collect::<String>();
        ensure!(status == StatusCode::OK, "{} was answered {status}: {}", read.path, text());
        (read.check)(&body).with_context(|| format!("{} was answered {}", read.path, text()))?;
    }
    percentile(times.get(1..).unwrap_or_default(), 50).context("nothing was read")
}
