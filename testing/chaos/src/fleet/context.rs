//! What the parts of a run share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::tenant_users::{Call, IssuedKeys, Op, TenantUser};
use crate::client::{CallOutcome, send};
use crate::counters::Counters;
use crate::trigger::KillTrigger;

/// How a product's key is sent.
const PLATFORM_KEY_HEADER: &str = "x-platform-key";
/// How an engine's key is sent.
const ENGINE_KEY_HEADER: &str = "x-engine-key";

/// How long an engine may take to answer. One that hangs is asked again.
const ENGINE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A product, as its owner knows it.
#[derive(Debug)]
pub(crate) struct RegisteredProduct {
    pub(crate) product_id: String,
    pub(crate) key: String,
    pub(crate) max_engines: Option<u64>,
    /// Its engines sleep soon.
    pub(crate) sleeps: bool,
}

/// What the orchestrator can do: parts of the contract that it does not have are left out, and said to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    /// It rotates keys, restarts engines that fail, and puts idle ones to sleep.
    pub(crate) supervised: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FleetContext {
    pub(crate) seed: u64,
    pub(crate) counters: Arc<Counters>,
    pub(crate) trigger: KillTrigger,
    pub(crate) http: Client,
    /// The orchestrator's address.
    pub(crate) base_url: String,
    pub(crate) capabilities: Capabilities,
    pub(crate) products: Vec<RegisteredProduct>,
    pub(crate) users: Vec<TenantUser>,
    pub(crate) keys: IssuedKeys,
    /// Engines with a task that must not be lost.
    engines_with_turns: Mutex<HashSet<String>>,
    /// The calls of the round.
    round_calls: Mutex<Vec<Call>>,
    /// Engines were killed or stopped behind the orchestrator's back in this round.
    pub(crate) engine_fault_injected: AtomicBool,
    /// The database was out of reach in this round.
    pub(crate) database_fault_injected: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FleetContext {
    /// A world in which nothing has happened.
    pub(crate) fn new(
        seed: u64,
        tally: Arc<Counters>,
        http: Client,
        base: String,
        capabilities: Capabilities,
        (products, seats): (Vec<RegisteredProduct>, Vec<TenantUser>),
    ) -> Self {
        Self {
            seed,
            counters: tally,
            trigger: KillTrigger::default(),
            http,
            base_url: base,
            capabilities,
            products,
            users: seats,
            keys: IssuedKeys::default(),
            engines_with_turns: Mutex::default(),
            round_calls: Mutex::default(),
            engine_fault_injected: AtomicBool::new(false),
            database_fault_injected: AtomicBool::new(false),
        }
    }

    /// The product of `user_index`.
    pub(crate) fn product_of(&self, user_index: &TenantUser) -> Option<&RegisteredProduct> {
        self.products.get(user_index.product)
    }

    /// Asks `op` for the user of `user_index`.
    pub(crate) async fn send_op(&self, user_index: &TenantUser, op: Op) -> CallOutcome {
        let Some(product_of) = self.product_of(user_index) else { return CallOutcome::NotSent };
        let user = &user_index.user;
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
        let request = request.header(PLATFORM_KEY_HEADER, &product_of.key);
        send(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    /// Asks the engine at `url`.
    pub(crate) async fn call_engine(&self, url: &str, path: &str, key: &str) -> CallOutcome {
        let asking = send(self.http.get(format!("{url}{path}")).header(ENGINE_KEY_HEADER, key));
        tokio::time::timeout(ENGINE_RESPONSE_TIMEOUT, asking).await.unwrap_or(CallOutcome::Unknown)
    }

    /// Lets the engine at `url` do a turn, and waits for its end. Returns whether it completed.
    pub(crate) async fn run_turn(&self, url: &str, key: &str, task: &str) -> bool {
        let body = json!({"task_id": task, "message": "Hello!"});
        let request = self.http.post(format!("{url}/execute")).header(ENGINE_KEY_HEADER, key).json(&body);
        let turn = async { request.send().await.ok()?.text().await.ok() };
        let turn = tokio::time::timeout(Duration::from_secs(10), turn).await;
        turn.is_ok_and(|events| events.is_some_and(|events| events.contains("\"completed\"")))
    }

    /// Notes a call that has come to its end.
    pub(crate) fn record_call(&self, call: Call) {
        lock(&self.round_calls).push(call);
    }

    /// The calls of the round that ends.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *lock(&self.round_calls))
    }

    /// A turn on `engine_id` has completed.
    pub(crate) fn record_completed_turn(&self, engine_id: String) {
        lock(&self.engines_with_turns).insert(engine_id);
    }

    /// Whether a turn on `engine_id` has completed.
    pub(crate) fn has_completed_turn(&self, engine_id: &str) -> bool {
        lock(&self.engines_with_turns).contains(engine_id)
    }

    /// Whether engines were ended behind the orchestrator's back in this round.
    pub(crate) fn has_engine_fault(&self) -> bool {
        self.engine_fault_injected.load(Ordering::Relaxed)
    }

    /// Whether the database was out of reach in this round.
    pub(crate) fn has_database_fault(&self) -> bool {
        self.database_fault_injected.load(Ordering::Relaxed)
    }
}

/// The tenants and seats of a run with `clients`: one product without limits, one with a quota that its users
/// exceed, one whose engines sleep soon.
pub(crate) fn tenant_users(clients: usize) -> Vec<TenantUser> {
    const PRODUCTS: usize = 3;
    let own = (0..clients * 2).map(|number| {
        let client = number / 2;
        TenantUser::new(number % PRODUCTS, format!("own-{client}-{}", number % 2), Some(client))
    });
    let shared = (0..PRODUCTS).map(|product| TenantUser::new(product, format!("shared-{product}"), None));
    own.chain(shared).collect()
}

/// The number of the product whose engines sleep soon.
pub(crate) const SLEEPY_PRODUCT: usize = 2;

/// The policy of each product; without a threshold of its own the third one has the deployment's.
pub(crate) fn policies(threshold: bool) -> [Value; 3] {
    let sleepy = if threshold { json!({"idle_sleep_threshold_s": 0.3}) } else { json!({}) };
    [json!({}), json!({"max_engines": 3}), sleepy]
}
