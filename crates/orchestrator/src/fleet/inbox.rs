//! The inbox: keeps the questions of all engines that wait for a person.
//!
//! Each proof of an engine's health has a tag that changes with its set of questions. If it differs from the one that
//! was last seen, the engine is asked for them. An engine that is about to stop or sleep is asked once more, so what is
//! stored of it then is what waits. After a start of the orchestrator no tag is known, so every engine is asked.

use std::collections::HashMap;
use std::sync::Arc;

use api::EngineId;
use api::inbox::{Inbox as InboxPage, ListInbox};
use api::orchestrator::PageLimit;
use parking_lot::Mutex;
use resources::keyed_locks::KeyedLocks;

use super::FleetError;
use super::engine_client::EngineClient;
use super::queries::DEFAULT_PAGE_SIZE;
use super::shared::Shared;
use crate::registry::{Product, RunningEngine};

pub(crate) struct Inbox {
    shared: Arc<Shared>,
    client: Arc<EngineClient>,
    /// The tag of each engine's questions that are stored.
    tags: Mutex<HashMap<EngineId, String>>,
    /// Of two reports of an engine, the later one is stored last.
    engine_locks: KeyedLocks<EngineId>,
}

impl Inbox {
    pub(super) fn new(shared: Arc<Shared>, client: Arc<EngineClient>) -> Self {
        Self { shared, client, tags: Mutex::default(), engine_locks: KeyedLocks::default() }
    }

    /// Lists the questions of a product's engines, oldest first. The engine of a named user is asked first.
    pub(crate) async fn list(&self, product: &Product, query: ListInbox) -> Result<InboxPage, FleetError> {
        let ListInbox { limit, after, user_id } = query;
        let registry = &self.shared.registry;
        if let Some(user_id) = &user_id
            && let Some(row) = registry.engine(&product.engine_owner(user_id.clone())).await?
            && let Some(engine) = self.shared.running(&row)
        {
            // What is stored is returned if it does not answer.
            self.refresh(engine).await;
        }
        let (now, limit) = (self.shared.clock.now(), limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get));
        let questions = registry.questions(product.product_id, user_id.as_ref(), after, now, limit).await?;
        Ok(InboxPage { questions })
    }

    /// Asks an engine for its questions if their tag is not the one that was last seen.
    pub(super) async fn note_tag(&self, engine_id: EngineId, tag: String) {
        if self.tags.lock().get(&engine_id) == Some(&tag) {
            return;
        }
        // While it is being changed, its key may be in doubt; the next check asks again.
        let Ok(Some(row)) = self.shared.registry.engine_by_id(engine_id).await else { return };
        if let Some(engine) = self.shared.running(&row).filter(|_| row.claim.is_none())
            && self.refresh(engine).await
        {
            self.tags.lock().insert(engine_id, tag);
        }
    }

    /// Asks an engine for its questions and stores them. Returns whether it did.
    pub(super) async fn refresh(&self, engine: RunningEngine<'_>) -> bool {
        let refreshed = self.try_refresh(engine).await;
        if let Err(error) = &refreshed {
            tracing::info!(
                engine_id = %engine.row.engine_id,
                error = error as &dyn std::error::Error,
                "The questions of an engine are unknown for the moment."
            );
        }
        refreshed.is_ok()
    }

    async fn try_refresh(&self, engine: RunningEngine<'_>) -> Result<(), FleetError> {
        let _lock = self.engine_locks.lock(engine.row.engine_id).await;
        let key = self.shared.keys.key(engine.row)?;
        let waiting = self.client.waiting_questions(engine, &key).await;
        let waiting = waiting.map_err(|error| FleetError::Backend(error.to_string()))?;
        let now = self.shared.clock.now();
        Ok(self.shared.registry.replace_questions(engine.row, &waiting.questions, now).await?)
    }
}
