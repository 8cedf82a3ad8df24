//! A fleet under `roundhouse orchestrator`, configured by environment variables as in production, with any
//! combination of backend and database.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use api::EngineKey;
use reqwest::Method;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::docker::{self, Docker, DockerNetwork};
use super::fleet::write_soul;
use super::http::{client, path_segment, send};
use super::kubernetes::{self, Kubernetes, Namespace};
use super::schema::{AUDIT_ROW, EXPLANATION, LAST_TRANSITION, NEXT_ACTION, RESTART_ATTEMPT};
use super::tcp_forwarder::TcpForwarder;
use super::{
    Backend, Database, Engine, Fleet, HttpResponse, PostgresCluster, PostgresDatabase, Product, Program,
    ProgramExit, assert_fields, eventually, image, processes,
};

/// The version under test.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The variables that orchestrators of stories pass to their engines.
const ENV_PASSTHROUGH: &str =
    "LLM_PROVIDER,LLM_BASE_URL,LLM_API_KEY,LLM_SCRIPT_PATH,ENGINE_LOG_LEVEL,ENGINE_WEB_ALLOW";

/// The script of a model that answers everything at once.
pub(crate) const QUICK_SCRIPT: &str = "rules: [{answers: [{text: So it is.}]}]";

/// The folder and the variables of an orchestrator. The folder has the layout of an `up`'s, whose variables are
/// not used.
#[derive(Debug)]
pub(crate) struct Deployment {
    /// Its resources outside the folder. They are dropped before the folder.
    resources: Resources,
    pub(crate) fleet: Fleet,
    pub(crate) admin_key: String,
    pub(crate) master_key: String,
}

/// The resources of a deployment outside its folder.
#[derive(Debug)]
struct Resources {
    folder: PathBuf,
    host: EngineHost,
    database: Option<PostgresDatabase>,
    forwarders: Vec<TcpForwarder>,
}

/// What runs the engines, and what a deployment has there.
#[derive(Debug)]
enum EngineHost {
    Processes,
    Docker(Docker, DockerNetwork),
    Kubernetes(Namespace),
}

/// A started `roundhouse orchestrator`.
#[derive(Debug)]
pub(crate) struct Orchestrator {
    pub(crate) program: Program,
    pub(crate) base: String,
    pub(crate) admin_key: String,
}

impl Deployment {
    /// A new deployment with only the variables that are required or keep it apart from others, on the backend and
    /// database of this test run.
    pub(crate) fn new() -> Self {
        let this = Self::with_combination(Backend::from_env(), Database::from_env());
        this.expect(
            "the backend and database of ROUNDHOUSE_TEST_BACKEND and ROUNDHOUSE_TEST_DATABASE are available",
        )
    }

    /// A deployment with the process backend and SQLite.
    pub(crate) fn process_and_sqlite() -> Self {
        Self::with_resources(None, None, None)
    }

    /// A deployment with the Docker backend; `None` if this machine has no Docker.
    pub(crate) fn docker() -> Option<Self> {
        Self::with_combination(Backend::Docker, Database::from_env())
    }

    /// A deployment with PostgreSQL; `None` if there is no server.
    pub(crate) fn postgres() -> Option<Self> {
        Self::with_combination(Backend::from_env(), Database::Postgres)
    }

    /// A deployment with this backend and database; `None` if one of them is not available.
    pub(crate) fn with_combination(backend: Backend, database: Database) -> Option<Self> {
        let docker = match backend {
            Backend::Process => None,
            // The images for Kubernetes are made by Docker, too.
            Backend::Docker | Backend::Kubernetes => Some(Docker::local()?),
        };
        let cluster = match backend {
            Backend::Process | Backend::Docker => None,
            Backend::Kubernetes => Some(Kubernetes::local()?),
        };
        let database = match database {
            Database::Sqlite => None,
            Database::Postgres => Some(PostgresDatabase::local()?),
        };
        if let Some(docker) = &docker {
            let image = image::current_build(docker)?;
            if let Some(cluster) = cluster {
                cluster.load_image(docker, &image);
            }
        }
        Some(Self::with_resources(docker, cluster, database))
    }

    /// A deployment whose engines run at this daemon, which must have their image.
    pub(crate) fn with_docker(docker: &Docker) -> Self {
        Self::with_resources(Some(docker.clone()), None, None)
    }

    /// A deployment whose registry is in a new database of this server.
    pub(crate) fn with_cluster(cluster: &PostgresCluster) -> Self {
        Self::with_resources(None, None, Some(PostgresDatabase::create_on(&cluster.url())))
    }

    fn with_resources(
        docker: Option<Docker>,
        cluster: Option<&'static Kubernetes>,
        database: Option<PostgresDatabase>,
    ) -> Self {
        let fleet = Fleet::new();
        fs::create_dir(fleet.folder()).unwrap();
        // The last 43 characters of any key are 32 random bytes.
        let random = || EngineKey::generate().unwrap().expose()["sk-svc-".len()..].to_owned();
        let (admin_key, master_key) = (random(), random());
        let path = |name: &str| fleet.folder().join(name).to_str().unwrap().to_owned();
        let file = || format!("sqlite:{}", path("registry.sqlite"));
        let variables = [
            ("ORCH_DATABASE_URL", database.as_ref().map_or_else(file, PostgresDatabase::url)),
            ("ORCH_MASTER_KEY", master_key.clone()),
            ("ORCH_ADMIN_KEY", admin_key.clone()),
            ("ORCH_ENGINE_IMAGE", format!("svc-engine:{VERSION}")),
            ("ORCH_BACKEND", "process".to_owned()),
            ("ORCH_ENGINE_ENV_PASSTHROUGH", ENV_PASSTHROUGH.to_owned()),
            ("ORCH_HOST", "127.0.0.1".to_owned()),
            ("ORCH_PORT", fleet.test_env.ports.first().to_string()),
            ("ORCH_PORT_MIN", (fleet.test_env.ports.first() + 2).to_string()),
            ("ORCH_DATA_ROOT_PATH", path("engines")),
        ];
        let folder = fleet.test_env.path().to_owned();
        let host = match (docker, cluster) {
            (_, Some(cluster)) => EngineHost::Kubernetes(Namespace::new(cluster, &folder)),
            (Some(docker), None) => {
                let network = DockerNetwork::new(&docker);
                EngineHost::Docker(docker, network)
            }
            (None, None) => EngineHost::Processes,
        };
        let resources = Resources { folder, host, database, forwarders: Vec::new() };
        let this = Self { resources, fleet, admin_key, master_key };
        let this = variables.into_iter().fold(this, |this, (name, value)| this.with_env(name, value));
        this.with_engines_in_containers().with_script(QUICK_SCRIPT)
    }

    /// Sets the variables that engines in containers need.
    fn with_engines_in_containers(self) -> Self {
        // Containers see only the catalog's folder, which therefore holds the script.
        let catalog = self.catalog();
        let variables = match &self.resources.host {
            EngineHost::Processes => return self,
            EngineHost::Docker(docker, network) => vec![
                ("ORCH_BACKEND", "docker".to_owned()),
                ("ORCH_DOCKER_SOCKET", docker.socket().to_str().unwrap().to_owned()),
                ("ORCH_ENGINE_NETWORK", network.name.clone()),
                ("ORCH_CATALOG_MOUNT_PATH", catalog.to_str().unwrap().to_owned()),
            ],
            EngineHost::Kubernetes(namespace) => {
                let kubeconfig = self.fleet.folder().join("kubeconfig");
                namespace.write_kubeconfig(&kubeconfig);
                vec![
                    ("ORCH_BACKEND", "kubernetes".to_owned()),
                    ("KUBECONFIG", kubeconfig.to_str().unwrap().to_owned()),
                    ("ORCH_KUBERNETES_NAMESPACE", namespace.name.clone()),
                    ("ORCH_KUBERNETES_STORAGE_SIZE", "16Mi".to_owned()),
                ]
            }
        };
        write_soul(&catalog);
        let this = self.with_env("ORCH_ENGINE_IMAGE", image::reference(VERSION));
        variables.into_iter().fold(this, |this, (name, value)| this.with_env(name, value))
    }

    /// The engines' catalog, unless they are processes.
    pub(crate) fn catalog(&self) -> PathBuf {
        self.fleet.test_env.path().join("catalog")
    }

    /// The daemon, with the Docker backend.
    pub(crate) fn docker_daemon(&self) -> &Docker {
        let EngineHost::Docker(docker, _) = &self.resources.host else {
            panic!("the engines are containers")
        };
        docker
    }

    /// The engines' network, with the Docker backend.
    pub(crate) fn network(&self) -> &str {
        let EngineHost::Docker(_, network) = &self.resources.host else {
            panic!("the engines are containers")
        };
        &network.name
    }

    /// The database, with PostgreSQL.
    pub(crate) fn database(&self) -> &PostgresDatabase {
        self.resources.database.as_ref().expect("the registry is in PostgreSQL")
    }

    /// Sets a script for the `scripted` provider.
    pub(crate) fn with_script(self, script: &str) -> Self {
        let this = match &self.resources.host {
            EngineHost::Processes => return Self { fleet: self.fleet.with_script(script), ..self },
            EngineHost::Docker(..) => {
                fs::write(self.catalog().join("script.yaml"), script).unwrap();
                self
            }
            EngineHost::Kubernetes(namespace) => {
                fs::write(self.catalog().join("script.yaml"), script).unwrap();
                let catalog = namespace.put_catalog(&self.catalog());
                self.with_env("ORCH_KUBERNETES_CATALOG", catalog)
            }
        };
        this.with_env("LLM_PROVIDER", "scripted").with_env("LLM_SCRIPT_PATH", "/catalog/script.yaml")
    }

    /// Sets a variable.
    pub(crate) fn with_env(self, name: &str, value: impl Into<String>) -> Self {
        Self { fleet: self.fleet.with_env(name, value), ..self }
    }

    /// Makes the engines use the mock provider with Anthropic's protocol.
    pub(crate) fn with_provider(mut self, provider: &mock_llm::MockProvider) -> Self {
        self.fleet = self.fleet.with_provider(provider);
        let host_address = match &self.resources.host {
            EngineHost::Processes => return self,
            EngineHost::Docker(docker, _) => docker.host_address(),
            EngineHost::Kubernetes(namespace) => namespace.host_address(),
        };
        let address = provider.base_url().strip_prefix("http://").unwrap().parse().unwrap();
        let forwarder = TcpForwarder::bind_any(&host_address, address);
        let base = format!("http://{}", forwarder.address);
        self.resources.forwarders.push(forwarder);
        self.with_env("LLM_BASE_URL", base)
    }

    /// Launches the orchestrator without waiting for it.
    pub(crate) fn launch(&self) -> Orchestrator {
        self.launch_with("ORCH_PORT", &self.fleet.variables["ORCH_PORT"])
    }

    /// Launches a second orchestrator, on another port.
    pub(crate) fn launch_second(&self) -> Orchestrator {
        self.launch_with("ORCH_PORT", &(self.fleet.test_env.ports.first() + 1).to_string())
    }

    /// Launches an orchestrator by another command line, with the same variables.
    pub(crate) fn launch_program(&self, line: &[&str]) -> Orchestrator {
        let program = self.fleet.test_env.run_program(line, &self.fleet.variables);
        let base = format!("http://127.0.0.1:{}", self.fleet.variables["ORCH_PORT"]);
        Orchestrator { program, base, admin_key: self.admin_key.clone() }
    }

    /// Launches an orchestrator with another value of one variable.
    pub(crate) fn launch_with(&self, name: &str, value: &str) -> Orchestrator {
        let mut variables = self.fleet.variables.clone();
        variables.insert(name.to_owned(), value.to_owned());
        let program = self.fleet.test_env.run(&["orchestrator"], &variables);
        let base = format!("http://127.0.0.1:{}", variables["ORCH_PORT"]);
        Orchestrator { program, base, admin_key: self.admin_key.clone() }
    }

    /// Starts the orchestrator and waits until it is ready.
    pub(crate) async fn start(&self) -> Orchestrator {
        let mut orchestrator = self.launch();
        orchestrator.wait_ready().await;
        orchestrator
    }

    /// Starts the orchestrator and registers a product.
    pub(crate) async fn start_with_product(&self) -> (Orchestrator, Product) {
        let orchestrator = self.start().await;
        let product = orchestrator.register("shop", json!({})).await;
        (orchestrator, product)
    }

    /// Kills an orchestrator and starts another one.
    pub(crate) async fn kill_and_start(&self, orchestrator: Orchestrator) -> Orchestrator {
        assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
        self.start().await
    }

    /// The process of an engine, if it runs; in a container the engine's process, not the init process.
    pub(crate) fn process_of(&self, engine: &Engine) -> Option<Pid> {
        let found = match &self.resources.host {
            EngineHost::Processes => processes::engines_in_folder(&self.fleet.engine_folder(&engine.id)),
            EngineHost::Docker(..) => docker::processes_with_data_of(&engine.id),
            EngineHost::Kubernetes(_) => kubernetes::processes_of(&engine.id),
        };
        assert!(found.len() < 2, "one engine, {found:?}");
        found.first().copied()
    }

    /// The folder with an engine's data, if it has any.
    pub(crate) fn data_folder(&self, engine_id: &str) -> Option<PathBuf> {
        match &self.resources.host {
            EngineHost::Processes | EngineHost::Docker(..) => {
                Some(self.fleet.engine_folder(engine_id)).filter(|folder| folder.exists())
            }
            EngineHost::Kubernetes(namespace) => namespace.data_folder(engine_id),
        }
    }

    /// Whether each engine has a port of this machine.
    pub(crate) fn has_host_ports(&self) -> bool {
        !matches!(self.resources.host, EngineHost::Kubernetes(_))
    }

    /// The container of an engine, running or not.
    pub(crate) async fn container_of(&self, engine: &Engine) -> Option<String> {
        self.docker_daemon().container_of(&engine.id).await
    }

    /// The containers in the deployment's network, running or not.
    pub(crate) async fn containers(&self) -> Vec<String> {
        self.docker_daemon().containers(&format!("network={}", self.network())).await
    }

    /// Kills an engine behind the orchestrator's back.
    #[track_caller]
    pub(crate) fn kill_engine(&self, engine: &Engine) -> Pid {
        let process = self.process_of(engine).expect("the engine runs");
        match &self.resources.host {
            EngineHost::Processes => processes::kill(process),
            EngineHost::Docker(docker, _) => {
                let filter = format!("label=roundhouse.engine={}", engine.id);
                let container = docker.run_blocking(&["ps", "--quiet", "--filter", &filter]);
                processes::kill(process);
                if let Ok(container) = container {
                    // Wait until the daemon has noticed the exit; a container that is already gone needs no wait.
                    let _ = docker.run_blocking(&["wait", &container]);
                }
            }
            EngineHost::Kubernetes(namespace) => namespace.kill(&engine.id, process),
        }
        process
    }
}

impl Drop for Resources {
    /// Kills the processes that might still use the resources, before these are dropped.
    fn drop(&mut self) {
        processes::kill_all_mentioning(self.folder.as_os_str());
    }
}

impl Orchestrator {
    /// Waits until it reports that it is healthy.
    pub(crate) async fn wait_ready(&mut self) {
        eventually("the orchestrator is ready", async || {
            assert!(self.program.is_running(), "the orchestrator ended: {}", self.program.output());
            let response = client().get(format!("{}/health", self.base)).send().await;
            response.is_ok_and(|response| response.status() == 200).then_some(())
        })
        .await;
    }

    /// Registers a product.
    pub(crate) async fn register(&self, slug: &str, policy: Value) -> Product {
        Product::register(&self.base, &self.admin_key, slug, policy).await
    }

    /// Ends it with a signal and waits for its exit.
    pub(crate) async fn signal_and_wait(self, signal: Signal) -> ProgramExit {
        self.program.signal_and_wait(signal).await
    }
}

impl Product {
    /// Registers a product.
    pub(crate) async fn register(base: &str, admin_key: &str, slug: &str, policy: Value) -> Self {
        let body = json!({"slug": slug, "display_name": slug, "policy": policy});
        let request = client().post(format!("{base}/products/register"));
        let answer = send(request.header("x-admin-key", admin_key).json(&body)).await;
        let registered = answer.assert_ok(super::schema::REGISTERED);
        Self::new(base, registered["platform_api_key"].as_str().unwrap())
    }

    /// An admit that neither creates nor wakes an engine.
    pub(crate) async fn admit_existing(&self, user: &str) -> HttpResponse {
        self.call(Method::POST, &format!("/engines/{}/admit", path_segment(user)), None).await
    }

    /// The reason with which an admit that neither creates nor wakes an engine is denied.
    pub(crate) async fn denial_reason(&self, user: &str) -> String {
        let denied = self.admit_existing(user).await.assert_ok("admitted:bool engine:null reason:text");
        assert_eq!(denied["admitted"], false, "{denied}");
        denied["reason"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn rotate_key(&self, user: &str) -> HttpResponse {
        self.call(Method::POST, &format!("/engines/{}/rotate-key", path_segment(user)), None).await
    }

    /// The users and details of the audit rows of an event, oldest first.
    pub(crate) async fn audit_rows(&self, event: &str) -> Vec<(String, Value)> {
        let path = format!("/audit?limit=1000&event={event}");
        let rows = self.call(Method::GET, &path, None).await.assert_ok("rows:array");
        let rows = rows["rows"].as_array().unwrap().iter().rev().map(|row| {
            assert_fields(row, AUDIT_ROW);
            assert_eq!(row["event"], event, "{row}");
            (row["user_id"].as_str().unwrap_or_default().to_owned(), row["detail"].clone())
        });
        rows.collect()
    }

    /// Waits until a user's engine is in a state.
    pub(crate) async fn wait_for_status(&self, user: &str, status: &str) {
        eventually(&format!("the engine is {status}"), async || {
            (self.status(user).await == status).then_some(())
        })
        .await;
    }

    /// The explanation of an engine's state and next action.
    pub(crate) async fn explain(&self, user: &str) -> Value {
        let answer = self.call(Method::GET, &format!("/engines/{}/explain", path_segment(user)), None).await;
        let explanation = answer.assert_ok(EXPLANATION);
        assert_fields(&explanation["last_transition"], LAST_TRANSITION);
        if !explanation["next_action"].is_null() {
            assert_fields(&explanation["next_action"], NEXT_ACTION);
        }
        if !explanation["restart_attempt"].is_null() {
            assert_fields(&explanation["restart_attempt"], RESTART_ATTEMPT);
        }
        explanation
    }

    /// The path of a call that is proxied to a user's engine.
    pub(crate) fn proxy_path(user: &str, path: &str) -> String {
        format!("/engines/{}/proxy{path}", path_segment(user))
    }
}

/// Asserts that `value` is within `range`, in seconds.
#[track_caller]
pub(crate) fn assert_within(what: &str, value: std::time::Duration, range: Range<f64>) {
    assert!(range.contains(&value.as_secs_f64()), "{what}: {value:?} is not within {range:?} s");
}
