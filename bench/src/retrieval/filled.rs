//! A brain that was told a life: filled by the engine's own code, as if every turn had been run.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use contract::event::StopReason;
use contract::memory::{MemoryKind, Source};
use contract::{MemoryId, MessageId, TaskId, Timestamp, TurnId};
use engine::brain::steps::{Base, Opened, Step, TurnOptions, TurnOutcome};
use engine::brain::{Brain, Found, MemoryQuery, NewKnowledge, NewTurn, Rows, TaskRow, ToKnow};
use engine::models::{Answer, Block, StopCause, Tokens};

use super::corpus::{Corpus, Place, Session, Speaker, Turn};
use super::score::Hit;

/// How many conversations, or records of knowledge, are written at once.
const AT_ONCE: usize = 200;
/// How long a search may take: longer than any of them does.
const PATIENCE: Duration = Duration::from_mins(1);
/// What is looked through: all of it.
const KINDS: &[MemoryKind] = &[MemoryKind::Knowledge, MemoryKind::Episode, MemoryKind::Message];

/// See the module.
pub(crate) struct Filled {
    brain: Brain,
    messages: HashMap<MessageId, Place>,
    knowledge: HashMap<String, Place>,
    /// Turns by their conversation and their end, of which an episode is told.
    turns: HashMap<(TaskId, i64), (usize, usize)>,
}

/// A conversation as it is written.
struct ToTell {
    task: TaskRow,
    task_id: TaskId,
    began: Timestamp,
    turns: Vec<ToRun>,
}

struct ToRun {
    user_message: MessageId,
    at: Timestamp,
    steps: [Step; 3],
}

impl Filled {
    /// Tells a life to a new brain in `file`.
    pub(crate) async fn new(file: &Path, corpus: &Corpus) -> anyhow::Result<Self> {
        let brain = Brain::open(file)?;
        let (messages, knowledge, turns) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut filled = Self { brain, messages, knowledge, turns };
        let sessions: Vec<(usize, &Session)> = corpus.sessions.iter().enumerate().collect();
        for sessions in sessions.chunks(AT_ONCE) {
            let told = sessions.iter().map(|(number, session)| filled.drafted(*number, session));
            let told: Arc<Vec<ToTell>> = Arc::new(told.collect::<Result<_, _>>()?);
            filled.brain.write(move |rows| told.iter().try_for_each(|told| tell(rows, told))).await?;
        }
        filled.know(corpus).await?;
        Ok(filled)
    }

    fn drafted(&mut self, number: usize, session: &Session) -> anyhow::Result<ToTell> {
        let task_id = TaskId::new(format!("session-{number}"))?;
        let mut turns = Vec::new();
        for (turn, said) in session.turns.iter().enumerate() {
            let at = Timestamp::from_unix_ms(session.turn_ms(turn));
            let (user_message, agent_message) = (MessageId::new(), MessageId::new());
            for (message_id, speaker) in [(user_message, Speaker::User), (agent_message, Speaker::Agent)] {
                self.messages.insert(message_id, Place::Message { session: number, turn, speaker });
            }
            self.turns.insert((task_id.clone(), at.unix_ms()), (number, turn));
            turns.push(ToRun { user_message, at, steps: steps(said, user_message, agent_message) });
        }
        let began = Timestamp::from_unix_ms(session.began_ms);
        Ok(ToTell { task: self.brain.reserve_task(), task_id, began, turns })
    }

    async fn know(&mut self, corpus: &Corpus) -> anyhow::Result<()> {
        let ids: Vec<MemoryId> = corpus.knowledge.iter().map(|_| MemoryId::new()).collect();
        let mut records = Vec::new();
        for (number, (known, id)) in corpus.knowledge.iter().zip(&ids).enumerate() {
            self.knowledge.insert(id.to_string(), Place::Knowledge(number));
            let supersedes = known.supersedes.and_then(|older| ids.get(older).copied());
            let to_know = ToKnow { content: known.content.clone(), tags: Vec::new(), supersedes };
            let record = NewKnowledge { id: *id, to_know, source: Source::Agent };
            records.push((record, Timestamp::from_unix_ms(known.at_ms)));
        }
        for records in records.chunks(AT_ONCE) {
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
    pub(crate) fn search(&self, text: &str, limit: usize) -> anyhow::Result<(Vec<Found>, Duration)> {
        let began = Instant::now();
        let until = began + PATIENCE;
        let query = MemoryQuery { text: text.to_owned(), kinds: KINDS, limit, at_hand: None, until };
        let found = self.brain.search(&query).with_context(|| format!("the search for `{text}`"))?;
        Ok((found, began.elapsed()))
    }

    /// The places of the life that a result shows.
    pub(crate) fn hit(&self, found: &Found) -> Hit {
        let places = match found.kind {
            MemoryKind::Knowledge => self.knowledge.get(&found.id).copied().into_iter().collect(),
            MemoryKind::Message => {
                found.message_ids.iter().filter_map(|id| self.messages.get(id).copied()).collect()
            }
            MemoryKind::Episode => {
                let end = found.task_id.clone().map(|task_id| (task_id, found.created_at.unix_ms()));
                let turn = end.and_then(|end| self.turns.get(&end).copied());
                let both = |(session, turn)| {
                    [Speaker::User, Speaker::Agent].map(|speaker| Place::Message { session, turn, speaker })
                };
                turn.map(both).into_iter().flatten().collect()
            }
        };
        Hit { places, characters: found.content.chars().count(), is_relevant: found.is_relevant }
    }
}

/// A turn that went well: the message, the answer, the end.
fn steps(said: &Turn, user_message: MessageId, agent_message: MessageId) -> [Step; 3] {
    let opened = Opened {
        message_id: user_message,
        notes: Vec::new(),
        message: said.user.clone(),
        media: Vec::new(),
        options: TurnOptions { max_turns: 1, super_thinking: false, direct: true },
        base: Base::End,
    };
    let blocks = vec![Block::Text { text: said.agent.clone(), signature: None }];
    let answer = Answer { blocks, usage: Tokens::default(), stop: StopCause::Done };
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

fn tell(rows: &Rows<'_>, told: &ToTell) -> Result<(), rusqlite::Error> {
    rows.insert_task(told.task, &told.task_id, told.began)?;
    for ToRun { user_message, at, steps } in &told.turns {
        let turn = NewTurn { turn_id: TurnId::new(), message_id: *user_message, request: None };
        rows.insert_turn(told.task, &turn, at.unix_ms(), *at)?;
        for step in steps {
            rows.insert_step(told.task, turn.turn_id, *at, at.unix_ms(), step)?;
        }
    }
    Ok(())
}
