//! A brain that was told a life: filled by the engine's own code, as if every turn had been run.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use api::event::StopReason;
use api::memory::{MemoryKind, Source};
use api::{MemoryId, MessageId, TaskId, Timestamp, TurnId};
use engine::llm::{Answer, Block, FinishReason, TokenUsage};
use engine::store::steps::{Opened, Step, TurnBase, TurnOptions, TurnOutcome};
use engine::store::{Brain, KnowledgeDraft, MemoryQuery, NewKnowledge, NewTurn, SearchHit, TaskRow, WriteTx};

use super::corpus::{Corpus, Session, SourceRef, Speaker, Turn};
use super::score::Hit;

/// How many conversations, or records of knowledge, are written at once.
const WRITE_BATCH_SIZE: usize = 200;
/// How long a search may take: longer than any of them does.
const SEARCH_TIMEOUT: Duration = Duration::from_mins(1);
/// What is looked through: all of it.
const KINDS: &[MemoryKind] = &[MemoryKind::Knowledge, MemoryKind::Episode, MemoryKind::Message];

/// See the module.
pub(crate) struct FilledBrain {
    brain: Brain,
    messages: HashMap<MessageId, SourceRef>,
    knowledge: HashMap<String, SourceRef>,
    /// Turns by their conversation and their end, of which an episode is told.
    turns: HashMap<(TaskId, i64), (usize, usize)>,
}

/// A conversation as it is written.
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
    /// Tells a life to a new brain in `file`.
    pub(crate) async fn new(file: &Path, corpus: &Corpus) -> anyhow::Result<Self> {
        let brain = Brain::open(file)?;
        let (messages, knowledge, turns) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut filled = Self { brain, messages, knowledge, turns };
        let sessions: Vec<(usize, &Session)> = corpus.sessions.iter().enumerate().collect();
        for sessions in sessions.chunks(WRITE_BATCH_SIZE) {
            let told = sessions.iter().map(|(number, session)| filled.prepare_session(*number, session));
            let told: Arc<Vec<PendingSession>> = Arc::new(told.collect::<Result<_, _>>()?);
            filled
                .brain
                .write(move |rows| told.iter().try_for_each(|told| write_session(rows, told)))
                .await?;
        }
        filled.write_knowledge(corpus).await?;
        Ok(filled)
    }

    fn prepare_session(&mut self, number: usize, session: &Session) -> anyhow::Result<PendingSession> {
        let task_id = TaskId::new(format!("session-{number}"))?;
        let mut turns = Vec::new();
        for (turn, said) in session.turns.iter().enumerate() {
            let at = Timestamp::from_unix_ms(session.turn_time_ms(turn));
            let (user_message, agent_message) = (MessageId::new(), MessageId::new());
            for (message_id, speaker) in [(user_message, Speaker::User), (agent_message, Speaker::Agent)] {
                self.messages.insert(message_id, SourceRef::Message { session: number, turn, speaker });
            }
            self.turns.insert((task_id.clone(), at.unix_ms()), (number, turn));
            turns.push(PendingTurn {
                user_message,
                at,
                steps: turn_steps(said, user_message, agent_message),
            });
        }
        let began = Timestamp::from_unix_ms(session.started_ms);
        Ok(PendingSession { task: self.brain.reserve_task(), task_id, began, turns })
    }

    async fn write_knowledge(&mut self, corpus: &Corpus) -> anyhow::Result<()> {
        let ids: Vec<MemoryId> = corpus.knowledge.iter().map(|_| MemoryId::new()).collect();
        let mut records = Vec::new();
        for (number, (known, id)) in corpus.knowledge.iter().zip(&ids).enumerate() {
            self.knowledge.insert(id.to_string(), SourceRef::Knowledge(number));
            let supersedes = known.supersedes.and_then(|older| ids.get(older).copied());
            let to_know = KnowledgeDraft { content: known.content.clone(), tags: Vec::new(), supersedes };
            let record = NewKnowledge { id: *id, draft: to_know, source: Source::Agent };
            records.push((record, Timestamp::from_unix_ms(known.at_ms)));
        }
        for records in records.chunks(WRITE_BATCH_SIZE) {
            let records = Arc::new(records.to_vec());
            let saved = self.brain.write(move |rows| {
                let saved = records.iter().map(|(record, at)| rows.save_knowledge(record, None, *at));
                saved.collect::<Result<Result<Vec<()>, _>, _>>()
            });
            saved.await?.map_err(|reason| anyhow!("a record of knowledge was refused: {reason}"))?;
        }
        Ok(())
    }

    /// Searches all that is remembered, as a tool does that is asked to.
    pub(crate) fn search(&self, text: &str, limit: usize) -> anyhow::Result<(Vec<SearchHit>, Duration)> {
        let began = Instant::now();
        let until = began + SEARCH_TIMEOUT;
        let query =
            MemoryQuery { text: text.to_owned(), kinds: KINDS, limit, conversation: None, deadline: until };
        let found = self.brain.search(&query).with_context(|| format!("the search for `{text}`"))?;
        Ok((found, began.elapsed()))
    }

    /// The places of the life that a result shows.
    pub(crate) fn to_hit(&self, found: &SearchHit) -> Hit {
        let places = match found.kind {
            MemoryKind::Knowledge => self.knowledge.get(&found.id).copied().into_iter().collect(),
            MemoryKind::Message => {
                found.message_ids.iter().filter_map(|id| self.messages.get(id).copied()).collect()
            }
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
        Hit { sources: places, characters: found.content.chars().count(), is_relevant: found.is_relevant }
    }
}

/// A turn that went well: the message, the answer, the end.
fn turn_steps(said: &Turn, user_message: MessageId, agent_message: MessageId) -> [Step; 3] {
    let opened = Opened {
        message_id: user_message,
        notes: Vec::new(),
        message: said.user.clone(),
        media: Vec::new(),
        options: TurnOptions { max_turns: 1, super_thinking: false, direct: true },
        base: TurnBase::End,
    };
    let blocks = vec![Block::Text { text: said.agent.clone(), signature: None }];
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

fn write_session(rows: &WriteTx<'_>, told: &PendingSession) -> Result<(), rusqlite::Error> {
    rows.insert_task(told.task, &told.task_id, told.began)?;
    for PendingTurn { user_message, at, steps } in &told.turns {
        let turn = NewTurn { turn_id: TurnId::new(), message_id: *user_message, request: None };
        rows.insert_turn(told.task, &turn, at.unix_ms(), *at)?;
        for step in steps {
            rows.insert_step(told.task, turn.turn_id, *at, at.unix_ms(), step)?;
        }
    }
    Ok(())
}
