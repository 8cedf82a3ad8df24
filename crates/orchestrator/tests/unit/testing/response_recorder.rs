//! Records the responses of the routes. A test fails on any response that the OpenAPI document does not list,
//! whatever the test itself checks.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use serde_json::Value;

use super::api_operations;

/// A response of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordedResponse {
    /// The route's template.
    pub(crate) path: String,
    pub(crate) method: String,
    pub(crate) status: u16,
    /// The error code; `None` for a success.
    pub(crate) code: Option<String>,
}

/// The distinct responses of a router.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseRecorder(Arc<Mutex<BTreeSet<RecordedResponse>>>);

impl ResponseRecorder {
    /// Returns `router` with a layer that records its responses.
    pub(crate) fn layer(&self, router: Router) -> Router {
        let recorder = self.clone();
        router.layer(from_fn(move |request, next| record(recorder.clone(), request, next)))
    }

    pub(crate) fn recorded(&self) -> BTreeSet<RecordedResponse> {
        self.0.lock().unwrap().clone()
    }
}

async fn record(recorder: ResponseRecorder, request: Request, next: Next) -> Response {
    let method = request.method().to_string();
    let response = next.run(request).await;
    // The response to a HEAD has no body with a code.
    if method == "HEAD" {
        return response;
    }
    let status = response.status().as_u16();
    let path = response.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let (code, response) =
        if response.status().is_success() { (None, response) } else { error_code(response).await };
    let Some(path) = path else {
        assert_eq!(code.as_deref(), Some("NOT_FOUND"), "{method} of an unmatched path gave {status}");
        return response;
    };
    assert_documented(&method, &path, status, code.as_deref());
    recorder.0.lock().unwrap().insert(RecordedResponse { path, method, status, code });
    response
}

/// Returns the error code in the body; `None` if the body is not the error envelope.
async fn error_code(response: Response) -> (Option<String>, Response) {
    let (parts, body) = response.into_parts();
    let body: Bytes = to_bytes(body, usize::MAX).await.unwrap();
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    (value["error"]["code"].as_str().map(str::to_owned), Response::from_parts(parts, Body::from(body)))
}

/// Panics if the document does not list this response.
fn assert_documented(method: &str, path: &str, status: u16, code: Option<&str>) {
    let answer = format!("{method} {path} gave {status} {code:?}");
    // The document describes neither its own route nor the pages for browsers.
    if ["/", "/openapi.json"].contains(&path) || pages::paths().any(|page| page == path) {
        return;
    }
    let mut operations = api_operations().iter().filter(|operation| operation.path == path).peekable();
    assert!(operations.peek().is_some(), "{answer}: the document does not have this path");
    let all: Vec<_> = operations.collect();
    // The proxy forwards every method; the document lists only the common ones, of which POST stands for the rest.
    let proxied = all.iter().find(|operation| path.contains("/proxy/") && operation.method == "POST");
    match all.iter().find(|operation| operation.method == method).or(proxied) {
        None => assert_eq!(code, Some("METHOD_NOT_ALLOWED"), "{answer}: the document does not have it"),
        Some(operation) => assert!(
            operation.responses.contains(&(status, code.map(str::to_owned))),
            "{answer}: the document does not have it"
        ),
    }
}
