//! Opening the registry: the lock, the connections, the schema.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;

use contract::Timestamp;
use service::lock::{FileLock, Holder, LockError};
use sqlx::any::{AnyConnectOptions, AnyPoolOptions, install_default_drivers};
use sqlx::error::DatabaseError;
use sqlx::{AnyConnection, AnyPool, ConnectOptions as _, Connection as _, Row as _};

use super::Registry;
use super::point::PointReads;
use crate::sabotage::{self, Saboteur};

/// The steps that lead from an empty database to the present schema. The n-th leads to version n.
const MIGRATIONS: [&str; 2] = [
    concat!(
        include_str!("../../migrations/0001_registry.sql"),
        include_str!("../../migrations/0001_registry.sqlite.sql")
    ),
    include_str!("../../migrations/0002_supervision.sql"),
];

/// Point reads take microseconds; more connections than cores would only queue inside SQLite.
const READERS: u32 = 4;

/// How long a request may wait for a connection before it fails.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the registry could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenRegistryError {
    /// Another process has it.
    #[error("{0} holds it")]
    Held(Holder),
    /// Its folder or lock file cannot be used.
    #[error("its folder cannot be used")]
    Folder(#[source] io::Error),
    /// A later version wrote it.
    #[error("its schema has version {found}, this binary knows up to {known}")]
    Newer {
        /// The version found.
        found: i64,
        /// The last version that this binary knows.
        known: i64,
    },
    /// The file is no database, or a damaged one.
    #[error("it is not a SQLite database, or a damaged one")]
    Corrupt(#[source] sqlx::Error),
    /// The connection for point reads could not be opened.
    #[error("the database cannot be read")]
    PointReads(#[source] rusqlite::Error),
    /// Anything else that the database said.
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
        // SQLITE_CORRUPT, SQLITE_NOTADB: the primary code is the low byte.
        let code = error.as_database_error().and_then(DatabaseError::code);
        let primary = code.and_then(|code| code.parse::<i64>().ok()).map(|code| code & 0xff);
        if matches!(primary, Some(11 | 26)) { Self::Corrupt(error) } else { Self::Database(error) }
    }
}

impl Registry {
    /// Opens the registry at `database`, which is created if it is missing, and brings its schema up to date.
    pub(crate) async fn open(database: &Path, now: Timestamp) -> Result<Self, OpenRegistryError> {
        drivers();
        let database = std::path::absolute(database).map_err(OpenRegistryError::Folder)?;
        if let Some(folder) = database.parent() {
            std::fs::create_dir_all(folder).map_err(OpenRegistryError::Folder)?;
        }
        let mut lock = database.as_os_str().to_owned();
        lock.push(".lock");
        // It waits for a second where another holds it, and a standby asks again and again.
        let taken = tokio::task::spawn_blocking(move || FileLock::take(Path::new(&lock), now)).await;
        let lock = taken.map_err(|error| OpenRegistryError::Folder(io::Error::other(error)))??;
        create_private(&database).map_err(OpenRegistryError::Folder)?;
        let options: AnyConnectOptions = url(&database, "rw").parse()?;
        // Before any pool: a pool tries again and again what can never succeed, and forgets why it failed.
        let mut connection = options.connect().await?;
        set_up(&mut connection, false).await?;
        migrate(&mut connection).await?;
        connection.close().await?;
        let writes = pool(options.clone(), 1, false).await?;
        let reads = pool(options, READERS, true).await?;
        let point_reads = PointReads::open(&database).map_err(OpenRegistryError::PointReads)?;
        Ok(Self {
            writes,
            reads,
            point_reads,
            news: Arc::default(),
            #[cfg(test)]
            hot_reads: std::sync::atomic::AtomicUsize::default(),
            _lock: lock,
        })
    }
}

/// Creates the file if it is missing, for this user alone: SQLite would let everyone read it, and gives the
/// files that it keeps beside it the same mode.
fn create_private(database: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(database) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes the drivers known, once.
pub(super) fn drivers() {
    static DRIVERS: Once = Once::new();
    DRIVERS.call_once(install_default_drivers);
}

/// The URL of a SQLite file, opened in `mode`, with everything escaped that has a meaning in a URL.
pub(super) fn url(database: &Path, mode: &str) -> String {
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

async fn pool(options: AnyConnectOptions, connections: u32, read_only: bool) -> Result<AnyPool, sqlx::Error> {
    AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // By default each acquire pings first, which costs more than the read itself.
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .after_connect(move |connection, _| Box::pin(set_up(connection, read_only)))
        .connect_with(options)
        .await
}

async fn set_up(connection: &mut AnyConnection, read_only: bool) -> Result<(), sqlx::Error> {
    // FULL: an acknowledged change outlives a power cut.
    let settings = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000; \
                    PRAGMA foreign_keys = ON;";
    sqlx::raw_sql(settings).execute(&mut *connection).await?;
    if read_only {
        sqlx::raw_sql("PRAGMA query_only = ON").execute(connection).await?;
    }
    Ok(())
}

/// Takes the steps that are missing, each with its version number in one transaction.
async fn migrate(connection: &mut AnyConnection) -> Result<(), OpenRegistryError> {
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        .execute(&mut *connection)
        .await?;
    let found = schema_version(connection).await?;
    if found > known {
        return Err(OpenRegistryError::Newer { found, known });
    }
    for (version, migration) in (1_i64..).zip(MIGRATIONS).filter(|(version, _)| *version > found) {
        let mut step = connection.begin().await?;
        sqlx::raw_sql(migration).execute(&mut *step).await?;
        sqlx::query(
            "INSERT INTO meta (name, value) VALUES ('schema_version', $1) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        )
        .bind(version.to_string())
        .execute(&mut *step)
        .await?;
        step.commit().await?;
    }
    if sabotage::by(Saboteur::ForgetIndex) {
        sqlx::raw_sql("DROP INDEX IF EXISTS audit_log_by_time").execute(connection).await?;
    }
    Ok(())
}

/// Whether the database has a schema that this version knows.
pub(super) async fn is_known(connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
    let meta = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = 'meta'";
    if sqlx::query(meta).fetch_one(&mut *connection).await?.try_get::<i64, _>(0)? == 0 {
        return Ok(false);
    }
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    Ok((1..=known).contains(&schema_version(connection).await?))
}

async fn schema_version(connection: &mut AnyConnection) -> Result<i64, sqlx::Error> {
    let row = sqlx::query("SELECT value FROM meta WHERE name = 'schema_version'")
        .fetch_optional(connection)
        .await?;
    // A version that is no number was written by something that is not an older version of this binary.
    row.map_or(Ok(0), |row| row.try_get::<String, _>(0).map(|text| text.parse().unwrap_or(i64::MAX)))
}
