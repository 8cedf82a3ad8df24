//! A backend whose calls are measured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{EngineId, EngineImage};
use backend::{
    Addressing, BackendError, BackendFuture, BrainCopy, BrainFormats, DataListing, EngineBackend,
    EngineListing, Instance, InstanceExit, LaunchSpec, Placement, ResourceLimits, Target,
};
use futures::stream::BoxStream;

use super::labels::{BackendCall, BackendErrorKind};
use super::{CallTimer, Metrics, Recorder};

/// Passes calls on to a backend, and records how long they take and how they fail.
struct ObservedBackend {
    backend: Arc<dyn EngineBackend>,
    recorder: Arc<Recorder>,
}

impl Metrics {
    /// Returns the backend whose calls are measured; `backend` itself if nothing is recorded.
    pub(crate) fn observe_backend(&self, backend: Arc<dyn EngineBackend>) -> Arc<dyn EngineBackend> {
        match &self.0 {
            Some(recorder) => Arc::new(ObservedBackend { backend, recorder: Arc::clone(recorder) }),
            None => backend,
        }
    }

    /// Records a call that failed before it reached the backend.
    pub(crate) fn backend_error(&self, error: &BackendError) {
        let families = self.families();
        if let Some(errors) =
            families.and_then(|families| families.backend_errors.get(BackendErrorKind::of(error)))
        {
            errors.inc();
        }
    }
}

impl ObservedBackend {
    fn observe<'a, T: Send + 'a>(
        &'a self,
        call: BackendCall,
        future: BackendFuture<'a, T>,
    ) -> BackendFuture<'a, T> {
        Box::pin(async move {
            let families = &self.recorder.families;
            let timer =
                CallTimer::new(BackendErrorKind::Abandoned, |elapsed, kind: Option<BackendErrorKind>| {
                    families.backend_call_duration.observe(call, elapsed);
                    if let Some(errors) = kind.and_then(|kind| families.backend_errors.get(kind)) {
                        errors.inc();
                    }
                });
            let result = future.await;
            timer.end(result.as_ref().err().map(BackendErrorKind::of));
            result
        })
    }
}

impl EngineBackend for ObservedBackend {
    fn ping(&self) -> BackendFuture<'_, ()> {
        self.observe(BackendCall::Ping, self.backend.ping())
    }

    fn has_single_image(&self) -> bool {
        self.backend.has_single_image()
    }

    fn concurrent_launches(&self) -> usize {
        self.backend.concurrent_launches()
    }

    fn latency(&self) -> Duration {
        self.backend.latency()
    }

    fn check_image<'a>(&'a self, image: &'a EngineImage) -> BackendFuture<'a, ()> {
        self.observe(BackendCall::CheckImage, self.backend.check_image(image))
    }

    fn addressing(&self) -> Addressing {
        self.backend.addressing()
    }

    fn port_is_free(&self, port: u16) -> bool {
        self.backend.port_is_free(port)
    }

    fn address(&self, engine_id: EngineId, placement: Placement) -> Option<SocketAddr> {
        self.backend.address(engine_id, placement)
    }

    fn url_authority(&self, engine_id: EngineId, placement: Placement) -> Option<String> {
        self.backend.url_authority(engine_id, placement)
    }

    fn has_data(&self, engine_id: EngineId) -> BackendFuture<'_, bool> {
        self.observe(BackendCall::HasData, self.backend.has_data(engine_id))
    }

    fn list_data(&self, engine_id: Option<EngineId>) -> BackendFuture<'_, Option<Vec<DataListing>>> {
        self.observe(BackendCall::ListData, self.backend.list_data(engine_id))
    }

    fn launch(&self, launch: LaunchSpec) -> BackendFuture<'_, Instance> {
        self.observe(BackendCall::Launch, self.backend.launch(launch))
    }

    fn stop(&self, target: Target, grace: Duration) -> BackendFuture<'_, ()> {
        self.observe(BackendCall::Stop, self.backend.stop(target, grace))
    }

    fn kill(&self, target: Target) -> BackendFuture<'_, ()> {
        self.observe(BackendCall::Kill, self.backend.kill(target))
    }

    fn remove_instance(&self, target: Target) -> BackendFuture<'_, ()> {
        self.observe(BackendCall::RemoveInstance, self.backend.remove_instance(target))
    }

    fn remove_with_data(&self, target: Target) -> BackendFuture<'_, ()> {
        self.observe(BackendCall::RemoveWithData, self.backend.remove_with_data(target))
    }

    fn copy_brain(&self, target: Target) -> BackendFuture<'_, BrainCopy> {
        self.observe(BackendCall::CopyBrain, self.backend.copy_brain(target))
    }

    fn restore_brain(&self, target: Target) -> BackendFuture<'_, ()> {
        self.observe(BackendCall::RestoreBrain, self.backend.restore_brain(target))
    }

    fn brain_formats(&self, target: Target) -> BackendFuture<'_, BrainFormats> {
        self.observe(BackendCall::BrainFormats, self.backend.brain_formats(target))
    }

    fn list(&self) -> BackendFuture<'_, Vec<EngineListing>> {
        self.observe(BackendCall::List, self.backend.list())
    }

    fn exits(&self) -> BoxStream<'static, InstanceExit> {
        self.backend.exits()
    }

    fn is_running<'a>(&'a self, instance: &'a Instance) -> BackendFuture<'a, bool> {
        self.observe(BackendCall::IsRunning, self.backend.is_running(instance))
    }

    fn log_tail(&self, engine_id: EngineId, lines: usize) -> BackendFuture<'_, Vec<String>> {
        self.observe(BackendCall::LogTail, self.backend.log_tail(engine_id, lines))
    }

    fn resource_limits(&self, engine_id: EngineId) -> BackendFuture<'_, Option<ResourceLimits>> {
        self.observe(BackendCall::ResourceLimits, self.backend.resource_limits(engine_id))
    }
}
