//! The orchestrator's configuration: `ORCH_*` variables, validated, with all errors reported at once.
//!
//! The fields are plain typed values, so that a caller with its own choices, such as `roundhouse up`, can build a
//! [`Config`] without any variable.

mod backend;
mod backups;
mod database;
mod engine_env;
mod keys;
mod kubernetes;
mod supervision_rules;
mod warm_pool;
mod webhook_rules;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use ::backend::VERSION;
use api::{AdminKey, EngineImage};
use http_service::env::{ConfigErrors, Env, EnvReader, parse_seconds};
use secrecy::{ExposeSecret as _, SecretString};

pub use self::backend::BackendKind;
pub(crate) use self::backups::read_target;
pub use self::database::{DatabaseUrl, PostgresUrl};
pub use self::warm_pool::NO_WARM_POOL;
pub use crate::domain::warm_pool::PoolSize;
pub use crate::domain::{SupervisionRules, WebhookRules};
pub use crate::fleet::BackupSettings;
use crate::keys::MasterKey;

/// The network that engines in containers join unless another is named.
pub const DEFAULT_NETWORK: &str = "engine_net";

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The registry's database.
    pub database: DatabaseUrl,
    /// The key that encrypts the engines' stored keys.
    pub master_key: MasterKey,
    /// The key for the admin endpoints.
    pub admin_key: AdminKey,
    /// Warnings for the operator about settings that work but should be changed.
    pub warnings: Vec<&'static str>,
    /// The image of engines that are provisioned without an explicit one.
    pub engine_image: EngineImage,
    /// Variables passed through to every engine, with their values.
    pub engine_env: Vec<(String, SecretString)>,
    /// The address to listen on.
    pub address: SocketAddr,
    /// The address to expose metrics on, without a key; `None` exposes and records none.
    pub metrics_address: Option<SocketAddr>,
    /// How long a booting engine may take to become healthy.
    pub boot_timeout: Duration,
    /// The ports on which engines may listen.
    pub ports: PortRange,
    /// The host in the engines' addresses.
    pub url_host: String,
    /// The network that engines in containers join.
    pub engine_network: String,
    /// How engines are supervised.
    pub rules: SupervisionRules,
    /// How webhooks send.
    pub webhooks: WebhookRules,
    /// The folder that holds one folder per engine, and nothing else.
    pub data_root: PathBuf,
    /// The catalog that all engines read.
    pub catalog: PathBuf,
    /// What runs the engines.
    pub backend: BackendKind,
    /// The name of another host that is permanently off and whose engines may be launched on this one.
    pub take_over_from: Option<String>,
    /// How many engines are booted ahead.
    pub warm_pool: PoolSize,
    /// Where backups are kept, and when they are made; `None` for no backups.
    pub backups: Option<BackupSettings>,
}

/// The ports on which engines may listen, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    min: u16,
    max: u16,
}

impl PortRange {
    /// Returns the range from `min` to `max`; `None` if it would be empty or contain port 0.
    pub fn new(min: u16, max: u16) -> Option<Self> {
        (1 <= min && min <= max).then_some(Self { min, max })
    }

    /// The lowest port.
    pub const fn min(self) -> u16 {
        self.min
    }

    /// The highest port.
    pub const fn max(self) -> u16 {
        self.max
    }

    /// The number of ports.
    pub fn count(self) -> u64 {
        u64::from(self.max - self.min) + 1
    }

    /// Whether `port` is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.min..=self.max).contains(&port)
    }
}

/// The value of each variable, one per line. Secrets show only that they are set.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rules, ports, engine_env, webhooks, .. } = self;
        let database = match &self.database {
            DatabaseUrl::Sqlite(path) => format!("sqlite:{}", path.display()),
            DatabaseUrl::Postgres(url) => url.to_string(),
        };
        let passthrough: Vec<_> = engine_env.iter().map(|(name, _)| name.as_str()).collect();
        let seconds = |time: Duration| time.as_secs_f64().to_string();
        let of_backend = match &self.backend {
            BackendKind::Process => Vec::new(),
            BackendKind::Docker { socket } => vec![("ORCH_DOCKER_SOCKET", socket.display().to_string())],
            BackendKind::Kubernetes(settings) => kubernetes::display(settings),
        };
        let lines = [
            ("ORCH_DATABASE_URL", database),
            ("ORCH_MASTER_KEY", "***".to_owned()),
            ("ORCH_ADMIN_KEY", "***".to_owned()),
            ("ORCH_BACKEND", self.backend.name().to_owned()),
            ("ORCH_ENGINE_IMAGE", self.engine_image.to_string()),
            ("ORCH_ENGINE_ENV_PASSTHROUGH", passthrough.join(",")),
            ("ORCH_HOST", self.address.ip().to_string()),
            ("ORCH_PORT", self.address.port().to_string()),
            ("ORCH_BOOT_TIMEOUT_S", seconds(self.boot_timeout)),
            ("ORCH_HEALTH_CHECK_INTERVAL_S", seconds(rules.check_interval)),
            ("ORCH_HEALTH_CHECK_TIMEOUT_S", seconds(rules.check_timeout)),
            ("ORCH_HEALTH_MAX_FAILURES", rules.max_failures.to_string()),
            ("ORCH_RESTART_BACKOFF_BASE_S", seconds(rules.backoff_base)),
            ("ORCH_RESTART_BACKOFF_MAX_S", seconds(rules.backoff_max)),
            ("ORCH_RESTART_MAX_ATTEMPTS", rules.max_restarts.to_string()),
            ("ORCH_IDLE_SLEEP_THRESHOLD_S", seconds(rules.idle_threshold)),
            ("ORCH_WEBHOOK_ALLOW", webhooks.allow.to_string()),
            ("ORCH_WEBHOOK_TIMEOUT_S", seconds(webhooks.timeout)),
            ("ORCH_WEBHOOK_BACKOFF_BASE_S", seconds(webhooks.backoff_base)),
            ("ORCH_WEBHOOK_BACKOFF_MAX_S", seconds(webhooks.backoff_max)),
            ("ORCH_WEBHOOK_GIVE_UP_S", seconds(webhooks.give_up_after)),
            ("ORCH_PORT_MIN", ports.min.to_string()),
            ("ORCH_PORT_MAX", ports.max.to_string()),
            ("ORCH_ENGINE_NETWORK", self.engine_network.clone()),
            ("ORCH_ENGINE_URL_HOST", self.url_host.clone()),
            ("ORCH_DATA_ROOT_PATH", self.data_root.display().to_string()),
            ("ORCH_CATALOG_MOUNT_PATH", self.catalog.display().to_string()),
        ];
        let metrics_address = self.metrics_address.map(|address| ("ORCH_METRICS_ADDR", address.to_string()));
        let take_over_from = self.take_over_from.clone().map(|host| ("ORCH_TAKE_OVER_FROM", host));
        let backups = self.backups.as_ref().map(backups::display).unwrap_or_default();
        let lines: Vec<_> = lines
            .iter()
            .chain(&of_backend)
            .chain(&metrics_address)
            .chain(&warm_pool::display(self.warm_pool))
            .chain(&take_over_from)
            .chain(&backups)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Config {
    /// Stands for everything that all engines are launched with, but for the files of the catalog: without telling any
    /// value, it changes with each.
    pub(crate) fn environment_digest(&self) -> String {
        let (catalog, network) = (self.catalog.display(), &self.engine_network);
        let mut text = format!("{VERSION}\n{}\n{catalog}\n{network}", self.backend.name());
        for (name, value) in &self.engine_env {
            // A length before each value, so that no two environments are the same text.
            let value = value.expose_secret();
            text.extend(["\n", name, " ", &value.len().to_string(), " ", value]);
        }
        let text = SecretString::from(text);
        hex::encode(self.master_key.derive(text.expose_secret()).as_slice())
    }

    /// Reads the configuration from variables.
    pub fn from_env(env: &dyn Env) -> Result<Self, ConfigErrors> {
        let mut reader = EnvReader::new(env);
        let database = DatabaseUrl::read(&mut reader);
        let master_key = keys::read_master_key(&mut reader);
        let admin_key = keys::read_admin_key(&mut reader);
        let backend = BackendKind::read(&mut reader);
        let engine_image = backend.read_image(&mut reader);
        let engine_env = engine_env::read(&mut reader, env);
        let host = reader.parse_or(
            "ORCH_HOST",
            "an IP address such as 127.0.0.1",
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            |text| text.parse().ok(),
        );
        let port = reader.parse_or("ORCH_PORT", "a port from 0 (any free one) to 65535", 8_000, parse_port);
        let metrics_address = reader.parse_or(
            "ORCH_METRICS_ADDR",
            "an IP address with a port, such as 127.0.0.1:9464",
            None,
            |text| text.parse().ok().map(Some),
        );
        let boot_timeout = reader.parse_or(
            "ORCH_BOOT_TIMEOUT_S",
            "seconds above 0, decimals allowed",
            Duration::from_mins(1),
            |text| parse_seconds(text).filter(|timeout| !timeout.is_zero()),
        );
        let ports = read_ports(&mut reader);
        let url_host = reader.parse_or(
            "ORCH_ENGINE_URL_HOST",
            "a host name or an IP address by which the products' backends reach this machine's engines",
            "127.0.0.1".to_owned(),
            parse_url_host,
        );
        let engine_network = reader.parse_or(
            "ORCH_ENGINE_NETWORK",
            "the name of a network: letters, digits, `.`, `_` and `-`, a letter or digit first",
            DEFAULT_NETWORK.to_owned(),
            parse_network,
        );
        let rules = supervision_rules::read(&mut reader);
        let webhooks = webhook_rules::read(&mut reader);
        let data_root = read_data_root(&mut reader);
        let default_catalog = data_root.parent().unwrap_or(&data_root).join("catalog");
        let catalog = reader.parse_or(
            "ORCH_CATALOG_MOUNT_PATH",
            "the absolute path of an existing folder",
            default_catalog,
            // Engines that are processes read it in place; containers get it mounted from the host.
            |text| parse_absolute_path(text).filter(|path| path.is_dir()),
        );
        let take_over_from = reader.text("ORCH_TAKE_OVER_FROM").filter(|host| !host.is_empty());
        let warm_pool = warm_pool::read(&mut reader, &backend);
        let backups = backups::read(&mut reader, env);
        let required = database.zip(master_key).zip(admin_key).zip(engine_image);
        let config = required.map(|(((database, master_key), admin_key), engine_image)| Self {
            database,
            warnings: keys::weak_key_warnings(&master_key, &admin_key),
            master_key: master_key.key,
            admin_key: admin_key.key,
            engine_image,
            engine_env,
            address: SocketAddr::new(host, port),
            metrics_address,
            boot_timeout,
            ports,
            url_host,
            engine_network,
            rules,
            webhooks,
            data_root,
            catalog,
            backend,
            take_over_from,
            warm_pool,
            backups,
        });
        reader.finish(config)
    }
}

/// Reads the folder that holds one folder per engine.
pub(crate) fn read_data_root(reader: &mut EnvReader<'_>) -> PathBuf {
    reader.parse_or(
        "ORCH_DATA_ROOT_PATH",
        "the absolute path of a folder, which is created if it is missing",
        PathBuf::from("/var/lib/roundhouse/engines"),
        |text| parse_absolute_path(text).filter(|path| path.is_dir() || !path.exists()),
    )
}

/// Parses a network's name as container engines accept it.
fn parse_network(text: &str) -> Option<String> {
    let is_valid = text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    is_valid.then(|| text.to_owned())
}

/// Parses a host as it appears in a URL, with an IPv6 address in brackets.
fn parse_url_host(text: &str) -> Option<String> {
    let name = |text: &str| {
        let label = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !text.is_empty() && text.len() <= 253 && text.bytes().all(label)
    };
    let address: Option<Ipv6Addr> =
        text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).and_then(|text| text.parse().ok());
    (address.is_some() || name(text)).then(|| text.to_owned())
}

fn parse_port(text: &str) -> Option<u16> {
    text.parse().ok()
}

fn parse_absolute_path(text: &str) -> Option<PathBuf> {
    Some(PathBuf::from(text)).filter(|path| Path::is_absolute(path))
}

fn read_ports(reader: &mut EnvReader<'_>) -> PortRange {
    let port = |text: &str| parse_port(text).filter(|port| *port > 0);
    let min = reader.parse_or("ORCH_PORT_MIN", "a port from 1 to 65535", 9_001, port);
    let max = reader.parse_or("ORCH_PORT_MAX", "a port from 1 to 65535", 9_999, port);
    PortRange::new(min, max).unwrap_or_else(|| {
        let texts = [reader.text("ORCH_PORT_MIN"), reader.text("ORCH_PORT_MAX")];
        // An invalid port has been reported already.
        if texts.iter().flatten().all(|text| port(text).is_some()) {
            let [_, max_text] = texts;
            reader.add_error("ORCH_PORT_MAX", max_text, &format!("at least ORCH_PORT_MIN, which is {min}"));
        }
        PortRange { min, max: min }
    })
}

#[cfg(test)]
#[path = "../tests/unit/config.rs"]
mod tests;
