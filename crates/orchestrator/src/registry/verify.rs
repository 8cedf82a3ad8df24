//! Verifies the audit log: every product's rows are present, in order and unchanged, down to the last.
//!
//! It reads a snapshot of its own, without the registry's lock, and so may run beside an orchestrator. Rows are
//! read one by one: a log of any length takes the same memory.

use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _};
use std::path::Path;

use api::Timestamp;
use futures::TryStreamExt as _;
use http_service::lock::LockHolder;
use sqlx::any::{AnyConnectOptions, AnyRow};
use sqlx::{AnyConnection, ConnectOptions as _, Connection as _, Row as _};

use super::access::with_deadline;
use super::hash_chain::{ChainedRow, GENESIS_HASH};
use super::meta::DEPLOYMENT_ID;
use super::open::{install_drivers, lock_file, sqlite_url};
use super::open_error::OpenRegistryError;
use super::schema::{
    DatabaseKind, has_meta_table, has_warm_engines, is_supported_schema, reject_foreign,
    supported_schema_version,
};
use super::{leader_lock, postgres};
use crate::config::DatabaseUrl;

/// The result for one product's audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedProduct {
    /// The product's id.
    pub product_id: String,
    /// The number of rows in its audit log, or the first break.
    pub rows: Result<i64, ChainBreak>,
}

/// Where an audit log was altered, and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainBreak {
    /// An id is missing or out of order.
    #[error("row {id} is missing: row {found} is in its place")]
    Missing {
        /// The expected id.
        id: i64,
        /// The id found instead.
        found: i64,
    },
    /// A row's hash does not match its content and the row before.
    #[error("row {id} or the row before it was changed: the hash does not match")]
    Changed {
        /// The row.
        id: i64,
    },
    /// A row contains something that no version writes.
    #[error("row {id} cannot be read")]
    Unreadable {
        /// The row.
        id: i64,
    },
    /// The last rows are missing.
    #[error("row {id} is missing, and all rows after it: the audit log had {had} rows")]
    Truncated {
        /// The first row that is missing.
        id: i64,
        /// The number of rows that there were.
        had: i64,
    },
    /// There are rows after the last.
    #[error("row {id} was added: the audit log has {has} rows")]
    Added {
        /// The first surplus row.
        id: i64,
        /// The number of rows that there should be.
        has: i64,
    },
    /// The last row's hash is not the one in the product's own record.
    #[error("row {id} is not the last row that was written: the product's record has a different hash")]
    WrongLastHash {
        /// The last row.
        id: i64,
    },
    /// There are rows of a product that does not exist.
    #[error("row {id} belongs to a product that does not exist")]
    NoProduct {
        /// Its first row.
        id: i64,
    },
}

/// Why an audit log could not be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The file is missing or may not be read, or the server is unreachable.
    #[error("the registry {database} cannot be read")]
    Unreadable {
        /// The registry.
        database: DatabaseUrl,
        /// The underlying error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database is not a registry, or one of a later version.
    #[error("{database} is not a registry that this version of roundhouse can verify")]
    NotARegistry {
        /// The registry.
        database: DatabaseUrl,
    },
    /// The database failed.
    #[error("the registry {database} failed")]
    Database {
        /// The registry.
        database: DatabaseUrl,
        /// The error that it returned.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Verifies the audit logs of all products in `database`, and passes each result to `report`.
pub async fn verify(database: &DatabaseUrl, report: impl FnMut(VerifiedProduct)) -> Result<(), VerifyError> {
    let unreadable = |source| VerifyError::Unreadable { database: database.clone(), source };
    // SQLite does not report why it cannot open a file.
    if let DatabaseUrl::Sqlite(path) = database {
        std::fs::File::open(path).map_err(|error| unreadable(error.into()))?;
    }
    match verify_products(database, report).await {
        Ok(true) => Ok(()),
        Ok(false) | Err(OpenRegistryError::Corrupt(_)) => {
            Err(VerifyError::NotARegistry { database: database.clone() })
        }
        Err(OpenRegistryError::Unreachable(error)) => Err(unreadable(error.into())),
        Err(error) => Err(VerifyError::Database { database: database.clone(), source: Box::new(error) }),
    }
}

/// The registry's record of the data that should exist.
#[derive(Debug)]
pub(crate) struct Inventory {
    /// `None` until an orchestrator has started for the first time.
    pub(crate) deployment_id: Option<String>,
    /// The ids of all engines except deleted ones, warm ones included.
    pub(crate) engines: HashSet<String>,
    /// The ids of engines that have been running, each of which has data.
    pub(crate) settled: HashSet<String>,
    /// The database's own clock; `None` if it is this host's.
    pub(crate) database_time: Option<Timestamp>,
    /// When an engine or a product was last changed.
    pub(crate) last_change_at: Option<Timestamp>,
}

/// Returns the inventory of `database`, read without its lock; `None` if it is not a registry.
pub(crate) async fn inventory(database: &DatabaseUrl) -> Result<Option<Inventory>, OpenRegistryError> {
    let (mut connection, database) = connect_read_only(database).await?;
    if !is_supported_schema(&mut connection, database).await? {
        return Ok(None);
    }
    let query = sqlx::query("SELECT value FROM meta WHERE name = $1").bind(DEPLOYMENT_ID);
    let deployment_id = query.fetch_optional(&mut connection).await?.map(|row| row.try_get(0)).transpose()?;
    let last_change_at = query_time(&mut connection, SELECT_LAST_CHANGE).await?;
    let database_time = match database {
        DatabaseKind::Sqlite => None,
        DatabaseKind::Postgres => query_time(&mut connection, SELECT_DATABASE_TIME).await?,
    };
    let (engines, settled) = (HashSet::new(), HashSet::new());
    let mut inventory = Inventory { deployment_id, engines, settled, database_time, last_change_at };
    for row in sqlx::query(SELECT_ENGINE_STATUSES).fetch_all(&mut connection).await? {
        let (engine_id, status): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        if !["provisioning", "destroying"].contains(&&*status) {
            inventory.settled.insert(engine_id.clone());
        }
        inventory.engines.insert(engine_id);
    }
    if has_warm_engines(&mut connection).await? {
        for row in sqlx::query("SELECT engine_id FROM warm_engines").fetch_all(&mut connection).await? {
            inventory.engines.insert(row.try_get(0)?);
        }
    }
    connection.close().await?;
    Ok(Some(inventory))
}

/// Runs a query for a time in Unix milliseconds, which may be null.
async fn query_time(
    connection: &mut AnyConnection,
    sql: &'static str,
) -> Result<Option<Timestamp>, sqlx::Error> {
    let row = sqlx::query(sql).fetch_one(connection).await?;
    Ok(row.try_get::<Option<i64>, _>(0)?.map(Timestamp::from_unix_ms))
}

/// Opens a read-only connection.
pub(super) async fn connect_read_only(
    database: &DatabaseUrl,
) -> Result<(AnyConnection, DatabaseKind), OpenRegistryError> {
    install_drivers();
    match database {
        DatabaseUrl::Sqlite(path) => {
            let path = std::path::absolute(path).map_err(OpenRegistryError::Folder)?;
            let options: AnyConnectOptions = sqlite_url(&path, "ro").parse()?;
            let mut connection = options.connect().await?;
            let settings = "PRAGMA query_only = ON; PRAGMA busy_timeout = 5000";
            sqlx::raw_sql(settings).execute(&mut connection).await?;
            Ok((connection, DatabaseKind::Sqlite))
        }
        DatabaseUrl::Postgres(url) => {
            let options: AnyConnectOptions = url.expose().parse()?;
            let mut connection = with_deadline(options.connect()).await?;
            postgres::set_read_only(&mut connection).await?;
            Ok((connection, DatabaseKind::Postgres))
        }
    }
}

/// The number of bytes read of the note of a lock's holder.
const MAX_NOTE_BYTES: u64 = 200;

/// What was found where a registry is or will be.
#[derive(Clone, Debug)]
pub(crate) struct FoundRegistry {
    /// The version of its schema; `None` if it is empty.
    pub(crate) schema_version: Option<i64>,
    /// The orchestrator that holds it.
    pub(crate) holder: Option<LockHolder>,
}

/// Returns the process that holds the lock on `file`, as its note describes it. Changes nothing.
fn file_holder(file: &Path) -> io::Result<Option<LockHolder>> {
    let opened = match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    // A shared lock for a moment, which whoever acquires the lock waits for.
    match opened.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            let note = io::read_to_string(opened.take(MAX_NOTE_BYTES))?;
            Ok(Some(LockHolder::new(note.trim().to_owned())))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Checks that `database` is empty or a registry that this version can open, without taking its lock.
pub(crate) async fn check_usable(database: &DatabaseUrl) -> Result<FoundRegistry, OpenRegistryError> {
    let (mut connection, kind) = connect_read_only(database).await?;
    reject_foreign(&mut connection, kind).await?;
    let schema_version = if has_meta_table(&mut connection, kind).await? {
        Some(supported_schema_version(&mut connection).await?)
    } else {
        None
    };
    let holder = match database {
        DatabaseUrl::Sqlite(path) => {
            let path = std::path::absolute(path).map_err(OpenRegistryError::Folder)?;
            file_holder(&lock_file(&path)).map_err(OpenRegistryError::Folder)?
        }
        DatabaseUrl::Postgres(_) => leader_lock::current_holder(&mut connection).await?,
    };
    Ok(FoundRegistry { schema_version, holder })
}

/// Whether there is a registry at `database`, of whatever version.
pub(crate) async fn registry_exists(database: &DatabaseUrl) -> Result<bool, OpenRegistryError> {
    if let DatabaseUrl::Sqlite(path) = database {
        return Ok(path.exists());
    }
    let (mut connection, database) = connect_read_only(database).await?;
    Ok(has_meta_table(&mut connection, database).await?)
}

/// Verifies all products; returns whether the database could be verified.
async fn verify_products(
    database: &DatabaseUrl,
    mut report: impl FnMut(VerifiedProduct),
) -> Result<bool, OpenRegistryError> {
    let (mut connection, database) = connect_read_only(database).await?;
    if !is_supported_schema(&mut connection, database).await? {
        return Ok(false);
    }
    // One snapshot: concurrent writes are not seen.
    let mut snapshot = connection.begin().await?;
    let mut last = String::new();
    while let Some(product_id) = next_product_id(&mut snapshot, &last).await? {
        let rows = verify_product(&mut snapshot, &product_id).await?;
        report(VerifiedProduct { product_id: product_id.clone(), rows });
        last = product_id;
    }
    snapshot.rollback().await?;
    connection.close().await?;
    Ok(true)
}

const SELECT_LAST_CHANGE: &str = "SELECT MAX((SELECT at FROM audit_log \
    WHERE audit_log.product_id = products.product_id ORDER BY id DESC LIMIT 1)) FROM products";
/// PostgreSQL's only.
const SELECT_DATABASE_TIME: &str = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)";
const SELECT_ENGINE_STATUSES: &str = "SELECT engine_id, status FROM engines";
pub(super) const NEXT_PRODUCT: &str = "SELECT MIN(product_id) FROM products WHERE product_id > $1";
pub(super) const SELECT_AUDIT_ROWS: &str = "SELECT id, at, engine_id, user_id, event, duration_ms, detail, hash \
    FROM audit_log WHERE product_id = $1 ORDER BY id";
pub(super) const NEXT_AUDITED_PRODUCT: &str = "SELECT MIN(product_id) FROM audit_log WHERE product_id > $1";

/// Returns the product after `last` that is registered or has rows.
async fn next_product_id(connection: &mut AnyConnection, last: &str) -> Result<Option<String>, sqlx::Error> {
    let mut found: Vec<String> = Vec::new();
    for statement in [NEXT_PRODUCT, NEXT_AUDITED_PRODUCT] {
        let row = sqlx::query(statement).bind(last.to_owned()).fetch_one(&mut *connection).await?;
        found.extend(row.try_get::<Option<String>, _>(0)?);
    }
    Ok(found.into_iter().min())
}

/// Returns the number of a product's rows, or their first break.
async fn verify_product(
    connection: &mut AnyConnection,
    product_id: &str,
) -> Result<Result<i64, ChainBreak>, sqlx::Error> {
    let end = sqlx::query("SELECT audit_seq, audit_hash FROM products WHERE product_id = $1")
        .bind(product_id.to_owned())
        .fetch_optional(&mut *connection)
        .await?;
    let end: Option<(i64, String)> =
        end.map(|end| Ok::<_, sqlx::Error>((end.try_get(0)?, end.try_get(1)?))).transpose()?;
    let mut rows = sqlx::query(SELECT_AUDIT_ROWS).bind(product_id.to_owned()).fetch(&mut *connection);
    let (mut count, mut hash) = (0, GENESIS_HASH.to_owned());
    while let Some(row) = rows.try_next().await? {
        let id = row.try_get(0)?;
        let Some((has, _)) = end else { return Ok(Err(ChainBreak::NoProduct { id })) };
        if id != count + 1 {
            return Ok(Err(ChainBreak::Missing { id: count + 1, found: id }));
        }
        if id > has {
            return Ok(Err(ChainBreak::Added { id, has }));
        }
        // A column has a type that was never written.
        let Ok((expected, stored)) = expected_and_stored_hash(&row, product_id, id, &hash) else {
            return Ok(Err(ChainBreak::Unreadable { id }));
        };
        if expected != stored {
            return Ok(Err(ChainBreak::Changed { id }));
        }
        (count, hash) = (id, stored);
    }
    Ok(match end {
        Some((had, _)) if count < had => Err(ChainBreak::Truncated { id: count + 1, had }),
        Some((_, end)) if end != hash => Err(ChainBreak::WrongLastHash { id: count }),
        Some(_) | None => Ok(count),
    })
}

/// Returns the hash that a row must have after one with the hash `before`, and the hash that it has.
fn expected_and_stored_hash(
    row: &AnyRow,
    product_id: &str,
    id: i64,
    before: &str,
) -> Result<(String, String), sqlx::Error> {
    let chained = ChainedRow {
        product_id,
        id,
        at: row.try_get(1)?,
        engine_id: row.try_get(2)?,
        user_id: row.try_get(3)?,
        event: row.try_get(4)?,
        duration_ms: row.try_get(5)?,
        detail: row.try_get(6)?,
    };
    Ok((chained.hash(before), row.try_get(7)?))
}
