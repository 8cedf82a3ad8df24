//! The orchestrator's configuration: `ORCH_*` variables, validated, with all errors reported at once.
//!
//! The fields are plain typed values, so that a caller with its own choices, such as `roundhouse up`, can build a
//! [`Config`] without any variable.

mod backend;
mod database;

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use ::backend::VERSION;
use api::{AdminKey, EngineImage};
use http_service::env::{ConfigErrors, Env, EnvReader, parse_seconds};
use secrecy::SecretString;

pub use self::backend::BackendKind;
pub use self::database::{DatabaseUrl, PostgresUrl};
pub use crate::domain::SupervisionRules;
use crate::keys::MasterKey;

/// The network that engines in containers join unless another is named.
pub const DEFAULT_NETWORK: &str = "engine_net";

/// Variables that the orchestrator sets for each engine itself and that cannot be passed through.
const RESERVED_ENGINE_VARS: [&str; 6] =
    ["ENGINE_KEY_HASH", "SQLITE_DB_PATH", "CATALOG_DIR", "ENGINE_HOST", "ENGINE_PORT", "HOME"];

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
    /// The folder that holds one folder per engine, and nothing else.
    pub data_root: PathBuf,
    /// The catalog that all engines read.
    pub catalog: PathBuf,
    /// What runs the engines.
    pub backend: BackendKind,
    /// The name of another host that is permanently off and whose engines may be launched on this one.
    pub take_over_from: Option<String>,
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

    /// Whether `port` is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.min..=self.max).contains(&port)
    }
}

/// The value of each variable, one per line. Secrets show only that they are set.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rules, ports, engine_env, .. } = self;
        let database = match &self.database {
            DatabaseUrl::Sqlite(path) => format!("sqlite:{}", path.display()),
            DatabaseUrl::Postgres(url) => url.to_string(),
        };
        let passthrough: Vec<_> = engine_env.iter().map(|(name, _)| name.as_str()).collect();
        let seconds = |time: Duration| time.as_secs_f64().to_string();
        let socket = match &self.backend {
            BackendKind::Process => None,
            BackendKind::Docker { socket } => Some(("ORCH_DOCKER_SOCKET", socket.display().to_string())),
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
            ("ORCH_PORT_MIN", ports.min.to_string()),
            ("ORCH_PORT_MAX", ports.max.to_string()),
            ("ORCH_ENGINE_NETWORK", self.engine_network.clone()),
            ("ORCH_ENGINE_URL_HOST", self.url_host.clone()),
            ("ORCH_DATA_ROOT_PATH", self.data_root.display().to_string()),
            ("ORCH_CATALOG_MOUNT_PATH", self.catalog.display().to_string()),
        ];
        let take_over_from = self.take_over_from.clone().map(|host| ("ORCH_TAKE_OVER_FROM", host));
        let lines: Vec<_> = lines
            .iter()
            .chain(&socket)
            .chain(&take_over_from)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

/// The minimum length, and number of distinct characters, of an admin key that is hard to guess.
const ADMIN_KEY_MIN_LENGTH: usize = 16;
const ADMIN_KEY_MIN_DISTINCT: usize = 6;
/// A master key with fewer distinct characters is a pattern: 43 random ones contain about thirty.
const MASTER_KEY_MIN_DISTINCT: usize = 12;

impl Config {
    /// Reads the configuration from variables.
    pub fn from_env(env: &dyn Env) -> Result<Self, ConfigErrors> {
        let mut reader = EnvReader::new(env);
        let database = DatabaseUrl::read(&mut reader);
        let master_key = reader.required_secret(
            "ORCH_MASTER_KEY",
            "32 random bytes in URL-safe base64 without padding (43 characters), such as the output of \
             `openssl rand -base64 32 | tr '+/' '-_' | tr -d =`",
            |text| Some((MasterKey::parse(text)?, is_random_master_key(text))),
        );
        let admin_key = reader.required_secret(
            "ORCH_ADMIN_KEY",
            "a secret of your choice that a header can carry: printable ASCII, without leading or trailing spaces",
            |text| {
                is_valid_header_value(text)
                    .then(|| (AdminKey::from_text(text.to_owned()), is_strong_admin_key(text)))
            },
        );
        let backend = BackendKind::read(&mut reader);
        let engine_image = backend.read_image(&mut reader);
        let engine_env = read_engine_env(&mut reader, env);
        let host = reader.parse_or(
            "ORCH_HOST",
            "an IP address such as 127.0.0.1",
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            |text| text.parse().ok(),
        );
        let port = reader.parse_or("ORCH_PORT", "a port from 0 (any free one) to 65535", 8_000, parse_port);
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
        let rules = read_rules(&mut reader);
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
        let required = database.zip(master_key).zip(admin_key).zip(engine_image);
        let config = required.map(|(((database, master_key), admin_key), engine_image)| Self {
            database,
            warnings: weak_key_warnings(master_key.1, admin_key.1),
            master_key: master_key.0,
            admin_key: admin_key.0,
            engine_image,
            engine_env,
            address: SocketAddr::new(host, port),
            boot_timeout,
            ports,
            url_host,
            engine_network,
            rules,
            data_root,
            catalog,
            backend,
            take_over_from,
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

/// Whether `text` arrives unchanged when it is sent as a header value.
fn is_valid_header_value(text: &str) -> bool {
    text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) && text.trim() == text
}

/// Whether an admin key is hard to guess.
fn is_strong_admin_key(text: &str) -> bool {
    text.chars().count() >= ADMIN_KEY_MIN_LENGTH && distinct_bytes(text) >= ADMIN_KEY_MIN_DISTINCT
}

/// Whether a base64 key looks random, rather than like a placeholder pattern.
fn is_random_master_key(text: &str) -> bool {
    distinct_bytes(text) >= MASTER_KEY_MIN_DISTINCT
}

/// Warns of weak keys, which still work: a deployment that has one must start after an upgrade too.
fn weak_key_warnings(is_random_master: bool, is_strong_admin: bool) -> Vec<&'static str> {
    let master = "ORCH_MASTER_KEY is a pattern instead of random bytes: anyone who guesses it can decrypt every \
                  engine's key. Change it with `roundhouse rekey`.";
    let admin = "ORCH_ADMIN_KEY can be guessed: make it at least 16 characters, chosen at random.";
    let weak = [(is_random_master, master), (is_strong_admin, admin)];
    weak.into_iter().filter(|(is_strong, _)| !is_strong).map(|(_, warning)| warning).collect()
}

/// The number of distinct bytes in `text`.
fn distinct_bytes(text: &str) -> usize {
    text.bytes().collect::<HashSet<_>>().len()
}

/// Reads the supervision rules. The contract's example values are the defaults.
fn read_rules(reader: &mut EnvReader<'_>) -> SupervisionRules {
    const SECONDS: &str = "seconds above 0, decimals allowed";
    const COUNT: &str = "a whole number above 0";
    let defaults = SupervisionRules::default();
    let above_zero = |text: &str| parse_seconds(text).filter(|time| !time.is_zero());
    let count = |text: &str| text.parse().ok().filter(|count: &u32| *count > 0);
    let check_interval =
        reader.parse_or("ORCH_HEALTH_CHECK_INTERVAL_S", SECONDS, defaults.check_interval, above_zero);
    let check_timeout =
        reader.parse_or("ORCH_HEALTH_CHECK_TIMEOUT_S", SECONDS, defaults.check_timeout, above_zero);
    let max_failures = reader.parse_or("ORCH_HEALTH_MAX_FAILURES", COUNT, defaults.max_failures, count);
    let backoff_base =
        reader.parse_or("ORCH_RESTART_BACKOFF_BASE_S", SECONDS, defaults.backoff_base, above_zero);
    let backoff_max =
        reader.parse_or("ORCH_RESTART_BACKOFF_MAX_S", SECONDS, defaults.backoff_max, above_zero);
    let max_restarts = reader.parse_or(
        "ORCH_RESTART_MAX_ATTEMPTS",
        "a whole number; 0: failed engines are not restarted",
        defaults.max_restarts,
        |text| text.parse().ok(),
    );
    let idle_threshold = reader.parse_or(
        "ORCH_IDLE_SLEEP_THRESHOLD_S",
        "seconds, decimals allowed; 0: engines never sleep",
        defaults.idle_threshold,
        parse_seconds,
    );
    if backoff_max < backoff_base {
        reader.add_error(
            "ORCH_RESTART_BACKOFF_MAX_S",
            Some(backoff_max.as_secs_f64().to_string()),
            &format!("at least ORCH_RESTART_BACKOFF_BASE_S, which is {}", backoff_base.as_secs_f64()),
        );
    }
    SupervisionRules {
        check_interval,
        check_timeout,
        max_failures,
        backoff_base,
        backoff_max,
        max_restarts,
        idle_threshold,
    }
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

/// Reads the variables named in `ORCH_ENGINE_ENV_PASSTHROUGH`. One that is unset or empty is skipped: the list
/// names every provider's key, and few deployments have them all.
fn read_engine_env(reader: &mut EnvReader<'_>, env: &dyn Env) -> Vec<(String, SecretString)> {
    const PASSTHROUGH_VARIABLE: &str = "ORCH_ENGINE_ENV_PASSTHROUGH";
    let names = reader.text(PASSTHROUGH_VARIABLE).unwrap_or_default();
    let names: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    for name in &names {
        if !is_variable_name(name) || name.starts_with("ORCH_") || RESERVED_ENGINE_VARS.contains(name) {
            reader.add_error(
                PASSTHROUGH_VARIABLE,
                Some((*name).to_owned()),
                "a list of variable names, separated by commas, without ORCH_* and without those that the \
                 orchestrator sets itself",
            );
        }
    }
    let set = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let value = |name: &str| set(name).map(|value| (name.to_owned(), SecretString::from(value)));
    names.into_iter().filter_map(value).collect()
}

fn is_variable_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use secrecy::ExposeSecret as _;

    use super::*;

    fn env(changes: &[(&str, &str)]) -> BTreeMap<String, String> {
        let image = format!("svc-engine:{VERSION}");
        let key = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo".to_owned();
        let required = [
            ("ORCH_DATABASE_URL", "sqlite:/tmp/registry.db"),
            ("ORCH_MASTER_KEY", &key),
            ("ORCH_ADMIN_KEY", "open sesame, please"),
            ("ORCH_BACKEND", "process"),
            ("ORCH_ENGINE_IMAGE", &image),
        ];
        required.iter().chain(changes).map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn faults(changes: &[(&str, &str)]) -> Vec<String> {
        let errors = Config::from_env(&env(changes)).unwrap_err();
        errors.iter().map(|error| error.name.clone()).collect()
    }

    #[test]
    fn the_contracts_example_values_are_the_defaults() {
        let config = Config::from_env(&env(&[])).unwrap();
        assert_eq!(config.address, "0.0.0.0:8000".parse().unwrap());
        assert_eq!(config.ports, PortRange::new(9_001, 9_999).unwrap());
        assert_eq!(config.boot_timeout, Duration::from_mins(1));
        assert_eq!(config.data_root, Path::new("/var/lib/roundhouse/engines"));
        assert_eq!(config.catalog, Path::new("/var/lib/roundhouse/catalog"));
        assert!(config.engine_env.is_empty());
        assert_eq!(config.rules, SupervisionRules::default());
        assert_eq!((config.url_host.as_str(), config.engine_network.as_str()), ("127.0.0.1", "engine_net"));
        // The output contains every variable and no secret.
        let text = config.to_string();
        assert!(text.contains("ORCH_HEALTH_CHECK_INTERVAL_S=30\n"), "{text}");
        assert!(
            !text.contains("open sesame") && !text.contains("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo"),
            "{text}"
        );
    }

    #[test]
    fn every_fault_is_named_at_once_and_no_secret_is_shown() {
        let bad = env(&[
            ("ORCH_DATABASE_URL", "mysql://root:hunter2@db"),
            ("ORCH_MASTER_KEY", "too short"),
            ("ORCH_ADMIN_KEY", ""),
            ("ORCH_BACKEND", "podman"),
            ("ORCH_ENGINE_IMAGE", "svc-engine:latest"),
            ("ORCH_HOST", "here"),
            ("ORCH_PORT", "70000"),
            ("ORCH_BOOT_TIMEOUT_S", "0"),
            ("ORCH_PORT_MIN", "9100"),
            ("ORCH_PORT_MAX", "9000"),
            ("ORCH_DATA_ROOT_PATH", "relative"),
            ("ORCH_ENGINE_ENV_PASSTHROUGH", "LLM_API_KEY,ORCH_MASTER_KEY,ENGINE_KEY_HASH,1X"),
            ("ORCH_ENGINE_NETWORK", "-net"),
            ("ORCH_ENGINE_URL_HOST", "http://here"),
            ("ORCH_HEALTH_CHECK_INTERVAL_S", "0"),
            ("ORCH_HEALTH_CHECK_TIMEOUT_S", "-1"),
            ("ORCH_HEALTH_MAX_FAILURES", "0"),
            ("ORCH_RESTART_BACKOFF_BASE_S", "10"),
            ("ORCH_RESTART_BACKOFF_MAX_S", "9"),
            ("ORCH_RESTART_MAX_ATTEMPTS", "-1"),
            ("ORCH_IDLE_SLEEP_THRESHOLD_S", "soon"),
        ]);
        let errors = Config::from_env(&bad).unwrap_err();
        assert_eq!(errors.iter().count(), 21, "{errors}");
        let text = errors.to_string();
        for secret in ["hunter2", "too short", "open sesame, please"] {
            assert!(!text.contains(secret), "{text}");
        }
    }

    #[test]
    fn an_admin_key_that_no_header_can_carry_is_a_fault() {
        for key in [" open sesame", "open sesame ", "open sesame\n", "open\nsesame", "   ", "öffne dich"] {
            assert_eq!(faults(&[("ORCH_ADMIN_KEY", key)]), ["ORCH_ADMIN_KEY"], "{key:?}");
        }
        for key in ["open sesame", "~!\"#", "x"] {
            assert!(Config::from_env(&env(&[("ORCH_ADMIN_KEY", key)])).is_ok(), "{key:?}");
        }
    }

    #[test]
    fn a_key_that_can_be_guessed_is_warned_of() {
        let warned = |changes: &[(&str, &str)]| {
            let warnings = Config::from_env(&env(changes)).unwrap().warnings;
            let name = |warning: &str| warning.split(' ').next().unwrap().to_owned();
            warnings.into_iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(warned(&[]), [""; 0]);
        for key in ["fifteen letters", &"x".repeat(40)] {
            assert_eq!(warned(&[("ORCH_ADMIN_KEY", key)]), ["ORCH_ADMIN_KEY"], "{key:?}");
        }
        assert_eq!(warned(&[("ORCH_MASTER_KEY", &"A".repeat(43))]), ["ORCH_MASTER_KEY"]);
    }

    #[test]
    fn only_variables_that_are_set_are_passed_through() {
        let env = env(&[
            ("ORCH_ENGINE_ENV_PASSTHROUGH", "LLM_API_KEY, ,OPENAI_API_KEY"),
            ("LLM_API_KEY", "secret"),
            ("OTHER", "kept"),
        ]);
        let config = Config::from_env(&env).unwrap();
        let variables: Vec<_> =
            config.engine_env.iter().map(|(name, value)| (name.as_str(), value.expose_secret())).collect();
        assert_eq!(variables, [("LLM_API_KEY", "secret")]);
        assert!(!format!("{config:?}").contains("secret"));
    }

    #[test]
    fn a_process_is_of_the_binarys_image_and_a_container_of_any_exact_one() {
        assert_eq!(faults(&[("ORCH_ENGINE_IMAGE", "svc-engine:99.0.0")]), ["ORCH_ENGINE_IMAGE"]);
        let docker = |image| [("ORCH_BACKEND", ""), ("ORCH_ENGINE_IMAGE", image)];
        let config = Config::from_env(&env(&docker("registry.local/agents/engine:99.0.0"))).unwrap();
        assert_eq!(config.backend, BackendKind::Docker { socket: "/var/run/docker.sock".into() });
        for image in ["svc-engine:latest", "svc-engine", ""] {
            assert_eq!(faults(&docker(image)), ["ORCH_ENGINE_IMAGE"], "{image:?}");
        }
    }

    #[test]
    fn the_docker_daemon_is_where_the_operator_says() {
        let docker = |socket| [("ORCH_BACKEND", "docker"), ("ORCH_DOCKER_SOCKET", socket)];
        let config = Config::from_env(&env(&docker("/run/user/1000/docker.sock"))).unwrap();
        assert_eq!(config.backend, BackendKind::Docker { socket: "/run/user/1000/docker.sock".into() });
        assert!(config.to_string().contains("ORCH_DOCKER_SOCKET=/run/user/1000/docker.sock"));
        assert_eq!(faults(&docker("tcp://here:2375")), ["ORCH_DOCKER_SOCKET"]);
        // The process backend has no socket.
        assert!(Config::from_env(&env(&[("ORCH_DOCKER_SOCKET", "here")])).is_ok());
    }
}
