//! Kills the orchestrator at random instants under load, and checks that no promise is broken.
//!
//! A [`FleetCampaign`] starts the real binary with its engines as processes or containers, and its registry in SQLite
//! or PostgreSQL. In each round several clients ask for a bounded set of users of three products, engines are ended
//! behind the orchestrator's back now and then, PostgreSQL is restarted or out of reach, and the orchestrator is
//! killed; what is left is looked at, it is started again on the same data, and once everything has settled the rules
//! in `judge` and `ledger` are applied.
//!
//! Map: `deployment` and `settings` are what runs, over `running` (`processes` or `containers`), and
//! `registry` what is stored, perhaps in a `cluster` behind a `proxy`; `load` asks, `seats` holds what was promised,
//! `aim` says when to kill, `stage` brings about what is aimed at, `strike` kills, `wreck` is what a kill met; `judge`,
//! `ledger` and `secrets` are the rules.

mod aim;
mod cluster;
mod containers;
mod deployment;
mod judge;
mod ledger;
mod load;
mod processes;
mod proxy;
mod registry;
mod report;
mod round;
mod running;
mod seats;
mod secrets;
mod settings;
mod stage;
mod strike;
mod world;
mod wreck;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use reqwest::Client;
use serde_json::{Value, json};

use self::deployment::Deployment;
use self::round::Rounds;
use self::seats::text;
use self::world::{Extent, SLEEPY, Tenant, World, policies};
use crate::api::{Asked, asked, client, code};
use crate::tally::Tally;

pub use self::report::unmet;
pub use self::running::Backend;

/// Where the registry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Database {
    /// In a file.
    Sqlite,
    /// In a cluster of PostgreSQL of the run's own.
    Postgres,
}

/// A run.
#[derive(Clone, Debug)]
pub struct FleetCampaign {
    /// The `roundhouse` binary.
    pub binary: PathBuf,
    /// What runs the engines.
    pub backend: Backend,
    /// Where the registry is.
    pub database: Database,
    /// Where all choices come from.
    pub seed: u64,
    /// How many rounds.
    pub rounds: u64,
    /// When to begin no further round.
    pub limit: Duration,
    /// What breaks a guarantee in the orchestrator: then the first violation ends the run.
    pub saboteur: Option<String>,
    /// Keeps the deployment's folder.
    pub keep: bool,
}

/// The count of rounds.
pub const ROUNDS: &str = "rounds";
/// The count of parts of the contract that the binary does not have.
pub const LEFT_OUT: &str = "NOT EXERCISED";

impl FleetCampaign {
    /// How many clients ask at once. A container takes much more of the machine than a process.
    const fn clients(&self) -> usize {
        match self.backend {
            Backend::Process => 5,
            Backend::Docker => 3,
        }
    }

    /// Runs it. What is wrong with the orchestrator is in the tally; an error is the harness's own.
    pub async fn run(&self) -> anyhow::Result<Arc<Tally>> {
        let mut folder = tempfile::Builder::new().prefix("roundhouse-chaos-fleet-").tempdir()?;
        folder.disable_cleanup(self.keep);
        let tally = Arc::new(Tally::default());
        // Dropped before the folder: it ends the engines that live there.
        let deployment = Arc::new(Deployment::new(self, folder.path()).await?);
        let http = client()?;
        let program = deployment.start_ready(false, &http).await?;
        deployment.is_called(deployment.registry().deployment_id().await?);
        let (tenants, extent) = found(&deployment, &http, &tally).await?;
        for phase in aim::phases(extent) {
            tally.add(aim::hits(phase), 0);
        }
        let seats = world::seats(self.clients());
        let base = deployment.base();
        let world = Arc::new(World::new(self.seed, Arc::clone(&tally), http, base, extent, (tenants, seats)));
        let mut rounds = Rounds::new(self, Arc::clone(&world), Arc::clone(&deployment));
        rounds.run(program).await?;
        Ok(tally)
    }
}

/// Registers the products, and finds out what the orchestrator can do.
async fn found(
    deployment: &Deployment,
    http: &Client,
    tally: &Tally,
) -> anyhow::Result<(Vec<Tenant>, Extent)> {
    let sleepy = register(deployment, http, "probe", &policies(true)[2]).await.is_ok();
    let mut tenants = Vec::new();
    for (number, policy) in policies(sleepy).iter().enumerate() {
        let registered = register(deployment, http, &format!("product-{number}"), policy).await?;
        let field = |name: &str| text(&registered, name).context("a registration without its fields");
        tenants.push(Tenant {
            product_id: field("/product_id")?,
            key: field("/platform_api_key")?,
            max_engines: policy.get("max_engines").and_then(Value::as_u64),
            sleeps: number == SLEEPY,
        });
    }
    let key = tenants.first().map(|tenant| tenant.key.clone()).unwrap_or_default();
    let request = http.post(format!("{}/engines/nobody/rotate-key", deployment.base()));
    let rotate = match asked(request.header("x-platform-key", key)).await {
        Asked::Answered(404, body) => code(&body) == "ENGINE_NOT_FOUND",
        other => bail!("a rotation for nobody says {other:?}"),
    };
    if !rotate {
        tally.count(format!(
            "{LEFT_OUT}: rotate, restart, sleep and wake: this orchestrator has none of them"
        ));
    }
    Ok((tenants, Extent { supervised: rotate }))
}

async fn register(
    deployment: &Deployment,
    http: &Client,
    slug: &str,
    policy: &Value,
) -> anyhow::Result<Value> {
    let body = json!({"slug": slug, "display_name": slug, "policy": policy});
    let request = http.post(format!("{}/products/register", deployment.base()));
    match asked(request.header("x-admin-key", deployment.admin_key()).json(&body)).await {
        Asked::Answered(200, body) => Ok(body),
        other => bail!("a product could not be registered: {other:?}"),
    }
}
