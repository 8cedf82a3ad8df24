//! `GET /health`: the state of the engine and its parts.

use api::engine::{EngineHealth, HEALTHY, Subsystems};
use api::proof::{CHALLENGE_HEADER, Challenge, PROOF_HEADER, USAGE_HEADER, WAITING_HEADER};
use axum::Json;
use axum::extract::State as Extract;
use axum::http::{HeaderMap, HeaderName};
use axum::response::AppendHeaders;

use super::AppState;

/// Returns the health of the engine and its parts. Polled often: it costs one point read. A request with a
/// challenge also gets a proof that this engine has the key.
#[utoipa::path(
    get, path = "/health", operation_id = "get_health",
    params(("X-Engine-Challenge" = Option<String>, Header, description = "A challenge, which the response proves")),
    responses((status = 200, body = EngineHealth, description = "Health, also if it is not good", headers(
        ("X-Engine-Proof" = String, description = "Proof of the key, if the request has a challenge"),
        ("X-Engine-Waiting" = String, description = "Beside the proof: changes with the questions that wait"),
        ("X-Engine-Usage" = String, description = "Beside the proof: changes with what the engine has used"),
    ))),
)]
pub(super) async fn health(
    Extract(AppState(shared)): Extract<AppState>,
    headers: HeaderMap,
) -> (AppendHeaders<Vec<(HeaderName, String)>>, Json<EngineHealth>) {
    let database = match shared.brain.check_health() {
        Ok(()) => HEALTHY.to_owned(),
        Err(reason) => reason,
    };
    // The directory of MCP servers is empty until servers are configured, and an empty one is healthy.
    let subsystems = Subsystems {
        database,
        llm_provider: shared.active_config.gateway().status(),
        asset_directory: HEALTHY.to_owned(),
    };
    let statuses = [&subsystems.database, &subsystems.llm_provider, &subsystems.asset_directory];
    let status = if statuses.iter().all(|status| *status == HEALTHY) { HEALTHY } else { "degraded" };
    let uptime = shared.clock.monotonic().saturating_sub(shared.started_at);
    let health = EngineHealth { status: status.to_owned(), uptime_seconds: uptime.as_secs_f64(), subsystems };
    let challenge = headers.get(CHALLENGE_HEADER).and_then(|text| Challenge::parse(text.to_str().ok()?));
    let proof = challenge.map(|challenge| shared.key_guard.proof(&challenge));
    let proof = proof.map(|proof| (HeaderName::from_static(PROOF_HEADER), proof));
    // For the orchestrator, which asks for the questions, or for the usage, when the tag changes.
    let hash = proof.is_some().then(|| shared.key_guard.hash());
    let waiting = hash.and_then(|hash| shared.agent.waiting_tag(hash).ok());
    let waiting = waiting.map(|tag| (HeaderName::from_static(WAITING_HEADER), tag));
    let usage = hash.and_then(|hash| shared.agent.usage_tag(hash).ok());
    let usage = usage.map(|tag| (HeaderName::from_static(USAGE_HEADER), tag));
    (AppendHeaders(proof.into_iter().chain(waiting).chain(usage).collect()), Json(health))
}
