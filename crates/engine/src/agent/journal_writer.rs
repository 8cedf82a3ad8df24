//! What a turn writes its journal with. Unlike the folded conversation, it is kept in every state of the
//! turn.

use std::sync::Arc;
use std::time::Duration;

use api::event::{Event, Failure, HitlKind, HitlRequest};
use api::{HitlId, MessageId, Timestamp, TurnId};
use store::event_log::{Commit, Recorder};
use store::{Brain, CallUsage, TaskRow, WriteError};

use super::caps::{self, CapNotices};
use super::{Services, turn_end};

/// Writes the journal of a turn, and keeps what must outlive the turn's state in memory.
pub(super) struct JournalWriter {
    recorder: Recorder,
    /// The id of the user's message.
    message_id: MessageId,
    services: Arc<Services>,
    brain: Brain,
    /// How often the turn was resumed after the brain was unavailable, since its last step.
    store_retries: u32,
    /// The deadline on the monotonic clock for the user's answer.
    hitl_deadline: Option<Duration>,
    first_delta: FirstDelta,
}

/// The time until the turn's first text.
enum FirstDelta {
    /// It is measured, since this instant of the monotonic clock.
    Awaited(Duration),
    /// It was measured, and is stored with the next model call that is counted.
    Measured(Duration),
    /// It is stored, or cannot be measured, because the turn began before this start of the engine.
    Done,
}

impl JournalWriter {
    pub(super) fn new(
        recorder: Recorder,
        message_id: MessageId,
        services: Arc<Services>,
        brain: Brain,
    ) -> Self {
        let first_delta = FirstDelta::Done;
        Self { recorder, message_id, services, brain, store_retries: 0, hitl_deadline: None, first_delta }
    }

    /// Measures the time until the turn's first text from now on.
    pub(super) fn await_first_delta(&mut self) {
        self.first_delta = FirstDelta::Awaited(self.services.clock.monotonic());
    }

    /// Notes that clients receive a text of the turn.
    pub(super) fn note_delta(&mut self) {
        if let FirstDelta::Awaited(since) = self.first_delta {
            let time = self.services.clock.monotonic().saturating_sub(since);
            self.first_delta = FirstDelta::Measured(time);
        }
    }

    /// The time until the turn's first text, once it was measured.
    pub(super) fn take_first_delta(&mut self) -> Option<Duration> {
        let FirstDelta::Measured(time) = self.first_delta else { return None };
        self.first_delta = FirstDelta::Done;
        Some(time)
    }

    /// What clients are told about caps once `calls` are counted.
    pub(super) fn cap_notices(&self, calls: &[CallUsage]) -> CapNotices {
        if calls.is_empty() {
            return CapNotices::default();
        }
        caps::notices(&self.services, &self.brain, self.task(), calls)
    }

    /// What clients are told about caps by what is stored.
    pub(super) fn late_cap_notices(&self) -> CapNotices {
        caps::notices(&self.services, &self.brain, self.task(), &[])
    }

    /// The recorder of the turn's events and steps.
    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The id of the turn.
    pub(super) fn turn_id(&self) -> TurnId {
        self.recorder.turn_id()
    }

    /// The task of the turn.
    pub(super) fn task(&self) -> TaskRow {
        self.recorder.event_log().task()
    }

    /// The id of the user's message.
    pub(super) fn message_id(&self) -> MessageId {
        self.message_id
    }

    /// The time now.
    pub(super) fn now(&self) -> Timestamp {
        self.services.clock.now()
    }

    /// Stores `commit` and waits until it is stored.
    pub(super) async fn commit(&self, commit: Commit) -> Result<(), WriteError> {
        self.recorder.commit(commit).await
    }

    /// Ends the turn with `failure`, after `commit` and the events in `before`.
    pub(super) async fn commit_failure(
        &self,
        commit: Commit,
        before: Vec<Event>,
        failure: Failure,
    ) -> Result<(), WriteError> {
        turn_end::commit_failure(&self.recorder, self.message_id, commit.events(before), failure).await
    }

    /// How often the turn was resumed after the brain was unavailable, since its last step.
    pub(super) fn store_retries(&self) -> u32 {
        self.store_retries
    }

    /// Counts a try to continue after the brain was unavailable.
    pub(super) fn count_store_retry(&mut self) {
        self.store_retries += 1;
    }

    /// Notes that the turn has made progress.
    pub(super) fn reset_store_retries(&mut self) {
        self.store_retries = 0;
    }

    /// Creates a HITL request that is shown now, and starts its time limit.
    pub(super) fn hitl_request(
        &mut self,
        request_id: HitlId,
        kind: HitlKind,
        question: String,
        options: Option<Vec<String>>,
    ) -> HitlRequest {
        let created_at = self.services.clock.now();
        self.set_hitl_deadline(self.services.hitl_ttl);
        let task_id = self.recorder.event_log().task_id().clone();
        HitlRequest { request_id, task_id, kind, question, created_at, options }
    }

    /// The time left for the user's answer. Changes of the wall clock do not affect it.
    pub(super) fn hitl_time_left(&self) -> Duration {
        let now = self.services.clock.monotonic();
        self.hitl_deadline.map_or(self.services.hitl_ttl, |deadline| deadline.saturating_sub(now))
    }

    /// Continues the time limit of a request that was shown before this start of the engine.
    pub(super) fn restore_hitl_deadline(&mut self, created_at: Timestamp) {
        // Only the wall clock knows how much time passed while no engine ran.
        let waited = self.services.clock.now().unix_ms().saturating_sub(created_at.unix_ms());
        let waited = Duration::from_millis(u64::try_from(waited).unwrap_or(0));
        self.set_hitl_deadline(self.services.hitl_ttl.saturating_sub(waited));
    }

    fn set_hitl_deadline(&mut self, time_left: Duration) {
        self.hitl_deadline = Some(self.services.clock.monotonic().saturating_add(time_left));
    }
}
