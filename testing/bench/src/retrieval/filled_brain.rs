//! A brain filled with a conversation by the engine's own code, as if every turn had been run.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::event::StopReason;
use api::memory::Source;
use api::{MessageId, TaskId, Timestamp, TurnId};
use llm::{Answer, Block, FinishReason, TokenUsage};
use store::steps::{Opened, Step, TurnBase, TurnOptions, TurnOutcome};
use store::{Brain, MemoryQuery, NewTurn, SearchHit, SearchScope, StoreError, TaskRow, WriteTx};

use super::conversations::{Conversation, MessageNumber, Session, Speaker};
use super::score::Hit;

/// The number of sessions per write transaction.
const WRITE_BATCH_SIZE: usize = 200;
/// The deadline of a search, longer than any takes.
const SEARCH_TIMEOUT: Duration = Duration::from_mins(1);
const TURN_DURATION_MS: i64 = 60_000;

/// A filled brain, with the numbers of its messages.
pub(crate) struct FilledBrain {
    pub(crate) brain: Brain,
    messages: HashMap<MessageId, MessageNumber>,
}

/// A session that is ready to be written.
struct PendingSession {
    task: TaskRow,
    task_id: TaskId,
    began: Timestamp,
    turns: Vec<PendingTurn>,
}

/// A turn that is ready to be written.
pub(crate) struct PendingTurn {
    turn: NewTurn,
    at: Timestamp,
    steps: [Step; 3],
}

impl FilledBrain {
    /// Stores a conversation in a new brain in `file`.
    pub(crate) async fn new(file: &Path, conversation: &Conversation) -> anyhow::Result<Self> {
        let mut filled = Self { brain: Brain::open(file)?, messages: HashMap::new() };
        let sessions: Vec<(usize, &Session)> = conversation.sessions.iter().enumerate().collect();
        for sessions in sessions.chunks(WRITE_BATCH_SIZE) {
            let mut pending = Vec::new();
            for (number, session) in sessions {
                pending.push(filled.prepare(*number, session, conversation)?);
            }
            let pending = Arc::new(pending);
            let write = move |tx: &WriteTx<'_>| pending.iter().try_for_each(|session| session.write(tx));
            filled.brain.write(write).await?;
        }
        Ok(filled)
    }

    fn prepare(
        &mut self,
        number: usize,
        session: &Session,
        conversation: &Conversation,
    ) -> anyhow::Result<PendingSession> {
        let mut turns: Vec<PendingTurn> = Vec::new();
        let mut messages = session
            .messages
            .clone()
            .zip(conversation.messages.get(session.messages.clone()).unwrap_or_default());
        let mut next = messages.next();
        let mut at_ms = session.began_ms;
        while next.is_some() {
            // A speaker may say several things in a row: then the other side of the turn is empty, which is
            // no message.
            let texts = [Speaker::User, Speaker::Agent].map(|speaker| {
                let (number, message) = next.filter(|(_, message)| message.speaker == speaker)?;
                next = messages.next();
                Some((number, message.text.clone()))
            });
            let ids = [MessageId::new(), MessageId::new()];
            let numbers = texts.iter().map(|text| text.as_ref().map(|(number, _)| *number));
            self.messages.extend(ids.into_iter().zip(numbers).filter_map(|(id, number)| Some((id, number?))));
            let texts = texts.map(|text| text.map(|(_, text)| text).unwrap_or_default());
            turns.push(PendingTurn::new(ids, texts, Timestamp::from_unix_ms(at_ms)));
            at_ms += TURN_DURATION_MS;
        }
        Ok(PendingSession {
            task: self.brain.reserve_task(),
            task_id: TaskId::new(format!("session-{number}"))?,
            began: Timestamp::from_unix_ms(session.began_ms),
            turns,
        })
    }

    /// Searches all of memory, as the tool `memory_search` does.
    pub(crate) fn search(&self, text: &str, limit: usize) -> anyhow::Result<(Vec<Hit>, Duration)> {
        let (found, took) = search(&self.brain, text, limit)?;
        let numbers = |ids: &[MessageId]| -> Vec<MessageNumber> {
            ids.iter().filter_map(|id| self.messages.get(id).copied()).collect()
        };
        let hit = |found: SearchHit| Hit {
            messages: numbers(&found.message_ids),
            told: found.is_relevant.then(|| numbers(&found.excerpt_ids)),
            task: found.task_id,
        };
        Ok((found.into_iter().map(hit).collect(), took))
    }
}

/// Searches a brain, and says how long that took, with the texts of the results.
pub(crate) fn search(brain: &Brain, text: &str, limit: usize) -> anyhow::Result<(Vec<SearchHit>, Duration)> {
    let began = Instant::now();
    let deadline = began + SEARCH_TIMEOUT;
    let (text, scope) = (text.to_owned(), SearchScope::Everything);
    let query = MemoryQuery { text, scope, offset: 0, limit, conversation: None, deadline };
    let found = brain.search(&query).with_context(|| format!("the search for `{}`", query.text))?;
    Ok((found, began.elapsed()))
}

impl PendingTurn {
    /// A completed turn: the user's message, the answer, the end.
    pub(crate) fn new(
        [user_message, agent_message]: [MessageId; 2],
        [question, answer]: [String; 2],
        at: Timestamp,
    ) -> Self {
        let opened = Opened {
            message_id: user_message,
            notes: Vec::new(),
            notes_source: Source::Agent.into(),
            recall_at: None,
            message: question,
            media: Vec::new(),
            options: TurnOptions { max_turns: 1, super_thinking: false, direct: true, overrides: None },
            base: TurnBase::End,
            prompt: None,
            traceparent: None,
        };
        let blocks = vec![Block::Text { text: answer, signature: None }];
        let answered = Step::Answered {
            message_id: agent_message,
            model: "none".into(),
            answer: Answer { blocks, usage: TokenUsage::default(), stop: FinishReason::Done },
            cost_usd: None,
            capped: false,
        };
        let outcome = TurnOutcome::Completed { stop_reason: StopReason::EndTurn };
        let turn = NewTurn { turn_id: TurnId::new(), message_id: user_message, request: None };
        Self { turn, at, steps: [Step::Opened(opened), answered, Step::Ended { outcome }] }
    }

    /// Begins the turn and writes its first two steps.
    pub(crate) fn write_messages(&self, tx: &WriteTx<'_>, task: TaskRow) -> Result<(), StoreError> {
        let [opened, answered, _] = &self.steps;
        tx.insert_turn(task, &self.turn, self.at.unix_ms(), self.at)?;
        self.write_step(tx, task, opened)?;
        self.write_step(tx, task, answered)
    }

    /// Ends the turn, with which memory takes it in.
    pub(crate) fn write_end(&self, tx: &WriteTx<'_>, task: TaskRow) -> Result<(), StoreError> {
        let [.., ended] = &self.steps;
        self.write_step(tx, task, ended)
    }

    fn write_step(&self, tx: &WriteTx<'_>, task: TaskRow, step: &Step) -> Result<(), StoreError> {
        tx.insert_step(task, self.turn.turn_id, self.at, self.at.unix_ms(), step)?;
        Ok(())
    }
}

impl PendingSession {
    fn write(&self, tx: &WriteTx<'_>) -> Result<(), StoreError> {
        tx.insert_task(self.task, &self.task_id, self.began)?;
        self.turns.iter().try_for_each(|turn| {
            turn.write_messages(tx, self.task)?;
            turn.write_end(tx, self.task)
        })
    }
}
