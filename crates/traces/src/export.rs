//! The export: settings, the thread that sends batches of spans to a collector, and its end.
//!
//! Spans that have ended wait in a bounded queue; if it is full, further ones are dropped. Nobody ever waits for the
//! collector but the end of the process, and that for [`SHUTDOWN_TIMEOUT`].

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider};
use tokio::runtime::Handle;

use crate::runtime_client::RuntimeClient;
use crate::span::{ACTIVE, Active};

/// The most spans that wait for their export.
const MAX_QUEUED_SPANS: usize = 2_048;
/// The most that wait if they have content, which may be [`crate::gen_ai::MAX_CONTENT_BYTES`] in each of a few attributes.
const MAX_QUEUED_SPANS_WITH_CONTENT: usize = 256;
/// The most spans in a request.
const MAX_BATCH_SPANS: usize = 512;
const MAX_BATCH_SPANS_WITH_CONTENT: usize = 64;

/// How long the end of the process waits for the spans that are left. Engines have ten seconds to stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Which traces are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// All.
    All,
    /// None.
    Nothing,
    /// This part of all, chosen by the trace's id.
    Ratio(f64),
}

/// The settings of the export. The headers of its requests are read from the environment when it begins, so that no copy
/// of what they hold is kept here.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where spans are sent.
    pub endpoint: String,
    /// How long a request may take.
    pub timeout: Duration,
    /// Which traces are recorded.
    pub sampling: Sampling,
    /// Whether a caller's trace is recorded if, and only if, the caller records it.
    pub follows_caller: bool,
    /// The name of the service.
    pub service_name: String,
    /// What tells this instance from others of the service.
    pub instance_id: Option<String>,
    /// The version of the service.
    pub version: &'static str,
    /// Whether spans have what users, models and tools say.
    pub captures_content: bool,
}

/// Why the export could not begin.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// There is no HTTP client.
    #[error("the HTTP client of the export could not be created")]
    Client(#[source] reqwest::Error),
    /// The environment has something that the exporter does not take.
    #[error("the export of traces is not configured properly: {0}")]
    Exporter(String),
    /// There is one already.
    #[error("traces are exported already")]
    Installed,
}

/// The export while it is under way.
#[derive(Debug)]
pub struct Exporter(SdkTracerProvider);

/// Begins the export of spans, sent by `runtime`.
///
/// # Errors
/// See [`InstallError`].
pub fn install(settings: Settings, runtime: Handle) -> Result<Exporter, InstallError> {
    let Settings {
        endpoint,
        timeout,
        sampling,
        follows_caller,
        service_name,
        instance_id,
        version,
        captures_content,
    } = settings;
    let client = RuntimeClient::new(runtime, timeout).map_err(InstallError::Client)?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint)
        .with_timeout(timeout)
        .build()
        .map_err(|error| InstallError::Exporter(error.to_string()))?;
    let (max_queue, max_batch) = if captures_content {
        (MAX_QUEUED_SPANS_WITH_CONTENT, MAX_BATCH_SPANS_WITH_CONTENT)
    } else {
        (MAX_QUEUED_SPANS, MAX_BATCH_SPANS)
    };
    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(max_queue)
        .with_max_export_batch_size(max_batch)
        .build();
    let instance = instance_id.map(|id| KeyValue::new("service.instance.id", id));
    let resource = Resource::builder()
        .with_service_name(service_name)
        .with_attributes([KeyValue::new("service.version", version)].into_iter().chain(instance))
        .build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(batches).build())
        .with_sampler(sampler(sampling, follows_caller))
        .with_resource(resource)
        .build();
    let active = Active { tracer: provider.tracer("roundhouse"), captures_content };
    ACTIVE.set(active).map_err(|_| InstallError::Installed)?;
    Ok(Exporter(provider))
}

fn sampler(sampling: Sampling, follows_caller: bool) -> Sampler {
    let own = match sampling {
        Sampling::All => Sampler::AlwaysOn,
        Sampling::Nothing => Sampler::AlwaysOff,
        Sampling::Ratio(ratio) => Sampler::TraceIdRatioBased(ratio),
    };
    if follows_caller { Sampler::ParentBased(Box::new(own)) } else { own }
}

impl Exporter {
    /// Sends what is left, for two seconds at most. Spans that end from then on are lost.
    pub async fn shutdown(self) {
        let Self(provider) = self;
        let ended =
            tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT)).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("Not all spans could be exported before the end.");
        }
    }
}
