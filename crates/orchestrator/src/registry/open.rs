//! Opening the registry: its lock, then its connections.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;

use api::Timestamp;
use http_service::lock::FileLock;
use resources::keyed_locks::KeyedLocks;
use sqlx::any::{AnyConnectOptions, AnyPoolOptions, install_default_drivers};
use sqlx::{AnyConnection, AnyPool, ConnectOptions as _, Connection as _};

use super::hot_read::{HotReadPool, SqliteReadPool};
use super::open_error::OpenRegistryError;
use super::schema::{DatabaseKind, init_meta, migrate, reject_foreign};
use super::unreadable_rows::UnreadableRows;
use super::{OpenedRegistry, Registry, RegistryLock, postgres};
use crate::config::DatabaseUrl;

/// Point reads take microseconds; more connections than cores would only queue inside SQLite.
const READ_POOL_SIZE: u32 = 4;

/// How long a request may wait for a connection before it fails.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

impl Registry {
    /// Opens the registry at `database` and brings its schema up to date. A SQLite file is created if it is
    /// missing.
    pub(crate) async fn open(database: &DatabaseUrl, now: Timestamp) -> Result<Self, OpenRegistryError> {
        install_drivers();
        let OpenedRegistry {
            writes,
            reads,
            hot_read_pool,
            lock,
            #[cfg(test)]
            write_fault,
        } = match database {
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
            #[cfg(test)]
            write_fault,
            lock,
        })
    }
}

/// The file beside a SQLite database whose lock the orchestrator holds.
pub(super) fn lock_file(database: &Path) -> PathBuf {
    let mut file = database.as_os_str().to_owned();
    file.push(".lock");
    file.into()
}

async fn open_sqlite(database: &Path, now: Timestamp) -> Result<OpenedRegistry, OpenRegistryError> {
    let database = std::path::absolute(database).map_err(OpenRegistryError::Folder)?;
    if let Some(folder) = database.parent() {
        std::fs::create_dir_all(folder).map_err(OpenRegistryError::Folder)?;
    }
    let lock = lock_file(&database);
    // This waits for a second if another process holds the lock, and a standby retries.
    let acquired = tokio::task::spawn_blocking(move || FileLock::acquire(&lock, now)).await;
    let lock = acquired.map_err(|error| OpenRegistryError::Folder(io::Error::other(error)))??;
    create_private(&database).map_err(OpenRegistryError::Folder)?;
    let options: AnyConnectOptions = sqlite_url(&database, "rw").parse()?;
    // Done before any pool exists: a pool retries what can never succeed, and loses the cause.
    let mut connection = options.connect().await?;
    // Done before anything is set up: the file may belong to something else.
    reject_foreign(&mut connection, DatabaseKind::Sqlite).await?;
    let settings = ConnectionSettings::new(Access::Write);
    settings.configure(&mut connection).await?;
    let found = init_meta(&mut connection).await?;
    migrate(&mut connection, DatabaseKind::Sqlite, found).await?;
    connection.close().await?;
    let reads = SqliteReadPool::open(&database).map_err(OpenRegistryError::HotReadPool)?;
    Ok(OpenedRegistry {
        #[cfg(test)]
        write_fault: settings.fault.clone(),
        writes: connect_pool(options.clone(), 1, settings).await?,
        reads: connect_pool(options, READ_POOL_SIZE, ConnectionSettings::new(Access::Read)).await?,
        hot_read_pool: HotReadPool::Sqlite(reads),
        lock: RegistryLock::File { _lock: lock },
    })
}

/// Creates the file if it is missing, accessible to this user alone: SQLite would make it readable to everyone,
/// and gives the files that it keeps beside it the same mode.
pub(super) fn create_private(database: &Path) -> io::Result<()> {
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

/// What the connections of a pool are for.
#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

/// How the connections of a pool are set up.
#[derive(Clone)]
struct ConnectionSettings {
    access: Access,
    #[cfg(test)]
    fault: WriteFault,
}

impl ConnectionSettings {
    fn new(access: Access) -> Self {
        Self {
            access,
            #[cfg(test)]
            fault: WriteFault::default(),
        }
    }

    async fn configure(&self, connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
        // FULL: an acknowledged change survives a power failure.
        let settings = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000; \
                        PRAGMA foreign_keys = ON;";
        sqlx::raw_sql(settings).execute(&mut *connection).await?;
        if matches!(self.access, Access::Read) {
            sqlx::raw_sql("PRAGMA query_only = ON").execute(&mut *connection).await?;
        }
        #[cfg(test)]
        self.fault.inject(connection).await?;
        Ok(())
    }
}

/// What tests make wrong with the connections that write: a pragma that each of them executes, later ones too.
#[cfg(test)]
#[derive(Clone, Default)]
pub(super) struct WriteFault(Arc<std::sync::Mutex<Option<&'static str>>>);

#[cfg(test)]
impl WriteFault {
    pub(super) fn set(&self, pragma: &'static str) {
        *self.0.lock().unwrap() = Some(pragma);
    }

    async fn inject(&self, connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
        let pragma = *self.0.lock().unwrap();
        if let Some(pragma) = pragma {
            sqlx::raw_sql(pragma).execute(connection).await?;
        }
        Ok(())
    }
}

async fn connect_pool(
    options: AnyConnectOptions,
    connections: u32,
    settings: ConnectionSettings,
) -> Result<AnyPool, sqlx::Error> {
    AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // By default each acquire pings first, which costs more than the read itself.
        .test_before_acquire(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .after_connect(move |connection, _| {
            let settings = settings.clone();
            Box::pin(async move { settings.configure(connection).await })
        })
        .after_release(|connection, _| Box::pin(is_reusable(connection)))
        .connect_with(options)
        .await
}

/// Whether a released connection is outside of every transaction.
///
/// SQLite itself rolls a transaction back on some errors, a full disk among them
/// (<https://sqlite.org/lang_transaction.html>). The driver still counts that transaction, and would make the next
/// one a savepoint. If that one is dropped, its rollback leaves it open, and all that later transactions commit on
/// this connection is seen by no other and lost with it.
async fn is_reusable(connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
    // The driver's count is current after it has executed the rollback that a dropped transaction has queued.
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}
