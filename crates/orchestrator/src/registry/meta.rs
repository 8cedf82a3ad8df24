//! Facts about the deployment: its id, its host, the check value of its master key, and what data it should have.

use std::os::unix::fs::MetadataExt as _;

use api::Timestamp;
use backend::KnownData;
use sqlx::Row as _;

use super::access::with_deadline;
use super::idempotency::{self, CallMark};
use super::{Registry, RegistryError};
use crate::config::DatabaseUrl;

/// The name of the deployment's id in the table.
pub(crate) const DEPLOYMENT_ID: &str = "deployment_id";
/// The name of the sealed key check value in the table.
pub(crate) const KEY_CHECK: &str = "canary";
/// The name of the host on which the engines run, in the table.
pub(crate) const HOST: &str = "host";

impl Registry {
    /// Returns the fact called `name`; `None` if it is missing.
    pub(crate) async fn meta(&self, name: &str) -> Result<Option<String>, RegistryError> {
        let query = sqlx::query("SELECT value FROM meta WHERE name = $1").bind(name);
        let row = with_deadline(query.fetch_optional(&self.reads)).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    /// Replaces the fact called `name`, whether it exists or not; with `None` it is removed. Marks the call with an
    /// `Idempotency-Key` whose change this is.
    pub(crate) async fn replace_meta(
        &self,
        name: &str,
        value: Option<&str>,
        call: Option<(&CallMark, Timestamp)>,
    ) -> Result<(), RegistryError> {
        let mut transaction = self.begin().await?;
        let change = match value {
            Some(value) => sqlx::query(
                "INSERT INTO meta (name, value) VALUES ($1, $2) \
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            )
            .bind(name)
            .bind(value),
            None => sqlx::query("DELETE FROM meta WHERE name = $1").bind(name),
        };
        with_deadline(change.execute(&mut *transaction)).await?;
        if let Some((call, at)) = call {
            idempotency::mark(&mut transaction, call, at).await?;
        }
        with_deadline(transaction.commit()).await?;
        Ok(())
    }

    /// Returns the fact called `name`, which is set to `first` if it is missing.
    pub(crate) async fn get_or_insert_meta(&self, name: &str, first: &str) -> Result<String, RegistryError> {
        // The update changes nothing, but makes RETURNING return a row that existed already.
        let mut transaction = self.begin().await?;
        let row = with_deadline(
            sqlx::query(
                "INSERT INTO meta (name, value) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET value = meta.value RETURNING value",
            )
            .bind(name)
            .bind(first)
            .fetch_one(&mut *transaction),
        )
        .await?;
        with_deadline(transaction.commit()).await?;
        Ok(row.try_get(0)?)
    }

    /// Replaces the fact called `name`, which must exist.
    pub(crate) async fn set_meta(&self, name: &str, value: &str) -> Result<(), RegistryError> {
        let mut transaction = self.begin().await?;
        let replace = sqlx::query("UPDATE meta SET value = $2 WHERE name = $1").bind(name).bind(value);
        with_deadline(replace.execute(&mut *transaction)).await?;
        with_deadline(transaction.commit()).await?;
        Ok(())
    }

    /// Returns an identity that no other registry has, not even a copy of this one.
    pub(crate) async fn identity(&self, database: &DatabaseUrl) -> Result<String, RegistryError> {
        if let DatabaseUrl::Sqlite(path) = database {
            let file = tokio::fs::metadata(path).await.map_err(sqlx::Error::Io)?;
            return Ok(format!("sqlite {}:{}", file.dev(), file.ino()));
        }
        let id = sqlx::query(
            "SELECT CAST(oid AS TEXT), CAST(current_schema() AS TEXT) FROM pg_database \
             WHERE datname = current_database()",
        );
        let row = with_deadline(id.fetch_one(&self.reads)).await?;
        let (database, schema): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        // Not every role may read it. Without it, databases of two servers may have the same identity.
        let server = sqlx::query("SELECT CAST(system_identifier AS TEXT) FROM pg_control_system()");
        let server = with_deadline(server.fetch_one(&self.reads)).await.and_then(|row| row.try_get(0));
        let server: String = server.unwrap_or_default();
        Ok(format!("postgres {server}/{database}/{schema}"))
    }

    /// Returns which engines should have data: whether there are any, and a sample of their ids.
    pub(crate) async fn known_data(&self) -> Result<KnownData, RegistryError> {
        const SAMPLE_SIZE: i64 = 64;
        let engines =
            sqlx::query("SELECT engine_id FROM engines ORDER BY engine_id LIMIT $1").bind(SAMPLE_SIZE);
        let engines = with_deadline(engines.fetch_all(&self.reads)).await?;
        let has_engines = !engines.is_empty();
        let ids: Vec<String> = engines.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok(KnownData { has_engines, engines: ids.iter().filter_map(|id| id.parse().ok()).collect() })
    }
}
