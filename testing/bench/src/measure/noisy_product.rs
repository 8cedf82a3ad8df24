//! A product that causes maximum load for its neighbours: boots that hang, silent connections, hundreds of
//! provisions, slow readers. All of it is bounded and can be stopped.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use api::orchestrator::{
    ADMIN_KEY_HEADER, EngineList, EngineRecord, EngineStatus, PLATFORM_KEY_HEADER, RegisteredProduct,
};
use futures::future::join_all;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, StatusCode};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::orchestrator::{Orchestrator, OrchestratorSetup};

use super::fairness::{NOISY_ADDRESS, admin_key};

/// The number of engines whose boots hang.
const HUNG_BOOTS: usize = 100;
/// The number of open connections; every other one has sent half a request.
const CONNECTIONS: usize = 10_000;
/// The number of concurrent provisions.
const PROVISIONS: usize = 500;
/// The number of readers of a long log, and the pause of each between two frames.
const READERS: usize = 32;
const READ_PAUSE: Duration = Duration::from_millis(50);
/// The size of the log, larger than the longest response.
const LOG_BYTES: usize = 48 * 1024 * 1024;
const LOG_LINE: usize = 4_000;
/// The user whose engine has the log.
const VERBOSE_USER: &str = "talkative";
/// The time within which everything must have ended.
const COMPLETION_TIMEOUT: Duration = Duration::from_mins(5);
/// The time between two checks for newly launched engines; a boot takes several of these intervals.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noise {
    Boots,
    Connections,
    Provisions,
    Readers,
    /// All kinds at once.
    All,
}

impl Noise {
    pub(super) const EACH: [Self; 5] =
        [Self::Boots, Self::Connections, Self::Provisions, Self::Readers, Self::All];

    pub(super) fn name(self) -> String {
        match self {
            Self::Boots => format!("{HUNG_BOOTS} boots that hang"),
            Self::Connections => format!("{CONNECTIONS} connections"),
            Self::Provisions => format!("{PROVISIONS} provisions at once"),
            Self::Readers => format!("{READERS} slow readers of a log"),
            Self::All => "all of these".to_owned(),
        }
    }

    fn includes(self, other: Self) -> bool {
        self == other || self == Self::All
    }
}

/// The registered noisy product.
#[derive(Clone)]
pub(super) struct NoisyProduct {
    address: SocketAddr,
    key: String,
    orchestrator: Pid,
}

/// Load that is being generated, on a thread of its own, so that it does not slow down the measuring client.
pub(super) struct RunningNoise {
    stop: CancellationToken,
    worker: thread::JoinHandle<anyhow::Result<()>>,
}

impl NoisyProduct {
    /// The number of ports for engines that the orchestrator needs.
    pub(super) const ENGINE_PORTS: u32 = 800;
    /// The time within which the orchestrator must stop with all engines.
    pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_mins(2);

    /// Registers the product and provisions its engines, those with hanging boots in the state `stopped`.
    pub(super) async fn register(
        setup: &OrchestratorSetup,
        orchestrator: &Orchestrator,
    ) -> anyhow::Result<Self> {
        raise_file_limit()?;
        let mut client = orchestrator.connect().await?;
        let body = serde_json::json!({"slug": "noisy", "display_name": "Noisy"}).to_string();
        let request = client
            .request(Method::POST, "/products/register")
            .header(ADMIN_KEY_HEADER, admin_key(setup)?)
            .body(Full::from(body))?;
        let registered: RegisteredProduct = client.fetch_json(request).await?;
        let pid = Pid::from_raw(i32::try_from(orchestrator.process.pid())?).context("a process id is 0")?;
        let this = Self {
            address: orchestrator.address,
            key: registered.platform_api_key.expose().to_owned(),
            orchestrator: pid,
        };
        for user in boot_users().chain([VERBOSE_USER.to_owned()]) {
            this.call(&mut client, Method::POST, "/engines/provision", &user_body(&user)).await?;
        }
        for user in boot_users() {
            this.call(&mut client, Method::POST, &format!("/engines/{user}/stop"), "").await?;
        }
        this.fill_log(setup, &mut client).await?;
        Ok(this)
    }

    /// Starts to generate load, and returns when it is running.
    pub(super) async fn start(&self, noise: Noise) -> anyhow::Result<RunningNoise> {
        let stop = CancellationToken::new();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let (this, stopped) = (self.clone(), stop.clone());
        let worker = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(this.run(noise, ready, stopped))
        });
        // If it has failed already, `stop` returns the error.
        let _ = is_ready.await;
        Ok(RunningNoise { stop, worker })
    }

    async fn run(
        self,
        noise: Noise,
        ready: tokio::sync::oneshot::Sender<()>,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let this = Arc::new(self);
        let connections =
            if noise.includes(Noise::Connections) { this.connect_many().await? } else { Vec::new() };
        let frozen = noise.includes(Noise::Boots).then(|| BootFreezer::start(this.orchestrator));
        let mut calls: Vec<JoinHandle<anyhow::Result<StatusCode>>> = Vec::new();
        if noise.includes(Noise::Boots) {
            for user in boot_users() {
                calls.push(this.spawn(Method::POST, format!("/engines/{user}/start"), String::new()));
            }
        }
        if noise.includes(Noise::Provisions) {
            for number in 0..PROVISIONS {
                let user = format!("burst-{number}");
                calls.push(this.spawn(Method::POST, "/engines/provision".to_owned(), user_body(&user)));
            }
        }
        let (mut readers, read_count) = (Vec::new(), Arc::new(AtomicUsize::new(0)));
        if noise.includes(Noise::Readers) {
            let read = || tokio::spawn(Arc::clone(&this).read_slowly(stop.clone(), Arc::clone(&read_count)));
            readers.extend((0..READERS).map(|_| read()));
        }
        let _ = ready.send(());
        stop.cancelled().await;

        drop(connections);
        if let Some(frozen) = frozen {
            frozen.release()?;
        }
        let ended = tokio::time::timeout(COMPLETION_TIMEOUT, join_all(calls))
            .await
            .context("the calls did not end")?;
        for answer in ended {
            // Any HTTP status is accepted, also that of a refused call.
            answer??;
        }
        let was_log_read = readers.is_empty() || read_count.load(Ordering::Relaxed) > 0;
        join_all(readers).await;
        ensure!(was_log_read, "no log was read");
        this.restore().await
    }

    /// Restores the initial state: the boot users' engines are stopped and the additional ones deleted.
    async fn restore(&self) -> anyhow::Result<()> {
        let mut client = Client::connect(self.address).await?;
        let began = Instant::now();
        loop {
            let list: EngineList = serde_json::from_slice(
                &self.call(&mut client, Method::GET, "/engines?limit=1000", "").await?,
            )?;
            let mut is_restored = true;
            for engine in &list.engines {
                let user = engine.user_id.as_str();
                if user.starts_with("burst-") {
                    is_restored = false;
                    self.try_call(&mut client, Method::DELETE, &format!("/engines/{user}"), "").await?;
                } else if user != VERBOSE_USER && engine.status != EngineStatus::Stopped {
                    is_restored = false;
                    // A failed engine must be started before it can be stopped.
                    self.try_call(&mut client, Method::POST, &format!("/engines/{user}/start"), "").await?;
                    self.try_call(&mut client, Method::POST, &format!("/engines/{user}/stop"), "").await?;
                }
            }
            if is_restored {
                return Ok(());
            }
            ensure!(began.elapsed() < COMPLETION_TIMEOUT, "the noisy product's engines cannot be stopped");
        }
    }

    /// Opens connections from [`NOISY_ADDRESS`]; every other one sends half a request.
    async fn connect_many(&self) -> anyhow::Result<Vec<TcpStream>> {
        let mut connections = Vec::with_capacity(CONNECTIONS);
        for number in 0..CONNECTIONS {
            let socket = TcpSocket::new_v4()?;
            socket.bind(NOISY_ADDRESS)?;
            let mut connection =
                socket.connect(self.address).await.context("one of many connections cannot be opened")?;
            // Otherwise the ports stay in TIME_WAIT for a minute and are missing in the next round.
            connection.set_zero_linger()?;
            if number % 2 == 0 {
                connection.write_all(b"GET /engines HTTP/1.1\r\nHost: noisy\r\nX-Filler: ").await?;
            }
            connections.push(connection);
        }
        Ok(connections)
    }

    /// Reads a long log repeatedly, as slowly as a response may be read.
    async fn read_slowly(self: Arc<Self>, stop: CancellationToken, read_count: Arc<AtomicUsize>) {
        let reading = async {
            loop {
                // A response that is refused or cut off is requested again.
                let _ = self.read_once(&read_count).await;
                tokio::time::sleep(READ_PAUSE).await;
            }
        };
        stop.run_until_cancelled(reading).await;
    }

    async fn read_once(&self, read_count: &AtomicUsize) -> anyhow::Result<()> {
        let mut client = Client::connect(self.address).await?;
        let request = client
            .request(Method::GET, &format!("/engines/{VERBOSE_USER}/logs?tail=10000"))
            .header(PLATFORM_KEY_HEADER, &self.key)
            .body(Full::default())?;
        let answer = client.send(request).await?;
        ensure!(answer.status() == StatusCode::OK, "the log request was answered with {}", answer.status());
        read_count.fetch_add(1, Ordering::Relaxed);
        let mut body = answer.into_body();
        while let Some(piece) = body.frame().await {
            piece?;
            tokio::time::sleep(READ_PAUSE).await;
        }
        Ok(())
    }

    fn spawn(
        self: &Arc<Self>,
        method: Method,
        path: String,
        body: String,
    ) -> JoinHandle<anyhow::Result<StatusCode>> {
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let mut client = Client::connect(this.address).await?;
            let request = client
                .request(method, &path)
                .header(PLATFORM_KEY_HEADER, &this.key)
                .body(Full::from(body))?;
            // A call that waits for a hanging boot ends when the service gives up.
            Ok(client.send(request).await?.status())
        })
    }

    async fn call(
        &self,
        client: &mut Client,
        method: Method,
        path: &str,
        body: &str,
    ) -> anyhow::Result<bytes::Bytes> {
        let (status, answer) = self.try_call(client, method, path, body).await?;
        if status != StatusCode::OK {
            bail!("{path} was answered with {status}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(answer)
    }

    async fn try_call(
        &self,
        client: &mut Client,
        method: Method,
        path: &str,
        body: &str,
    ) -> anyhow::Result<(StatusCode, bytes::Bytes)> {
        let request = client
            .request(method, path)
            .header(PLATFORM_KEY_HEADER, &self.key)
            .body(Full::from(body.to_owned()))?;
        client.fetch(request).await
    }

    /// Fills the log of one engine.
    async fn fill_log(&self, setup: &OrchestratorSetup, client: &mut Client) -> anyhow::Result<()> {
        let engine = self.call(client, Method::GET, &format!("/engines/{VERBOSE_USER}"), "").await?;
        let engine: EngineRecord = serde_json::from_slice(&engine)?;
        let id = engine.summary.engine_id.to_string();
        let path = setup.up_folder().join("engines").join(id).join("engine.log");
        let mut log = fs::File::options().append(true).open(&path)?;
        let line = "\"quoted\" ".repeat(LOG_LINE / 9) + "\n";
        for _ in 0..LOG_BYTES / line.len() {
            log.write_all(line.as_bytes())?;
        }
        Ok(())
    }
}

impl RunningNoise {
    /// Stops the load and waits until the initial state is restored.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        let ended = tokio::task::spawn_blocking(move || self.worker.join()).await?;
        ended.map_err(|_| anyhow::anyhow!("the noisy product's thread panicked"))?
    }
}

/// Sends SIGSTOP to every engine that the orchestrator launches, before it is healthy, so that its boot hangs.
struct BootFreezer {
    ended: Arc<AtomicBool>,
    watcher: thread::JoinHandle<Vec<Pid>>,
}

impl BootFreezer {
    fn start(orchestrator: Pid) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (is_ended, known) = (Arc::clone(&ended), children(orchestrator));
        let watcher = thread::spawn(move || {
            let mut frozen: Vec<Pid> = Vec::new();
            while !is_ended.load(Ordering::Relaxed) {
                for child in children(orchestrator) {
                    if !known.contains(&child) && !frozen.contains(&child) && is_engine(child) {
                        let _ = kill_process(child, Signal::STOP);
                        frozen.push(child);
                    }
                }
                thread::park_timeout(POLL_INTERVAL);
            }
            frozen
        });
        Self { ended, watcher }
    }

    /// Stops freezing, and continues the engines that still exist.
    fn release(self) -> anyhow::Result<()> {
        self.ended.store(true, Ordering::Relaxed);
        let frozen = self.watcher.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))?;
        ensure!(!frozen.is_empty(), "no boot hung");
        for engine in frozen {
            let _ = kill_process(engine, Signal::CONT);
        }
        Ok(())
    }
}

/// Returns the children of a process; none if it has exited.
fn children(parent: Pid) -> Vec<Pid> {
    let tasks =
        fs::read_dir(format!("/proc/{}/task", parent.as_raw_nonzero())).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .filter_map(Pid::from_raw)
        .collect()
}

/// Returns whether a child is an engine; between fork and exec it is still a copy of the orchestrator.
fn is_engine(child: Pid) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", child.as_raw_nonzero())).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == b"engine")
}

fn boot_users() -> impl Iterator<Item = String> {
    (0..HUNG_BOOTS).map(|number| format!("boot-{number}"))
}

fn user_body(user: &str) -> String {
    serde_json::json!({"user_id": user}).to_string()
}

/// Raises the limit on open files to the maximum.
fn raise_file_limit() -> anyhow::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .context("the limit on open files cannot be raised")
}
