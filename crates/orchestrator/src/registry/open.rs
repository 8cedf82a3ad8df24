//! Opening the registry: the lock, the connections, the schema.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;

use api::Timestamp;
use http_service::lock::{FileLock, LockError, LockHolder};
use resources::keyed_locks::KeyedLocks;
use sqlx::any::{AnyConnectOptions, AnyPoolOptions, install_default_drivers};
use sqlx::error::DatabaseError;
use sqlx::{AnyConnection, AnyPool, ConnectOptions as _, Connection as _, Row as _};

use super::access::is_unreachable;
use super::hot_read::{HotReadPool, SqliteReadPool};
use super::unreadable_rows::UnreadableRows;
use super::{Registry, RegistryLock, postgres};
use crate::config::DatabaseUrl;

/// The migrations from an empty database to the current schema. The n-th leads to version n. Each has a part for
/// all databases and parts for a single kind.
const MIGRATIONS: [Migration; 2] = [
    Migration {
        shared: include_str!("../../migrations/0001_registry.sql"),
        sqlite: include_str!("../../migrations/0001_registry.sqlite.sql"),
        postgres: include_str!("../../migrations/0001_registry.postgres.sql"),
    },
    Migration { shared: include_str!("../../migrations/0002_supervision.sql"), sqlite: "", postgres: "" },
];

struct Migration {
    shared: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

/// The kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatabaseKind {
    Sqlite,
    Postgres,
}

impl DatabaseKind {
    /// Returns the query that counts the tables called `meta`.
    const fn count_meta_sql(self) -> &'static str {
        match self {
            Self::Sqlite => "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = 'meta'",
            Self::Postgres => {
                "SELECT COUNT(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'meta'"
            }
        }
    }

    /// Returns the query that names a table which an empty registry does not have.
    const fn find_foreign_sql(self) -> &'static str {
        match self {
            Self::Sqlite => {
                "SELECT MIN(name) FROM sqlite_master WHERE type = 'table' AND name <> 'meta' \
                 AND name NOT LIKE 'sqlite%'"
            }
            Self::Postgres => {
                "SELECT MIN(CAST(tablename AS TEXT)) FROM pg_tables \
                 WHERE schemaname = current_schema() AND tablename <> 'meta'"
            }
        }
    }
}

/// The connections and the lock of an opened registry.
pub(super) struct OpenedRegistry {
    pub(super) writes: AnyPool,
    pub(super) reads: AnyPool,
    pub(super) hot_read_pool: HotReadPool,
    pub(super) lock: RegistryLock,
}

/// Point reads take microseconds; more connections than cores would only queue inside SQLite.
const READ_POOL_SIZE: u32 = 4;

/// How long a request may wait for a connection before it fails.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the registry could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenRegistryError {
    /// Another process holds it.
    #[error("the registry is held by {0}")]
    Held(LockHolder),
    /// Its folder or lock file cannot be used.
    #[error("the registry's folder or lock file cannot be used")]
    Folder(#[source] io::Error),
    /// A later version wrote it.
    #[error("the registry's schema has version {found}; this binary supports versions up to {known}")]
    SchemaTooNew {
        /// The version found.
        found: i64,
        /// The latest version that this binary supports.
        known: i64,
    },
    /// It contains foreign tables.
    #[error("the database contains a table `{table}` that does not belong to the registry")]
    ForeignTables {
        /// One of its tables.
        table: String,
    },
    /// The server is reachable and denies access.
    #[error("the database server denies access: {reason}")]
    Refused {
        /// The server's message.
        reason: String,
    },
    /// The server is unreachable.
    #[error("the database server cannot be reached")]
    Unreachable(#[source] sqlx::Error),
    /// The file is no database, or a damaged one.
    #[error("the file is not a SQLite database, or a damaged one")]
    Corrupt(#[source] sqlx::Error),
    /// The connection for point reads could not be opened.
    #[error("the database cannot be read")]
    HotReadPool(#[source] rusqlite::Error),
    /// Any other error of the database.
    #[error("the database failed")]
    Database(#[source] sqlx::Error),
}

impl From<LockError> for OpenRegistryError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held(holder) => Self::Held(holder),
            LockError::Io { source, .. } => Self::Folder(source),
        }
    }
}

impl From<sqlx::Error> for OpenRegistryError {
    fn from(error: sqlx::Error) -> Self {
        if is_unreachable(&error) {
            return Self::Unreachable(error);
        }
        let database_error = error.as_database_error();
        let code = database_error.and_then(DatabaseError::code).unwrap_or_default();
        // PostgreSQL's codes have five characters, unlike any of SQLite's. Its message says what is wrong, such
        // as a missing database.
        if let Some(refusal) = database_error.filter(|_| code.len() == 5) {
            return Self::Refused { reason: refusal.message().to_owned() };
        }
        // SQLITE_CORRUPT, SQLITE_NOTADB: the primary code is the low byte.
        let primary = code.parse::<i64>().ok().map(|code| code & 0xff);
        if matches!(primary, Some(11 | 26)) { Self::Corrupt(error) } else { Self::Database(error) }
    }
}

impl Registry {
    /// Opens the registry at `database` and brings its schema up to date. A SQLite file is created if it is
    /// missing.
    pub(crate) async fn open(database: &DatabaseUrl, now: Timestamp) -> Result<Self, OpenRegistryError> {
        install_drivers();
        let OpenedRegistry { writes, reads, hot_read_pool, lock } = match database {
            DatabaseUrl::Sqlite(path) => open_sqlite(path, now).await?,
            DatabaseUrl::Postgres(url) => postgres::open(url).await?,
        };
        Ok(Self {
            writes,
            reads,
            hot_read_pool,
            notifier: Arc::default(),
            product_locks: KeyedLocks::default(),
            unreadable_rows: UnreadableRows::default(),
            #[cfg(test)]
            hot_reads: std::sync::atomic::AtomicUsize::default(),
            lock,
        })
    }
}

async fn open_sqlite(database: &Path, now: Timestamp) -> Result<OpenedRegistry, OpenRegistryError> {
    let database = std::path::absolute(database).map_err(OpenRegistryError::Folder)?;
    if let Some(folder) = database.parent() {
        std::fs::create_dir_all(folder).map_err(OpenRegistryError::Folder)?;
    }
    let mut lock = database.as_os_str().to_owned();
    lock.push(".lock");
    // This waits for a second if another process holds the lock, and a standby retries.
    let acquired = tokio::task::spawn_blocking(move || FileLock::acquire(Path::new(&lock), now)).await;
    let lock = acquired.map_err(|error| OpenRegistryError::Folder(io::Error::other(error)))??;
    create_private(&database).map_err(OpenRegistryError::Folder)?;
    let options: AnyConnectOptions = sqlite_url(&database, "rw").parse()?;
    // Done before any pool exists: a pool retries what can never succeed, and loses the cause.
    let mut connection = options.connect().await?;
    // Done before anything is set up: the file may belong to something else.
    reject_foreign(&mut connection, DatabaseKind::Sqlite).await?;
    configure_connection(&mut connection, false).await?;
    let found = init_meta(&mut connection).await?;
    migrate(&mut connection, DatabaseKind::Sqlite, found).await?;
    connection.close().await?;
    let reads = SqliteReadPool::open(&database).map_err(OpenRegistryError::HotReadPool)?;
    Ok(OpenedRegistry {
        writes: connect_pool(options.clone(), 1, false).await?,
        reads: connect_pool(options, READ_POOL_SIZE, true).await?,
        hot_read_pool: HotReadPool::Sqlite(reads),
        lock: RegistryLock::File { _lock: lock },
    })
}

/// Creates the file if it is missing, accessible to this user alone: SQLite would make it readable to everyone,
/// and gives the files that it keeps beside it the same mode.
fn create_private(database: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(database) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Installs the database drivers, once.
pub(super) fn install_drivers() {
    static DRIVERS: Once = Once::new();
    DRIVERS.call_once(install_default_drivers);
}

/// Returns the URL of a SQLite file, opened in `mode`, with every character escaped that has a meaning in a URL.
pub(super) fn sqlite_url(database: &Path, mode: &str) -> String {
    let mut url = "sqlite://".to_owned();
    for byte in database.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                url.push(char::from(*byte));
            }
            _ => url = format!("{url}%{byte:02X}"),
        }
    }
    url + "?mode=" + mode
}

async fn connect_pool(
    options: AnyConnectOptions,
    connections: u32,
    read_only: bool,
) -> Result<AnyPool, sqlx::Error> {
    AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // By default each acquire pings first, which costs more than the read itself.
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .after_connect(move |connection, _| Box::pin(configure_connection(connection, read_only)))
        .connect_with(options)
        .await
}

async fn configure_connection(connection: &mut AnyConnection, read_only: bool) -> Result<(), sqlx::Error> {
    // FULL: an acknowledged change survives a power failure.
    let settings = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000; \
                    PRAGMA foreign_keys = ON;";
    sqlx::raw_sql(settings).execute(&mut *connection).await?;
    if read_only {
        sqlx::raw_sql("PRAGMA query_only = ON").execute(connection).await?;
    }
    Ok(())
}

/// Rejects a database that is neither empty nor a registry.
pub(super) async fn reject_foreign(
    connection: &mut AnyConnection,
    database: DatabaseKind,
) -> Result<(), OpenRegistryError> {
    if has_meta_table(connection, database).await? && schema_version(connection).await? > 0 {
        return Ok(());
    }
    let table: Option<String> =
        sqlx::query(database.find_foreign_sql()).fetch_one(connection).await?.try_get(0)?;
    table.map_or(Ok(()), |table| Err(OpenRegistryError::ForeignTables { table }))
}

/// Returns the version of the schema, which this binary must support; 0 if there is none yet. Creates the `meta`
/// table if it is missing.
pub(super) async fn init_meta(connection: &mut AnyConnection) -> Result<i64, OpenRegistryError> {
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        .execute(&mut *connection)
        .await?;
    supported_schema_version(connection).await
}

/// Returns the schema version of a database that has a `meta` table. This binary must support it.
pub(super) async fn supported_schema_version(
    connection: &mut AnyConnection,
) -> Result<i64, OpenRegistryError> {
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    let found = schema_version(connection).await?;
    if found > known { Err(OpenRegistryError::SchemaTooNew { found, known }) } else { Ok(found) }
}

/// Applies the migrations after version `found`, each with its version number in one transaction.
pub(super) async fn migrate(
    connection: &mut AnyConnection,
    database: DatabaseKind,
    found: i64,
) -> Result<(), OpenRegistryError> {
    for (version, migration) in (1_i64..).zip(MIGRATIONS).filter(|(version, _)| *version > found) {
        let mut transaction = connection.begin().await?;
        let specific = match database {
            DatabaseKind::Sqlite => migration.sqlite,
            DatabaseKind::Postgres => migration.postgres,
        };
        for statements in [migration.shared, specific] {
            sqlx::raw_sql(statements).execute(&mut *transaction).await?;
        }
        sqlx::query(
            "INSERT INTO meta (name, value) VALUES ('schema_version', $1) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        )
        .bind(version.to_string())
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
    }
    Ok(())
}

/// Whether the database has a schema that this version supports.
pub(super) async fn is_supported_schema(
    connection: &mut AnyConnection,
    database: DatabaseKind,
) -> Result<bool, sqlx::Error> {
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    Ok(has_meta_table(connection, database).await?
        && (1..=known).contains(&schema_version(connection).await?))
}

pub(super) async fn has_meta_table(
    connection: &mut AnyConnection,
    database: DatabaseKind,
) -> Result<bool, sqlx::Error> {
    Ok(sqlx::query(database.count_meta_sql()).fetch_one(connection).await?.try_get::<i64, _>(0)? > 0)
}

async fn schema_version(connection: &mut AnyConnection) -> Result<i64, sqlx::Error> {
    let row = sqlx::query("SELECT value FROM meta WHERE name = 'schema_version'")
        .fetch_optional(connection)
        .await?;
    // A version that is not a number was written by something other than an older version of this binary.
    row.map_or(Ok(0), |row| row.try_get::<String, _>(0).map(|text| text.parse().unwrap_or(i64::MAX)))
}
