//! An admit as a bare handler on PostgreSQL: one indexed read, through an sqlx pool, of a row with the registry's
//! columns, and the same response. It has no rate limit, no sealed keys and no engine states.

use std::path::Path as FilePath;

use anyhow::Context as _;
use api::orchestrator::{Admission, Admit, EngineRecord, EngineStatus, EngineSummary, PLATFORM_KEY_HEADER};
use api::{EngineId, EngineKey, KeyHash, Timestamp, UserId};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use sqlx::postgres::{PgPoolOptions, PgRow};
use sqlx::{PgPool, Row as _};

use super::admit::{PLACEHOLDER_TIME_MS, PLATFORM_KEY, PRODUCT_ID, USER_COUNT, user_name};
use crate::postgres::{analyze, connect};

/// More connections are slower if the PostgreSQL server and the baseline share the cores.
const MAX_CONNECTIONS: u32 = 8;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS engines (
        engine_id TEXT PRIMARY KEY, product_id TEXT NOT NULL, user_id TEXT NOT NULL, status TEXT NOT NULL,
        prior_status TEXT, key_hash TEXT NOT NULL, api_key TEXT NOT NULL, engine_version TEXT NOT NULL,
        pinned BIGINT NOT NULL, port BIGINT UNIQUE, instance TEXT, created_at BIGINT NOT NULL,
        last_health_at BIGINT, generation BIGINT NOT NULL, claim_kind TEXT, UNIQUE (product_id, user_id)
    )";

const SELECT_ENGINE: &str = "
    SELECT engine_id, user_id, status, engine_version, port, created_at, last_health_at, api_key, prior_status,
           key_hash, pinned, instance, generation, claim_kind
    FROM engines WHERE product_id = $1 AND user_id = $2";

/// Writes the URL of its database for the baseline in `folder`.
pub(crate) fn write_url(folder: &FilePath, url: &str) -> anyhow::Result<()> {
    std::fs::write(folder.join("postgres.url"), url)
        .context("the URL of the baseline's database cannot be written")
}

/// Returns a router for `POST /engines/{user_id}/admit`.
pub(super) async fn router(folder: &FilePath) -> anyhow::Result<Router> {
    let url = std::fs::read_to_string(folder.join("postgres.url")).context("the baseline has no database")?;
    let pool = PgPoolOptions::new()
        .max_connections(MAX_CONNECTIONS)
        .test_before_acquire(false)
        .connect(&url)
        .await?;
    sqlx::query(SCHEMA).execute(&pool).await?;
    insert_engines(&url, (0..USER_COUNT).map(|number| (number.into(), user_name(number)))).await?;
    Ok(Router::new().route("/engines/{user_id}/admit", post(admit)).with_state(pool))
}

/// Adds engines, each with a number and a user of its own.
pub(crate) async fn insert_engines(
    url: &str,
    engines: impl IntoIterator<Item = (u32, String)>,
) -> anyhow::Result<()> {
    let mut connection = connect(url).await?;
    let (mut ids, mut users, mut hashes, mut keys, mut ports) = (vec![], vec![], vec![], vec![], vec![]);
    for (number, user) in engines {
        let key = EngineKey::generate()?;
        ids.push(EngineId::new().to_string());
        users.push(user);
        hashes.push(KeyHash::of(key.expose()).to_hex());
        keys.push(key.expose().to_owned());
        // Distinct, because the column is unique; large ones are no valid ports.
        ports.push(9_001 + i64::from(number));
    }
    sqlx::query(
        "INSERT INTO engines SELECT id, $6, name, 'running', NULL, hash, key, 'svc-engine:0.1.0', 0, port,
         port || ':123456', $7, $7, 1, NULL
         FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[]) AS added (id, name, hash, key, port)",
    )
    .bind(ids)
    .bind(users)
    .bind(hashes)
    .bind(keys)
    .bind(ports)
    .bind(PRODUCT_ID)
    .bind(PLACEHOLDER_TIME_MS)
    .execute(&mut connection)
    .await?;
    analyze(&mut connection).await
}

async fn admit(
    State(pool): State<PgPool>,
    Path(user): Path<String>,
    headers: HeaderMap,
    Json(_): Json<Admit>,
) -> Result<Json<Admission>, StatusCode> {
    if headers.get(PLATFORM_KEY_HEADER).is_none_or(|key| key != PLATFORM_KEY) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let read = sqlx::query(SELECT_ENGINE).bind(PRODUCT_ID).bind(user).fetch_optional(&pool).await;
    match read.map(|row| row.as_ref().map(engine_record)) {
        Ok(Some(Ok(engine))) => Ok(Json(Admission::admitted(engine))),
        Ok(None) => Err(StatusCode::NOT_FOUND),
        Ok(Some(Err(_))) | Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

fn engine_record(row: &PgRow) -> anyhow::Result<EngineRecord> {
    let text = |column: usize| row.try_get::<&str, _>(column);
    let port: i64 = row.try_get(4)?;
    let summary = EngineSummary {
        engine_id: text(0)?.parse()?,
        user_id: UserId::new(text(1)?)?,
        status: EngineStatus::from_name(text(2)?).context("the status is unknown")?,
        url: Some(format!("http://127.0.0.1:{port}")),
        engine_version: text(3)?.parse()?,
        created_at: Timestamp::from_unix_ms(row.try_get(5)?),
        last_health_at: row.try_get::<Option<i64>, _>(6)?.map(Timestamp::from_unix_ms),
    };
    Ok(EngineRecord { summary, api_key: EngineKey::from_text(row.try_get(7)?) })
}
