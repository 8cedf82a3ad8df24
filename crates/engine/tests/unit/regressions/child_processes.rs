//! Leaking child processes. Whatever programs an agent leaves behind, none of them outlives its turn or the
//! engine, however that ends.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use api::KeyHash;
use http_service::clock::{Clock as _, SystemClock};
use mock_llm::{MockProvider, Reply};
use serde_json::json;
use tempfile::TempDir;
use testkit::{SseEvent, can_confine, can_run_python_servers, own_helper, parse_sse, with_deadline};

use super::servers::write_mcp_servers;
use crate::config::Config;

const KEY: &str = "sk-svc-right";
/// The variable that tells a process to be an engine, and in which folder.
const ENGINE_FOLDER_VAR: &str = "ROUNDHOUSE_TEST_ENGINE_FOLDER";

/// An engine in a process of its own, which can be killed.
struct EngineProcess {
    process: Child,
    base: String,
    folder: TempDir,
    provider: MockProvider,
}

impl EngineProcess {
    async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    /// Starts one with a catalog that `prepare` has written.
    async fn start_with(prepare: impl FnOnce(&Path)) -> Self {
        let provider = MockProvider::start().await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let catalog = folder.path().join("catalog");
        std::fs::create_dir(&catalog).unwrap();
        std::fs::write(catalog.join("permissions.json"), r#"{"default": "allow"}"#).unwrap();
        prepare(&catalog);
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "regressions::child_processes::an_engine_to_be_killed", "--nocapture"])
            .env(ENGINE_FOLDER_VAR, folder.path())
            .env("LLM_BASE_URL", provider.base_url())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let address = folder.path().join("address");
        let base = with_deadline(async {
            loop {
                match std::fs::read_to_string(&address) {
                    Ok(address) if address.ends_with('\n') => return format!("http://{}", address.trim()),
                    _ => SystemClock::new().sleep(Duration::from_millis(10)).await,
                }
            }
        })
        .await;
        Self { process, base, folder, provider }
    }

    async fn run_turn(&self, task: &str) -> Vec<SseEvent> {
        let body = json!({"task_id": task, "message": "go"}).to_string();
        let request =
            reqwest::Client::new().post(format!("{}/execute", self.base)).header("X-Engine-Key", KEY);
        parse_sse(&with_deadline(request.body(body).send()).await.unwrap().bytes().await.unwrap())
    }

    async fn connect(&self, server: &str) {
        let request = reqwest::Client::new().post(format!("{}/assets/connect", self.base));
        let body = json!({"server": server}).to_string();
        let answer = with_deadline(request.header("X-Engine-Key", KEY).body(body).send()).await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test by itself: the program of an [`EngineProcess`].
#[tokio::test]
async fn an_engine_to_be_killed() {
    let Some(folder) = std::env::var_os(ENGINE_FOLDER_VAR) else { return };
    let folder = Path::new(&folder);
    let base = std::env::var("LLM_BASE_URL").unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (brain, catalog, key) = (path("brain.sqlite"), path("catalog"), KeyHash::of(KEY).to_hex());
    let env = [
        ("ENGINE_HOST", "127.0.0.1"),
        ("ENGINE_PORT", "0"),
        ("ENGINE_KEY_HASH", &key),
        ("SQLITE_DB_PATH", &brain),
        ("CATALOG_DIR", &catalog),
        ("LLM_PROVIDER", "anthropic"),
        ("LLM_API_KEY", "k"),
        ("LLM_BASE_URL", &base),
    ];
    let env: BTreeMap<String, String> =
        env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let mut config = Config::from_env(&env).unwrap();
    config.sandbox_helper = own_helper();
    let engine = crate::Engine::start(config).await.unwrap();
    std::fs::write(folder.join("address"), format!("{}\n", engine.address().unwrap())).unwrap();
    engine.serve(tokio_util::sync::CancellationToken::new(), || {}).await;
}

/// Returns a number of seconds that no other process sleeps for. Programs left behind by a mutation end after it.
fn unique_sleep_seconds(seconds: u32, engine: &EngineProcess) -> String {
    format!("{seconds}.{}", engine.process.id())
}

/// Returns the processes whose command line contains `mark`, without zombies.
pub(super) fn live_processes(mark: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let folder = entry.ok()?.path();
        let command = std::fs::read(folder.join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let is_program = command.starts_with("sleep ") && command.contains(mark);
        is_program.then_some(command)
    });
    processes.collect()
}

async fn wait_for_exit(mark: &str) {
    with_deadline(async {
        while !live_processes(mark).is_empty() {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Returns a command that leaves programs behind in every possible way, and ends.
fn orphaning_command(mark: &str) -> String {
    format!(
        "sleep {mark} & setsid sleep {mark} & nohup sleep {mark} >/dev/null 2>&1 & \
         (trap '' TERM HUP INT; setsid sh -c 'sleep {mark} & sleep {mark}' </dev/null >/dev/null 2>&1 &) ; \
         echo left"
    )
}

#[tokio::test]
async fn regression_e09_what_a_turn_leaves_behind_does_not_outlive_it() {
    if !can_confine() {
        return;
    }
    let engine = EngineProcess::start().await;
    let mark = unique_sleep_seconds(97, &engine);
    for turn in 0..100 {
        let call =
            Reply::new().tool_use("shell", json!({"command": orphaning_command(&mark), "timeout_s": 20}));
        engine.provider.enqueue_all([call, Reply::from_text("Done.")]);
        let events = engine.run_turn(&format!("task-{turn}")).await;
        let result = events.iter().find(|event| event.kind == "tool_result").unwrap();
        assert!(result.data["output"].as_str().unwrap().contains("left"), "{}", result.data);
        assert_eq!(live_processes(&mark), [""; 0], "after turn {turn}");
    }
}

#[tokio::test]
async fn regression_e09_no_program_outlives_an_engine_that_is_killed() {
    if !can_confine() {
        return;
    }
    let mut engine = EngineProcess::start().await;
    let mark = unique_sleep_seconds(98, &engine);
    let command = format!("{}; touch began; sleep {mark}", orphaning_command(&mark));
    engine.provider.enqueue(Reply::new().tool_use("shell", json!({"command": command})));
    let begun = engine.folder.path().join("workspace/began");
    tokio::select! {
        events = engine.run_turn("task") => panic!("it ended: {events:#?}"),
        () = with_deadline(async {
            while !begun.exists() {
                SystemClock::new().sleep(Duration::from_millis(5)).await;
            }
        }) => {}
    }
    // The last of them is the program itself.
    with_deadline(async {
        while live_processes(&mark).len() < 5 {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    engine.kill();
    wait_for_exit(&mark).await;
}

#[tokio::test]
async fn regression_e09_no_tool_server_outlives_an_engine_that_is_killed() {
    if !can_run_python_servers() {
        return;
    }
    // Each call leaves a program behind and ends it at the next call: the server's own affair while it runs.
    let source = r#"
import subprocess
left = []
def call(request):
    mark = request["params"]["arguments"]["mark"]
    for command in (["setsid", "sleep", mark], ["sleep", mark]):
        left.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
    for old in left[:-2]:
        old.kill()
        old.wait()
    del left[:-2]
    answer(request, text("left"))
serve(call, tools=lambda: [tool("leave")])
"#;
    let mut engine = EngineProcess::start_with(|catalog| write_mcp_servers(catalog, 1, source)).await;
    engine.connect("s0").await;
    let mark = unique_sleep_seconds(96, &engine);
    for turn in 0..100 {
        let call = Reply::new().tool_use("s0__leave", json!({"mark": mark}));
        engine.provider.enqueue_all([call, Reply::from_text("Done.")]);
        let events = engine.run_turn(&format!("task-{turn}")).await;
        let result = events.iter().find(|event| event.kind == "tool_result").unwrap();
        assert_eq!(result.data["output"], "left", "{}", result.data);
    }
    let notes = std::fs::read_to_string(engine.folder.path().join("workspace/notes")).unwrap();
    assert_eq!(notes.lines().collect::<Vec<_>>(), ["started"], "one program serves all turns");
    with_deadline(async {
        while live_processes(&mark).len() != 2 {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    engine.kill();
    wait_for_exit(&mark).await;
}
