//! Creates databases on a PostgreSQL server, and fills one of them with very many rows.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use api::{EngineId, EngineKey, KeyHash};
use chaos::postgres::PostgresServer;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use crate::context::log_progress;
use crate::registry;

/// The variable with the URL of an existing server, whose user may create databases.
const SERVER_URL_VAR: &str = "ROUNDHOUSE_TEST_POSTGRES_URL";

/// A server: that of [`SERVER_URL_VAR`], or one of this run, which ends when it is dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    _started: Option<PostgresServer>,
}

impl Server {
    /// Starts a server unless there is one. Fails if PostgreSQL's programs are missing.
    pub(crate) fn find_or_start() -> anyhow::Result<Self> {
        if let Ok(url) = std::env::var(SERVER_URL_VAR) {
            return Ok(Self { url, _started: None });
        }
        let password = EngineKey::generate()?.expose().trim_start_matches("sk-svc-").to_owned();
        let started = PostgresServer::start(password)?;
        Ok(Self { url: started.url(), _started: Some(started) })
    }

    /// Why there is no server and none can be started, if so.
    pub(crate) fn missing() -> Option<anyhow::Error> {
        if std::env::var_os(SERVER_URL_VAR).is_some() { None } else { PostgresServer::programs().err() }
    }
}

/// New databases for this run. Dropped, they are deleted.
pub(crate) struct Databases<const N: usize> {
    server: String,
    names: [String; N],
    /// The URL of each database.
    pub(crate) urls: [String; N],
}

impl<const N: usize> Databases<N> {
    /// Creates a database for each of `purposes`.
    pub(crate) async fn create(server: &str, purposes: [&str; N]) -> anyhow::Result<Self> {
        let names = purposes.map(|purpose| format!("roundhouse_bench_{}_{purpose}", std::process::id()));
        let mut connection = connect(server).await?;
        for name in &names {
            sqlx::query(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")))
                .execute(&mut connection)
                .await?;
            sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await?;
        }
        let urls = names.clone().map(|name| with_database(server, &name));
        Ok(Self { server: server.to_owned(), names, urls })
    }
}

impl<const N: usize> Drop for Databases<N> {
    /// Runs on a thread of its own, because it may be called within a runtime.
    fn drop(&mut self) {
        let drop = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut connection = connect(&self.server).await?;
                for name in &self.names {
                    let drop = AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
                    sqlx::query(drop).execute(&mut connection).await?;
                }
                anyhow::Ok(())
            })
        };
        let dropped = std::thread::scope(|scope| scope.spawn(drop).join());
        if !matches!(dropped, Ok(Ok(()))) {
            log_progress(&format!("the databases {} may be left on the server", self.names.join(", ")));
        }
    }
}

/// Replaces the database in a URL.
fn with_database(url: &str, name: &str) -> String {
    let (head, query) = url.split_once('?').unwrap_or((url, ""));
    let begin = head.find("://").map_or(0, |at| at + 3);
    let end = head.get(begin..).and_then(|rest| rest.find('/')).map_or(head.len(), |at| begin + at);
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{}/{name}{mark}{query}", head.get(..end).unwrap_or(head))
}

/// Connects to the database. Errors do not contain the password.
pub(crate) async fn connect(url: &str) -> anyhow::Result<PgConnection> {
    let options: PgConnectOptions = url.parse().context("the URL of the PostgreSQL server is invalid")?;
    options.connect().await.context("the PostgreSQL server cannot be reached")
}

/// Adds the engines with these numbers to the only product, as stopped: the orchestrator would check running ones.
pub(crate) async fn add_engines(url: &str, numbers: Range<u32>) -> anyhow::Result<()> {
    let mut connection = connect(url).await?;
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    let (mut ids, mut users, mut hashes, mut sealed, mut times) = (vec![], vec![], vec![], vec![], vec![]);
    for number in numbers {
        let key = EngineKey::generate()?;
        ids.push(EngineId::new().to_string());
        users.push(registry::user_name(number));
        hashes.push(KeyHash::of(key.expose()).to_hex());
        // As long as a sealed key.
        sealed.push(format!("{0}{0}", key.expose()));
        times.push(now + i64::from(number));
    }
    sqlx::query(
        "INSERT INTO engines (engine_id, product_id, user_id, status, key_hash, sealed_key, sealed_secrets_key,
         engine_version, pinned, created_at, last_health_at, generation)
         SELECT id, product_id, name, 'stopped', hash, sealed, sealed, 'svc-engine:0.1.0', 0, at, at, 1
         FROM products, UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
         AS added (id, name, hash, sealed, at)",
    )
    .bind(ids)
    .bind(users)
    .bind(hashes)
    .bind(sealed)
    .bind(times)
    .execute(&mut connection)
    .await?;
    analyze(&mut connection).await?;
    Ok(connection.close().await?)
}

/// Vacuums and analyzes the table, as the server itself does some time after many rows were written.
pub(crate) async fn analyze(connection: &mut PgConnection) -> anyhow::Result<()> {
    sqlx::query("VACUUM ANALYZE engines").execute(connection).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_given_another_database() {
        for (url, expected) in [
            ("postgres://a:b@c:1/d", "postgres://a:b@c:1/new"),
            ("postgres://a@c", "postgres://a@c/new"),
            ("postgres://a:b@localhost/d?host=/tmp/x", "postgres://a:b@localhost/new?host=/tmp/x"),
        ] {
            assert_eq!(with_database(url, "new"), expected);
        }
    }
}
