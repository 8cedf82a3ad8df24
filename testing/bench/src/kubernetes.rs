//! Measures an orchestrator with very many engines as Pods of a Kubernetes cluster: a real control plane, whose nodes
//! are simulated, and whose engines are all played by one server. What an engine costs must not depend on how many
//! there are, so the sizes are measured one after the other, with the same orchestrator.

mod cluster;
mod deployment;
mod engines;
mod objects;
mod plain;
mod requests;
mod size;
mod table;
mod volumes;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use tokio_util::task::AbortOnDropHandle;

use self::cluster::Cluster;
use self::deployment::Deployment;
use self::engines::SharedEngines;
use self::table::Table;
use crate::context::{BenchContext, Size, log_progress};
use crate::postgres::{Databases, Server};
use crate::{binary, print_report, run_until_signal};

/// Measures engines as Pods of a cluster with simulated nodes.
#[derive(Args)]
pub(crate) struct Kubernetes {
    /// How many engines run, in steps. 20 are a test of the measurement itself.
    #[arg(long, value_delimiter = ',', default_values_t = [20], value_parser = clap::value_parser!(u32).range(1..=15_000))]
    engines: Vec<u32>,
    /// The binary to measure; `roundhouse` beside this program by default.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where the programs of the test cluster are, and are built if they are missing.
    #[arg(long, env = "ROUNDHOUSE_TEST_KUBERNETES")]
    cache: PathBuf,
    /// How often a killed orchestrator is started again, and one of the engines stopped and started.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=20))]
    rounds: u16,
    /// How many seconds nothing happens while supervision is measured; the default is two checks of each engine.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..=3_600))]
    window_s: u16,
    /// Print JSON with every sample instead of the tables.
    #[arg(long)]
    json: bool,
}

impl Kubernetes {
    /// Runs the measurement.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        ensure!(self.engines.is_sorted(), "each number of engines must be larger than the one before");
        let binary = binary::resolve(self.binary.as_deref())?;
        let rounds = usize::from(self.rounds);
        let bench = BenchContext::new(&binary, None, rounds, Duration::ZERO, Size::Bounded)?;
        let table = run_until_signal(self.measure(&bench))??;
        print_report(&table.quantities(), rounds, self.json)?;
        if !self.json {
            write!(std::io::stdout().lock(), "\n{}", table.render_requests())?;
        }
        Ok(())
    }

    async fn measure(&self, bench: &BenchContext) -> anyhow::Result<Table> {
        let most = self.engines.last().copied().context("name a number of engines")?;
        let server = Server::find_or_start()?;
        let databases = Databases::create(&server.url, ["kubernetes"]).await?;
        log_progress("kubernetes: starting the control plane and the simulated nodes");
        let sizes = u32::try_from(self.engines.len())?;
        let cluster = Cluster::start(&self.cache, most + sizes * plain::MAX_PLAIN)?;
        let client = cluster.client().await?;
        let engines = SharedEngines::default();
        let serve = engines.serve(client.clone()).await?;
        let _played = [
            AbortOnDropHandle::new(tokio::spawn(serve)),
            AbortOnDropHandle::new(tokio::spawn(volumes::provision(client.clone()))),
        ];
        let [database] = &databases.urls;
        let mut deployment = Deployment::start(bench, &cluster, database, engines.clone()).await?;
        let mut table = Table::default();
        let window = Duration::from_secs(self.window_s.into());
        for &count in &self.engines {
            table.sizes.push(size::measure(&mut deployment, &client, count, bench.rounds, window).await?);
            engines.check()?;
        }
        Ok(table)
    }
}
