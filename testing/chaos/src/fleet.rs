//! Kills the orchestrator at random instants under load, and checks that no guarantee is broken.
//!
//! A [`FleetCampaign`] starts the real binary with its engines as processes, containers or Pods, and its registry
//! in SQLite or PostgreSQL. In each round several clients send requests for a bounded set of users of three products,
//! some engines are killed directly, PostgreSQL is restarted or unreachable, and the orchestrator is killed. The
//! remaining state is inspected, the orchestrator is restarted on the same data, and once everything has settled
//! the rules in `checker` and `audit_log` are applied.
//!
//! Map: `deployment` and `settings` are what runs, over `engine_host` (`processes`, `containers` or `pods`),
//! and `registry` what is stored, perhaps in a `cluster` behind a `proxy`; Pods are in a `kubernetes` cluster, seen by a
//! `pod_watch` and injured by `cluster_fault`; `load` sends the requests, `tenant_users`
//! holds what was acknowledged, `schedule` plans the kills, `setup` brings about the state that a kill needs,
//! `kill` kills, `aftermath` determines what a kill interrupted; `checker`, `audit_log` and `secrets` are the
//! rules. Another run, [`DueMinute`], kills orchestrator and engines when schedules are due, and judges what became
//! of them with `due_verdict`. And [`Failover`] takes the active one of two orchestrators away again and again.

mod aftermath;
mod audit_log;
mod checker;
mod cluster;
mod cluster_fault;
mod containers;
mod context;
mod deployment;
mod due_clock;
mod due_minute;
mod due_verdict;
mod engine_host;
mod engine_urls;
mod failover;
mod kill;
pub mod kubernetes;
mod load;
mod pod_process;
mod pod_watch;
mod pods;
mod processes;
mod proxy;
mod registry;
mod report;
mod round;
mod schedule;
mod secrets;
mod settings;
mod setup;
mod tenant_users;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use reqwest::Client;
use serde_json::{Value, json};

use self::context::{Capabilities, FleetContext, RegisteredProduct, SLEEPY_PRODUCT, policies};
use self::deployment::Deployment;
use self::round::RoundRunner;
use self::tenant_users::text_field;
use crate::client::{CallOutcome, error_code, send};
use crate::counters::Counters;

pub use self::due_clock::ClockPlan;
pub use self::due_minute::DueMinute;
pub use self::engine_host::Backend;
pub use self::failover::Failover;
pub use self::report::unmet_coverage;

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
    pub time_limit: Duration,
    /// The mutant that breaks a guarantee in the orchestrator: then the first violation ends the run.
    pub mutant: Option<String>,
    /// Whether the Kubernetes cluster is injured, too, which then must be the run's own.
    pub cluster_faults: bool,
    /// Keeps the deployment's folder.
    pub keep_folder: bool,
}

/// The count of rounds.
pub const ROUNDS: &str = "rounds";
/// The count of Pods that the watch over all of them has seen.
pub const PODS_WATCHED: &str = "Pods watched";
/// The count of parts of the contract that the binary does not have.
pub const NOT_EXERCISED: &str = "NOT EXERCISED";

impl FleetCampaign {
    /// Runs the campaign. The orchestrator's faults are counted as violations; an error is the harness's own.
    pub async fn run(&self) -> anyhow::Result<Arc<Counters>> {
        let mut folder = tempfile::Builder::new().prefix("roundhouse-chaos-fleet-").tempdir()?;
        folder.disable_cleanup(self.keep_folder);
        let counters = Arc::new(Counters::default());
        // Dropped before the folder: it ends the engines that live there.
        let deployment = Arc::new(Deployment::new(self, folder.path()).await?);
        let http = deployment.http_client()?;
        let program = deployment.start_ready(false, &http).await?;
        deployment.set_id(deployment.registry().deployment_id().await?);
        let (products, capabilities) = register_products(&deployment, &http, &counters).await?;
        for phase in schedule::phases(capabilities) {
            counters.add(schedule::hit_counter_name(phase), 0);
        }
        let users = context::tenant_users(self.backend.client_count());
        let base_url = deployment.base_url();
        let context = Arc::new(FleetContext::new(
            self.seed,
            Arc::clone(&counters),
            (http, base_url),
            (deployment.urls(), self.backend.time_scale()),
            capabilities,
            (products, users),
        ));
        let mut rounds = RoundRunner::new(self, Arc::clone(&context), Arc::clone(&deployment));
        rounds.run(program).await?;
        Ok(counters)
    }
}

/// Registers the products, and finds out what the orchestrator can do.
async fn register_products(
    deployment: &Deployment,
    http: &Client,
    counters: &Counters,
) -> anyhow::Result<(Vec<RegisteredProduct>, Capabilities)> {
    let sleepy = register_product(deployment, http, "probe", &policies(true)[2]).await.is_ok();
    let mut products = Vec::new();
    for (number, policy) in policies(sleepy).iter().enumerate() {
        let registered = register_product(deployment, http, &format!("product-{number}"), policy).await?;
        let field = |name: &str| text_field(&registered, name).context("the registration lacks a field");
        products.push(RegisteredProduct {
            product_id: field("/product_id")?,
            key: field("/platform_api_key")?,
            max_engines: policy.get("max_engines").and_then(Value::as_u64),
            sleeps: number == SLEEPY_PRODUCT,
        });
    }
    let key = products.first().map(|product| product.key.clone()).unwrap_or_default();
    let request = http.post(format!("{}/engines/nobody/rotate-key", deployment.base_url()));
    let rotate = match send(request.header("x-platform-key", key)).await {
        CallOutcome::Response(404, body) => error_code(&body) == "ENGINE_NOT_FOUND",
        other => bail!("a rotation for an unknown user returned {other:?}"),
    };
    if !rotate {
        counters.count(format!(
            "{NOT_EXERCISED}: rotate, restart, sleep and wake: this orchestrator has none of them"
        ));
    }
    Ok((products, Capabilities { supervised: rotate }))
}

async fn register_product(
    deployment: &Deployment,
    http: &Client,
    slug: &str,
    policy: &Value,
) -> anyhow::Result<Value> {
    let body = json!({"slug": slug, "display_name": slug, "policy": policy});
    let request = http.post(format!("{}/products/register", deployment.base_url()));
    match send(request.header("x-admin-key", deployment.admin_key()).json(&body)).await {
        CallOutcome::Response(200, body) => Ok(body),
        other => bail!("a product could not be registered: {other:?}"),
    }
}
