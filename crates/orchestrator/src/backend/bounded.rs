//! Deadlines on a backend's calls, in one place.

use std::sync::Arc;
use std::time::Duration;

use contract::{EngineId, EngineImage};
use futures::future::{Either, select};
use futures::stream::BoxStream;
use service::clock::Clock;

use super::{Answer, BackendError, Caps, EngineBackend, Exit, Instance, Launch, Listed};
use crate::sabotage::{self, Saboteur};

/// Questions that change nothing.
const QUESTION: Duration = Duration::from_secs(5);
/// A launch: a container's creation on a busy host takes seconds.
const LAUNCH: Duration = Duration::from_secs(15);
/// A kill, and the removal of data with it.
const REMOVAL: Duration = Duration::from_secs(15);
/// What a stop may take beyond its grace.
const AFTER_GRACE: Duration = Duration::from_secs(5);
/// A listing of everything.
const LISTING: Duration = Duration::from_secs(10);

/// A backend whose every call ends in bounded time: late, it counts as out of reach.
pub(crate) struct Bounded {
    backend: Arc<dyn EngineBackend>,
    clock: Arc<dyn Clock>,
}

impl Bounded {
    pub(crate) fn new(backend: Arc<dyn EngineBackend>, clock: Arc<dyn Clock>) -> Self {
        Self { backend, clock }
    }

    pub(crate) async fn ping(&self) -> Result<(), BackendError> {
        self.within(QUESTION, self.backend.ping()).await
    }

    pub(crate) async fn check_image(&self, image: &EngineImage) -> Result<(), BackendError> {
        self.within(QUESTION, self.backend.check_image(image)).await
    }

    pub(crate) async fn launch(&self, launch: Launch) -> Result<Instance, BackendError> {
        self.within(LAUNCH, self.backend.launch(launch)).await
    }

    pub(crate) async fn stop(&self, engine_id: EngineId, grace: Duration) -> Result<(), BackendError> {
        self.within(grace + AFTER_GRACE, self.backend.stop(engine_id, grace)).await
    }

    pub(crate) async fn kill(&self, engine_id: EngineId) -> Result<(), BackendError> {
        self.within(REMOVAL, self.backend.kill(engine_id)).await
    }

    pub(crate) async fn clear(&self, engine_id: EngineId) -> Result<(), BackendError> {
        self.within(REMOVAL, self.backend.clear(engine_id)).await
    }

    pub(crate) async fn remove(&self, engine_id: EngineId) -> Result<(), BackendError> {
        self.within(REMOVAL, self.backend.remove(engine_id)).await
    }

    pub(crate) async fn list(&self) -> Result<Vec<Listed>, BackendError> {
        self.within(LISTING, self.backend.list()).await
    }

    pub(crate) fn exits(&self) -> BoxStream<'static, Exit> {
        self.backend.exits()
    }

    pub(crate) async fn runs(&self, instance: &Instance) -> Result<bool, BackendError> {
        self.within(QUESTION, self.backend.runs(instance)).await
    }

    pub(crate) async fn log_tail(
        &self,
        engine_id: EngineId,
        lines: usize,
    ) -> Result<Vec<String>, BackendError> {
        self.within(QUESTION, self.backend.log_tail(engine_id, lines)).await
    }

    pub(crate) async fn caps(&self, engine_id: EngineId) -> Result<Option<Caps>, BackendError> {
        self.within(QUESTION, self.backend.caps(engine_id)).await
    }

    async fn within<T>(&self, limit: Duration, call: Answer<'_, T>) -> Result<T, BackendError> {
        if sabotage::by(Saboteur::ForgetDeadline) {
            return call.await;
        }
        match select(call, self.clock.sleep(limit)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                Err(BackendError::Unreachable(format!("no answer within {} s", limit.as_secs())))
            }
        }
    }
}
