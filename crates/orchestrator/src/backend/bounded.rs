//! Deadlines on a backend's calls, in one place.

use std::sync::Arc;
use std::time::Duration;

use contract::{EngineId, EngineImage};
use futures::future::{Either, select};
use futures::stream::BoxStream;
use service::clock::Clock;
use tokio::sync::Mutex;

use super::blocking::blocking;
use super::{
    Answer, BackendError, BrainCopy, Caps, DataRoot, EngineBackend, Exit, Instance, Launch, Listed, NoData,
    Target,
};
use crate::sabotage::{self, Saboteur};

/// Questions that change nothing.
const QUESTION: Duration = Duration::from_secs(5);
/// A launch: a container's creation on a busy host takes seconds.
const LAUNCH: Duration = Duration::from_secs(15);
/// A kill, and the removal of data with it.
const REMOVAL: Duration = Duration::from_secs(15);
/// A copy of a brain, of many gigabytes.
const COPY: Duration = Duration::from_mins(5);
/// What a stop may take beyond its grace.
const AFTER_GRACE: Duration = Duration::from_secs(5);
/// A listing of everything: readiness waits for the first one.
const LISTING: Duration = Duration::from_secs(7);

/// A backend whose every call ends in bounded time: late, it counts as out of reach. What would make, remove or
/// conclude something from the engines' data is asked only while that is there.
pub(crate) struct Bounded {
    backend: Arc<dyn EngineBackend>,
    clock: Arc<dyn Clock>,
    /// One look at the disk at a time: should it hang, it takes one thread.
    data: Arc<Mutex<DataRoot>>,
}

impl Bounded {
    pub(crate) fn new(backend: Arc<dyn EngineBackend>, clock: Arc<dyn Clock>, data: DataRoot) -> Self {
        Self { backend, clock, data: Arc::new(Mutex::new(data)) }
    }

    /// Whether the backend can be reached, and the engines' data is there.
    pub(crate) async fn ping(&self) -> Result<(), BackendError> {
        self.check_data().await?;
        self.within(QUESTION, self.backend.ping()).await
    }

    /// Fails unless the engines' data is there.
    pub(crate) async fn check_data(&self) -> Result<(), BackendError> {
        if sabotage::by(Saboteur::TrustAnyRoot) {
            return Ok(());
        }
        let check = async {
            let mut data = Arc::clone(&self.data).lock_owned().await;
            blocking(move || Ok(data.check())).await
        };
        let checked = tokio::time::timeout(QUESTION, check).await;
        let late = |_| BackendError::NoData(NoData::Silent);
        checked.map_err(late)??.map_err(BackendError::NoData)
    }

    /// Whether nothing is read from a disk: it takes real time, whatever a test's clock shows.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.data.try_lock().is_ok()
    }

    /// Fails unless the data of this engine is there.
    pub(crate) async fn check_data_of(&self, engine_id: EngineId) -> Result<(), BackendError> {
        self.check_data().await?;
        if self.within(QUESTION, self.backend.has_data(engine_id)).await? {
            return Ok(());
        }
        Err(BackendError::NoData(NoData::OwnFolder))
    }

    pub(crate) fn has_one_image(&self) -> bool {
        self.backend.has_one_image()
    }

    pub(crate) async fn check_image(&self, image: &EngineImage) -> Result<(), BackendError> {
        self.within(QUESTION, self.backend.check_image(image)).await
    }

    pub(crate) async fn launch(&self, launch: Launch) -> Result<Instance, BackendError> {
        if launch.first {
            self.check_data().await?;
        } else {
            self.check_data_of(launch.engine_id).await?;
        }
        self.within(LAUNCH, self.backend.launch(launch)).await
    }

    pub(crate) async fn stop(&self, target: Target, grace: Duration) -> Result<(), BackendError> {
        self.within(grace + AFTER_GRACE, self.backend.stop(target, grace)).await
    }

    pub(crate) async fn kill(&self, target: Target) -> Result<(), BackendError> {
        self.within(REMOVAL, self.backend.kill(target)).await
    }

    pub(crate) async fn clear(&self, target: Target) -> Result<(), BackendError> {
        self.within(REMOVAL, self.backend.clear(target)).await
    }

    pub(crate) async fn remove(&self, target: Target) -> Result<(), BackendError> {
        self.check_data().await?;
        self.within(REMOVAL, self.backend.remove(target)).await
    }

    pub(crate) async fn keep_copy(&self, target: Target) -> Result<BrainCopy, BackendError> {
        self.check_data_of(target.engine_id).await?;
        self.within(COPY, self.backend.keep_copy(target)).await
    }

    pub(crate) async fn restore_copy(&self, target: Target) -> Result<(), BackendError> {
        self.check_data_of(target.engine_id).await?;
        self.within(COPY, self.backend.restore_copy(target)).await
    }

    pub(crate) async fn list(&self) -> Result<Vec<Listed>, BackendError> {
        self.check_data().await?;
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
