//! The standard variables of OpenTelemetry (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>),
//! as far as they concern traces.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};
use traces::{Sampling, Settings};

use crate::env::EnvReader;

/// The variables that an orchestrator passes on to the engines it launches. Not `OTEL_SERVICE_NAME`: engines are another
/// service.
pub const PASSED_ON: [&str; 17] = [
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    ENDPOINT,
    TRACES_ENDPOINT,
    HEADERS,
    TRACES_HEADERS,
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_BSP_SCHEDULE_DELAY",
    CAPTURE_CONTENT,
];

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const TRACES_HEADERS: &str = "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
const CAPTURE_CONTENT: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";

/// How long a request of the export may take unless a variable says otherwise, and at most.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT: Duration = Duration::from_mins(1);

/// What tells services apart.
#[derive(Clone, Copy, Debug)]
pub struct Service<'a> {
    /// The name unless `OTEL_SERVICE_NAME` says otherwise.
    pub name: &'a str,
    /// The version.
    pub version: &'static str,
    /// What tells this instance from others.
    pub instance_id: Option<&'a str>,
}

/// Reads the settings; `None` if traces are not exported, which they are once an endpoint is set.
pub fn read(reader: &mut EnvReader<'_>, service: Service<'_>) -> Option<Settings> {
    let is_disabled = boolean(reader, "OTEL_SDK_DISABLED");
    let exporter =
        reader.parse_or("OTEL_TRACES_EXPORTER", "`otlp` or `none`", true, |text| match text.trim() {
            "otlp" => Some(true),
            "none" => Some(false),
            _ => None,
        });
    let signal = endpoint(reader, TRACES_ENDPOINT);
    let general = endpoint(reader, ENDPOINT);
    let general = general.map(|address| format!("{}/v1/traces", address.trim_end_matches('/')));
    let endpoint = signal.or(general)?;
    for name in [HEADERS, TRACES_HEADERS] {
        let expected = "a list such as `api-key=secret,other=value`";
        reader.optional_secret(name, expected, |text| are_headers(text).then_some(()));
    }
    for name in ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] {
        reader.parse_or(name, "`http/protobuf`", (), |text| (text.trim() == "http/protobuf").then_some(()));
    }
    for name in ["OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION"] {
        let is_known = |text: &str| matches!(text.trim(), "gzip" | "none").then_some(());
        reader.parse_or(name, "`gzip` or `none`", (), is_known);
    }
    let general_timeout = timeout(reader, "OTEL_EXPORTER_OTLP_TIMEOUT", DEFAULT_TIMEOUT);
    let timeout = timeout(reader, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", general_timeout);
    let (sampling, follows_caller) = read_sampler(reader);
    let captures_content = boolean(reader, CAPTURE_CONTENT);
    let service_name = reader.text("OTEL_SERVICE_NAME").unwrap_or_else(|| service.name.to_owned());
    (exporter && !is_disabled).then(|| Settings {
        endpoint,
        timeout,
        sampling,
        follows_caller,
        service_name,
        instance_id: service.instance_id.map(str::to_owned),
        version: service.version,
        captures_content,
    })
}

/// By the specification only `true`, in any case, is true; anything else is no error there, but would be misread here.
fn boolean(reader: &mut EnvReader<'_>, name: &str) -> bool {
    reader.parse_or(name, "`true` or `false`", false, |text| text.trim().to_ascii_lowercase().parse().ok())
}

/// Reads an address. An error shows only its length: what is refused may have a password in it.
fn endpoint(reader: &mut EnvReader<'_>, name: &str) -> Option<String> {
    let expected = "an address that begins with http:// or https://, without a user or a password";
    reader.optional_secret(name, expected, |text| is_endpoint(text).then(|| text.to_owned()))
}

fn timeout(reader: &mut EnvReader<'_>, name: &str, default: Duration) -> Duration {
    reader.parse_or(name, "a number of milliseconds from 1 to 60000", default, |text| {
        let timeout = Duration::from_millis(text.trim().parse().ok()?);
        (!timeout.is_zero() && timeout <= MAX_TIMEOUT).then_some(timeout)
    })
}

fn is_endpoint(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let has_user = uri.authority().is_none_or(|authority| authority.as_str().contains('@'));
    matches!(uri.scheme_str(), Some("http" | "https")) && !has_user
}

fn are_headers(text: &str) -> bool {
    let is_header = |pair: &str| {
        let Some((name, value)) = pair.split_once('=') else { return false };
        HeaderName::try_from(name.trim()).is_ok() && HeaderValue::try_from(value.trim()).is_ok()
    };
    text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).all(is_header)
}

/// Reads which traces are recorded, and whether that follows the caller.
fn read_sampler(reader: &mut EnvReader<'_>) -> (Sampling, bool) {
    let ratio = reader.parse_or("OTEL_TRACES_SAMPLER_ARG", "a number from 0 to 1", 1.0, |text| {
        text.trim().parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
    });
    let expected = "`always_on`, `always_off`, `traceidratio`, or one of these after `parentbased_`";
    reader.parse_or("OTEL_TRACES_SAMPLER", expected, (Sampling::All, true), |text| {
        let (own, follows_caller) = match text.trim().strip_prefix("parentbased_") {
            Some(own) => (own, true),
            None => (text.trim(), false),
        };
        let sampling = match own {
            "always_on" => Sampling::All,
            "always_off" => Sampling::Nothing,
            "traceidratio" => Sampling::Ratio(ratio),
            _ => return None,
        };
        Some((sampling, follows_caller))
    })
}

#[cfg(test)]
#[path = "../tests/unit/trace_settings.rs"]
mod tests;
