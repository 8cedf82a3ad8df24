//! Engines are booted ahead, and a provision takes one of them: each for one user, and only if a new one would be like it.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::idempotency::product_id;
use crate::metrics::{scrape, value};
use crate::support::http::{client, send};
use crate::support::schema::PROVISIONED;
use crate::support::{
    Backend, Deployment, Engine, Orchestrator, Product, assert_fields, env_number, eventually, skip,
};

/// A deployment with a warm pool, and the address of its metrics.
pub(crate) struct WarmFleet {
    pub(crate) deployment: Deployment,
    metrics: String,
}

impl WarmFleet {
    /// `None` if the backend of this test run has no warm pool.
    pub(crate) fn new(per_product: usize) -> Option<Self> {
        if Backend::from_env() == Backend::Kubernetes {
            skip("a backend with a warm pool");
            return None;
        }
        Some(Self::on(Deployment::new(), per_product))
    }

    pub(crate) fn on(deployment: Deployment, per_product: usize) -> Self {
        let last = deployment.fleet.test_env.ports.last();
        let metrics = format!("127.0.0.1:{last}");
        let deployment = deployment
            .with_env("ORCH_PORT_MAX", (last - 1).to_string())
            .with_env("ORCH_METRICS_ADDR", metrics.clone())
            .with_env("ORCH_WARM_ENGINES", per_product.to_string());
        Self { deployment, metrics }
    }

    /// The engines that have a mark: they are nobody's.
    pub(crate) fn marked(&self) -> BTreeSet<String> {
        let folder = self.deployment.fleet.folder().join("engines/.warm-engines");
        let Ok(entries) = fs::read_dir(folder) else { return BTreeSet::new() };
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The engines that have data.
    pub(crate) fn folders(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.deployment.fleet.folder().join("engines")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("eng_")).collect()
    }

    /// The number of instances that run.
    pub(crate) async fn instances(&self) -> usize {
        match Backend::from_env() {
            Backend::Docker => self.deployment.containers().await.len(),
            Backend::Process | Backend::Kubernetes => self.deployment.fleet.engine_processes().len(),
        }
    }

    async fn metric(&self, series: &str) -> f64 {
        value(&scrape(&self.metrics, "text/plain").await, series).unwrap_or_default()
    }

    /// Waits until that many engines are ready and nothing else is warm. Returns them.
    pub(crate) async fn wait_ready(&self, count: usize) -> BTreeSet<String> {
        eventually(&format!("{count} warm engines are ready"), async || {
            let text = scrape(&self.metrics, "text/plain").await;
            let number = |state: &str| value(&text, &format!("roundhouse_warm_engines{{state=\"{state}\"}}"));
            let is_so = number("ready") == Some(f64::from(u32::try_from(count).unwrap()))
                && number("booting") == Some(0.0)
                && number("ending") == Some(0.0);
            let marked = self.marked();
            (is_so && marked.len() == count).then_some(marked)
        })
        .await
    }

    async fn claims(&self, outcome: &str) -> f64 {
        self.metric(&format!("roundhouse_warm_claims_total{{outcome=\"{outcome}\"}}")).await
    }
}

impl Orchestrator {
    async fn set_policy(&self, product_id: &str, policy: Value) {
        let request = client().put(format!("{}/products/{product_id}/policy", self.base));
        let request = request.header("x-admin-key", &self.admin_key).json(&json!({"policy": policy}));
        assert_eq!(send(request).await.status, 200);
    }

    /// The number of ports that engines have leased.
    pub(crate) async fn leased_ports(&self) -> u64 {
        let status = self.operate(Method::GET, "/fleet/status").await.body;
        status["capacity"]["leased_ports"].as_u64().unwrap()
    }
}

async fn provision(product: &Product, user: &str) -> Engine {
    let provisioned = product.provision(user).await.assert_ok(PROVISIONED);
    assert_fields(&provisioned, PROVISIONED);
    Engine::new(&provisioned)
}

#[tokio::test]
async fn a_provision_takes_an_engine_that_was_booted_before_and_no_two_take_the_same() {
    let Some(fleet) = WarmFleet::new(2) else { return };
    let (orchestrator, product) = fleet.deployment.start_with_product().await;
    let before = fleet.wait_ready(2).await;
    assert_eq!((fleet.folders(), fleet.instances().await), (before.clone(), 2));
    assert_eq!(product.list("").await.1, 0, "they are nobody's");

    let users = ["ada", "bob", "eve", "joe"];
    let engines = futures::future::join_all(users.map(|user| provision(&product, user))).await;
    let ids: BTreeSet<_> = engines.iter().map(|engine| engine.id.clone()).collect();
    let keys: BTreeSet<_> = engines.iter().map(|engine| engine.key.clone()).collect();
    assert_eq!((ids.len(), keys.len()), (4, 4), "each has an engine and a key of their own");
    let taken = ids.intersection(&before).count();
    assert!(taken == 2, "both warm engines were taken: {before:?}, {ids:?}");
    assert!(fleet.claims("hit").await >= 2.0 && fleet.claims("unhealthy").await == 0.0);
    for (engine, user) in engines.iter().zip(users) {
        assert_eq!(engine.get("/tasks").await.body["total"], 0, "nobody has used it");
        engine.execute("task", "Hello!").await.collect().await;
        assert_eq!(engine.get("/tasks").await.body["total"], 1);
        let record = product.get(user).await.body;
        assert_eq!(
            (record["engine_id"].as_str(), record["api_key"].as_str()),
            (Some(&*engine.id), Some(&*engine.key))
        );
        let transition = product.explain(user).await["last_transition"].clone();
        assert_eq!(transition["to"], "running", "{transition}");
    }
    assert_eq!(product.audit_rows("provision").await.len(), 4);

    // What was taken is replaced; an admit takes one, too.
    let next = fleet.wait_ready(2).await;
    assert!(next.is_disjoint(&ids), "{next:?}");
    let admitted = product.admit("zoe").await.assert_ok("admitted:bool engine:object");
    assert!(next.contains(admitted["engine"]["engine_id"].as_str().unwrap()), "{admitted}");
    // It is an engine like any other from then on.
    let zoe = Engine::new(&admitted["engine"]);
    assert_eq!(product.stop("zoe").await.status, 200);
    assert_eq!(product.start("zoe").await.status, 200);
    assert_eq!(product.engine("zoe").await.key, zoe.key);
    assert_eq!(product.delete("zoe").await.status, 200);
    assert!(!fleet.folders().contains(&zoe.id));
    drop(orchestrator);
}

#[tokio::test]
async fn an_engine_that_a_new_one_would_differ_from_is_replaced_and_never_taken() {
    let Some(fleet) = WarmFleet::new(1) else { return };
    let catalog = fleet.deployment.catalog();
    crate::support::fleet::write_soul(&catalog);
    let fleet = WarmFleet {
        deployment: fleet.deployment.with_env("ORCH_CATALOG_MOUNT_PATH", catalog.to_str().unwrap()),
        ..fleet
    };
    let (orchestrator, product) = fleet.deployment.start_with_product().await;
    let id = product_id(&product).await;
    let mut before = fleet.wait_ready(1).await;
    for (number, change) in ["policy", "origins", "catalog"].into_iter().enumerate() {
        match change {
            "policy" => {
                let policy = json!({"oauth_redirect_base_url": "https://shop.example/callback"});
                orchestrator.set_policy(&id, policy).await;
            }
            "origins" => {
                let body = json!({"origins": ["https://shop.example"]});
                assert_eq!(product.call(Method::PUT, "/origins", Some(body)).await.status, 200);
            }
            _ => fs::write(catalog.join("soul.md"), "You are somebody else by now.").unwrap(),
        }
        // At once, before the pool has noticed anything.
        let engine = provision(&product, &format!("user-{number}")).await;
        assert!(!before.contains(&engine.id), "{change}");
        let after = eventually("it is replaced", async || {
            let ready = fleet.wait_ready(1).await;
            ready.is_disjoint(&before).then_some(ready)
        })
        .await;
        assert!(before.is_disjoint(&fleet.folders()), "{change}: nothing is left of it");
        before = after;
    }
    // A policy that engines are not launched with changes nothing.
    let policy = json!({"oauth_redirect_base_url": "https://shop.example/callback", "rate_limit_rpm": 1_000});
    orchestrator.set_policy(&id, policy).await;
    assert!(before.contains(&provision(&product, "last").await.id));
}

#[tokio::test]
async fn a_drain_and_a_product_that_is_out_of_use_leave_no_warm_engine() {
    let Some(fleet) = WarmFleet::new(1) else { return };
    let (orchestrator, _shop) = fleet.deployment.start_with_product().await;
    let bank = orchestrator.register("bank", json!({})).await;
    let bank_id = product_id(&bank).await;
    fleet.wait_ready(2).await;

    assert_eq!(orchestrator.operate(Method::POST, "/fleet/drain").await.status, 200);
    eventually("the deployment is drained", async || {
        let left = orchestrator.operate(Method::GET, "/fleet/drain").await.body["left"].clone();
        (left == 0).then_some(())
    })
    .await;
    assert_eq!((fleet.instances().await, fleet.folders().len(), fleet.marked().len()), (0, 0, 0));
    assert_eq!(orchestrator.leased_ports().await, 0);
    assert_eq!(orchestrator.operate(Method::DELETE, "/fleet/drain").await.status, 200);
    fleet.wait_ready(2).await;

    let path = format!("/products/{bank_id}");
    assert_eq!(orchestrator.operate(Method::POST, &format!("{path}/disable")).await.status, 200);
    fleet.wait_ready(1).await;
    assert_eq!(orchestrator.operate(Method::POST, &format!("{path}/enable")).await.status, 200);
    fleet.wait_ready(2).await;
    assert_eq!(orchestrator.operate(Method::POST, &format!("{path}/disable")).await.status, 200);
    let plan = orchestrator.operate(Method::GET, &format!("{path}/deletion")).await.body;
    let confirmed = format!("{path}?confirmation={}", plan["confirmation"].as_str().unwrap());
    assert_eq!(orchestrator.operate(Method::DELETE, &confirmed).await.status, 200);
    eventually("the product is deleted", async || {
        (orchestrator.operate(Method::GET, &path).await.body["state"] == "deleted").then_some(())
    })
    .await;
    assert_eq!(fleet.wait_ready(1).await.len(), 1, "the other product's is left");
    assert_eq!((fleet.instances().await, fleet.folders().len()), (1, 1));
}

#[tokio::test]
async fn warm_engines_outlive_the_orchestrator_and_one_that_dies_is_replaced() {
    let Some(fleet) = WarmFleet::new(2) else { return };
    let (orchestrator, product) = fleet.deployment.start_with_product().await;
    let before = fleet.wait_ready(2).await;
    let orchestrator = fleet.deployment.kill_and_start(orchestrator).await;
    assert_eq!(fleet.wait_ready(2).await, before, "they were adopted");
    assert!(before.contains(&provision(&product, "ada").await.id));

    let ready = fleet.wait_ready(2).await;
    let victim = ready.first().unwrap();
    let record = json!({"engine_id": victim, "url": "http://127.0.0.1:1", "api_key": "none"});
    fleet.deployment.kill_engine(&Engine::new(&record));
    // Whether its exit was noticed by then or not.
    let bob = provision(&product, "bob").await;
    bob.health().await;
    eventually("it is replaced", async || {
        let ready = fleet.wait_ready(2).await;
        (!ready.contains(victim)).then_some(())
    })
    .await;

    // Without a pool, nothing of it is left.
    assert_eq!(orchestrator.signal_and_wait(Signal::TERM).await.code, Some(0));
    let mut without = fleet.deployment.launch_with("ORCH_WARM_ENGINES", "0");
    without.wait_ready().await;
    eventually("the pool is gone", async || (fleet.folders().len() == 2).then_some(())).await;
    eventually("only the users' engines run", async || (fleet.instances().await == 2).then_some(())).await;
    eventually("only they have ports", async || (without.leased_ports().await == 2).then_some(())).await;
}

#[tokio::test]
async fn an_engine_that_had_a_user_is_not_taken_when_the_registry_is_restored_from_an_earlier_copy() {
    // The rule is the registry's and the data root's, whatever runs the engines.
    if Backend::from_env() != Backend::Process {
        return;
    }
    let fleet = WarmFleet::on(Deployment::process_and_sqlite(), 1);
    let (orchestrator, product) = fleet.deployment.start_with_product().await;
    let before = fleet.wait_ready(1).await;
    let folder = fleet.deployment.fleet.folder().to_owned();
    let copy = folder.join("copy.sqlite");
    let file = folder.join("registry.sqlite");
    rusqlite::Connection::open(&file).unwrap().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let ada = provision(&product, "ada").await;
    assert!(before.contains(&ada.id));
    ada.execute("secret", "Hello!").await.collect().await;
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    for name in ["registry.sqlite-wal", "registry.sqlite-shm"] {
        let _ = fs::remove_file(folder.join(name));
    }
    fs::rename(&copy, &file).unwrap();

    let _orchestrator = fleet.deployment.start().await;
    let bob = provision(&product, "bob").await;
    assert_ne!((&bob.id, &bob.key), (&ada.id, &ada.key), "it is somebody else's");
    let ready = fleet.wait_ready(1).await;
    assert!(!ready.contains(&ada.id));
    assert!(fleet.folders().contains(&ada.id), "the data is left alone");
}

/// Provisions of users, one after the other: the time of each.
async fn provision_times(product: &Product, count: usize, mut between: impl AsyncFnMut()) -> Vec<Duration> {
    let mut times = Vec::new();
    for user in 0..count {
        between().await;
        let (user, started) = (format!("user-{user}"), Instant::now());
        assert_eq!(product.provision(&user).await.status, 200);
        times.push(started.elapsed());
        assert_eq!(product.delete(&user).await.status, 200);
    }
    times.sort();
    times
}

/// `ROUNDHOUSE_TEST_WARM_PROVISIONS` sets how many there are.
#[tokio::test]
#[expect(clippy::print_stdout, reason = "the times are printed for runs with --nocapture")]
async fn a_provision_is_quicker_with_a_warm_engine() {
    let count = env_number("ROUNDHOUSE_TEST_WARM_PROVISIONS", 10);
    let Some(fleet) = WarmFleet::new(1) else { return };
    let mut without = fleet.deployment.launch_with("ORCH_WARM_ENGINES", "0");
    without.wait_ready().await;
    let product = without.register("shop", json!({})).await;
    let cold = provision_times(&product, count, async || ()).await;
    assert_eq!(without.signal_and_wait(Signal::TERM).await.code, Some(0));

    let _orchestrator = fleet.deployment.start().await;
    let warm = provision_times(&product, count, async || drop(fleet.wait_ready(1).await)).await;
    let missed = f64::from(u32::try_from(count).unwrap()) - fleet.claims("hit").await;
    assert!(missed.abs() < 0.5, "each took one");
    let at = |times: &[Duration], percent: usize| times[(times.len() - 1) * percent / 100];
    for (name, times) in [("without a pool", &cold), ("with a warm engine", &warm)] {
        println!("{count} provisions {name}: p50 {:.1?}, p99 {:.1?}", at(times, 50), at(times, 99));
    }
    assert!(at(&warm, 50) < at(&cold, 50), "{warm:?} {cold:?}");
}
