use api::EngineKey;
use http_body_util::Full;
use hyper::Method;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::client::Client as HttpClient;

/// The address of the only Pod.
const ADDRESS: [u8; 4] = [127, 64, 0, 1];

struct Played {
    engines: SharedEngines,
    key: EngineKey,
    port: u16,
    _server: AbortOnDropHandle<()>,
}

fn pod() -> Pod {
    let container = json!({"name": "engine", "envFrom": [{"secretRef": {"name": "environment"}}]});
    serde_json::from_value(json!({
        "metadata": {"name": "pod"}, "spec": {"containers": [container]}, "status": {"podIP": "127.64.0.1"},
    }))
    .unwrap()
}

impl Played {
    async fn start() -> Self {
        let (engines, key) = (SharedEngines::default(), EngineKey::generate().unwrap());
        engines.note_pod(&Change::Present(pod()));
        let hash = k8s_openapi::ByteString(key.hash().to_hex().into_bytes());
        let mut secret =
            Secret { data: Some([("ENGINE_KEY_HASH".to_owned(), hash)].into()), ..Secret::default() };
        secret.metadata.name = Some("environment".to_owned());
        engines.note_secret(Change::Present(secret));
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = engines.router().into_make_service_with_connect_info::<EngineAddress>();
        let server =
            AbortOnDropHandle::new(tokio::spawn(async { axum::serve(listener, service).await.unwrap() }));
        Self { engines, key, port, _server: server }
    }

    /// Sends a request to `address` and returns the status and the proof of the answer.
    async fn ask(
        &self,
        address: [u8; 4],
        (method, path): (Method, &str),
        header: (&str, &str),
        body: Value,
    ) -> (u16, Option<String>) {
        let mut client = HttpClient::connect((address, self.port).into()).await.unwrap();
        let request = client.request(method, path).header(header.0, header.1);
        let answer = client.send(request.body(Full::from(body.to_string())).unwrap()).await.unwrap();
        let proof = answer.headers().get(PROOF_HEADER).map(|proof| proof.to_str().unwrap().to_owned());
        (answer.status().as_u16(), proof)
    }
}

const HEALTH: (Method, &str) = (Method::GET, "/health");
const RPC: (Method, &str) = (Method::POST, "/rpc");

#[tokio::test]
async fn an_engine_proves_its_key_where_its_pod_runs_and_nowhere_else() {
    let played = Played::start().await;
    let challenge = Challenge::generate().unwrap();
    let text = challenge.to_string();
    let header = (CHALLENGE_HEADER, text.as_str());
    let (status, proof) = played.ask(ADDRESS, HEALTH, header, Value::Null).await;
    assert_eq!(status, 200);
    assert!(challenge.verify(&proof.unwrap(), played.key.hash()));
    assert_eq!(played.engines.checked(), 1);
    assert_eq!(played.ask([127, 64, 0, 2], HEALTH, header, Value::Null).await, (503, None));
    assert!(played.engines.is_running("environment"));
    played.engines.note_pod(&Change::Gone(pod()));
    assert_eq!(played.ask(ADDRESS, HEALTH, header, Value::Null).await, (503, None));
    assert!(!played.engines.is_running("environment"));
    played.engines.check().unwrap();
}

#[tokio::test]
async fn another_key_is_refused_and_an_unknown_command_is_a_fault() {
    let played = Played::start().await;
    let waiting = json!({"subsystem": "telemetry", "op": "waiting"});
    let (ours, other) = (played.key.expose(), EngineKey::generate().unwrap());
    assert_eq!(played.ask(ADDRESS, RPC, (ENGINE_KEY_HEADER, ours), waiting.clone()).await.0, 200);
    assert_eq!(played.ask(ADDRESS, RPC, (ENGINE_KEY_HEADER, other.expose()), waiting).await.0, 401);
    let replaced = json!({"subsystem": "control", "op": "set_key_hash", "key_hash": other.hash().to_hex()});
    assert_eq!(played.ask(ADDRESS, RPC, (ENGINE_KEY_HEADER, ours), replaced).await.0, 200);
    let replay = (Method::GET, "/execute/replay?task_id=x");
    assert_eq!(played.ask(ADDRESS, replay.clone(), (ENGINE_KEY_HEADER, ours), Value::Null).await.0, 401);
    assert_eq!(played.ask(ADDRESS, replay, (ENGINE_KEY_HEADER, other.expose()), Value::Null).await.0, 404);
    played.engines.check().unwrap();
    let unknown = json!({"subsystem": "control", "op": "explode"});
    assert_eq!(played.ask(ADDRESS, RPC, (ENGINE_KEY_HEADER, other.expose()), unknown).await.0, 400);
    let fault = played.engines.check().unwrap_err().to_string();
    assert!(fault.contains("explode"), "{fault}");
}
