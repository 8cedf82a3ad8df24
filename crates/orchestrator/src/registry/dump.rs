//! The registry as text: all rows of one snapshot, and an empty database filled with them.
//!
//! The text is the same for SQLite and PostgreSQL, so a registry can be restored to either. It has the version of the
//! schema; a restore makes the schema of that version, inserts the rows, and then migrates, as an upgrade would.

use std::io::{self, BufRead, Write};

use futures::TryStreamExt as _;
use http_service::lock::FileLock;
use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, ValueRef as _};

use super::backup_erasures::BACKUP_JOB;
use super::open::{create_private, install_drivers, lock_file, sqlite_url};
use super::open_error::OpenRegistryError;
use super::postgres;
use super::schema::{self, DatabaseKind};
use super::verify::connect_read_only;
use crate::config::DatabaseUrl;

/// The version of the text that is written, and the latest that is read.
const DUMP_VERSION: u64 = 1;
/// The tables that others refer to, in the order in which they are filled.
const FIRST_TABLES: [&str; 5] = ["meta", "products", "engines", "audit_webhooks", "rollouts"];

/// What is not part of a copy: engines that are nobody's, and exist only where they run.
const LEFT_OUT: &str = "warm_engines";

/// What no engine of a restored registry has: a process, or an operation under way. What was running sleeps, and is woken
/// when its user is admitted. Provisions and deletes are rolled back or completed when the orchestrator starts.
const SETTLE_ENGINES: &str = "UPDATE engines SET instance = NULL, claim_kind = NULL, claim_owner = NULL, \
     claim_deadline = NULL, pending_key = NULL, pending_key_hash = NULL, restart_at = NULL, \
     status = CASE WHEN status = 'running' THEN 'sleeping' ELSE status END, generation = generation + 1 \
     WHERE status NOT IN ('provisioning', 'destroying')";

/// Why a registry could not be written as text, or filled from it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DumpError {
    /// The database cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenRegistryError),
    /// The database failed.
    #[error("the registry's database failed")]
    Database(#[from] sqlx::Error),
    /// The text could not be written or read.
    #[error("the registry's copy could not be written or read")]
    Io(#[from] io::Error),
    /// The text is not valid.
    #[error("the registry's copy is not valid: {0}")]
    Invalid(&'static str),
    /// A later version wrote the text.
    #[error("the registry's copy was written by a later version of roundhouse: restore it with that version")]
    Newer,
    /// The database is not empty.
    #[error("the database is not empty: a registry is restored only into an empty one")]
    NotEmpty,
}

/// What a restore has inserted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoredRows {
    /// Products.
    pub products: u64,
    /// Engines.
    pub engines: u64,
    /// All rows.
    pub rows: u64,
}

/// Writes all rows of the registry as they are in one snapshot. Needs no lock: orchestrators go on.
pub(crate) async fn dump(database: &DatabaseUrl, to: &mut impl Write) -> Result<(), DumpError> {
    let (mut connection, kind) = connect_read_only(database).await?;
    let mut snapshot = connection.begin().await?;
    if kind == DatabaseKind::Postgres {
        // An audit log of any length is one statement.
        sqlx::raw_sql("SET LOCAL statement_timeout = 0").execute(&mut *snapshot).await?;
    }
    let (version, additions) = schema::versions(&mut snapshot).await?;
    let head = json!({"registry": DUMP_VERSION, "schema_version": version, "schema_additions": additions});
    writeln!(to, "{head}")?;
    for table in table_names(&mut snapshot, kind).await?.iter().filter(|table| *table != LEFT_OUT) {
        // Names come from the database's own catalog.
        let select = format!("SELECT * FROM \"{table}\"");
        let mut rows = sqlx::query(AssertSqlSafe(select)).persistent(false).fetch(&mut *snapshot);
        let mut is_first = true;
        while let Some(row) = rows.try_next().await? {
            if std::mem::take(&mut is_first) {
                let columns: Vec<_> = row.columns().iter().map(sqlx::Column::name).collect();
                writeln!(to, "{}", json!({"table": table, "columns": columns}))?;
            }
            writeln!(to, "{}", row_values(&row)?)?;
        }
    }
    snapshot.rollback().await?;
    connection.close().await?;
    Ok(to.flush()?)
}

/// The tables of the registry, those first that others refer to.
async fn table_names(connection: &mut AnyConnection, kind: DatabaseKind) -> Result<Vec<String>, sqlx::Error> {
    let select = match kind {
        DatabaseKind::Sqlite => {
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
        }
        DatabaseKind::Postgres => {
            "SELECT CAST(tablename AS TEXT) FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1"
        }
    };
    let rows = sqlx::query(select).fetch_all(connection).await?;
    let mut names: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let rank =
        |name: &String| FIRST_TABLES.iter().position(|first| first == name).unwrap_or(FIRST_TABLES.len());
    names.sort_by_key(rank);
    Ok(names)
}

/// The values of a row: the registry has text and whole numbers only.
fn row_values(row: &AnyRow) -> Result<Value, sqlx::Error> {
    let value = |index: usize| {
        if row.try_get_raw(index)?.is_null() {
            return Ok(Value::Null);
        }
        row.try_get::<String, _>(index)
            .map(Value::from)
            .or_else(|_| row.try_get::<i64, _>(index).map(Value::from))
    };
    (0..row.columns().len()).map(value).collect::<Result<Vec<_>, _>>().map(Value::from)
}

/// Fills an empty database with the rows of `from`: all of them, or none.
pub(crate) async fn restore(database: &DatabaseUrl, from: impl BufRead) -> Result<RestoredRows, DumpError> {
    install_drivers();
    let (mut connection, kind, lock) = connect_exclusively(database).await?;
    let restored = fill(&mut connection, kind, from).await;
    // Whatever happened, the server need not find out by itself that the connection is gone.
    connection.close().await?;
    drop(lock);
    restored
}

async fn fill(
    connection: &mut AnyConnection,
    kind: DatabaseKind,
    from: impl BufRead,
) -> Result<RestoredRows, DumpError> {
    let mut transaction = connection.begin().await?;
    if !table_names(&mut transaction, kind).await?.is_empty() {
        return Err(DumpError::NotEmpty);
    }
    let restored = insert_all(&mut transaction, kind, from).await?;
    sqlx::raw_sql(SETTLE_ENGINES).execute(&mut *transaction).await?;
    // The one that has made this copy.
    sqlx::query("DELETE FROM meta WHERE name = $1").bind(BACKUP_JOB).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(restored)
}

async fn connect_exclusively(
    database: &DatabaseUrl,
) -> Result<(AnyConnection, DatabaseKind, Option<FileLock>), DumpError> {
    let path = match database {
        DatabaseUrl::Postgres(url) => {
            return Ok((postgres::connect_exclusively(url).await?, DatabaseKind::Postgres, None));
        }
        DatabaseUrl::Sqlite(path) => std::path::absolute(path)?,
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let lock = FileLock::acquire(
        &lock_file(&path),
        http_service::clock::Clock::now(&http_service::clock::SystemClock::new()),
    );
    let lock = lock.map_err(OpenRegistryError::from)?;
    create_private(&path)?;
    let options: sqlx::any::AnyConnectOptions = sqlite_url(&path, "rw").parse()?;
    let mut connection = options.connect().await?;
    sqlx::raw_sql("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON")
        .execute(&mut connection)
        .await?;
    Ok((connection, DatabaseKind::Sqlite, Some(lock)))
}

async fn insert_all(
    connection: &mut AnyConnection,
    kind: DatabaseKind,
    from: impl BufRead,
) -> Result<RestoredRows, DumpError> {
    let mut lines = from.lines();
    let head = lines.next().ok_or(DumpError::Invalid("it is empty"))??;
    let head: Value =
        serde_json::from_str(&head).map_err(|_| DumpError::Invalid("its head cannot be read"))?;
    let number = |name: &str| {
        head.get(name).and_then(Value::as_i64).ok_or(DumpError::Invalid("its head is incomplete"))
    };
    if number("registry")? > DUMP_VERSION.cast_signed() {
        return Err(DumpError::Newer);
    }
    let (version, additions) = (number("schema_version")?, number("schema_additions")?);
    if !schema::create_at(connection, kind, version, additions).await? {
        return Err(DumpError::Newer);
    }
    let mut insert = None;
    let mut restored = RestoredRows::default();
    for line in lines {
        let line: Value =
            serde_json::from_str(&line?).map_err(|_| DumpError::Invalid("a line cannot be read"))?;
        let Value::Array(values) = line else {
            insert = Some(Insert::parse(&line)?);
            continue;
        };
        let insert = insert.as_ref().ok_or(DumpError::Invalid("a row has no table"))?;
        insert.execute(connection, values).await?;
        restored.rows += 1;
        restored.products += u64::from(insert.table == "products");
        restored.engines += u64::from(insert.table == "engines");
    }
    schema::migrate(connection, kind, version).await?;
    Ok(restored)
}

/// Inserts rows into one table.
struct Insert {
    table: String,
    columns: Vec<String>,
}

impl Insert {
    fn parse(line: &Value) -> Result<Self, DumpError> {
        let name = |value: &Value| {
            let name = value.as_str().filter(|name| {
                !name.is_empty()
                    && name
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            });
            name.map(str::to_owned).ok_or(DumpError::Invalid("a name is no column's or table's"))
        };
        let table =
            line.get("table").map(name).ok_or(DumpError::Invalid("a line is neither row nor table"))??;
        let columns = line
            .get("columns")
            .and_then(Value::as_array)
            .ok_or(DumpError::Invalid("a table has no columns"))?;
        Ok(Self { table, columns: columns.iter().map(name).collect::<Result<_, _>>()? })
    }

    async fn execute(&self, connection: &mut AnyConnection, values: Vec<Value>) -> Result<(), DumpError> {
        if values.len() != self.columns.len() {
            return Err(DumpError::Invalid("a row has another number of values than its table"));
        }
        let mut texts = Vec::new();
        let mut placed = Vec::with_capacity(values.len());
        for value in values {
            // Numbers and nulls are literals: a bound null has a type, which may be another than its column's.
            placed.push(match value {
                Value::Null => "NULL".to_owned(),
                Value::Number(number) => {
                    number.as_i64().ok_or(DumpError::Invalid("a number is too large"))?.to_string()
                }
                Value::String(text) => {
                    texts.push(text);
                    format!("${}", texts.len())
                }
                Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
                    return Err(DumpError::Invalid("a value is neither text nor number"));
                }
            });
        }
        let columns: Vec<_> = self.columns.iter().map(|column| format!("\"{column}\"")).collect();
        // The migrations have inserted the schema's version already.
        let conflict = if self.table == "meta" {
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        } else {
            ""
        };
        let sql = format!(
            "INSERT INTO \"{}\" ({}) VALUES ({}){conflict}",
            self.table,
            columns.join(", "),
            placed.join(", ")
        );
        let mut query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        for text in texts {
            query = query.bind(text);
        }
        query.execute(connection).await?;
        Ok(())
    }
}

/// Returns these facts of the table `meta`, where they are there.
pub(crate) async fn facts<const N: usize>(
    database: &DatabaseUrl,
    names: [&str; N],
) -> Result<[Option<String>; N], DumpError> {
    let (mut connection, _) = connect_read_only(database).await?;
    let mut found = [const { None }; N];
    for (name, found) in names.into_iter().zip(&mut found) {
        let query = sqlx::query("SELECT value FROM meta WHERE name = $1").bind(name.to_owned());
        *found = query.fetch_optional(&mut connection).await?.map(|row| row.try_get(0)).transpose()?;
    }
    connection.close().await?;
    Ok(found)
}
