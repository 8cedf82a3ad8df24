//! `GET /health`.

use axum::Json;
use axum::extract::State as Extract;
use contract::engine::{EngineHealth, HEALTHY, Subsystems};

use super::State;

/// Whether the engine and its parts are well. Polled often: it costs one point read.
#[utoipa::path(get, path = "/health", responses((status = 200, body = EngineHealth)))]
pub(super) async fn health(Extract(State(shared)): Extract<State>) -> Json<EngineHealth> {
    let database = match shared.brain.check() {
        Ok(()) => HEALTHY.to_owned(),
        Err(reason) => reason,
    };
    // The directory of tool servers is empty until servers can be configured, and an empty one is well.
    let subsystems = Subsystems {
        database,
        llm_provider: shared.in_force.gateway().status(),
        asset_directory: HEALTHY.to_owned(),
    };
    let well = [&subsystems.database, &subsystems.llm_provider, &subsystems.asset_directory];
    let status = if well.iter().all(|status| *status == HEALTHY) { HEALTHY } else { "degraded" };
    let uptime = shared.clock.monotonic().saturating_sub(shared.started);
    Json(EngineHealth { status: status.to_owned(), uptime_seconds: uptime.as_secs_f64(), subsystems })
}
