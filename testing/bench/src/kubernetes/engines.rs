//! One server that answers as the engine of every Pod, at the Pods' addresses, which all are this machine's.
//!
//! It is strict: it knows the key of an engine from the Secret of the Pod that has the connection's address, gives no
//! proof without it, refuses other keys, and is no engine at all where no Pod runs. What it does not expect is a fault,
//! which fails the measurement.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use api::engine::{ENGINE_KEY_HEADER, HEALTHY};
use api::proof::{CHALLENGE_HEADER, Challenge, PROOF_HEADER, WAITING_HEADER, waiting_tag};
use api::{ErrorBody, ErrorCode, KeyHash};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::cluster::NAMESPACE;
use super::objects::{Change, follow};
use crate::baselines::healthy;

/// The port of every engine.
const PORT: u16 = 8_000;

/// What is known of the engines' Pods, and what was asked of them.
#[derive(Default)]
pub(super) struct Engines {
    /// Of each Pod with an address, the name of the Secret with its environment.
    pods: HashMap<IpAddr, String>,
    /// The same names.
    addressed: HashSet<String>,
    /// The key's hash in each Secret.
    keys: HashMap<String, KeyHash>,
    /// The addresses that were asked for their health since [`SharedEngines::forget_checks`].
    checked: HashSet<IpAddr>,
    /// The first request that no engine expects.
    fault: Option<String>,
}

#[derive(Clone, Default)]
pub(super) struct SharedEngines(Arc<Mutex<Engines>>);

impl SharedEngines {
    /// Answers as the engines until it is dropped. Fails at once if something else uses the port.
    pub(super) async fn serve(&self, client: Client) -> anyhow::Result<impl Future<Output = ()> + use<>> {
        let listener = TcpListener::bind(("0.0.0.0", PORT)).await;
        let listener = listener.with_context(|| format!("port {PORT}, that of all engines, is used"))?;
        let service = self.router().into_make_service_with_connect_info::<EngineAddress>();
        let (of_pods, of_secrets) = (self.clone(), self.clone());
        let pods =
            follow(Api::<Pod>::namespaced(client.clone(), NAMESPACE), move |pod| of_pods.note_pod(&pod));
        let secrets = follow(Api::<Secret>::namespaced(client, NAMESPACE), move |secret| {
            of_secrets.note_secret(secret);
        });
        Ok(async move {
            let serve = async { axum::serve(listener, service).await };
            let _ = tokio::join!(serve, pods, secrets);
        })
    }

    fn router(&self) -> Router {
        Router::new()
            .route("/health", get(health))
            .route("/execute/replay", get(replay))
            .route("/rpc", post(rpc))
            .fallback(unexpected)
            .with_state(self.clone())
    }

    /// The number of Pods with an address.
    pub(super) fn running(&self) -> usize {
        self.0.lock().pods.len()
    }

    /// Whether the Pod with this Secret has an address.
    pub(super) fn is_running(&self, secret: &str) -> bool {
        self.0.lock().addressed.contains(secret)
    }

    /// Forgets which engines were asked for their health.
    pub(super) fn forget_checks(&self) {
        self.0.lock().checked.clear();
    }

    /// The number of engines that were asked for their health since then, and proved their key.
    pub(super) fn checked(&self) -> usize {
        self.0.lock().checked.len()
    }

    /// Fails if an engine was asked for something unexpected.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let fault = self.0.lock().fault.clone();
        ensure!(fault.is_none(), "an engine was asked for {}", fault.unwrap_or_default());
        Ok(())
    }

    fn note_pod(&self, change: &Change<Pod>) {
        let (Change::Present(pod) | Change::Gone(pod)) = change;
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()?.parse().ok());
        let Some(address) = address else { return };
        let mut engines = self.0.lock();
        match (change, secret_of(pod)) {
            (Change::Present(_), Some(secret)) => {
                engines.pods.insert(address, secret.to_owned());
                engines.addressed.insert(secret.to_owned());
            }
            (Change::Gone(_), Some(secret)) => {
                engines.addressed.remove(secret);
                // Another Pod may have its address already.
                if engines.pods.get(&address).is_some_and(|found| found == secret) {
                    engines.pods.remove(&address);
                }
            }
            (_, None) => {}
        }
    }

    fn note_secret(&self, change: Change<Secret>) {
        match change {
            Change::Present(secret) => {
                let hash = secret.data.as_ref().and_then(|data| data.get("ENGINE_KEY_HASH"));
                let hash = hash.and_then(|hash| KeyHash::from_hex(std::str::from_utf8(&hash.0).ok()?).ok());
                if let Some(hash) = hash {
                    self.0.lock().keys.insert(secret.name_any(), hash);
                }
            }
            Change::Gone(secret) => {
                self.0.lock().keys.remove(&secret.name_any());
            }
        }
    }

    /// The hash of the key of the engine at this address, if one runs there.
    fn key(&self, address: IpAddr) -> Option<KeyHash> {
        let engines = self.0.lock();
        engines.keys.get(engines.pods.get(&address)?).copied()
    }

    /// Replaces the key of the engine at this address.
    fn set_key(&self, address: IpAddr, hash: KeyHash) {
        let mut engines = self.0.lock();
        if let Some(secret) = engines.pods.get(&address).cloned() {
            engines.keys.insert(secret, hash);
        }
    }

    fn note_fault(&self, request: String) -> Response {
        self.0.lock().fault.get_or_insert(request);
        StatusCode::BAD_REQUEST.into_response()
    }

    /// The answer to a request that has not the key of the engine at this address; `None` if it has.
    fn refusal(&self, address: IpAddr, headers: &HeaderMap) -> Option<Response> {
        let Some(hash) = self.key(address) else { return Some(nobody()) };
        let sent = headers.get(ENGINE_KEY_HEADER).and_then(|key| key.to_str().ok());
        let accepted = sent.is_some_and(|key| hash.matches(key));
        (!accepted).then(|| StatusCode::UNAUTHORIZED.into_response())
    }
}

/// The name of the Secret with a Pod's environment.
pub(super) fn secret_of(pod: &Pod) -> Option<&str> {
    let container = pod.spec.as_ref()?.containers.first()?;
    Some(container.env_from.as_ref()?.first()?.secret_ref.as_ref()?.name.as_str())
}

/// The address that a connection was made to: that of the engine.
#[derive(Clone, Copy)]
struct EngineAddress(Option<IpAddr>);

impl Connected<IncomingStream<'_, TcpListener>> for EngineAddress {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(stream.io().local_addr().ok().map(|address: SocketAddr| address.ip()))
    }
}

type Engine = (State<SharedEngines>, ConnectInfo<EngineAddress>);

/// The answer where no engine runs, or where it has not started yet.
fn nobody() -> Response {
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

async fn health((State(engines), ConnectInfo(address)): Engine, headers: HeaderMap) -> Response {
    let EngineAddress(Some(address)) = address else { return nobody() };
    let Some(hash) = engines.key(address) else { return nobody() };
    let challenge = headers.get(CHALLENGE_HEADER).and_then(|text| Challenge::parse(text.to_str().ok()?));
    let Some(challenge) = challenge else {
        return engines.note_fault("/health without a challenge".to_owned());
    };
    engines.0.lock().checked.insert(address);
    let proof = [(PROOF_HEADER, challenge.proof(hash)), (WAITING_HEADER, waiting_tag(hash, 0, ""))];
    (proof, Json(healthy(HEALTHY.to_owned()))).into_response()
}

async fn replay((State(engines), ConnectInfo(address)): Engine, headers: HeaderMap) -> Response {
    let EngineAddress(Some(address)) = address else { return nobody() };
    engines.refusal(address, &headers).unwrap_or_else(|| {
        (StatusCode::NOT_FOUND, Json(ErrorBody::new(ErrorCode::TaskNotFound, "no such task"))).into_response()
    })
}

async fn rpc((State(engines), ConnectInfo(address)): Engine, headers: HeaderMap, body: String) -> Response {
    let EngineAddress(Some(address)) = address else { return nobody() };
    if let Some(refusal) = engines.refusal(address, &headers) {
        return refusal;
    }
    let command: Value = serde_json::from_str(&body).unwrap_or_default();
    let text = |name: &str| command.get(name).and_then(Value::as_str).unwrap_or_default();
    let result = match (text("subsystem"), text("op")) {
        ("control", "set_key_hash") => match KeyHash::from_hex(text("key_hash")) {
            Ok(hash) => {
                engines.set_key(address, hash);
                json!({})
            }
            Err(_) => return engines.note_fault(format!("a key {body}")),
        },
        ("control", "set_browser_access") => json!({}),
        ("control", "quiesce") => json!({"quiesced": command.get("lift") != Some(&true.into())}),
        ("telemetry", "waiting") => json!({"questions": []}),
        ("telemetry", "usage_days") => json!({"days": []}),
        ("telemetry", "next_due") => json!({"next_due_at": null}),
        ("telemetry", "activity") => json!({
            "running_turns": 0, "pending_hitl": 0, "last_activity_at": null, "confinement": "none",
        }),
        _ => return engines.note_fault(format!("the command {body}")),
    };
    Json(json!({"result": result})).into_response()
}

async fn unexpected(State(engines): State<SharedEngines>, request: axum::extract::Request) -> Response {
    engines.note_fault(format!("{} {}", request.method(), request.uri().path()))
}

#[cfg(test)]
#[path = "engines_tests.rs"]
mod tests;
