//! The endpoints of the mock authorization server.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use crate::{EndpointResult, MetadataLocation, MockAuthServer, RegisteredClient};

pub(crate) async fn resource(
    State(server): State<MockAuthServer>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    server.record_request(method.as_str(), "/mcp");
    let token =
        headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let behavior = server.behavior().clone();
    if method == Method::POST && behavior.is_down {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    if token.is_some_and(|token| server.accepts(token)) && !behavior.rejects_tokens {
        return if method == Method::POST {
            mcp_response(&body)
        } else {
            StatusCode::METHOD_NOT_ALLOWED.into_response()
        };
    }
    let mut challenge = "Bearer error=\"invalid_token\"".to_owned();
    if matches!(behavior.metadata_location, MetadataLocation::ProtectedResource | MetadataLocation::OpenId) {
        challenge.extend([", resource_metadata=\"", &server.0.base, "/about\""]);
    }
    if let Some(scope) = behavior.challenge_scope {
        challenge.extend([", scope=\"", scope, "\""]);
    }
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
}

/// Responds like an MCP server of the revision of 2025-06-18 with one tool.
fn mcp_response(body: &[u8]) -> Response {
    let message: Value = serde_json::from_slice(body).unwrap_or_default();
    let result = match message["method"].as_str() {
        _ if message["id"].is_null() => return StatusCode::ACCEPTED.into_response(),
        Some("initialize") => json!({
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "strict", "version": "1"},
        }),
        Some("tools/list") => json!({"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}),
        _ => return StatusCode::BAD_REQUEST.into_response(),
    };
    axum::Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).into_response()
}

/// The path at which an impostor publishes metadata in the authorization server's name, with its own token
/// endpoint.
pub const IMPOSTOR_METADATA_PATH: &str = "/elsewhere/.well-known/y";

pub(crate) async fn metadata(State(server): State<MockAuthServer>, method: Method, uri: Uri) -> Response {
    server.record_request(method.as_str(), uri.path());
    let behavior = server.behavior().clone();
    let path = match behavior.metadata_location {
        MetadataLocation::ProtectedResource => "/.well-known/oauth-authorization-server/as",
        MetadataLocation::OpenId => "/as/.well-known/openid-configuration",
        MetadataLocation::AuthorizationServer => "/.well-known/oauth-authorization-server",
        MetadataLocation::DefaultEndpoints => "",
    };
    if uri.path() == "/about"
        && matches!(
            behavior.metadata_location,
            MetadataLocation::ProtectedResource | MetadataLocation::OpenId
        )
    {
        let mut resource_metadata = json!({
            "resource": server.resource_url(),
            "authorization_servers": [behavior.authorization_server.unwrap_or_else(|| server.issuer())],
        });
        if !behavior.resource_scopes.is_empty() {
            resource_metadata["scopes_supported"] = json!(behavior.resource_scopes);
        }
        return axum::Json(resource_metadata).into_response();
    }
    let is_impostors = uri.path() == IMPOSTOR_METADATA_PATH;
    if uri.path() != path && !is_impostors {
        return StatusCode::NOT_FOUND.into_response();
    }
    let base = &server.0.base;
    let mut metadata = json!({
        "issuer": behavior.issuer.unwrap_or_else(|| server.issuer()),
        "authorization_endpoint": behavior.authorization_endpoint.unwrap_or_else(|| format!("{base}/as/authorize")),
        "token_endpoint": behavior.token_endpoint.unwrap_or_else(|| format!("{base}/as/token")),
        "response_types_supported": ["code"],
        "token_endpoint_auth_methods_supported": [behavior.client_auth_method],
        "authorization_response_iss_parameter_supported": behavior.advertises_issuer,
        "client_id_metadata_document_supported": behavior.accepts_client_metadata,
        "scopes_supported": behavior.scopes,
    });
    if let Some(method) = behavior.pkce {
        metadata["code_challenge_methods_supported"] = json!([method]);
    }
    if is_impostors {
        metadata["token_endpoint"] = format!("{base}/elsewhere/token").into();
    }
    if behavior.allows_registration {
        metadata["registration_endpoint"] = format!("{base}/as/register").into();
    }
    if behavior.supports_revocation {
        metadata["revocation_endpoint"] = format!("{base}/as/revoke").into();
    }
    axum::Json(metadata).into_response()
}

pub(crate) async fn register(
    State(server): State<MockAuthServer>,
    uri: Uri,
    axum::Json(metadata): axum::Json<Value>,
) -> Response {
    server.record_request("POST", uri.path());
    let auth_method = server.behavior().client_auth_method;
    let is_valid = metadata["application_type"] == "web"
        && metadata["grant_types"] == json!(["authorization_code", "refresh_token"])
        && metadata["response_types"] == json!(["code"])
        && metadata["token_endpoint_auth_method"] == auth_method
        && metadata["client_name"].is_string()
        && metadata["redirect_uris"].as_array().is_some_and(|all| all.len() == 1);
    if !is_valid {
        return respond(Err(server.violation(format!("invalid client metadata: {metadata}"))));
    }
    let mut state = server.state();
    let id = state.next_value("client");
    let secret = (auth_method != "none").then(|| state.next_value("sec:ret+%"));
    let client = RegisteredClient {
        redirect_uri: metadata["redirect_uris"][0].as_str().unwrap().into(),
        secret: secret.clone(),
        auth_method: auth_method.into(),
        metadata: metadata.clone(),
    };
    state.clients.insert(id.clone(), client);
    let mut response = metadata;
    response["client_id"] = id.into();
    if let Some(secret) = secret {
        response["client_secret"] = secret.into();
        response["client_secret_expires_at"] = 0.into();
    }
    (StatusCode::CREATED, axum::Json(response)).into_response()
}

pub(crate) async fn token(
    State(server): State<MockAuthServer>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    server.record_request("POST", uri.path());
    loop {
        let released = server.0.released.notified();
        tokio::pin!(released);
        released.as_mut().enable();
        if !server.behavior().holds_token_requests {
            break;
        }
        released.await;
    }
    let response = server.behavior().token_response.clone();
    if let Some((status, body)) = response {
        return (StatusCode::from_u16(status).unwrap(), [(header::LOCATION, "/token")], body).into_response();
    }
    respond(
        server
            .parse_form(&uri, &headers, &body)
            .and_then(|(fields, client)| server.issue_for_grant(&fields, client)),
    )
}

pub(crate) async fn revoke(
    State(server): State<MockAuthServer>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    server.record_request("POST", uri.path());
    let (fields, client) = match server.parse_form(&uri, &headers, &body) {
        Ok(form) => form,
        Err(error) => return respond(Err(error)),
    };
    let (Some(token), Some(hint)) = (fields.get("token"), fields.get("token_type_hint")) else {
        return respond(Err(server.violation("a revocation without a token")));
    };
    let mut state = server.state();
    for grant in state.grants.iter_mut().filter(|grant| grant.client == client) {
        if grant.access == *token || grant.refresh.as_ref() == Some(token) {
            grant.is_revoked = true;
        }
    }
    state.revoked_token_hints.push(hint.clone());
    StatusCode::OK.into_response()
}

pub(crate) async fn unexpected(State(server): State<MockAuthServer>, method: Method, uri: Uri) -> Response {
    respond(Err(server.violation(format!("{method} {uri}"))))
}

fn respond(response: EndpointResult) -> Response {
    match response {
        Ok(value) => ([(header::CACHE_CONTROL, "no-store")], axum::Json(value)).into_response(),
        Err((status, code, described)) => {
            let body = json!({"error": code, "error_description": described});
            (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
        }
    }
}
