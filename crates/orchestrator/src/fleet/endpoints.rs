//! The operations of the products' API on engines: one function per endpoint.

use std::sync::Arc;

use api::orchestrator::{
    Admission, Admit, DenialReason, Destroyed, DestroyedEngine, EngineList, EngineRecord, EngineStatus,
    ListEngines, PageLimit, PageOffset, ProvisionEngine, ProvisionedEngine, RotatedKey, StartedEngine,
    StoppedEngine,
};
use api::{EngineId, EngineKey, UserId};

use super::execute::OperationRequest;
use super::lifecycle::{Decision, Trigger, decide};
use super::operation::OperationResult;
use super::rate_limit::OverLimit;
use super::{Fleet, FleetError};
use crate::registry::{EngineOwner, EngineRow, Page, Product};

/// The page size of a listing that specifies none.
pub(super) const DEFAULT_PAGE_SIZE: i64 = 100;

/// The reason that the audit log records for a change requested by the product.
const REQUESTED_REASON: &str = "requested";

/// The address and the key of a running engine.
pub(crate) struct EngineEndpoint {
    pub(crate) engine_id: EngineId,
    pub(crate) port: u16,
    pub(crate) key: EngineKey,
}

impl Fleet {
    /// Admits a user: returns the endpoint of their engine, after provisioning or waking it if `params` allow that.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
        params: Admit,
    ) -> Result<Admission, FleetError> {
        let limit = product.policy.rate_limit_rpm;
        let checked = self.rate_limiter.check(product.product_id, limit, self.monotonic_now());
        checked.map_err(|OverLimit { retry_after_s }| FleetError::RateLimited { retry_after_s })?;
        let denied = self.image_denied(product, None).filter(|_| params.auto_provision);
        let provision = params.auto_provision && denied.is_none();
        let trigger = Trigger::Admit { provision, wake: params.auto_wake };
        let owner = engine_owner(product, user_id);
        // The common case: one read and no timer.
        if let Some(admit_view) = self.registry.admit_view(&owner).await?
            && decide(Some(admit_view.view()), trigger) == Decision::Pass
            && self.note_activity(trigger, admit_view.engine_id, &owner)
        {
            return self.admit_record(owner, admit_view).map(Admission::admitted);
        }
        let request = OperationRequest::new(owner, trigger, "admit");
        match self.execute(&request).await? {
            OperationResult::Engine(row) => self.engine_record(*row).map(Admission::admitted),
            OperationResult::Denied(DenialReason::EngineNotFound) if let Some(denied) = denied => Err(denied),
            OperationResult::Denied(reason) => Ok(Admission::denied(reason)),
            OperationResult::NotRunning | OperationResult::Destroyed(_) | OperationResult::Moved(_) => {
                Err(FleetError::EngineNotRunning)
            }
        }
    }

    /// Provisions an engine for a user who has none.
    pub(crate) async fn provision(
        self: &Arc<Self>,
        product: &Product,
        params: ProvisionEngine,
    ) -> Result<ProvisionedEngine, FleetError> {
        let mut request = OperationRequest::new(
            engine_owner(product, params.user_id),
            Trigger::Provision,
            REQUESTED_REASON,
        );
        request.image = params.engine_version;
        if let Some(denied) = self.image_denied(product, request.image.as_ref()) {
            return Err(denied);
        }
        let row = into_engine_row(self.execute(&request).await?)?;
        let (api_key, url) = (self.engine_key(&row)?, self.engine_url(&row)?);
        let EngineRow { engine_id, status, owner, .. } = row;
        Ok(ProvisionedEngine { engine_id, user_id: owner.user_id, status, url, api_key })
    }

    /// Returns one engine with its key.
    pub(crate) async fn engine(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<EngineRecord, FleetError> {
        let request = OperationRequest::new(engine_owner(product, user_id), Trigger::Get, REQUESTED_REASON);
        self.engine_record(into_engine_row(self.execute(&request).await?)?)
    }

    /// Returns a page of the product's engines, without their keys.
    pub(crate) async fn engines(
        &self,
        product: &Product,
        params: ListEngines,
    ) -> Result<EngineList, FleetError> {
        let page = Page {
            status: params.status,
            limit: params.limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get),
            offset: params.offset.map_or(0, PageOffset::get),
        };
        let (rows, total) = self.registry.list(product.product_id, page).await?;
        Ok(EngineList { engines: rows.into_iter().map(|row| self.summary(row)).collect(), total })
    }

    /// Starts an idle engine.
    pub(crate) async fn start(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<StartedEngine, FleetError> {
        let request = OperationRequest::new(engine_owner(product, user_id), Trigger::Start, REQUESTED_REASON);
        let row = into_engine_row(self.execute(&request).await?)?;
        Ok(StartedEngine { status: row.status, url: self.engine_url(&row)? })
    }

    /// Stops a running engine.
    pub(crate) async fn stop(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<StoppedEngine, FleetError> {
        self.execute(&OperationRequest::new(engine_owner(product, user_id), Trigger::Stop, REQUESTED_REASON))
            .await?;
        Ok(StoppedEngine { status: EngineStatus::Stopped })
    }

    /// Replaces the key of a running engine. The old key is invalid immediately.
    pub(crate) async fn rotate(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<RotatedKey, FleetError> {
        let request =
            OperationRequest::new(engine_owner(product, user_id), Trigger::Rotate, REQUESTED_REASON);
        let row = into_engine_row(self.execute(&request).await?)?;
        Ok(RotatedKey { new_api_key: self.engine_key(&row)? })
    }

    /// Returns the endpoint of a running engine. Counts as activity.
    pub(crate) async fn resolve_endpoint(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<EngineEndpoint, FleetError> {
        let request = OperationRequest::new(engine_owner(product, user_id), Trigger::Proxy, REQUESTED_REASON);
        let row = into_engine_row(self.execute(&request).await?)?;
        let port = row.port.ok_or(FleetError::EngineNotRunning)?;
        Ok(EngineEndpoint { engine_id: row.engine_id, port, key: self.engine_key(&row)? })
    }

    /// The URL of a running engine. It always has a port, which is released only while the engine does not run.
    fn engine_url(&self, row: &EngineRow) -> Result<String, FleetError> {
        row.port.map(|port| self.url(port)).ok_or(FleetError::EngineNotRunning)
    }

    /// Destroys an engine in any state.
    pub(crate) async fn destroy(
        self: &Arc<Self>,
        product: &Product,
        user_id: UserId,
    ) -> Result<DestroyedEngine, FleetError> {
        match self
            .execute(&OperationRequest::new(
                engine_owner(product, user_id),
                Trigger::Destroy,
                REQUESTED_REASON,
            ))
            .await?
        {
            OperationResult::Destroyed(engine_id) => {
                Ok(DestroyedEngine { status: Destroyed::Destroyed, engine_id })
            }
            OperationResult::Engine(_)
            | OperationResult::NotRunning
            | OperationResult::Denied(_)
            | OperationResult::Moved(_) => Err(FleetError::EngineNotFound),
        }
    }
}

pub(super) fn engine_owner(product: &Product, user_id: UserId) -> EngineOwner {
    EngineOwner { product_id: product.product_id, user_id }
}

fn into_engine_row(result: OperationResult) -> Result<EngineRow, FleetError> {
    match result {
        OperationResult::Engine(row) => Ok(*row),
        OperationResult::NotRunning
        | OperationResult::Destroyed(_)
        | OperationResult::Denied(_)
        | OperationResult::Moved(_) => Err(FleetError::EngineNotRunning),
    }
}
