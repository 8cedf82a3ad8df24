//! Memory as API callers search, list, extend and delete it.

use std::time::{Duration, Instant};

use api::MemoryId;
use api::facts::{CorrectFact, Fact, Facts, ListFacts};
use api::memory::{
    Episodes, Knowledge, KnowledgeList, ListMemory, MAX_QUERY, MemorySearch, SaveKnowledge, Source,
};
use api::serde_helpers::BoundedInt;
use store::{
    CorrectError, FactCorrection, FactFilter, KnowledgeDraft, MemoryQuery, NewKnowledge, SearchHit,
    SearchScope, SupersedeError,
};

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

    /// A page of the facts in force, the last said first.
    pub async fn facts(&self, list: ListFacts) -> Result<Facts, AgentError> {
        let ListFacts { limit, offset, tag, source } = list;
        let limit = limit.map_or(DEFAULT_PAGE_SIZE, BoundedInt::get);
        let offset = offset.map_or(0, BoundedInt::get);
        let filter = FactFilter { tag, source, from_tools: None };
        self.read(move |brain| brain.facts(&filter, limit, offset)).await
    }

    /// A fact, in force or not. Any string is accepted as its id.
    pub async fn fact(&self, id: &str) -> Result<Fact, AgentError> {
        let id = parse_fact_id(id)?;
        self.read(move |brain| brain.fact(id)).await?.ok_or_else(unknown_fact)
    }

    /// Replaces a fact by what the holder of the engine's key says instead.
    pub async fn correct_fact(&self, id: &str, correct: CorrectFact) -> Result<Fact, AgentError> {
        let CorrectFact { content, tags } = correct;
        let keeps_tags = tags.is_none();
        let save = SaveKnowledge { content, tags: tags.unwrap_or_default(), supersedes: None };
        let draft = KnowledgeDraft::parse(save).map_err(|error| AgentError::Invalid(error.to_string()))?;
        let draft = KnowledgeDraft { supersedes: Some(parse_fact_id(id)?), ..draft };
        let correction = FactCorrection { id: MemoryId::new(), draft, keeps_tags };
        let (new, at) = (correction.id, self.services.clock.now());
        match self.brain.write(move |rows| rows.correct_fact(&correction, at)).await? {
            Ok(()) => self.read(move |brain| brain.fact(new)).await?.ok_or_else(unknown_fact),
            Err(CorrectError::Unknown) => Err(unknown_fact()),
            Err(CorrectError::Replaced(current)) => Err(AgentError::FactReplaced(current)),
        }
    }

    /// Erases a fact with all that it replaced. Any string is accepted as its id.
    pub async fn forget_fact(&self, id: &str) -> Result<(), AgentError> {
        let id = parse_fact_id(id)?;
        let deleted = self.delete_and_erase(move |rows| rows.delete_fact(id)).await?;
        deleted.then_some(()).ok_or_else(unknown_fact)
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

fn parse_fact_id(id: &str) -> Result<MemoryId, AgentError> {
    id.parse().map_err(|_| unknown_fact())
}

fn unknown_fact() -> AgentError {
    AgentError::UnknownRecord("there is no such fact; GET /memory/facts lists them".into())
}

/// The limit and the offset of a page.
pub(super) fn page(ListMemory { limit, offset }: ListMemory) -> (i64, i64) {
    (limit.map_or(DEFAULT_PAGE_SIZE, BoundedInt::get), offset.map_or(0, BoundedInt::get))
}
