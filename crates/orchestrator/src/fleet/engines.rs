//! The operations of the products' API on engines: one function per endpoint.

use std::net::SocketAddr;
use std::sync::Arc;

use api::orchestrator::{
    Admission as AdmitResponse, Admit, DenialReason, Destroyed, DestroyedEngine, EngineList, EngineRecord,
    EngineStatus, ListEngines, PageLimit, PageOffset, ProvisionEngine, ProvisionedEngine, RotatedKey,
    StartedEngine, StoppedEngine,
};
use api::{EngineId, EngineKey, UserId};

use super::FleetError;
use super::admission::Admission;
use super::caller::Caller;
use super::execute::Executor;
use super::policies::Policies;
use super::queries::DEFAULT_PAGE_SIZE;
use super::records::Records;
use super::request::{OperationRequest, OperationResult, RequestKind};
use super::shared::Shared;
use super::supervision::{KeyState, Supervision};
use crate::domain::EngineOwner;
use crate::domain::lifecycle::{Decision, Trigger, decide};
use crate::metrics::labels::AdmitOutcome;
use crate::registry::{EngineRow, Page, Product};

/// The reason that the audit log records for a change requested by the product.
const REQUESTED_REASON: &str = "requested";

/// The address and the key of a running engine.
pub(crate) struct EngineEndpoint {
    pub(crate) engine_id: EngineId,
    /// Where it can be reached; `None` if its backend does not know.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) key: EngineKey,
}

/// The answer to an admit.
struct Admitted {
    response: AdmitResponse,
    /// Whether the engine ran already, so that the admit was one read.
    ran_already: bool,
}

pub(crate) struct Engines {
    shared: Arc<Shared>,
    admission: Arc<Admission>,
    policies: Arc<Policies>,
    executor: Arc<Executor>,
    supervision: Arc<Supervision>,
    records: Arc<Records>,
}

impl Engines {
    pub(super) fn new(
        shared: &Arc<Shared>,
        supervision: &Arc<Supervision>,
        admission: &Arc<Admission>,
        policies: &Arc<Policies>,
        executor: &Arc<Executor>,
        records: &Arc<Records>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            admission: Arc::clone(admission),
            policies: Arc::clone(policies),
            executor: Arc::clone(executor),
            supervision: Arc::clone(supervision),
            records: Arc::clone(records),
        }
    }

    /// Admits a user: returns the endpoint of their engine, after provisioning or waking it if `params` allow that.
    pub(crate) async fn admit(
        &self,
        caller: &Caller,
        user_id: UserId,
        params: Admit,
    ) -> Result<AdmitResponse, FleetError> {
        let stopwatch = self.shared.metrics.stopwatch();
        let admitted = self.find_or_start(caller, user_id, params).await;
        let outcome = measured_outcome(&admitted);
        self.admission.counters.count(caller.product_id, outcome);
        self.shared.metrics.admit(outcome, stopwatch);
        admitted.map(|admitted| admitted.response)
    }

    /// Finds the running engine of a user, or starts it.
    async fn find_or_start(
        &self,
        caller: &Caller,
        user_id: UserId,
        params: Admit,
    ) -> Result<Admitted, FleetError> {
        self.admission.check_rate(caller)?;
        let denied = self.policies.image_denied(caller, None).filter(|_| params.auto_provision);
        let (provision, wake) = (params.auto_provision && denied.is_none(), params.auto_wake);
        let trigger = Trigger::Admit { provision, wake };
        let owner = caller.engine_owner(user_id);
        // The common case: one read and no timer.
        if let Some(admit_view) = self.shared.registry.admit_view(&owner).await?
            && decide(Some(admit_view.view()), trigger) == Decision::Pass
            && self.executor.note_activity(trigger, admit_view.engine_id, &owner)
        {
            let response = AdmitResponse::admitted(self.records.admit_record(owner, admit_view)?);
            return Ok(Admitted { response, ran_already: true });
        }
        let request = OperationRequest::new(owner, RequestKind::Admit { provision, wake }, "admit");
        let request = request.by(caller.actor());
        let response = match self.executor.execute(&request).await? {
            OperationResult::Engine(row) => AdmitResponse::admitted(self.records.record(*row)?),
            OperationResult::Denied(DenialReason::EngineNotFound) if let Some(denied) = denied => {
                return Err(denied);
            }
            OperationResult::Denied(reason) => AdmitResponse::denied(reason),
            OperationResult::NotRunning
            | OperationResult::Destroyed(_)
            | OperationResult::Moved(_)
            | OperationResult::Maintained(_) => {
                return Err(FleetError::EngineNotRunning);
            }
        };
        Ok(Admitted { response, ran_already: false })
    }

    /// Provisions an engine for a user who has none.
    pub(crate) async fn provision(
        &self,
        caller: &Caller,
        params: ProvisionEngine,
    ) -> Result<ProvisionedEngine, FleetError> {
        if let Some(denied) = self.policies.image_denied(caller, params.engine_version.as_ref()) {
            return Err(denied);
        }
        // Provisioned before, when its address was not known: it is now, or never.
        let kind = if caller.is_applied() {
            RequestKind::Get
        } else {
            RequestKind::Provision(params.engine_version)
        };
        let row = self.request_engine(caller, params.user_id, kind).await?;
        let (api_key, url) = (self.records.key(&row)?, self.running_url(&row)?);
        let EngineRow { engine_id, status, owner, .. } = row;
        Ok(ProvisionedEngine { engine_id, user_id: owner.user_id, status, url, api_key })
    }

    /// Returns one engine with its key.
    pub(crate) async fn get(&self, caller: &Caller, user_id: UserId) -> Result<EngineRecord, FleetError> {
        Ok(self.records.record(self.request_engine(caller, user_id, RequestKind::Get).await?)?)
    }

    /// Returns a page of the product's engines, without their keys.
    pub(crate) async fn list(
        &self,
        product: &Product,
        params: ListEngines,
    ) -> Result<EngineList, FleetError> {
        let page = Page {
            status: params.status,
            limit: params.limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get),
            offset: params.offset.map_or(0, PageOffset::get),
        };
        let (rows, total) = self.shared.registry.list(product.product_id, page).await?;
        Ok(EngineList { engines: rows.into_iter().map(|row| self.records.summary(row)).collect(), total })
    }

    /// Starts an idle engine.
    pub(crate) async fn start(&self, caller: &Caller, user_id: UserId) -> Result<StartedEngine, FleetError> {
        let kind = if caller.is_applied() { RequestKind::Get } else { RequestKind::Start };
        let row = self.request_engine(caller, user_id, kind).await?;
        Ok(StartedEngine { status: row.status, url: self.running_url(&row)? })
    }

    /// Stops a running engine.
    pub(crate) async fn stop(&self, caller: &Caller, user_id: UserId) -> Result<StoppedEngine, FleetError> {
        self.request(caller, user_id, RequestKind::Stop).await?;
        Ok(StoppedEngine { status: EngineStatus::Stopped })
    }

    /// Replaces the key of a running engine. The old key is invalid immediately.
    pub(crate) async fn rotate_key(
        &self,
        caller: &Caller,
        user_id: UserId,
    ) -> Result<RotatedKey, FleetError> {
        let row = self.request_engine(caller, user_id, RequestKind::Rotate).await?;
        Ok(RotatedKey { new_api_key: self.records.key(&row)? })
    }

    /// Returns the endpoint of a running engine. Counts as activity.
    pub(crate) async fn resolve_endpoint(
        &self,
        product: &Product,
        user_id: UserId,
    ) -> Result<EngineEndpoint, FleetError> {
        self.resolve_endpoint_of(product.engine_owner(user_id)).await
    }

    /// Returns the endpoint of the running engine of `owner`. Counts as activity.
    pub(crate) async fn resolve_endpoint_of(&self, owner: EngineOwner) -> Result<EngineEndpoint, FleetError> {
        let request = OperationRequest::new(owner, RequestKind::Proxy, REQUESTED_REASON);
        let row = engine_of(self.executor.execute(&request).await?)?;
        let placement = self.shared.running(&row).ok_or(FleetError::EngineNotRunning)?.placement;
        let address = self.shared.backend.address(row.engine_id, placement);
        Ok(EngineEndpoint { engine_id: row.engine_id, address, key: self.records.key(&row)? })
    }

    /// Records that an engine refused a call with the registry's key: health checks ask it for the key from now
    /// on.
    pub(crate) fn mark_key_refused(&self, engine_id: EngineId) {
        self.supervision.set_key_state(engine_id, KeyState::Refused);
    }

    /// Destroys an engine in any state.
    pub(crate) async fn destroy(
        &self,
        caller: &Caller,
        user_id: UserId,
    ) -> Result<DestroyedEngine, FleetError> {
        match self.request(caller, user_id, RequestKind::Destroy).await? {
            OperationResult::Destroyed(engine_id) => {
                Ok(DestroyedEngine { status: Destroyed::Destroyed, engine_id })
            }
            OperationResult::Engine(_)
            | OperationResult::NotRunning
            | OperationResult::Denied(_)
            | OperationResult::Moved(_)
            | OperationResult::Maintained(_) => Err(FleetError::EngineNotFound),
        }
    }

    async fn request(
        &self,
        caller: &Caller,
        user_id: UserId,
        kind: RequestKind,
    ) -> Result<OperationResult, FleetError> {
        let request = OperationRequest::new(caller.engine_owner(user_id), kind, REQUESTED_REASON);
        self.executor.execute(&request.by(caller.actor()).for_call(caller.call())).await
    }

    /// Makes a request whose result is the engine.
    async fn request_engine(
        &self,
        caller: &Caller,
        user_id: UserId,
        kind: RequestKind,
    ) -> Result<EngineRow, FleetError> {
        engine_of(self.request(caller, user_id, kind).await?)
    }

    fn running_url(&self, row: &EngineRow) -> Result<String, FleetError> {
        let url =
            self.shared.running(row).and_then(|engine| self.records.url(row.engine_id, engine.placement));
        url.ok_or(FleetError::EngineNotRunning)
    }
}

/// The outcome of an admit as the metrics name it.
const fn measured_outcome(admitted: &Result<Admitted, FleetError>) -> AdmitOutcome {
    match admitted {
        Ok(Admitted { ran_already: true, .. }) => AdmitOutcome::Running,
        Ok(Admitted { response, .. }) => match response.reason {
            None => AdmitOutcome::Started,
            Some(DenialReason::EngineNotFound) => AdmitOutcome::EngineNotFound,
            Some(DenialReason::EngineSleeping) => AdmitOutcome::EngineSleeping,
            Some(DenialReason::EngineUnhealthy) => AdmitOutcome::EngineUnhealthy,
            Some(DenialReason::EngineStopped) => AdmitOutcome::EngineStopped,
        },
        Err(error) => AdmitOutcome::of_error(error.code()),
    }
}

/// The engine that is the result of a request for one.
fn engine_of(result: OperationResult) -> Result<EngineRow, FleetError> {
    match result {
        OperationResult::Engine(row) => Ok(*row),
        OperationResult::NotRunning
        | OperationResult::Destroyed(_)
        | OperationResult::Denied(_)
        | OperationResult::Moved(_)
        | OperationResult::Maintained(_) => Err(FleetError::EngineNotRunning),
    }
}
