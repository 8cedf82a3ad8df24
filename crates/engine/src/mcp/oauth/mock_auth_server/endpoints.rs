//! The endpoints of the mock authorization server.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::{EndpointResult, MetadataLocation, MockAuthServer, RegisteredClient};

pub(super) async fn resource(
    State(strict): State<MockAuthServer>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    strict.record_request(method.as_str(), "/mcp");
    let token =
        headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let rules = strict.behavior().clone();
    if method == Method::POST && rules.is_down {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    if token.is_some_and(|token| strict.accepts(token)) && !rules.rejects_tokens {
        return if method == Method::POST {
            mcp_response(&body)
        } else {
            StatusCode::METHOD_NOT_ALLOWED.into_response()
        };
    }
    let mut challenge = "Bearer error=\"invalid_token\"".to_owned();
    if matches!(rules.metadata_location, MetadataLocation::ProtectedResource | MetadataLocation::OpenId) {
        challenge.extend([", resource_metadata=\"", &strict.0.base, "/about\""]);
    }
    if let Some(scope) = rules.challenge_scope {
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
pub(in super::super) const IMPOSTOR_METADATA_PATH: &str = "/elsewhere/.well-known/y";

pub(super) async fn metadata(State(strict): State<MockAuthServer>, method: Method, uri: Uri) -> Response {
    strict.record_request(method.as_str(), uri.path());
    let rules = strict.behavior().clone();
    let path = match rules.metadata_location {
        MetadataLocation::ProtectedResource => "/.well-known/oauth-authorization-server/as",
        MetadataLocation::OpenId => "/as/.well-known/openid-configuration",
        MetadataLocation::AuthorizationServer => "/.well-known/oauth-authorization-server",
        MetadataLocation::DefaultEndpoints => "",
    };
    if uri.path() == "/about"
        && matches!(rules.metadata_location, MetadataLocation::ProtectedResource | MetadataLocation::OpenId)
    {
        let mut about = json!({
            "resource": strict.resource_url(),
            "authorization_servers": [rules.authorization_server.unwrap_or_else(|| strict.issuer())],
        });
        if !rules.resource_scopes.is_empty() {
            about["scopes_supported"] = json!(rules.resource_scopes);
        }
        return axum::Json(about).into_response();
    }
    let is_impostors = uri.path() == IMPOSTOR_METADATA_PATH;
    if uri.path() != path && !is_impostors {
        return StatusCode::NOT_FOUND.into_response();
    }
    let base = &strict.0.base;
    let mut metadata = json!({
        "issuer": rules.issuer.unwrap_or_else(|| strict.issuer()),
        "authorization_endpoint": rules.authorization_endpoint.unwrap_or_else(|| format!("{base}/as/authorize")),
        "token_endpoint": rules.token_endpoint.unwrap_or_else(|| format!("{base}/as/token")),
        "response_types_supported": ["code"],
        "token_endpoint_auth_methods_supported": [rules.client_auth_method],
        "authorization_response_iss_parameter_supported": rules.advertises_issuer,
        "client_id_metadata_document_supported": rules.accepts_client_metadata,
        "scopes_supported": rules.scopes,
    });
    if let Some(method) = rules.pkce {
        metadata["code_challenge_methods_supported"] = json!([method]);
    }
    if is_impostors {
        metadata["token_endpoint"] = format!("{base}/elsewhere/token").into();
    }
    if rules.allows_registration {
        metadata["registration_endpoint"] = format!("{base}/as/register").into();
    }
    if rules.supports_revocation {
        metadata["revocation_endpoint"] = format!("{base}/as/revoke").into();
    }
    axum::Json(metadata).into_response()
}

pub(super) async fn register(
    State(strict): State<MockAuthServer>,
    uri: Uri,
    axum::Json(asked): axum::Json<Value>,
) -> Response {
    strict.record_request("POST", uri.path());
    let proof = strict.behavior().client_auth_method;
    let is_good = asked["application_type"] == "web"
        && asked["grant_types"] == json!(["authorization_code", "refresh_token"])
        && asked["response_types"] == json!(["code"])
        && asked["token_endpoint_auth_method"] == proof
        && asked["client_name"].is_string()
        && asked["redirect_uris"].as_array().is_some_and(|all| all.len() == 1);
    if !is_good {
        return respond(Err(strict.violation(format!("a registration is {asked}"))));
    }
    let mut books = strict.state();
    let id = books.next_value("client");
    let secret = (proof != "none").then(|| books.next_value("sec:ret+%"));
    let known = RegisteredClient {
        redirect_uri: asked["redirect_uris"][0].as_str().unwrap().into(),
        secret: secret.clone(),
        auth_method: proof.into(),
        metadata: asked.clone(),
    };
    books.clients.insert(id.clone(), known);
    let mut answer = asked;
    answer["client_id"] = id.into();
    if let Some(secret) = secret {
        answer["client_secret"] = secret.into();
        answer["client_secret_expires_at"] = 0.into();
    }
    (StatusCode::CREATED, axum::Json(answer)).into_response()
}

pub(super) async fn token(
    State(strict): State<MockAuthServer>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    strict.record_request("POST", uri.path());
    loop {
        let released = strict.0.released.notified();
        tokio::pin!(released);
        released.as_mut().enable();
        if !strict.behavior().holds_token_requests {
            break;
        }
        released.await;
    }
    let answer = strict.behavior().token_response.clone();
    if let Some((status, body)) = answer {
        return (StatusCode::from_u16(status).unwrap(), [(header::LOCATION, "/token")], body).into_response();
    }
    respond(
        strict
            .parse_form(&uri, &headers, &body)
            .and_then(|(fields, client)| strict.issue_for_grant(&fields, client)),
    )
}

pub(super) async fn revoke(
    State(strict): State<MockAuthServer>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    strict.record_request("POST", uri.path());
    let (fields, client) = match strict.parse_form(&uri, &headers, &body) {
        Ok(form) => form,
        Err(error) => return respond(Err(error)),
    };
    let (Some(token), Some(hint)) = (fields.get("token"), fields.get("token_type_hint")) else {
        return respond(Err(strict.violation("a revocation without a token")));
    };
    let mut books = strict.state();
    for leave in books.grants.iter_mut().filter(|leave| leave.client == client) {
        if leave.access == *token || leave.refresh.as_ref() == Some(token) {
            leave.is_revoked = true;
        }
    }
    books.revoked_token_hints.push(hint.clone());
    StatusCode::OK.into_response()
}

pub(super) async fn unexpected(State(strict): State<MockAuthServer>, method: Method, uri: Uri) -> Response {
    respond(Err(strict.violation(format!("{method} {uri}"))))
}

fn respond(answer: EndpointResult) -> Response {
    match answer {
        Ok(value) => ([(header::CACHE_CONTROL, "no-store")], axum::Json(value)).into_response(),
        Err((status, code, described)) => {
            let body = json!({"error": code, "error_description": described});
            (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
        }
    }
}
