//! Warm engines: booted ahead, and without a user. A claim moves the row of one to `engines` in the transaction that
//! claims the new engine, so an engine has one row, whatever dies when, and its port stays its own.

use api::{EngineId, EngineImage, KeyHash, ProductId, Timestamp};
use backend::{Instance, Placement};
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::access::with_deadline;
use super::audit_log::ProductTx;
use super::claims::NewEngine;
use super::ports::Placements;
use super::{Registry, RegistryError};
use crate::domain::warm_pool::{WarmState, launch_settings};

/// A warm engine as the registry stores it.
#[derive(Clone, Debug)]
pub(crate) struct WarmRow {
    pub(crate) engine_id: EngineId,
    pub(crate) product_id: ProductId,
    pub(crate) state: WarmState,
    pub(crate) key_hash: KeyHash,
    pub(crate) sealed_key: String,
    pub(crate) sealed_secrets_key: String,
    pub(crate) image: EngineImage,
    /// What else it was launched with: [`launch_settings`].
    pub(crate) settings: String,
    /// The port of the host that it has leased.
    pub(crate) port: Option<u16>,
    /// The process or container that runs it.
    pub(crate) instance: Option<Instance>,
}

/// A warm engine to be booted.
pub(crate) struct NewWarmEngine {
    pub(crate) engine_id: EngineId,
    pub(crate) product_id: ProductId,
    pub(crate) key_hash: KeyHash,
    pub(crate) sealed_key: String,
    pub(crate) sealed_secrets_key: String,
    pub(crate) image: EngineImage,
    /// What all engines of the deployment are launched with by now.
    pub(crate) environment: String,
    pub(crate) created_at: Timestamp,
}

/// The warm engines that a provision may claim.
#[derive(Clone, Debug)]
pub(crate) struct WarmOffer {
    /// They ran a moment ago.
    pub(crate) candidates: Vec<EngineId>,
    /// What all engines of the deployment are launched with by now.
    pub(crate) environment: String,
}

/// A warm engine, and the origins of its product's pages as the registry has them now.
pub(crate) struct ListedWarmEngine {
    pub(crate) row: WarmRow,
    pub(crate) origins: Option<String>,
}

macro_rules! columns {
    ($prefix:literal) => {
        concat!(
            $prefix,
            "engine_id, ",
            $prefix,
            "product_id, ",
            $prefix,
            "state, ",
            $prefix,
            "key_hash, ",
            $prefix,
            "sealed_key, ",
            $prefix,
            "sealed_secrets_key, ",
            $prefix,
            "engine_version, ",
            $prefix,
            "settings, ",
            $prefix,
            "port, ",
            $prefix,
            "instance"
        )
    };
}

/// All warm engines, of which there is a bounded number.
const ALL: &str = concat!(
    "SELECT ",
    columns!("w."),
    ", o.origins FROM warm_engines w \
     LEFT JOIN product_origins o ON o.product_id = w.product_id ORDER BY w.engine_id"
);

/// Takes a ready engine that was launched as `$3` and `$4` say. An earlier version of this program, which knows nothing
/// of warm engines, may have leased its port to another engine.
const TAKE: &str = concat!(
    "DELETE FROM warm_engines WHERE engine_id = $1 AND product_id = $2 AND state = 'ready' \
     AND engine_version = $3 AND settings = $4 AND instance IS NOT NULL \
     AND NOT EXISTS (SELECT 1 FROM engines e WHERE e.port = warm_engines.port) RETURNING ",
    columns!("")
);

impl Registry {
    /// Returns all warm engines. Those that this version cannot read are skipped.
    pub(crate) async fn warm_engines(&self) -> Result<Vec<ListedWarmEngine>, RegistryError> {
        let rows = with_deadline(sqlx::query(ALL).fetch_all(&self.reads)).await?;
        let mut engines = Vec::with_capacity(rows.len());
        for row in &rows {
            match read(row) {
                Ok(warm) => engines.push(ListedWarmEngine { row: warm, origins: row.try_get(10)? }),
                Err(RegistryError::Unreadable { column }) => {
                    self.unreadable_rows.log_once("warm engine", &row.try_get::<String, _>(0)?, column);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(engines)
    }

    /// Whether this engine is a warm one.
    pub(crate) async fn is_warm_engine(&self, engine_id: EngineId) -> Result<bool, RegistryError> {
        let query =
            sqlx::query("SELECT 1 FROM warm_engines WHERE engine_id = $1").bind(engine_id.to_string());
        Ok(with_deadline(query.fetch_optional(&self.reads)).await?.is_some())
    }

    /// Inserts the row of a warm engine that is to be booted, with a place for it. Returns `None` if the product may not
    /// have engines, or no place is free: no stopped engine gives up its port for it.
    pub(crate) async fn insert_warm_engine(
        &self,
        new: NewWarmEngine,
        placements: &Placements,
    ) -> Result<Option<(WarmRow, Placement)>, RegistryError> {
        let mut tx = self.begin_product_tx(new.product_id, 0).await?;
        tx.require_enabled()?;
        let product_id = new.product_id.to_string();
        let policy = self.stored_policy(&product_id, tx.policy());
        if policy.is_suspended() || !policy.allows(&new.image, &new.image) {
            return Ok(None);
        }
        let settings = current_settings(self, &mut tx, &product_id, &new.environment).await?;
        placements.lock(self, tx.connection()).await?;
        let Some(placement) = placements.place_if_free(tx.connection()).await? else { return Ok(None) };
        let row = WarmRow {
            engine_id: new.engine_id,
            product_id: new.product_id,
            state: WarmState::Booting,
            key_hash: new.key_hash,
            sealed_key: new.sealed_key,
            sealed_secrets_key: new.sealed_secrets_key,
            image: new.image,
            settings,
            port: placement.host_port(),
            instance: None,
        };
        let insert = sqlx::query(
            "INSERT INTO warm_engines (engine_id, product_id, state, since, key_hash, sealed_key, \
             sealed_secrets_key, engine_version, settings, port) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        )
        .bind(row.engine_id.to_string())
        .bind(product_id)
        .bind(row.state.as_str())
        .bind(new.created_at.unix_ms())
        .bind(row.key_hash.to_hex())
        .bind(row.sealed_key.clone())
        .bind(row.sealed_secrets_key.clone())
        .bind(row.image.as_str().to_owned())
        .bind(row.settings.clone())
        .bind(row.port.map(i64::from));
        with_deadline(insert.execute(tx.connection())).await?;
        tx.commit().await?;
        Ok(Some((row, placement)))
    }

    /// Marks a warm engine as ready, and running as `instance`. Returns whether it was still booting.
    pub(crate) async fn set_warm_engine_ready(
        &self,
        row: &WarmRow,
        instance: &Instance,
        now: Timestamp,
    ) -> Result<bool, RegistryError> {
        let update = sqlx::query(
            "UPDATE warm_engines SET state = 'ready', instance = $2, since = $3 \
             WHERE engine_id = $1 AND state = 'booting'",
        )
        .bind(row.engine_id.to_string())
        .bind(instance.as_str().to_owned())
        .bind(now.unix_ms());
        let mut tx = self.begin_product_tx(row.product_id, 0).await?;
        let changed = with_deadline(update.execute(tx.connection())).await?.rows_affected() > 0;
        tx.commit().await?;
        Ok(changed)
    }

    /// Marks a warm engine as one that is being removed: from then on nobody claims it. Returns false if it is no warm
    /// engine any more.
    pub(crate) async fn begin_warm_engine_end(
        &self,
        row: &WarmRow,
        now: Timestamp,
    ) -> Result<bool, RegistryError> {
        let update = sqlx::query("UPDATE warm_engines SET state = 'ending', since = $2 WHERE engine_id = $1")
            .bind(row.engine_id.to_string())
            .bind(now.unix_ms());
        let mut tx = self.begin_product_tx(row.product_id, 0).await?;
        let changed = with_deadline(update.execute(tx.connection())).await?.rows_affected() > 0;
        tx.commit().await?;
        Ok(changed)
    }

    /// Removes the row of a warm engine of which nothing is left.
    pub(crate) async fn remove_warm_engine(&self, row: &WarmRow) -> Result<(), RegistryError> {
        let delete = sqlx::query("DELETE FROM warm_engines WHERE engine_id = $1 AND state = 'ending'")
            .bind(row.engine_id.to_string());
        let mut tx = self.begin_product_tx(row.product_id, 0).await?;
        with_deadline(delete.execute(tx.connection())).await?;
        tx.commit().await
    }

    /// Takes the first of the offered engines that a launch of `engine` would be like; `None` if there is none.
    pub(super) async fn take_warm_engine(
        &self,
        tx: &mut ProductTx,
        engine: &NewEngine,
    ) -> Result<Option<WarmRow>, RegistryError> {
        let Some(offer) = &engine.warm else { return Ok(None) };
        let product_id = engine.owner.product_id.to_string();
        let settings = current_settings(self, tx, &product_id, &offer.environment).await?;
        for candidate in &offer.candidates {
            let take = sqlx::query(TAKE)
                .bind(candidate.to_string())
                .bind(product_id.clone())
                .bind(engine.engine_version.as_str().to_owned())
                .bind(settings.clone());
            let taken = with_deadline(take.fetch_optional(tx.connection())).await?;
            if let Some(row) = taken {
                return read(&row).map(Some);
            }
        }
        Ok(None)
    }
}

/// What an engine of the product would be launched with now: under the lock of its row, policy and origins stay.
async fn current_settings(
    registry: &Registry,
    tx: &mut ProductTx,
    product_id: &str,
    environment: &str,
) -> Result<String, RegistryError> {
    let policy = registry.stored_policy(product_id, tx.policy());
    let query = sqlx::query("SELECT origins FROM product_origins WHERE product_id = $1");
    let row = with_deadline(query.bind(product_id.to_owned()).fetch_optional(tx.connection())).await?;
    let origins: Option<String> = row.map(|row| row.try_get(0)).transpose()?;
    Ok(launch_settings(&policy, origins.as_deref(), environment))
}

fn read(row: &AnyRow) -> Result<WarmRow, RegistryError> {
    let unreadable = |column| move || RegistryError::Unreadable { column };
    let text = |at: usize| row.try_get::<String, _>(at);
    let port = row.try_get::<Option<i64>, _>(8)?;
    let port = port.map(|port| u16::try_from(port).ok().ok_or_else(unreadable("port")));
    Ok(WarmRow {
        engine_id: text(0)?.parse().ok().ok_or_else(unreadable("engine_id"))?,
        product_id: text(1)?.parse().ok().ok_or_else(unreadable("product_id"))?,
        state: WarmState::from_name(&text(2)?).ok_or_else(unreadable("state"))?,
        key_hash: KeyHash::from_hex(&text(3)?).ok().ok_or_else(unreadable("key_hash"))?,
        sealed_key: text(4)?,
        sealed_secrets_key: text(5)?,
        image: text(6)?.parse().ok().ok_or_else(unreadable("engine_version"))?,
        settings: text(7)?,
        port: port.transpose()?,
        instance: row.try_get::<Option<String>, _>(9)?.map(Instance::new),
    })
}
