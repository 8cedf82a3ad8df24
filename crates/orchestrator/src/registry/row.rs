//! An engine's row, read back into types.

use std::str::FromStr;

use contract::orchestrator::EngineStatus;
use contract::{EngineId, EngineImage, KeyHash, Timestamp, UserId};
use sqlx::any::AnyRow;
use sqlx::{Any, ColumnIndex, Decode, Row as _, Type};

use super::{RegistryError, Seat};
use crate::backend::Instance;
use crate::fleet::lifecycle::Change;

/// A query for engines: their columns, in the order in which [`EngineRow::read`] takes them.
macro_rules! select_engines {
    ($rest:literal) => {
        concat!(
            "SELECT engine_id, product_id, user_id, status, prior_status, key_hash, sealed_key, \
             sealed_secrets_key, engine_version, pinned, port, instance, created_at, last_health_at, \
             generation, claim_kind FROM engines ",
            $rest
        )
    };
}
pub(super) use select_engines;

/// One engine as the registry knows it.
#[derive(Clone, Debug)]
pub(crate) struct EngineRow {
    pub(crate) engine_id: EngineId,
    pub(crate) seat: Seat,
    pub(crate) status: EngineStatus,
    /// The settled state before `destroying`; none if there was none.
    pub(crate) prior_status: Option<EngineStatus>,
    pub(crate) key_hash: KeyHash,
    pub(crate) sealed_key: String,
    pub(crate) sealed_secrets_key: String,
    pub(crate) engine_version: EngineImage,
    /// Whether it stays with its version instead of following the deployment's.
    pub(crate) pinned: bool,
    pub(crate) port: Option<u16>,
    /// The process or container that runs it.
    pub(crate) instance: Option<Instance>,
    pub(crate) created_at: Timestamp,
    pub(crate) last_health_at: Option<Timestamp>,
    /// Counts the changes of the row.
    pub(crate) generation: i64,
    /// The change under way.
    pub(crate) claim: Option<Change>,
}

impl EngineRow {
    /// The state it is or was settled in: `provisioning` and `destroying` are changes under way.
    pub(crate) fn settled_status(&self) -> Option<EngineStatus> {
        match self.status {
            EngineStatus::Provisioning | EngineStatus::Destroying => self.prior_status,
            EngineStatus::Running | EngineStatus::Sleeping | EngineStatus::Stopped | EngineStatus::Failed => {
                Some(self.status)
            }
        }
    }

    pub(super) fn read(row: &AnyRow) -> Result<Self, RegistryError> {
        let columns = Columns(row);
        Ok(Self {
            engine_id: columns.parsed(0, "engine_id")?,
            seat: Seat {
                product_id: columns.parsed(1, "product_id")?,
                user_id: columns.read(2, "user_id", |text: String| UserId::new(text).ok())?,
            },
            status: columns.read(3, "status", |name: String| EngineStatus::from_name(&name))?,
            prior_status: columns
                .optional(4, "prior_status", |name: String| EngineStatus::from_name(&name))?,
            key_hash: columns.read(5, "key_hash", |hex: String| KeyHash::from_hex(&hex).ok())?,
            sealed_key: columns.read(6, "sealed_key", Some)?,
            sealed_secrets_key: columns.read(7, "sealed_secrets_key", Some)?,
            engine_version: columns.parsed(8, "engine_version")?,
            pinned: columns.read(9, "pinned", |flag: i64| Some(flag != 0))?,
            port: columns.optional(10, "port", |port: i64| u16::try_from(port).ok())?,
            instance: columns.optional(11, "instance", |text: String| Some(Instance::new(text)))?,
            created_at: columns.read(12, "created_at", |ms| Some(Timestamp::from_unix_ms(ms)))?,
            last_health_at: columns
                .optional(13, "last_health_at", |ms: i64| Some(Timestamp::from_unix_ms(ms)))?,
            generation: columns.read(14, "generation", Some)?,
            claim: columns.optional(15, "claim_kind", |name: String| Change::from_name(&name))?,
        })
    }
}

/// Reads columns by position: the hot read has sixteen of them, and names would be looked up each time.
struct Columns<'r>(&'r AnyRow);

impl<'r> Columns<'r> {
    fn optional<C, T>(
        &self,
        at: usize,
        column: &'static str,
        parse: impl FnOnce(C) -> Option<T>,
    ) -> Result<Option<T>, RegistryError>
    where
        C: Decode<'r, Any> + Type<Any>,
        usize: ColumnIndex<AnyRow>,
    {
        match self.0.try_get::<Option<C>, _>(at)? {
            Some(value) => parse(value).map(Some).ok_or(RegistryError::Unreadable { column }),
            None => Ok(None),
        }
    }

    fn read<C, T>(
        &self,
        at: usize,
        column: &'static str,
        parse: impl FnOnce(C) -> Option<T>,
    ) -> Result<T, RegistryError>
    where
        C: Decode<'r, Any> + Type<Any>,
    {
        parse(self.0.try_get(at)?).ok_or(RegistryError::Unreadable { column })
    }

    fn parsed<T: FromStr>(&self, at: usize, column: &'static str) -> Result<T, RegistryError> {
        self.read(at, column, |text: String| text.parse().ok())
    }
}
