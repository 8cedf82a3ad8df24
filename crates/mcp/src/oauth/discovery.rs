//! Discovery of the authorization server of an MCP server, and its metadata.
//!
//! `rmcp` performs it: from the MCP server's challenge, its metadata (RFC 9728), the authorization server's
//! metadata (RFC 8414, OpenID Connect Discovery) or, without any, the default endpoints of the protocol's first
//! revision with authorization (2025-03-26).

use std::sync::Arc;

use reqwest::Url;
use resources::text::error_chain;
use rmcp::transport::auth::{
    AuthorizationManager, AuthorizationMetadata, AuthorizationMetadataSource, InMemoryStateStore,
    OAuthClientConfig, StateStore as _,
};
use serde_json::Value;
use zeroize::Zeroizing;

use super::http::{AuthHttpClient, sanitize_server_text};
use crate::McpError;

/// The scope with which OpenID providers issue refresh tokens; they ask for consent each time (OpenID Connect Core
/// 1.0, section 11).
const OFFLINE_ACCESS: &str = "offline_access";

/// A discovered authorization server.
pub(super) struct DiscoveredServer {
    manager: AuthorizationManager,
    metadata: AuthorizationMetadata,
    pub(super) token_endpoint: Url,
    pub(super) registration_endpoint: Option<Url>,
    pub(super) revocation_endpoint: Option<Url>,
}

/// An authorization request.
pub(super) struct AuthorizationRequest {
    /// The URL at which the user gives consent.
    pub(super) url: Url,
    /// The PKCE verifier for exchanging the code (RFC 7636).
    pub(super) verifier: Zeroizing<String>,
    /// The resource that the consent is for (RFC 8707).
    pub(super) resource: String,
}

impl DiscoveredServer {
    /// Discovers the authorization server of the MCP server at `server`.
    pub(super) async fn discover(server: &Url, http: &AuthHttpClient) -> Result<Self, McpError> {
        if server.scheme() != "https" && !http.allows_private() {
            let message =
                "authorization requires https, unless the server is on this machine or in its network";
            return Err(McpError::Failed(message.into()));
        }
        let found = if http.is_on_private_network(server) {
            // With a client of ours, `rmcp` would refuse private addresses given as numbers in metadata. Our
            // client has an address policy of its own, so private ones pass here.
            AuthorizationManager::new_allowing_private_addresses(server.clone()).await
        } else {
            AuthorizationManager::new_with_oauth_http_client(server.clone(), Arc::new(http.clone())).await
        };
        let mut manager = found.map_err(|error| discovery_error(&error))?;
        let resolved = manager.resolve_metadata().await.map_err(|error| discovery_error(&error))?;
        let metadata = resolved.metadata;
        if resolved.source != AuthorizationMetadataSource::LegacyEndpointFallback {
            check_pkce(&metadata)?;
            confirm_issuer(&metadata, http).await?;
        }
        let endpoint = |text: Option<&str>| text.map(|text| validate_url(server, text)).transpose();
        let required = |text: &str| validate_url(server, text);
        required(&metadata.authorization_endpoint)?;
        endpoint(metadata.issuer.as_deref())?;
        let found = Self {
            token_endpoint: required(&metadata.token_endpoint)?,
            registration_endpoint: endpoint(metadata.registration_endpoint.as_deref())?,
            revocation_endpoint: endpoint(
                metadata.additional_fields.get("revocation_endpoint").and_then(Value::as_str),
            )?,
            metadata: metadata.clone(),
            manager: {
                manager.set_metadata(metadata);
                manager
            },
        };
        Ok(found)
    }

    /// Returns its issuer identifier.
    pub(super) fn issuer(&self) -> Option<&str> {
        self.metadata.issuer.as_deref()
    }

    /// Whether its authorization responses always include `iss` (RFC 9207).
    pub(super) fn advertises_issuer(&self) -> bool {
        self.metadata_flag("authorization_response_iss_parameter_supported")
    }

    /// Whether it accepts the URL of client metadata as a client id.
    pub(super) fn supports_client_metadata(&self) -> bool {
        self.metadata_flag("client_id_metadata_document_supported")
    }

    /// Returns the supported client authentication methods; `None` if the metadata does not list any.
    pub(super) fn client_auth_methods(&self) -> Option<Vec<&str>> {
        let listed = self.metadata.additional_fields.get("token_endpoint_auth_methods_supported")?;
        Some(listed.as_array()?.iter().filter_map(Value::as_str).collect())
    }

    /// Returns the scopes that the MCP server asks for.
    pub(super) async fn default_scopes(&self) -> Vec<String> {
        self.manager.select_initial_scopes(&[]).await
    }

    /// Builds the authorization request for these scopes, with the `state` that the response must repeat.
    pub(super) async fn authorization_request(
        mut self,
        client_id: &str,
        redirect_uri: &Url,
        scopes: &[String],
        state: &str,
    ) -> Result<AuthorizationRequest, McpError> {
        let invalid_field = |error: &dyn std::fmt::Display| {
            McpError::Failed(sanitize_server_text(&format!(
                "the authorization request cannot be built: {error}"
            )))
        };
        let store = InMemoryStateStore::new();
        self.manager.set_state_store(store.clone());
        let client = OAuthClientConfig::new(client_id, redirect_uri.as_str()).with_application_type("web");
        self.manager.configure_client(client).map_err(|error| invalid_field(&error))?;
        let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let url = self.manager.get_authorization_url(&scopes).await.map_err(|error| invalid_field(&error))?;
        let mut url = Url::parse(&url).map_err(|error| invalid_field(&error))?;
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let value = |name: &str| {
            let found = pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
            found.ok_or_else(|| invalid_field(&format!("the request has no `{name}`")))
        };
        let stored = store.load(&value("state")?).await.map_err(|error| invalid_field(&error))?;
        let stored = stored.ok_or_else(|| invalid_field(&"the request was not stored"))?;
        // The `state` of `rmcp` has 128 random bits; ours, under whose hash the authorization is stored, has 256.
        let other_pairs = pairs.iter().filter(|(key, _)| key != "state" && key != "prompt");
        url.query_pairs_mut().clear().extend_pairs(other_pairs).append_pair("state", state);
        if scopes.contains(&OFFLINE_ACCESS) {
            url.query_pairs_mut().append_pair("prompt", "consent");
        }
        Ok(AuthorizationRequest { url, verifier: stored.pkce_verifier.into(), resource: value("resource")? })
    }

    fn metadata_flag(&self, name: &str) -> bool {
        self.metadata.additional_fields.get(name).and_then(Value::as_bool).unwrap_or_default()
    }
}

/// Published metadata must list S256: a server that does not list it does not check the verifier.
fn check_pkce(metadata: &AuthorizationMetadata) -> Result<(), McpError> {
    let methods = metadata.code_challenge_methods_supported.as_deref().unwrap_or_default();
    if methods.iter().any(|method| method == "S256") {
        return Ok(());
    }
    let message = "the authorization server does not advertise PKCE with S256, which is required";
    Err(McpError::Failed(message.into()))
}

/// Checks that the issuer named in metadata confirms them at its own well-known URLs (RFC 8414, section 3; OpenID
/// Connect Discovery): otherwise whoever publishes metadata elsewhere could redirect codes and secrets meant for
/// that issuer to itself.
async fn confirm_issuer(metadata: &AuthorizationMetadata, http: &AuthHttpClient) -> Result<(), McpError> {
    let Some(issuer) = metadata.issuer.as_deref() else { return Ok(()) };
    let confirms = |document: &Value| {
        let is = |name: &str, wanted: &str| document.get(name).and_then(Value::as_str) == Some(wanted);
        is("issuer", issuer)
            && is("authorization_endpoint", &metadata.authorization_endpoint)
            && is("token_endpoint", &metadata.token_endpoint)
    };
    for url in metadata_urls(issuer) {
        // A URL without a document, or one that cannot be reached, confirms nothing.
        if let Ok(answer) = http.get_json(&url).await
            && answer.status.is_success()
            && answer.json().as_ref().is_some_and(confirms)
        {
            return Ok(());
        }
    }
    Err(McpError::Failed(sanitize_server_text(&format!(
        "the authorization server claims to be {issuer}, whose metadata does not confirm that"
    ))))
}

/// Returns the URLs at which an issuer publishes its metadata.
fn metadata_urls(issuer: &str) -> Vec<Url> {
    let Ok(issuer) = Url::parse(issuer) else { return Vec::new() };
    let path = issuer.path().trim_end_matches('/');
    let mut paths = vec![
        format!("/.well-known/oauth-authorization-server{path}"),
        format!("/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        paths.push(format!("{path}/.well-known/openid-configuration"));
    }
    let with_path = |path: String| {
        let mut url = issuer.clone();
        url.set_path(&path);
        url.set_query(None);
        url
    };
    paths.into_iter().map(with_path).collect()
}

/// Validates a URL from the metadata. It must be as well protected as the MCP server.
fn validate_url(server: &Url, text: &str) -> Result<Url, McpError> {
    let is_allowed = |url: &Url| match url.scheme() {
        "https" => true,
        "http" => server.scheme() == "http",
        _ => false,
    };
    Url::parse(text).ok().filter(is_allowed).ok_or_else(|| {
        McpError::Failed(sanitize_server_text(&format!(
            "the authorization server's metadata names an address that cannot be used: {text}"
        )))
    })
}

fn discovery_error(error: &dyn std::error::Error) -> McpError {
    let reason = sanitize_server_text(&error_chain(error));
    McpError::Failed(format!("its authorization server was not found: {reason}"))
}
