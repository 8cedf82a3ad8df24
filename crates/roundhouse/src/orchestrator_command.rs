//! `roundhouse orchestrator`: runs a deployment's orchestrator, configured by environment variables.

use std::fmt;
use std::io;
use std::sync::Arc;

use anyhow::Context as _;
use http_service::clock::SystemClock;
use http_service::env::{ConfigErrors, Env, EnvReader, ProcessEnv};
use http_service::logging::LogFormat;
use http_service::signals::ShutdownSignals;
use http_service::trace_settings::{self, Service};
use orchestrator::{Config, OpenError, Orchestrator};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::Targets;

use crate::error::Failure;
use crate::{terminal, trace_export};

/// How an orchestrator names itself in traces.
pub(crate) const SERVICE: Service<'_> =
    Service { name: "roundhouse-orchestrator", version: env!("CARGO_PKG_VERSION"), instance_id: None };

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Check the variables, and whether the database, the folders and the backend can be used; print the resulting
    /// configuration and exit: 0 if everything is fine, 2 with all errors in the variables, 1 with everything that
    /// cannot be used.
    #[arg(long)]
    check: bool,
    /// With --check: check only the variables.
    #[arg(long, requires = "check")]
    offline: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (config, log) = load_config(&ProcessEnv).map_err(Failure::usage)?;
    if args.check {
        terminal::print_line(&format!("{config}\n{log}"))?;
        for warning in &config.warnings {
            eprintln!("warning: {warning}");
        }
        return if args.offline { Ok(()) } else { check_resources(&config) };
    }
    http_service::logging::init_with_format(log.format, log.filter);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    http_service::rlimits::raise_file_limit();
    // A path that the operator sets is the operator's to provide, and no folder of this machine reaches a cluster.
    if ProcessEnv.get("ORCH_CATALOG_MOUNT_PATH").is_none() && config.backend.runs_on_this_machine() {
        crate::catalog::unpack(&config.catalog).map_err(Failure::usage)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
        let exporter = trace_export::start(log.traces)?;
        let address = config.address;
        let listener = TcpListener::bind(address).await.map_err(|error| {
            Failure::usage(format!("cannot listen on {address} (ORCH_HOST, ORCH_PORT): {error}"))
        })?;
        tracing::info!(%address, "The orchestrator is listening.");
        let shutdown = CancellationToken::new();
        let clock = Arc::new(SystemClock::new());
        let running = Orchestrator::run(config, clock, listener, shutdown.clone());
        let result = signals.run_until_shutdown(running, &shutdown).await;
        trace_export::end(exporter).await;
        result.map_err(open_failure)?;
        tracing::info!("The orchestrator has stopped; its engines keep running.");
        Ok(())
    })
}

/// Checks whether an orchestrator with this configuration could start.
fn check_resources(config: &Config) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let orchestrator::Preflight { registry, errors } = runtime.block_on(orchestrator::preflight(config));
    if let Some(registry) = registry {
        terminal::print_line(&registry)?;
    }
    if errors.is_empty() {
        return Ok(());
    }
    let lines = errors.into_iter().map(|problem| format!("\n  {:#}", anyhow::Error::from(problem)));
    Err(anyhow::anyhow!("the orchestrator could not start:{}", lines.collect::<String>()).into())
}

/// The failure of an orchestrator that could not start: exit code 2 if its configuration names something unusable,
/// 1 if something failed that may work another time, such as a full disk.
fn open_failure(error: OpenError) -> Failure {
    let is_retryable = match &error {
        OpenError::Unreachable { .. } | OpenError::LostLeadership { .. } => true,
        OpenError::Registry { source, .. } => !is_bad_location(&**source),
        _ => false,
    };
    if is_retryable { error.into() } else { Failure::usage_with_causes(error) }
}

/// Whether the registry could not be opened because of its configured location.
fn is_bad_location(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_location_error = |kind| {
        use io::ErrorKind::{
            AlreadyExists, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
        };
        matches!(
            kind,
            AlreadyExists | IsADirectory | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem
        )
    };
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| is_location_error(error.kind()))
}

/// The log's filter and format, and the export of traces.
struct LogConfig {
    filter: Targets,
    format: LogFormat,
    traces: Option<traces::Settings>,
}

impl fmt::Display for LogConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { filter, format, traces } = self;
        write!(f, "ORCH_LOG_LEVEL={filter}\nORCH_LOG_FORMAT={}", format.name())?;
        // Headers may hold a secret, and are not among the settings.
        let Some(traces::Settings { endpoint, service_name, .. }) = traces else { return Ok(()) };
        write!(f, "\nOTEL_EXPORTER_OTLP_TRACES_ENDPOINT={endpoint}\nOTEL_SERVICE_NAME={service_name}")
    }
}

/// Reads the configuration, and reports all errors of both parts at once.
fn load_config(env: &dyn Env) -> Result<(Config, LogConfig), ConfigErrors> {
    let config = Config::from_env(env);
    let mut reader = EnvReader::new(env);
    if let Err(errors) = &config {
        reader.extend(errors);
    }
    let filter = reader.parse_or(
        "ORCH_LOG_LEVEL",
        "a level such as info, or a list such as info,sqlx=warn",
        Targets::new().with_default(tracing::Level::INFO),
        |text| http_service::logging::parse_filter(text).ok(),
    );
    let format =
        reader.parse_or("ORCH_LOG_FORMAT", "`text` or `json`", LogFormat::Text, LogFormat::from_name);
    let traces = trace_settings::read(&mut reader, SERVICE);
    reader.finish(config.ok().map(|config| (config, LogConfig { filter, format, traces })))
}
