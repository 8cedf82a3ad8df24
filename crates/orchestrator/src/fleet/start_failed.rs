//! Starts the failed engines of all products, some at a time.

use std::sync::Arc;

use api::ErrorDetail;
use api::fleet::{StartFailed, StartedEngines};
use api::orchestrator::EngineStatus;
use api::version::{MoveLimit, MovedEngine};
use futures::StreamExt as _;

use super::FleetError;
use super::execute::Executor;
use super::request::{OperationRequest, RequestKind};
use super::shared::Shared;
use crate::domain::{Actor, EngineOwner};
use crate::registry::FleetFilter;

/// The number of engines that a call starts if it specifies none.
const DEFAULT_START_LIMIT: i64 = 20;
/// The number of concurrent starts in one call. Boots are shared fairly among products anyway.
const MAX_CONCURRENT_STARTS: usize = 16;

pub(crate) struct FailedStarts {
    pub(super) shared: Arc<Shared>,
    pub(super) executor: Arc<Executor>,
}

impl FailedStarts {
    /// Starts a page of the failed engines.
    pub(crate) async fn start(&self, params: StartFailed) -> Result<StartedEngines, FleetError> {
        let StartFailed { product_id, after, limit } = params;
        let limit = limit.map_or(DEFAULT_START_LIMIT, MoveLimit::get);
        let filter = FleetFilter { product_id, states: vec![EngineStatus::Failed], ..FleetFilter::default() };
        let (failed, next) = self.shared.registry.fleet_engines(&filter, after, limit).await?;
        let starts = failed.into_iter().map(|engine| async move {
            let (engine_id, owner) = (engine.row.engine_id, engine.row.owner);
            let EngineOwner { product_id, user_id } = owner.clone();
            let request = OperationRequest::new(owner, RequestKind::Start, "requested").by(Actor::Operator);
            let error = match self.executor.execute(&request).await {
                // Somebody else was faster.
                Ok(_) | Err(FleetError::EngineAlreadyRunning) => None,
                Err(error) => Some(ErrorDetail { code: error.code(), message: error.to_string() }),
            };
            MovedEngine { engine_id, product_id, user_id, error }
        });
        let engines = futures::stream::iter(starts).buffered(MAX_CONCURRENT_STARTS).collect().await;
        Ok(StartedEngines { engines, next })
    }
}
