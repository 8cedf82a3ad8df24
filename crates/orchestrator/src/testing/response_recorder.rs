//! What the routes really answered. Whatever a test asks: an answer that the document does not promise fails it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use serde_json::Value;

use super::api_operations;

/// One answer of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordedResponse {
    /// The route's template.
    pub(crate) path: String,
    pub(crate) method: String,
    pub(crate) status: u16,
    /// None for a success.
    pub(crate) code: Option<String>,
}

/// The answers of one router, each kind once.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseRecorder(Arc<Mutex<BTreeSet<RecordedResponse>>>);

impl ResponseRecorder {
    /// Notes what `router` answers from now on.
    pub(crate) fn layer(&self, router: Router) -> Router {
        let seen = self.clone();
        router.layer(from_fn(move |request, next| record(seen.clone(), request, next)))
    }

    pub(crate) fn recorded(&self) -> BTreeSet<RecordedResponse> {
        self.0.lock().unwrap().clone()
    }
}

async fn record(seen: ResponseRecorder, request: Request, next: Next) -> Response {
    let method = request.method().to_string();
    let response = next.run(request).await;
    // Of a HEAD no body tells the code.
    if method == "HEAD" {
        return response;
    }
    let status = response.status().as_u16();
    let path = response.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let (code, response) =
        if response.status().is_success() { (None, response) } else { error_code(response).await };
    let Some(path) = path else {
        assert_eq!(code.as_deref(), Some("NOT_FOUND"), "{method} of no path gave {status}");
        return response;
    };
    assert_documented(&method, &path, status, code.as_deref());
    seen.0.lock().unwrap().insert(RecordedResponse { path, method, status, code });
    response
}

/// The code in a refusal's body; none if that is not the envelope.
async fn error_code(response: Response) -> (Option<String>, Response) {
    let (parts, body) = response.into_parts();
    let body: Bytes = to_bytes(body, usize::MAX).await.unwrap();
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    (value["error"]["code"].as_str().map(str::to_owned), Response::from_parts(parts, Body::from(body)))
}

/// Panics where the document does not promise this answer.
fn assert_documented(method: &str, path: &str, status: u16, code: Option<&str>) {
    let answer = format!("{method} {path} gave {status} {code:?}");
    // The one route that tells about the others.
    if path == "/openapi.json" {
        return;
    }
    let mut on_path = api_operations().iter().filter(|operation| operation.path == path).peekable();
    assert!(on_path.peek().is_some(), "{answer}: the document does not have this path");
    let all: Vec<_> = on_path.collect();
    // What is passed on is passed on under any method; the document has those that people use.
    let forwarded_headers =
        all.iter().find(|operation| path.contains("/proxy/") && operation.method == "POST");
    match all.iter().find(|operation| operation.method == method).or(forwarded_headers) {
        None => assert_eq!(code, Some("METHOD_NOT_ALLOWED"), "{answer}: the document does not have it"),
        Some(operation) => assert!(
            operation.responses.contains(&(status, code.map(str::to_owned))),
            "{answer}: the document does not have it"
        ),
    }
}
