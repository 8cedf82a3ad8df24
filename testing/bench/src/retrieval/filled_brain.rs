//! A brain filled with a corpus by the engine's own code, as if every turn had been run.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use api::event::StopReason;
use api::memory::{MemoryKind, Source};
use api::{MemoryId, MessageId, TaskId, Timestamp, TurnId};
use llm::{Answer, Block, FinishReason, TokenUsage};
use store::steps::{Opened, Step, TurnBase, TurnOptions, TurnOutcome};
use store::{
    Brain, KnowledgeDraft, MemoryQuery, NewKnowledge, NewTurn, SearchHit, SearchScope, StoreError, TaskRow,
    WriteTx,
};

use super::corpus::{Corpus, Session, SourceRef, Speaker, Turn};
use super::score::Hit;

/// The number of conversations or knowledge records per write transaction.
const WRITE_BATCH_SIZE: usize = 200;
/// The deadline of a search, longer than any takes.
const SEARCH_TIMEOUT: Duration = Duration::from_mins(1);

/// A filled brain, with the sources of everything in it.
pub(crate) struct FilledBrain {
    brain: Brain,
    messages: HashMap<MessageId, SourceRef>,
    knowledge: HashMap<String, SourceRef>,
    /// Turns by task and end time, by which an episode is mapped to its turn.
    turns: HashMap<(TaskId, i64), (usize, usize)>,
}

/// A conversation that is ready to be written.
struct PendingSession {
    task: TaskRow,
    task_id: TaskId,
    began: Timestamp,
    turns: Vec<PendingTurn>,
}

struct PendingTurn {
    user_message: MessageId,
    at: Timestamp,
    steps: [Step; 3],
}

impl FilledBrain {
    /// Stores a corpus in a new brain in `file`.
    pub(crate) async fn new(file: &Path, corpus: &Corpus) -> anyhow::Result<Self> {
        let brain = Brain::open(file)?;
        let (messages, knowledge, turns) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut filled = Self { brain, messages, knowledge, turns };
        let sessions: Vec<(usize, &Session)> = corpus.sessions.iter().enumerate().collect();
        for sessions in sessions.chunks(WRITE_BATCH_SIZE) {
            let pending = sessions.iter().map(|(number, session)| filled.prepare_session(*number, session));
            let pending: Arc<Vec<PendingSession>> = Arc::new(pending.collect::<Result<_, _>>()?);
            filled
                .brain
                .write(move |tx| pending.iter().try_for_each(|session| write_session(tx, session)))
                .await?;
        }
        filled.write_knowledge(corpus).await?;
        Ok(filled)
    }

    fn prepare_session(&mut self, number: usize, session: &Session) -> anyhow::Result<PendingSession> {
        let task_id = TaskId::new(format!("session-{number}"))?;
        let mut turns = Vec::new();
        for (turn, messages) in session.turns.iter().enumerate() {
            let at = Timestamp::from_unix_ms(session.turn_time_ms(turn));
            let (user_message, agent_message) = (MessageId::new(), MessageId::new());
            for (message_id, speaker) in [(user_message, Speaker::User), (agent_message, Speaker::Agent)] {
                self.messages.insert(message_id, SourceRef::Message { session: number, turn, speaker });
            }
            self.turns.insert((task_id.clone(), at.unix_ms()), (number, turn));
            turns.push(PendingTurn {
                user_message,
                at,
                steps: turn_steps(messages, user_message, agent_message),
            });
        }
        let began = Timestamp::from_unix_ms(session.started_ms);
        Ok(PendingSession { task: self.brain.reserve_task(), task_id, began, turns })
    }

    async fn write_knowledge(&mut self, corpus: &Corpus) -> anyhow::Result<()> {
        let ids: Vec<MemoryId> = corpus.knowledge.iter().map(|_| MemoryId::new()).collect();
        let mut records = Vec::new();
        for (number, (knowledge, id)) in corpus.knowledge.iter().zip(&ids).enumerate() {
            self.knowledge.insert(id.to_string(), SourceRef::Knowledge(number));
            let supersedes = knowledge.supersedes.and_then(|older| ids.get(older).copied());
            let draft = KnowledgeDraft { content: knowledge.content.clone(), tags: Vec::new(), supersedes };
            let record = NewKnowledge { id: *id, draft, source: Source::Agent };
            records.push((record, Timestamp::from_unix_ms(knowledge.at_ms)));
        }
        for records in records.chunks(WRITE_BATCH_SIZE) {
            let records = Arc::new(records.to_vec());
            let saved = self.brain.write(move |tx| {
                let saved = records.iter().map(|(record, at)| tx.save_knowledge(record, None, *at));
                saved.collect::<Result<Result<Vec<()>, _>, _>>()
            });
            saved.await?.map_err(|reason| anyhow!("a knowledge record was rejected: {reason}"))?;
        }
        Ok(())
    }

    /// Searches all of memory, as the tool `memory_search` does.
    pub(crate) fn search(&self, text: &str, limit: usize) -> anyhow::Result<(Vec<SearchHit>, Duration)> {
        let began = Instant::now();
        let deadline = began + SEARCH_TIMEOUT;
        let (text, scope) = (text.to_owned(), SearchScope::Everything);
        let query = MemoryQuery { text, scope, offset: 0, limit, conversation: None, deadline };
        let found = self.brain.search(&query).with_context(|| format!("the search for `{}`", query.text))?;
        Ok((found, began.elapsed()))
    }

    /// Returns a search result with the corpus's sources that it contains.
    pub(crate) fn to_hit(&self, found: &SearchHit) -> Hit {
        let in_messages = |ids: &[MessageId]| -> Vec<SourceRef> {
            ids.iter().filter_map(|id| self.messages.get(id).copied()).collect()
        };
        let sources: Vec<SourceRef> = match found.kind {
            MemoryKind::Knowledge => self.knowledge.get(&found.id).copied().into_iter().collect(),
            MemoryKind::Message => in_messages(&found.message_ids),
            MemoryKind::Episode => {
                let end = found.task_id.clone().map(|task_id| (task_id, found.created_at.unix_ms()));
                let turn = end.and_then(|end| self.turns.get(&end).copied());
                let both = |(session, turn)| {
                    [Speaker::User, Speaker::Agent].map(|speaker| SourceRef::Message {
                        session,
                        turn,
                        speaker,
                    })
                };
                turn.map(both).into_iter().flatten().collect()
            }
        };
        let told =
            if found.excerpt_ids.is_empty() { sources.clone() } else { in_messages(&found.excerpt_ids) };
        let told = found.is_relevant.then_some(told);
        Hit { sources, told, characters: found.content.chars().count() }
    }
}

/// Returns the steps of a completed turn: the message, the answer, the end.
fn turn_steps(turn: &Turn, user_message: MessageId, agent_message: MessageId) -> [Step; 3] {
    let opened = Opened {
        message_id: user_message,
        notes: Vec::new(),
        notes_source: Source::Agent.into(),
        message: turn.user.clone(),
        media: Vec::new(),
        options: TurnOptions { max_turns: 1, super_thinking: false, direct: true },
        base: TurnBase::End,
    };
    let blocks = vec![Block::Text { text: turn.agent.clone(), signature: None }];
    let answer = Answer { blocks, usage: TokenUsage::default(), stop: FinishReason::Done };
    let answered = Step::Answered {
        message_id: agent_message,
        model: "none".into(),
        answer,
        cost_usd: None,
        capped: false,
    };
    let outcome = TurnOutcome::Completed { stop_reason: StopReason::EndTurn };
    [Step::Opened(opened), answered, Step::Ended { outcome }]
}

fn write_session(tx: &WriteTx<'_>, session: &PendingSession) -> Result<(), StoreError> {
    tx.insert_task(session.task, &session.task_id, session.began)?;
    for PendingTurn { user_message, at, steps } in &session.turns {
        let turn = NewTurn { turn_id: TurnId::new(), message_id: *user_message, request: None };
        tx.insert_turn(session.task, &turn, at.unix_ms(), *at)?;
        for step in steps {
            tx.insert_step(session.task, turn.turn_id, *at, at.unix_ms(), step)?;
        }
    }
    Ok(())
}
