//! User ids in paths. Any string is one, `provision` too.

use axum::extract::{MatchedPath, Request};
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;

/// The one path that is a route of its own and the address of a user's engine.
const PROVISION_PATH: &str = "/engines/provision";
/// The same path as only `/engines/{user_id}` takes it: with the first letter escaped.
const ESCAPED_PROVISION_PATH: &str = "/engines/%70rovision";

/// POST means the endpoint: the methods of an engine mean the user who is called `provision`. The router knows paths
/// before methods, so the two are told apart here.
pub(super) fn rewrite_provision_path(mut request: Request) -> Request {
    let is_of_an_engine = [Method::GET, Method::HEAD, Method::DELETE].contains(request.method());
    if is_of_an_engine && request.uri().path() == PROVISION_PATH {
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

/// Names all methods of the path that is two, where one was asked for that neither takes.
pub(super) fn complete_allow_header(mut response: Response) -> Response {
    let is_the_path = |path: &MatchedPath| path.as_str() == PROVISION_PATH;
    if response.status() == StatusCode::METHOD_NOT_ALLOWED
        && response.extensions().get().is_some_and(is_the_path)
    {
        let all = HeaderValue::from_static("GET,HEAD,DELETE,POST");
        response.headers_mut().insert(header::ALLOW, all);
    }
    response
}
