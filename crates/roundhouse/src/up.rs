//! `roundhouse up`: a whole fleet on one machine, for trying out and development.

mod browser;
mod environment;
pub(crate) mod folder;
mod guide;
pub(crate) mod port;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use api::orchestrator::Policy;
use api::{AdminKey, DisplayName, PlatformKey, Slug};
use http_service::clock::{Clock as _, SystemClock};
use http_service::env::{ConfigErrors, Env, EnvReader, ProcessEnv};
use http_service::signals::ShutdownSignals;
use http_service::trace_settings;
use llm::NotConfigured;
use llm::config::ConfigSources;
use orchestrator::config::{
    BackendKind, DEFAULT_NETWORK, DatabaseUrl, NO_WARM_POOL, PortRange, SupervisionRules, VERSION,
    WebhookRules,
};
use orchestrator::{Config, MasterKey, Orchestrator};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::folder::{
    ADDRESS_FILE, ADMIN_KEY_FILE, CATALOG_FOLDER, ENGINES_FOLDER, LockedFolder, PLATFORM_HEADER_FILE,
    PLATFORM_KEY_FILE, REGISTRY_FILE, UpFolder,
};
use self::guide::Guide;
use crate::error::Failure;
use crate::terminal::print_line;
use crate::{orchestrator_command, trace_export};

/// The product that `up` registers.
const PRODUCT: &str = "demo";
/// The audit log's reason for engines that were put to sleep when `up` ended.
const SLEEP_REASON: &str = "up_ended";
/// What `--open` opens.
const CONSOLE_PATH: &str = "/console";
/// Where the orchestrator serves the documentation.
const DOCS_PATH: &str = "/docs";

/// Arguments of `roundhouse up`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of keys, registry, engines and catalog; `$XDG_DATA_HOME/roundhouse` by default.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The port of the orchestrator, 0 for any free one; by default that of `ORCH_PORT`, or 8000.
    #[arg(long)]
    port: Option<u16>,
    /// The address of this machine to listen on. `0.0.0.0` is all of them, as needed in a container.
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::LOCALHOST.into())]
    host: IpAddr,
    /// Open the console in a browser.
    #[arg(long)]
    open: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let env = ProcessEnv;
    let engine_env = environment::engine_env(&env);
    let folder = UpFolder::resolve(args.dir.as_deref()).map_err(Failure::usage)?;
    // Checked before anything in it is read, or else the reader would be blamed for the folder's fault.
    folder.check().map_err(Failure::usage)?;
    // A misconfigured provider is reported now, not to the first user.
    let sources = ConfigSources::new(&engine_env, Some(&folder.path().join(CATALOG_FOLDER)));
    let models = sources.load().map(|(checked, _)| checked.routes);
    let settings = UpSettings::from_env(&env, models.as_ref().err()).map_err(Failure::usage)?;
    let models = models.map_err(Failure::usage)?;
    http_service::logging::init(settings.log.clone());
    http_service::rlimits::raise_file_limit();
    let locked = folder.lock(SystemClock::new().now()).map_err(Failure::usage)?;
    let keys = FolderKeys::load(&locked)?;
    crate::catalog::unpack(&locked.join(CATALOG_FOLDER)).map_err(Failure::usage)?;

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
        let exporter = trace_export::start(settings.traces.clone())?;
        let listener = bind(args.host, args.port.unwrap_or(settings.port)).await?;
        let address = listener.local_addr().context("the listener's address is unknown")?;
        let base = format!("http://{}", local_address(address));
        let platform_key = keys.platform.clone();
        let config = build_config(&locked, &settings, keys, engine_env, address)?;
        let orchestrator = Orchestrator::open(config, Arc::new(SystemClock::new()))
            .await
            .map_err(Failure::usage_with_causes)?;
        let slug = Slug::new(PRODUCT).context("the product's slug is invalid")?;
        let name = DisplayName::new("Demo").context("the product's name is invalid")?;
        orchestrator.fleet().register_with_key(slug, name, Policy::default(), &platform_key).await?;
        locked.write_secret(ADDRESS_FILE, &base).map_err(Failure::usage)?;
        let header = format!("X-Platform-Key: {}", platform_key.expose());
        locked.write_secret(PLATFORM_HEADER_FILE, &header).map_err(Failure::usage)?;
        let model = models.model_name();
        let guide = Guide {
            base,
            bound: address,
            folder: folder.path(),
            is_default_folder: args.dir.is_none(),
            model,
        };
        let page = args.open.then(|| format!("{}{CONSOLE_PATH}", guide.base));
        let served = serve(orchestrator, listener, &guide, page, &mut signals).await;
        trace_export::end(exporter).await;
        served
    })
}

/// Serves until a signal arrives, then puts the engines to sleep.
async fn serve(
    orchestrator: Orchestrator,
    listener: TcpListener,
    guide: &Guide<'_>,
    page: Option<String>,
    signals: &mut ShutdownSignals,
) -> Result<(), Failure> {
    let shutdown = CancellationToken::new();
    let asleep = {
        let serving = async {
            orchestrator.serve(listener, shutdown.clone()).await;
            let asleep = orchestrator.fleet().sleep_all(SLEEP_REASON).await;
            asleep.context("not all engines could be put to sleep")
        };
        tokio::pin!(serving);
        let until_signal = async {
            orchestrator.fleet().ready().await;
            print_line(&guide.to_string())?;
            if let Some(page) = page {
                browser::open(&page).await;
            }
            signals.recv().await;
            print_line("Putting the engines to sleep …")
        };
        tokio::select! {
            ended = &mut serving => return Ok(ended.map(drop)?),
            waited = until_signal => waited?,
        }
        shutdown.cancel();
        tokio::select! {
            asleep = serving => Some(asleep?),
            // A second signal skips the wait.
            _ = signals.recv() => None,
        }
    };
    let Some(asleep) = asleep else {
        print_line(
            "The engines were not put to sleep; the next `roundhouse up` adopts those that still run.",
        )?;
        return Ok(());
    };
    orchestrator.close().await;
    print_line(&format!(
        "{asleep} engine(s) are asleep. An admit with auto_wake under the next `roundhouse up` wakes them."
    ))?;
    Ok(())
}

/// The environment variables that configure `up` itself.
struct UpSettings {
    port: u16,
    ports: PortRange,
    log: tracing_subscriber::filter::Targets,
    traces: Option<traces::Settings>,
}

impl UpSettings {
    /// Reads the variables. Errors of the provider's configuration are reported together with errors found here.
    fn from_env(env: &dyn Env, provider: Option<&NotConfigured>) -> Result<Self, ConfigErrors> {
        let mut reader = EnvReader::new(env);
        if let Some(provider) = provider {
            reader.extend(provider.errors());
        }
        let port = reader
            .parse_or("ORCH_PORT", "a port from 0 (any free one) to 65535", 8_000, |text| text.parse().ok());
        let engine_port = |text: &str| text.parse().ok().filter(|port: &u16| *port > 0);
        let min = reader.parse_or("ORCH_PORT_MIN", "a port from 1 to 65535", 9_001, engine_port);
        let max = reader.parse_or("ORCH_PORT_MAX", "a port from 1 to 65535", 9_999, engine_port);
        let ports = PortRange::new(min, max);
        if ports.is_none() {
            reader.add_error("ORCH_PORT_MAX", Some(max.to_string()), "at least ORCH_PORT_MIN");
        }
        // At a terminal the guide is shown instead of the log, but warnings and errors stay visible.
        let quiet = "warn".parse().unwrap_or_default();
        let log = reader.parse_or(
            "ROUNDHOUSE_LOG",
            "a level such as info, or a list such as info,sqlx=warn",
            quiet,
            |text| http_service::logging::parse_filter(text).ok(),
        );
        let traces = trace_settings::read(&mut reader, orchestrator_command::SERVICE);
        reader.finish(ports.map(|ports| Self { port, ports, log, traces }))
    }
}

/// The keys stored in the folder.
struct FolderKeys {
    master: MasterKey,
    admin: AdminKey,
    platform: PlatformKey,
}

impl FolderKeys {
    fn load(locked: &LockedFolder<'_>) -> Result<Self, Failure> {
        let random = || PlatformKey::generate().map(|key| key.expose().to_owned());
        let make_master = || MasterKey::generate().map(|key| key.expose().as_str().to_owned());
        let is_platform_key = |text: &str| text.starts_with("pk-svc-");
        let master = locked
            .load_or_create_key("master.key", make_master, |text| MasterKey::parse(text).is_some())
            .map_err(Failure::usage)?;
        let admin = locked
            .load_or_create_key(ADMIN_KEY_FILE, random, |text| !text.is_empty())
            .map_err(Failure::usage)?;
        let platform =
            locked.load_or_create_key(PLATFORM_KEY_FILE, random, is_platform_key).map_err(Failure::usage)?;
        let master = MasterKey::parse(&master).context("the master key is invalid")?;
        Ok(Self { master, admin: AdminKey::from_text(admin), platform: PlatformKey::from_text(platform) })
    }
}

fn build_config(
    locked: &LockedFolder<'_>,
    settings: &UpSettings,
    keys: FolderKeys,
    engine_env: BTreeMap<String, String>,
    address: SocketAddr,
) -> Result<Config, Failure> {
    Ok(Config {
        warnings: Vec::new(),
        database: DatabaseUrl::Sqlite(locked.join(REGISTRY_FILE)),
        master_key: keys.master,
        admin_key: keys.admin,
        engine_image: format!("svc-engine:{VERSION}")
            .parse()
            .context("this binary's version is no image tag")?,
        engine_env: engine_env.into_iter().map(|(name, value)| (name, value.into())).collect(),
        address,
        boot_timeout: std::time::Duration::from_mins(1),
        ports: settings.ports,
        url_host: "127.0.0.1".into(),
        engine_network: DEFAULT_NETWORK.into(),
        rules: SupervisionRules::default(),
        webhooks: WebhookRules::default(),
        data_root: locked.join(ENGINES_FOLDER),
        catalog: locked.join(CATALOG_FOLDER),
        backend: BackendKind::Process,
        take_over_from: None,
        warm_pool: NO_WARM_POOL,
        backups: None,
        metrics_address: None,
    })
}

async fn bind(host: IpAddr, port: u16) -> Result<TcpListener, Failure> {
    TcpListener::bind((host, port)).await.map_err(|error| match (error.kind(), port::holder(port)) {
        (io::ErrorKind::AddrInUse, Some(holder)) => Failure::usage(format!(
            "port {port} is used by {holder}: end it, or choose another port with --port (0 for any free one)"
        )),
        (io::ErrorKind::AddrInUse, None) => Failure::usage(format!(
            "port {port} is used by a process that this user cannot see: choose another port with --port (0 for \
             any free one)"
        )),
        (io::ErrorKind::AddrNotAvailable, _) => Failure::usage(format!(
            "this machine has no address {host}: name one that it has with --host, or 0.0.0.0 for all of them"
        )),
        _ => Failure::usage(format!(
            "cannot listen on port {port} of {host} ({error}): choose others with --port and --host"
        )),
    })
}

/// The address at which this machine itself reaches a listener on `bound`, which may stand for all addresses.
fn local_address(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}
