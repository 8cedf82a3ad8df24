//! An admit as a bare handler: one inline point read of a row with the registry's columns, and the same response.
//! It has no rate limit, no sealed keys and no engine states.

use std::cell::RefCell;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use api::orchestrator::{Admission, Admit, EngineRecord, EngineStatus, EngineSummary, PLATFORM_KEY_HEADER};
use api::{EngineId, EngineKey, KeyHash, Timestamp, UserId};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, params};

/// The accepted platform key, as long as a real one.
pub(crate) const PLATFORM_KEY: &str = "pk-svc-00000000000000000000000000000000000000000000";
/// The product with this key.
pub(super) const PRODUCT_ID: &str = "prod_0197a2f0c3d47b1c9e5f6a7b8c9d0e1f";
/// The number of engines that are admitted; the database has no others at first.
pub(crate) const USER_COUNT: u16 = 8;
/// An arbitrary time with as many digits as a real one.
pub(super) const PLACEHOLDER_TIME_MS: i64 = 1_750_000_000_123;

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE engines (
        engine_id TEXT PRIMARY KEY, product_id TEXT NOT NULL, user_id TEXT NOT NULL, status TEXT NOT NULL,
        prior_status TEXT, key_hash TEXT NOT NULL, api_key TEXT NOT NULL, engine_version TEXT NOT NULL,
        pinned BIGINT NOT NULL, port BIGINT UNIQUE, instance TEXT, created_at BIGINT NOT NULL,
        last_health_at BIGINT, generation BIGINT NOT NULL, claim_kind TEXT, UNIQUE (product_id, user_id)
    );";

const SELECT_ENGINE: &str = "
    SELECT engine_id, user_id, status, engine_version, port, created_at, last_health_at, api_key, prior_status,
           key_hash, pinned, instance, generation, claim_kind
    FROM engines WHERE product_id = ?1 AND user_id = ?2";

thread_local! {
    /// One connection per worker thread, which needs no lock or pool.
    static CONNECTION: RefCell<Option<Connection>> = const { RefCell::new(None) };
}

struct Registry {
    database: PathBuf,
}

/// Returns the user with this number.
pub(crate) fn user_name(number: u16) -> String {
    format!("user-{number:02}")
}

/// Returns a router for `POST /engines/{user_id}/admit`.
pub(super) fn router(database: &FilePath) -> anyhow::Result<Router> {
    Connection::open(database)?.execute_batch(SCHEMA).context("the baseline's database cannot be written")?;
    insert_engines(database, (0..USER_COUNT).map(|number| (number.into(), user_name(number))))?;
    let registry = Arc::new(Registry { database: database.to_owned() });
    Ok(Router::new().route("/engines/{user_id}/admit", post(admit)).with_state(registry))
}

/// Adds engines, each with a number and a user of its own.
pub(crate) fn insert_engines(
    database: &FilePath,
    engines: impl IntoIterator<Item = (u32, String)>,
) -> anyhow::Result<()> {
    let mut connection = Connection::open(database)?;
    let transaction = connection.transaction()?;
    for (number, user) in engines {
        let key = EngineKey::generate()?;
        transaction.execute(
            "INSERT INTO engines VALUES (?1, ?2, ?3, 'running', NULL, ?4, ?5, 'svc-engine:0.1.0', 0, ?6, ?7,
             ?8, ?8, 1, NULL)",
            params![
                EngineId::new().to_string(),
                PRODUCT_ID,
                user,
                KeyHash::of(key.expose()).to_hex(),
                key.expose(),
                // Distinct, because the column is unique; large ones are no valid ports.
                9_001 + i64::from(number),
                format!("{}:123456", 1_000 + number),
                PLACEHOLDER_TIME_MS,
            ],
        )?;
    }
    Ok(transaction.commit()?)
}

async fn admit(
    State(registry): State<Arc<Registry>>,
    Path(user): Path<String>,
    headers: HeaderMap,
    Json(_): Json<Admit>,
) -> Result<Json<Admission>, StatusCode> {
    if headers.get(PLATFORM_KEY_HEADER).is_none_or(|key| key != PLATFORM_KEY) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    match registry.engine(&user) {
        Ok(Some(engine)) => Ok(Json(Admission::admitted(engine))),
        Ok(None) => Err(StatusCode::NOT_FOUND),
        Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

impl Registry {
    fn engine(&self, user: &str) -> anyhow::Result<Option<EngineRecord>> {
        CONNECTION.with_borrow_mut(|slot| {
            if slot.is_none() {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                *slot = Some(Connection::open_with_flags(&self.database, flags)?);
            }
            let connection = slot.as_ref().context("it has just been opened")?;
            let mut statement = connection.prepare_cached(SELECT_ENGINE)?;
            let engine =
                statement.query_row(params![PRODUCT_ID, user], |row| Ok(engine_record(row))).optional()?;
            engine.transpose()
        })
    }
}

fn engine_record(row: &Row<'_>) -> anyhow::Result<EngineRecord> {
    let text = |column: usize| Ok::<_, anyhow::Error>(row.get_ref(column)?.as_str()?);
    let port: u16 = row.get(4)?;
    let summary = EngineSummary {
        engine_id: text(0)?.parse()?,
        user_id: UserId::new(text(1)?)?,
        status: EngineStatus::from_name(text(2)?).context("the status is unknown")?,
        url: Some(format!("http://127.0.0.1:{port}")),
        engine_version: text(3)?.parse()?,
        created_at: Timestamp::from_unix_ms(row.get(5)?),
        last_health_at: row.get::<_, Option<i64>>(6)?.map(Timestamp::from_unix_ms),
    };
    Ok(EngineRecord { summary, api_key: EngineKey::from_text(row.get(7)?) })
}
