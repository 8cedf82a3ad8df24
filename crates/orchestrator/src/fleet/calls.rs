//! What callers can ask: each function is one endpoint.

use std::sync::Arc;

use contract::orchestrator::{
    Admission, Admit, DenialReason, Destroyed, DestroyedEngine, EngineList, EngineRecord, EngineStatus,
    ListEngines, PageLimit, PageOffset, ProvisionEngine, ProvisionedEngine, RotatedKey, StartedEngine,
    StoppedEngine,
};
use contract::{EngineId, EngineKey, UserId};

use super::flight::Settled;
use super::lifecycle::{Decision, Trigger, decide};
use super::pursuit::Job;
use super::rate::OverLimit;
use super::{Fleet, FleetError};
use crate::registry::{EngineRow, Page, Product, Seat};
use crate::sabotage::{self, Saboteur};

/// The page size of a listing that asks for none.
pub(super) const PAGE: i64 = 100;

/// Why a product changed something, as the ledger has it.
const REQUESTED: &str = "requested";

/// Where a running engine is reached, and its key.
pub(crate) struct Reach {
    pub(crate) engine_id: EngineId,
    pub(crate) port: u16,
    pub(crate) key: EngineKey,
}

impl Fleet {
    /// Admits a user: hands out their engine, provisioning or waking it if `ask` says so.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
        ask: Admit,
    ) -> Result<Admission, FleetError> {
        let limit = product.policy.rate_limit_rpm;
        let checked = self.rates.check(product.product_id, limit, self.measured());
        checked.map_err(|OverLimit { retry_after_s }| FleetError::RateLimited { retry_after_s })?;
        let denied = self.image_denied(product, None).filter(|_| ask.auto_provision);
        let provision = ask.auto_provision && denied.is_none();
        let trigger = Trigger::Admit { provision, wake: ask.auto_wake };
        let seat = seat(product, user_id);
        if sabotage::by(Saboteur::AskTwice) {
            self.registry.standing(&seat).await?;
        }
        // Most admits end here: with one read, and no timer.
        if let Some(standing) = self.registry.standing(&seat).await?
            && decide(Some(standing.view()), trigger) == Decision::Pass
            && self.passes(trigger, standing.engine_id, &seat)
        {
            return self.standing_record(seat, standing).map(Admission::admitted);
        }
        let job = Job::new(seat, trigger, "admit");
        match self.pursue(&job).await? {
            Settled::Found(row) => self.record(*row).map(Admission::admitted),
            Settled::Denied(DenialReason::EngineNotFound) if let Some(denied) = denied => Err(denied),
            Settled::Denied(reason) => Ok(Admission::denied(reason)),
            Settled::AtRest | Settled::Destroyed(_) | Settled::Moved(_) => Err(FleetError::EngineNotRunning),
        }
    }

    /// Provisions an engine for a user who has none.
    pub(crate) async fn provision(
        self: &Arc<Self>,
        product: &Product,
        ask: ProvisionEngine,
    ) -> Result<ProvisionedEngine, FleetError> {
        let mut job = Job::new(seat(product, ask.user_id), Trigger::Provision, REQUESTED);
        job.version = ask.engine_version;
        if let Some(denied) = self.image_denied(product, job.version.as_ref()) {
            return Err(denied);
        }
        let row = found(self.pursue(&job).await?)?;
        let (api_key, url) = (self.engine_key(&row)?, self.address(&row)?);
        let EngineRow { engine_id, status, seat, .. } = row;
        Ok(ProvisionedEngine { engine_id, user_id: seat.user_id, status, url, api_key })
    }

    /// One engine with its key.
    pub(crate) async fn engine(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<EngineRecord, FleetError> {
        let wakes = sabotage::by(Saboteur::WakeOnLook);
        let look = if wakes { Trigger::Admit { provision: true, wake: true } } else { Trigger::Look };
        let job = Job::new(seat(product, user_id), look, REQUESTED);
        self.record(found(self.pursue(&job).await?)?)
    }

    /// A page of the product's engines, without their keys.
    pub(crate) async fn engines(
        &self,
        product: &Product,
        ask: ListEngines,
    ) -> Result<EngineList, FleetError> {
        let page = Page {
            status: ask.status,
            limit: ask.limit.map_or(PAGE, PageLimit::get),
            offset: ask.offset.map_or(0, PageOffset::get),
        };
        let (rows, total) = self.registry.list(product.product_id, page).await?;
        Ok(EngineList { engines: rows.into_iter().map(|row| self.summary(row)).collect(), total })
    }

    /// Starts an engine at rest.
    pub(crate) async fn start(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<StartedEngine, FleetError> {
        let job = Job::new(seat(product, user_id), Trigger::Start, REQUESTED);
        let row = found(self.pursue(&job).await?)?;
        Ok(StartedEngine { status: row.status, url: self.address(&row)? })
    }

    /// Stops a running engine.
    pub(crate) async fn stop(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<StoppedEngine, FleetError> {
        self.pursue(&Job::new(seat(product, user_id), Trigger::Stop, REQUESTED)).await?;
        Ok(StoppedEngine { status: EngineStatus::Stopped })
    }

    /// Gives a running engine another key. The old one is invalid from then on.
    pub(crate) async fn rotate(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<RotatedKey, FleetError> {
        let job = Job::new(seat(product, user_id), Trigger::Rotate, REQUESTED);
        let row = found(self.pursue(&job).await?)?;
        Ok(RotatedKey { new_api_key: self.engine_key(&row)? })
    }

    /// Where a running engine is reached. Counts as activity.
    pub(crate) async fn reach(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<Reach, FleetError> {
        let job = Job::new(seat(product, user_id), Trigger::Reach, REQUESTED);
        let row = found(self.pursue(&job).await?)?;
        let port = row.port.ok_or(FleetError::EngineNotRunning)?;
        Ok(Reach { engine_id: row.engine_id, port, key: self.engine_key(&row)? })
    }

    /// The address of an engine that runs. It has one: a port is given away only while the engine rests.
    fn address(&self, row: &EngineRow) -> Result<String, FleetError> {
        row.port.map(|port| self.url(port)).ok_or(FleetError::EngineNotRunning)
    }

    /// Destroys an engine, whatever its state.
    pub(crate) async fn destroy(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<DestroyedEngine, FleetError> {
        match self.pursue(&Job::new(seat(product, user_id), Trigger::Destroy, REQUESTED)).await? {
            Settled::Destroyed(engine_id) => Ok(DestroyedEngine { status: Destroyed::Destroyed, engine_id }),
            Settled::Found(_) | Settled::AtRest | Settled::Denied(_) | Settled::Moved(_) => {
                Err(FleetError::EngineNotFound)
            }
        }
    }
}

pub(super) fn seat(product: &Product, user_id: UserId) -> Seat {
    let user_id = sabotage::folded(user_id);
    Seat { product_id: product.product_id, user_id }
}

fn found(settled: Settled) -> Result<EngineRow, FleetError> {
    match settled {
        Settled::Found(row) => Ok(*row),
        Settled::AtRest | Settled::Destroyed(_) | Settled::Denied(_) | Settled::Moved(_) => {
            Err(FleetError::EngineNotRunning)
        }
    }
}
