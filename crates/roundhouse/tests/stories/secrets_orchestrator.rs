//! Story 10: after long use of a deployment, no key of it is stored, logged or returned in plain text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use mock_llm::{Fault, MockProvider, Refusal, Reply};
use reqwest::{Method, RequestBuilder};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::http::{client, send};
use crate::support::processes::contains;
use crate::support::{Deployment, Engine, Fleet, HttpResponse, Orchestrator, Product, ProgramExit};

const PROVIDER_KEY: &str = "the-providers-secret-key-of-a-busy-life";
const NEW_MASTER_KEY: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA";

/// Each secret's name, and the encodings of it that must not be found.
type Secrets = Vec<(String, Vec<String>)>;

/// Bytes as a text with one character for each byte, which can be searched fast.
fn searchable(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The forms of a key: its text, and the bytes that the text encodes.
fn secret_forms(key: &str) -> Vec<String> {
    let random = key.trim_start_matches("sk-svc-").trim_start_matches("pk-svc-");
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    };
    let mut forms = vec![random.to_owned()];
    if random.len() == 43 {
        let bits = random.bytes().flat_map(|byte| {
            let six = value(byte).expect("base64url");
            (0..6).rev().map(move |bit| six >> bit & 1)
        });
        let bits: Vec<u8> = bits.collect();
        let bytes: Vec<u8> =
            bits.chunks_exact(8).map(|byte| byte.iter().fold(0, |sum, bit| sum << 1 | bit)).collect();
        forms.push(searchable(&bytes));
    }
    forms
}

/// All files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Asserts that no secret is in a file of the deployment, in the output of a program, or in a response. The text
/// `known` is in the registry and must be found, which proves that the search works.
fn assert_stored_nowhere(deployment: &Deployment, secrets: &Secrets, answers: &str, known: &str) {
    let mut searched = Vec::new();
    let mut holders_of_known = Vec::new();
    // The output of programs is stored beside the deployment's folder.
    for file in files_below(deployment.fleet.test_env.path()) {
        // An engine may remove files meanwhile.
        let Ok(bytes) = fs::read(&file) else { continue };
        let text = searchable(&bytes);
        for (what, forms) in secrets {
            let found = forms.iter().any(|form| text.contains(form));
            assert!(!found, "{what} is stored in {}", file.display());
        }
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        if text.contains(known) {
            holders_of_known.push(name.clone());
        }
        searched.push(name);
    }
    for name in ["registry.sqlite", "engine.log", "output-0", "brain.sqlite"] {
        assert!(searched.iter().any(|found| found == name), "{name} is searched: {searched:?}");
    }
    assert!(holders_of_known.iter().any(|name| name.starts_with("registry.sqlite")), "{holders_of_known:?}");
    for (what, forms) in secrets {
        assert!(!answers.contains(&forms[0]), "{what} is in a response");
    }
}

/// The responses of a test, none of which may contain a key.
#[derive(Default)]
struct CollectedResponses(String);

impl CollectedResponses {
    async fn send_and_push(&mut self, request: RequestBuilder, status: u16) {
        let answer = send(request).await;
        self.push(&answer, status);
    }

    #[track_caller]
    fn push(&mut self, answer: &HttpResponse, status: u16) {
        assert_eq!(answer.status, status, "{answer:?}");
        writeln!(self.0, "{answer:?}").unwrap();
    }
}

/// The value of a variable in the environment of an engine's process.
fn variable(deployment: &Deployment, engine: &Engine, name: &str) -> String {
    let process = deployment.process_of(engine).expect("the engine runs").as_raw_nonzero();
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    let prefix = format!("{name}=");
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(prefix.as_bytes()));
    String::from_utf8(value.unwrap_or_else(|| panic!("no {name}")).to_vec()).unwrap()
}

/// Makes calls that are likely to leak keys: wrong keys, valid keys in wrong places, and failing calls.
async fn provoke_errors(
    answers: &mut CollectedResponses,
    (admin_key, master_key): (&str, &str),
    product: &Product,
    engine: &Engine,
) {
    let call = |method: Method, path: &str| client().request(method, format!("{}{path}", product.base));
    let engines = || call(Method::GET, "/engines");
    let registration =
        || call(Method::POST, "/products/register").json(&json!({"slug": "no slug", "display_name": "x"}));
    for key in [&engine.key, admin_key, master_key, &format!("{}x", product.key)] {
        answers.send_and_push(engines().header("x-platform-key", key), 401).await;
        answers
            .send_and_push(call(Method::GET, "/engines/ada/proxy/tasks").header("x-platform-key", key), 401)
            .await;
    }
    for key in [&product.key, &engine.key, master_key] {
        answers.send_and_push(registration().header("x-admin-key", key), 401).await;
        answers.send_and_push(engines().header("x-admin-key", key), 401).await;
        answers.send_and_push(engines().header("x-engine-key", key).bearer_auth(key), 401).await;
    }
    answers.send_and_push(registration().header("x-admin-key", admin_key), 400).await;
    let authenticated = |method: Method, path: &str| product.request(method, path);
    answers.send_and_push(authenticated(Method::GET, "/nothing"), 404).await;
    answers.send_and_push(authenticated(Method::PUT, "/engines"), 405).await;
    answers.send_and_push(authenticated(Method::GET, "/engines/nobody"), 404).await;
    answers.send_and_push(authenticated(Method::GET, "/engines?limit=many"), 400).await;
    answers.send_and_push(authenticated(Method::POST, "/engines/provision").body("{"), 400).await;
    answers
        .send_and_push(
            authenticated(Method::POST, "/engines/provision").json(&json!({"user_id": "ada"})),
            409,
        )
        .await;
    answers.send_and_push(authenticated(Method::POST, "/engines/nobody/rotate-key"), 404).await;
    answers.send_and_push(authenticated(Method::GET, "/engines/ada/proxy/nothing"), 404).await;
    answers.send_and_push(authenticated(Method::GET, "/engines/ada/proxy/openapi.json"), 200).await;
    answers.send_and_push(authenticated(Method::GET, "/engines/ada/explain"), 200).await;
    answers.send_and_push(authenticated(Method::GET, "/engines/ada/logs"), 200).await;
    answers.send_and_push(authenticated(Method::GET, "/engines"), 200).await;
    answers.send_and_push(authenticated(Method::GET, "/audit?limit=1000"), 200).await;
    answers.send_and_push(authenticated(Method::GET, "/status"), 200).await;
    answers.send_and_push(authenticated(Method::GET, "/metrics"), 200).await;
    answers.send_and_push(client().get(format!("{}/openapi.json", product.base)), 200).await;
    answers.send_and_push(client().get(format!("{}/health", product.base)), 200).await;
    answers.send_and_push(call(Method::GET, "/products").header("x-admin-key", admin_key), 200).await;
}

#[tokio::test]
async fn after_a_busy_life_no_key_stands_anywhere() {
    let provider = MockProvider::start().await.unwrap();
    let deployment = Deployment::process_and_sqlite()
        .with_provider(&provider)
        .with_env("LLM_API_KEY", PROVIDER_KEY)
        .with_env("ROUNDHOUSE_LOG", "debug")
        .with_env("ENGINE_LOG_LEVEL", "debug")
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let (orchestrator, product) = deployment.start_with_product().await;
    let other = orchestrator.register("other", json!({})).await;
    let mut secrets: Secrets = Vec::new();
    let mut answers = CollectedResponses::default();
    let mut add_secret = |what: &str, key: &str| secrets.push((what.to_owned(), secret_forms(key)));
    add_secret("the provider's key", PROVIDER_KEY);
    add_secret("the platform key", &product.key);
    add_secret("another product's key", &other.key);
    add_secret("the admin key", &deployment.admin_key);
    add_secret("the master key", &deployment.master_key);

    // Engines are created, used, rotated and deleted.
    let engine = product.engine("ada").await;
    let deleted = product.engine("bob").await;
    add_secret("an engine's first key", &engine.key);
    add_secret("a deleted engine's key", &deleted.key);
    add_secret("an engine's secrets key", &variable(&deployment, &engine, "AD_ENCRYPTION_KEY"));
    add_secret("a deleted engine's secrets key", &variable(&deployment, &deleted, "AD_ENCRYPTION_KEY"));
    assert_eq!(variable(&deployment, &engine, "LLM_API_KEY"), PROVIDER_KEY, "the engine has the key");
    engine.run_turn("task", "Hello!").await;
    // The provider refuses its key.
    provider.enqueue(Reply::from_fault(Fault::refuse(Refusal::Unauthorized)));
    engine.execute("refused", "Hello!").await.collect().await;
    let mut rotated_key =
        product.rotate_key("ada").await.assert_ok("new_api_key:engine-key")["new_api_key"].clone();
    add_secret("a rotated key", rotated_key.as_str().unwrap());
    answers.push(&engine.get("/tasks").await, 401);
    product.delete("bob").await.assert_ok("status:text engine_id:engine");

    // The engine is killed and stopped; the orchestrator is killed too.
    deployment.kill_engine(&engine);
    answers.push(&product.stop("nobody").await, 404);
    product.wait_for_status("ada", "failed").await;
    answers.push(&product.rotate_key("ada").await, 409);
    product.wait_for_status("ada", "running").await;
    let engine = product.engine("ada").await;
    provoke_errors(&mut answers, (&deployment.admin_key, &deployment.master_key), &product, &engine).await;
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    rotated_key = product.rotate_key("ada").await.assert_ok("new_api_key:engine-key")["new_api_key"].clone();
    add_secret("a later key", rotated_key.as_str().unwrap());
    product.stop("ada").await.assert_ok("status:text");
    answers.push(&product.call(Method::GET, "/engines/ada/proxy/tasks", None).await, 409);
    product.start("ada").await.assert_ok("status:text url:url");
    let mut standby = deployment.launch_second();
    let holder = orchestrator.program.pid().as_raw_nonzero().to_string();
    standby.program.wait_for_output(&holder).await.expect("the standby names the holder");

    // Checked twice: while it runs the write-ahead logs are full, and after its end they are checkpointed.
    assert_stored_nowhere(&deployment, &secrets, &answers.0, &engine.id);
    standby.signal_and_wait(Signal::TERM).await.assert_success();
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
    assert_stored_nowhere(&deployment, &secrets, &answers.0, &engine.id);

    // Another master key: after that, both have been in use.
    secrets.push(("the new master key".to_owned(), secret_forms(NEW_MASTER_KEY)));
    rekey(&deployment).await.assert_success();
    let orchestrator = start_with_new_master_key(&deployment).await;
    let engine = product.engine("ada").await;
    assert_eq!(engine.key, rotated_key.as_str().unwrap());
    provoke_errors(&mut answers, (&deployment.admin_key, &deployment.master_key), &product, &engine).await;
    assert_stored_nowhere(&deployment, &secrets, &answers.0, &engine.id);
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
    assert_stored_nowhere(&deployment, &secrets, &answers.0, &engine.id);
}

/// Runs `roundhouse rekey`, which encrypts the deployment's secrets under the new master key.
async fn rekey(deployment: &Deployment) -> ProgramExit {
    let variables = BTreeMap::from([
        ("ORCH_DATABASE_URL".to_owned(), deployment.fleet.variables["ORCH_DATABASE_URL"].clone()),
        ("ORCH_MASTER_KEY".to_owned(), NEW_MASTER_KEY.to_owned()),
        ("ORCH_MASTER_KEY_OLD".to_owned(), deployment.master_key.clone()),
    ]);
    deployment.fleet.test_env.run(&["rekey"], &variables).wait().await
}

/// Starts the orchestrator with the new master key.
async fn start_with_new_master_key(deployment: &Deployment) -> Orchestrator {
    let mut orchestrator = deployment.launch_with("ORCH_MASTER_KEY", NEW_MASTER_KEY);
    orchestrator.wait_ready().await;
    orchestrator
}

#[tokio::test]
async fn at_its_most_talkative_no_service_tells_a_key() {
    let provider = MockProvider::start().await.unwrap();
    let fleet = Fleet::new()
        .with_provider(&provider)
        .with_env("LLM_API_KEY", PROVIDER_KEY)
        .with_env("ROUNDHOUSE_LOG", "trace")
        .with_env("ENGINE_LOG_LEVEL", "trace");
    let up = fleet.start_up().await;
    let product = up.product();
    let master_key = fs::read_to_string(fleet.folder().join("master.key")).unwrap().trim().to_owned();
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    product.rotate_key("ada").await.assert_ok("new_api_key:engine-key");
    let mut answers = CollectedResponses::default();
    answers.push(&engine.get("/tasks").await, 401);
    let rotated = product.engine("ada").await;
    provoke_errors(&mut answers, (&up.admin_key(), &master_key), &product, &rotated).await;
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");

    let admin_key = up.admin_key();
    let engine_log = fs::read_to_string(fleet.engine_folder(&engine.id).join("engine.log")).unwrap();
    let output = up.signal_and_wait(Signal::TERM).await.assert_success();
    for (service, service_log) in [("the orchestrator", output), ("an engine", engine_log)] {
        assert!(
            service_log.contains("DEBUG") || service_log.contains("TRACE"),
            "{service} logs verbosely: {service_log}"
        );
        for key in [&product.key, &engine.key, &rotated.key, &admin_key, &master_key, PROVIDER_KEY] {
            assert!(!service_log.contains(key), "{service} logs a key");
        }
    }
}

#[tokio::test]
async fn what_runs_can_be_looked_at_without_seeing_a_key() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    product.rotate_key("ada").await.assert_ok("new_api_key:engine-key");
    let rotated = product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    let process = deployment.process_of(&engine).unwrap().as_raw_nonzero();
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    for key in [&engine.key, &rotated.key, &product.key, &deployment.admin_key, &deployment.master_key] {
        assert!(!contains(&environment, key.as_bytes()), "an engine knows only the hash of its key");
    }
    assert!(!contains(&environment, b"ORCH_"));
    let orchestrator = orchestrator.program.pid().as_raw_nonzero();
    for process in [process, orchestrator] {
        // Every user of the machine can read a process's arguments.
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap();
        for key in [&engine.key, &rotated.key, &product.key, &deployment.admin_key, &deployment.master_key] {
            assert!(!contains(&line, key.as_bytes()));
        }
    }
    // Only its owner can read an engine's folder.
    let folder = fs::metadata(deployment.fleet.engine_folder(&engine.id)).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    let listed: Value =
        product.call(Method::GET, "/engines", None).await.assert_ok("engines:array total:int");
    assert!(!listed.to_string().contains("sk-svc-"));
}
