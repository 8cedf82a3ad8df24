//! A deployment is upgraded through the earlier versions up to this one, downgraded step by step, and upgraded
//! again in one step. Each version serves what any other has stored, operates the engines that any other has
//! started, and completes the operations that a killed one has left.
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

/// A script for a model that keeps a note, asks a question, or just answers.
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

/// A version: its program, and the engine image that it is configured with.
struct Version {
    program: String,
    image: String,
    /// Removes the image from the Docker daemon when dropped.
    _image: Option<ProgramImage>,
}

/// The programs of earlier versions, oldest first. `None`, with a logged reason, if they were not built. The value
/// `none` of the variable means that they cannot be built, for instance in a shallow clone.
pub(crate) fn earlier_programs() -> Option<Vec<PathBuf>> {
    let Some(folder) = env::var_os("ROUNDHOUSE_TEST_EARLIER_VERSIONS") else {
        skip("the earlier versions: eval \"$(.ci/earlier-versions DIR)\" builds them");
        return None;
    };
    // Earlier versions knew nothing of Kubernetes.
    if folder == "none" || Backend::from_env() == Backend::Kubernetes {
        return None;
    }
    let mut folders: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    Some(folders.into_iter().map(|folder| folder.join("roundhouse")).collect())
}

fn versions(deployment: &Deployment, earlier: Vec<PathBuf>) -> Vec<Version> {
    let programs = earlier.into_iter().chain([PathBuf::from(BINARY)]).enumerate();
    programs
        .map(|(index, program)| {
            let (image, guard) = match Backend::from_env() {
                Backend::Process => (format!("svc-engine:{}", version_of(&program)), None),
                // A unique tag, because the earlier versions all report 0.1.0.
                Backend::Docker | Backend::Kubernetes => {
                    let image = ProgramImage::build(
                        deployment.docker_daemon(),
                        &program,
                        &format!("0.1.{}", 90 + index),
                    );
                    (image.reference.clone(), Some(image))
                }
            };
            Version { program: program.to_str().unwrap().to_owned(), image, _image: guard }
        })
        .collect()
}

/// The version that a program reports.
fn version_of(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().nth(1).unwrap().to_owned()
}

/// The state that every version must find again.
struct StoredState {
    product: Product,
    policy: Value,
    /// The messages of each user's task.
    conversations: BTreeMap<String, Vec<Value>>,
    /// The process of the engine that is not stopped.
    untouched_engine: Option<Pid>,
    /// The `request_id` of a question that waits for its answer.
    pending_question: Option<String>,
}

impl StoredState {
    /// Runs one more turn in a user's conversation.
    async fn run_turn(&mut self, user: &str, text: &str) {
        let engine = self.product.engine(user).await;
        engine.run_turn("task", text).await;
        self.conversations.insert(user.to_owned(), engine.messages("task").await);
    }

    /// Asserts that the running version serves everything that was stored.
    async fn assert_served(&mut self, deployment: &Deployment, orchestrator: &Orchestrator) {
        let request = client().get(format!("{}/products", orchestrator.base));
        let listed = send(request.header("x-admin-key", &deployment.admin_key)).await;
        assert_eq!(listed.status, 200, "{}", listed.body);
        assert_eq!(listed.body["products"][0]["policy"], self.policy, "{}", listed.body);
        let (engines, total) = self.product.list("?limit=100").await;
        assert_eq!(total, u64::try_from(self.conversations.len()).unwrap(), "{engines:?}");
        for (user, conversation) in &self.conversations {
            // A stopped engine is started for this, and stopped again.
            let is_stopped = self.product.status(user).await == "stopped";
            if is_stopped {
                self.product.start(user).await;
            }
            let engine = self.product.engine(user).await;
            assert_eq!(&engine.messages("task").await, conversation, "the conversation of {user}");
            if is_stopped {
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
                let texts = roles_and_texts(&messages);
                texts.last().is_some_and(|(_, text)| text.contains("green")).then_some(())
            })
            .await;
        }
    }
}

/// Runs a turn that asks the user a question, and leaves it open; returns the `request_id`.
async fn open_question(engine: &Engine) -> String {
    let (_stream, request) = engine.run_until_hitl_request(&direct_message("question", "Ask me.")).await;
    request.data["request_id"].as_str().unwrap().to_owned()
}

/// Kills the orchestrator in the middle of a start, so that the next one finds a claim.
async fn kill_amid_a_start(
    deployment: &Deployment,
    orchestrator: Orchestrator,
    product: &Product,
    user: &str,
) {
    let engine = Engine::new(&product.get(user).await.body);
    let request = product.request(Method::POST, &format!("/engines/{user}/start"));
    let start = tokio::spawn(request.send());
    eventually("the engine begins", async || deployment.process_of(&engine)).await;
    orchestrator.signal_and_wait(Signal::KILL).await;
    start.abort();
}

async fn assert_audit_log_valid(deployment: &Deployment, version: &Version) {
    let line = [version.program.as_str(), "audit", "verify"];
    deployment.fleet.test_env.run_program(&line, &deployment.fleet.variables).wait().await.assert_success();
}

#[tokio::test]
#[expect(clippy::print_stdout, reason = "the output of a failed test shows which version failed")]
async fn each_version_serves_what_any_other_has_stored() {
    let Some(earlier) = earlier_programs() else { return };
    let mut deployment = Deployment::new().with_script(SCRIPT);
    let versions = versions(&deployment, earlier);
    let newest = versions.len() - 1;
    let version_indices = (0..=newest).chain((0..newest).rev()).chain([newest]);

    let mut stored: Option<StoredState> = None;
    for (station, index) in version_indices.enumerate() {
        let version = &versions[index];
        println!("--- station {station}: version {index}");
        deployment.fleet.variables.insert("ORCH_ENGINE_IMAGE".to_owned(), version.image.clone());
        let mut orchestrator = deployment.launch_program(&[&version.program, "orchestrator"]);
        orchestrator.wait_ready().await;

        let state = match &mut stored {
            None => stored.insert(create_stored_state(&orchestrator).await),
            Some(stored) => {
                let product = Product::new(&orchestrator.base, &stored.product.key);
                stored.product = product;
                stored
            }
        };
        eventually("nothing is under way", async || {
            let (engines, _) = state.product.list("?limit=100").await;
            let settled = |engine: &Value| matches!(engine["status"].as_str(), Some("running" | "stopped"));
            engines.iter().all(settled).then_some(())
        })
        .await;
        let untouched_engine = state.product.engine("untouched").await;
        if state.untouched_engine.is_some() {
            assert_eq!(
                deployment.process_of(&untouched_engine),
                state.untouched_engine,
                "a running engine keeps running"
            );
        }
        state.untouched_engine = deployment.process_of(&untouched_engine);
        state.assert_served(&deployment, &orchestrator).await;

        // Each version adds to the stored state.
        state.policy = json!({"max_engines": 50 + station, "rate_limit_rpm": 100_000});
        set_policy(&deployment, &orchestrator, &state.product, &state.policy).await;
        state.run_turn("untouched", &format!("Station {station}.")).await;
        state.product.start("resting").await;
        state.run_turn("resting", &format!("Note station{station}.")).await;
        assert_eq!(state.product.rotate_key("resting").await.status, 200);
        assert_eq!(state.product.stop("resting").await.status, 200);
        state.run_turn(&format!("from-{station}"), "Hello!").await;
        state.pending_question = Some(open_question(&state.product.engine("untouched").await).await);
        if station % 3 == 2 {
            // From now on the engine itself runs this version.
            assert_eq!(state.product.stop("untouched").await.status, 200);
            assert_eq!(state.product.start("untouched").await.status, 200);
            state.untouched_engine = deployment.process_of(&state.product.engine("untouched").await);
        }
        assert_audit_log_valid(&deployment, version).await;
        if station % 2 == 0 {
            orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
        } else {
            kill_amid_a_start(&deployment, orchestrator, &state.product, "resting").await;
        }
    }

    let state = stored.unwrap();
    let orchestrator = deployment.start().await;
    for user in state.conversations.keys() {
        let engine = state.product.get(user).await.body;
        assert_eq!(state.product.delete(user).await.status, 200, "{user}");
        assert_eq!(deployment.data_folder(engine["engine_id"].as_str().unwrap()), None, "{user}");
    }
    assert_eq!(processes::engines_in(deployment.fleet.folder()), []);
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
}

/// Creates the initial state, with the first version.
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

async fn set_policy(deployment: &Deployment, orchestrator: &Orchestrator, product: &Product, policy: &Value) {
    let request = client().get(format!("{}/products", orchestrator.base));
    let listed = send(request.header("x-admin-key", &deployment.admin_key)).await.body;
    let id = listed["products"][0]["product_id"].as_str().unwrap().to_owned();
    let request = client().put(format!("{}/products/{id}/policy", product.base));
    let answer =
        send(request.header("x-admin-key", &deployment.admin_key).json(&json!({"policy": policy}))).await;
    assert_eq!((answer.status, &answer.body["policy"]), (200, policy));
}
