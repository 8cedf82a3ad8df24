//! What the parts of a run share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::seats::{Call, Keys, Op, Seat};
use crate::api::{Asked, asked};
use crate::tally::Tally;
use crate::trap::Trap;

/// How a product's key is sent.
const PLATFORM_KEY: &str = "x-platform-key";
/// How an engine's key is sent.
const ENGINE_KEY: &str = "x-engine-key";

/// How long an engine may take to answer. One that hangs is asked again.
const ENGINE: Duration = Duration::from_secs(2);

/// A product, as its owner knows it.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) product_id: String,
    pub(crate) key: String,
    pub(crate) max_engines: Option<u64>,
    /// Its engines sleep soon.
    pub(crate) sleeps: bool,
}

/// What the orchestrator can do: parts of the contract that it does not have are left out, and said to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// It rotates keys, restarts engines that fail, and puts idle ones to sleep.
    pub(crate) supervised: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) tally: Arc<Tally>,
    pub(crate) trap: Trap,
    pub(crate) http: Client,
    /// The orchestrator's address.
    pub(crate) base: String,
    pub(crate) extent: Extent,
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) seats: Vec<Seat>,
    pub(crate) keys: Keys,
    /// Engines with a task that must not be lost.
    kept: Mutex<HashSet<String>>,
    /// The calls of the round.
    calls: Mutex<Vec<Call>>,
    /// Engines were killed or stopped behind the orchestrator's back in this round.
    pub(crate) disturbed: AtomicBool,
    /// The database was out of reach in this round.
    pub(crate) troubled: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A world in which nothing has happened.
    pub(crate) fn new(
        seed: u64,
        tally: Arc<Tally>,
        http: Client,
        base: String,
        extent: Extent,
        (tenants, seats): (Vec<Tenant>, Vec<Seat>),
    ) -> Self {
        Self {
            seed,
            tally,
            trap: Trap::default(),
            http,
            base,
            extent,
            tenants,
            seats,
            keys: Keys::default(),
            kept: Mutex::default(),
            calls: Mutex::default(),
            disturbed: AtomicBool::new(false),
            troubled: AtomicBool::new(false),
        }
    }

    /// The product of `seat`.
    pub(crate) fn tenant(&self, seat: &Seat) -> Option<&Tenant> {
        self.tenants.get(seat.product)
    }

    /// Asks `op` for the user of `seat`.
    pub(crate) async fn ask(&self, seat: &Seat, op: Op) -> Asked {
        let Some(tenant) = self.tenant(seat) else { return Asked::Unsent };
        let user = &seat.user;
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
        let request = self.http.request(method, format!("{}{path}", self.base));
        let request = request.header(PLATFORM_KEY, &tenant.key);
        asked(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    /// Asks the engine at `url`.
    pub(crate) async fn ask_engine(&self, url: &str, path: &str, key: &str) -> Asked {
        let asking = asked(self.http.get(format!("{url}{path}")).header(ENGINE_KEY, key));
        tokio::time::timeout(ENGINE, asking).await.unwrap_or(Asked::Unknown)
    }

    /// Lets the engine at `url` do a turn, and waits for its end. Returns whether it completed.
    pub(crate) async fn do_a_turn(&self, url: &str, key: &str, task: &str) -> bool {
        let body = json!({"task_id": task, "message": "Hello!"});
        let request = self.http.post(format!("{url}/execute")).header(ENGINE_KEY, key).json(&body);
        let turn = async { request.send().await.ok()?.text().await.ok() };
        let turn = tokio::time::timeout(Duration::from_secs(10), turn).await;
        turn.is_ok_and(|events| events.is_some_and(|events| events.contains("\"completed\"")))
    }

    /// Notes a call that has come to its end.
    pub(crate) fn note(&self, call: Call) {
        lock(&self.calls).push(call);
    }

    /// The calls of the round that ends.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *lock(&self.calls))
    }

    /// A turn on `engine_id` has completed.
    pub(crate) fn keep(&self, engine_id: String) {
        lock(&self.kept).insert(engine_id);
    }

    /// Whether a turn on `engine_id` has completed.
    pub(crate) fn is_kept(&self, engine_id: &str) -> bool {
        lock(&self.kept).contains(engine_id)
    }

    /// Whether engines were ended behind the orchestrator's back in this round.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.disturbed.load(Ordering::Relaxed)
    }

    /// Whether the database was out of reach in this round.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed)
    }
}

/// The tenants and seats of a run with `clients`: one product without limits, one with a quota that its users
/// exceed, one whose engines sleep soon.
pub(crate) fn seats(clients: usize) -> Vec<Seat> {
    const PRODUCTS: usize = 3;
    let own = (0..clients * 2).map(|number| {
        let client = number / 2;
        Seat::new(number % PRODUCTS, format!("own-{client}-{}", number % 2), Some(client))
    });
    let shared = (0..PRODUCTS).map(|product| Seat::new(product, format!("shared-{product}"), None));
    own.chain(shared).collect()
}

/// The number of the product whose engines sleep soon.
pub(crate) const SLEEPY: usize = 2;

/// The policy of each product; without a threshold of its own the third one has the deployment's.
pub(crate) fn policies(threshold: bool) -> [Value; 3] {
    let sleepy = if threshold { json!({"idle_sleep_threshold_s": 0.3}) } else { json!({}) };
    [json!({}), json!({"max_engines": 3}), sleepy]
}
