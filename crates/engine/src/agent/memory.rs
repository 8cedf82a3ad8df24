//! Memory as API callers search, list, extend and delete it.

use std::time::{Duration, Instant};

use api::MemoryId;
use api::memory::{
    Episodes, Knowledge, KnowledgeList, ListMemory, MAX_QUERY, MemorySearch, SaveKnowledge, Source,
};
use api::serde_helpers::BoundedInt;
use store::{KnowledgeDraft, MemoryQuery, NewKnowledge, SearchHit, SearchScope, SupersedeError};

use super::{Agent, AgentError};

/// The number of search results if the request gives none.
const DEFAULT_RESULTS: usize = 10;
/// The number of records per page if the request gives none.
const DEFAULT_PAGE_SIZE: i64 = 50;
/// How long a search may take.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);

impl Agent {
    /// Searches memory, best match first.
    pub async fn search_memory(
        &self,
        search: MemorySearch,
        scope: SearchScope,
    ) -> Result<Vec<SearchHit>, AgentError> {
        let MemorySearch { query: text, limit, offset } = search;
        if text.len() > MAX_QUERY {
            return Err(AgentError::Invalid(format!("`query`: must be at most {MAX_QUERY} bytes long")));
        }
        let limit = limit.and_then(|limit| usize::try_from(limit.get()).ok()).unwrap_or(DEFAULT_RESULTS);
        let offset = offset.and_then(|offset| usize::try_from(offset.get()).ok()).unwrap_or(0);
        let deadline = Instant::now() + SEARCH_TIMEOUT;
        let query = MemoryQuery { text, scope, offset, limit, conversation: None, deadline };
        self.read(move |brain| brain.search(&query)).await
    }

    /// Saves a knowledge record for the holder of the engine's key.
    pub async fn save_knowledge(&self, save: SaveKnowledge) -> Result<Knowledge, AgentError> {
        let draft = KnowledgeDraft::parse(save).map_err(|error| AgentError::Invalid(error.to_string()))?;
        let record = NewKnowledge { id: MemoryId::new(), draft, source: Source::User };
        let created_at = self.services.clock.now();
        let saved = record.clone();
        match self.brain.write(move |rows| rows.save_knowledge(&saved, None, created_at)).await? {
            Ok(()) => {}
            Err(reason @ SupersedeError::Unknown) => {
                return Err(AgentError::UnknownRecord(format!("`supersedes`: {reason}")));
            }
            Err(reason @ (SupersedeError::Superseded | SupersedeError::Trusted)) => {
                return Err(AgentError::Invalid(format!("`supersedes`: {reason}")));
            }
        }
        let NewKnowledge { id, draft: KnowledgeDraft { content, tags, supersedes }, source } = record;
        Ok(Knowledge { id, content, source, tags, created_at, valid_until: None, supersedes })
    }

    /// A page of knowledge records, newest first.
    pub async fn knowledge(&self, list: ListMemory) -> Result<KnowledgeList, AgentError> {
        let (limit, offset) = page(list);
        self.read(move |brain| {
            Ok(KnowledgeList { knowledge: brain.knowledge(limit, offset)?, total: brain.knowledge_count()? })
        })
        .await
    }

    /// Deletes a knowledge record permanently. Any string is accepted as its id.
    pub async fn delete_knowledge(&self, id: &str) -> Result<(), AgentError> {
        let deleted = match id.parse() {
            Ok(id) => self.delete_and_erase(move |rows| rows.delete_knowledge(id)).await?,
            Err(_) => false,
        };
        let unknown = || "there is no such knowledge record; GET /memory/knowledge lists them".to_owned();
        deleted.then_some(()).ok_or_else(|| AgentError::UnknownRecord(unknown()))
    }

    /// A page of episodes, newest first.
    pub async fn episodes(&self, list: ListMemory) -> Result<Episodes, AgentError> {
        let (limit, offset) = page(list);
        self.read(move |brain| {
            Ok(Episodes { episodes: brain.episodes(limit, offset)?, total: brain.episode_count()? })
        })
        .await
    }
}

/// The limit and the offset of a page.
pub(super) fn page(ListMemory { limit, offset }: ListMemory) -> (i64, i64) {
    (limit.map_or(DEFAULT_PAGE_SIZE, BoundedInt::get), offset.map_or(0, BoundedInt::get))
}
