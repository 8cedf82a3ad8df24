//! The registry's other reads as bare handlers: the same queries, inline, on a copy of a registry, and responses
//! of the same size. It checks neither keys nor input.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use api::orchestrator::{EngineList, EngineStatus, EngineSummary, ListEngines, PageLimit, PageOffset};
use api::{Timestamp, UserId};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use rusqlite::{Connection, OpenFlags, Row, params};
use serde_json::{Value, json, value::RawValue};

const HOUR_MS: i64 = 3_600_000;
/// The default number of rows on a page.
const PAGE_SIZE: i64 = 100;

const LIST: &str = "SELECT engine_id, user_id, status, port, engine_version, created_at, last_health_at
    FROM engines WHERE product_id = ?1 ORDER BY created_at, engine_id LIMIT ?2 OFFSET ?3";
const TOTAL: &str = "SELECT COUNT(*) FROM engines WHERE product_id = ?1";
const STATES: &str = "SELECT status, COUNT(*) FROM engines WHERE product_id = ?1 GROUP BY status";
const LIFETIME: &str = "SELECT provisions, destroys FROM products WHERE product_id = ?1";
const RECENT: &str = "SELECT COUNT(*), CAST(COALESCE(AVG(duration_ms), 0) AS INTEGER)
    FROM audit_log WHERE product_id = ?1 AND event = ?2 AND at > ?3";
const AUDIT: &str = "SELECT id, at, engine_id, user_id, event, duration_ms, detail, hash
    FROM audit_log WHERE product_id = ?1 ORDER BY id DESC LIMIT ?2";

thread_local! {
    /// One connection per worker thread, and the id of the only product.
    static REGISTRY: RefCell<Option<(Connection, String)>> = const { RefCell::new(None) };
}

/// Returns a router for `GET /engines`, `/status`, `/metrics` and `/audit`. `database` is opened on the first
/// request.
pub(super) fn router(database: PathBuf) -> Router {
    Router::new()
        .route("/engines", get(list))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .route("/audit", get(audit))
        .with_state(Arc::new(database))
}

type JsonResult<T> = Result<Json<T>, StatusCode>;

async fn list(
    State(database): State<Arc<PathBuf>>,
    Query(request): Query<ListEngines>,
) -> JsonResult<EngineList> {
    query(&database, |connection, product| {
        let limit = request.limit.map_or(PAGE_SIZE, PageLimit::get);
        let offset = request.offset.map_or(0, PageOffset::get);
        let transaction = connection.unchecked_transaction()?;
        let mut page = connection.prepare_cached(LIST)?;
        let rows = page.query_map(params![product, limit, offset], |row| Ok(summary(row)))?;
        let engines = rows.map(|row| row?).collect::<anyhow::Result<_>>()?;
        let total: i64 = connection.prepare_cached(TOTAL)?.query_row([product], |row| row.get(0))?;
        transaction.commit()?;
        Ok(EngineList { engines, total: total.unsigned_abs() })
    })
}

fn summary(row: &Row<'_>) -> anyhow::Result<EngineSummary> {
    let text = |column: usize| Ok::<_, anyhow::Error>(row.get_ref(column)?.as_str()?);
    Ok(EngineSummary {
        engine_id: text(0)?.parse()?,
        user_id: UserId::new(text(1)?)?,
        status: EngineStatus::from_name(text(2)?).context("the status is unknown")?,
        url: row.get::<_, Option<u16>>(3)?.map(|port| format!("http://127.0.0.1:{port}")),
        engine_version: text(4)?.parse()?,
        created_at: Timestamp::from_unix_ms(row.get(5)?),
        last_health_at: row.get::<_, Option<i64>>(6)?.map(Timestamp::from_unix_ms),
    })
}

async fn status(State(database): State<Arc<PathBuf>>) -> JsonResult<Value> {
    query(&database, |connection, product| {
        let mut states = connection.prepare_cached(STATES)?;
        let rows =
            states.query_map([product], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
        let by_status = rows.collect::<Result<Vec<_>, _>>()?;
        let total: i64 = by_status.iter().map(|(_, count)| count).sum();
        let by_status: serde_json::Map<_, _> =
            by_status.into_iter().map(|(status, count)| (status, count.into())).collect();
        Ok(json!({"total": total, "by_status": by_status, "health": "ok", "unhealthy_count": 0}))
    })
}

async fn metrics(State(database): State<Arc<PathBuf>>) -> JsonResult<Value> {
    query(&database, |connection, product| {
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
        let recent = |event: &str| {
            let mut recent = connection.prepare_cached(RECENT)?;
            recent.query_row(params![product, event, now - HOUR_MS], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
            })
        };
        let (provisions_1h, avg_boot_ms) = recent("provision")?;
        let (crashes_1h, _) = recent("crash")?;
        let (restarts_1h, _) = recent("restart")?;
        let (total_provisions, total_destroys): (i64, i64) = connection
            .prepare_cached(LIFETIME)?
            .query_row([product], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(json!({
            "provisions_1h": provisions_1h, "crashes_1h": crashes_1h, "restarts_1h": restarts_1h,
            "avg_boot_ms": avg_boot_ms, "total_provisions": total_provisions, "total_destroys": total_destroys,
        }))
    })
}

async fn audit(State(database): State<Arc<PathBuf>>) -> JsonResult<Value> {
    query(&database, |connection, product| {
        let mut page = connection.prepare_cached(AUDIT)?;
        let rows = page.query_map(params![product, PAGE_SIZE], |row| Ok(audit_row(row)))?;
        let rows = rows.map(|row| row?).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(json!({ "rows": rows }))
    })
}

fn audit_row(row: &Row<'_>) -> anyhow::Result<Value> {
    let detail: &RawValue = serde_json::from_str(row.get_ref(6)?.as_str()?)?;
    Ok(json!({
        "id": row.get::<_, i64>(0)?,
        "at": Timestamp::from_unix_ms(row.get(1)?),
        "engine_id": row.get::<_, Option<String>>(2)?,
        "user_id": row.get::<_, Option<String>>(3)?,
        "event": row.get::<_, String>(4)?,
        "duration_ms": row.get::<_, Option<i64>>(5)?,
        "detail": detail,
        "hash": row.get::<_, String>(7)?,
    }))
}

fn query<T>(database: &PathBuf, query: impl FnOnce(&Connection, &str) -> anyhow::Result<T>) -> JsonResult<T> {
    let answer = REGISTRY.with_borrow_mut(|slot| {
        if slot.is_none() {
            // Opened for writing, because the first reader creates the write-ahead log's index, which a copy
            // lacks.
            let connection = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            let product = connection.query_row("SELECT product_id FROM products", [], |row| row.get(0))?;
            *slot = Some((connection, product));
        }
        let (connection, product) = slot.as_ref().context("it has just been opened")?;
        query(connection, product)
    });
    answer.map(Json).map_err(|_: anyhow::Error| StatusCode::INTERNAL_SERVER_ERROR)
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::Method;
    use serde::de::DeserializeOwned;
    use tokio::net::TcpListener;

    use super::*;
    use crate::baselines::serve;
    use crate::client::Client;
    use crate::registry::{add_engines, tests::create_empty, write_audit_log};

    async fn get<T: DeserializeOwned>(client: &mut Client, path: &str) -> T {
        let request = client.request(Method::GET, path).body(Full::default()).unwrap();
        client.fetch_json(request).await.unwrap()
    }

    #[tokio::test]
    async fn the_registry_floor_reads_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let registry = folder.path().join("registry.sqlite");
        create_empty(&registry);
        add_engines(&registry, 0..30).unwrap();
        write_audit_log(&registry, 8_000).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, router(registry)));
        let mut client = Client::connect(address).await.unwrap();

        let list: EngineList = get(&mut client, "/engines?limit=7&offset=25").await;
        assert_eq!((list.engines.len(), list.total), (5, 30));
        let status: Value = get(&mut client, "/status").await;
        assert_eq!((&status["total"], &status["by_status"]["stopped"]), (&json!(30), &json!(30)));
        let metrics: Value = get(&mut client, "/metrics").await;
        assert_eq!(metrics["total_provisions"], 1_000);
        // The provisions of one hour in thirty days.
        assert_eq!(metrics["provisions_1h"], 1);
        let audit: Value = get(&mut client, "/audit").await;
        let rows = audit["rows"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0]["id"], &rows[0]["event"]), (100, &json!(8_001), &json!("destroy")));
    }
}
