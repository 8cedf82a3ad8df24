//! `mcp.json`: the MCP servers that users can connect.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::assets::{AuthKind, TransportKind};
use http_service::env::parse_lifetime;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::environment::{Environment, expand_variables, is_variable_name};
use super::{is_absent, read_text, redacted_json_error, resolve_catalog_path};

/// The maximum size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// The maximum number of servers.
const MAX_SERVERS: usize = 64;
/// The maximum length of a server's name, with which the names of its tools begin, in bytes.
const MAX_NAME_BYTES: usize = 32;
/// The maximum length of a description, in bytes.
const MAX_DESCRIPTION_BYTES: usize = 1_024;
/// The maximum number of arguments, variables, headers, or scopes.
const MAX_LIST_ITEMS: usize = 64;
/// The default and the maximum time limit of a request.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);
const MAX_TIMEOUT: Duration = Duration::from_hours(1);

/// An MCP server of the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct McpServerSpec {
    /// Its name: 1 to 32 of `A-Z`, `a-z`, `0-9`, `_` and `-`, without `__`.
    pub name: String,
    /// Its description; may be empty.
    pub description: String,
    /// Who has named it.
    pub origin: ServerOrigin,
    /// How to communicate with it.
    pub transport: Transport,
    /// How the user authenticates to it.
    pub auth: Auth,
    /// Whether its annotations of tools (read-only, idempotent) are trusted.
    pub trust_annotations: bool,
    /// The time limit of each request.
    pub timeout: Duration,
}

/// Who has named a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerOrigin {
    /// The operator, in the catalog.
    #[default]
    Catalog,
    /// The user, who need not know what is behind its address: it is reached like a web page, and of its
    /// tools only those are used that the user has approved.
    User,
}

/// The transport of a server.
#[derive(Clone, Debug, PartialEq)]
pub enum Transport {
    /// A program that runs in the sandbox.
    Stdio {
        /// The program and its arguments.
        command: Vec<Secret>,
        /// Its environment variables beside those that every program gets.
        env: BTreeMap<String, Secret>,
        /// Whether it may use the network.
        network: bool,
    },
    /// A server at a URL.
    Http {
        /// The URL, `http` or `https`.
        url: Url,
        /// Headers for each request.
        headers: HeaderMap,
    },
}

/// How the user authenticates to a server.
#[derive(Clone, Debug, PartialEq)]
pub enum Auth {
    /// Not at all.
    None,
    /// With an API key.
    ApiKey(ApiKeyLocation),
    /// With consent at an authorization server, for these scopes, or for those that the server asks for if there
    /// are none.
    OAuth {
        /// The scopes.
        scopes: Vec<String>,
        /// The engine's client credentials there, if it was registered manually.
        client: Option<OAuthClientConfig>,
    },
}

/// The engine's client credentials at an authorization server.
#[derive(Clone, Debug, PartialEq)]
pub struct OAuthClientConfig {
    /// The client id.
    pub id: String,
    /// The issuer that registered the client; if `None`, whichever authorization server the MCP server names.
    pub issuer: Option<String>,
    /// The client secret, if one is needed.
    pub secret: Option<Secret>,
}

/// How a server receives the user's API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiKeyLocation {
    /// As a bearer token in `Authorization`.
    Bearer,
    /// In this header.
    Header(HeaderName),
    /// In this environment variable.
    EnvVar(String),
}

/// A text that may hold a secret.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps a text.
    pub fn new(text: String) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl McpServerSpec {
    /// Returns the server that a user has added.
    pub fn of_user(name: String, url: Url, auth: Auth) -> Self {
        Self {
            name,
            description: String::new(),
            origin: ServerOrigin::User,
            transport: Transport::Http { url, headers: HeaderMap::new() },
            auth,
            trust_annotations: false,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Whether a user has added it.
    pub fn is_of_user(&self) -> bool {
        self.origin == ServerOrigin::User
    }

    /// Returns the kind of transport, for listings.
    pub fn transport_kind(&self) -> TransportKind {
        match self.transport {
            Transport::Stdio { .. } => TransportKind::Stdio,
            Transport::Http { .. } => TransportKind::Http,
        }
    }

    /// Returns the kind of authentication, for listings.
    pub fn auth_kind(&self) -> AuthKind {
        match self.auth {
            Auth::None => AuthKind::None,
            Auth::ApiKey(_) => AuthKind::ApiKey,
            Auth::OAuth { .. } => AuthKind::OAuth,
        }
    }
}

#[derive(Deserialize)]
struct McpFile {
    #[serde(rename = "mcpServers", default)]
    servers: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerEntry {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    description: String,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    auth: Option<String>,
    api_key_header: Option<String>,
    api_key_env: Option<String>,
    #[serde(default)]
    scopes: Vec<String>,
    client_id: Option<String>,
    client_secret: Option<String>,
    issuer: Option<String>,
    #[serde(default)]
    trust_annotations: bool,
    network: Option<bool>,
    timeout: Option<Timeout>,
}

/// Seconds, or a text such as `90s` or `5m`.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Timeout {
    Seconds(f64),
    Text(String),
}

/// Loads the catalog's servers; `before` are those of the previous load.
pub(super) fn load(
    file: &Path,
    environment: &Environment,
    before: &[Arc<McpServerSpec>],
    warnings: &mut Vec<String>,
) -> Vec<Arc<McpServerSpec>> {
    if is_absent(file) {
        return Vec::new();
    }
    let parsed = read_text(file, MAX_FILE_BYTES).and_then(|text| {
        serde_json::from_str(&text).map_err(|error: serde_json::Error| redacted_json_error(&error))
    });
    let McpFile { servers: mut written } = match parsed {
        Ok(file) => file,
        Err(reason) => {
            warnings.push(format!("mcp.json: {reason}; the previous version stays in use"));
            return before.to_vec();
        }
    };
    if written.len() > MAX_SERVERS {
        let count = written.len();
        warnings
            .push(format!("mcp.json: there are {count} servers; only the first {MAX_SERVERS} are loaded"));
        written = written.into_iter().take(MAX_SERVERS).collect();
    }
    let mut servers = Vec::new();
    for (name, entry) in written {
        match parse_server(&name, entry, environment, file.parent().unwrap_or(Path::new("."))) {
            Ok(server) => servers.push(Arc::new(server)),
            Err(reason) => {
                let last_good = before.iter().find(|server| server.name == name).cloned();
                let outcome = match last_good {
                    Some(_) => "its last good version stays in use",
                    None => "it is left out",
                };
                warnings.push(format!("mcp.json, {name:?}: {reason}; {outcome}"));
                servers.extend(last_good);
            }
        }
    }
    servers.sort_by(|one, other| one.name.cmp(&other.name));
    servers
}

fn parse_server(
    name: &str,
    entry: Value,
    environment: &Environment,
    catalog: &Path,
) -> Result<McpServerSpec, String> {
    if !is_server_name(name) {
        return Err(format!(
            "its name must be 1 to {MAX_NAME_BYTES} of A-Z, a-z, 0-9, `_` and `-`, without two `_` side by side or one at the end"
        ));
    }
    let mut written: ServerEntry =
        serde_json::from_value(entry).map_err(|error| redacted_json_error(&error))?;
    let parts = [written.args.len(), written.env.len(), written.headers.len(), written.scopes.len()];
    if parts.into_iter().any(|parts| parts > MAX_LIST_ITEMS) {
        return Err(format!("it has over {MAX_LIST_ITEMS} of `args`, `env`, `headers` or `scopes`"));
    }
    let description = written.description.trim().to_owned();
    if description.len() > MAX_DESCRIPTION_BYTES {
        return Err(format!("its `description` must have at most {MAX_DESCRIPTION_BYTES} bytes"));
    }
    let timeout = match written.timeout.take() {
        None => DEFAULT_TIMEOUT,
        Some(timeout) => parse_timeout(timeout).ok_or(
            "its `timeout` must be a time above zero, an hour at most: seconds, or such as `90s`, `5m`",
        )?,
    };
    let (auth, trust_annotations) = (parse_auth(&written, environment)?, written.trust_annotations);
    let transport = parse_transport(written, environment, catalog)?;
    match (&transport, &auth) {
        (Transport::Stdio { .. }, Auth::OAuth { .. }) => {
            return Err("a program cannot have `auth` \"oauth\": give it what it needs in `env`".into());
        }
        (Transport::Stdio { .. }, Auth::ApiKey(ApiKeyLocation::Bearer | ApiKeyLocation::Header(_))) => {
            return Err(
                "with `auth` \"api_key\" a program needs `api_key_env`: the variable that takes the key"
                    .into(),
            );
        }
        (Transport::Http { .. }, Auth::ApiKey(ApiKeyLocation::EnvVar(_))) => {
            return Err("`api_key_env` is for programs: name an `api_key_header`, or none".into());
        }
        _ => {}
    }
    Ok(McpServerSpec {
        name: name.to_owned(),
        description,
        origin: ServerOrigin::Catalog,
        transport,
        auth,
        trust_annotations,
        timeout,
    })
}

fn parse_auth(written: &ServerEntry, environment: &Environment) -> Result<Auth, String> {
    let key_location = match (&written.api_key_header, &written.api_key_env) {
        (None, None) => ApiKeyLocation::Bearer,
        (Some(header), None) => ApiKeyLocation::Header(
            header.parse().map_err(|_| "its `api_key_header` is not a valid header name")?,
        ),
        (None, Some(variable)) if is_variable_name(variable) => ApiKeyLocation::EnvVar(variable.clone()),
        (None, Some(_)) => return Err("its `api_key_env` is not a valid variable name".into()),
        (Some(_), Some(_)) => return Err("it has both an `api_key_header` and an `api_key_env`".into()),
    };
    let has_key_settings = key_location != ApiKeyLocation::Bearer;
    let has_oauth_settings = !written.scopes.is_empty()
        || [&written.client_id, &written.client_secret, &written.issuer].into_iter().any(Option::is_some);
    let auth = match written.auth.as_deref() {
        None | Some("none") => Auth::None,
        Some("api_key") => Auth::ApiKey(key_location),
        Some("oauth") => {
            Auth::OAuth { scopes: written.scopes.clone(), client: parse_client(written, environment)? }
        }
        Some(_) => return Err("its `auth` must be \"none\", \"api_key\" or \"oauth\"".into()),
    };
    if has_key_settings && !matches!(auth, Auth::ApiKey(_)) {
        return Err("`api_key_header` and `api_key_env` need `auth` \"api_key\"".into());
    }
    if has_oauth_settings && !matches!(auth, Auth::OAuth { .. }) {
        return Err("`scopes`, `client_id`, `client_secret` and `issuer` need `auth` \"oauth\"".into());
    }
    Ok(auth)
}

fn parse_client(
    written: &ServerEntry,
    environment: &Environment,
) -> Result<Option<OAuthClientConfig>, String> {
    let Some(id) = &written.client_id else {
        return match written.client_secret {
            Some(_) => Err("its `client_secret` needs a `client_id`".into()),
            None => Ok(None),
        };
    };
    // The MCP server, a third party, names the authorization server: a secret is only sent to the one it was
    // issued by.
    if written.client_secret.is_some() && written.issuer.is_none() {
        return Err("its `client_secret` needs the `issuer` that it may be sent to".into());
    }
    let secret = written.client_secret.as_deref().map(|secret| expand_variables(secret, environment));
    let secret = secret.transpose()?.map(Secret::new);
    Ok(Some(OAuthClientConfig {
        id: expand_variables(id, environment)?,
        issuer: written.issuer.clone(),
        secret,
    }))
}

fn parse_transport(
    written: ServerEntry,
    environment: &Environment,
    catalog: &Path,
) -> Result<Transport, String> {
    let expanded = |text: &String| expand_variables(text, environment);
    match (written.kind.as_deref(), written.command, written.url) {
        (None | Some("stdio"), Some(command), None) => {
            if !written.headers.is_empty() {
                return Err("a program has no `headers`".into());
            }
            let command: Vec<String> =
                std::iter::once(&command).chain(&written.args).map(expanded).collect::<Result<_, _>>()?;
            if command.iter().any(|part| part.contains('\0')) || command.first().is_none_or(String::is_empty)
            {
                return Err("its `command` must be a program, and its `args` must not contain a NUL".into());
            }
            let env = written.env.iter().map(|(name, value)| {
                let value = expanded(value)?;
                if !is_variable_name(name) || value.contains('\0') {
                    return Err(format!(
                        "`env`: {name:?} is not a valid variable name, or its value contains a NUL"
                    ));
                }
                Ok((name.clone(), Secret::new(value)))
            });
            let env = env.collect::<Result<_, _>>()?;
            let resolved = |part: String| resolve_catalog_path(&part, catalog).unwrap_or(part);
            let command = command.into_iter().map(|part| Secret::new(resolved(part))).collect();
            Ok(Transport::Stdio { command, env, network: written.network.unwrap_or(true) })
        }
        (None | Some("http" | "streamable-http" | "streamable_http" | "sse"), None, Some(url)) => {
            if !written.args.is_empty() || !written.env.is_empty() || written.network.is_some() {
                return Err("`args`, `env` and `network` are for programs".into());
            }
            let url =
                Url::parse(&expanded(&url)?).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
            let url = url.ok_or("its `url` must be an address that begins with http:// or https://")?;
            if !url.username().is_empty() || url.password().is_some() {
                return Err("its `url` must hold no user and password: put them into `headers`".into());
            }
            let headers = written.headers.iter().map(|(name, value)| parse_header(name, &expanded(value)?));
            Ok(Transport::Http { url, headers: headers.collect::<Result<_, _>>()? })
        }
        (Some(kind), _, _)
            if !["stdio", "http", "streamable-http", "streamable_http", "sse"].contains(&kind) =>
        {
            Err("its `type` must be \"stdio\" or \"http\"".into())
        }
        _ => Err("it must have either a `command`, or a `url` and `type` \"http\"".into()),
    }
}

fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let parsed: HeaderName =
        name.parse().map_err(|_| format!("`headers`: {name:?} is not a valid header name"))?;
    let mut value: HeaderValue =
        value.parse().map_err(|_| format!("`headers`: the value of `{parsed}` cannot be sent"))?;
    value.set_sensitive(true);
    Ok((parsed, value))
}

/// Returns a time limit; `None` if it is zero, too long or none.
pub(super) fn parse_timeout(timeout: Timeout) -> Option<Duration> {
    let timeout = match timeout {
        Timeout::Seconds(seconds) => Duration::try_from_secs_f64(seconds).ok()?,
        Timeout::Text(text) => parse_lifetime(&text)?,
    };
    (!timeout.is_zero() && timeout <= MAX_TIMEOUT).then_some(timeout)
}

/// Whether this is a valid server name. The server's tools are called `server__tool`.
fn is_server_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(fits)
        && !name.contains("__")
        && !name.ends_with('_')
}

#[cfg(test)]
#[path = "../tests/unit/mcp_servers.rs"]
mod tests;
