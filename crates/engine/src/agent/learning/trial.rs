//! One stage of a batch after the other: a lesson is drafted, the corrected turn is asked again with it in place and
//! judged, then a turn that has nothing to do with it. Only then is it adopted.

use contract::learning::{Check, Verdict};
use contract::memory::{MemoryKind, Source};
use contract::{FeedbackId, MemoryId, TaskId, TurnId};

use super::ask::{Outcome, Question};
use super::{Learner, prompts};
use crate::agent::attachments::Attachments;
use crate::agent::loading::LoadError;
use crate::agent::rewrite::{rewritten, shortened};
use crate::agent::thread::Thread;
use crate::agent::{AgentError, recall, taught};
use crate::brain::steps::Step;
use crate::brain::{
    Brain, Correction, Draft, Effect, Found, NewLesson, Other, Spent, Stage, StoredStep, TaskRow,
};
use crate::models::{Content, Message, repair};

/// How many lessons a draft is shown of what is known.
const KNOWN: usize = 20;
/// How much of an answer is judged and kept as evidence, in characters.
const MAX_ANSWER: usize = 4_000;
/// Requests that share a beginning. Those that ask a turn again share that of its task.
const CACHE_KEY: &str = "learning";

/// What a stage came to.
pub(super) enum Turned {
    /// The next one, with what comes of this one.
    To(Box<Stage>, Effect),
    /// Nothing, for now: no model gave an answer.
    NotNow,
}

impl Turned {
    fn next(stage: Stage) -> Self {
        Self::To(Box::new(stage), Effect::None)
    }

    /// No lesson comes of a correction.
    fn none_of(feedback_id: FeedbackId) -> Self {
        Self::To(Box::new(Stage::Choosing), Effect::Done(feedback_id))
    }

    /// What it was about is gone.
    fn gone() -> Self {
        Self::next(Stage::Choosing)
    }
}

/// What a stage came to, and what that cost.
type Done = Result<(Turned, Vec<Spent>), AgentError>;

/// A turn as its model was asked for its last answer.
struct Again {
    messages: Vec<Message>,
    /// What the user had said last.
    asked: String,
    /// What the model had answered.
    answered: String,
    /// Whether something in it came from a tool.
    is_tainted: bool,
}

impl Learner {
    /// Does what comes next of a correction.
    pub(super) async fn turn(&self, stage: Stage) -> Done {
        match stage {
            // Nothing is on trial.
            Stage::Choosing => Ok((Turned::gone(), Vec::new())),
            Stage::Drafting { feedback_id } => self.draft(feedback_id).await,
            Stage::Trying(draft) => self.try_corrected(draft).await,
            Stage::Judging { draft, answer } => self.judge_corrected(draft, answer).await,
            Stage::TryingOther { draft, verdict, other } => self.try_other(draft, verdict, other).await,
            Stage::JudgingOther { draft, verdict, other, answer } => {
                self.judge_other(draft, verdict, other, answer).await
            }
        }
    }

    async fn draft(&self, feedback_id: FeedbackId) -> Done {
        let Some((correction, again)) = self.corrected(feedback_id).await? else {
            return Ok((Turned::gone(), Vec::new()));
        };
        let Some(again) = again else { return Ok((Turned::none_of(feedback_id), Vec::new())) };
        let is_tainted = correction.is_tainted || again.is_tainted;
        let about = format!("{} {}", again.asked, correction.text);
        // What is drawn from data is data, and what is not is not shown any.
        let known = self.read(move |brain| brain.known_lessons(is_tainted, &about, KNOWN)).await?;
        let material = prompts::draft(&again.asked, &again.answered, &correction.text, &known);
        let (outcome, spent) = self.ask_for(prompts::DRAFT, material).await?;
        let turned = match outcome {
            Outcome::NotNow => Turned::NotNow,
            Outcome::Never => Turned::none_of(feedback_id),
            Outcome::Answered(answer) => match prompts::drafted(&answer.text(), &known) {
                Some((lesson, merges)) => {
                    Turned::next(Stage::Trying(Draft { feedback_id, lesson, merges, is_tainted }))
                }
                None => Turned::none_of(feedback_id),
            },
        };
        Ok((turned, spent))
    }

    async fn try_corrected(&self, draft: Draft) -> Done {
        let Some((correction, Some(again))) = self.corrected(draft.feedback_id).await? else {
            return Ok((Turned::gone(), Vec::new()));
        };
        let (outcome, spent) = self.ask_again(again, &draft, &correction.task_id).await?;
        let next = |draft, answer| Stage::Judging { draft, answer };
        Ok((answered(outcome, draft, next), spent))
    }

    async fn judge_corrected(&self, draft: Draft, answer: String) -> Done {
        let Some((correction, Some(again))) = self.corrected(draft.feedback_id).await? else {
            return Ok((Turned::gone(), Vec::new()));
        };
        let material = prompts::corrected(&again.asked, &correction.text, &answer);
        let (outcome, spent) = self.ask_for(prompts::JUDGE_CORRECTED, material).await?;
        let (task_id, turn_id) = (correction.task_id.clone(), correction.turn_id);
        let verdict = match outcome {
            Outcome::NotNow => return Ok((Turned::NotNow, spent)),
            outcome => verdict(&outcome, Check::Corrected, (task_id, turn_id), answer),
        };
        if !verdict.passed {
            return Ok((Turned::none_of(draft.feedback_id), spent));
        }
        let about = format!("{} {} {}", again.asked, correction.text, draft.lesson);
        let turned = match self.read(move |brain| brain.unrelated_turn(turn_id, &about)).await? {
            Some(other) => Turned::next(Stage::TryingOther { draft, verdict, other }),
            // It has gone meanwhile.
            None => Turned::gone(),
        };
        Ok((turned, spent))
    }

    async fn try_other(&self, draft: Draft, verdict: Verdict, other: Other) -> Done {
        let Some(again) = self.again(&other.task_id, other.turn_id).await? else {
            return Ok((Turned::gone(), Vec::new()));
        };
        let (outcome, spent) = self.ask_again(again, &draft, &other.task_id).await?;
        let next = |draft, answer| Stage::JudgingOther { draft, verdict, other, answer };
        Ok((answered(outcome, draft, next), spent))
    }

    async fn judge_other(&self, draft: Draft, corrected: Verdict, other: Other, answer: String) -> Done {
        let Other { task_id, turn_id } = other;
        let Some(again) = self.again(&task_id, turn_id).await? else {
            return Ok((Turned::gone(), Vec::new()));
        };
        let id = draft.feedback_id;
        let Some(correction) = self.read(move |brain| brain.correction(id)).await? else {
            return Ok((Turned::gone(), Vec::new()));
        };
        let material = prompts::unharmed(&again.asked, &again.answered, &answer, &draft.lesson);
        let (outcome, spent) = self.ask_for(prompts::JUDGE_UNHARMED, material).await?;
        let unharmed = match outcome {
            Outcome::NotNow => return Ok((Turned::NotNow, spent)),
            outcome => verdict(&outcome, Check::Unharmed, (task_id, turn_id), answer),
        };
        let turned = if unharmed.passed {
            adopt(draft, correction, vec![corrected, unharmed])
        } else {
            Turned::none_of(draft.feedback_id)
        };
        Ok((turned, spent))
    }

    /// A correction and the turn that it is about; no correction where it is in force no longer, and no turn where that
    /// cannot be read.
    async fn corrected(
        &self,
        feedback_id: FeedbackId,
    ) -> Result<Option<(Correction, Option<Again>)>, AgentError> {
        let Some(correction) = self.read(move |brain| brain.correction(feedback_id)).await? else {
            return Ok(None);
        };
        let again = self.again(&correction.task_id, correction.turn_id).await?;
        Ok(Some((correction, again)))
    }

    /// A turn as it can be asked again; none where it is gone or cannot be read.
    async fn again(&self, task_id: &TaskId, turn_id: TurnId) -> Result<Option<Again>, AgentError> {
        let Some(task) = self.brain.task(task_id)? else { return Ok(None) };
        let read = move |brain: &Brain| Again::read(brain, task.row, turn_id);
        match self.brain.blocking(read).await.ok_or(AgentError::Stopping)? {
            Ok(again) => Ok(again),
            Err(LoadError::Read(error)) => Err(error.into()),
            Err(LoadError::NotOpened(error)) => {
                tracing::warn!(%error, "A turn cannot be learned from.");
                Ok(None)
            }
        }
    }

    /// Asks for a draft or a verdict.
    async fn ask_for(&self, system: &str, material: String) -> Result<(Outcome, Vec<Spent>), AgentError> {
        let messages = [Message::user(material)];
        let question = Question { system, messages: &messages, tools: &[], cache_key: CACHE_KEY };
        Ok(self.ask(&question).await?)
    }

    /// Asks a turn again for its last answer, with a lesson in place. No tool is run.
    async fn ask_again(
        &self,
        again: Again,
        draft: &Draft,
        task_id: &TaskId,
    ) -> Result<(Outcome, Vec<Spent>), AgentError> {
        let kit = self.means.kits.current();
        let offer = kit.toolbox.offer(self.means.gateway.window());
        let messages = again.with(self.in_place(draft));
        let repaired = repair(&messages);
        let messages = repaired.as_ref().map_or(&messages[..], |repaired| &repaired.messages);
        let attached = Attachments::of(messages).load(self.brain.clone(), self.means.memory.clone()).await?;
        let messages = attached.put_into(messages);
        let question = Question {
            system: &kit.soul,
            messages: &offer.sent(&messages),
            tools: offer.specs(),
            cache_key: task_id.as_str(),
        };
        Ok(self.ask(&question).await?)
    }

    /// What a model is told of a lesson, as it will be once that is adopted.
    fn in_place(&self, draft: &Draft) -> Option<String> {
        let source = if draft.is_tainted { Source::Tool } else { Source::Learned };
        let lesson = [Found {
            kind: MemoryKind::Knowledge,
            id: String::new(),
            content: draft.lesson.clone(),
            excerpt: draft.lesson.clone(),
            source: Some(source),
            tags: Vec::new(),
            created_at: self.means.clock.now(),
            task_id: None,
            message_ids: Vec::new(),
            score: 0.0,
            is_relevant: true,
        }];
        if draft.is_tainted { recall::note(&lesson) } else { taught::note(&lesson) }
    }
}

impl Again {
    fn read(brain: &Brain, task: TaskRow, turn_id: TurnId) -> Result<Option<Self>, LoadError> {
        let mut steps = brain.steps(task)?;
        let is_of_turn = |stored: &StoredStep| stored.turn_id == turn_id;
        let last = |wanted: fn(&Step) -> bool| {
            steps.iter().rposition(|stored| is_of_turn(stored) && wanted(&stored.step))
        };
        // A turn that failed before its first answer is asked for that.
        let answered = last(|step| matches!(step, Step::Answered { .. }));
        let Some(at) = answered.or_else(|| last(|step| matches!(step, Step::Ended { .. }))) else {
            return Ok(None);
        };
        let text = match steps.get(at).map(|stored| &stored.step) {
            Some(Step::Answered { answer, .. }) => answer.text(),
            _ => String::new(),
        };
        steps.truncate(at);
        let Some(thread) = Thread::last(steps)? else { return Ok(None) };
        let asked = thread.messages().iter().rev().find_map(said);
        Ok(Some(Self {
            asked: asked.unwrap_or_default(),
            answered: text,
            is_tainted: thread.branch().source() == Source::Tool,
            messages: thread.messages().to_vec(),
        }))
    }

    /// The conversation with `note` beside what the user said last. Reasoning is left out: it is bound to what came
    /// before it, and that has changed.
    fn with(self, note: Option<String>) -> Vec<Message> {
        let mut messages: Vec<Message> =
            self.messages.iter().map(|message| rewritten(message, true, |_| None)).collect();
        let users = messages.iter_mut().rev().find_map(|message| match message {
            Message::User { content } => Some(content),
            Message::Assistant { .. } | Message::Results(_) => None,
        });
        if let (Some(content), Some(text)) = (users, note) {
            content.insert(0, Content::Note { text });
        }
        messages
    }
}

/// What the user said in a message.
fn said(message: &Message) -> Option<String> {
    match message {
        Message::User { content } => Some(Content::text_of(content)),
        Message::Assistant { .. } | Message::Results(_) => None,
    }
}

/// What comes once a turn was asked again: the next stage with what it answered.
fn answered(outcome: Outcome, draft: Draft, next: impl FnOnce(Draft, String) -> Stage) -> Turned {
    match outcome {
        Outcome::NotNow => Turned::NotNow,
        Outcome::Answered(answer) if !answer.text().trim().is_empty() => {
            Turned::next(next(draft, shortened(&answer.text(), MAX_ANSWER)))
        }
        Outcome::Answered(_) | Outcome::Never => Turned::none_of(draft.feedback_id),
    }
}

/// What was judged of an answer.
fn verdict(outcome: &Outcome, check: Check, turn: (TaskId, TurnId), answer: String) -> Verdict {
    let (passed, reason) = match outcome {
        Outcome::Answered(judge) => prompts::judged(&judge.text()),
        Outcome::Never | Outcome::NotNow => (false, "the judge declined".to_owned()),
    };
    let (task_id, turn_id) = turn;
    Verdict { check, task_id, turn_id, answer, passed, reason }
}

fn adopt(draft: Draft, correction: Correction, verdicts: Vec<Verdict>) -> Turned {
    let Draft { lesson: content, merges, is_tainted, .. } = draft;
    let lesson = NewLesson { id: MemoryId::new(), content, correction, merges, is_tainted, verdicts };
    Turned::To(Box::new(Stage::Choosing), Effect::Adopt(Box::new(lesson)))
}
