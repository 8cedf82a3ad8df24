//! Accepts connections and routes requests.
//!
//! The accept loop owns all connections, so that aborting it closes them, idle ones too.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::anthropic::AnthropicMessages;
use crate::captured::RefusedRequest;
use crate::control;
use crate::gemini::Gemini;
use crate::handler::{MAX_BODY_BYTES, handle};
use crate::ollama::Ollama;
use crate::openai::OpenAiChat;
use crate::responses::OpenAiResponses;
use crate::shared::Shared;

/// Serves connections until the task is aborted.
pub(crate) async fn run(listener: TcpListener, shared: Arc<Shared>) {
    let router = router(shared);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Removes finished connections, or the set would grow forever.
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, _)) = accepted else { continue };
        // Without this, the kernel would coalesce small deltas, which would distort latency measurements. A
        // failure affects only the timing.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            // Errors are broken connections, caused by the client or by the script.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/messages", post(handle::<AnthropicMessages>))
        .route("/v1/chat/completions", post(handle::<OpenAiChat>))
        .route("/v1/responses", post(handle::<OpenAiResponses>))
        .route("/v1beta/models/{call}", post(handle::<Gemini>))
        .route("/v1/models/{call}", post(handle::<Gemini>))
        .route("/api/chat", post(handle::<Ollama>))
        .route("/control/replies", post(control::add_replies))
        .route("/control/requests", get(control::requests))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_path)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(shared)
}

/// Refuses unknown paths and methods. They are recorded like invalid bodies.
async fn unknown_path(State(shared): State<Arc<Shared>>, method: Method, uri: Uri) -> (StatusCode, String) {
    let reason = format!("no wire has {method} {}", uri.path());
    let status = StatusCode::NOT_FOUND;
    let refused = RefusedRequest { wire: None, status: status.as_u16(), reason: reason.clone() };
    shared.lock().refusals.push(refused);
    (status, reason)
}
