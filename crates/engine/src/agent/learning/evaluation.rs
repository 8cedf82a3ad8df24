//! The stages of a batch for one correction: a lesson is drafted, then the corrected turn is replayed with the
//! lesson and judged, then an unrelated turn. The lesson is adopted only if it passes both.

use api::learning::{Check, Verdict};
use api::memory::{MemoryKind, Source};
use api::{FeedbackId, MemoryId, TaskId, TurnId};
use llm::{Content, Message, repair};
use store::steps::Step;
use store::{
    BatchEffect, BatchStage, Brain, CallUsage, Correction, LessonDraft, NewLesson, SearchHit, StoredStep,
    TaskRow, UnrelatedTurn,
};

use super::model_call::{CallOutcome, ModelQuery};
use super::{Learner, prompts};
use crate::agent::attachments::Attachments;
use crate::agent::compaction_view::{rewrite_message, truncate_middle};
use crate::agent::journal_fold::fold_journal;
use crate::agent::thread_loader::LoadError;
use crate::agent::{AgentError, corrections_note, recall};

/// The most known lessons that a draft request includes.
const MAX_KNOWN_LESSONS: usize = 20;
/// The length of an answer that is judged and kept as evidence, in characters.
const MAX_ANSWER_CHARS: usize = 4_000;
/// The cache key of requests that share their prefix. Requests that replay a turn use the key of its task.
const CACHE_KEY: &str = "learning";

/// The outcome of a stage.
pub(super) enum StageOutcome {
    /// The stage that follows, and the effect of the finished one.
    Next(Box<BatchStage>, BatchEffect),
    /// No model answered; the stage is tried again.
    Retry,
}

impl StageOutcome {
    fn advance(stage: BatchStage) -> Self {
        Self::Next(Box::new(stage), BatchEffect::None)
    }

    /// The correction yields no lesson.
    fn no_lesson(feedback_id: FeedbackId) -> Self {
        Self::Next(Box::new(BatchStage::Choosing), BatchEffect::NoLesson(feedback_id))
    }

    /// The correction or the turn has been deleted.
    fn subject_deleted() -> Self {
        Self::advance(BatchStage::Choosing)
    }
}

/// The outcome of a stage and its model usage.
type StageResult = Result<(StageOutcome, Vec<CallUsage>), AgentError>;

/// A turn as its model was called for its last answer.
struct ReplayedTurn {
    messages: Vec<Message>,
    /// The user's last message.
    question: String,
    /// The model's answer.
    answer: String,
    /// Whether any of it came from a tool.
    is_tainted: bool,
}

impl Learner {
    /// Runs one stage for a correction.
    pub(super) async fn run_stage(&self, stage: BatchStage) -> StageResult {
        match stage {
            // No lesson is being evaluated.
            BatchStage::Choosing => Ok((StageOutcome::subject_deleted(), Vec::new())),
            BatchStage::Drafting { feedback_id } => self.draft_lesson(feedback_id).await,
            BatchStage::Trying(draft) => self.replay_corrected(draft).await,
            BatchStage::Judging { draft, answer } => self.judge_corrected(draft, answer).await,
            BatchStage::TryingOther { draft, verdict, other } => {
                self.replay_unrelated(draft, verdict, other).await
            }
            BatchStage::JudgingOther { draft, verdict, other, answer } => {
                self.judge_unrelated(draft, verdict, other, answer).await
            }
        }
    }

    async fn draft_lesson(&self, feedback_id: FeedbackId) -> StageResult {
        let Some((correction, replayed)) = self.load_correction(feedback_id).await? else {
            return Ok((StageOutcome::subject_deleted(), Vec::new()));
        };
        let Some(replayed) = replayed else { return Ok((StageOutcome::no_lesson(feedback_id), Vec::new())) };
        let is_tainted = correction.is_tainted || replayed.is_tainted;
        let about = format!("{} {}", replayed.question, correction.text);
        // A lesson drawn from data counts as data, and a lesson that is not must not be shown any.
        let known_lessons =
            self.read(move |brain| brain.relevant_lessons(is_tainted, &about, MAX_KNOWN_LESSONS)).await?;
        let input =
            prompts::draft_input(&replayed.question, &replayed.answer, &correction.text, &known_lessons);
        let (outcome, usage) = self.call_with_prompt(prompts::DRAFT_PROMPT, input).await?;
        let stage_outcome = match outcome {
            CallOutcome::Unavailable => StageOutcome::Retry,
            CallOutcome::Declined => StageOutcome::no_lesson(feedback_id),
            CallOutcome::Answered(answer) => match prompts::parse_draft(&answer.text(), &known_lessons) {
                Some((lesson, merges)) => StageOutcome::advance(BatchStage::Trying(LessonDraft {
                    feedback_id,
                    lesson,
                    merges,
                    is_tainted,
                })),
                None => StageOutcome::no_lesson(feedback_id),
            },
        };
        Ok((stage_outcome, usage))
    }

    async fn replay_corrected(&self, draft: LessonDraft) -> StageResult {
        let Some((correction, Some(replayed))) = self.load_correction(draft.feedback_id).await? else {
            return Ok((StageOutcome::subject_deleted(), Vec::new()));
        };
        let (outcome, usage) = self.replay_turn(replayed, &draft, &correction.task_id).await?;
        let next = |draft, answer| BatchStage::Judging { draft, answer };
        Ok((after_replay(outcome, draft, next), usage))
    }

    async fn judge_corrected(&self, draft: LessonDraft, answer: String) -> StageResult {
        let Some((correction, Some(replayed))) = self.load_correction(draft.feedback_id).await? else {
            return Ok((StageOutcome::subject_deleted(), Vec::new()));
        };
        let input = prompts::judge_corrected_input(&replayed.question, &correction.text, &answer);
        let (outcome, usage) = self.call_with_prompt(prompts::JUDGE_CORRECTED_PROMPT, input).await?;
        let (task_id, turn_id) = (correction.task_id.clone(), correction.turn_id);
        let verdict = match outcome {
            CallOutcome::Unavailable => return Ok((StageOutcome::Retry, usage)),
            outcome => build_verdict(&outcome, Check::Corrected, (task_id, turn_id), answer),
        };
        if !verdict.passed {
            return Ok((StageOutcome::no_lesson(draft.feedback_id), usage));
        }
        let about = format!("{} {} {}", replayed.question, correction.text, draft.lesson);
        let stage_outcome = match self.read(move |brain| brain.unrelated_turn(turn_id, &about)).await? {
            Some(other) => StageOutcome::advance(BatchStage::TryingOther { draft, verdict, other }),
            // The unrelated turn was deleted meanwhile.
            None => StageOutcome::subject_deleted(),
        };
        Ok((stage_outcome, usage))
    }

    async fn replay_unrelated(
        &self,
        draft: LessonDraft,
        verdict: Verdict,
        other: UnrelatedTurn,
    ) -> StageResult {
        let Some(replayed) = self.load_turn(&other.task_id, other.turn_id).await? else {
            return Ok((StageOutcome::subject_deleted(), Vec::new()));
        };
        let (outcome, usage) = self.replay_turn(replayed, &draft, &other.task_id).await?;
        let next = |draft, answer| BatchStage::JudgingOther { draft, verdict, other, answer };
        Ok((after_replay(outcome, draft, next), usage))
    }

    async fn judge_unrelated(
        &self,
        draft: LessonDraft,
        corrected: Verdict,
        other: UnrelatedTurn,
        answer: String,
    ) -> StageResult {
        let UnrelatedTurn { task_id, turn_id } = other;
        let Some(replayed) = self.load_turn(&task_id, turn_id).await? else {
            return Ok((StageOutcome::subject_deleted(), Vec::new()));
        };
        let id = draft.feedback_id;
        let Some(correction) = self.read(move |brain| brain.correction(id)).await? else {
            return Ok((StageOutcome::subject_deleted(), Vec::new()));
        };
        let input =
            prompts::judge_unharmed_input(&replayed.question, &replayed.answer, &answer, &draft.lesson);
        let (outcome, usage) = self.call_with_prompt(prompts::JUDGE_UNHARMED_PROMPT, input).await?;
        let unharmed = match outcome {
            CallOutcome::Unavailable => return Ok((StageOutcome::Retry, usage)),
            outcome => build_verdict(&outcome, Check::Unharmed, (task_id, turn_id), answer),
        };
        let stage_outcome = if unharmed.passed {
            adopt(draft, correction, vec![corrected, unharmed])
        } else {
            StageOutcome::no_lesson(draft.feedback_id)
        };
        Ok((stage_outcome, usage))
    }

    /// Loads a correction and its turn. There is no correction if it is no longer in effect, and no turn if
    /// that cannot be read.
    async fn load_correction(
        &self,
        feedback_id: FeedbackId,
    ) -> Result<Option<(Correction, Option<ReplayedTurn>)>, AgentError> {
        let Some(correction) = self.read(move |brain| brain.correction(feedback_id)).await? else {
            return Ok(None);
        };
        let replayed = self.load_turn(&correction.task_id, correction.turn_id).await?;
        Ok(Some((correction, replayed)))
    }

    /// Loads a turn for replay; `None` if it was deleted or cannot be read.
    async fn load_turn(&self, task_id: &TaskId, turn_id: TurnId) -> Result<Option<ReplayedTurn>, AgentError> {
        let Some(task) = self.brain.task(task_id)? else { return Ok(None) };
        let read = move |brain: &Brain| ReplayedTurn::load(brain, task.row, turn_id);
        match self.brain.run_blocking(read).await.ok_or(AgentError::Stopping)? {
            Ok(replayed) => Ok(replayed),
            Err(LoadError::Read(error)) => Err(error.into()),
            Err(LoadError::MissingOpening(error)) => {
                tracing::warn!(%error, "A turn's journal could not be read; no lesson is learned from it.");
                Ok(None)
            }
        }
    }

    /// Calls a model for a draft or a verdict.
    async fn call_with_prompt(
        &self,
        system: &str,
        input: String,
    ) -> Result<(CallOutcome, Vec<CallUsage>), AgentError> {
        let messages = [Message::user(input)];
        let query = ModelQuery { system, messages: &messages, tools: &[], cache_key: CACHE_KEY };
        Ok(self.call_model(&query).await?)
    }

    /// Calls a model again for a turn's last answer, with the lesson in its prompt. No tool is run.
    async fn replay_turn(
        &self,
        replayed: ReplayedTurn,
        draft: &LessonDraft,
        task_id: &TaskId,
    ) -> Result<(CallOutcome, Vec<CallUsage>), AgentError> {
        let snapshot = self.services.snapshots.current();
        let tool_set = snapshot.toolbox.exposed_tools(self.services.gateway.context_window());
        let messages = replayed.with_note(self.lesson_note(draft));
        let repaired = repair(&messages);
        let messages = repaired.as_ref().map_or(&messages[..], |repaired| &repaired.messages);
        let attachments = Attachments::in_messages(messages)
            .load(self.brain.clone(), self.services.memory_budget.clone())
            .await?;
        let messages = attachments.insert_into(messages);
        let query = ModelQuery {
            system: &snapshot.soul,
            messages: &tool_set.messages_to_wire(&messages),
            tools: tool_set.declarations(),
            cache_key: task_id.as_str(),
        };
        Ok(self.call_model(&query).await?)
    }

    /// The note about the lesson, as the model will receive it once the lesson is adopted.
    fn lesson_note(&self, draft: &LessonDraft) -> Option<String> {
        let source = if draft.is_tainted { Source::Tool } else { Source::Learned };
        let lesson = [SearchHit {
            kind: MemoryKind::Knowledge,
            id: String::new(),
            content: draft.lesson.clone(),
            excerpt: draft.lesson.clone(),
            source: Some(source),
            tags: Vec::new(),
            created_at: self.services.clock.now(),
            task_id: None,
            message_ids: Vec::new(),
            excerpt_ids: Vec::new(),
            score: 0.0,
            is_relevant: true,
        }];
        if draft.is_tainted { recall::note(&lesson) } else { corrections_note::note(&lesson) }
    }
}

impl ReplayedTurn {
    fn load(brain: &Brain, task: TaskRow, turn_id: TurnId) -> Result<Option<Self>, LoadError> {
        let mut steps = brain.steps(task)?;
        let is_of_turn = |stored: &StoredStep| stored.turn_id == turn_id;
        let last = |matches_kind: fn(&Step) -> bool| {
            steps.iter().rposition(|stored| is_of_turn(stored) && matches_kind(&stored.step))
        };
        // A turn that failed before its first answer is replayed to get one.
        let answered = last(|step| matches!(step, Step::Answered { .. }));
        let Some(at) = answered.or_else(|| last(|step| matches!(step, Step::Ended { .. }))) else {
            return Ok(None);
        };
        let text = match steps.get(at).map(|stored| &stored.step) {
            Some(Step::Answered { answer, .. }) => answer.text(),
            _ => String::new(),
        };
        steps.truncate(at);
        let Some(thread) = fold_journal(steps)? else { return Ok(None) };
        let question = thread.messages().iter().rev().find_map(user_text);
        Ok(Some(Self {
            question: question.unwrap_or_default(),
            answer: text,
            is_tainted: thread.branch().memory_source() == Source::Tool,
            messages: thread.messages().to_vec(),
        }))
    }

    /// The conversation with `note` added to the user's last message. Reasoning is omitted: it is bound to what
    /// came before it, and that has changed.
    fn with_note(self, note: Option<String>) -> Vec<Message> {
        let mut messages: Vec<Message> =
            self.messages.iter().map(|message| rewrite_message(message, true, |_| None)).collect();
        let last_user_content = messages.iter_mut().rev().find_map(|message| match message {
            Message::User { content } => Some(content),
            Message::Assistant { .. } | Message::Results(_) => None,
        });
        if let (Some(content), Some(text)) = (last_user_content, note) {
            content.insert(0, Content::Note { text });
        }
        messages
    }
}

/// The text of a user's message.
fn user_text(message: &Message) -> Option<String> {
    match message {
        Message::User { content } => Some(Content::text_of(content)),
        Message::Assistant { .. } | Message::Results(_) => None,
    }
}

/// The stage after a replay, which judges the new answer.
fn after_replay(
    outcome: CallOutcome,
    draft: LessonDraft,
    next: impl FnOnce(LessonDraft, String) -> BatchStage,
) -> StageOutcome {
    match outcome {
        CallOutcome::Unavailable => StageOutcome::Retry,
        CallOutcome::Answered(answer) if !answer.text().trim().is_empty() => {
            StageOutcome::advance(next(draft, truncate_middle(&answer.text(), MAX_ANSWER_CHARS)))
        }
        CallOutcome::Answered(_) | CallOutcome::Declined => StageOutcome::no_lesson(draft.feedback_id),
    }
}

/// Builds the verdict on an answer from the judge's reply.
fn build_verdict(outcome: &CallOutcome, check: Check, turn: (TaskId, TurnId), answer: String) -> Verdict {
    let (passed, reason) = match outcome {
        CallOutcome::Answered(judge) => prompts::parse_verdict(&judge.text()),
        CallOutcome::Declined | CallOutcome::Unavailable => (false, "the judge declined".to_owned()),
    };
    let (task_id, turn_id) = turn;
    Verdict { check, task_id, turn_id, answer, passed, reason }
}

fn adopt(draft: LessonDraft, correction: Correction, verdicts: Vec<Verdict>) -> StageOutcome {
    let LessonDraft { lesson: content, merges, is_tainted, .. } = draft;
    let lesson = NewLesson { id: MemoryId::new(), content, correction, merges, is_tainted, verdicts };
    StageOutcome::Next(Box::new(BatchStage::Choosing), BatchEffect::Adopt(Box::new(lesson)))
}
