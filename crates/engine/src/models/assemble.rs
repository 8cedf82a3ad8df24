//! Makes the models that a checked configuration names, each with the key that it may be sent.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use secrecy::SecretString;
use service::env::Reader;

use super::address::Address;
use super::anthropic::Anthropic;
use super::document::{Api, Document, Entry, Key};
use super::gemini::Gemini;
use super::keys::{ANY_KEY, Trust};
use super::ollama::Ollama;
use super::openai::OpenAi;
use super::profile::Profile;
use super::provider::Provider;
use super::responses::Responses;
use super::scripted::{Script, Scripted};
use super::{ChatModel, Route, Routes};

/// The variable that names the script of the offline provider.
const SCRIPT: &str = "LLM_SCRIPT_PATH";

/// The models of `document`; none if a fault was met. `root` stands before the path of each fault.
pub(super) fn assemble(
    root: &str,
    document: &Document,
    trust: &Trust,
    reader: &mut Reader<'_>,
) -> Option<Routes> {
    let mut named = BTreeMap::new();
    for (name, entry) in &document.models {
        let path = if root.is_empty() { format!("models.{name}") } else { format!("{root}.models.{name}") };
        if let Some(route) = route(&path, name, entry, trust, reader) {
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
        named: named.into_values().collect(),
        retry: document.retry,
        budgets: document.budgets,
    })
}

fn route(path: &str, name: &str, entry: &Entry, trust: &Trust, reader: &mut Reader<'_>) -> Option<Route> {
    let model = if entry.provider == Provider::Scripted {
        scripted(&entry.model, reader)?
    } else {
        let address = address(entry, trust)?;
        remote(entry, &address, key(path, entry, &address, trust, reader).ok()?)
    };
    let Entry { context_window, max_output, prices, .. } = *entry;
    Some(Route { name: name.to_owned(), model, context_window, max_output, prices })
}

/// Where the model is; none where nobody says.
fn address(entry: &Entry, trust: &Trust) -> Option<Address> {
    let stand_in = || trust.base.clone().filter(|_| trust.owner.is_none_or(|owner| owner == entry.provider));
    let own = || entry.provider.default_base().and_then(Address::parse);
    entry.base.clone().or_else(stand_in).or_else(own)
}

/// A fault was met, and the reader has it.
struct Faulty;

/// The key to send to `address`, where there is one.
fn key(
    path: &str,
    entry: &Entry,
    address: &Address,
    trust: &Trust,
    reader: &mut Reader<'_>,
) -> Result<Option<SecretString>, Faulty> {
    let Some(variable) = key_variable(entry, address, trust, reader) else { return Ok(None) };
    if !trust.allows(&variable, address) {
        let must_be = format!(
            "an address that the key in {variable} may be sent to (the vendor's own, LLM_BASE_URL, or a \
             `base_url` in the catalog's gateway.json), or `api_key_env` must be another key or `none`"
        );
        reader.fault(&format!("{path}.base_url"), Some(address.to_string()), &must_be);
        return Err(Faulty);
    }
    let must_be = format!("the key of {path} at {address}");
    let key = reader.required_secret(&variable, &must_be, |key| Some(SecretString::from(key)));
    key.map(Some).ok_or(Faulty)
}

/// The variable whose key is to be sent to `address`, set or not; none where no key is.
fn key_variable(entry: &Entry, address: &Address, trust: &Trust, reader: &Reader<'_>) -> Option<String> {
    match &entry.key {
        Key::None => None,
        Key::In(variable) => Some(variable.clone()),
        Key::Usual => {
            let own = entry.provider.key_variable();
            let usual = |name: &&str| trust.is_usual_for(name, entry.provider) && reader.text(name).is_some();
            let set = own.into_iter().chain([ANY_KEY]).find(usual);
            let variable = set.or_else(|| own.filter(|_| trust.must_have_key(entry.provider, address)));
            variable.map(str::to_owned)
        }
    }
}

fn remote(entry: &Entry, address: &Address, key: Option<SecretString>) -> Arc<dyn ChatModel> {
    let Entry { context_window, max_output, thinking, .. } = *entry;
    let profile = Profile { model: entry.model.clone(), context_window, max_output, thinking };
    let base = address.as_str();
    match (entry.provider, entry.api) {
        (Provider::Anthropic, _) => Arc::new(Anthropic::new(base, profile, key)),
        (Provider::Gemini, _) => Arc::new(Gemini::new(base, profile, key)),
        (Provider::Ollama, _) => Arc::new(Ollama::new(base, profile, key)),
        (Provider::OpenAi, Api::Responses) => Arc::new(Responses::new(base, profile, key)),
        (Provider::OpenAiCompatible, _) => {
            // Servers without keys take any, and some want one to be there.
            let key = key.unwrap_or_else(|| SecretString::from("none"));
            Arc::new(OpenAi::compatible(base, profile, Some(key)))
        }
        (Provider::OpenAi | Provider::Scripted, _) => Arc::new(OpenAi::new(base, profile, key)),
    }
}

fn scripted(name: &str, reader: &mut Reader<'_>) -> Option<Arc<dyn ChatModel>> {
    let path = reader.text(SCRIPT);
    let script = match &path {
        Some(path) => Script::load(Path::new(path)),
        None => Script::built_in(),
    };
    match script {
        Ok(script) => Some(Arc::new(Scripted::new(name.to_owned(), script))),
        Err(error) => {
            reader.fault(SCRIPT, path, &format!("a script of rules, but {error}"));
            None
        }
    }
}
