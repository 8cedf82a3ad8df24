//! Learning: batches read the user's feedback on turns and draw lessons from corrections.
//!
//! A batch is a state machine stored in the brain ([`BatchProgress`]). Each stage makes at most one model call
//! and commits its result once, so an interrupted batch continues where it was. Turns have priority: no stage
//! begins while one is running.

mod evaluation;
mod model_call;
mod prompts;

use std::sync::Arc;
use std::time::Duration;

use api::learning::{
    BatchStarted, Feedback, FeedbackRecorded, FeedbackType, Lessons, MAX_FEEDBACK, RecordedStatus,
    StartedStatus,
};
use api::memory::ListMemory;
use api::{BatchId, FeedbackId, MemoryId};
use evaluation::StageOutcome;
use store::{BatchEffect, BatchProgress, BatchStage, Brain, CallUsage, FeedbackContent};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::memory::page;
use super::turn_registry::TurnRegistry;
use super::{Agent, AgentError, Services};

/// The most corrections that one batch processes. The others wait for the next batch.
const MAX_CORRECTIONS: u32 = 20;
/// How many times a stage may find no answering model before the batch ends; the next batch continues with its
/// correction.
const MAX_FAILURES: u32 = 5;
/// How many starts of the engine may resume a batch at one stage before its correction is skipped.
const MAX_STARTS: u32 = 5;
/// The first delay after no model answered. Each further delay is four times as long.
const FIRST_RETRY_DELAY: Duration = Duration::from_mins(1);
/// The longest interval between two checks for a due batch.
const MAX_TICK_INTERVAL: Duration = Duration::from_hours(1);
/// The delay while the engine is quiesced or its turns are running.
const BUSY_RETRY_DELAY: Duration = Duration::from_mins(1);

/// The background task that learns. Clones share its state.
#[derive(Clone)]
pub(super) struct Learner {
    brain: Brain,
    services: Arc<Services>,
    registry: TurnRegistry,
    stopping: CancellationToken,
    /// Notified when a batch is requested.
    wake: Arc<Notify>,
}

/// What happens next in the current batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchStatus {
    /// The next stage runs.
    Continue,
    /// The stage is retried after a delay.
    Wait(Duration),
    /// There is no batch.
    Idle,
}

/// RAII guard: a batch counts as active while this is held.
struct LearningGuard<'a>(&'a TurnRegistry);

impl Drop for LearningGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().end_learning();
    }
}

impl Agent {
    /// Records the user's feedback on the newest turn of a task. A correction takes effect at once.
    pub async fn give_feedback(&self, feedback: Feedback) -> Result<FeedbackRecorded, AgentError> {
        let content = parse_feedback(&feedback)?;
        let task = self.brain.task(&feedback.task_id)?.ok_or(AgentError::UnknownTask)?.row;
        let (feedback_id, at) = (FeedbackId::new(), self.services.clock.now());
        let insert = self.brain.write(move |rows| rows.insert_feedback(feedback_id, task, &content, at));
        if !insert.await? {
            return Err(AgentError::UnknownTask);
        }
        Ok(FeedbackRecorded { status: RecordedStatus::Recorded, feedback_id })
    }

    /// Begins a learning batch, or returns the current one.
    pub async fn start_batch(&self) -> Result<BatchStarted, AgentError> {
        let learner = self.learner.clone();
        // Runs to completion even if the caller disconnects.
        let begun = self.tracker.spawn(async move { learner.begin_batch().await });
        let (batch_id, BatchProgress { trajectory_count, .. }) =
            begun.await.unwrap_or(Err(AgentError::Stopping))?;
        Ok(BatchStarted { status: StartedStatus::Started, batch_id, trajectory_count })
    }

    /// A page of the current lessons, newest first.
    pub async fn lessons(&self, list: ListMemory) -> Result<Lessons, AgentError> {
        let (limit, offset) = page(list);
        self.read(move |brain| Ok(Lessons { lessons: brain.lessons(limit, offset)? })).await
    }

    /// Undoes a lesson. Any string is accepted as its id.
    pub async fn undo_lesson(&self, id: &str) -> Result<(), AgentError> {
        let undone = match id.parse::<MemoryId>() {
            Ok(id) => self.delete_and_erase(move |rows| rows.undo_lesson(id)).await?,
            Err(_) => false,
        };
        let unknown = || "there is no such active lesson; GET /memory/lessons lists the lessons".to_owned();
        undone.then_some(()).ok_or_else(|| AgentError::UnknownRecord(unknown()))
    }
}

/// Validates feedback.
fn parse_feedback(feedback: &Feedback) -> Result<FeedbackContent, AgentError> {
    let Feedback { feedback_type, correction_text, rating, comment, .. } = feedback;
    let invalid = |message: String| Err(AgentError::Invalid(message));
    match feedback_type {
        FeedbackType::Correction => match correction_text {
            Some(text) if !text.trim().is_empty() && text.len() <= MAX_FEEDBACK => {
                Ok(FeedbackContent::Correction { text: text.clone(), record: MemoryId::new() })
            }
            _ => invalid(format!(
                "`correction_text`: must be 1 to {MAX_FEEDBACK} bytes of text that is not blank: the right answer"
            )),
        },
        FeedbackType::Rating => {
            Ok(FeedbackContent::Rating { rating: rating.map(api::serde_helpers::BoundedInt::get) })
        }
        FeedbackType::ErrorReport if comment.as_ref().is_some_and(|text| text.len() > MAX_FEEDBACK) => {
            invalid(format!("`comment`: must be at most {MAX_FEEDBACK} bytes long"))
        }
        FeedbackType::ErrorReport => Ok(FeedbackContent::ErrorReport { comment: comment.clone() }),
    }
}

impl Learner {
    pub(super) fn new(
        brain: Brain,
        services: Arc<Services>,
        registry: TurnRegistry,
        stopping: CancellationToken,
    ) -> Self {
        Self { brain, services, registry, stopping, wake: Arc::default() }
    }

    /// Counts a batch that an earlier run of the engine left unfinished as active.
    pub(super) fn mark_unfinished_batch(&self) -> Result<(), store::StoreError> {
        if self.brain.active_batch()?.is_some() {
            // An engine that has just started is not quiesced.
            self.registry.lock().begin_learning(self.services.clock.monotonic()).ok();
        }
        Ok(())
    }

    /// Learns until the engine stops.
    pub(super) async fn run(self) {
        if let Err(error) = self.resume_batch().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "A learning batch could not be resumed."
            );
        }
        while !self.stopping.is_cancelled() {
            let pause = match self.tick().await {
                Ok(pause) => pause,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "A step of the learning batch failed and is retried.");
                    BUSY_RETRY_DELAY
                }
            };
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return,
                () = self.wake.notified() => {}
                () = self.services.clock.sleep(pause) => {}
            }
        }
    }

    /// Resumes an interrupted batch. A correction that has repeatedly brought the engine down is skipped.
    async fn resume_batch(&self) -> Result<(), AgentError> {
        let Some((id, mut progress)) = self.brain.active_batch()? else { return Ok(()) };
        progress.starts += 1;
        let mut effect = BatchEffect::None;
        if progress.starts > MAX_STARTS {
            effect = progress.stage.feedback_id().map_or(BatchEffect::End, BatchEffect::NoLesson);
            progress = BatchProgress { stage: BatchStage::Choosing, starts: 0, ..progress };
        }
        self.commit(id, progress, effect, Vec::new()).await
    }

    /// Does what is due. Returns when to check again.
    async fn tick(&self) -> Result<Duration, AgentError> {
        if self.brain.active_batch()?.is_none() {
            match self.due_in().await? {
                Some(due_in) if !due_in.is_zero() => return Ok(due_in.min(MAX_TICK_INTERVAL)),
                Some(_) => {
                    self.wait_idle().await;
                    match self.begin_batch().await {
                        Ok(_) => {}
                        Err(AgentError::Quiesced | AgentError::Stopping) => return Ok(BUSY_RETRY_DELAY),
                        Err(error) => return Err(error),
                    }
                }
                None => {
                    return Ok(self
                        .services
                        .batch_interval
                        .unwrap_or(MAX_TICK_INTERVAL)
                        .min(MAX_TICK_INTERVAL));
                }
            }
        }
        if self.registry.lock().begin_learning(self.services.clock.monotonic()).is_err() {
            return Ok(BUSY_RETRY_DELAY);
        }
        let _guard = LearningGuard(&self.registry);
        loop {
            self.wait_idle().await;
            if self.stopping.is_cancelled() {
                return Ok(BUSY_RETRY_DELAY);
            }
            match self.step().await? {
                BatchStatus::Continue => {}
                BatchStatus::Wait(pause) => return Ok(pause),
                BatchStatus::Idle => {
                    return Ok(self
                        .services
                        .batch_interval
                        .unwrap_or(MAX_TICK_INTERVAL)
                        .min(MAX_TICK_INTERVAL));
                }
            }
        }
    }

    /// Waits until no turn is running or the engine stops.
    async fn wait_idle(&self) {
        loop {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return,
                () = self.registry.wait_idle() => return,
                () = self.services.clock.sleep(BUSY_RETRY_DELAY) => {}
            }
        }
    }

    /// The time until a batch is due; `None` if there is no unprocessed feedback, or batches run only on
    /// request.
    async fn due_in(&self) -> Result<Option<Duration>, AgentError> {
        let Some(interval) = self.services.batch_interval else { return Ok(None) };
        let Some(since) = self.read(Brain::unprocessed_since).await? else { return Ok(None) };
        let passed = self.services.clock.now().unix_ms().saturating_sub(since.unix_ms());
        Ok(Some(interval.saturating_sub(Duration::from_millis(u64::try_from(passed).unwrap_or(0)))))
    }

    /// Begins a batch, or returns the current one.
    async fn begin_batch(&self) -> Result<(BatchId, BatchProgress), AgentError> {
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping);
        }
        self.registry.lock().begin_learning(self.services.clock.monotonic())?;
        let (id, now) = (BatchId::new(), self.services.clock.now());
        let begun = self.brain.write(move |rows| rows.begin_batch(id, now)).await;
        if begun.is_err() {
            self.registry.lock().end_learning();
        }
        self.wake.notify_one();
        Ok(begun?)
    }

    /// Runs the next stage of the current batch.
    pub(super) async fn step(&self) -> Result<BatchStatus, AgentError> {
        let Some((id, progress)) = self.brain.active_batch()? else { return Ok(BatchStatus::Idle) };
        if progress.stage == BatchStage::Choosing {
            return self.choose_correction(id, progress).await;
        }
        let (outcome, usage) = self.run_stage(progress.stage.clone()).await?;
        let (progress, effect, status) = match outcome {
            StageOutcome::Next(stage, effect) => (
                BatchProgress { stage: *stage, failures: 0, starts: 0, ..progress },
                effect,
                BatchStatus::Continue,
            ),
            StageOutcome::Retry if progress.failures >= MAX_FAILURES => {
                tracing::warn!(batch_id = %id, "A learning batch ends early because no model answers.");
                (progress, BatchEffect::End, BatchStatus::Idle)
            }
            StageOutcome::Retry => {
                let wait = FIRST_RETRY_DELAY
                    .saturating_mul(4_u32.saturating_pow(progress.failures))
                    .min(MAX_TICK_INTERVAL);
                let failures = progress.failures + 1;
                (
                    BatchProgress { failures, starts: 0, ..progress },
                    BatchEffect::None,
                    BatchStatus::Wait(wait),
                )
            }
        };
        self.commit(id, progress, effect, usage).await?;
        Ok(status)
    }

    /// Selects the next correction, or ends the batch.
    async fn choose_correction(
        &self,
        id: BatchId,
        progress: BatchProgress,
    ) -> Result<BatchStatus, AgentError> {
        let after = progress.after;
        let next = match progress.taken {
            MAX_CORRECTIONS.. => None,
            _ => self.read(move |brain| brain.next_correction(after)).await?,
        };
        let Some((after, feedback_id)) = next else {
            let (turns, corrections, lessons) = (progress.trajectory_count, progress.taken, progress.adopted);
            tracing::info!(batch_id = %id, turns, corrections, lessons, "A learning batch has ended.");
            self.commit(id, progress, BatchEffect::End, Vec::new()).await?;
            return Ok(BatchStatus::Idle);
        };
        let taken = progress.taken + 1;
        let stage = BatchStage::Drafting { feedback_id };
        let progress = BatchProgress { after, taken, stage, failures: 0, starts: 0, ..progress };
        self.commit(id, progress, BatchEffect::None, Vec::new()).await?;
        Ok(BatchStatus::Continue)
    }

    /// Commits the result of a stage. A model's answer has been paid for, so the commit is retried until the
    /// brain can be written or the engine stops.
    async fn commit(
        &self,
        id: BatchId,
        progress: BatchProgress,
        effect: BatchEffect,
        usage: Vec<CallUsage>,
    ) -> Result<(), AgentError> {
        let at = self.services.clock.now();
        let update = Arc::new((progress, effect, usage));
        loop {
            let update = Arc::clone(&update);
            let write = move |rows: &store::WriteTx<'_>| {
                let (progress, effect, usage) = &*update;
                rows.advance_batch(id, progress, effect, usage, at)
            };
            let Err(error) = self.brain.write(write).await else { return Ok(()) };
            tracing::warn!(%error, "The progress of a learning batch could not be stored; the write is retried.");
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return Err(AgentError::Stopping),
                () = self.services.clock.sleep(BUSY_RETRY_DELAY) => {}
            }
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Brain) -> Result<T, store::StoreError> + Send + 'static,
    ) -> Result<T, AgentError> {
        Ok(self.brain.run_blocking(read).await.ok_or(AgentError::Stopping)??)
    }
}
