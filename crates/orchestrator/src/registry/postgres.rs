//! PostgreSQL: the connection pools, their session settings, and opening the registry.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AnyConnection, AnyPool, Row as _};

use super::access::with_deadline;
use super::hot_read::HotReadPool;
use super::leader_lock::{AcquiredLock, LOCK_CLASS, SessionName};
use super::open_error::OpenRegistryError;
use super::postgres_read_pool::PostgresReadPool;
use super::schema::{DatabaseKind, init_meta, migrate, reject_foreign};
use super::{OpenedRegistry, RegistryError, RegistryLock};
use crate::config::PostgresUrl;

/// The id, within [`LOCK_CLASS`], of the advisory lock for changes of several engines.
const MULTI_ENGINE_LOCK_ID: i32 = 2;

/// Products are changed concurrently; a database accepts some dozens of connections in all.
const WRITE_POOL_SIZE: u32 = 8;
const READ_POOL_SIZE: u32 = 4;

/// How long a call may wait for a connection before it fails as unreachable: less than [`with_deadline`] allows,
/// so that the pool's error, which states the cause, comes first.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(8);

/// The settings of every connection. The server gives up on a statement before its caller does, releases the locks
/// of a frozen orchestrator, and notices one whose machine is gone. `synchronous_commit` is switched on, because
/// without it the server acknowledges commits that it may still lose.
const SESSION_SETTINGS: &str = "SET statement_timeout = '8s'; SET lock_timeout = '8s'; \
    SET idle_in_transaction_session_timeout = '10s'; SET tcp_keepalives_idle = 10; \
    SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; \
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

/// The settings of connections that read: each transaction sees one snapshot, and changes nothing.
const READ_SETTINGS: &str =
    "SET default_transaction_isolation = 'repeatable read'; SET default_transaction_read_only = on";

/// The settings of connections that write: a transaction waits for the product's row, and then sees all earlier
/// commits.
const WRITE_SETTINGS: &str =
    "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off";

/// Acquires the leader lock of the database and brings its schema up to date.
pub(super) async fn open(url: &PostgresUrl) -> Result<OpenedRegistry, OpenRegistryError> {
    let options: AnyConnectOptions = url.expose().parse()?;
    let name = SessionName::generate();
    let hot_read = PgConnectOptions::from_str(url.expose())?.application_name(name.as_str());
    let mut acquired = AcquiredLock::acquire(options.clone(), name.clone()).await?;
    reject_foreign(&mut acquired.connection, DatabaseKind::Postgres).await?;
    let found = init_meta(&mut acquired.connection).await?;
    // Done before the schema changes: the previous leader expects the old one.
    let epoch = acquired.raise_epoch().await?;
    migrate(&mut acquired.connection, DatabaseKind::Postgres, found).await?;
    let lock = acquired.maintain(epoch);
    Ok(OpenedRegistry {
        writes: connect_pool(options.clone(), WRITE_POOL_SIZE, WRITE_SETTINGS, &name),
        reads: connect_pool(options, READ_POOL_SIZE, READ_SETTINGS, &name),
        hot_read_pool: HotReadPool::Postgres(Box::new(PostgresReadPool::new(hot_read))),
        lock: RegistryLock::Session(lock),
        #[cfg(test)]
        write_fault: super::open::WriteFault::default(),
    })
}

/// Connects to the database with the leader lock, which is held as long as the connection.
pub(super) async fn connect_exclusively(url: &PostgresUrl) -> Result<AnyConnection, OpenRegistryError> {
    let options: AnyConnectOptions = url.expose().parse()?;
    Ok(AcquiredLock::acquire(options, SessionName::generate()).await?.connection)
}

fn connect_pool(
    options: AnyConnectOptions,
    connections: u32,
    settings: &'static str,
    name: &SessionName,
) -> AnyPool {
    let name = name.clone();
    AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // So that a connection closed by the server fails no call. The hot read has connections of its own.
        .test_before_acquire(true)
        .idle_timeout(None)
        .max_lifetime(None)
        .after_connect(move |connection, _| {
            let name = name.clone();
            Box::pin(async move {
                name.set_on(connection).await?;
                configure_connection(connection, settings).await
            })
        })
        // The query also runs the rollback that a dropped transaction has queued. A connection whose server hangs
        // is discarded.
        .after_release(|connection, _| {
            Box::pin(async move {
                // If the caller disappeared during BEGIN, the connection is still in that transaction, which
                // nobody ends. This is a simple query: in the extended protocol each message has a timestamp of
                // its own, so that the two times would always differ.
                let is_outside_transaction = "SELECT now() = statement_timestamp()";
                with_deadline(sqlx::raw_sql(is_outside_transaction).fetch_one(connection)).await?.try_get(0)
            })
        })
        .connect_lazy_with(options)
}

async fn configure_connection(
    connection: &mut AnyConnection,
    settings: &'static str,
) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(SESSION_SETTINGS).execute(&mut *connection).await?;
    sqlx::raw_sql(settings).execute(connection).await?;
    Ok(())
}

/// Makes a connection read-only, with one snapshot per transaction.
pub(super) async fn set_read_only(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(READ_SETTINGS).execute(connection).await?;
    Ok(())
}

/// Takes the advisory lock for changes of several engines until the transaction ends: leasing a port (products
/// share the range), settling many engines, saving their activity. It must be taken before any engine's row is
/// changed, so that no two transactions wait for each other.
pub(super) async fn lock_multi_engine(connection: &mut AnyConnection) -> Result<(), RegistryError> {
    let lock =
        sqlx::query("SELECT pg_advisory_xact_lock($1, $2)").bind(LOCK_CLASS).bind(MULTI_ENGINE_LOCK_ID);
    with_deadline(lock.fetch_one(connection)).await?;
    Ok(())
}
