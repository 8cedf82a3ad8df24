//! `GET /health` as a bare handler, alone and with a read from a SQLite file.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use api::engine::{EngineHealth, HEALTHY, Subsystems};
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;
use rusqlite::Connection;

/// Returns a router that answers like a healthy engine.
pub(super) fn bare() -> Router {
    Router::new().route("/health", get(async || Json(health(HEALTHY.to_owned()))))
}

/// Returns a router that first reads from the SQLite file `database`, which is created.
pub(super) fn sqlite(database: &Path) -> anyhow::Result<Router> {
    let connection = Connection::open(database).context("the baseline's database cannot be opened")?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT);
             INSERT OR REPLACE INTO meta VALUES ('status', 'ok');",
        )
        .context("the baseline's database cannot be written")?;
    let connection = Arc::new(Mutex::new(connection));
    Ok(Router::new().route("/health", get(read)).with_state(connection))
}

async fn read(State(connection): State<Arc<Mutex<Connection>>>) -> Json<EngineHealth> {
    let connection = connection.lock();
    let value = connection
        .prepare_cached("SELECT value FROM meta WHERE name = 'status'")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)));
    Json(health(value.unwrap_or_else(|error| error.to_string())))
}

/// Returns the health of an engine whose database has this status.
pub(crate) fn health(database: String) -> EngineHealth {
    let ok = || HEALTHY.to_owned();
    let status = if database == HEALTHY { ok() } else { "degraded".to_owned() };
    let subsystems = Subsystems { database, llm_provider: ok(), asset_directory: ok() };
    EngineHealth { status, uptime_seconds: 0.0, subsystems }
}
