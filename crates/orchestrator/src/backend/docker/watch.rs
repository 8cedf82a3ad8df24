//! The ends of containers: told by the daemon, and looked for where it could not tell.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::EventMessage;
use contract::EngineId;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{Inner, label};
use crate::backend::{Exit, Instance};

/// The shortest and the longest pause before the daemon's events are watched again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The containers whose ends are of interest.
#[derive(Default)]
pub(super) struct Watch {
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    engine_id: EngineId,
    /// Whether it was seen running: before that, a listing in which it does not run says nothing.
    begun: bool,
}

impl Watch {
    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This container is about to begin: its end may be told before its beginning.
    pub(super) fn beginning(&self, id: &str, engine_id: EngineId) {
        self.known().insert(id.to_owned(), Known { engine_id, begun: false });
    }

    /// This container has begun. It may have ended since.
    pub(super) fn begun(&self, id: &str) {
        if let Some(known) = self.known().get_mut(id) {
            known.begun = true;
        }
    }

    /// This container was seen running.
    pub(super) fn seen(&self, id: &str, engine_id: EngineId) {
        self.known().insert(id.to_owned(), Known { engine_id, begun: true });
    }

    /// The end of this container is of no interest any more. Returns whose it is, if it was until now.
    pub(super) fn forget(&self, id: &str) -> Option<EngineId> {
        self.known().remove(id).map(|known| known.engine_id)
    }

    fn running(&self) -> Vec<String> {
        let known = self.known();
        known.iter().filter(|(_, known)| known.begun).map(|(id, _)| id.clone()).collect()
    }
}

/// The ends of this deployment's containers, from now on. They are watched for as long as the stream lives.
pub(super) fn exits(inner: Arc<Inner>) -> BoxStream<'static, Exit> {
    let (exits, mut listener) = mpsc::unbounded_channel();
    let watching = AbortOnDropHandle::new(tokio::spawn(watch(inner, exits)));
    futures::stream::poll_fn(move |context| {
        let _watching = &watching;
        listener.poll_recv(context)
    })
    .boxed()
}

/// Watches the daemon's events, and watches them again when they break off.
async fn watch(inner: Arc<Inner>, exits: mpsc::UnboundedSender<Exit>) {
    let mut pause = PAUSES.0;
    loop {
        let begun = inner.clock.monotonic();
        let error = inner.watch_once(&exits).await;
        let watched = inner.clock.monotonic().saturating_sub(begun) > PAUSES.1;
        if watched {
            pause = PAUSES.0;
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "The Docker daemon's events have broken off; they are watched again soon.");
        }
        inner.clock.sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

impl Inner {
    /// Tells ends until the daemon's events break off, and returns why they did.
    async fn watch_once(&self, exits: &mpsc::UnboundedSender<Exit>) -> Error {
        // The daemon tells again what happened since, so nothing is lost between the listing and its first event.
        let since = (self.clock.now().unix_ms() / 1_000).saturating_sub(1).to_string();
        let filters = label::filters(&self.options.deployment_id, None);
        let mut ends = match self.daemon.ends(&filters, &since).await {
            Ok(ends) => ends,
            Err(error) => return error,
        };
        let mut comparison = pin!(self.compare(exits));
        let mut compared = false;
        loop {
            tokio::select! {
                end = ends.next() => match end {
                    Some(Ok(event)) => self.tell(exits, &event),
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
    fn tell(&self, exits: &mpsc::UnboundedSender<Exit>, event: &EventMessage) {
        let Some(actor) = &event.actor else { return };
        let Some(id) = &actor.id else { return };
        let Some(engine_id) = self.watch.forget(id) else { return };
        let code = actor.attributes.as_ref().and_then(|attributes| attributes.get("exitCode"));
        send(exits, engine_id, id, code.map(|code| format!("exit code {code}")));
    }

    /// Tells the ends that nobody told: of containers known to run that do not any more. A daemon that does not
    /// list them says nothing, and is asked again.
    async fn compare(&self, exits: &mpsc::UnboundedSender<Exit>) {
        let mut pause = PAUSES.0;
        loop {
            let running = self.watch.running();
            let filters = label::filters(&self.options.deployment_id, None);
            match self.daemon.containers(&filters).await {
                Ok(listed) => {
                    for id in running {
                        let found = listed.iter().find(|container| container.id == id);
                        if found.is_some_and(|container| container.life.is_alive()) {
                            continue;
                        }
                        if let Some(engine_id) = self.watch.forget(&id) {
                            let how = found.and_then(|container| exit_code(&container.status));
                            send(exits, engine_id, &id, how);
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
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

fn send(exits: &mpsc::UnboundedSender<Exit>, engine_id: EngineId, id: &str, how: Option<String>) {
    // Nobody listens only while the orchestrator ends.
    let _ = exits.send(Exit { engine_id, instance: Instance::new(id), how });
}

/// The exit code in a status such as `Exited (137) 3 seconds ago`.
fn exit_code(status: &str) -> Option<String> {
    let (_, rest) = status.split_once("Exited (")?;
    let (code, _) = rest.split_once(')')?;
    Some(format!("exit code {code}"))
}
