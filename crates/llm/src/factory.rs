//! Builds the models of a validated configuration, each with the key that its server may be sent.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use http_service::env::EnvReader;
use secrecy::SecretString;

use super::anthropic::Anthropic;
use super::base_url::BaseUrl;
use super::gateway_file::{GatewayFile, KeySource, ModelConfig, OpenAiApi};
use super::gemini::Gemini;
use super::key_policy::{GENERIC_KEY_VARIABLE, KeyPolicy};
use super::ollama::Ollama;
use super::openai::OpenAi;
use super::profile::ModelProfile;
use super::provider::Provider;
use super::responses::OpenAiResponses;
use super::scripted::{Script, ScriptedModel};
use super::{ChatModel, Route, Routes, price_list};

/// The variable that names the script of the offline provider.
const SCRIPT_PATH_VARIABLE: &str = "LLM_SCRIPT_PATH";

/// Builds the models of `document`; `None` if an error was reported. `root` prefixes the path of each error.
pub(super) fn build_routes(
    root: &str,
    document: &GatewayFile,
    key_policy: &KeyPolicy,
    reader: &mut EnvReader<'_>,
) -> Option<Routes> {
    let mut named = BTreeMap::new();
    for (name, entry) in &document.models {
        let path = if root.is_empty() { format!("models.{name}") } else { format!("{root}.models.{name}") };
        if let Some(route) = build_route(&path, name, entry, key_policy, reader) {
            named.insert(name.as_str(), Arc::new(route));
        }
    }
    let find = |name: &String| named.get(name.as_str()).cloned();
    let mut chain = vec![find(&document.default)?];
    for fallback in document.fallbacks.iter().filter_map(find) {
        if chain.iter().all(|route| route.name != fallback.name) {
            chain.push(fallback);
        }
    }
    Some(Routes {
        chain,
        planner: document.planner.as_ref().and_then(find),
        titles: document.titles.as_ref().and_then(find),
        named: named.into_values().collect(),
        retry: document.retry,
        budgets: document.budgets,
        caps: document.caps,
    })
}

fn build_route(
    path: &str,
    name: &str,
    entry: &ModelConfig,
    key_policy: &KeyPolicy,
    reader: &mut EnvReader<'_>,
) -> Option<Route> {
    let ModelConfig { context_window, max_output, mut prices, .. } = *entry;
    let model = if entry.provider == Provider::Scripted {
        build_scripted_model(&entry.model, reader)?
    } else {
        let address = resolve_base_url(entry, key_policy)?;
        // What another server charges for a model of this name is unknown.
        if is_vendors_own(entry.provider, &address) {
            prices = prices.or_else(|| price_list::find(entry.provider, &entry.model));
        }
        build_remote_model(entry, &address, resolve_key(path, entry, &address, key_policy, reader).ok()?)
    };
    let provider = entry.provider.name_in_traces();
    Some(Route { name: name.to_owned(), model, provider, context_window, max_output, prices })
}

/// Whether a server is the vendor's own.
fn is_vendors_own(provider: Provider, address: &BaseUrl) -> bool {
    provider.own_servers().filter_map(BaseUrl::parse).any(|own| own == *address)
}

/// The address of a model's server; `None` if neither the configuration, the environment nor the provider defines
/// one.
fn resolve_base_url(entry: &ModelConfig, key_policy: &KeyPolicy) -> Option<BaseUrl> {
    let configured = || {
        key_policy.base_url.clone().filter(|_| key_policy.owner.is_none_or(|owner| owner == entry.provider))
    };
    let default = || entry.provider.default_base_url().and_then(BaseUrl::parse);
    entry.base_url.clone().or_else(configured).or_else(default)
}

/// Marker: an error was reported to the reader.
struct FaultReported;

/// The key to send to `address`, if any.
fn resolve_key(
    path: &str,
    entry: &ModelConfig,
    address: &BaseUrl,
    key_policy: &KeyPolicy,
    reader: &mut EnvReader<'_>,
) -> Result<Option<SecretString>, FaultReported> {
    let Some(variable) = key_variable(entry, address, key_policy, reader) else { return Ok(None) };
    if !key_policy.allows(&variable, address) {
        let must_be = format!(
            "an address that the key in {variable} may be sent to (the vendor's own, LLM_BASE_URL, or a \
             `base_url` in the catalog's gateway.json), or `api_key_env` must be another key or `none`"
        );
        reader.add_error(&format!("{path}.base_url"), Some(address.to_string()), &must_be);
        return Err(FaultReported);
    }
    let must_be = format!("the key for {path} at {address}");
    let key = reader.required_secret(&variable, &must_be, |key| Some(SecretString::from(key)));
    key.map(Some).ok_or(FaultReported)
}

/// The variable whose key is to be sent to `address`, set or not; `None` if no key is to be sent.
fn key_variable(
    entry: &ModelConfig,
    address: &BaseUrl,
    key_policy: &KeyPolicy,
    reader: &EnvReader<'_>,
) -> Option<String> {
    match &entry.key {
        KeySource::None => None,
        KeySource::Variable(variable) => Some(variable.clone()),
        KeySource::Default => {
            let provider_variable = entry.provider.key_variable();
            let is_usable = |name: &&str| {
                key_policy.is_default_key_for(name, entry.provider) && reader.text(name).is_some()
            };
            let set = provider_variable.into_iter().chain([GENERIC_KEY_VARIABLE]).find(is_usable);
            let variable = set
                .or_else(|| provider_variable.filter(|_| key_policy.requires_key(entry.provider, address)));
            variable.map(str::to_owned)
        }
    }
}

fn build_remote_model(
    entry: &ModelConfig,
    address: &BaseUrl,
    key: Option<SecretString>,
) -> Arc<dyn ChatModel> {
    let ModelConfig { context_window, max_output, thinking, takes_audio, .. } = *entry;
    let model = entry.model.clone();
    let profile = ModelProfile { model, context_window, max_output, thinking, takes_audio };
    let base = address.as_str();
    match (entry.provider, entry.api) {
        (Provider::Anthropic, _) => Arc::new(Anthropic::new(base, profile, key)),
        (Provider::Gemini, _) => Arc::new(Gemini::new(base, profile, key)),
        (Provider::Ollama, _) => Arc::new(Ollama::new(base, profile, key)),
        (Provider::OpenAi, OpenAiApi::Responses) => Arc::new(OpenAiResponses::new(base, profile, key)),
        (Provider::OpenAiCompatible, _) => {
            // Servers without keys accept any, and some require one to be present.
            let key = key.unwrap_or_else(|| SecretString::from("none"));
            Arc::new(OpenAi::compatible(base, profile, Some(key)))
        }
        (Provider::OpenAi | Provider::Scripted, _) => Arc::new(OpenAi::new(base, profile, key)),
    }
}

fn build_scripted_model(name: &str, reader: &mut EnvReader<'_>) -> Option<Arc<dyn ChatModel>> {
    let path = reader.text(SCRIPT_PATH_VARIABLE);
    let script = match &path {
        Some(path) => Script::load(Path::new(path)),
        None => Script::built_in(),
    };
    match script {
        Ok(script) => Some(Arc::new(ScriptedModel::new(name.to_owned(), script))),
        Err(error) => {
            reader.add_error(SCRIPT_PATH_VARIABLE, path, &format!("a valid script ({error})"));
            None
        }
    }
}
