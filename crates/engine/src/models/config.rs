//! The configuration of the gateway: what the environment, the catalog's `gateway.json` and a caller say, checked.
//!
//! A configuration that cannot work does not stop an engine: it starts, says what to set, and its turns end in
//! an error that says the same. So what is wrong here is a reason, not a fault.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use service::env::{Env, Faults, Reader};

use super::address::Address;
use super::assemble::assemble;
use super::document::{Api, Document, Entry, Key, parse, thinking_form};
use super::keys::{ANY_KEY, Trust, is_key_name};
use super::provider::Provider;
use super::{Budgets, ModelError, ModelErrorKind, RetryPolicy, Routes};

/// The catalog's configuration.
const FILE: &str = "gateway.json";
/// The most bytes of it that are read.
const MAX_FILE: u64 = 1024 * 1024;

/// Why no model can be used, and what to set: all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NotConfigured(Faults);

impl NotConfigured {
    /// Each fault.
    pub const fn faults(&self) -> &Faults {
        &self.0
    }

    /// The faults of both.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let none = BTreeMap::new();
        let mut reader = Reader::new(&none);
        reader.extend(&self.0);
        reader.extend(&other.0);
        Self(reader.finish(None::<()>).err().unwrap_or_else(|| self.0.clone()))
    }
}

impl fmt::Display for NotConfigured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&faults.join("; "))
    }
}

impl From<NotConfigured> for ModelError {
    fn from(reason: NotConfigured) -> Self {
        Self::new(ModelErrorKind::NotConfigured, reason.to_string())
    }
}

/// A configuration that works.
pub struct Checked {
    /// As `gateway.json` would say it. Holds no key.
    pub document: Value,
    /// The models.
    pub routes: Routes,
}

/// The catalog's `gateway.json`.
#[derive(Default)]
pub struct Catalog {
    /// What it says, where there is one.
    pub checked: Option<Checked>,
    /// Where it lets keys go. Empty where there is none.
    pub trust: CatalogTrust,
}

/// Where the catalog lets keys of the environment go.
#[derive(Clone, Debug, Default)]
pub struct CatalogTrust(Option<Trust>);

/// Where configurations come from.
pub struct Sources {
    // Holds keys, so it cannot be printed.
    env: BTreeMap<String, String>,
    file: Option<PathBuf>,
}

impl Sources {
    /// What the gateway needs of `env`, and the `gateway.json` in the folder `catalog`.
    pub fn new(env: &dyn Env, catalog: Option<&Path>) -> Self {
        let needed = |name: &String| name.starts_with("LLM_") || is_key_name(name);
        let value = |name: String| Some((name.clone(), env.get(&name)?));
        let env = env.names().into_iter().filter(needed).filter_map(value).collect();
        Self { env, file: catalog.map(|catalog| catalog.join(FILE)) }
    }

    /// What the environment says.
    ///
    /// # Errors
    /// It names no model that can be used.
    pub fn environment(&self) -> Result<Checked, NotConfigured> {
        environment(&self.env)
    }

    /// What the catalog says. Reads a file.
    ///
    /// # Errors
    /// Its file cannot be read, or is faulty.
    pub fn catalog(&self) -> Result<Catalog, NotConfigured> {
        let Some(file) = &self.file else { return Ok(Catalog::default()) };
        let mut reader = Reader::new(&self.env);
        let value = match read(file) {
            Ok(None) => return Ok(Catalog::default()),
            Ok(value) => value,
            Err(error) => {
                reader.fault(FILE, Some(file.display().to_string()), &format!("a file of JSON, but {error}"));
                None
            }
        };
        let document = value.as_ref().and_then(|value| parse(FILE, value, &mut reader));
        let trust = document.as_ref().map(|document| owned(&mut reader).with_catalog(document));
        let routes = document
            .zip(trust.clone())
            .and_then(|(document, trust)| assemble(FILE, &document, &trust, &mut reader));
        let checked = value.zip(routes).map(|(document, routes)| Checked { document, routes });
        let checked = reader.finish(checked).map_err(NotConfigured)?;
        Ok(Catalog { checked: Some(checked), trust: CatalogTrust(trust) })
    }

    /// What the catalog says, else what the environment says; with where the catalog lets keys go. Reads a file.
    ///
    /// # Errors
    /// The catalog's file is faulty, or there is none and the environment names no model that can be used.
    pub fn first(&self) -> Result<(Checked, CatalogTrust), NotConfigured> {
        let Catalog { checked, trust } = self.catalog()?;
        Ok((checked.map_or_else(|| self.environment(), Ok)?, trust))
    }

    /// What a caller says, who may send keys only where the environment and the catalog let them go.
    ///
    /// # Errors
    /// It is faulty, or would send a key elsewhere.
    pub fn given(&self, document: Value, catalog: &CatalogTrust) -> Result<Checked, NotConfigured> {
        const ROOT: &str = "config";
        let mut reader = Reader::new(&self.env);
        let trust = catalog.0.clone().unwrap_or_else(|| owned(&mut reader));
        let parsed = parse(ROOT, &document, &mut reader);
        let routes = parsed.and_then(|parsed| assemble(ROOT, &parsed, &trust, &mut reader));
        let routes = reader.finish(routes).map_err(NotConfigured)?;
        Ok(Checked { document, routes })
    }
}

/// The JSON in `file`; none where there is no such file.
fn read(file: &Path) -> std::io::Result<Option<Value>> {
    let mut bytes = Vec::new();
    match crate::catalog::open(file) {
        Ok(file) => file.take(MAX_FILE + 1).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_FILE) {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// The models that `env` names, and nothing that stands in for them.
///
/// # Errors
/// Why none can be used.
pub fn routes(env: &dyn Env) -> Result<Routes, NotConfigured> {
    environment(env).map(|checked| checked.routes)
}

fn environment(env: &dyn Env) -> Result<Checked, NotConfigured> {
    let mut reader = Reader::new(env);
    let entry = provider(&mut reader).and_then(|provider| entry(&mut reader, provider));
    let routes = entry.as_ref().and_then(|entry| {
        let trust = Trust { owner: Some(entry.provider), base: entry.base.clone(), ..Trust::default() };
        let models = BTreeMap::from([(entry.model.clone(), entry.clone())]);
        let document = Document {
            models,
            default: entry.model.clone(),
            planner: None,
            fallbacks: Vec::new(),
            retry: RetryPolicy::default(),
            budgets: Budgets::default(),
        };
        assemble("", &document, &trust, &mut reader)
    });
    let (routes, entry) = reader.finish(routes.zip(entry)).map_err(NotConfigured)?;
    Ok(Checked { document: document_of(&entry), routes })
}

/// The environment's model.
fn entry(reader: &mut Reader<'_>, provider: Provider) -> Option<Entry> {
    let filled = |text: &str| Some(text.to_owned());
    let model = match (reader.text("LLM_MODEL"), provider.default_model()) {
        (None, Some(default)) => Some(default.to_owned()),
        _ => reader.required("LLM_MODEL", "the model's name", filled),
    };
    let base = match provider {
        Provider::Scripted => None,
        _ => base(reader, provider.default_base().is_none()),
    };
    if provider.wants_key() && reader.text(ANY_KEY).is_none() {
        let own = provider.key_variable().unwrap_or(ANY_KEY);
        reader.required_secret(own, "the provider's key (or LLM_API_KEY is)", filled)?;
    }
    let model = model?;
    let limits = provider.limits(&model);
    Some(Entry {
        provider,
        base,
        key: Key::Usual,
        api: Api::Chat,
        context_window: limits.context_window,
        max_output: limits.max_output,
        thinking: provider.thinking(&model),
        prices: None,
        model,
    })
}

/// `LLM_BASE_URL`.
fn base(reader: &mut Reader<'_>, required: bool) -> Option<Address> {
    match reader.text("LLM_BASE_URL") {
        None if !required => None,
        // What it holds instead may have a password or a key in it.
        Some(text) if text.contains(['@', '?', '#']) && Address::parse(&text).is_none() => {
            reader.fault("LLM_BASE_URL", Some("***".into()), Address::MUST_BE);
            None
        }
        _ => reader.required("LLM_BASE_URL", Address::MUST_BE, Address::parse),
    }
}

/// The environment's model as `gateway.json` would say it.
fn document_of(entry: &Entry) -> Value {
    let mut model = json!({
        "provider": entry.provider.name(),
        "model": entry.model,
        "context_window": entry.context_window,
        "max_output": entry.max_output,
    });
    if let Some(base) = &entry.base {
        super::http::insert(&mut model, "base_url", Value::from(base.as_str()));
    }
    if entry.provider != Provider::Scripted {
        super::http::insert(&mut model, "thinking", thinking_form(entry.thinking));
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

/// Where the environment lets its keys go.
fn owned(reader: &mut Reader<'_>) -> Trust {
    let named = reader.text("LLM_PROVIDER").map(|name| Provider::from_name(&name));
    let only = || match *with_key(reader) {
        [only] => Some(only),
        _ => None,
    };
    let owner = named.unwrap_or_else(only);
    let base = base(reader, false);
    Trust { owner, base, ..Trust::default() }
}

/// The vendors whose keys are set.
fn with_key(reader: &Reader<'_>) -> Box<[Provider]> {
    let set =
        |vendor: &Provider| vendor.key_variable().is_some_and(|variable| reader.text(variable).is_some());
    Provider::VENDORS.into_iter().filter(set).collect()
}

/// `LLM_PROVIDER`, or the one provider whose key is set.
fn provider(reader: &mut Reader<'_>) -> Option<Provider> {
    if reader.text("LLM_PROVIDER").is_some() {
        return reader.required("LLM_PROVIDER", Provider::NAMES, Provider::from_name);
    }
    let must_be = match *with_key(reader) {
        [only] => return Some(only),
        [] => Provider::NAMES.to_owned(),
        ref several => {
            let keys: Vec<&str> = several.iter().filter_map(|vendor| vendor.key_variable()).collect();
            format!("{}, since {} are set", Provider::NAMES, keys.join(" and "))
        }
    };
    reader.fault("LLM_PROVIDER", None, &must_be);
    None
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
