//! A deployment is taken through the versions of the past up to this one, back down, and up again in one leap: each
//! version serves what any other has stored, drives the engines that any other has started, and finishes what one that
//! was killed in the middle has left.
//!
//! The versions are built from this repository's history (`.ci/earlier-versions`).

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use reqwest::Method;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, roles_and_texts};
use crate::support::http::{client, send};
use crate::support::image::ProgramImage;
use crate::support::test_env::BINARY;
use crate::support::{Backend, Deployment, Engine, Orchestrator, Product, eventually, processes, skip};

/// A model that keeps a note, asks a question, or just answers.
const SCRIPT: &str = r#"
rules:
  - when: 'Note (?<value>\w+)'
    answers:
      - tools: [{tool: working_memory_set, input: {key: note, value: $value}}]
      - text: "Noted: $value."
  - when: 'Ask'
    answers:
      - tools: [{tool: ask_user, input: {question: "Which colour?", options: [green, blue]}}]
      - text: "You said: {{result}}"
  - answers: [{text: So it is.}]
"#;

/// A version: its program, and the engines' image that it is configured with.
struct Version {
    program: String,
    image: String,
    /// What removes the image at the end, where it is one of a daemon's.
    _image: Option<ProgramImage>,
}

/// The versions of the past, oldest first; none, with a reason that is said, where they were not built. `none`: they
/// cannot be, in a clone whose history is cut.
fn earlier_programs() -> Option<Vec<PathBuf>> {
    let Some(folder) = env::var_os("ROUNDHOUSE_TEST_EARLIER_VERSIONS") else {
        skip("the versions of the past: eval \"$(.ci/earlier-versions DIR)\" builds them");
        return None;
    };
    if folder == "none" {
        return None;
    }
    let mut folders: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    Some(folders.into_iter().map(|folder| folder.join("roundhouse")).collect())
}

fn versions(place: &Deployment, earlier: Vec<PathBuf>) -> Vec<Version> {
    let programs = earlier.into_iter().chain([PathBuf::from(BINARY)]).enumerate();
    programs
        .map(|(index, program)| {
            let (image, guard) = match Backend::from_env() {
                Backend::Process => (format!("svc-engine:{}", version_of(&program)), None),
                // A tag of its own, though the versions of the past all call themselves 0.1.0.
                Backend::Docker => {
                    let image =
                        ProgramImage::build(place.docker_daemon(), &program, &format!("0.1.{}", 90 + index));
                    (image.reference.clone(), Some(image))
                }
            };
            Version { program: program.to_str().unwrap().to_owned(), image, _image: guard }
        })
        .collect()
}

/// The version that a program calls itself.
fn version_of(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    said.split_whitespace().nth(1).unwrap().to_owned()
}

/// What must be found again, whatever the version.
struct StoredState {
    product: Product,
    policy: Value,
    /// The messages of each user's task.
    conversations: BTreeMap<String, Vec<Value>>,
    /// The process of the engine that nobody stops.
    untouched_engine: Option<Pid>,
    /// A question that waits for its answer.
    pending_question: Option<String>,
}

impl StoredState {
    /// One turn more in a user's conversation.
    async fn run_turn(&mut self, user: &str, text: &str) {
        let engine = self.product.engine(user).await;
        engine.run_turn("task", text).await;
        self.conversations.insert(user.to_owned(), engine.messages("task").await);
    }

    /// All that was stored is served, by whatever version now runs.
    async fn assert_served(&mut self, place: &Deployment, orchestrator: &Orchestrator) {
        let request = client().get(format!("{}/products", orchestrator.base));
        let listed = send(request.header("x-admin-key", &place.admin_key)).await;
        assert_eq!(listed.status, 200, "{}", listed.body);
        assert_eq!(listed.body["products"][0]["policy"], self.policy, "{}", listed.body);
        let (engines, total) = self.product.list("?limit=100").await;
        assert_eq!(total, u64::try_from(self.conversations.len()).unwrap(), "{engines:?}");
        for (user, conversation) in &self.conversations {
            // Whoever was stopped is started for this, and stopped again.
            let rests = self.product.status(user).await == "stopped";
            if rests {
                self.product.start(user).await;
            }
            let engine = self.product.engine(user).await;
            assert_eq!(&engine.messages("task").await, conversation, "the conversation of {user}");
            if rests {
                assert_eq!(self.product.stop(user).await.status, 200, "{user}");
            }
        }
        if let Some(request) = self.pending_question.take() {
            let engine = self.product.engine("untouched").await;
            let pending = engine.get("/hitl/pending").await.body;
            assert_eq!(pending["pending"][0]["request_id"], request.as_str(), "{pending}");
            assert_eq!(engine.respond("question", "green").await.status, 200);
            eventually("the turn goes on with the answer", async || {
                let messages = engine.messages("question").await;
                let said = roles_and_texts(&messages);
                said.last().is_some_and(|(_, text)| text.contains("green")).then_some(())
            })
            .await;
        }
    }
}

/// Puts a question to the user and leaves it open.
async fn open_question(engine: &Engine) -> String {
    let (_stream, request) = engine.run_until_hitl_request(&direct_message("question", "Ask me.")).await;
    request.data["request_id"].as_str().unwrap().to_owned()
}

/// Kills the orchestrator in the middle of a start, which the next one finds as a claim.
async fn kill_amid_a_start(place: &Deployment, orchestrator: Orchestrator, product: &Product, user: &str) {
    let engine = Engine::new(&product.get(user).await.body);
    let request = product.request(Method::POST, &format!("/engines/{user}/start"));
    let start = tokio::spawn(request.send());
    eventually("the engine begins", async || place.process_of(&engine)).await;
    orchestrator.signal_and_wait(Signal::KILL).await;
    start.abort();
}

async fn assert_audit_log_valid(place: &Deployment, version: &Version) {
    let line = [version.program.as_str(), "audit", "verify"];
    place.fleet.test_env.run_program(&line, &place.fleet.variables).wait().await.assert_success();
}

#[tokio::test]
#[expect(clippy::print_stdout, reason = "shown where it fails: which version did")]
async fn each_version_serves_what_any_other_has_stored() {
    let Some(earlier) = earlier_programs() else { return };
    let mut place = Deployment::new().with_script(SCRIPT);
    let versions = versions(&place, earlier);
    let newest = versions.len() - 1;
    let way = (0..=newest).chain((0..newest).rev()).chain([newest]);

    let mut stored: Option<StoredState> = None;
    for (station, index) in way.enumerate() {
        let version = &versions[index];
        println!("--- station {station}: version {index}");
        place.fleet.variables.insert("ORCH_ENGINE_IMAGE".to_owned(), version.image.clone());
        let mut orchestrator = place.launch_program(&[&version.program, "orchestrator"]);
        orchestrator.wait_ready().await;

        let now = match &mut stored {
            None => stored.insert(create_stored_state(&orchestrator).await),
            Some(stored) => {
                let product = Product::new(&orchestrator.base, &stored.product.key);
                stored.product = product;
                stored
            }
        };
        eventually("nothing is under way", async || {
            let (engines, _) = now.product.list("?limit=100").await;
            let settled = |engine: &Value| matches!(engine["status"].as_str(), Some("running" | "stopped"));
            engines.iter().all(settled).then_some(())
        })
        .await;
        let untouched_engine = now.product.engine("untouched").await;
        if now.untouched_engine.is_some() {
            assert_eq!(place.process_of(&untouched_engine), now.untouched_engine, "what runs runs on");
        }
        now.untouched_engine = place.process_of(&untouched_engine);
        now.assert_served(&place, &orchestrator).await;

        // Each version adds to what there is.
        now.policy = json!({"max_engines": 50 + station, "rate_limit_rpm": 100_000});
        set_policy(&place, &orchestrator, &now.product, &now.policy).await;
        now.run_turn("untouched", &format!("Station {station}.")).await;
        now.product.start("resting").await;
        now.run_turn("resting", &format!("Note station{station}.")).await;
        assert_eq!(now.product.rotate_key("resting").await.status, 200);
        assert_eq!(now.product.stop("resting").await.status, 200);
        now.run_turn(&format!("from-{station}"), "Hello!").await;
        now.pending_question = Some(open_question(&now.product.engine("untouched").await).await);
        if station % 3 == 2 {
            // The engine itself is of this version from now on.
            assert_eq!(now.product.stop("untouched").await.status, 200);
            assert_eq!(now.product.start("untouched").await.status, 200);
            now.untouched_engine = place.process_of(&now.product.engine("untouched").await);
        }
        assert_audit_log_valid(&place, version).await;
        if station % 2 == 0 {
            orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
        } else {
            kill_amid_a_start(&place, orchestrator, &now.product, "resting").await;
        }
    }

    let now = stored.unwrap();
    let orchestrator = place.start().await;
    for user in now.conversations.keys() {
        let engine = now.product.get(user).await.body;
        assert_eq!(now.product.delete(user).await.status, 200, "{user}");
        let folder = place.fleet.engine_folder(engine["engine_id"].as_str().unwrap());
        assert!(!folder.exists(), "{user}");
    }
    assert_eq!(processes::engines_in(place.fleet.folder()), []);
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
}

/// The first version's deployment.
async fn create_stored_state(orchestrator: &Orchestrator) -> StoredState {
    let policy = json!({"max_engines": 50, "rate_limit_rpm": 100_000});
    let product = orchestrator.register("shop", policy.clone()).await;
    let conversations = BTreeMap::new();
    let mut stored =
        StoredState { product, policy, conversations, untouched_engine: None, pending_question: None };
    for user in ["untouched", "resting"] {
        stored.run_turn(user, "Hello!").await;
    }
    assert_eq!(stored.product.stop("resting").await.status, 200);
    stored
}

async fn set_policy(place: &Deployment, orchestrator: &Orchestrator, product: &Product, policy: &Value) {
    let request = client().get(format!("{}/products", orchestrator.base));
    let listed = send(request.header("x-admin-key", &place.admin_key)).await.body;
    let id = listed["products"][0]["product_id"].as_str().unwrap().to_owned();
    let request = client().put(format!("{}/products/{id}/policy", product.base));
    let answer = send(request.header("x-admin-key", &place.admin_key).json(&json!({"policy": policy}))).await;
    assert_eq!((answer.status, &answer.body["policy"]), (200, policy));
}
