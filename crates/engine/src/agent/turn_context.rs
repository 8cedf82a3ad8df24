//! What a turn keeps from its beginning to its end, in every state.

use std::sync::Arc;

use api::TurnId;
use store::Brain;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::inbox::Inbox;
use super::journal_writer::JournalWriter;
use super::turn_registry::Registration;
use super::{AgentSnapshot, Services};

/// What a turn works with and does not change. Clones share it.
#[derive(Clone)]
pub(super) struct TurnDeps {
    pub(super) brain: Brain,
    pub(super) services: Arc<Services>,
    /// The snapshot when the turn began, or was resumed after a restart.
    pub(super) snapshot: Arc<AgentSnapshot>,
}

/// What a turn keeps in every state. While it is active, its parts own it.
pub(super) struct TurnContext {
    pub(super) deps: TurnDeps,
    pub(super) writer: JournalWriter,
    pub(super) inbox: Inbox,
    pub(super) slot: TurnSlot,
}

impl TurnContext {
    /// The id of the turn.
    pub(super) fn turn_id(&self) -> TurnId {
        self.writer.turn_id()
    }

    /// Releases what the turn does not need while it waits for its user.
    pub(super) fn release(&mut self) {
        self.slot.permit = None;
        self.writer.recorder().clear_published();
        self.slot.registration.mark_idle();
    }
}

/// The turn's place among those that run at once.
pub(super) struct TurnSlot {
    /// The permits that bound the number of active turns.
    permits: Arc<Semaphore>,
    /// This turn's permit; `None` while it waits for its user.
    permit: Option<OwnedSemaphorePermit>,
    /// The registration through which commands reach the turn.
    registration: Registration,
}

impl TurnSlot {
    pub(super) fn new(
        permits: Arc<Semaphore>,
        permit: Option<OwnedSemaphorePermit>,
        registration: Registration,
    ) -> Self {
        Self { permits, permit, registration }
    }

    /// The registration through which commands reach the turn.
    pub(super) fn registration(&mut self) -> &mut Registration {
        &mut self.registration
    }

    /// Waits for a permit to run, unless the turn has one.
    pub(super) fn acquire_permit(
        &self,
    ) -> Option<impl Future<Output = Option<OwnedSemaphorePermit>> + use<>> {
        let permits = self.permit.is_none().then(|| Arc::clone(&self.permits))?;
        Some(async move { permits.acquire_owned().await.ok() })
    }

    /// Keeps a permit until the turn waits for its user.
    pub(super) fn keep_permit(&mut self, permit: Option<OwnedSemaphorePermit>) {
        self.permit = permit;
    }
}
