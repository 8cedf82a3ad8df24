//! User ids in paths. Any string is one, `provision` too.

use axum::extract::Request;
use axum::http::Method;
use axum::http::uri::{PathAndQuery, Uri};

/// The one path that is a route of its own and the address of a user's engine.
const PROVISION: &str = "/engines/provision";
/// The same path as only `/engines/{user_id}` takes it: with the first letter escaped.
const USER_PROVISION: &str = "/engines/%70rovision";

/// Only POST means the endpoint: any other method means the user who is called `provision`. The router knows
/// paths before methods, so the two are told apart here.
pub(super) fn keep_user_ids_apart(mut request: Request) -> Request {
    if request.method() != Method::POST && request.uri().path() == PROVISION {
        let path_and_query = match request.uri().query() {
            Some(query) => format!("{USER_PROVISION}?{query}"),
            None => USER_PROVISION.to_owned(),
        };
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = path_and_query.parse::<PathAndQuery>().ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}
