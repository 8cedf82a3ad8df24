//! What the strict server answers.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::{Answered, Described, Known, Strict};

pub(super) async fn resource(
    State(strict): State<Strict>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    strict.note(method.as_str(), "/mcp");
    let token =
        headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let rules = strict.rules().clone();
    if method == Method::POST && rules.is_down {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    if token.is_some_and(|token| strict.takes(token)) && !rules.refuses {
        return if method == Method::POST {
            tools(&body)
        } else {
            StatusCode::METHOD_NOT_ALLOWED.into_response()
        };
    }
    let mut challenge = "Bearer error=\"invalid_token\"".to_owned();
    if matches!(rules.described, Described::ByResource | Described::ByOpenId) {
        challenge.extend([", resource_metadata=\"", &strict.0.base, "/about\""]);
    }
    if let Some(scope) = rules.challenge_scope {
        challenge.extend([", scope=\"", scope, "\""]);
    }
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
}

/// Speaks the protocol as a server of the revision of 2025-06-18 with one tool.
fn tools(body: &[u8]) -> Response {
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

/// Where an impostor publishes metadata in the authorization server's name, with a token endpoint of its own.
pub(in super::super) const IMPOSTOR: &str = "/elsewhere/.well-known/y";

pub(super) async fn metadata(State(strict): State<Strict>, method: Method, uri: Uri) -> Response {
    strict.note(method.as_str(), uri.path());
    let rules = strict.rules().clone();
    let path = match rules.described {
        Described::ByResource => "/.well-known/oauth-authorization-server/as",
        Described::ByOpenId => "/as/.well-known/openid-configuration",
        Described::ByItself => "/.well-known/oauth-authorization-server",
        Described::Nowhere => "",
    };
    if uri.path() == "/about" && matches!(rules.described, Described::ByResource | Described::ByOpenId) {
        let mut about = json!({
            "resource": strict.resource(),
            "authorization_servers": [rules.authorization_server.unwrap_or_else(|| strict.issuer())],
        });
        if !rules.resource_scopes.is_empty() {
            about["scopes_supported"] = json!(rules.resource_scopes);
        }
        return axum::Json(about).into_response();
    }
    let is_impostors = uri.path() == IMPOSTOR;
    if uri.path() != path && !is_impostors {
        return StatusCode::NOT_FOUND.into_response();
    }
    let base = &strict.0.base;
    let mut metadata = json!({
        "issuer": rules.issuer.unwrap_or_else(|| strict.issuer()),
        "authorization_endpoint": rules.authorization_endpoint.unwrap_or_else(|| format!("{base}/as/authorize")),
        "token_endpoint": rules.token_endpoint.unwrap_or_else(|| format!("{base}/as/token")),
        "response_types_supported": ["code"],
        "token_endpoint_auth_methods_supported": [rules.proof],
        "authorization_response_iss_parameter_supported": rules.says_issuer,
        "client_id_metadata_document_supported": rules.takes_documents,
        "scopes_supported": rules.scopes,
    });
    if let Some(method) = rules.pkce {
        metadata["code_challenge_methods_supported"] = json!([method]);
    }
    if is_impostors {
        metadata["token_endpoint"] = format!("{base}/elsewhere/token").into();
    }
    if rules.registers {
        metadata["registration_endpoint"] = format!("{base}/as/register").into();
    }
    if rules.revokes {
        metadata["revocation_endpoint"] = format!("{base}/as/revoke").into();
    }
    axum::Json(metadata).into_response()
}

pub(super) async fn register(
    State(strict): State<Strict>,
    uri: Uri,
    axum::Json(asked): axum::Json<Value>,
) -> Response {
    strict.note("POST", uri.path());
    let proof = strict.rules().proof;
    let is_good = asked["application_type"] == "web"
        && asked["grant_types"] == json!(["authorization_code", "refresh_token"])
        && asked["response_types"] == json!(["code"])
        && asked["token_endpoint_auth_method"] == proof
        && asked["client_name"].is_string()
        && asked["redirect_uris"].as_array().is_some_and(|all| all.len() == 1);
    if !is_good {
        return answered(Err(strict.broken(format!("a registration is {asked}"))));
    }
    let mut books = strict.books();
    let id = books.name("client");
    let secret = (proof != "none").then(|| books.name("sec:ret+%"));
    let known = Known {
        redirect_uri: asked["redirect_uris"][0].as_str().unwrap().into(),
        secret: secret.clone(),
        proof: proof.into(),
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
    State(strict): State<Strict>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    strict.note("POST", uri.path());
    loop {
        let released = strict.0.released.notified();
        tokio::pin!(released);
        released.as_mut().enable();
        if !strict.rules().holds {
            break;
        }
        released.await;
    }
    let answer = strict.rules().token_answer.clone();
    if let Some((status, body)) = answer {
        return (StatusCode::from_u16(status).unwrap(), [(header::LOCATION, "/token")], body).into_response();
    }
    answered(strict.form(&uri, &headers, &body).and_then(|(fields, client)| strict.tokens(&fields, client)))
}

pub(super) async fn revoke(
    State(strict): State<Strict>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    strict.note("POST", uri.path());
    let (fields, client) = match strict.form(&uri, &headers, &body) {
        Ok(form) => form,
        Err(error) => return answered(Err(error)),
    };
    let (Some(token), Some(hint)) = (fields.get("token"), fields.get("token_type_hint")) else {
        return answered(Err(strict.broken("a revocation without a token")));
    };
    let mut books = strict.books();
    for leave in books.leaves.iter_mut().filter(|leave| leave.client == client) {
        if leave.access == *token || leave.refresh.as_ref() == Some(token) {
            leave.is_over = true;
        }
    }
    books.revoked.push(hint.clone());
    StatusCode::OK.into_response()
}

pub(super) async fn stray(State(strict): State<Strict>, method: Method, uri: Uri) -> Response {
    answered(Err(strict.broken(format!("{method} {uri}"))))
}

fn answered(answer: Answered) -> Response {
    match answer {
        Ok(value) => ([(header::CACHE_CONTROL, "no-store")], axum::Json(value)).into_response(),
        Err((status, code, described)) => {
            let body = json!({"error": code, "error_description": described});
            (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
        }
    }
}
