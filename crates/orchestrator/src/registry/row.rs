//! An engine's row, parsed into types. Any of the database drivers may have read it.

use std::str::FromStr;

use api::orchestrator::EngineStatus;
use api::{EngineId, EngineImage, KeyHash, Timestamp, UserId};
use backend::{Addressing, Instance, Placement, Target};
use sqlx::Row as _;
use sqlx::any::AnyRow;
use sqlx::postgres::PgRow;

use super::RegistryError;
use crate::domain::EngineOwner;
use crate::domain::idempotency::EngineClaim;
use crate::domain::lifecycle::Change;

/// The columns in the order in which [`EngineRow::read`] expects them.
macro_rules! engine_columns {
    () => {
        "engine_id, product_id, user_id, status, prior_status, key_hash, sealed_key, sealed_secrets_key, \
         engine_version, pinned, port, instance, created_at, last_health_at, generation, claim_kind, restarts, \
         restart_at"
    };
}
pub(super) use engine_columns;

/// A query for engines.
macro_rules! select_engines {
    ($rest:literal) => {
        concat!("SELECT ", $crate::registry::row::engine_columns!(), " FROM engines ", $rest)
    };
}
pub(super) use select_engines;

/// An engine as the registry stores it.
#[derive(Clone, Debug)]
pub(crate) struct EngineRow {
    pub(crate) engine_id: EngineId,
    pub(crate) owner: EngineOwner,
    pub(crate) status: EngineStatus,
    /// The settled state before `destroying`; `None` if there was none.
    pub(crate) prior_status: Option<EngineStatus>,
    pub(crate) key_hash: KeyHash,
    pub(crate) sealed_key: String,
    pub(crate) sealed_secrets_key: String,
    pub(crate) engine_version: EngineImage,
    /// Whether the engine is pinned to its version instead of following the deployment's.
    pub(crate) pinned: bool,
    /// The port of the host that it has leased.
    pub(crate) port: Option<u16>,
    /// The process or container that runs it.
    pub(crate) instance: Option<Instance>,
    pub(crate) created_at: Timestamp,
    pub(crate) last_health_at: Option<Timestamp>,
    /// The number of changes of the row so far.
    pub(crate) generation: i64,
    /// The operation under way.
    pub(crate) claim: Option<Change>,
    /// The number of automatic restarts attempted since it was last healthy for long.
    pub(crate) restarts: i64,
    /// When the next restart is due; `None` if none is.
    pub(crate) restart_at: Option<Timestamp>,
}

/// An engine that has its place: it can be launched.
#[derive(Clone, Debug)]
pub(crate) struct PlacedEngine {
    pub(crate) row: EngineRow,
    placement: Placement,
}

impl PlacedEngine {
    pub(crate) const fn placement(&self) -> Placement {
        self.placement
    }

    pub(super) const fn place(&mut self, placement: Placement) {
        if let Placement::HostPort(port) = placement {
            self.row.port = Some(port);
        }
        self.placement = placement;
    }
}

/// A running engine: it listens at its `placement`, and `instance` is its process or container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningEngine<'a> {
    pub(crate) row: &'a EngineRow,
    pub(crate) placement: Placement,
    pub(crate) instance: &'a Instance,
}

impl EngineRow {
    /// Returns the engine as a running one, if it is, of a backend with this addressing.
    pub(crate) fn running(&self, addressing: Addressing) -> Option<RunningEngine<'_>> {
        match (self.status, addressing.placement(self.port), &self.instance) {
            (EngineStatus::Running, Some(placement), Some(instance)) => {
                Some(RunningEngine { row: self, placement, instance })
            }
            _ => None,
        }
    }

    /// Returns the engine at its `placement`.
    pub(crate) const fn placed(self, placement: Placement) -> PlacedEngine {
        let mut engine = PlacedEngine { row: self, placement };
        engine.place(placement);
        engine
    }

    /// Returns the engine and generation on which an operation under this row may act.
    pub(crate) const fn target(&self) -> Target {
        Target { engine_id: self.engine_id, generation: self.generation }
    }

    /// Returns the last settled state: `provisioning` and `destroying` are operations under way, not settled
    /// states.
    pub(crate) fn settled_status(&self) -> Option<EngineStatus> {
        match self.status {
            EngineStatus::Provisioning | EngineStatus::Destroying => self.prior_status,
            EngineStatus::Running | EngineStatus::Sleeping | EngineStatus::Stopped | EngineStatus::Failed => {
                Some(self.status)
            }
        }
    }

    /// The claim of this row, if it is claimed.
    pub(crate) const fn claimed(&self) -> EngineClaim {
        EngineClaim { engine_id: self.engine_id, generation: self.generation }
    }

    pub(super) fn read(row: &impl ColumnSource) -> Result<Self, RegistryError> {
        let text =
            |at, name| Ok::<_, RegistryError>(Column { name, value: row.text(at)?.map(str::to_owned) });
        let integer = |at, name| Ok::<_, RegistryError>(Column { name, value: row.integer(at)? });
        let status = |name: String| EngineStatus::from_name(&name);
        let timestamp = |ms| Some(Timestamp::from_unix_ms(ms));
        Ok(Self {
            engine_id: text(0, "engine_id")?.parsed()?,
            owner: EngineOwner {
                product_id: text(1, "product_id")?.parsed()?,
                user_id: text(2, "user_id")?.required(|text| UserId::new(text).ok())?,
            },
            status: text(3, "status")?.required(status)?,
            prior_status: text(4, "prior_status")?.optional(status)?,
            key_hash: text(5, "key_hash")?.required(|hex| KeyHash::from_hex(&hex).ok())?,
            sealed_key: text(6, "sealed_key")?.required(Some)?,
            sealed_secrets_key: text(7, "sealed_secrets_key")?.required(Some)?,
            engine_version: text(8, "engine_version")?.parsed()?,
            pinned: integer(9, "pinned")?.required(|flag| Some(flag != 0))?,
            port: integer(10, "port")?.optional(|port| u16::try_from(port).ok())?,
            instance: text(11, "instance")?.optional(|text| Some(Instance::new(text)))?,
            created_at: integer(12, "created_at")?.required(timestamp)?,
            last_health_at: integer(13, "last_health_at")?.optional(timestamp)?,
            generation: integer(14, "generation")?.required(Some)?,
            claim: text(15, "claim_kind")?.optional(|name| Change::from_name(&name))?,
            restarts: integer(16, "restarts")?.required(Some)?,
            restart_at: integer(17, "restart_at")?.optional(timestamp)?,
        })
    }
}

/// A row of any of the drivers. Columns are read by position: the hot read has eighteen columns, and each name
/// would be looked up every time.
pub(super) trait ColumnSource {
    /// Returns the text in column `at`.
    fn text(&self, at: usize) -> Result<Option<&str>, RegistryError>;
    /// Returns the integer in column `at`.
    fn integer(&self, at: usize) -> Result<Option<i64>, RegistryError>;
}

impl ColumnSource for AnyRow {
    fn text(&self, at: usize) -> Result<Option<&str>, RegistryError> {
        Ok(self.try_get(at)?)
    }

    fn integer(&self, at: usize) -> Result<Option<i64>, RegistryError> {
        Ok(self.try_get(at)?)
    }
}

impl ColumnSource for PgRow {
    fn text(&self, at: usize) -> Result<Option<&str>, RegistryError> {
        Ok(self.try_get(at)?)
    }

    fn integer(&self, at: usize) -> Result<Option<i64>, RegistryError> {
        Ok(self.try_get(at)?)
    }
}

impl ColumnSource for rusqlite::Row<'_> {
    fn text(&self, at: usize) -> Result<Option<&str>, RegistryError> {
        Ok(self.get_ref(at)?.as_str_or_null().map_err(rusqlite::Error::from)?)
    }

    fn integer(&self, at: usize) -> Result<Option<i64>, RegistryError> {
        Ok(self.get(at)?)
    }
}

/// A column's value with its name, which is reported if the value cannot be read.
struct Column<V> {
    name: &'static str,
    value: Option<V>,
}

impl<V> Column<V> {
    fn optional<T>(self, parse: impl FnOnce(V) -> Option<T>) -> Result<Option<T>, RegistryError> {
        let Self { name, value } = self;
        value.map(|value| parse(value).ok_or(RegistryError::Unreadable { column: name })).transpose()
    }

    fn required<T>(self, parse: impl FnOnce(V) -> Option<T>) -> Result<T, RegistryError> {
        let name = self.name;
        self.optional(parse)?.ok_or(RegistryError::Unreadable { column: name })
    }
}

impl Column<String> {
    fn parsed<T: FromStr>(self) -> Result<T, RegistryError> {
        self.required(|text| text.parse().ok())
    }
}
