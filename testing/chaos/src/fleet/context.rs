//! The state that the parts of a run share, and the calls to orchestrator and engines.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::engine_urls::EngineUrls;
use super::tenant_users::{Call, IssuedKeys, Op, TenantUser};
use crate::client::{CallOutcome, send};
use crate::counters::Counters;
use crate::trigger::KillTrigger;

/// The header of a product's key.
const PLATFORM_KEY_HEADER: &str = "x-platform-key";
/// The header of an engine's key.
const ENGINE_KEY_HEADER: &str = "x-engine-key";

/// The timeout of a call to an engine. A call to an engine that hangs is repeated.
const ENGINE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A registered product.
#[derive(Debug)]
pub(crate) struct RegisteredProduct {
    pub(crate) product_id: String,
    pub(crate) key: String,
    pub(crate) max_engines: Option<u64>,
    /// Whether its engines go to sleep after a short time.
    pub(crate) sleeps: bool,
}

/// The capabilities of the orchestrator. Parts of the contract that it does not have are left out, and reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    /// Whether it rotates keys, restarts failed engines, and puts idle ones to sleep.
    pub(crate) supervised: bool,
}

/// The shared state of a run.
#[derive(Debug)]
pub(crate) struct FleetContext {
    pub(crate) seed: u64,
    pub(crate) counters: Arc<Counters>,
    pub(crate) trigger: KillTrigger,
    pub(crate) http: Client,
    /// The orchestrator's base URL.
    pub(crate) base_url: String,
    /// How the URLs of the engines are formed.
    pub(crate) urls: EngineUrls,
    /// How many times as long as with processes everything takes.
    pub(crate) time_scale: u32,
    pub(crate) capabilities: Capabilities,
    pub(crate) products: Vec<RegisteredProduct>,
    pub(crate) users: Vec<TenantUser>,
    pub(crate) keys: IssuedKeys,
    /// Engines with a completed turn, whose task must not be lost.
    engines_with_turns: Mutex<HashSet<String>>,
    /// The completed calls of the round.
    round_calls: Mutex<Vec<Call>>,
    /// Whether engines were killed or stopped behind the orchestrator's back in this round.
    pub(crate) engine_fault_injected: AtomicBool,
    /// Whether the database was unavailable in this round.
    pub(crate) database_fault_injected: AtomicBool,
    /// Whether the cluster was injured in this round.
    pub(crate) cluster_fault_injected: AtomicBool,
}

impl FleetContext {
    /// Creates the state at the beginning of a run.
    pub(crate) fn new(
        seed: u64,
        counters: Arc<Counters>,
        (http, base_url): (Client, String),
        (urls, time_scale): (EngineUrls, u32),
        capabilities: Capabilities,
        (products, users): (Vec<RegisteredProduct>, Vec<TenantUser>),
    ) -> Self {
        Self {
            seed,
            counters,
            trigger: KillTrigger::default(),
            http,
            base_url,
            urls,
            time_scale,
            capabilities,
            products,
            users,
            keys: IssuedKeys::default(),
            engines_with_turns: Mutex::default(),
            round_calls: Mutex::default(),
            engine_fault_injected: AtomicBool::new(false),
            database_fault_injected: AtomicBool::new(false),
            cluster_fault_injected: AtomicBool::new(false),
        }
    }

    /// Returns the product of `tenant_user`.
    pub(crate) fn product_of(&self, tenant_user: &TenantUser) -> Option<&RegisteredProduct> {
        self.products.get(tenant_user.product)
    }

    /// Sends `op` for `tenant_user` to the orchestrator.
    pub(crate) async fn send_op(&self, tenant_user: &TenantUser, op: Op) -> CallOutcome {
        let Some(product) = self.product_of(tenant_user) else { return CallOutcome::NotSent };
        let user = &tenant_user.user;
        let (method, path, body) = match op {
            Op::Provision => (Method::POST, "/engines/provision".to_owned(), Some(json!({"user_id": user}))),
            Op::Admit { provision, wake } => {
                let body = json!({"auto_provision": provision, "auto_wake": wake});
                (Method::POST, format!("/engines/{user}/admit"), Some(body))
            }
            Op::Start => (Method::POST, format!("/engines/{user}/start"), None),
            Op::Stop => (Method::POST, format!("/engines/{user}/stop"), None),
            Op::Rotate => (Method::POST, format!("/engines/{user}/rotate-key"), None),
            Op::Destroy => (Method::DELETE, format!("/engines/{user}"), None),
            Op::Get => (Method::GET, format!("/engines/{user}"), None),
            Op::List => (Method::GET, "/engines?limit=1000".to_owned(), None),
        };
        let request = self.http.request(method, format!("{}{path}", self.base_url));
        let request = request.header(PLATFORM_KEY_HEADER, &product.key);
        send(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    /// Sends a GET request to the engine at `url`.
    pub(crate) async fn call_engine(&self, url: &str, path: &str, key: &str) -> CallOutcome {
        let call = send(self.http.get(format!("{url}{path}")).header(ENGINE_KEY_HEADER, key));
        tokio::time::timeout(ENGINE_RESPONSE_TIMEOUT, call).await.unwrap_or(CallOutcome::Unknown)
    }

    /// Runs a turn on the engine at `url` and waits for its end. Returns whether it completed.
    pub(crate) async fn run_turn(&self, url: &str, key: &str, task: &str) -> bool {
        let body = json!({"task_id": task, "message": "Hello!"});
        let request = self.http.post(format!("{url}/execute")).header(ENGINE_KEY_HEADER, key).json(&body);
        let turn = async { request.send().await.ok()?.text().await.ok() };
        let turn = tokio::time::timeout(Duration::from_secs(10), turn).await;
        turn.is_ok_and(|events| events.is_some_and(|events| events.contains("\"completed\"")))
    }

    /// Records a completed call.
    pub(crate) fn record_call(&self, call: Call) {
        self.round_calls.lock().push(call);
    }

    /// Removes and returns the calls of the round.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.round_calls.lock())
    }

    /// Records that a turn on `engine_id` has completed.
    pub(crate) fn record_completed_turn(&self, engine_id: String) {
        self.engines_with_turns.lock().insert(engine_id);
    }

    /// Returns whether a turn on `engine_id` has completed.
    pub(crate) fn has_completed_turn(&self, engine_id: &str) -> bool {
        self.engines_with_turns.lock().contains(engine_id)
    }

    /// Returns whether a fault was injected into an engine in this round.
    pub(crate) fn has_engine_fault(&self) -> bool {
        self.engine_fault_injected.load(Ordering::Relaxed)
    }

    /// Returns whether the cluster was injured in this round.
    pub(crate) fn has_cluster_fault(&self) -> bool {
        self.cluster_fault_injected.load(Ordering::Relaxed)
    }

    /// Returns whether the database was unavailable in this round.
    pub(crate) fn has_database_fault(&self) -> bool {
        self.database_fault_injected.load(Ordering::Relaxed)
    }
}

/// Returns the users of a run with `clients` clients, in three products: one without limits, one with a quota that
/// its users exceed, and one whose engines sleep soon.
pub(crate) fn tenant_users(clients: usize) -> Vec<TenantUser> {
    const PRODUCTS: usize = 3;
    let own = (0..clients * 2).map(|number| {
        let client = number / 2;
        TenantUser::new(number % PRODUCTS, format!("own-{client}-{}", number % 2), Some(client))
    });
    let shared = (0..PRODUCTS).map(|product| TenantUser::new(product, format!("shared-{product}"), None));
    own.chain(shared).collect()
}

/// The index of the product whose engines sleep soon.
pub(crate) const SLEEPY_PRODUCT: usize = 2;

/// Returns the policy of each product. Without `threshold`, the third one uses the deployment's idle threshold.
pub(crate) fn policies(threshold: bool) -> [Value; 3] {
    let sleepy = if threshold { json!({"idle_sleep_threshold_s": 0.3}) } else { json!({}) };
    [json!({}), json!({"max_engines": 3}), sleepy]
}
