//! `web-search.json`: the search providers that `web_search` asks, in the order of the file.
//!
//! A provider's parameters may contain placeholders, which a search replaces: `{query}`, `{count}`, `{freshness}` and
//! `{site}`. What the model writes is never part of the path or of a header.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use fetch::{Target, TargetError};
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::environment::{Environment, expand_variables};
use super::tools::http_call;
use super::{HttpCall, is_absent, read_text, redacted_json_error};

/// The maximum size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// The maximum number of providers.
const MAX_PROVIDERS: usize = 4;
/// The maximum number of parameters of a provider, and how deep their values may be nested.
const MAX_PARAMETERS: (usize, usize) = (64, 8);
/// The maximum length of a JSON pointer, in bytes.
const MAX_POINTER_BYTES: usize = 256;
/// The address of Brave's search.
const BRAVE_URL: &str = "https://api.search.brave.com/res/v1/web/search";
/// The address of Tavily's search.
const TAVILY_URL: &str = "https://api.tavily.com/search";

/// A search provider.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchProvider {
    /// The form of its requests and answers.
    pub api: SearchApi,
    /// Its method, address and headers.
    pub call: HttpCall,
    /// Whether the operator wrote the address, rather than this program. Then it may be a private one.
    pub is_own_address: bool,
    /// The parameters that every search sends.
    pub parameters: SearchParameters,
}

/// The form of a provider's requests and answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SearchApi {
    /// Brave Search.
    Brave,
    /// Tavily.
    Tavily,
    /// `SearXNG`, with its JSON format switched on.
    SearXng,
    /// Any other: the parameters are all that it is sent, and these pointers lead to its results.
    Http(ResultPointers),
}

impl SearchApi {
    /// The name, as `provider` has it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Brave => "brave",
            Self::Tavily => "tavily",
            Self::SearXng => "searxng",
            Self::Http(_) => "http",
        }
    }
}

/// Where an answer has what: JSON pointers (RFC 6901).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultPointers {
    /// The list of results, from the top of the answer.
    pub results: String,
    /// The title, from the top of a result. So are the others.
    pub title: String,
    /// The address.
    pub url: String,
    /// The text.
    #[serde(default)]
    pub snippet: Option<String>,
    /// The date.
    #[serde(default)]
    pub date: Option<String>,
}

/// The parameters of a provider, which may hold keys.
#[derive(Clone, Default, PartialEq)]
pub struct SearchParameters(pub Map<String, Value>);

/// Prints nothing of them.
impl fmt::Debug for SearchParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("parameters…")
    }
}

impl SearchParameters {
    /// Whether a value contains the placeholder.
    pub fn contains(&self, placeholder: &str) -> bool {
        self.0.values().any(|value| contains(value, placeholder))
    }
}

impl SearchProvider {
    /// Whether a search can be restricted to recent pages.
    pub fn knows_freshness(&self) -> bool {
        !matches!(self.api, SearchApi::Http(_)) || self.parameters.contains("{freshness}")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchFile {
    providers: Vec<ProviderEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderEntry {
    provider: String,
    url: Option<String>,
    key: Option<String>,
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    parameters: Map<String, Value>,
    response: Option<ResultPointers>,
}

/// Loads the providers of the catalog in `catalog`. If the file cannot be read, the previous ones apply.
pub(super) fn load(
    catalog: &Path,
    environment: &Environment,
    before: &[Arc<SearchProvider>],
    warnings: &mut Vec<String>,
) -> Vec<Arc<SearchProvider>> {
    let file = catalog.join("web-search.json");
    if is_absent(&file) {
        return Vec::new();
    }
    let parsed = read_text(&file, MAX_FILE_BYTES).and_then(|text| parse(&text, environment));
    match parsed {
        Ok(providers) => providers.into_iter().map(Arc::new).collect(),
        Err(reason) => {
            let outcome = if before.is_empty() {
                "there is no `web_search` until this is fixed"
            } else {
                "its last good version stays in use"
            };
            warnings.push(format!("web-search.json: {reason}; {outcome}"));
            before.to_vec()
        }
    }
}

fn parse(text: &str, environment: &Environment) -> Result<Vec<SearchProvider>, String> {
    // The text may hold secrets, and a message of serde may quote them: only the position is reported.
    let written: SearchFile = serde_json::from_str(text).map_err(|error| redacted_json_error(&error))?;
    let number = written.providers.len();
    if !(1..=MAX_PROVIDERS).contains(&number) {
        return Err(format!("`providers` has {number} entries; it must have 1 to {MAX_PROVIDERS}"));
    }
    let entries = written.providers.into_iter().zip(1..);
    entries
        .map(|(entry, n)| {
            let provider = entry.provider.clone();
            parse_provider(entry, environment)
                .map_err(|reason| format!("provider {n} (`{provider}`): {reason}"))
        })
        .collect()
}

fn parse_provider(entry: ProviderEntry, environment: &Environment) -> Result<SearchProvider, String> {
    let ProviderEntry { provider, url, key, method, headers, parameters, response } = entry;
    let key = key.map(|key| expand_key(&key, environment)).transpose()?;
    let is_own_address = url.is_some();
    let parameters = expand_parameters(parameters, environment)?;
    if provider != "http" && (method.is_some() || response.is_some()) {
        return Err("`method` and `response` are for the provider `http`".into());
    }
    let call = |method: &str, default: Option<&str>| {
        let url = url.as_deref().or(default).ok_or("`url` is missing: it must be the provider's address")?;
        http_call(method, url, &headers, environment)
    };
    let needs_key = || key.clone().ok_or("`key` is missing: name a variable, such as `${NAME_API_KEY}`");
    let (api, call) = match provider.as_str() {
        "brave" => {
            let header = HeaderName::from_static("x-subscription-token");
            (SearchApi::Brave, with_key(call("GET", Some(BRAVE_URL))?, header, &needs_key()?)?)
        }
        "tavily" => {
            let key = format!("Bearer {}", needs_key()?);
            (SearchApi::Tavily, with_key(call("POST", Some(TAVILY_URL))?, AUTHORIZATION, &key)?)
        }
        "searxng" if key.is_none() => (SearchApi::SearXng, with_search_path(call("GET", None)?)?),
        "http" if key.is_none() => {
            let pointers = response.ok_or("`response` is missing: it must say where the results are")?;
            let call = call(method.as_deref().unwrap_or("GET"), None)?;
            check_http(&call, &pointers, &parameters)?;
            (SearchApi::Http(pointers), call)
        }
        "searxng" | "http" => return Err("`key` is for `brave` and `tavily`: put it into `headers`".into()),
        _ => return Err("`provider` must be `brave`, `tavily`, `searxng` or `http`".into()),
    };
    if call.url.fragment().is_some() {
        return Err("`url` must have no fragment".into());
    }
    let mut server = call.url.clone();
    server.set_query(None);
    // Not shown: it may hold a key.
    Target::parse(server.as_str()).map_err(|error| match error {
        TargetError::Port(port) => format!("`url`: the port {port} is not one of a web server"),
        TargetError::TooLong => "`url` is too long".to_owned(),
        _ => "`url` cannot be called".to_owned(),
    })?;
    Ok(SearchProvider { api, call, is_own_address, parameters })
}

fn expand_key(key: &str, environment: &Environment) -> Result<String, String> {
    let key = expand_variables(key, environment).map_err(|reason| format!("`key`: {reason}"))?;
    if key.trim().is_empty() {
        return Err("`key` is empty".into());
    }
    Ok(key)
}

fn with_key(mut call: HttpCall, header: HeaderName, key: &str) -> Result<HttpCall, String> {
    // Not shown: it is a key.
    let mut value: HeaderValue = key.parse().map_err(|_| "`key` cannot be sent in a header")?;
    value.set_sensitive(true);
    call.headers.insert(header, value);
    Ok(call)
}

/// The call to the search of a `SearXNG`, whose own address was given.
fn with_search_path(mut call: HttpCall) -> Result<HttpCall, String> {
    if call.url.query().is_some() {
        return Err("`url` must be that of the instance, without a query: put it into `parameters`".into());
    }
    if !call.url.path().ends_with("/search") {
        let path = format!("{}/search", call.url.path().trim_end_matches('/'));
        call.url.set_path(&path);
    }
    Ok(call)
}

fn check_http(
    call: &HttpCall,
    pointers: &ResultPointers,
    parameters: &SearchParameters,
) -> Result<(), String> {
    if !matches!(call.method.as_str(), "GET" | "POST") {
        return Err("`method` must be GET or POST".into());
    }
    if !parameters.0.values().any(always_has_query) {
        return Err(
            "one of the `parameters` must contain `{query}`, and neither `{site}` nor `{freshness}`: a \
                    parameter whose placeholder has no value is left out"
                .into(),
        );
    }
    if call.sends_query() && parameters.0.values().any(|value| value.is_object() || value.is_array()) {
        return Err("with GET, each of the `parameters` must be a text or a number".into());
    }
    let ResultPointers { results, title, url, snippet, date } = pointers;
    let all = [Some(results), Some(title), Some(url), snippet.as_ref(), date.as_ref()];
    let is_pointer =
        |text: &str| text.len() <= MAX_POINTER_BYTES && (text.is_empty() || text.starts_with('/'));
    match all.into_iter().flatten().find(|text| !is_pointer(text)) {
        Some(text) => Err(format!("`response`: `{text}` is not a JSON pointer: it must begin with `/`")),
        None => Ok(()),
    }
}

/// Replaces references to the environment in texts.
fn expand_parameters(
    parameters: Map<String, Value>,
    environment: &Environment,
) -> Result<SearchParameters, String> {
    let (most, depth) = MAX_PARAMETERS;
    if parameters.len() > most {
        return Err(format!("it has over {most} `parameters`"));
    }
    let expanded = parameters.into_iter().map(|(name, value)| {
        let value = expand_value(value, environment, depth)
            .map_err(|reason| format!("the parameter `{name}`: {reason}"))?;
        Ok((name, value))
    });
    expanded.collect::<Result<_, String>>().map(SearchParameters)
}

fn expand_value(value: Value, environment: &Environment, depth: usize) -> Result<Value, String> {
    let inner = depth.checked_sub(1).ok_or("it is nested too deeply")?;
    Ok(match value {
        Value::String(text) => Value::String(expand_variables(&text, environment)?),
        Value::Array(list) => {
            let list = list.into_iter().map(|value| expand_value(value, environment, inner));
            Value::Array(list.collect::<Result<_, _>>()?)
        }
        Value::Object(fields) => {
            let fields =
                fields.into_iter().map(|(name, value)| Ok((name, expand_value(value, environment, inner)?)));
            Value::Object(fields.collect::<Result<_, String>>()?)
        }
        other => other,
    })
}

fn contains(value: &Value, placeholder: &str) -> bool {
    any_text(value, &|text| text.contains(placeholder))
}

/// Whether a value contains the words that are searched for, whatever else a search sets.
fn always_has_query(value: &Value) -> bool {
    let is_always_sent = |text: &str| !text.contains("{site}") && !text.contains("{freshness}");
    any_text(value, &|text| text.contains("{query}") && is_always_sent(text))
}

fn any_text(value: &Value, is_it: &impl Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => is_it(text),
        Value::Array(list) => list.iter().any(|value| any_text(value, is_it)),
        Value::Object(fields) => fields.values().any(|value| any_text(value, is_it)),
        _ => false,
    }
}

#[cfg(test)]
#[path = "../tests/unit/web_search.rs"]
mod tests;
