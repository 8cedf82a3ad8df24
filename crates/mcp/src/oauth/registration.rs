//! The engine's client credentials at an authorization server: from the catalog, else the URL of its client
//! metadata, else from dynamic registration (RFC 7591).

use catalog::OAuthClientConfig;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::discovery::DiscoveredServer;
use super::http::{AuthHttpClient, sanitize_server_text};
use super::oauth_client::{ClientAuthMethod, ClientCredentials};
use crate::McpError;
use crate::connections::Connections;

/// The client name that authorization servers show to users.
const CLIENT_NAME: &str = "Roundhouse";

/// A stored registration.
#[derive(Serialize, Deserialize)]
struct Registration {
    client: ClientCredentials,
    /// The registered redirect URI.
    redirect_uri: Url,
    /// The registered scopes: some authorization servers grant no others.
    scopes: Vec<String>,
    /// When its secret expires, in Unix milliseconds.
    ends_at: Option<i64>,
}

#[derive(Deserialize)]
struct RegistrationResponse {
    client_id: String,
    client_secret: Option<Zeroizing<String>>,
    client_secret_expires_at: Option<i64>,
    token_endpoint_auth_method: Option<String>,
}

/// Returns the credentials of a client that was registered manually.
pub(super) fn preregistered_client(
    client: &OAuthClientConfig,
    server: &DiscoveredServer,
) -> ClientCredentials {
    let proof = match &client.secret {
        None => ClientAuthMethod::None,
        Some(secret) => {
            secret_auth_method(secret.expose().to_owned().into(), preferred_secret_method(server))
        }
    };
    ClientCredentials { id: client.id.clone(), proof, registered: false }
}

/// Returns the credentials of the client whose metadata the product serves.
pub(super) fn metadata_client(address: &Url) -> ClientCredentials {
    ClientCredentials { id: address.as_str().to_owned(), proof: ClientAuthMethod::None, registered: false }
}

/// The parameters of a registration.
pub(super) struct RegistrationRequest<'a> {
    /// The key under which the registration is stored.
    pub(super) issuer_key: &'a str,
    pub(super) redirect_uri: &'a Url,
    pub(super) scopes: &'a [String],
    /// Whether a stored registration may be useless.
    pub(super) force_new: bool,
}

impl RegistrationRequest<'_> {
    fn is_satisfied_by(&self, stored: &Registration, now: i64) -> bool {
        !self.force_new
            && stored.redirect_uri == *self.redirect_uri
            && stored.ends_at.is_none_or(|end| end > now)
            && self.scopes.iter().all(|scope| stored.scopes.contains(scope))
    }
}

/// Returns the stored registration, or registers the engine.
pub(super) async fn get_or_register(
    connections: &Connections,
    http: &AuthHttpClient,
    server: &DiscoveredServer,
    request: RegistrationRequest<'_>,
) -> Result<ClientCredentials, McpError> {
    let stored = connections.registration(request.issuer_key)?;
    let stored = stored.and_then(|text| serde_json::from_str::<Registration>(&text).ok());
    let mut scopes = request.scopes.to_vec();
    if let Some(stored) = stored {
        if request.is_satisfied_by(&stored, connections.now().unix_ms()) {
            return Ok(stored.client);
        }
        // Servers that share an authorization server must not overwrite each other's scopes.
        scopes.extend(stored.scopes.into_iter().filter(|scope| !request.scopes.contains(scope)));
    }
    let registration = register(http, server, request.redirect_uri, scopes).await?;
    let text = serde_json::to_string(&registration).map(Zeroizing::new);
    let text = text.map_err(|_| McpError::Failed("the registration cannot be serialized".into()))?;
    connections.store_registration(request.issuer_key, Some(&text)).await?;
    Ok(registration.client)
}

/// Returns the client metadata that the product serves if their URL is the engine's client id.
pub(super) fn metadata_document(address: &Url, redirect_uri: &Url) -> Value {
    let mut document = client_metadata(redirect_uri, "none");
    if let Some(fields) = document.as_object_mut() {
        fields.insert("client_id".into(), address.as_str().into());
    }
    document
}

fn client_metadata(redirect_uri: &Url, method: &str) -> Value {
    json!({
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect_uri.as_str()],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "web",
    })
}

async fn register(
    http: &AuthHttpClient,
    server: &DiscoveredServer,
    redirect_uri: &Url,
    scopes: Vec<String>,
) -> Result<Registration, McpError> {
    let failed = |reason: &str| {
        McpError::Failed(format!("the engine could not be registered at the authorization server: {reason}"))
    };
    let Some(endpoint) = &server.registration_endpoint else {
        return Err(failed(
            "it has no registration endpoint. Register the engine there and put its `client_id` into mcp.json, or set \
             OAUTH_CLIENT_METADATA_URL where the authorization server supports that",
        ));
    };
    let is_public = server.client_auth_methods().is_none_or(|listed| listed.contains(&"none"));
    let method = if is_public { "none" } else { preferred_secret_method(server) };
    let mut metadata = client_metadata(redirect_uri, method);
    if let Some(fields) = metadata.as_object_mut().filter(|_| !scopes.is_empty()) {
        fields.insert("scope".into(), scopes.join(" ").into());
    }
    let response = http.post_json(endpoint, &metadata).await;
    let response = response.map_err(|error| failed(&error.to_string()))?;
    if !response.status.is_success() {
        let body = response.json().unwrap_or_default();
        let code = sanitize_server_text(body.get("error").and_then(Value::as_str).unwrap_or_default());
        let description =
            sanitize_server_text(body.get("error_description").and_then(Value::as_str).unwrap_or_default());
        return Err(failed(format!("it answered {} {code} {description}", response.status).trim_end()));
    }
    let Ok(registered) = serde_json::from_slice::<RegistrationResponse>(&response.body) else {
        return Err(failed("its response cannot be parsed"));
    };
    // Zero means that it does not expire (RFC 7591, section 3.2.1).
    let ends_at = registered.client_secret_expires_at.filter(|end| *end > 0);
    let method = registered.token_endpoint_auth_method.as_deref().unwrap_or(method);
    // Some servers give public clients an empty secret.
    let proof = match registered.client_secret.filter(|secret| !secret.is_empty()) {
        Some(secret) if method != "none" => secret_auth_method(secret, method),
        _ => ClientAuthMethod::None,
    };
    let client = ClientCredentials { id: registered.client_id, proof, registered: true };
    let ends_at = ends_at.map(|end| end.saturating_mul(1_000));
    Ok(Registration { client, redirect_uri: redirect_uri.clone(), scopes, ends_at })
}

fn secret_auth_method(secret: Zeroizing<String>, method: &str) -> ClientAuthMethod {
    match method {
        "client_secret_post" => ClientAuthMethod::Post(secret),
        _ => ClientAuthMethod::Basic(secret),
    }
}

/// Returns how to send a secret: in the form if the server lists that method, else in `Authorization`, which is
/// the default without a list (RFC 8414, section 2). Of the servers that list both, those made with the official
/// Python SDK require it in the form for a revocation.
fn preferred_secret_method(server: &DiscoveredServer) -> &'static str {
    let listed = server.client_auth_methods().unwrap_or_default();
    if listed.contains(&"client_secret_post") { "client_secret_post" } else { "client_secret_basic" }
}
