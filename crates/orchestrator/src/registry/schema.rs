//! The registry's schema: its versions, the migrations between them, and whether a database has it.

use sqlx::{AnyConnection, Connection as _, Row as _};

use super::open_error::OpenRegistryError;

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

/// What was added to the current schema without a new version, in order: an earlier version of this binary goes on
/// without it, so a deployment can be downgraded.
const ADDITIONS: [Migration; 13] = [
    Migration { shared: include_str!("../../migrations/0003_scheduled_wakes.sql"), sqlite: "", postgres: "" },
    Migration {
        shared: include_str!("../../migrations/0004_browser_tokens.sql"),
        sqlite: "",
        postgres: include_str!("../../migrations/0004_browser_tokens.postgres.sql"),
    },
    Migration {
        shared: include_str!("../../migrations/0005_inbox.sql"),
        sqlite: "",
        postgres: include_str!("../../migrations/0005_inbox.postgres.sql"),
    },
    Migration { shared: include_str!("../../migrations/0006_fleet.sql"), sqlite: "", postgres: "" },
    Migration {
        shared: include_str!("../../migrations/0007_platform_keys.sql"),
        sqlite: "",
        postgres: include_str!("../../migrations/0007_platform_keys.postgres.sql"),
    },
    Migration {
        shared: include_str!("../../migrations/0008_audit_webhooks.sql"),
        sqlite: "",
        postgres: include_str!("../../migrations/0008_audit_webhooks.postgres.sql"),
    },
    Migration { shared: include_str!("../../migrations/0011_product_states.sql"), sqlite: "", postgres: "" },
    Migration {
        shared: include_str!("../../migrations/0009_idempotency.sql"),
        sqlite: "",
        postgres: include_str!("../../migrations/0009_idempotency.postgres.sql"),
    },
    Migration {
        shared: include_str!("../../migrations/0013_rollouts.sql"),
        sqlite: "",
        postgres: include_str!("../../migrations/0013_rollouts.postgres.sql"),
    },
    Migration {
        shared: include_str!("../../migrations/0012_backup_erasures.sql"),
        sqlite: "",
        postgres: include_str!("../../migrations/0012_backup_erasures.postgres.sql"),
    },
    Migration {
        shared: include_str!("../../migrations/0014_warm_engines.sql"),
        sqlite: "",
        postgres: include_str!("../../migrations/0014_warm_engines.postgres.sql"),
    },
    Migration {
        shared: include_str!("../../migrations/0015_usage.sql"),
        sqlite: "",
        postgres: include_str!("../../migrations/0015_usage.postgres.sql"),
    },
    Migration { shared: include_str!("../../migrations/0016_drift.sql"), sqlite: "", postgres: "" },
];

/// The number of the addition that made the table of warm engines.
const WARM_ENGINES_ADDITION: i64 = 11;

struct Migration {
    shared: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

impl Migration {
    /// Returns the statements for a kind of database, in order.
    const fn statements(&self, database: DatabaseKind) -> [&'static str; 2] {
        match database {
            DatabaseKind::Sqlite => [self.shared, self.sqlite],
            DatabaseKind::Postgres => [self.shared, self.postgres],
        }
    }
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
        apply(connection, database, &migration, "schema_version", version).await?;
    }
    add(connection, database).await
}

/// Makes the schema of version `version` with its first `additions`, in a database that is empty. Returns false if this
/// version does not know it.
pub(super) async fn create_at(
    connection: &mut AnyConnection,
    database: DatabaseKind,
    version: i64,
    additions: i64,
) -> Result<bool, OpenRegistryError> {
    let (known, known_additions) = (count(&MIGRATIONS), count(&ADDITIONS));
    if !(1..=known).contains(&version) || !(0..=known_additions).contains(&additions) {
        return Ok(false);
    }
    init_meta(connection).await?;
    for (number, migration) in (1_i64..).zip(MIGRATIONS).take_while(|(number, _)| *number <= version) {
        apply(connection, database, &migration, "schema_version", number).await?;
    }
    for (number, addition) in (1_i64..).zip(ADDITIONS).take_while(|(number, _)| *number <= additions) {
        apply(connection, database, &addition, "schema_additions", number).await?;
    }
    Ok(true)
}

/// Returns the schema's version and the number of its additions.
pub(super) async fn versions(connection: &mut AnyConnection) -> Result<(i64, i64), OpenRegistryError> {
    let version = supported_schema_version(connection).await?;
    Ok((version, added(connection).await?))
}

fn count(migrations: &[Migration]) -> i64 {
    i64::try_from(migrations.len()).unwrap_or(i64::MAX)
}

/// Makes the additions that the database lacks, each in one transaction. Those of a later version are left alone.
async fn add(connection: &mut AnyConnection, database: DatabaseKind) -> Result<(), OpenRegistryError> {
    let found = added(connection).await?;
    for (number, addition) in (1_i64..).zip(ADDITIONS).filter(|(number, _)| *number > found) {
        apply(connection, database, &addition, "schema_additions", number).await?;
    }
    Ok(())
}

/// Whether the database has the table of warm engines. It may not have been opened for writing since that was added.
pub(super) async fn has_warm_engines(connection: &mut AnyConnection) -> Result<bool, OpenRegistryError> {
    Ok(added(connection).await? >= WARM_ENGINES_ADDITION)
}

/// Returns the number of additions that the database has.
async fn added(connection: &mut AnyConnection) -> Result<i64, OpenRegistryError> {
    let found = sqlx::query("SELECT value FROM meta WHERE name = 'schema_additions'")
        .fetch_optional(connection)
        .await?;
    Ok(found.map_or(Ok(0), |row| row.try_get::<String, _>(0).map(|text| text.parse().unwrap_or(0)))?)
}

/// Applies a migration, and stores its number as the fact `name`, in one transaction.
async fn apply(
    connection: &mut AnyConnection,
    database: DatabaseKind,
    migration: &Migration,
    name: &'static str,
    number: i64,
) -> Result<(), OpenRegistryError> {
    let mut transaction = connection.begin().await?;
    for statements in migration.statements(database) {
        sqlx::raw_sql(statements).execute(&mut *transaction).await?;
    }
    sqlx::query(
        "INSERT INTO meta (name, value) VALUES ($1, $2) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )
    .bind(name)
    .bind(number.to_string())
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
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
