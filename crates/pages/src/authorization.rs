//! Where authorization servers send a browser back to, if the console's address is the base of their redirects.

use axum::extract::RawQuery;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;

use crate::site::redirect;

/// The route's template: what an engine appends to `/console`. No asset has it, because `assets` is no hash.
pub(crate) const CALLBACK: &str = "/console/assets/oauth/callback";

/// Sends the browser on to the console, which knows what to do with the parameters. Behind `#` they are sent to no
/// server. No browser remembers it, for a code is taken once.
pub(crate) async fn call_back(RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let mut response = redirect(&format!("../../../console#/authorized?{query}"));
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
