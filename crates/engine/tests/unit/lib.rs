//! Tests of a whole engine: started from its environment, stopped in the middle of a turn, and started again.

use std::collections::BTreeMap;

use mock_llm::{Gate, MockProvider, Reply};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{parse_sse, rendered_text, with_deadline};
use tokio::task::JoinHandle;

use super::*;

const KEY: &str = "sk-svc-1";

struct RunningEngine {
    base: String,
    shutdown: CancellationToken,
    server_task: JoinHandle<()>,
}

impl RunningEngine {
    async fn start(folder: &TempDir, provider: &MockProvider) -> Self {
        Self::start_releasing(folder, provider, || {}).await
    }

    async fn start_releasing(
        folder: &TempDir,
        provider: &MockProvider,
        release_memory: impl Fn() + Send + 'static,
    ) -> Self {
        let engine = Engine::start(config(folder, provider, "0")).await.unwrap();
        let base = format!("http://{}", engine.address().unwrap());
        let shutdown = CancellationToken::new();
        Self { base, server_task: tokio::spawn(engine.serve(shutdown.clone(), release_memory)), shutdown }
    }

    fn get(&self, path: &str) -> reqwest::RequestBuilder {
        reqwest::Client::new().get(format!("{}{path}", self.base)).header("X-Engine-Key", KEY)
    }

    async fn stop(self) {
        self.shutdown.cancel();
        with_deadline(self.server_task).await.unwrap();
    }
}

fn config(folder: &TempDir, provider: &MockProvider, port: &str) -> Config {
    let brain = folder.path().join("data/brain.sqlite");
    let base = provider.openai_base_url();
    let env: BTreeMap<String, String> = [
        ("ENGINE_HOST", "127.0.0.1"),
        ("ENGINE_PORT", port),
        ("ENGINE_KEY_HASH", &api::KeyHash::of(KEY).to_hex()),
        ("SQLITE_DB_PATH", brain.to_str().unwrap()),
        ("CATALOG_DIR", folder.path().to_str().unwrap()),
        ("LLM_PROVIDER", "openai"),
        ("OPENAI_API_KEY", "k"),
        ("LLM_BASE_URL", &base),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    Config::from_env(&env).unwrap()
}

#[tokio::test]
async fn stopped_in_the_middle_of_a_turn_it_goes_on_with_it_at_its_next_start() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("soul.md"), "You are Ada.").unwrap();
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    provider.enqueue_all([
        Reply::from_text("before").deltas(3).hold(1, &gate),
        Reply::from_text("after the restart"),
    ]);

    let engine = RunningEngine::start(&folder, &provider).await;
    let health: Value = with_deadline(engine.get("/health").send()).await.unwrap().json().await.unwrap();
    assert_eq!(health["status"], "ok");
    let body = json!({"task_id": "t", "message": "go"}).to_string();
    let request = reqwest::Client::new().post(format!("{}/execute", engine.base)).header("X-Engine-Key", KEY);
    let live = with_deadline(request.body(body).send()).await.unwrap();
    gate.reached().await;
    engine.stop().await;
    // The open stream ended properly, at the end of an event.
    let seen = parse_sse(&with_deadline(live.bytes()).await.unwrap());
    assert_eq!(seen[0].phase(), Some("started"));

    let engine = RunningEngine::start(&folder, &provider).await;
    let replay = with_deadline(engine.get("/execute/replay").send()).await.unwrap();
    let all = parse_sse(&with_deadline(replay.bytes()).await.unwrap());
    assert!(all.starts_with(&seen));
    assert_eq!(rendered_text(&all, true), "after the restart");
    assert_eq!(all.last().unwrap().phase(), Some("completed"));
    assert_eq!(provider.requests()[1].body["messages"][0]["content"], "You are Ada.");
    engine.stop().await;
    provider.assert_no_refusals();
}

#[tokio::test]
async fn memory_is_released_after_the_start_and_after_each_burst_of_work() {
    let folder = tempfile::tempdir().unwrap();
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue_all([Reply::from_text("one"), Reply::from_text("two")]);
    let (counter, mut released) = tokio::sync::watch::channel(0);
    let release_memory = move || counter.send_modify(|count| *count += 1);
    let engine = RunningEngine::start_releasing(&folder, &provider, release_memory).await;
    with_deadline(released.wait_for(|count| *count > 0)).await.unwrap();
    for message in ["once", "again"] {
        let before = *released.borrow();
        let body = json!({"task_id": "t", "message": message}).to_string();
        let request = reqwest::Client::new().post(format!("{}/execute", engine.base));
        let stream = with_deadline(request.header("X-Engine-Key", KEY).body(body).send()).await.unwrap();
        with_deadline(stream.bytes()).await.unwrap();
        with_deadline(released.wait_for(|count| *count > before)).await.unwrap();
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_taken_address_is_named_and_the_brain_is_free_again() {
    let folder = tempfile::tempdir().unwrap();
    let provider = MockProvider::start().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let error = Engine::start(config(&folder, &provider, &port)).await.err().unwrap();
    assert!(error.to_string().contains(&format!("127.0.0.1:{port} (ENGINE_HOST, ENGINE_PORT)")), "{error}");
    drop(listener);
    with_deadline(async {
        // The brain's writer releases the lock when it has ended, which nobody waited for.
        while let Err(error) = Engine::start(config(&folder, &provider, &port)).await {
            assert!(matches!(error, StartError::Brain(BrainError::InUse { .. })), "{error}");
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_turn_that_an_earlier_version_left_open_is_finished_and_its_threads_go_on() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let brain = rusqlite::Connection::open(folder.path().join("data/brain.sqlite")).unwrap();
    brain.execute_batch(testkit::BRAIN_0_1_0).unwrap();
    drop(brain);
    let provider = MockProvider::start().await.unwrap();
    provider.set_default_reply(Reply::from_text("well then"));

    let engine = RunningEngine::start(&folder, &provider).await;
    let replay = with_deadline(engine.get("/execute/replay?task_id=open").send()).await.unwrap();
    let all = parse_sse(&with_deadline(replay.bytes()).await.unwrap());
    assert_eq!(all.last().unwrap().data["text"], "well then");
    let task: Value = with_deadline(engine.get("/tasks/kept").send()).await.unwrap().json().await.unwrap();
    let messages = task["messages"].as_array().unwrap();
    let contents: Vec<&Value> = messages
        .iter()
        .filter(|message| message["role"] == "user")
        .map(|message| &message["content"])
        .collect();
    assert_eq!(contents, ["note blue", "hello", "fail"]);

    // Its messages can be edited: later ones are gone, for the model too.
    let edit = json!({"task_id": "kept", "message": "hi", "edit_message_id": messages[3]["message_id"]});
    let request = reqwest::Client::new().post(format!("{}/execute", engine.base)).header("X-Engine-Key", KEY);
    let events = with_deadline(with_deadline(request.body(edit.to_string()).send()).await.unwrap().bytes())
        .await
        .unwrap();
    assert_eq!(parse_sse(&events).last().unwrap().phase(), Some("completed"));
    let sent = provider.requests().pop().unwrap().body["messages"].to_string();
    assert!(sent.contains("note blue") && sent.contains("\"hi\""), "{sent}");
    assert!(!sent.contains("hello") && !sent.contains("\"fail\""), "{sent}");
    engine.stop().await;
    provider.assert_no_refusals();
}
