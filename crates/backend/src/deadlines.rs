//! [`DeadlineBackend`], through which `fleet` calls a backend: it puts a deadline on every call, and checks
//! that the engines' data is available before a call that depends on it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{EngineId, EngineImage};
use futures::future::{Either, select};
use futures::stream::BoxStream;
use http_service::clock::Clock;
use tokio::sync::Mutex;

use super::blocking::run_blocking;
use super::warm_marks::WarmMarks;
use super::{
    Addressing, BackendError, BackendFuture, BrainCopy, BrainFormats, DataListing, DataRoot, DataUnavailable,
    EngineBackend, EngineListing, Instance, InstanceExit, LaunchSpec, Placement, ResourceLimits, Target,
};

/// Deadline of calls that change nothing.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline of a launch. Creating a container takes seconds on a busy host.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(15);
/// Deadline of a kill, with or without the removal of data.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(15);
/// Deadline of copying or restoring a brain, which may have many gigabytes.
const COPY_TIMEOUT: Duration = Duration::from_mins(5);
/// Deadline of a listing of all engines. The orchestrator's readiness waits for the first one.
const LIST_TIMEOUT: Duration = Duration::from_secs(7);

/// Wraps a backend so that each call ends in bounded time: after its deadline it fails with
/// [`BackendError::Unreachable`]. Calls that create or remove data, or that draw conclusions from it, first
/// check that the data is available, and fail with [`BackendError::DataUnavailable`] otherwise.
pub struct DeadlineBackend {
    backend: Arc<dyn EngineBackend>,
    clock: Arc<dyn Clock>,
    /// Locked during a check, so that a disk that hangs blocks only one thread.
    data_root: Arc<Mutex<DataRoot>>,
    warm_marks: WarmMarks,
    /// Told of each failure that is found here, before the backend is called.
    on_refusal: Box<dyn Fn(&BackendError) + Send + Sync>,
}

impl DeadlineBackend {
    /// Wraps `backend`, whose engines keep their data in `data`.
    pub fn new(backend: Arc<dyn EngineBackend>, clock: Arc<dyn Clock>, data: DataRoot) -> Self {
        let warm_marks = data.warm_marks();
        Self {
            backend,
            clock,
            data_root: Arc::new(Mutex::new(data)),
            warm_marks,
            on_refusal: Box::new(|_| {}),
        }
    }

    /// Has `report` told of each call that fails before it reaches the backend, because the engines' data is
    /// unavailable: whoever measures the backend does not see it.
    #[must_use]
    pub fn reporting_refusals(mut self, report: impl Fn(&BackendError) + Send + Sync + 'static) -> Self {
        self.on_refusal = Box::new(report);
        self
    }

    /// Fails unless the backend can be reached and the engines' data is available.
    pub async fn ping(&self) -> Result<(), BackendError> {
        self.check_data().await?;
        self.with_deadline(QUERY_TIMEOUT, self.backend.ping()).await
    }

    /// Fails unless the engines' data is available.
    pub async fn check_data(&self) -> Result<(), BackendError> {
        let check = async {
            let mut data = Arc::clone(&self.data_root).lock_owned().await;
            run_blocking(move || Ok(data.check())).await
        };
        let checked = tokio::time::timeout(QUERY_TIMEOUT, check).await;
        let late = |_| BackendError::DataUnavailable(DataUnavailable::DiskTimeout);
        let checked =
            checked.map_err(late).and_then(|checked| checked?.map_err(BackendError::DataUnavailable));
        checked.inspect_err(&self.on_refusal)
    }

    /// Whether no check of the disk is under way. Checks take real time, whatever a test's clock shows.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_idle(&self) -> bool {
        self.data_root.try_lock().is_ok()
    }

    /// Fails unless the data of this engine is available.
    pub async fn check_engine_data(&self, engine_id: EngineId) -> Result<(), BackendError> {
        self.check_data().await?;
        if self.with_deadline(QUERY_TIMEOUT, self.backend.has_data(engine_id)).await? {
            return Ok(());
        }
        let missing = BackendError::DataUnavailable(DataUnavailable::EngineFolderMissing);
        (self.on_refusal)(&missing);
        Err(missing)
    }

    /// See [`EngineBackend::list_data`].
    pub async fn list_data(
        &self,
        engine_id: Option<EngineId>,
    ) -> Result<Option<Vec<DataListing>>, BackendError> {
        self.check_data().await?;
        self.with_deadline(LIST_TIMEOUT, self.backend.list_data(engine_id)).await
    }

    /// Marks an engine as warm: it has no user's data.
    pub async fn set_warm_mark(&self, engine_id: EngineId) -> Result<(), BackendError> {
        self.check_data().await?;
        self.on_marks(move |marks| marks.set(engine_id)).await
    }

    /// Whether an engine is marked as warm.
    pub async fn has_warm_mark(&self, engine_id: EngineId) -> Result<bool, BackendError> {
        self.check_data().await?;
        self.on_marks(move |marks| marks.is_set(engine_id)).await
    }

    /// Removes the mark of a warm engine. Returns whether there was one.
    pub async fn remove_warm_mark(&self, engine_id: EngineId) -> Result<bool, BackendError> {
        self.on_marks(move |marks| marks.remove(engine_id)).await
    }

    /// The engines that are marked as warm.
    pub async fn warm_marks(&self) -> Result<Vec<EngineId>, BackendError> {
        self.check_data().await?;
        self.on_marks(WarmMarks::list).await
    }

    async fn on_marks<T: Send + 'static>(
        &self,
        work: impl FnOnce(&WarmMarks) -> io::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let marks = self.warm_marks.clone();
        let done = tokio::time::timeout(QUERY_TIMEOUT, run_blocking(move || work(&marks))).await;
        let late = |_| BackendError::DataUnavailable(DataUnavailable::DiskTimeout);
        done.map_err(late)?
    }

    /// See [`EngineBackend::concurrent_launches`].
    pub fn concurrent_launches(&self) -> usize {
        self.backend.concurrent_launches()
    }

    /// See [`EngineBackend::has_single_image`].
    pub fn has_single_image(&self) -> bool {
        self.backend.has_single_image()
    }

    /// See [`EngineBackend::addressing`].
    pub fn addressing(&self) -> Addressing {
        self.backend.addressing()
    }

    /// See [`EngineBackend::address`].
    pub fn address(&self, engine_id: EngineId, placement: Placement) -> Option<SocketAddr> {
        self.backend.address(engine_id, placement)
    }

    /// See [`EngineBackend::url_authority`].
    pub fn url_authority(&self, engine_id: EngineId, placement: Placement) -> Option<String> {
        self.backend.url_authority(engine_id, placement)
    }

    /// See [`EngineBackend::check_image`].
    pub async fn check_image(&self, image: &EngineImage) -> Result<(), BackendError> {
        self.with_deadline(QUERY_TIMEOUT, self.backend.check_image(image)).await
    }

    /// See [`EngineBackend::launch`].
    pub async fn launch(&self, launch: LaunchSpec) -> Result<Instance, BackendError> {
        if launch.is_first {
            self.check_data().await?;
        } else {
            self.check_engine_data(launch.engine_id).await?;
        }
        self.with_deadline(LAUNCH_TIMEOUT + self.backend.latency(), self.backend.launch(launch)).await
    }

    /// See [`EngineBackend::stop`].
    pub async fn stop(&self, target: Target, grace: Duration) -> Result<(), BackendError> {
        // What does not obey is killed.
        let limit = grace + REMOVAL_TIMEOUT + self.backend.latency();
        self.with_deadline(limit, self.backend.stop(target, grace)).await
    }

    /// See [`EngineBackend::kill`].
    pub async fn kill(&self, target: Target) -> Result<(), BackendError> {
        self.with_deadline(REMOVAL_TIMEOUT + self.backend.latency(), self.backend.kill(target)).await
    }

    /// See [`EngineBackend::remove_instance`].
    pub async fn remove_instance(&self, target: Target) -> Result<(), BackendError> {
        self.with_deadline(REMOVAL_TIMEOUT + self.backend.latency(), self.backend.remove_instance(target))
            .await
    }

    /// See [`EngineBackend::remove_with_data`].
    pub async fn remove_with_data(&self, target: Target) -> Result<(), BackendError> {
        self.check_data().await?;
        self.with_deadline(REMOVAL_TIMEOUT + self.backend.latency(), self.backend.remove_with_data(target))
            .await
    }

    /// See [`EngineBackend::copy_brain`].
    pub async fn copy_brain(&self, target: Target) -> Result<BrainCopy, BackendError> {
        self.check_engine_data(target.engine_id).await?;
        self.with_deadline(COPY_TIMEOUT, self.backend.copy_brain(target)).await
    }

    /// See [`EngineBackend::restore_brain`].
    pub async fn restore_brain(&self, target: Target) -> Result<(), BackendError> {
        self.check_engine_data(target.engine_id).await?;
        self.with_deadline(COPY_TIMEOUT, self.backend.restore_brain(target)).await
    }

    /// See [`EngineBackend::brain_formats`].
    pub async fn brain_formats(&self, target: Target) -> Result<BrainFormats, BackendError> {
        self.check_engine_data(target.engine_id).await?;
        self.with_deadline(COPY_TIMEOUT, self.backend.brain_formats(target)).await
    }

    /// See [`EngineBackend::list`].
    pub async fn list(&self) -> Result<Vec<EngineListing>, BackendError> {
        self.check_data().await?;
        self.with_deadline(LIST_TIMEOUT, self.backend.list()).await
    }

    /// See [`EngineBackend::exits`].
    pub fn exits(&self) -> BoxStream<'static, InstanceExit> {
        self.backend.exits()
    }

    /// See [`EngineBackend::is_running`].
    pub async fn is_running(&self, instance: &Instance) -> Result<bool, BackendError> {
        self.with_deadline(QUERY_TIMEOUT, self.backend.is_running(instance)).await
    }

    /// See [`EngineBackend::log_tail`].
    pub async fn log_tail(&self, engine_id: EngineId, lines: usize) -> Result<Vec<String>, BackendError> {
        self.with_deadline(QUERY_TIMEOUT, self.backend.log_tail(engine_id, lines)).await
    }

    /// See [`EngineBackend::resource_limits`].
    pub async fn resource_limits(&self, engine_id: EngineId) -> Result<Option<ResourceLimits>, BackendError> {
        self.with_deadline(QUERY_TIMEOUT, self.backend.resource_limits(engine_id)).await
    }

    async fn with_deadline<T>(&self, limit: Duration, call: BackendFuture<'_, T>) -> Result<T, BackendError> {
        match select(call, self.clock.sleep(limit)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => {
                Err(BackendError::Unreachable(format!("no answer within {} s", limit.as_secs())))
            }
        }
    }
}
