//! The ends of containers: told by the daemon, and looked for where it could not tell.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::EngineId;
use bollard::errors::Error;
use bollard::models::EventMessage;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{Inner, label};
use crate::backend::{Instance, InstanceExit};

/// The shortest and the longest pause before the daemon's events are watched again.
const RECONNECT_DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The containers whose ends are of interest.
#[derive(Default)]
pub(super) struct ExitWatch {
    known: Mutex<HashMap<String, KnownContainer>>,
}

#[derive(Clone, Copy, Debug)]
struct KnownContainer {
    engine_id: EngineId,
    /// Whether it was seen running: before that, a listing in which it does not run says nothing.
    started: bool,
}

impl ExitWatch {
    fn known(&self) -> MutexGuard<'_, HashMap<String, KnownContainer>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This container is about to begin: its end may be told before its beginning.
    pub(super) fn note_starting(&self, id: &str, engine_id: EngineId) {
        self.known().insert(id.to_owned(), KnownContainer { engine_id, started: false });
    }

    /// This container has begun. It may have ended since.
    pub(super) fn note_started(&self, id: &str) {
        if let Some(known) = self.known().get_mut(id) {
            known.started = true;
        }
    }

    /// This container was seen running.
    pub(super) fn note_running(&self, id: &str, engine_id: EngineId) {
        self.known().insert(id.to_owned(), KnownContainer { engine_id, started: true });
    }

    /// The end of this container is of no interest any more. Returns whose it is, if it was until now.
    pub(super) fn forget(&self, id: &str) -> Option<EngineId> {
        self.known().remove(id).map(|known| known.engine_id)
    }

    fn running(&self) -> Vec<String> {
        let known = self.known();
        known.iter().filter(|(_, known)| known.started).map(|(id, _)| id.clone()).collect()
    }
}

/// The ends of this deployment's containers, from now on. They are watched for as long as the stream lives.
pub(super) fn exits(inner: Arc<Inner>) -> BoxStream<'static, InstanceExit> {
    let (exits, mut listener) = mpsc::unbounded_channel();
    let watching = AbortOnDropHandle::new(tokio::spawn(watch_events(inner, exits)));
    futures::stream::poll_fn(move |context| {
        let _watching = &watching;
        listener.poll_recv(context)
    })
    .boxed()
}

/// Watches the daemon's events, and watches them again when they break off.
async fn watch_events(inner: Arc<Inner>, exits: mpsc::UnboundedSender<InstanceExit>) {
    let mut pause = RECONNECT_DELAYS.0;
    loop {
        let begun = inner.clock.monotonic();
        let error = inner.watch_once(&exits).await;
        let watched = inner.clock.monotonic().saturating_sub(begun) > RECONNECT_DELAYS.1;
        if watched {
            pause = RECONNECT_DELAYS.0;
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "The Docker daemon's events have broken off; they are watched again soon.");
        }
        inner.clock.sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_DELAYS.1);
    }
}

impl Inner {
    /// Tells ends until the daemon's events break off, and returns why they did.
    async fn watch_once(&self, exits: &mpsc::UnboundedSender<InstanceExit>) -> Error {
        // The daemon tells again what happened since, so nothing is lost between the listing and its first event.
        let since = (self.clock.now().unix_ms() / 1_000).saturating_sub(1).to_string();
        let filters = label::filters(&self.options.deployment_id, None);
        let mut ends = match self.daemon.exit_events(&filters, &since).await {
            Ok(ends) => ends,
            Err(error) => return error,
        };
        let mut comparison = pin!(self.report_missed_exits(exits));
        let mut compared = false;
        loop {
            tokio::select! {
                end = ends.next() => match end {
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

    /// Tells the end that `event` is of, once.
    fn report_exit(&self, exits: &mpsc::UnboundedSender<InstanceExit>, event: &EventMessage) {
        let Some(actor) = &event.actor else { return };
        let Some(id) = &actor.id else { return };
        let Some(engine_id) = self.exit_watch.forget(id) else { return };
        let code = actor.attributes.as_ref().and_then(|attributes| attributes.get("exitCode"));
        send_exit(exits, engine_id, id, code.map(|code| format!("exit code {code}")));
    }

    /// Tells the ends that nobody told: of containers known to run that do not any more. A daemon that does not
    /// list them says nothing, and is asked again.
    async fn report_missed_exits(&self, exits: &mpsc::UnboundedSender<InstanceExit>) {
        let mut pause = RECONNECT_DELAYS.0;
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
                            let how = found.and_then(|container| exit_code(&container.status));
                            send_exit(exits, engine_id, &id, how);
                        }
                    }
                    return;
                }
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::debug!(error, "The containers could not be listed yet.");
                }
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(RECONNECT_DELAYS.1);
        }
    }
}

fn send_exit(
    exits: &mpsc::UnboundedSender<InstanceExit>,
    engine_id: EngineId,
    id: &str,
    how: Option<String>,
) {
    // Nobody listens only while the orchestrator ends.
    let _ = exits.send(InstanceExit { engine_id, instance: Instance::new(id), reason: how });
}

/// The exit code in a status such as `Exited (137) 3 seconds ago`.
fn exit_code(status: &str) -> Option<String> {
    let (_, rest) = status.split_once("Exited (")?;
    let (code, _) = rest.split_once(')')?;
    Some(format!("exit code {code}"))
}
