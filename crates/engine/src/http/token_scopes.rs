//! Which calls a browser token permits: the only place that says so. What has no row is closed to tokens, so a new route
//! is closed until somebody opens it here.

use api::browser::Scope::{self, Answer, Chat, Read};
use axum::http::Method;

use self::TaskIn::{Body, Nowhere, Path, Query};

/// Where a call names its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskIn {
    /// In the path, as `task_id`.
    Path,
    /// In the query, as `task_id`.
    Query,
    /// In the body: the handler takes a [`Caller`](super::auth::Caller) and checks it.
    Body,
    /// Nowhere: it is about all tasks, and closed to a token for one.
    Nowhere,
}

/// A call that tokens may make.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) method: Method,
    /// The route, as in the route table.
    pub(super) path: &'static str,
    /// The token needs one of these.
    pub(super) scopes: &'static [Scope],
    pub(super) task: TaskIn,
}

/// The calls that tokens may make.
pub(super) static RULES: [Rule; 21] = [
    rule(Method::POST, "/execute", &[Chat], Body),
    rule(Method::POST, "/execute/cancel", &[Chat], Body),
    rule(Method::POST, "/execute/steer", &[Chat], Body),
    rule(Method::DELETE, "/tasks/{task_id}/queue/{turn_id}", &[Chat], Path),
    rule(Method::GET, "/execute/replay", &[Chat, Read], Query),
    rule(Method::GET, "/tasks/{task_id}/queue", &[Chat, Read], Path),
    rule(Method::GET, "/tasks/{task_id}/turns/{turn_id}", &[Chat, Read], Path),
    rule(Method::GET, "/tasks/{task_id}/turns/{turn_id}/result", &[Chat, Read], Path),
    rule(Method::GET, "/tasks/{task_id}/turns", &[Read], Path),
    rule(Method::GET, "/tasks/{task_id}/conversation", &[Read], Path),
    rule(Method::GET, "/tasks/{task_id}/messages", &[Read], Path),
    rule(Method::GET, "/tasks/{task_id}", &[Read], Path),
    rule(Method::GET, "/tasks/{task_id}/media", &[Read], Path),
    rule(Method::GET, "/tasks/{task_id}/media/{hash}", &[Read], Path),
    rule(Method::GET, "/tasks", &[Read], Nowhere),
    rule(Method::GET, "/conversations", &[Read], Nowhere),
    rule(Method::GET, "/conversations/search", &[Read], Nowhere),
    rule(Method::GET, "/tasks/{task_id}/approvals", &[Read, Answer], Path),
    rule(Method::POST, "/tasks/{task_id}/approvals/{request_id}", &[Answer], Path),
    rule(Method::GET, "/hitl/pending", &[Read, Answer], Query),
    rule(Method::POST, "/hitl/respond", &[Answer], Body),
];

const fn rule(method: Method, path: &'static str, scopes: &'static [Scope], task: TaskIn) -> Rule {
    Rule { method, path, scopes, task }
}

/// Returns the rule of a call. HEAD is a GET without the body of the response.
pub(super) fn rule_for(method: &Method, route: &str) -> Option<&'static Rule> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    RULES.iter().find(|rule| rule.method == *method && rule.path == route)
}
