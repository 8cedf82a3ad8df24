//! The gateway's configuration: reads and validates it from the environment, the catalog's `gateway.json`, or a
//! caller.
//!
//! An invalid configuration does not stop an engine: it starts and reports what to set, and its turns end with an
//! error that says the same. So validation returns a reason instead of failing the start.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use http_service::env::{Env, EnvReader};
use serde_json::{Value, json};

use super::base_url::BaseUrl;
use super::factory::build_routes;
use super::gateway_file::{GatewayFile, KeySource, ModelConfig, OpenAiApi, parse, thinking_to_json};
use super::key_policy::{GENERIC_KEY_VARIABLE, KeyPolicy};
use super::provider::{Provider, is_key_variable};
use super::{Budgets, NotConfigured, RetryPolicy, Routes, UsageLimits};

/// The catalog's configuration file.
const CONFIG_FILE: &str = "gateway.json";
/// The maximum size of the file, in bytes.
const MAX_CONFIG_FILE_BYTES: u64 = 1024 * 1024;

/// Returns the variables that hold the keys of the providers.
pub fn provider_key_variables() -> impl Iterator<Item = &'static str> {
    Provider::ALL.into_iter().filter_map(Provider::key_variable)
}

/// Whether a variable, if it is set, shows that a model provider is to be used. Whether that is enough to choose
/// one is reported by the configuration that is read from it.
pub fn shows_provider(variable: &str) -> bool {
    match Provider::from_key_variable(variable) {
        // A server at a known address that also answers without a key: its key alone says nothing.
        Some(provider) => provider.requires_key() || provider.default_base_url().is_none(),
        None => matches!(variable, "LLM_PROVIDER" | GENERIC_KEY_VARIABLE),
    }
}

/// A valid configuration.
pub struct ValidatedConfig {
    /// The configuration in the form of `gateway.json`. Contains no key.
    pub document: Value,
    /// The models and the rules for calling them.
    pub routes: Routes,
}

/// The catalog's `gateway.json`, validated.
#[derive(Default)]
pub struct CatalogConfig {
    /// The configuration; absent if there is no file.
    pub config: Option<ValidatedConfig>,
    /// Where the catalog allows keys to be sent. Empty if there is no file.
    pub key_policy: CatalogKeyPolicy,
}

/// Where the catalog allows the environment's keys to be sent.
#[derive(Clone, Debug, Default)]
pub struct CatalogKeyPolicy(Option<KeyPolicy>);

/// The sources of configurations: the environment and the catalog.
pub struct ConfigSources {
    // Contains keys, so the type must not be printable.
    env: BTreeMap<String, String>,
    file: Option<PathBuf>,
}

impl ConfigSources {
    /// Copies the gateway's variables from `env`, and remembers the path of `gateway.json` in the folder
    /// `catalog`.
    pub fn new(env: &dyn Env, catalog: Option<&Path>) -> Self {
        let is_gateway_variable = |name: &String| name.starts_with("LLM_") || is_key_variable(name);
        let value = |name: String| Some((name.clone(), env.get(&name)?));
        let env = env.names().into_iter().filter(is_gateway_variable).filter_map(value).collect();
        Self { env, file: catalog.map(|catalog| catalog.join(CONFIG_FILE)) }
    }

    /// Returns the environment's configuration.
    ///
    /// # Errors
    /// The environment does not name a usable model.
    pub fn load_env(&self) -> Result<ValidatedConfig, NotConfigured> {
        config_from_env(&self.env)
    }

    /// Reads and validates the catalog's configuration.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn load_catalog(&self) -> Result<CatalogConfig, NotConfigured> {
        let Some(file) = &self.file else { return Ok(CatalogConfig::default()) };
        let mut reader = EnvReader::new(&self.env);
        let value = match read_json(file) {
            Ok(None) => return Ok(CatalogConfig::default()),
            Ok(value) => value,
            Err(error) => {
                reader.add_error(
                    CONFIG_FILE,
                    Some(file.display().to_string()),
                    &format!("a readable JSON file ({error})"),
                );
                None
            }
        };
        let document = value.as_ref().and_then(|value| parse(CONFIG_FILE, value, &mut reader));
        let key_policy =
            document.as_ref().map(|document| key_policy_from_env(&mut reader).with_catalog(document));
        let routes = document.zip(key_policy.clone()).and_then(|(document, key_policy)| {
            build_routes(CONFIG_FILE, &document, &key_policy, &mut reader)
        });
        let validated = value.zip(routes).map(|(document, routes)| ValidatedConfig { document, routes });
        let validated = reader.finish(validated).map_err(NotConfigured)?;
        Ok(CatalogConfig { config: Some(validated), key_policy: CatalogKeyPolicy(key_policy) })
    }

    /// Reads the catalog's configuration, or the environment's if the catalog has none, and the catalog's key
    /// policy.
    ///
    /// # Errors
    /// The catalog's file is invalid, or there is none and the environment does not name a usable model.
    pub fn load(&self) -> Result<(ValidatedConfig, CatalogKeyPolicy), NotConfigured> {
        let CatalogConfig { config: checked, key_policy: trust } = self.load_catalog()?;
        Ok((checked.map_or_else(|| self.load_env(), Ok)?, trust))
    }

    /// Validates a caller's configuration, which may send keys only where the environment and the catalog allow
    /// it.
    ///
    /// # Errors
    /// The configuration is invalid, or would send a key elsewhere.
    pub fn validate(
        &self,
        document: Value,
        catalog: &CatalogKeyPolicy,
    ) -> Result<ValidatedConfig, NotConfigured> {
        const ROOT: &str = "config";
        let mut reader = EnvReader::new(&self.env);
        let trust = catalog.0.clone().unwrap_or_else(|| key_policy_from_env(&mut reader));
        let parsed = parse(ROOT, &document, &mut reader);
        let routes = parsed.and_then(|parsed| build_routes(ROOT, &parsed, &trust, &mut reader));
        let routes = reader.finish(routes).map_err(NotConfigured)?;
        Ok(ValidatedConfig { document, routes })
    }
}

/// Reads the JSON in `file`; `None` if the file does not exist.
fn read_json(file: &Path) -> std::io::Result<Option<Value>> {
    let mut bytes = Vec::new();
    match resources::files::open_regular_file(file) {
        Ok(file) => file.take(MAX_CONFIG_FILE_BYTES + 1).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_CONFIG_FILE_BYTES) {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Builds the routes that `env` describes: one model without fallbacks.
///
/// # Errors
/// Why no model can be used.
pub fn routes_from_env(env: &dyn Env) -> Result<Routes, NotConfigured> {
    config_from_env(env).map(|validated| validated.routes)
}

fn config_from_env(env: &dyn Env) -> Result<ValidatedConfig, NotConfigured> {
    let mut reader = EnvReader::new(env);
    let entry = provider_from_env(&mut reader).and_then(|provider| model_from_env(&mut reader, provider));
    let routes = entry.as_ref().and_then(|entry| {
        let key_policy = KeyPolicy {
            owner: Some(entry.provider),
            base_url: entry.base_url.clone(),
            ..KeyPolicy::default()
        };
        let models = BTreeMap::from([(entry.model.clone(), entry.clone())]);
        let document = GatewayFile {
            models,
            default: entry.model.clone(),
            planner: None,
            titles: None,
            fallbacks: Vec::new(),
            retry: RetryPolicy::default(),
            budgets: Budgets::default(),
            caps: UsageLimits::default(),
        };
        build_routes("", &document, &key_policy, &mut reader)
    });
    let (routes, entry) = reader.finish(routes.zip(entry)).map_err(NotConfigured)?;
    Ok(ValidatedConfig { document: document_from_model(&entry), routes })
}

/// Reads the environment's model.
fn model_from_env(reader: &mut EnvReader<'_>, provider: Provider) -> Option<ModelConfig> {
    let non_empty = |text: &str| Some(text.to_owned());
    let model = match (reader.text("LLM_MODEL"), provider.default_model()) {
        (None, Some(default)) => Some(default.to_owned()),
        _ => reader.required("LLM_MODEL", "the model's name", non_empty),
    };
    let base = match provider {
        Provider::Scripted => None,
        _ => base_url_from_env(reader, provider.default_base_url().is_none()),
    };
    if provider.requires_key() && reader.text(GENERIC_KEY_VARIABLE).is_none() {
        let key_variable = provider.key_variable().unwrap_or(GENERIC_KEY_VARIABLE);
        reader.required_secret(key_variable, "the provider's key, unless LLM_API_KEY is set", non_empty)?;
    }
    let model = model?;
    let limits = provider.limits(&model);
    Some(ModelConfig {
        provider,
        base_url: base,
        key: KeySource::Default,
        api: OpenAiApi::Chat,
        context_window: limits.context_window,
        max_output: limits.max_output,
        thinking: provider.thinking(&model),
        takes_audio: provider.takes_audio(&model),
        prices: None,
        model,
    })
}

/// Reads `LLM_BASE_URL`.
fn base_url_from_env(reader: &mut EnvReader<'_>, required: bool) -> Option<BaseUrl> {
    match reader.text("LLM_BASE_URL") {
        None if !required => None,
        // The value is not shown: it may contain a password or a key.
        Some(text) if text.contains(['@', '?', '#']) && BaseUrl::parse(&text).is_none() => {
            reader.add_error("LLM_BASE_URL", Some("***".into()), BaseUrl::EXPECTED);
            None
        }
        _ => reader.required("LLM_BASE_URL", BaseUrl::EXPECTED, BaseUrl::parse),
    }
}

/// The environment's model in the form of `gateway.json`.
fn document_from_model(entry: &ModelConfig) -> Value {
    let mut model = json!({
        "provider": entry.provider.name(),
        "model": entry.model,
        "context_window": entry.context_window,
        "max_output": entry.max_output,
    });
    if let Some(base) = &entry.base_url {
        super::http::insert(&mut model, "base_url", Value::from(base.as_str()));
    }
    if entry.provider != Provider::Scripted {
        super::http::insert(&mut model, "thinking", thinking_to_json(entry.thinking));
    }
    let name = entry.model.as_str();
    let retry = RetryPolicy::default();
    json!({
        "models": {name: model},
        "default": name,
        "fallbacks": [],
        "retry": {"max_attempts": retry.max_attempts, "max_seconds": retry.max_elapsed.as_secs()},
        "budgets": {},
    })
}

/// Where the environment allows its keys to be sent.
fn key_policy_from_env(reader: &mut EnvReader<'_>) -> KeyPolicy {
    let named = reader.text("LLM_PROVIDER").map(|name| Provider::from_name(&name));
    let only = || match *vendors_with_key(reader) {
        [only] => Some(only),
        _ => None,
    };
    let owner = named.unwrap_or_else(only);
    let base = base_url_from_env(reader, false);
    KeyPolicy { owner, base_url: base, ..KeyPolicy::default() }
}

/// The vendors whose keys are set.
fn vendors_with_key(reader: &EnvReader<'_>) -> Box<[Provider]> {
    let set =
        |vendor: &Provider| vendor.key_variable().is_some_and(|variable| reader.text(variable).is_some());
    Provider::vendors().filter(set).collect()
}

/// `LLM_PROVIDER`, or else the only provider whose key is set.
fn provider_from_env(reader: &mut EnvReader<'_>) -> Option<Provider> {
    if reader.text("LLM_PROVIDER").is_some() {
        return reader.required("LLM_PROVIDER", &Provider::names(), Provider::from_name);
    }
    let must_be = match *vendors_with_key(reader) {
        [only] => return Some(only),
        [] => Provider::names(),
        ref several => {
            let keys: Vec<&str> = several.iter().filter_map(|vendor| vendor.key_variable()).collect();
            format!("{}, because {} are set", Provider::names(), keys.join(" and "))
        }
    };
    reader.add_error("LLM_PROVIDER", None, &must_be);
    None
}

#[cfg(test)]
#[path = "../tests/unit/config.rs"]
mod tests;
