//! Resolves the conflict between `POST /engines/provision` and an engine whose user id is `provision`, because any
//! string is a valid user id.

use axum::extract::{MatchedPath, Request};
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;

/// The one path that is both a route of its own and the path of a user's engine.
const PROVISION_PATH: &str = "/engines/provision";
/// The same path with its first letter escaped, which only `/engines/{user_id}` matches.
const ESCAPED_PROVISION_PATH: &str = "/engines/%70rovision";

/// Rewrites the path for the methods of an engine, which mean the user `provision`; POST means the endpoint. The
/// router matches paths before methods, so it cannot distinguish the two.
pub(super) fn rewrite_provision_path(mut request: Request) -> Request {
    let is_engine_method = [Method::GET, Method::HEAD, Method::DELETE].contains(request.method());
    if is_engine_method && request.uri().path() == PROVISION_PATH {
        let path_and_query = match request.uri().query() {
            Some(query) => format!("{ESCAPED_PROVISION_PATH}?{query}"),
            None => ESCAPED_PROVISION_PATH.to_owned(),
        };
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = path_and_query.parse::<PathAndQuery>().ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// Completes the `Allow` header of a 405 for this path with the methods of both routes.
pub(super) fn complete_allow_header(mut response: Response) -> Response {
    let is_provision = |path: &MatchedPath| path.as_str() == PROVISION_PATH;
    if response.status() == StatusCode::METHOD_NOT_ALLOWED
        && response.extensions().get().is_some_and(is_provision)
    {
        let methods = HeaderValue::from_static("GET,HEAD,DELETE,POST");
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}
