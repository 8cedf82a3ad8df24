//! The engine's configuration: the container contract's variables and the engine's own settings.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::KeyHash;
use api::backup::MAINTENANCE_VAR;
use api::browser::{BROWSER_ACCESS_VAR, BrowserAccess, TOKEN_SECRET_VAR, TokenSecret};
use catalog::{Catalog, Environment};
use fetch::WebAllowlist;
use http_service::env::{ConfigErrors, Env, EnvReader, parse_lifetime};
use http_service::logging::LogFormat;
use http_service::trace_settings::{self, Service};
use http_service::vault::MasterKey;
use llm::UsageLimits;
use llm::config::ConfigSources;
use mcp::McpSettings;
use reqwest::Url;
use resources::memory_budget;
use sandbox::HelperCommand;
use tools::user_files::FileLimits;
use tracing_subscriber::filter::{LevelFilter, Targets};

mod active_config;

pub use active_config::{ActiveConfig, ConfigError};

/// The default time for which the deltas of an ended turn can be replayed.
const DEFAULT_REPLAY_TTL: Duration = Duration::from_hours(3);
/// The default time that a person has to answer.
const DEFAULT_HITL_TTL: Duration = Duration::from_hours(72);
/// The default interval between learning batches.
const DEFAULT_BATCH_INTERVAL: Duration = Duration::from_hours(24);
/// The longest interval between learning batches: ten years.
const MAX_BATCH_INTERVAL_HOURS: f64 = 87_600.0;

/// The number of days for which usage is kept by default: a year can be compared with the one before.
const DEFAULT_USAGE_RETENTION_DAYS: u32 = 400;
/// The most days for which usage can be kept: a hundred years.
const MAX_USAGE_RETENTION_DAYS: u32 = 36_500;

/// The default room for the user's files, in bytes: programs write to the workspace too, so it is generous.
const DEFAULT_QUOTA_BYTES: u64 = 10 << 30;
/// The default limit on the size of an uploaded file, in bytes.
const DEFAULT_FILE_BYTES: u64 = 5 << 30;
/// The largest of such limits, in MiB.
const MAX_LIMIT_MIB: u64 = 1_000_000_000;

/// A validated configuration.
pub struct Config {
    /// The address to listen on: `0.0.0.0:8000`, as in a container, unless `ENGINE_HOST` and `ENGINE_PORT` say
    /// otherwise.
    pub listen: SocketAddr,
    /// The hash of the engine key.
    pub key_hash: KeyHash,
    /// The brain's file.
    pub brain_path: PathBuf,
    /// The agent's folder: `workspace` beside the brain.
    pub workspace: PathBuf,
    /// The product's catalog.
    pub catalog: Catalog,
    /// The catalog's folder.
    pub catalog_folder: PathBuf,
    /// The command that starts the sandbox helper: this program itself.
    pub sandbox_helper: HelperCommand,
    /// Whether programs may run although this machine cannot confine them.
    pub allow_unconfined: bool,
    /// Whether a conversation is compacted when the provider reports that it is too long.
    pub reactive_compaction: bool,
    /// The sources of the gateway configuration.
    pub gateway_sources: ConfigSources,
    /// Addresses that may be fetched although they are not public.
    pub web_allowlist: WebAllowlist,
    /// The configuration of connections to MCP servers.
    pub mcp: McpSettings,
    /// How long a person may take to answer.
    pub hitl_ttl: Duration,
    /// How long the deltas of an ended turn can be replayed.
    pub replay_ttl: Duration,
    /// The interval between learning batches; `None` if they only run on request.
    pub batch_interval: Option<Duration>,
    /// How long usage is kept.
    pub usage_retention: Duration,
    /// What its orchestrator calls this engine.
    pub engine_id: Option<String>,
    /// The secret from which the keys of browser tokens derive; without it, no token is accepted.
    pub token_secret: Option<TokenSecret>,
    /// Whether it is started for maintenance: to send a backup, or to be restored.
    pub maintenance: bool,
    /// What its orchestrator says about browsers at the start.
    pub browser_access: BrowserAccess,
    /// The operator's caps on usage.
    pub usage_limits: UsageLimits,
    /// The memory budget of large objects, in bytes.
    pub memory_budget_bytes: usize,
    /// The limits on the files that the user uploads.
    pub file_limits: FileLimits,
    /// What is logged.
    pub log_filter: Targets,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// Where traces are exported to, if they are.
    pub traces: Option<traces::Settings>,
}

impl Config {
    /// Reads the configuration.
    ///
    /// # Errors
    /// All faults at once. An unusable model is not one: the engine starts and says what to set.
    pub fn from_env(env: &dyn Env) -> Result<Self, ConfigErrors> {
        let mut reader = EnvReader::new(env);
        let listen = read_listen_address(&mut reader);
        let key_hash = reader.required_secret(
            "ENGINE_KEY_HASH",
            "the SHA-256 of the engine's key: 64 lower-case hexadecimal digits",
            |text| KeyHash::from_hex(text).ok(),
        );
        let brain = reader.required("SQLITE_DB_PATH", "the path of the brain's file", |text| {
            Path::new(text).file_name().map(|_| PathBuf::from(text))
        });
        let catalog =
            reader.required("CATALOG_DIR", "the catalog's folder", |text| Some(PathBuf::from(text)));
        let log_filter = read_log_filter(&mut reader);
        let log_format =
            reader.parse_or("ENGINE_LOG_FORMAT", "`text` or `json`", LogFormat::Text, LogFormat::from_name);
        let expected_ttl =
            "a duration above zero: seconds (`90`, `0.5`) or a value such as `90s`, `90m`, `3h`, `2d`";
        let replay_ttl =
            reader.parse_or("CHANNEL_STATE_TTL_ACTIVE", expected_ttl, DEFAULT_REPLAY_TTL, parse_lifetime);
        let hitl_ttl =
            reader.parse_or("CHANNEL_STATE_TTL_HITL", expected_ttl, DEFAULT_HITL_TTL, parse_lifetime);
        let expected_hours = "a number of hours, such as `24` or `0.5`; 0 to run batches on request only";
        let batch_interval = reader.parse_or(
            "LC_BATCH_INTERVAL_HOURS",
            expected_hours,
            DEFAULT_BATCH_INTERVAL,
            parse_batch_interval,
        );
        let usage_days = reader.parse_or(
            "ENGINE_USAGE_RETENTION_DAYS",
            "a number of days from 1 to 36500",
            DEFAULT_USAGE_RETENTION_DAYS,
            parse_usage_retention,
        );
        let usage_limits = usage_limits(&mut reader);
        let engine_id = reader.text("ENGINE_ID");
        let traces = read_traces(&mut reader, engine_id.as_deref());
        let token_secret = reader.optional_secret(
            TOKEN_SECRET_VAR,
            "32 random bytes in URL-safe base64 without padding: 43 characters",
            TokenSecret::parse,
        );
        let browser_access = reader.parse_or(
            BROWSER_ACCESS_VAR,
            "the JSON that the orchestrator writes",
            BrowserAccess::default(),
            |text| serde_json::from_str(text).ok(),
        );
        let expected_bool = "`true` or `false`";
        let reactive_compaction =
            reader.parse_or("REACTIVE_COMPACT_ENABLED", expected_bool, true, |text| text.parse().ok());
        let maintenance = reader.parse_or(MAINTENANCE_VAR, expected_bool, false, |text| text.parse().ok());
        let allow_unconfined =
            reader.parse_or("ENGINE_ALLOW_UNCONFINED", expected_bool, false, |text| text.parse().ok());
        let web_allowlist = reader.parse_or(
            "ENGINE_WEB_ALLOW",
            WebAllowlist::EXPECTED,
            WebAllowlist::default(),
            WebAllowlist::parse,
        );
        let expected_mib = "a number of MiB from 64 to 65535";
        let memory = reader.parse_or(
            "ENGINE_MEMORY_BUDGET_MB",
            expected_mib,
            memory_budget::DEFAULT_BUDGET_BYTES,
            parse_memory_budget,
        );
        let file_limits = file_limits(&mut reader);
        let mcp = McpSettings { web_allowlist: web_allowlist.clone(), ..mcp_settings(&mut reader) };
        let sources = ConfigSources::new(env, catalog.as_deref());
        let config = key_hash.zip(brain).zip(catalog).map(|((key_hash, brain), catalog)| Self {
            listen,
            key_hash,
            workspace: brain.with_file_name("workspace"),
            brain_path: brain,
            catalog: Catalog::load(&catalog, Environment::from_env(env)),
            catalog_folder: catalog,
            sandbox_helper: HelperCommand::current_exe(),
            allow_unconfined,
            reactive_compaction,
            gateway_sources: sources,
            web_allowlist,
            mcp,
            hitl_ttl,
            replay_ttl,
            batch_interval: (!batch_interval.is_zero()).then_some(batch_interval),
            usage_retention: Duration::from_hours(24 * u64::from(usage_days)),
            engine_id,
            token_secret,
            maintenance,
            browser_access,
            usage_limits,
            memory_budget_bytes: memory,
            file_limits,
            log_filter,
            log_format,
            traces,
        });
        reader.finish(config)
    }
}

/// Reads where traces are exported to.
fn read_traces(reader: &mut EnvReader<'_>, engine_id: Option<&str>) -> Option<traces::Settings> {
    let service =
        Service { name: "roundhouse-engine", version: env!("CARGO_PKG_VERSION"), instance_id: engine_id };
    trace_settings::read(reader, service)
}

/// Reads the address to listen on.
fn read_listen_address(reader: &mut EnvReader<'_>) -> SocketAddr {
    let host = reader.parse_or("ENGINE_HOST", "an IP address", IpAddr::V4(Ipv4Addr::UNSPECIFIED), |text| {
        text.parse().ok()
    });
    let port = reader.parse_or("ENGINE_PORT", "a port from 0 to 65535", 8_000, |text| text.parse().ok());
    SocketAddr::new(host, port)
}

/// Reads what is logged.
fn read_log_filter(reader: &mut EnvReader<'_>) -> Targets {
    let expected = "a level (error, warn, info, debug, trace) or a list such as `info,engine=debug`";
    reader.parse_or("ENGINE_LOG_LEVEL", expected, default_log_filter(), parse_log_filter)
}

/// Parses a log filter. The protocol library for tool servers logs only if the filter names it.
pub(crate) fn parse_log_filter(text: &str) -> Option<Targets> {
    let filter = http_service::logging::parse_filter(text).ok()?;
    let names_library = text.contains(MCP_LOG_TARGET);
    Some(if names_library { filter } else { filter.with_target(MCP_LOG_TARGET, LevelFilter::OFF) })
}

/// Reads the settings of MCP connections, all of which are optional.
pub(crate) fn mcp_settings(reader: &mut EnvReader<'_>) -> McpSettings {
    let expected_key = "32 random bytes in URL-safe base64 without padding: 43 characters";
    let expected_url = "an address that begins with https:// or http://, without a query";
    let url = |text: &str| {
        let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        (url.query().is_none() && url.fragment().is_none()).then_some(url)
    };
    McpSettings {
        encryption_key: reader.optional_secret("AD_ENCRYPTION_KEY", expected_key, MasterKey::parse),
        redirect_base: reader
            .parse_or("OAUTH_REDIRECT_BASE_URL", expected_url, None, |text| url(text).map(Some)),
        client_metadata_url: reader
            .parse_or("OAUTH_CLIENT_METADATA_URL", expected_url, None, |text| url(text).map(Some)),
        web_allowlist: WebAllowlist::default(),
    }
}

/// Reads the limits on the user's files.
fn file_limits(reader: &mut EnvReader<'_>) -> FileLimits {
    let mut limit = |name, default| {
        reader.parse_or(
            name,
            "a number of MiB from 0 to 1000000000; 0 for no limit",
            Some(default),
            parse_byte_limit,
        )
    };
    FileLimits {
        quota_bytes: limit("ENGINE_WORKSPACE_QUOTA_MB", DEFAULT_QUOTA_BYTES),
        max_file_bytes: limit("ENGINE_WORKSPACE_FILE_MB", DEFAULT_FILE_BYTES).unwrap_or(u64::MAX),
    }
}

/// Parses a number of MiB; returns bytes.
fn parse_memory_budget(mib: &str) -> Option<usize> {
    let bytes = mib.trim().parse::<u16>().ok().map(|mib| usize::from(mib) << 20);
    bytes.filter(|bytes| *bytes >= memory_budget::MIN_BUDGET_BYTES)
}

/// Parses a limit in MiB; returns bytes, or `Some(None)` for no limit.
#[expect(clippy::option_option, reason = "the outer one is for an invalid value")]
fn parse_byte_limit(mib: &str) -> Option<Option<u64>> {
    let mib = mib.trim().parse::<u64>().ok().filter(|mib| *mib <= MAX_LIMIT_MIB)?;
    Some((mib > 0).then_some(mib << 20))
}

/// Parses a number of days.
fn parse_usage_retention(days: &str) -> Option<u32> {
    days.trim().parse().ok().filter(|days| (1..=MAX_USAGE_RETENTION_DAYS).contains(days))
}

/// Reads the operator's caps on usage.
fn usage_limits(reader: &mut EnvReader<'_>) -> UsageLimits {
    let mut tokens = |name| {
        let parse = |text: &str| text.trim().parse().ok().filter(UsageLimits::is_valid_tokens).map(Some);
        reader.parse_or(name, UsageLimits::EXPECTED_TOKENS, None, parse)
    };
    let tokens_per_day = tokens("ENGINE_USAGE_MAX_TOKENS_PER_DAY");
    let tokens_per_task = tokens("ENGINE_USAGE_MAX_TOKENS_PER_TASK");
    let mut usd = |name| {
        let parse = |text: &str| text.trim().parse().ok().filter(UsageLimits::is_valid_usd).map(Some);
        reader.parse_or(name, UsageLimits::EXPECTED_USD, None, parse)
    };
    let usd_per_day = usd("ENGINE_USAGE_MAX_USD_PER_DAY");
    let usd_per_task = usd("ENGINE_USAGE_MAX_USD_PER_TASK");
    UsageLimits { tokens_per_day, tokens_per_task, usd_per_day, usd_per_task }
}

/// Parses an interval between learning batches, in hours.
fn parse_batch_interval(hours: &str) -> Option<Duration> {
    let hours: f64 = hours.trim().parse().ok()?;
    (0.0..=MAX_BATCH_INTERVAL_HOURS).contains(&hours).then(|| Duration::from_secs_f64(hours.abs() * 3_600.0))
}

/// The MCP library. It logs messages verbatim, at every level, so nothing of it is logged unless a filter names
/// it. The engine itself reports failures.
const MCP_LOG_TARGET: &str = "rmcp";

fn default_log_filter() -> Targets {
    Targets::new().with_default(tracing::Level::INFO).with_target(MCP_LOG_TARGET, LevelFilter::OFF)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const KEY_HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn all_faults_are_reported_at_once() {
        let env = BTreeMap::from(
            [
                ("ENGINE_PORT", "x"),
                ("ENGINE_KEY_HASH", "abc"),
                ("ENGINE_LOG_LEVEL", "loud"),
                ("ENGINE_WEB_ALLOW", "10.0.0.0/99"),
                ("LC_BATCH_INTERVAL_HOURS", "-1"),
                ("ENGINE_USAGE_RETENTION_DAYS", "0"),
                ("ENGINE_USAGE_MAX_TOKENS_PER_DAY", "0"),
                ("ENGINE_USAGE_MAX_USD_PER_TASK", "much"),
                ("ENGINE_MEMORY_BUDGET_MB", "63"),
                ("ENGINE_WORKSPACE_QUOTA_MB", "-1"),
                ("ENGINE_WORKSPACE_FILE_MB", "1.5"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        let faults = Config::from_env(&env).err().unwrap();
        let names: Vec<&str> = faults.iter().map(|fault| fault.name.as_str()).collect();
        let expected = [
            "ENGINE_PORT",
            "ENGINE_KEY_HASH",
            "SQLITE_DB_PATH",
            "CATALOG_DIR",
            "ENGINE_LOG_LEVEL",
            "LC_BATCH_INTERVAL_HOURS",
            "ENGINE_USAGE_RETENTION_DAYS",
            "ENGINE_USAGE_MAX_TOKENS_PER_DAY",
            "ENGINE_USAGE_MAX_USD_PER_TASK",
            "ENGINE_WEB_ALLOW",
            "ENGINE_MEMORY_BUDGET_MB",
            "ENGINE_WORKSPACE_QUOTA_MB",
            "ENGINE_WORKSPACE_FILE_MB",
        ];
        assert_eq!(names, expected);
        assert!(!faults.to_string().contains("abc"));
    }

    #[test]
    fn the_contracts_values_are_the_defaults() {
        let required = [
            ("ENGINE_KEY_HASH", KEY_HASH),
            ("SQLITE_DB_PATH", "/data/brain.sqlite"),
            ("CATALOG_DIR", "/catalog"),
        ];
        let env = |more: &[(&str, &str)]| -> BTreeMap<String, String> {
            required.iter().chain(more).map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let config = Config::from_env(&env(&[])).unwrap_or_else(|faults| panic!("{faults}"));
        assert_eq!(config.listen, "0.0.0.0:8000".parse().unwrap());
        assert_eq!(config.workspace, Path::new("/data/workspace"));
        assert_eq!((config.replay_ttl, config.hitl_ttl), (Duration::from_hours(3), Duration::from_hours(72)));
        assert_eq!(config.batch_interval, Some(Duration::from_hours(24)));
        assert_eq!(config.usage_retention, Duration::from_hours(9_600));
        assert!(config.reactive_compaction && !config.allow_unconfined);
        let limits = FileLimits { quota_bytes: Some(10 << 30), max_file_bytes: 5 << 30 };
        assert_eq!(config.file_limits, limits);

        let set = [
            ("ENGINE_HOST", "127.0.0.1"),
            ("ENGINE_PORT", "9001"),
            ("CHANNEL_STATE_TTL_ACTIVE", "90"),
            ("CHANNEL_STATE_TTL_HITL", "90m"),
            ("LC_BATCH_INTERVAL_HOURS", "0"),
            ("REACTIVE_COMPACT_ENABLED", "false"),
            ("ENGINE_WORKSPACE_QUOTA_MB", "0"),
            ("ENGINE_WORKSPACE_FILE_MB", "7"),
        ];
        let config = Config::from_env(&env(&set)).unwrap_or_else(|faults| panic!("{faults}"));
        assert_eq!(config.listen, "127.0.0.1:9001".parse().unwrap());
        assert_eq!((config.replay_ttl, config.hitl_ttl), (Duration::from_secs(90), Duration::from_mins(90)));
        assert_eq!((config.batch_interval, config.reactive_compaction), (None, false));
        assert_eq!(config.file_limits, FileLimits { quota_bytes: None, max_file_bytes: 7 << 20 });
    }

    #[test]
    fn what_tool_servers_send_is_logged_only_where_a_filter_names_the_library() {
        for (level, rmcp, engine) in [
            (None, None, "info"),
            (Some("trace"), None, "trace"),
            (Some("warn,engine=debug"), None, "debug"),
            (Some("info,rmcp=debug"), Some("debug"), "info"),
        ] {
            let required = [("ENGINE_KEY_HASH", KEY_HASH), ("SQLITE_DB_PATH", "/b"), ("CATALOG_DIR", "/c")];
            let set = required.into_iter().chain(level.map(|level| ("ENGINE_LOG_LEVEL", level)));
            let env: BTreeMap<String, String> =
                set.map(|(name, value)| (name.into(), value.into())).collect();
            let log = Config::from_env(&env).unwrap_or_else(|faults| panic!("{faults}")).log_filter;
            let levels = ["error", "warn", "info", "debug", "trace"];
            let max_level = |target: &str| {
                let logged = |level: &&str| log.would_enable(target, &level.parse().unwrap());
                levels.into_iter().rfind(logged)
            };
            assert_eq!((max_level("rmcp::service::client"), max_level("engine::mcp")), (rmcp, Some(engine)));
        }
    }

    #[test]
    fn an_interval_is_a_number_of_hours() {
        for (text, seconds) in [("24", 86_400.0), ("0.5", 1_800.0), (" 1e-3 ", 3.6), ("0", 0.0), ("-0", 0.0)]
        {
            assert_eq!(parse_batch_interval(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["-1", "a day", "NaN", "inf", "1e9", "24h"] {
            assert_eq!(parse_batch_interval(text), None, "{text}");
        }
    }
}
