//! A fleet of `roundhouse up`, and clients of its services.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use reqwest::{Client, Method, RequestBuilder};
use rusqlite::{Connection, OpenFlags};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::http::{client, path_segment, send};
use super::schema::ENGINE_RECORD;
use super::{EventStream, HttpResponse, Program, ProgramExit, TestEnv, assert_fields, eventually, processes};

/// The folder and the variables of a `roundhouse up`.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) test_env: TestEnv,
    pub(crate) variables: BTreeMap<String, String>,
    folder: PathBuf,
}

/// A running `roundhouse up`.
#[derive(Debug)]
pub(crate) struct RunningUp {
    pub(crate) program: Program,
    /// The orchestrator's address.
    pub(crate) base: String,
    folder: PathBuf,
}

/// A product's view of the orchestrator.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    http: Client,
    pub(crate) base: String,
    pub(crate) key: String,
}

/// A user's engine.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    http: Client,
    pub(crate) id: String,
    pub(crate) url: String,
    pub(crate) key: String,
}

/// Creates a catalog that contains only a soul.
pub(crate) fn write_soul(catalog: &Path) {
    fs::create_dir_all(catalog).unwrap();
    fs::write(catalog.join("soul.md"), "You are somebody's own assistant.").unwrap();
}

impl Fleet {
    /// A new fleet.
    pub(crate) fn new() -> Self {
        Self::in_folder("fleet")
    }

    /// A new fleet whose folder has this name.
    pub(crate) fn in_folder(name: impl AsRef<OsStr>) -> Self {
        let test_env = TestEnv::new();
        let folder = test_env.path().join(Path::new(name.as_ref()));
        let variables = BTreeMap::from([
            ("ORCH_PORT".to_owned(), "0".to_owned()),
            ("ORCH_PORT_MIN".to_owned(), test_env.ports.first().to_string()),
            ("ORCH_PORT_MAX".to_owned(), test_env.ports.last().to_string()),
        ]);
        Self { test_env, variables, folder }
    }

    /// Sets a variable of `up`.
    pub(crate) fn with_env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.insert(name.to_owned(), value.into());
        self
    }

    /// Sets a script for the `scripted` provider.
    pub(crate) fn with_script(self, script: &str) -> Self {
        let file = self.test_env.path().join("script.yaml");
        fs::write(&file, script).unwrap();
        self.with_env("LLM_PROVIDER", "scripted").with_env("LLM_SCRIPT_PATH", file.to_str().unwrap())
    }

    /// Makes the engines use the mock provider with Anthropic's protocol. Turns are not planned, because the
    /// catalog has no agents.
    pub(crate) fn with_provider(self, provider: &mock_llm::MockProvider) -> Self {
        write_soul(&self.folder.join("catalog"));
        self.with_provider_and_shipped_catalog(provider)
    }

    /// Makes the engines use the mock provider with Anthropic's protocol and the shipped catalog.
    pub(crate) fn with_provider_and_shipped_catalog(self, provider: &mock_llm::MockProvider) -> Self {
        self.with_env("LLM_PROVIDER", "anthropic")
            .with_env("LLM_BASE_URL", provider.base_url())
            .with_env("LLM_API_KEY", "provider-key")
    }

    /// The fleet's folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Launches `roundhouse up` without waiting for it.
    pub(crate) fn launch(&self) -> Program {
        self.test_env.run(&["up", "--dir", self.folder.to_str().unwrap()], &self.variables)
    }

    /// Starts `roundhouse up` and waits until it is ready. A 503 while it starts is retried, as the contract
    /// has clients do.
    pub(crate) async fn start_up(&self) -> RunningUp {
        let up = self.start_up_by_output().await;
        eventually("the orchestrator is ready", async || {
            (send(client().get(format!("{}/health", up.base))).await.status == 200).then_some(())
        })
        .await;
        up
    }

    /// Starts `roundhouse up` and waits only until its output says that it is up.
    pub(crate) async fn start_up_by_output(&self) -> RunningUp {
        let mut program = self.launch();
        match program.wait_for_output("Ctrl-C").await {
            Ok(_) => {}
            Err(exit) => panic!("up ended with {:?}: {}", exit.code, exit.output),
        }
        let folder = self.folder.clone();
        let base = fs::read_to_string(folder.join("address")).unwrap().trim().to_owned();
        RunningUp { program, base, folder }
    }

    /// Starts a `roundhouse up` that must fail, and waits for its end.
    pub(crate) async fn run_failing_up(&self) -> ProgramExit {
        self.launch().wait().await
    }

    /// The processes of the running engines.
    pub(crate) fn engine_processes(&self) -> Vec<Pid> {
        processes::engines_in(&self.folder)
    }

    /// The process of the one running engine.
    #[track_caller]
    pub(crate) fn engine_process(&self) -> Pid {
        let found = self.engine_processes();
        let [pid] = found.as_slice() else { panic!("one engine should run, there are {found:?}") };
        *pid
    }

    /// The folder of an engine.
    pub(crate) fn engine_folder(&self, engine_id: &str) -> PathBuf {
        self.folder.join("engines").join(engine_id)
    }

    /// The users and details of the audit rows of an event, oldest first.
    pub(crate) fn audit_rows(&self, event: &str) -> Vec<(String, Value)> {
        let mode = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let registry = Connection::open_with_flags(self.folder.join("registry.sqlite"), mode).unwrap();
        let query = "SELECT user_id, detail FROM audit_log WHERE event = ?1 ORDER BY product_id, id";
        let mut rows = registry.prepare(query).unwrap();
        let rows = rows.query_map([event], |row| Ok((row.get(0)?, row.get::<_, String>(1)?))).unwrap();
        rows.map(|row| row.unwrap())
            .map(|(user, detail)| (user, serde_json::from_str(&detail).unwrap()))
            .collect()
    }
}

impl RunningUp {
    /// The product that `up` registers.
    pub(crate) fn product(&self) -> Product {
        Product::new(&self.base, &self.read("platform.key"))
    }

    pub(crate) fn admin_key(&self) -> String {
        self.read("admin.key")
    }

    /// Registers another product.
    pub(crate) async fn register(&self, slug: &str, policy: Value) -> Product {
        Product::register(&self.base, &self.admin_key(), slug, policy).await
    }

    /// Ends it with a signal and waits for its exit.
    pub(crate) async fn signal_and_wait(self, signal: Signal) -> ProgramExit {
        self.program.signal_and_wait(signal).await
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap().trim().to_owned()
    }
}

impl Product {
    pub(crate) fn new(base: &str, key: &str) -> Self {
        Self { http: client(), base: base.to_owned(), key: key.to_owned() }
    }

    /// A request with the product's key.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).header("x-platform-key", &self.key)
    }

    /// Calls `path` with the product's key.
    pub(crate) async fn call(&self, method: Method, path: &str, body: Option<Value>) -> HttpResponse {
        let request = self.request(method, path);
        send(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    pub(crate) async fn provision(&self, user: &str) -> HttpResponse {
        self.call(Method::POST, "/engines/provision", Some(json!({"user_id": user}))).await
    }

    pub(crate) async fn admit(&self, user: &str) -> HttpResponse {
        let body = json!({"auto_provision": true, "auto_wake": true});
        self.call(Method::POST, &format!("/engines/{}/admit", path_segment(user)), Some(body)).await
    }

    pub(crate) async fn start(&self, user: &str) -> HttpResponse {
        self.call(Method::POST, &format!("/engines/{}/start", path_segment(user)), None).await
    }

    pub(crate) async fn stop(&self, user: &str) -> HttpResponse {
        self.call(Method::POST, &format!("/engines/{}/stop", path_segment(user)), None).await
    }

    pub(crate) async fn delete(&self, user: &str) -> HttpResponse {
        self.call(Method::DELETE, &format!("/engines/{}", path_segment(user)), None).await
    }

    pub(crate) async fn get(&self, user: &str) -> HttpResponse {
        self.call(Method::GET, &format!("/engines/{}", path_segment(user)), None).await
    }

    /// A page of the engines, and the total.
    pub(crate) async fn list(&self, query: &str) -> (Vec<Value>, u64) {
        let list = self
            .call(Method::GET, &format!("/engines{query}"), None)
            .await
            .assert_ok("engines:array total:int");
        (list["engines"].as_array().unwrap().clone(), list["total"].as_u64().unwrap())
    }

    /// A user's engine, created or woken if necessary.
    pub(crate) async fn engine(&self, user: &str) -> Engine {
        let admission = self.admit(user).await.assert_ok("admitted:bool engine:object");
        assert_eq!(admission["admitted"], true, "{admission}");
        assert_fields(&admission["engine"], ENGINE_RECORD);
        Engine::new(&admission["engine"])
    }

    /// The status of a user's engine.
    pub(crate) async fn status(&self, user: &str) -> String {
        self.get(user).await.assert_ok(ENGINE_RECORD)["status"].as_str().unwrap().to_owned()
    }
}

impl Engine {
    /// A client of the same engine with another key.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// A client of the engine that a record describes.
    pub(crate) fn new(record: &Value) -> Self {
        let text = |name: &str| record[name].as_str().unwrap().to_owned();
        Self { http: client(), id: text("engine_id"), url: text("url"), key: text("api_key") }
    }

    /// A request with the engine's key.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).header("x-engine-key", &self.key)
    }

    /// Starts a turn with this body.
    pub(crate) async fn execute_with(&self, body: &Value) -> EventStream {
        EventStream::open(self.request(Method::POST, "/execute").json(body)).await
    }

    /// Starts a turn.
    pub(crate) async fn execute(&self, task: &str, message: &str) -> EventStream {
        self.execute_with(&json!({"task_id": task, "message": message})).await
    }

    /// Reads a task's events after `after`.
    pub(crate) async fn replay(&self, task: &str, after: i64) -> EventStream {
        let path = format!("/execute/replay?task_id={}&after={after}", path_segment(task));
        EventStream::open(self.request(Method::GET, &path)).await
    }

    /// `GET /health`.
    pub(crate) async fn health(&self) -> Value {
        let health = send(self.http.get(format!("{}/health", self.url))).await;
        let health = health.assert_ok("status:text uptime_seconds:number subsystems:object");
        assert_fields(&health["subsystems"], "database:text llm_provider:text asset_directory:text");
        health
    }
}
