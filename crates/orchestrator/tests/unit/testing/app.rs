//! A complete orchestrator in the test's process: a registry in its own folder, the fault backend, a manual clock,
//! and the real router.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::{AdminKey, EngineId, Timestamp};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use axum::response::Response;
use backend::DataRoot;
use fetch::WebAllowlist;
use http_service::clock::{Clock, ManualClock};
use secrecy::SecretString;
use serde_json::{Value, json};
use sqlx::Row as _;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::{FaultBackend, ResponseRecorder, TestDatabase, addressing, on_postgres};
use crate::config::{
    BackendKind, BackupSettings, Config, DEFAULT_NETWORK, DatabaseUrl, PortRange, SupervisionRules, VERSION,
    WebhookRules,
};
use crate::fleet::FleetDeps;
use crate::keys::{MasterKey, Vault};
use crate::metrics::Metrics;
use crate::orchestrator::Orchestrator;
use crate::registry::{OpenRegistryError, Registry};

pub(crate) const ADMIN_KEY: &str = "open sesame";

pub(crate) struct TestApp {
    pub(crate) orchestrator: Orchestrator,
    pub(crate) backend: Arc<FaultBackend>,
    pub(crate) clock: Arc<ManualClock>,
    /// The responses of its routes.
    pub(crate) responses: ResponseRecorder,
    router: Router,
    database: Arc<TestDatabase>,
    folder: Arc<tempfile::TempDir>,
    config: Config,
    shutdown: CancellationToken,
    _shutdown_guard: DropGuard,
}

/// A response: status, headers, body.
pub(crate) type TestResponse = (u16, HeaderMap, Value);

impl TestApp {
    /// Starts an orchestrator and waits until it is ready.
    pub(crate) async fn new() -> Self {
        Self::with_ports(9_001, 9_100).await
    }

    /// Like [`TestApp::new`], with engines on these ports.
    pub(crate) async fn with_ports(first: u16, last: u16) -> Self {
        let app = Self::new_starting(PortRange::new(first, last).unwrap()).await;
        app.start().await;
        app
    }

    /// Like [`TestApp::new`], with these supervision rules. Its registry is in memory if the system has
    /// `/dev/shm`, because some tests create many short-lived orchestrators.
    pub(crate) async fn with_rules(rules: SupervisionRules) -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let app = Self::in_folder(folder.unwrap(), |config| config.rules = rules).await;
        app.start().await;
        app
    }

    /// Like [`TestApp::new`], with backups in a folder, which are made on request only.
    pub(crate) async fn with_backups() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}/backups", folder.path().display());
        let settings = BackupSettings {
            target: backup::Target::parse(&url, &std::collections::BTreeMap::<String, String>::new())
                .unwrap(),
            interval: None,
            at_sleep: false,
            retention: backup::Retention { keep_last: 1, keep_days: 1 },
        };
        let app = Self::in_folder(folder, |config| config.backups = Some(settings)).await;
        app.start().await;
        app
    }

    /// The folder of the backups.
    pub(crate) fn backups(&self) -> PathBuf {
        self.folder.path().join("backups")
    }

    /// An orchestrator that is not ready before [`TestApp::start`].
    pub(crate) async fn new_starting(range: PortRange) -> Self {
        Self::in_folder(tempfile::tempdir().unwrap(), |config| config.ports = range).await
    }

    /// An orchestrator whose registry is `database`, reached through `url`. It is not ready before
    /// [`TestApp::start`].
    pub(crate) async fn with_database(database: TestDatabase, url: DatabaseUrl) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_ms(1_795_174_231_042)));
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder, url);
        let backend = Self::new_backend(&clock, &config);
        Self::build_unready(clock, backend, Arc::new(folder), Arc::new(database), config).await
    }

    async fn in_folder(folder: tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_unix_ms(1_795_174_231_042)));
        let database = TestDatabase::new(folder.path()).await;
        let mut config = config(&folder, database.url().clone());
        change(&mut config);
        let backend = Self::new_backend(&clock, &config);
        Self::build_unready(clock, backend, Arc::new(folder), Arc::new(database), config).await
    }

    fn new_backend(clock: &Arc<ManualClock>, config: &Config) -> Arc<FaultBackend> {
        FaultBackend::new(Arc::clone(clock) as Arc<dyn Clock>, addressing(), config.ports.min())
    }

    async fn build_unready(
        clock: Arc<ManualClock>,
        backend: Arc<FaultBackend>,
        folder: Arc<tempfile::TempDir>,
        database: Arc<TestDatabase>,
        config: Config,
    ) -> Self {
        let registry = Self::open_registry(&config.database, clock.now()).await;
        let vault = Vault::new(&config.master_key).unwrap();
        let known = registry.known_data().await.unwrap();
        let parts = FleetDeps {
            data: DataRoot::new(config.data_root.clone(), "a deployment".to_owned(), known),
            registry,
            vault: Arc::new(vault),
            backend: Arc::clone(&backend) as _,
            probe: Arc::clone(&backend) as _,
            clock: Arc::clone(&clock) as _,
            metrics: Metrics::enabled(clock.now()),
        };
        let orchestrator = Orchestrator::from_parts(config.clone(), parts);
        let responses = ResponseRecorder::default();
        let router = responses.layer(Router::new().fallback_service(orchestrator.routes()));
        let shutdown = CancellationToken::new();
        let shutdown_guard = shutdown.clone().drop_guard();
        Self {
            orchestrator,
            backend,
            clock,
            responses,
            router,
            config,
            database,
            folder,
            shutdown,
            _shutdown_guard: shutdown_guard,
        }
    }

    /// Opens the registry. A database server may take a moment to release the lock of the previous orchestrator.
    async fn open_registry(database: &DatabaseUrl, now: Timestamp) -> Registry {
        for _ in 0..30 {
            match Registry::open(database, now).await {
                Err(OpenRegistryError::Held(_)) => {}
                opened => return opened.unwrap(),
            }
        }
        panic!("the registry stays held")
    }

    /// Starts the orchestrator's background tasks, and waits until it is ready.
    pub(crate) async fn start(&self) {
        let fleet = self.orchestrator.fleet();
        fleet.spawn_tasks(&TaskTracker::new(), &self.shutdown);
        while !fleet.is_ready() {
            tokio::task::yield_now().await;
        }
    }

    /// Kills the orchestrator, and opens another one on the same registry and backend. It is not ready before
    /// [`TestApp::start`].
    pub(crate) async fn kill_and_replace(self) -> Self {
        self.shutdown.cancel();
        let Self { orchestrator, backend, clock, router, config, folder, database, .. } = self;
        drop(router);
        // A kill ends every task and file handle at once; here the tasks need some polls to end.
        let shared = Arc::downgrade(orchestrator.fleet().shared());
        orchestrator.fleet().abort_operations();
        drop(orchestrator);
        while shared.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        backend.reconnect();
        Self::build_unready(clock, backend, folder, database, config).await
    }

    /// Like [`TestApp::kill_and_replace`], with `image` as the new orchestrator's default engine image.
    pub(crate) async fn kill_and_upgrade(mut self, image: &str) -> Self {
        self.config.engine_image = image.parse().unwrap();
        self.kill_and_replace().await
    }

    /// The image of engines that request none.
    pub(crate) fn config_image(&self) -> String {
        self.config.engine_image.as_str().to_owned()
    }

    /// The folder that would hold the engines' folders.
    pub(crate) fn data_root(&self) -> PathBuf {
        self.config.data_root.clone()
    }

    /// Simulates a full registry disk, or frees space on it.
    pub(crate) async fn fill_disk(&self, full: bool) {
        self.orchestrator.fleet().registry().fill_disk(full).await;
    }

    /// Makes the registry read-only, or writable again.
    pub(crate) async fn lock_disk(&self, locked: bool) {
        self.orchestrator.fleet().registry().lock_disk(locked).await;
    }

    /// Adds `count` copies of the only engine to the registry and the backend, on the ports after its own and
    /// without valid keys, and returns them. The running orchestrator does not notice them; the next one adopts
    /// them.
    pub(crate) async fn add_engines(&self, count: u16) -> Vec<EngineId> {
        let launch = self.backend.launches().pop().unwrap();
        let ids: Vec<EngineId> = (0..count).map(|_| EngineId::new()).collect();
        let values: Vec<_> = ids.iter().map(|id| format!("('{id}')")).collect();
        let columns = "product_id, status, key_hash, sealed_key, sealed_secrets_key, engine_version, pinned, \
                       created_at, last_health_at, generation, admitted_at, well_since";
        let copy = format!(
            "WITH more (id) AS (VALUES {}) INSERT INTO engines (engine_id, user_id, port, instance, {columns}) \
             SELECT id, id, port + ROW_NUMBER() OVER (), 'orphan', {columns} FROM engines, more",
            values.join(", ")
        );
        self.execute(copy).await;
        let port = launch.placement.host_port().unwrap_or(9_001);
        for (engine_id, port) in ids.iter().zip(port + 1..) {
            self.backend.run_orphan(*engine_id, port, launch.clone());
        }
        ids
    }

    /// Runs `work` while the clock advances by `step` every millisecond. The clock stands still while the registry
    /// is busy, so that a slow disk does not look like a slow backend.
    pub(crate) async fn while_time_passes<T>(&self, step: Duration, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                output = &mut work => return output,
                () = tokio::time::sleep(Duration::from_millis(1)) => {
                    if self.orchestrator.fleet().is_idle() {
                        self.clock.advance(step);
                    }
                }
            }
        }
    }

    /// Advances the clock in steps until `condition` holds. The condition is evaluated after each step, so no
    /// state that lasts longer than a step is missed.
    pub(crate) async fn advance_until(&self, step: Duration, condition: impl AsyncFn() -> bool) {
        let held = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
                if self.orchestrator.fleet().is_idle() {
                    self.clock.advance(step);
                }
            }
        };
        let (before, held) = (self.elapsed(), tokio::time::timeout(Duration::from_mins(2), held).await);
        let idle = self.orchestrator.fleet().is_idle();
        held.unwrap_or_else(|_| panic!("the condition never held in {:?}; idle: {idle}", self.since(before)));
    }

    /// Waits until `condition` holds.
    pub(crate) async fn wait_until(&self, condition: impl Fn() -> bool) {
        let held = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), held).await.expect("the condition never held");
    }

    /// Returns the time that has passed on the test's clock.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Returns the time that has passed on the test's clock since `before`.
    pub(crate) fn since(&self, before: Duration) -> Duration {
        self.elapsed().saturating_sub(before)
    }

    /// Returns the wall clock's time, in milliseconds since the Unix epoch.
    pub(crate) fn wall_ms(&self) -> i64 {
        self.clock.now().unix_ms()
    }

    /// Moves the wall clock only, not the monotonic one.
    pub(crate) fn shift_wall(&self, by_ms: i64) {
        self.clock.set_wall(Timestamp::from_unix_ms(self.clock.now().unix_ms() + by_ms));
    }

    /// Sleeps on the test's clock.
    pub(crate) async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
    }

    /// Whether any engine is claimed.
    async fn any_claimed(&self) -> bool {
        !self.rows("SELECT engine_id FROM engines WHERE claim_kind IS NOT NULL").await.is_empty()
    }

    /// Waits until no engine is claimed.
    pub(crate) async fn wait_unclaimed(&self) {
        let settled = async {
            while self.any_claimed().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), settled).await.expect("an engine stays claimed");
    }

    /// Registers a product.
    pub(crate) async fn register_product(&self, slug: &str, policy: Value) -> ProductClient<'_> {
        let body = json!({"slug": slug, "display_name": "A product", "policy": policy});
        let (status, _, answer) =
            self.send("POST", "/products/register", &[("X-Admin-Key", ADMIN_KEY)], &body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
        ProductClient { app: self, key: answer["platform_api_key"].as_str().unwrap().to_owned() }
    }

    /// Sends a request through the real router.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestResponse {
        let (parts, body) = self.send_unread(method, path, headers, body).await.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        let body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| panic!("no JSON: {}", String::from_utf8_lossy(&body)));
        (parts.status.as_u16(), parts.headers, body)
    }

    /// The real router.
    pub(crate) fn router(&self) -> Router {
        self.router.clone()
    }

    /// Sends a request through the real router, and leaves the response's body unread.
    pub(crate) async fn send_unread(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        self.router().oneshot(request).await.unwrap()
    }

    /// Asserts that the audit log's hash chains are intact, and returns the number of rows.
    pub(crate) async fn assert_hash_chain(&self) -> i64 {
        let mut rows = 0;
        crate::verify(self.database.url(), |checked| rows += checked.rows.expect("the chain is broken"))
            .await
            .unwrap();
        rows
    }

    /// Replaces a product's policy.
    pub(crate) async fn replace_policy(&self, product_id: &str, policy: &Value) -> (u16, Value) {
        let path = format!("/products/{product_id}/policy");
        let body = json!({"policy": policy}).to_string();
        let (status, _, answer) = self.send("PUT", &path, &[("X-Admin-Key", ADMIN_KEY)], &body).await;
        (status, answer)
    }

    /// Returns the rows of a query on the registry, through a separate connection.
    pub(crate) async fn rows(&self, query: &'static str) -> Vec<Vec<String>> {
        let pool = self.database.pool().await;
        let rows = sqlx::query(query).fetch_all(&pool).await.unwrap();
        pool.close().await;
        rows.iter().map(|row| (0..row.len()).map(|at| row.get::<String, _>(at)).collect()).collect()
    }

    /// Changes the registry without the orchestrator, through a separate connection.
    pub(crate) async fn execute(&self, statement: impl Into<String>) {
        let pool = self.database.pool().await;
        sqlx::query(sqlx::AssertSqlSafe(statement.into())).execute(&pool).await.unwrap();
        pool.close().await;
    }

    /// Returns everything that the registry stores, as text.
    pub(crate) async fn dump(&self) -> String {
        if on_postgres() {
            let tables = "SELECT CAST(products AS TEXT) FROM products UNION ALL SELECT CAST(meta AS TEXT) FROM meta \
                          UNION ALL SELECT CAST(engines AS TEXT) FROM engines \
                          UNION ALL SELECT CAST(audit_log AS TEXT) FROM audit_log";
            return self.rows(tables).await.concat().concat();
        }
        let files = ["registry.db", "registry.db-wal"].map(|name| self.folder.path().join(name));
        files.iter().map(|file| String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned()).collect()
    }

    /// Returns the audit log in commit order, without registrations. A line has the event, the old and the new
    /// status, and the reason.
    pub(crate) async fn audit_lines(&self) -> Vec<String> {
        let rows = self.rows("SELECT event, detail FROM audit_log ORDER BY at, product_id, id").await;
        let line = |row: &Vec<String>| {
            let detail: Value = serde_json::from_str(&row[1]).unwrap();
            let text = |name: &str| detail[name].as_str().unwrap_or("none").to_owned();
            format!("{} {}→{} {}", row[0], text("from"), text("to"), text("reason"))
        };
        rows.iter().map(line).filter(|line| !line.starts_with("register")).collect()
    }

    /// Asserts that registry and backend agree: the running engines are those with status `running`, every folder
    /// has a row and every row a folder, and nothing is claimed.
    pub(crate) async fn assert_consistent(&self) {
        let ids = |rows: Vec<Vec<String>>| -> HashSet<EngineId> {
            rows.iter().map(|row| row[0].parse().unwrap()).collect()
        };
        assert!(!self.any_claimed().await, "an engine is still claimed");
        let running = self.rows("SELECT engine_id FROM engines WHERE status = 'running'").await;
        assert_eq!(ids(running), self.backend.running());
        assert_eq!(ids(self.rows("SELECT engine_id FROM engines").await), self.backend.folders());
    }
}

/// A client with a product's key.
#[derive(Clone)]
pub(crate) struct ProductClient<'a> {
    pub(crate) app: &'a TestApp,
    pub(crate) key: String,
}

impl ProductClient<'_> {
    /// Returns the product's id, taken from its audit log.
    pub(crate) async fn product_id(&self) -> String {
        let (_, audit) = self.get_path("/audit?limit=1").await;
        audit["rows"][0]["product_id"].as_str().unwrap().to_owned()
    }

    /// Replaces the product's policy, as the operator.
    pub(crate) async fn set_policy(&self, policy: Value) {
        let (status, answer) = self.app.replace_policy(&self.product_id().await, &policy).await;
        assert_eq!(status, 200, "{answer}");
    }

    pub(crate) async fn get_path(&self, path: &str) -> (u16, Value) {
        self.call("GET", path, &Value::Null).await
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, _, answer) = self.app.send(method, path, &[("X-Platform-Key", &self.key)], &body).await;
        (status, answer)
    }

    pub(crate) async fn provision(&self, user: &str) -> (u16, Value) {
        self.call("POST", "/engines/provision", &json!({"user_id": user})).await
    }

    pub(crate) async fn admit(&self, user: &str, body: Value) -> (u16, Value) {
        self.call("POST", &format!("/engines/{user}/admit"), &body).await
    }

    pub(crate) async fn start(&self, user: &str) -> (u16, Value) {
        self.call("POST", &format!("/engines/{user}/start"), &Value::Null).await
    }

    pub(crate) async fn stop(&self, user: &str) -> (u16, Value) {
        self.call("POST", &format!("/engines/{user}/stop"), &Value::Null).await
    }

    pub(crate) async fn rotate(&self, user: &str) -> (u16, Value) {
        self.call("POST", &format!("/engines/{user}/rotate-key"), &Value::Null).await
    }

    pub(crate) async fn get(&self, user: &str) -> (u16, Value) {
        self.call("GET", &format!("/engines/{user}"), &Value::Null).await
    }

    pub(crate) async fn delete(&self, user: &str) -> (u16, Value) {
        self.call("DELETE", &format!("/engines/{user}"), &Value::Null).await
    }
}

/// Summarizes a response: the HTTP status, and the error code, the reason or the engine's status.
pub(crate) fn summarize((status, answer): (u16, Value)) -> String {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let outcome = text(&answer["error"]["code"])
        .or_else(|| text(&answer["reason"]))
        .or_else(|| text(&answer["engine"]["status"]))
        .or_else(|| text(&answer["status"]));
    format!("{status} {}", outcome.unwrap_or_default())
}

fn config(folder: &tempfile::TempDir, database: DatabaseUrl) -> Config {
    Config {
        warnings: Vec::new(),
        database,
        master_key: MasterKey::parse(&"A".repeat(43)).unwrap(),
        admin_key: AdminKey::from_text(ADMIN_KEY.to_owned()),
        engine_image: format!("svc-engine:{VERSION}").parse().unwrap(),
        engine_env: vec![("LLM_API_KEY".to_owned(), SecretString::from("provider secret"))],
        address: ([127, 0, 0, 1], 0).into(),
        boot_timeout: Duration::from_mins(1),
        ports: PortRange::new(9_001, 9_100).unwrap(),
        url_host: "127.0.0.1".into(),
        engine_network: DEFAULT_NETWORK.into(),
        rules: SupervisionRules::default(),
        webhooks: WebhookRules {
            allow: WebAllowlist::parse("127.0.0.1").unwrap(),
            ..WebhookRules::default()
        },
        data_root: folder.path().join("engines"),
        catalog: folder.path().join("catalog"),
        backend: BackendKind::Process,
        take_over_from: None,
        warm_pool: crate::config::NO_WARM_POOL,
        backups: None,
        metrics_address: None,
    }
}
