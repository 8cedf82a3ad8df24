//! The destroyed engines whose backups are still to be erased: noted in the transaction that removes the engine.

use api::EngineId;
use sqlx::{AnyConnection, Row as _};

use super::access::with_deadline;
use super::{Registry, RegistryError};

/// The name of the fact, in the table `meta`, that backups are made.
const BACKUPS: &str = "backups";
/// The name of the fact that a job with backups is under way.
pub(crate) const BACKUP_JOB: &str = "backup_job";

impl Registry {
    /// Notes that backups are made: from now on, the backups of destroyed engines have to be erased.
    pub(crate) async fn note_backups(&self) -> Result<(), RegistryError> {
        self.get_or_insert_meta(BACKUPS, "1").await.map(drop)
    }

    /// Whether backups were ever made.
    pub(crate) async fn makes_backups(&self) -> Result<bool, RegistryError> {
        let query = sqlx::query("SELECT 1 FROM meta WHERE name = $1").bind(BACKUPS);
        Ok(with_deadline(query.fetch_optional(&self.reads)).await?.is_some())
    }

    /// Returns at most `limit` engines whose backups are to be erased.
    pub(crate) async fn backup_erasures(&self, limit: i64) -> Result<Vec<EngineId>, RegistryError> {
        let query = "SELECT engine_id FROM backup_erasures ORDER BY engine_id LIMIT $1";
        let rows = with_deadline(sqlx::query(query).bind(limit).fetch_all(&self.reads)).await?;
        let ids: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// Notes that the backups of an engine were erased.
    pub(crate) async fn backup_erased(&self, engine_id: EngineId) -> Result<(), RegistryError> {
        let mut transaction = self.begin().await?;
        let delete =
            sqlx::query("DELETE FROM backup_erasures WHERE engine_id = $1").bind(engine_id.to_string());
        with_deadline(delete.execute(&mut *transaction)).await?;
        Ok(with_deadline(transaction.commit()).await?)
    }
}

/// Notes that the backups of an engine, which is removed in the same transaction, are to be erased.
pub(super) async fn request_erasure(
    connection: &mut AnyConnection,
    engine_id: EngineId,
) -> Result<(), RegistryError> {
    let insert = sqlx::query(
        "INSERT INTO backup_erasures (engine_id) SELECT CAST($1 AS TEXT) FROM meta WHERE name = 'backups' \
         ON CONFLICT (engine_id) DO NOTHING",
    );
    with_deadline(insert.bind(engine_id.to_string()).execute(connection)).await?;
    Ok(())
}
