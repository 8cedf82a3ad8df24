//! A replay as a bare handler: the stored bytes of the events, selected page by page, inline.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use futures::stream;
use rusqlite::{Connection, params};

/// The path of the replay endpoint.
pub(crate) const PATH: &str = "/execute/replay";
/// The number of events selected at a time.
const PAGE_SIZE: u32 = 512;

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS events (
        task INTEGER NOT NULL, ts INTEGER NOT NULL, sse BLOB NOT NULL, PRIMARY KEY (task, ts)
    ) WITHOUT ROWID;";

const SELECT_EVENTS: &str = "SELECT ts, sse FROM events WHERE task = 1 AND ts > ?1 ORDER BY ts LIMIT ?2";

/// Stores the events of a replay in the database in `folder`.
pub(crate) fn store_events(folder: &Path, replay: &[u8]) -> anyhow::Result<()> {
    let text = std::str::from_utf8(replay).context("a replay is not UTF-8")?;
    let mut connection = Connection::open(super::database_file(folder))?;
    connection.execute_batch(SCHEMA)?;
    let transaction = connection.transaction()?;
    for (ts, event) in (1_i64..).zip(text.split_inclusive("\n\n")) {
        transaction
            .prepare_cached("INSERT INTO events VALUES (1, ?1, ?2)")?
            .execute(params![ts, event.as_bytes()])?;
    }
    Ok(transaction.commit()?)
}

/// Returns a router that sends all events of the database, which is created if it is missing.
pub(super) fn router(database: PathBuf) -> anyhow::Result<Router> {
    Connection::open(&database)?
        .execute_batch(SCHEMA)
        .context("the baseline's database cannot be written")?;
    Ok(Router::new().route(PATH, get(replay)).with_state(Arc::new(database)))
}

async fn replay(State(database): State<Arc<PathBuf>>) -> impl IntoResponse {
    let pages = stream::unfold((database, None, 0), async |(database, connection, after)| {
        let connection = match connection {
            None => Connection::open(&*database),
            Some(connection) => Ok(connection),
        };
        match connection.and_then(|connection| Ok((next_page(&connection, after)?, connection))) {
            Ok((Some((last, bytes)), connection)) => Some((Ok(bytes), (database, Some(connection), last))),
            Ok((None, _)) => None,
            // The error ends the stream early, which the client detects.
            Err(error) => Some((Err(error), (database, None, i64::MAX))),
        }
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(pages))
}

/// Returns the `ts` of the page's last event, and the events after `after`; `None` if there are none.
fn next_page(connection: &Connection, after: i64) -> rusqlite::Result<Option<(i64, Bytes)>> {
    let mut statement = connection.prepare_cached(SELECT_EVENTS)?;
    let mut rows = statement.query(params![after, PAGE_SIZE])?;
    let mut last = None;
    let mut bytes = Vec::new();
    while let Some(row) = rows.next()? {
        last = Some(row.get(0)?);
        bytes.extend_from_slice(row.get_ref(1)?.as_blob()?);
    }
    Ok(last.map(|last| (last, bytes.into())))
}
