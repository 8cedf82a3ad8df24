//! Reports the exits of containers from the daemon's event stream.
//!
//! Whenever the stream is opened again, a listing finds the exits that happened while it was interrupted.
//! Each exit is reported once.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::EngineId;
use bollard::errors::Error;
use bollard::models::EventMessage;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{Inner, label};
use crate::{Instance, InstanceExit};

/// The shortest and the longest delay before the event stream is opened again after a failure.
const RECONNECT_DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The containers whose exits are to be reported.
#[derive(Default)]
pub(super) struct ExitWatch {
    known: Mutex<HashMap<String, KnownContainer>>,
}

#[derive(Clone, Copy, Debug)]
struct KnownContainer {
    engine_id: EngineId,
    /// Whether it is known to have started. Before that, its absence from a listing does not mean that it exited.
    started: bool,
}

impl ExitWatch {
    /// Adds a container that is about to start. Its exit may be reported before its start returns.
    pub(super) fn note_starting(&self, id: &str, engine_id: EngineId) {
        self.known.lock().insert(id.to_owned(), KnownContainer { engine_id, started: false });
    }

    /// Marks a container as started. It may have exited since.
    pub(super) fn note_started(&self, id: &str) {
        if let Some(known) = self.known.lock().get_mut(id) {
            known.started = true;
        }
    }

    /// Adds a container that was seen running.
    pub(super) fn note_running(&self, id: &str, engine_id: EngineId) {
        self.known.lock().insert(id.to_owned(), KnownContainer { engine_id, started: true });
    }

    /// Removes a container, so that its exit is not reported. Returns its engine if the container was known.
    pub(super) fn forget(&self, id: &str) -> Option<EngineId> {
        self.known.lock().remove(id).map(|known| known.engine_id)
    }

    fn running(&self) -> Vec<String> {
        let known = self.known.lock();
        known.iter().filter(|(_, known)| known.started).map(|(id, _)| id.clone()).collect()
    }
}

/// Returns a stream of the exits of this deployment's containers from now on. Dropping it ends the watching.
pub(super) fn exits(inner: Arc<Inner>) -> BoxStream<'static, InstanceExit> {
    let (exits, mut listener) = mpsc::unbounded_channel();
    let watch_task = AbortOnDropHandle::new(tokio::spawn(watch_events(inner, exits)));
    futures::stream::poll_fn(move |context| {
        let _watch_task = &watch_task;
        listener.poll_recv(context)
    })
    .boxed()
}

/// Watches the daemon's event stream, and opens it again with a backoff whenever it breaks.
async fn watch_events(inner: Arc<Inner>, exits: mpsc::UnboundedSender<InstanceExit>) {
    let mut delay = RECONNECT_DELAYS.0;
    loop {
        let started = inner.clock.monotonic();
        let error = inner.watch_once(&exits).await;
        let was_stable = inner.clock.monotonic().saturating_sub(started) > RECONNECT_DELAYS.1;
        if was_stable {
            delay = RECONNECT_DELAYS.0;
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "The Docker daemon's event stream broke; it is opened again soon.");
        }
        inner.clock.sleep(delay).await;
        delay = (delay * 2).min(RECONNECT_DELAYS.1);
    }
}

impl Inner {
    /// Reports exits until the daemon's event stream breaks, and returns the reason.
    async fn watch_once(&self, exits: &mpsc::UnboundedSender<InstanceExit>) -> Error {
        // The daemon repeats the events since then, so that none is lost between the listing and the first event.
        let since = (self.clock.now().unix_ms() / 1_000).saturating_sub(1).to_string();
        let filters = label::filters(&self.options.deployment_id, None);
        let mut events = match self.daemon.exit_events(&filters, &since).await {
            Ok(events) => events,
            Err(error) => return error,
        };
        let mut comparison = pin!(self.report_missed_exits(exits));
        let mut compared = false;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => self.report_exit(exits, &event),
                    Some(Err(error)) => return error,
                    None => {
                        let closed = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                        return Error::IOError { err: closed };
                    }
                },
                () = &mut comparison, if !compared => compared = true,
            }
        }
    }

    /// Reports the exit in `event`, unless it was reported already.
    fn report_exit(&self, exits: &mpsc::UnboundedSender<InstanceExit>, event: &EventMessage) {
        let Some(actor) = &event.actor else { return };
        let Some(id) = &actor.id else { return };
        let Some(engine_id) = self.exit_watch.forget(id) else { return };
        let code = actor.attributes.as_ref().and_then(|attributes| attributes.get("exitCode"));
        send_exit(exits, engine_id, id, code.map(|code| format!("exit code {code}")));
    }

    /// Reports the exits that no event reported: of containers known to run that a listing does not show as
    /// running. Repeats the listing with a backoff until it succeeds.
    async fn report_missed_exits(&self, exits: &mpsc::UnboundedSender<InstanceExit>) {
        let mut delay = RECONNECT_DELAYS.0;
        loop {
            let running = self.exit_watch.running();
            let filters = label::filters(&self.options.deployment_id, None);
            match self.daemon.containers(&filters).await {
                Ok(listed) => {
                    for id in running {
                        let found = listed.iter().find(|container| container.id == id);
                        if found.is_some_and(|container| container.state.is_alive()) {
                            continue;
                        }
                        if let Some(engine_id) = self.exit_watch.forget(&id) {
                            let reason = found.and_then(|container| exit_code(&container.status));
                            send_exit(exits, engine_id, &id, reason);
                        }
                    }
                    return;
                }
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::debug!(error, "The containers could not be listed; the listing is repeated.");
                }
            }
            self.clock.sleep(delay).await;
            delay = (delay * 2).min(RECONNECT_DELAYS.1);
        }
    }
}

fn send_exit(
    exits: &mpsc::UnboundedSender<InstanceExit>,
    engine_id: EngineId,
    id: &str,
    reason: Option<String>,
) {
    // The receiver is gone only while the orchestrator shuts down.
    let _ = exits.send(InstanceExit { engine_id, instance: Instance::new(id), reason });
}

/// Returns the exit code in a status such as `Exited (137) 3 seconds ago`.
fn exit_code(status: &str) -> Option<String> {
    let (_, rest) = status.split_once("Exited (")?;
    let (code, _) = rest.split_once(')')?;
    Some(format!("exit code {code}"))
}
