//! Places for engines that are about to be launched. Where engines listen on ports of the host, each leases one: one
//! engine per port, whatever its state.
//!
//! A stopped engine keeps its port, and thus its address, until no other port is free. So the range limits the
//! number of running engines, not of users.

use std::sync::atomic::{AtomicU16, Ordering};

use api::orchestrator::EngineStatus;
use backend::Placement;
use sqlx::{AnyConnection, Row as _};

use super::access::with_deadline;
use super::{Registry, RegistryError};
use crate::config::PortRange;

/// What gives engines their places.
pub(crate) enum Placements {
    /// Each engine leases a port of the host.
    HostPorts(PortAllocator),
    /// The backend gives each engine an address of its own.
    OwnAddresses,
}

impl Placements {
    /// Prevents others from leasing a port until the transaction ends.
    pub(super) async fn lock(
        &self,
        registry: &Registry,
        connection: &mut AnyConnection,
    ) -> Result<(), RegistryError> {
        match self {
            Self::HostPorts(_) => registry.lock_multi_engine(connection).await,
            Self::OwnAddresses => Ok(()),
        }
    }

    /// The place of an engine that has leased `port`; `None` if it needs one and has none.
    pub(super) fn placement_of(&self, port: Option<u16>) -> Option<Placement> {
        match self {
            Self::HostPorts(_) => port.map(Placement::HostPort),
            Self::OwnAddresses => Some(Placement::OwnAddress),
        }
    }

    /// Places a warm engine. Returns `None` if no port is free: no other engine gives up its port for it.
    pub(super) async fn place_if_free(
        &self,
        connection: &mut AnyConnection,
    ) -> Result<Option<Placement>, RegistryError> {
        match self {
            Self::HostPorts(ports) => Ok(ports.lease_free(connection).await?.map(Placement::HostPort)),
            Self::OwnAddresses => Ok(Some(Placement::OwnAddress)),
        }
    }

    /// Places an engine whose last port was `last`. Returns `None` if no port is available.
    pub(super) async fn place(
        &self,
        connection: &mut AnyConnection,
        last: Option<u16>,
    ) -> Result<Option<Placement>, RegistryError> {
        match self {
            Self::HostPorts(ports) => Ok(ports.lease(connection, last).await?.map(Placement::HostPort)),
            Self::OwnAddresses => Ok(Some(Placement::OwnAddress)),
        }
    }
}

/// Allocates the ports that may be leased.
pub(crate) struct PortAllocator {
    range: PortRange,
    /// Where the next search begins: after the port leased last, so that a port just given up does not go to
    /// another user at once.
    next: AtomicU16,
    /// Whether no other program on the host holds the port.
    is_free: Box<dyn Fn(u16) -> bool + Send + Sync>,
}

impl PortAllocator {
    /// Creates an allocator of the ports of `range` for which `is_free` holds.
    pub(crate) fn new(range: PortRange, is_free: impl Fn(u16) -> bool + Send + Sync + 'static) -> Self {
        Self { range, next: AtomicU16::new(range.min()), is_free: Box::new(is_free) }
    }

    /// Leases a port: `last` if it is available, else a free one, else that of a stopped engine. Returns `None`
    /// if there is none.
    pub(super) async fn lease(
        &self,
        connection: &mut AnyConnection,
        last: Option<u16>,
    ) -> Result<Option<u16>, RegistryError> {
        if let Some(last) = last.filter(|last| self.range.contains(*last) && (self.is_free)(*last)) {
            return Ok(Some(last));
        }
        match self.lease_free(connection).await? {
            Some(port) => Ok(Some(port)),
            None => self.reclaim(connection).await,
        }
    }

    /// Leases a free port. Returns `None` if there is none.
    async fn lease_free(&self, connection: &mut AnyConnection) -> Result<Option<u16>, RegistryError> {
        let begin = self.next.load(Ordering::Relaxed);
        let mut port = self.find_free(connection, begin, self.range.max()).await?;
        if port.is_none() && begin > self.range.min() {
            port = self.find_free(connection, self.range.min(), begin - 1).await?;
        }
        if let Some(port) = port {
            let after = if port == self.range.max() { self.range.min() } else { port + 1 };
            self.next.store(after, Ordering::Relaxed);
        }
        Ok(port)
    }

    /// Returns the first port of `from..=to` that is not leased and that no other program holds.
    async fn find_free(
        &self,
        connection: &mut AnyConnection,
        from: u16,
        to: u16,
    ) -> Result<Option<u16>, RegistryError> {
        let mut from = from;
        while from <= to {
            let Some(port) = first_unleased(connection, from, to).await? else { return Ok(None) };
            if (self.is_free)(port) {
                return Ok(Some(port));
            }
            let Some(next) = port.checked_add(1) else { return Ok(None) };
            from = next;
        }
        Ok(None)
    }

    /// Takes the port of a stopped engine, whose address becomes unknown: the one that has been stopped longest.
    async fn reclaim(&self, connection: &mut AnyConnection) -> Result<Option<u16>, RegistryError> {
        let candidates = with_deadline(
            sqlx::query(
                "SELECT engine_id, port FROM engines \
             WHERE port BETWEEN $1 AND $2 AND claim_kind IS NULL AND status IN ($3, $4, $5) \
             ORDER BY last_health_at NULLS FIRST, engine_id",
            )
            .bind(i64::from(self.range.min()))
            .bind(i64::from(self.range.max()))
            .bind(EngineStatus::Stopped.as_str())
            .bind(EngineStatus::Sleeping.as_str())
            .bind(EngineStatus::Failed.as_str())
            .fetch_all(&mut *connection),
        )
        .await?;
        for row in candidates {
            let (engine_id, port): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            let Ok(port) = u16::try_from(port) else { continue };
            if !(self.is_free)(port) {
                continue;
            }
            // Another product's engine may be starting at this moment: it keeps its port then.
            let reclaimed = with_deadline(
                sqlx::query(
                    "UPDATE engines SET port = NULL WHERE engine_id = $1 AND port = $2 AND claim_kind IS NULL \
                     AND status IN ($3, $4, $5)",
                )
                .bind(engine_id)
                .bind(i64::from(port))
                .bind(EngineStatus::Stopped.as_str())
                .bind(EngineStatus::Sleeping.as_str())
                .bind(EngineStatus::Failed.as_str())
                .execute(&mut *connection),
            );
            if reclaimed.await?.rows_affected() > 0 {
                return Ok(Some(port));
            }
        }
        Ok(None)
    }
}

/// A query for the first port after one that an engine of this table has.
macro_rules! after_leased {
    ($table:literal) => {
        concat!(
            "SELECT * FROM (SELECT leased.port + 1 AS port FROM ",
            $table,
            " leased WHERE leased.port >= $1 AND leased.port < $2 \
             AND NOT EXISTS (SELECT 1 FROM engines other WHERE other.port = leased.port + 1) \
             AND NOT EXISTS (SELECT 1 FROM warm_engines other WHERE other.port = leased.port + 1) \
             ORDER BY leased.port LIMIT 1) first_of_table"
        )
    };
}

/// Finds the first port of `$1..=$2` that no engine has, warm ones included: `$1` itself, or the first after a leased one.
/// It takes one index scan of each table, however many ports are leased.
pub(super) const FIRST_UNLEASED: &str = concat!(
    "SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM engines WHERE port = $1) \
     AND NOT EXISTS (SELECT 1 FROM warm_engines WHERE port = $1) THEN $1 ELSE (SELECT MIN(candidates.port) FROM (",
    after_leased!("engines"),
    " UNION ALL ",
    after_leased!("warm_engines"),
    ") candidates) END"
);

async fn first_unleased(
    connection: &mut AnyConnection,
    from: u16,
    to: u16,
) -> Result<Option<u16>, RegistryError> {
    let query = sqlx::query(FIRST_UNLEASED).bind(i64::from(from)).bind(i64::from(to));
    let row = with_deadline(query.fetch_one(connection)).await?;
    Ok(row.try_get::<Option<i64>, _>(0)?.and_then(|port| u16::try_from(port).ok()))
}
