//! Story 10: after a busy life of a deployment no key of it stands anywhere in the clear.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use reqwest::{Method, RequestBuilder};
use rustix::process::Signal;
use serde_json::{Value, json};
use strict_provider::{Fault, Refusal, Reply, StrictProvider};

use crate::support::http::{ask, client};
use crate::support::processes::contains;
use crate::support::{Answer, Deployment, Ended, Engine, Fleet, Orchestrator, Product};

const PROVIDER_KEY: &str = "the-providers-secret-key-of-a-busy-life";
const NEW_MASTER_KEY: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA";

/// Secrets by their names, in the forms that must not be found.
type Secrets = Vec<(String, Vec<String>)>;

/// Bytes as a text that can be searched fast: a character for each.
fn searchable(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The forms of a key: its text, and the bytes that the text stands for.
fn forms(key: &str) -> Vec<String> {
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

/// Asserts that none of the secrets stands in a file of the deployment, in what any program said, or in an
/// answer. `known` is something that the registry holds: it is found, or the search is no search.
fn stand_nowhere(place: &Deployment, secrets: &Secrets, answers: &str, known: &str) {
    let mut searched = Vec::new();
    let mut holders_of_known = Vec::new();
    // What programs said lies beside the deployment's folder.
    for file in files_below(place.fleet.home.path()) {
        // An engine may tidy up while it is looked at.
        let Ok(bytes) = fs::read(&file) else { continue };
        let text = searchable(&bytes);
        for (what, forms) in secrets {
            let found = forms.iter().any(|form| text.contains(form));
            assert!(!found, "{what} stands in {}", file.display());
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
        assert!(!answers.contains(&forms[0]), "{what} stands in an answer");
    }
}

/// The answers of a story that must hold no key.
#[derive(Default)]
struct Answers(String);

impl Answers {
    async fn of(&mut self, request: RequestBuilder, status: u16) {
        let answer = ask(request).await;
        self.keep(&answer, status);
    }

    #[track_caller]
    fn keep(&mut self, answer: &Answer, status: u16) {
        assert_eq!(answer.status, status, "{answer:?}");
        writeln!(self.0, "{answer:?}").unwrap();
    }
}

/// A variable of an engine's environment.
fn variable(place: &Deployment, engine: &Engine, name: &str) -> String {
    let process = place.process_of(engine).expect("it runs").as_raw_nonzero();
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    let prefix = format!("{name}=");
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(prefix.as_bytes()));
    String::from_utf8(value.unwrap_or_else(|| panic!("no {name}")).to_vec()).unwrap()
}

/// Wrong keys, right keys in wrong places, and calls that fail: where keys leak.
async fn refusals(
    answers: &mut Answers,
    (admin_key, master_key): (&str, &str),
    product: &Product,
    engine: &Engine,
) {
    let call = |method: Method, path: &str| client().request(method, format!("{}{path}", product.base));
    let engines = || call(Method::GET, "/engines");
    let registration =
        || call(Method::POST, "/products/register").json(&json!({"slug": "no slug", "display_name": "x"}));
    for key in [&engine.key, admin_key, master_key, &format!("{}x", product.key)] {
        answers.of(engines().header("x-platform-key", key), 401).await;
        answers.of(call(Method::GET, "/engines/ada/proxy/tasks").header("x-platform-key", key), 401).await;
    }
    for key in [&product.key, &engine.key, master_key] {
        answers.of(registration().header("x-admin-key", key), 401).await;
        answers.of(engines().header("x-admin-key", key), 401).await;
        answers.of(engines().header("x-engine-key", key).bearer_auth(key), 401).await;
    }
    answers.of(registration().header("x-admin-key", admin_key), 400).await;
    let own = |method: Method, path: &str| product.request(method, path);
    answers.of(own(Method::GET, "/nothing"), 404).await;
    answers.of(own(Method::PUT, "/engines"), 405).await;
    answers.of(own(Method::GET, "/engines/nobody"), 404).await;
    answers.of(own(Method::GET, "/engines?limit=many"), 400).await;
    answers.of(own(Method::POST, "/engines/provision").body("{"), 400).await;
    answers.of(own(Method::POST, "/engines/provision").json(&json!({"user_id": "ada"})), 409).await;
    answers.of(own(Method::POST, "/engines/nobody/rotate-key"), 404).await;
    answers.of(own(Method::GET, "/engines/ada/proxy/nothing"), 404).await;
    answers.of(own(Method::GET, "/engines/ada/proxy/openapi.json"), 200).await;
    answers.of(own(Method::GET, "/engines/ada/explain"), 200).await;
    answers.of(own(Method::GET, "/engines/ada/logs"), 200).await;
    answers.of(own(Method::GET, "/engines"), 200).await;
    answers.of(own(Method::GET, "/audit?limit=1000"), 200).await;
    answers.of(own(Method::GET, "/status"), 200).await;
    answers.of(own(Method::GET, "/metrics"), 200).await;
    answers.of(client().get(format!("{}/openapi.json", product.base)), 200).await;
    answers.of(client().get(format!("{}/health", product.base)), 200).await;
    answers.of(call(Method::GET, "/products").header("x-admin-key", admin_key), 200).await;
}

#[tokio::test]
async fn after_a_busy_life_no_key_stands_anywhere() {
    let provider = StrictProvider::start().await.unwrap();
    let place = Deployment::plain()
        .with_provider(&provider)
        .with("LLM_API_KEY", PROVIDER_KEY)
        .with("ROUNDHOUSE_LOG", "debug")
        .with("ENGINE_LOG_LEVEL", "debug")
        .with("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let (orchestrator, product) = place.start_with_product().await;
    let other = orchestrator.register("other", json!({})).await;
    let mut secrets: Secrets = Vec::new();
    let mut answers = Answers::default();
    let mut keep = |what: &str, key: &str| secrets.push((what.to_owned(), forms(key)));
    keep("the provider's key", PROVIDER_KEY);
    keep("the platform key", &product.key);
    keep("another product's key", &other.key);
    keep("the admin key", &place.admin_key);
    keep("the master key", &place.master_key);

    // Engines are made, used, rotated, deleted.
    let engine = product.engine("ada").await;
    let gone = product.engine("bob").await;
    keep("an engine's first key", &engine.key);
    keep("a deleted engine's key", &gone.key);
    keep("an engine's secrets key", &variable(&place, &engine, "AD_ENCRYPTION_KEY"));
    keep("a deleted engine's secrets key", &variable(&place, &gone, "AD_ENCRYPTION_KEY"));
    assert_eq!(variable(&place, &engine, "LLM_API_KEY"), PROVIDER_KEY, "the engine has it");
    engine.tell("task", "Hello!").await;
    // The provider refuses its key, and says so.
    provider.enqueue(Reply::of_fault(Fault::refuse(Refusal::Unauthorized)));
    engine.execute("refused", "Hello!").await.rest().await;
    let mut rotated = product.rotate("ada").await.ok("new_api_key:engine-key")["new_api_key"].clone();
    keep("a rotated key", rotated.as_str().unwrap());
    answers.keep(&engine.get("/tasks").await, 401);
    product.delete("bob").await.ok("status:text engine_id:engine");

    // It dies, hangs, is stopped; the orchestrator dies too.
    place.kill_engine(&engine);
    answers.keep(&product.stop("nobody").await, 404);
    product.becomes("ada", "failed").await;
    answers.keep(&product.rotate("ada").await, 409);
    product.becomes("ada", "running").await;
    let engine = product.engine("ada").await;
    refusals(&mut answers, (&place.admin_key, &place.master_key), &product, &engine).await;
    let orchestrator = place.kill_and_start(orchestrator).await;
    rotated = product.rotate("ada").await.ok("new_api_key:engine-key")["new_api_key"].clone();
    keep("a later key", rotated.as_str().unwrap());
    product.stop("ada").await.ok("status:text");
    answers.keep(&product.call(Method::GET, "/engines/ada/proxy/tasks", None).await, 409);
    product.start("ada").await.ok("status:text url:url");
    let mut standby = place.launch_second();
    let holder = orchestrator.program.pid().as_raw_nonzero().to_string();
    standby.program.says(&holder).await.expect("it waits");

    // While it runs the write-ahead logs are full; at its end the files are whole. Both count.
    stand_nowhere(&place, &secrets, &answers.0, &engine.id);
    standby.end(Signal::TERM).await.well();
    orchestrator.end(Signal::TERM).await.well();
    stand_nowhere(&place, &secrets, &answers.0, &engine.id);

    // Another master key: both have been at work then.
    secrets.push(("the new master key".to_owned(), forms(NEW_MASTER_KEY)));
    rekey(&place).await.well();
    let orchestrator = renewed(&place).await;
    let engine = product.engine("ada").await;
    assert_eq!(engine.key, rotated.as_str().unwrap());
    refusals(&mut answers, (&place.admin_key, &place.master_key), &product, &engine).await;
    stand_nowhere(&place, &secrets, &answers.0, &engine.id);
    orchestrator.end(Signal::TERM).await.well();
    stand_nowhere(&place, &secrets, &answers.0, &engine.id);
}

/// Seals the deployment's registry under another master key.
async fn rekey(place: &Deployment) -> Ended {
    let variables = BTreeMap::from([
        ("ORCH_DATABASE_URL".to_owned(), place.fleet.variables["ORCH_DATABASE_URL"].clone()),
        ("ORCH_MASTER_KEY".to_owned(), NEW_MASTER_KEY.to_owned()),
        ("ORCH_MASTER_KEY_OLD".to_owned(), place.master_key.clone()),
    ]);
    place.fleet.home.run(&["rekey"], &variables).ended().await
}

/// The orchestrator, started with the new master key.
async fn renewed(place: &Deployment) -> Orchestrator {
    let mut orchestrator = place.launch_with("ORCH_MASTER_KEY", NEW_MASTER_KEY);
    orchestrator.is_ready().await;
    orchestrator
}

#[tokio::test]
async fn at_its_most_talkative_no_service_tells_a_key() {
    let provider = StrictProvider::start().await.unwrap();
    let fleet = Fleet::new()
        .with_provider(&provider)
        .with("LLM_API_KEY", PROVIDER_KEY)
        .with("ROUNDHOUSE_LOG", "trace")
        .with("ENGINE_LOG_LEVEL", "trace");
    let up = fleet.up().await;
    let product = up.product();
    let master_key = fs::read_to_string(fleet.folder().join("master.key")).unwrap().trim().to_owned();
    let engine = product.engine("ada").await;
    engine.tell("task", "Hello!").await;
    product.rotate("ada").await.ok("new_api_key:engine-key");
    let mut answers = Answers::default();
    answers.keep(&engine.get("/tasks").await, 401);
    let rotated = product.engine("ada").await;
    refusals(&mut answers, (&up.admin_key(), &master_key), &product, &rotated).await;
    product.stop("ada").await.ok("status:text");
    product.start("ada").await.ok("status:text url:url");

    let admin_key = up.admin_key();
    let log = fs::read_to_string(fleet.engine_folder(&engine.id).join("engine.log")).unwrap();
    let said = up.end(Signal::TERM).await.well();
    for (who, said) in [("the orchestrator", said), ("an engine", log)] {
        assert!(said.contains("DEBUG") || said.contains("TRACE"), "{who} is talkative: {said}");
        for key in [&product.key, &engine.key, &rotated.key, &admin_key, &master_key, PROVIDER_KEY] {
            assert!(!said.contains(key), "{who} tells a key");
        }
    }
}

#[tokio::test]
async fn what_runs_can_be_looked_at_without_seeing_a_key() {
    let place = Deployment::plain();
    let (orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    product.rotate("ada").await.ok("new_api_key:engine-key");
    let rotated = product.engine("ada").await;
    product.stop("ada").await.ok("status:text");
    product.start("ada").await.ok("status:text url:url");
    let process = place.process_of(&engine).unwrap().as_raw_nonzero();
    let environment = fs::read(format!("/proc/{process}/environ")).unwrap();
    for key in [&engine.key, &rotated.key, &product.key, &place.admin_key, &place.master_key] {
        assert!(!contains(&environment, key.as_bytes()), "an engine knows its key's hash alone");
    }
    assert!(!contains(&environment, b"ORCH_"));
    let orchestrator = orchestrator.program.pid().as_raw_nonzero();
    for process in [process, orchestrator] {
        // Everybody on the machine can read what a process was called with.
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap();
        for key in [&engine.key, &rotated.key, &product.key, &place.admin_key, &place.master_key] {
            assert!(!contains(&line, key.as_bytes()));
        }
    }
    // Each engine's folder is for its owner alone.
    let folder = fs::metadata(place.fleet.engine_folder(&engine.id)).unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    let lists: Value = product.call(Method::GET, "/engines", None).await.ok("engines:array total:int");
    assert!(!lists.to_string().contains("sk-svc-"));
}
