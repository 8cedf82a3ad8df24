//! The user's credentials for a server, sealed in the brain.

use catalog::{ApiKeyLocation, Auth, McpServerSpec, Secret, Transport};
use http_service::vault::{KeyError, Vault};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use store::USER_SERVER_IDENTITY;
use tools::fingerprint;
use zeroize::Zeroizing;

use super::McpError;

/// The purpose to which the seal is bound, beside the server's name.
const SEAL_PURPOSE: &str = "credentials";
/// The maximum length of an API key, in bytes.
const MAX_API_KEY_BYTES: usize = 16 * 1024;

/// A secret and the server that it belongs to: it is sent to no other server, even if the catalog uses the same
/// name for another one.
pub(super) struct Credentials {
    audience: String,
    secret: CredentialSecret,
}

/// The secret itself.
#[derive(Clone)]
pub(super) enum CredentialSecret {
    /// The user's API key.
    ApiKey(SecretString),
    /// OAuth tokens and what refreshes them, as JSON.
    OAuthTokens(SecretString),
}

#[derive(Serialize, Deserialize)]
struct SerializedCredentials<'a> {
    audience: &'a str,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    api_key: Option<&'a str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    oauth: Option<&'a str>,
}

#[derive(Deserialize)]
struct DeserializedCredentials {
    audience: String,
    api_key: Option<Zeroizing<String>>,
    oauth: Option<Zeroizing<String>>,
}

impl Credentials {
    pub(super) fn new(spec: &McpServerSpec, secret: CredentialSecret) -> Self {
        Self { audience: audience(spec), secret }
    }

    /// Returns the secret, to be sent only to its issuer.
    pub(super) fn into_secret(self) -> CredentialSecret {
        self.secret
    }

    pub(super) fn seal(&self, vault: &Vault, server: &str) -> Result<String, KeyError> {
        let (api_key, oauth) = match &self.secret {
            CredentialSecret::ApiKey(key) => (Some(key.expose_secret()), None),
            CredentialSecret::OAuthTokens(tokens) => (None, Some(tokens.expose_secret())),
        };
        let serialized = SerializedCredentials { audience: &self.audience, api_key, oauth };
        let text = Zeroizing::new(serde_json::to_string(&serialized).map_err(|_| KeyError::CannotOpen)?);
        vault.seal(server, SEAL_PURPOSE, &text)
    }

    /// Opens the credentials sealed for the server; `None` if they cannot be opened or belong to another server.
    pub(super) fn open(vault: &Vault, spec: &McpServerSpec, sealed: &str) -> Option<CredentialSecret> {
        let stored = Self::open_any(vault, &spec.name, sealed)?;
        (stored.audience == audience(spec)).then_some(stored.secret)
    }

    /// Opens the credentials sealed under this server name, whichever server that is now.
    pub(super) fn open_any(vault: &Vault, server: &str, sealed: &str) -> Option<Self> {
        let text = vault.open(server, SEAL_PURPOSE, sealed).ok()?;
        let read: DeserializedCredentials = serde_json::from_str(&text).ok()?;
        let secret = |text: Zeroizing<String>| SecretString::from(text.as_str());
        let secret = read
            .api_key
            .map(secret)
            .map(CredentialSecret::ApiKey)
            .or_else(|| read.oauth.map(secret).map(CredentialSecret::OAuthTokens))?;
        Some(Self { audience: read.audience, secret })
    }
}

/// Returns a text that identifies the recipient of the secret: an address, or a program with its whole
/// configuration.
fn audience(spec: &McpServerSpec) -> String {
    let values: Vec<&str> = match &spec.transport {
        Transport::Http { .. } => Vec::new(),
        Transport::Stdio { env, .. } => env.values().map(Secret::expose).collect(),
    };
    fingerprint::hash(&[&identity(spec), &values.join("\0")])
}

/// Returns a hash that identifies a server: its address, or its program with the names of its settings. The values
/// that the operator sets for it may change.
pub(super) fn identity(spec: &McpServerSpec) -> String {
    match &spec.transport {
        // Never that of a server of the catalog, even at the same address.
        Transport::Http { url, .. } if spec.is_of_user() => {
            let (auth, header) = match &spec.auth {
                Auth::None => ("none", ""),
                Auth::OAuth { .. } => ("oauth", ""),
                Auth::ApiKey(ApiKeyLocation::Header(name)) => ("api_key", name.as_str()),
                Auth::ApiKey(_) => ("api_key", ""),
            };
            format!("{USER_SERVER_IDENTITY}{}", fingerprint::hash(&["http", url.as_str(), auth, header]))
        }
        Transport::Http { url, .. } => fingerprint::hash(&["http", url.as_str()]),
        Transport::Stdio { command, env, .. } => {
            let words = command.iter().map(Secret::expose);
            let names = env.keys().map(String::as_str);
            fingerprint::hash(&[
                "stdio",
                &words.collect::<Vec<_>>().join("\0"),
                &names.collect::<Vec<_>>().join("\0"),
            ])
        }
    }
}

/// Checks that an API key can be sent in a header.
pub(super) fn validate_api_key(key: String) -> Result<SecretString, McpError> {
    let is_valid =
        (1..=MAX_API_KEY_BYTES).contains(&key.len()) && key.bytes().all(|byte| (0x21..0x7f).contains(&byte));
    if is_valid {
        return Ok(key.into());
    }
    let message = "`credentials.api_key`: must be 1 to 16384 visible ASCII characters without blanks";
    Err(McpError::Invalid(message.into()))
}
