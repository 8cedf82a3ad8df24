//! Backups in a bucket of a server that speaks S3, also of one that fails, is slow or lies.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use axum::response::Response;
use futures::stream;
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};

use crate::backups::{backups_of, content, product_id, put};
use crate::support::http::client;
use crate::support::{Deployment, Program, TestEnv, eventually, skip};

/// Moto wants to know who asks, and does not check the signature.
const AUTHORIZATION: &str = "AWS4-HMAC-SHA256 Credential=test-id/20260101/eu-central-1/s3/aws4_request, \
     SignedHeaders=host, Signature=0";

/// A running server with a bucket.
struct S3Server {
    program: Program,
    base: String,
}

impl S3Server {
    /// Starts the server; skips the story and returns `None` if its program is not there.
    async fn start(test_env: &TestEnv, port: u16) -> Option<Self> {
        let program = std::env::var("ROUNDHOUSE_TEST_S3_SERVER").unwrap_or_default();
        if program.is_empty() {
            skip("an S3 server: `export ROUNDHOUSE_TEST_S3_SERVER=\"$(.ci/s3-server DIR)\"` installs one");
            return None;
        }
        let line = [program.as_str(), "--host", "127.0.0.1", "--port", &port.to_string()];
        let mut program = test_env.run_program(&line, &BTreeMap::new());
        let base = format!("http://127.0.0.1:{port}");
        eventually("the bucket is there", async || {
            assert!(program.is_running(), "the server ended: {}", program.output());
            let created = client().put(format!("{base}/fleet-backups")).send().await.ok()?;
            created.status().is_success().then_some(())
        })
        .await;
        Some(Self { program, base })
    }

    /// The keys of all objects.
    async fn keys(&self) -> Vec<String> {
        let list = client().get(format!("{}/fleet-backups?list-type=2", self.base));
        let list = list.header("authorization", AUTHORIZATION).send().await.unwrap();
        let text = list.text().await.unwrap();
        let keys = text.split("<Key>").skip(1).map(|rest| rest.split("</Key>").next().unwrap().to_owned());
        keys.collect()
    }

    async fn object(&self, method: Method, key: &str, body: Vec<u8>) -> Vec<u8> {
        let url = format!("{}/fleet-backups/{key}", self.base);
        let request = client().request(method, url).header("authorization", AUTHORIZATION);
        let answer = request.body(body).send().await.unwrap();
        assert!(answer.status().is_success(), "{key}: {}", answer.status());
        answer.bytes().await.unwrap().to_vec()
    }
}

fn deployment(base: &str, port: u16) -> Deployment {
    let endpoint = base.to_owned();
    Deployment::process_and_sqlite()
        .with_env("ORCH_BACKUP_URL", "s3://fleet-backups/one")
        .with_env("ORCH_BACKUP_INTERVAL", "off")
        .with_env("AWS_ACCESS_KEY_ID", "test-id")
        .with_env("AWS_SECRET_ACCESS_KEY", format!("secret-of-{port}"))
        .with_env("AWS_REGION", "eu-central-1")
        .with_env("AWS_ENDPOINT", endpoint)
        .with_env("AWS_ALLOW_HTTP", "true")
}

#[tokio::test]
async fn backups_are_kept_in_a_bucket() {
    let test_env = TestEnv::new();
    let port = test_env.ports.last();
    let Some(server) = S3Server::start(&test_env, port).await else { return };
    let deployment = deployment(&server.base, port);
    let check = async || {
        deployment.fleet.test_env.run(&["orchestrator", "--check"], &deployment.fleet.variables).wait().await
    };
    let shown = check().await.assert_success();
    assert!(!shown.contains("secret-of-"), "{shown}");
    assert_eq!(server.keys().await, Vec::<String>::new());

    let (orchestrator, product) = deployment.start_with_product().await;
    let product_id = product_id(&orchestrator).await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    put(&engine, "diary.txt", &"Today I saw a FOXGLOVE.".repeat(20_000)).await;
    let messages = engine.messages("task").await;
    let succeed = async |job: Value| {
        let ended = orchestrator.job(job).await;
        assert_eq!((&ended["failed"], &ended["error"]), (&json!(0), &Value::Null), "{ended}");
    };
    succeed(json!({"action": "back_up"})).await;
    let keys = server.keys().await;
    assert!(keys.len() > 6 && keys.iter().all(|key| key.starts_with("one/")), "{keys:?}");
    succeed(json!({"action": "verify"})).await;
    put(&engine, "diary.txt", "nothing").await;
    let backup = backups_of(&orchestrator, &product_id, "ada").await.remove(0);
    let of_ada = |action: &str| json!({"action": action, "product_id": product_id, "user_id": "ada", "backup_id": backup});

    // A piece that is shortened, and then one that is missing.
    let pieces: Vec<_> = keys.iter().filter(|key| key.starts_with("one/p/")).collect();
    let mut named = Vec::new();
    for expected in ["damaged", "missing"] {
        for piece in &pieces {
            let whole = server.object(Method::GET, piece, Vec::new()).await;
            if expected == "damaged" {
                server.object(Method::PUT, piece, whole[..whole.len() / 2].to_vec()).await;
            } else {
                server.object(Method::DELETE, piece, Vec::new()).await;
            }
            let ended = orchestrator.job(of_ada("restore")).await;
            // Those of the registry are not needed.
            if ended["failed"] == 1 {
                let message = ended["failures"][0]["error"]["message"].as_str().unwrap();
                assert!(message.contains(expected), "{message}");
                named.push(expected);
            }
            server.object(Method::PUT, piece, whole).await;
        }
    }
    assert!(named.contains(&"damaged") && named.contains(&"missing"), "{named:?}");
    succeed(of_ada("restore")).await;
    let engine = product.engine("ada").await;
    assert_eq!(content(&engine, "diary.txt").await.unwrap(), "Today I saw a FOXGLOVE.".repeat(20_000));
    assert_eq!(engine.messages("task").await, messages);

    // What an engine leaves when it is destroyed.
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    eventually("nothing but the registry's is left", async || {
        let keys = server.keys().await;
        (keys.iter().filter(|key| key.starts_with("one/k/")).count() == 1
            && keys.iter().filter(|key| key.starts_with("one/m/")).count() == 1)
            .then_some(())
    })
    .await;

    // A server that is gone.
    drop(server.program);
    product.engine("bob").await;
    let ended = orchestrator.job(json!({"action": "back_up"})).await;
    assert_eq!(ended["failed"], ended["total"], "{ended}");
    assert_eq!(ended["failures"][0]["error"]["code"], "BACKEND_ERROR", "{ended}");
    check().await.assert_failure(1, &["ORCH_BACKUP_URL"]);
}

/// How a server treats requests for objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Honest,
    /// Every second request fails with this status.
    FailsSometimes(u16),
    /// Every request fails with this status.
    Fails(u16),
    /// Each answer takes its time.
    Slow,
    /// Answers to reads end in the middle.
    CutsOff,
    /// Answers to reads are the first half, which is all there is, they say.
    Shortens,
    /// Answers to reads have more than there is.
    Lengthens,
}

/// A front of an S3 server with bad manners.
#[derive(Clone)]
struct Front {
    server: String,
    manner: Arc<Mutex<Manner>>,
    requests: Arc<AtomicUsize>,
    /// The requests that were treated badly.
    hits: Arc<AtomicUsize>,
}

impl Front {
    /// Starts the front, and returns its address.
    async fn start(server: &str) -> (Self, String) {
        let front = Self {
            server: server.to_owned(),
            manner: Arc::new(Mutex::new(Manner::Honest)),
            requests: Arc::default(),
            hits: Arc::default(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let router = axum::Router::new().fallback(answer_as_front).with_state(front.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (front, base)
    }

    fn set(&self, manner: Manner) {
        *self.manner.lock() = manner;
        self.hits.store(0, Ordering::Relaxed);
    }

    fn hits(&self) -> usize {
        self.hits.load(Ordering::Relaxed)
    }
}

async fn answer_as_front(State(front): State<Front>, request: Request) -> Response {
    let manner = *front.manner.lock();
    let number = front.requests.fetch_add(1, Ordering::Relaxed);
    let hit = || front.hits.fetch_add(1, Ordering::Relaxed);
    let refusal = match manner {
        Manner::Fails(status) => Some(status),
        Manner::FailsSometimes(status) if number.is_multiple_of(2) => Some(status),
        _ => None,
    };
    if let Some(status) = refusal {
        hit();
        return Response::builder().status(status).body(Body::from("<Error/>")).unwrap();
    }
    if manner == Manner::Slow {
        hit();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (head, body) = request.into_parts();
    let is_read = head.method == Method::GET && head.uri.query().is_none();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let mut headers = head.headers;
    for name in [HOST, CONTENT_LENGTH, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    let forwarded = client().request(head.method, format!("{}{}", front.server, head.uri)).headers(headers);
    let answer = forwarded.body(body).send().await.unwrap();
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    let is_read = is_read && status.is_success();
    let content = answer.bytes().await.unwrap();
    let (half, all) = (content.slice(..content.len() / 2), content.len());
    headers.remove(TRANSFER_ENCODING);
    let body = match manner {
        Manner::CutsOff if is_read => {
            hit();
            let cut = io::Error::from(io::ErrorKind::ConnectionReset);
            Body::from_stream(stream::iter([Ok::<Bytes, io::Error>(half), Err(cut)]))
        }
        Manner::Shortens if is_read => {
            hit();
            headers.insert(CONTENT_LENGTH, half.len().into());
            Body::from(half)
        }
        Manner::Lengthens if is_read => {
            hit();
            headers.insert(CONTENT_LENGTH, (all + half.len()).into());
            Body::from([content, half].concat())
        }
        _ => Body::from(content),
    };
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

#[tokio::test]
async fn a_bucket_that_fails_is_slow_or_lies_restores_all_or_nothing() {
    let test_env = TestEnv::new();
    let port = test_env.ports.last();
    let Some(server) = S3Server::start(&test_env, port).await else { return };
    let (front, base) = Front::start(&server.base).await;
    let deployment = deployment(&base, port);
    let (orchestrator, product) = deployment.start_with_product().await;
    let product_id = product_id(&orchestrator).await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let version = |number: usize| format!("Version {number} of FOXGLOVE.").repeat(20_000);
    let of_ada = |action: &str| json!({"action": action, "product_id": product_id, "user_id": "ada"});
    // What is repeated until it succeeds, succeeds.
    let patient = [Manner::FailsSometimes(500), Manner::FailsSometimes(503), Manner::Slow, Manner::Honest];
    for (number, manner) in patient.into_iter().enumerate() {
        put(&product.engine("ada").await, "diary.txt", &version(number)).await;
        front.set(manner);
        for action in ["back_up", "verify"] {
            let ended = orchestrator.job(of_ada(action)).await;
            assert_eq!((&ended["failed"], &ended["error"]), (&json!(0), &Value::Null), "{manner:?} {ended}");
        }
        assert!(front.hits() > 3 || manner == Manner::Honest, "{manner:?} was met {} times", front.hits());
        let backup = backups_of(&orchestrator, &product_id, "ada").await.remove(0);
        put(&product.engine("ada").await, "diary.txt", "nothing").await;
        let mut restore = of_ada("restore");
        restore["backup_id"] = backup;
        let ended = orchestrator.job(restore).await;
        assert_eq!((&ended["failed"], &ended["error"]), (&json!(0), &Value::Null), "{manner:?} {ended}");
        assert_eq!(content(&product.engine("ada").await, "diary.txt").await.unwrap(), version(number));
    }

    // What cannot be read is an error that says so, and the engine stays as it is.
    let backup = backups_of(&orchestrator, &product_id, "ada").await.remove(0);
    put(&product.engine("ada").await, "diary.txt", "the present").await;
    let messages = product.engine("ada").await.messages("task").await;
    let bad = [Manner::Fails(403), Manner::CutsOff, Manner::Shortens, Manner::Lengthens];
    for manner in bad {
        for action in ["restore", "verify"] {
            front.set(manner);
            let mut job = of_ada(action);
            if action == "restore" {
                job["backup_id"] = backup.clone();
            }
            let ended = orchestrator.job(job).await;
            assert!(front.hits() > 0, "{manner:?}");
            let failed = ended["failed"] != 0 || !ended["error"].is_null();
            assert!(failed, "{manner:?} {action}: {ended}");
            front.set(Manner::Honest);
            let engine = product.engine("ada").await;
            assert_eq!(content(&engine, "diary.txt").await.unwrap(), "the present", "{manner:?} {action}");
            assert_eq!(engine.messages("task").await, messages);
        }
    }
    // A backup that could not be stored is none.
    front.set(Manner::Fails(403));
    let ended = orchestrator.job(of_ada("back_up")).await;
    assert!(ended["failed"] != 0 || !ended["error"].is_null(), "{ended}");
    front.set(Manner::Honest);
    assert_eq!(backups_of(&orchestrator, &product_id, "ada").await[0], backup);
    let ended = orchestrator.job(of_ada("verify")).await;
    assert_eq!((&ended["failed"], &ended["error"]), (&json!(0), &Value::Null), "{ended}");
}
