//! The control endpoints, for a provider that runs as a process of its own.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;

use crate::captured::{CapturedRequest, RefusedRequest};
use crate::reply::Reply;
use crate::shared::Shared;

/// The response body of `GET /control/requests`.
#[derive(Serialize)]
pub(crate) struct Records {
    requests: Vec<CapturedRequest>,
    refusals: Vec<RefusedRequest>,
    pending_replies: usize,
}

/// Appends a reply or a list of replies to the script.
pub(crate) async fn add_replies(
    State(shared): State<Arc<Shared>>,
    Json(script): Json<Value>,
) -> Result<StatusCode, (StatusCode, String)> {
    let scripts = match script {
        Value::Array(scripts) => scripts,
        single => vec![single],
    };
    // All or nothing: a partial script would answer the wrong requests.
    let replies = scripts
        .into_iter()
        .map(serde_json::from_value::<Reply>)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    shared.lock().queue.extend(replies);
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the captured requests and the refusals.
pub(crate) async fn requests(State(shared): State<Arc<Shared>>) -> Json<Records> {
    let state = shared.lock();
    Json(Records {
        requests: state.requests.clone(),
        refusals: state.refusals.clone(),
        pending_replies: state.queue.len(),
    })
}
