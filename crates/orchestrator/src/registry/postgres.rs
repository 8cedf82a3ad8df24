//! PostgreSQL: the connections and what they are told.

use std::str::FromStr as _;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AnyConnection, AnyPool, Row as _};

use super::access::with_deadline;
use super::hot_read::HotReadPool;
use super::leader_lock::{AcquiredLock, LOCK_CLASS};
use super::open::{DatabaseKind, OpenRegistryError, OpenedRegistry, init_meta, migrate, reject_foreign};
use super::postgres_read_pool::PostgresReadPool;
use super::{RegistryError, RegistryLock};
use crate::config::PostgresUrl;

/// Among the locks of this program, the one under which several engines are changed.
const MULTI_ENGINE_LOCK_ID: i32 = 2;

/// Products are changed side by side; a database takes some dozens of connections in all.
const WRITE_POOL_SIZE: u32 = 8;
const READ_POOL_SIZE: u32 = 4;

/// How long a call may wait for a connection before it is told that the server is out of reach: less than for an
/// answer, so that it is told why.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(8);

/// What every connection is told. The server gives up on a statement before its caller does, frees what a frozen
/// orchestrator holds, and notices one whose machine is gone. A server that acknowledges what it may yet lose is
/// told not to.
const SESSION_SETTINGS: &str = "SET statement_timeout = '8s'; SET lock_timeout = '8s'; \
    SET idle_in_transaction_session_timeout = '10s'; SET tcp_keepalives_idle = 10; \
    SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; \
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

/// Those that read see one moment throughout a transaction, and change nothing.
const READ_SETTINGS: &str =
    "SET default_transaction_isolation = 'repeatable read'; SET default_transaction_read_only = on";

/// A transaction that writes waits for the product's row, and sees what was committed until then.
const WRITE_SETTINGS: &str =
    "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off";

/// Takes hold of the database and brings its schema up to date.
pub(super) async fn open(url: &PostgresUrl) -> Result<OpenedRegistry, OpenRegistryError> {
    let options: AnyConnectOptions = url.expose().parse()?;
    let hot_read = PgConnectOptions::from_str(url.expose())?;
    let mut taken = AcquiredLock::acquire(options.clone()).await?;
    reject_foreign(&mut taken.connection, DatabaseKind::Postgres).await?;
    let found = init_meta(&mut taken.connection).await?;
    // Before the schema changes: whoever wrote until now knows another one.
    let epoch = taken.raise_epoch().await?;
    migrate(&mut taken.connection, DatabaseKind::Postgres, found).await?;
    let hold = taken.maintain(epoch);
    Ok(OpenedRegistry {
        writes: connect_pool(options.clone(), WRITE_POOL_SIZE, WRITE_SETTINGS),
        reads: connect_pool(options, READ_POOL_SIZE, READ_SETTINGS),
        hot_read_pool: HotReadPool::Postgres(Box::new(PostgresReadPool::new(hot_read))),
        lock: RegistryLock::Session(hold),
    })
}

fn connect_pool(options: AnyConnectOptions, connections: u32, role: &'static str) -> AnyPool {
    AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // A connection that the server has ended fails no call. The hot read has connections of its own.
        .test_before_acquire(true)
        .idle_timeout(None)
        .max_lifetime(None)
        .after_connect(move |connection, _| Box::pin(configure_connection(connection, role)))
        // What a transaction that was dropped has left is undone here; a server that hangs keeps no place.
        .after_release(|connection, _| {
            Box::pin(async move {
                // One whose caller went away in the midst of a BEGIN is still in that transaction, which nobody ends. Asked
                // in one message: of a prepared statement the server takes the time at each, and no two are the same.
                let alone = "SELECT now() = statement_timestamp()";
                with_deadline(sqlx::raw_sql(alone).fetch_one(connection)).await?.try_get(0)
            })
        })
        .connect_lazy_with(options)
}

async fn configure_connection(connection: &mut AnyConnection, role: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(SESSION_SETTINGS).execute(&mut *connection).await?;
    sqlx::raw_sql(role).execute(connection).await?;
    Ok(())
}

/// Tells a connection that it reads, and sees one moment.
pub(super) async fn set_read_only(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(READ_SETTINGS).execute(connection).await?;
    Ok(())
}

/// Lets nobody else touch several engines until the transaction ends: who leases a port, which products share,
/// moves many engines or stamps them. Before any engine's row is touched, so that no two wait for each other.
pub(super) async fn lock_multi_engine(connection: &mut AnyConnection) -> Result<(), RegistryError> {
    let lock =
        sqlx::query("SELECT pg_advisory_xact_lock($1, $2)").bind(LOCK_CLASS).bind(MULTI_ENGINE_LOCK_ID);
    with_deadline(lock.fetch_one(connection)).await?;
    Ok(())
}
