//! The variables that every engine gets from the orchestrator's own environment.

use http_service::env::{Env, EnvReader};
use http_service::trace_settings;
use secrecy::SecretString;

/// Variables that the orchestrator sets for each engine itself and that cannot be passed through.
const RESERVED_ENGINE_VARS: [&str; 7] =
    ["ENGINE_KEY_HASH", "SQLITE_DB_PATH", "CATALOG_DIR", "ENGINE_HOST", "ENGINE_ID", "ENGINE_PORT", "HOME"];

/// Reads the variables named in `ORCH_ENGINE_ENV_PASSTHROUGH`. One that is unset or empty is skipped: the list
/// names every provider's key, and few deployments have them all. The variables of OpenTelemetry need not be named.
pub(super) fn read(reader: &mut EnvReader<'_>, env: &dyn Env) -> Vec<(String, SecretString)> {
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
    let of_traces = trace_settings::PASSED_ON.into_iter().filter(|name| !names.contains(name));
    names.iter().copied().chain(of_traces).filter_map(value).collect()
}

fn is_variable_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with(|first: char| first.is_ascii_digit())
}
