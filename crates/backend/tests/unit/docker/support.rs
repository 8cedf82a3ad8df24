//! The fixture: each test has a deployment of its own on the host's daemon, which is removed when the test ends.

use std::collections::HashMap;
use std::env;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use api::{EngineKey, ProductId};
use bollard::models::{ContainerConfig, ContainerCreateBody};
use bollard::query_parameters::{
    CommitContainerOptionsBuilder, CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder,
};
use futures::StreamExt as _;
use http_service::clock::SystemClock;
use secrecy::SecretString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::super::label::container_name;
use super::super::*;

/// Time limit of each wait, generous enough for a busy host.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);

pub(super) const SOCKET: &str = "/var/run/docker.sock";

/// Prints `ready`, and runs each line that it receives on its port. Exits with code 7 on SIGTERM, unless
/// `STUBBORN` is set.
const ENGINE_SCRIPT: &str = r#"
import os, signal, socket, subprocess, sys
def end(*_): os._exit(7)
signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("STUBBORN") else end)
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", 8000))
server.listen()
print("ready", flush=True)
print("oops", file=sys.stderr, flush=True)
while True:
    client, _ = server.accept()
    with client, client.makefile("rw") as lines:
        command = lines.readline()
        if command:
            said = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
            lines.write(said.stdout + said.stderr + ".")
"#;

pub(super) struct Fixture {
    pub(super) backend: Arc<DockerBackend>,
    pub(super) options: Options,
    pub(super) engine_id: EngineId,
    pub(super) docker: bollard::Docker,
    pub(super) image: EngineImage,
    folder: tempfile::TempDir,
}

impl Fixture {
    /// Creates a deployment; `None` if there is no daemon or no base image.
    pub(super) async fn new() -> Option<Self> {
        let (docker, image) = engine_image().await?;
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            socket: PathBuf::from(SOCKET),
            network: format!("roundhouse-test-{}", Uuid::now_v7().simple()),
            deployment_id: Uuid::now_v7().simple().to_string(),
            data_root: folder.path().join("engines"),
            catalog: folder.path().join("catalog"),
            url_host: "127.0.0.1".into(),
            user: User::for_engines(),
        };
        std::fs::create_dir(&options.data_root).unwrap();
        std::fs::create_dir(&options.catalog).unwrap();
        std::fs::write(options.catalog.join("soul.md"), "who it is").unwrap();
        let backend = new_backend(&options);
        Some(Self { backend, options, engine_id: EngineId::new(), docker, image, folder })
    }

    pub(super) fn launch(&self) -> LaunchSpec {
        self.launch_of(self.engine_id)
    }

    pub(super) fn launch_of(&self, engine_id: EngineId) -> LaunchSpec {
        LaunchSpec {
            engine_id,
            product_id: ProductId::new(),
            generation: 3,
            is_first: true,
            image: self.image.clone(),
            placement: Placement::HostPort(free_port()),
            key_hash: EngineKey::generate().unwrap().hash(),
            env: vec![("LLM_API_KEY".into(), SecretString::from("provider secret"))],
            limits: ResourceLimits::default(),
        }
    }

    /// Returns the launch of an engine that ignores SIGTERM.
    pub(super) fn stubborn(&self) -> LaunchSpec {
        let mut launch = self.launch();
        launch.env.push(("STUBBORN".into(), SecretString::from("1")));
        launch
    }

    /// Launches an engine and waits until it answers.
    pub(super) async fn launch_and_wait(&self, launch: LaunchSpec) -> Instance {
        let port = launch.placement.host_port().unwrap();
        let instance = self.backend.launch(launch).await.unwrap();
        assert_eq!(run_inside(port, "echo hello").await, "hello");
        instance
    }

    /// Returns the states of the deployment's containers in the daemon.
    pub(super) async fn containers(&self) -> Vec<(EngineId, ContainerState)> {
        let found = self.backend.inner.containers(None).await.unwrap();
        found.into_iter().map(|(engine_id, container)| (engine_id, container.state)).collect()
    }

    /// Returns a changed copy of the options.
    pub(super) fn with(&self, change: impl FnOnce(&mut Options)) -> Options {
        let mut options = self.options.clone();
        change(&mut options);
        options
    }

    pub(super) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Creates a container without the backend, and returns its id.
    pub(super) async fn create(&self, name: &str, body: ContainerCreateBody) -> String {
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        self.docker.create_container(Some(options), body).await.unwrap().id
    }

    /// Removes a container without the backend.
    pub(super) async fn remove(&self, name: &str) {
        let options = RemoveContainerOptionsBuilder::new().force(true).build();
        self.docker.remove_container(name, Some(options)).await.unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let (options, docker) = (self.options.clone(), self.docker.clone());
        let foreign = container_name(self.engine_id);
        let cleanup = async move {
            // Only this deployment's containers: other tests run at the same time.
            let own = format!("roundhouse.deployment={}", options.deployment_id);
            let filters = HashMap::from([("label".to_owned(), vec![own])]);
            for container in Daemon::new(SOCKET.into()).containers(&filters).await.unwrap_or_default() {
                let force = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
                let _ = docker.remove_container(&container.id, Some(force)).await;
            }
            let force = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let _ = docker.remove_container(&foreign, Some(force)).await;
            remove_network(&docker, &options.network).await;
        };
        // In a thread of its own, because this one may belong to the test's runtime.
        let cleanup_thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(cleanup);
        });
        let _ = cleanup_thread.join();
    }
}

/// Removes a network as soon as its last container has left it, which may take a moment after its removal.
async fn remove_network(docker: &bollard::Docker, network: &str) {
    for _ in 0..50 {
        match docker.remove_network(network).await {
            Ok(()) | Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
                return;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Returns the target for acting on an engine that was launched with [`Fixture::launch`].
pub(super) const fn target_of(engine_id: EngineId) -> Target {
    Target { engine_id, generation: 3 }
}

/// Creates the backend of another orchestrator, of the same or of another deployment.
pub(super) fn new_backend(options: &Options) -> Arc<DockerBackend> {
    Arc::new(DockerBackend::new(options.clone(), Arc::new(SystemClock::new())))
}

/// Runs `command` in the engine on `port`, and returns its output. Waits until the engine answers.
pub(super) async fn run_inside(port: u16, command: &str) -> String {
    poll_until("an engine answers", async || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
        stream.write_all(format!("{command}\n").as_bytes()).await.ok()?;
        let mut output = String::new();
        stream.read_to_string(&mut output).await.ok()?;
        output.strip_suffix('.').map(|output| output.trim().to_owned())
    })
    .await
}

/// Sends a command that ends the engine, which therefore does not answer.
pub(super) async fn send_command(port: u16, command: &str) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    stream.write_all(format!("{command}\n").as_bytes()).await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

/// Repeats `probe` until it returns a value.
pub(super) async fn poll_until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, found).await.unwrap_or_else(|_| panic!("this never happened: {what}"))
}

/// Waits for the next exit.
pub(super) async fn next_exit(exits: &mut BoxStream<'static, InstanceExit>) -> InstanceExit {
    tokio::time::timeout(TEST_TIMEOUT, exits.next()).await.expect("no exit in time").unwrap()
}

pub(super) fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Returns the daemon and the engine's image in it; `None` if there is no daemon or no base image.
async fn engine_image() -> Option<(bollard::Docker, EngineImage)> {
    static IMAGE: OnceCell<Option<EngineImage>> = OnceCell::const_new();
    let image = IMAGE.get_or_init(|| async {
        let result = make_image().await;
        if let Err(reason) = &result {
            assert_ne!(
                env::var("ROUNDHOUSE_REQUIRE_ALL").as_deref(),
                Ok("1"),
                "Docker is required: {reason}"
            );
            // Written directly, because the test harness would capture it and show it to nobody.
            writeln!(io::stderr().lock(), "skipped: the tests of the Docker backend ({reason})").unwrap();
        }
        result.ok()
    });
    let image = image.await.clone()?;
    // Each test has its own client, because a client belongs to the runtime that created it.
    let docker = bollard::Docker::connect_with_unix(SOCKET, 60, bollard::API_DEFAULT_VERSION).unwrap();
    Some((docker, image))
}

/// Creates the engine's image, which is the base image with another command, unless it exists.
async fn make_image() -> Result<EngineImage, String> {
    let failed = |error: bollard::errors::Error| docker_backend_error(&error).to_string();
    let base = env::var("ROUNDHOUSE_TEST_BASE_IMAGE").unwrap_or_else(|_| "roundhouse-base:bookworm".into());
    let daemon = Daemon::new(SOCKET.into());
    daemon.ping().await.map_err(failed)?;
    let docker = bollard::Docker::connect_with_unix(SOCKET, 60, bollard::API_DEFAULT_VERSION).unwrap();
    let version = api::KeyHash::of(&format!("{base}{ENGINE_SCRIPT}")).to_hex();
    let image: EngineImage = format!("roundhouse-test-engine:0.0.0-{}", &version[..12]).parse().unwrap();
    if daemon.has_image(&image).await.map_err(failed)? {
        return Ok(image);
    }
    let command = ["python3", "-c", ENGINE_SCRIPT].map(str::to_owned).to_vec();
    let body = ContainerCreateBody { image: Some(base), cmd: Some(command.clone()), ..Default::default() };
    let name = format!("roundhouse-test-{}", Uuid::now_v7().simple());
    let id = daemon.create(&name, body).await.map_err(failed)?;
    let (repo, tag) = image.as_str().split_once(':').unwrap();
    let options = CommitContainerOptionsBuilder::new().container(&id).repo(repo).tag(tag).build();
    let config = ContainerConfig { cmd: Some(command), ..Default::default() };
    let committed = docker.commit_container(options, config).await;
    daemon.remove(&id).await.map_err(failed)?;
    committed.map_err(failed)?;
    Ok(image)
}
