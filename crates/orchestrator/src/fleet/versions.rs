//! Lists the versions that engines run, and moves engines to other versions.

use std::sync::Arc;

use api::ErrorDetail;
use api::UserId;
use api::version::{
    ChangeVersion, ChangedVersion, MoveEngines, MoveLimit, MovedEngine, MovedEngines, VersionCount,
    VersionList,
};
use futures::StreamExt as _;

use super::FleetError;
use super::caller::Caller;
use super::execute::Executor;
use super::idempotency::Call;
use super::policies::Policies;
use super::records::Records;
use super::request::{MoveOutcome, OperationRequest, OperationResult, RequestKind, VersionMove};
use super::shared::Shared;
use crate::domain::{Actor, EngineOwner};
use crate::registry::EngineRow;

/// The number of engines that a call moves if it specifies none.
const DEFAULT_MOVE_LIMIT: i64 = 10;

/// The number of concurrent moves in one call. Each is a stop and a boot.
const MAX_CONCURRENT_MOVES: usize = 4;

pub(crate) struct Versions {
    shared: Arc<Shared>,
    policies: Arc<Policies>,
    executor: Arc<Executor>,
    records: Arc<Records>,
}

impl Versions {
    pub(super) fn new(
        shared: &Arc<Shared>,
        policies: &Arc<Policies>,
        executor: &Arc<Executor>,
        records: &Arc<Records>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            policies: Arc::clone(policies),
            executor: Arc::clone(executor),
            records: Arc::clone(records),
        }
    }

    /// Moves one engine.
    pub(crate) async fn change(
        &self,
        caller: &Caller,
        user_id: UserId,
        params: ChangeVersion,
    ) -> Result<ChangedVersion, FleetError> {
        let MoveOutcome { row, previous_image: from, brain_copy: copy, .. } =
            self.move_to(caller.engine_owner(user_id), params, caller.actor(), caller.call()).await?;
        Ok(ChangedVersion {
            engine_id: row.engine_id,
            status: row.status,
            url: self.records.last_url(row.engine_id, row.port),
            pinned: row.pinned,
            crosses_major: from.major() != row.engine_version.major(),
            copied_brain_format: copy.and_then(|copy| copy.format),
            engine_version: row.engine_version,
            previous_version: from,
        })
    }

    async fn move_to(
        &self,
        owner: EngineOwner,
        params: ChangeVersion,
        actor: Actor,
        call: Option<&Call>,
    ) -> Result<MoveOutcome, FleetError> {
        let kind = RequestKind::ChangeVersion(match params.engine_version.into_image() {
            Some(image) => VersionMove::Pin(image),
            None => VersionMove::Follow,
        });
        let request = OperationRequest::new(owner, kind, "version").by(actor).for_call(call);
        let OperationResult::Moved(moved) = self.executor.execute(&request).await? else {
            return Err(FleetError::EngineNotFound);
        };
        match moved.failure {
            Some(failure) => Err(failure),
            None => Ok(*moved),
        }
    }

    /// Counts the engines per product, version and pin.
    pub(crate) async fn list(&self) -> Result<VersionList, FleetError> {
        let counts = self.shared.registry.version_counts().await?.into_iter();
        let versions = counts.map(|count| VersionCount {
            follows: self.policies.follows_default_image(count.product_id, &count.image, count.pinned),
            product_id: count.product_id,
            slug: count.slug,
            engine_version: count.image,
            pinned: count.pinned,
            engines: count.engines,
        });
        Ok(VersionList { default: self.policies.default_image(), versions: versions.collect() })
    }

    /// Moves a page of the engines that run one image to another version.
    pub(crate) async fn move_engines(&self, params: MoveEngines) -> Result<MovedEngines, FleetError> {
        let limit = params.limit.map_or(DEFAULT_MOVE_LIMIT, MoveLimit::get);
        let found = self
            .shared
            .registry
            .engines_on_image(&params.from, params.product_id, params.after, limit)
            .await?;
        let more = i64::try_from(found.len()).is_ok_and(|found| found == limit);
        let next = found.last().filter(|_| more).map(|row| row.engine_id);
        let moves = found.into_iter().map(|row| {
            let params = ChangeVersion { engine_version: params.engine_version.clone() };
            async move {
                let EngineRow { engine_id, owner, .. } = row;
                let EngineOwner { product_id, user_id } = owner.clone();
                let error = self.move_to(owner, params, Actor::Operator, None).await.err();
                let error = error.map(|error| ErrorDetail { code: error.code(), message: error.to_string() });
                MovedEngine { engine_id, product_id, user_id, error }
            }
        });
        let engines = futures::stream::iter(moves).buffered(MAX_CONCURRENT_MOVES).collect().await;
        Ok(MovedEngines { engines, next })
    }
}
