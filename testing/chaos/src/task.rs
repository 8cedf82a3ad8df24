//! A task as its clients know it, and the requests that the engine acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use api::event::{Event, HitlRequest, Lifecycle, SentEvent};
use api::{HitlId, MessageId, TurnId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

/// A task of the run, shared by its clients.
#[derive(Debug)]
pub(crate) struct TrackedTask {
    /// Its id.
    pub(crate) name: String,
    state: Mutex<TaskView>,
    changed: watch::Sender<i64>,
    /// Set when no turn will follow: the `ts` of the last event.
    pub(crate) final_ts: watch::Sender<Option<i64>>,
}

/// What all clients of a task together have seen.
#[derive(Debug, Default)]
pub(crate) struct TaskView {
    /// The `ts` of the newest event.
    pub(crate) last_ts: i64,
    /// The turn that has started and not ended.
    pub(crate) open_turn: Option<TurnId>,
    /// How many turns have ended.
    pub(crate) ended_turns: u64,
    /// The request that awaits the user.
    pub(crate) pending: Option<HitlRequest>,
    /// The user messages and their turns, oldest first.
    pub(crate) messages: Vec<(MessageId, TurnId)>,
    /// Messages that a retry of an earlier one may have superseded.
    pub(crate) superseded: BTreeSet<MessageId>,
    /// The requests that the engine acknowledged.
    pub(crate) acknowledged: Acknowledged,
}

/// Everything that the engine has accepted and must not lose.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    /// Turns that a client saw start in the response to its own request.
    pub(crate) turns: BTreeSet<TurnId>,
    /// The user's acknowledged answers.
    pub(crate) answers: BTreeMap<HitlId, String>,
    /// Requests to which an answer was sent, whatever the outcome.
    pub(crate) attempted_answers: BTreeSet<HitlId>,
    /// Messages to a running turn: their markers and the turn.
    pub(crate) steers: Vec<(u64, TurnId)>,
    /// Turns that were cancelled.
    pub(crate) cancelled: BTreeSet<TurnId>,
    /// Turns that a client tried to cancel, whatever the outcome.
    pub(crate) attempted_cancels: BTreeSet<TurnId>,
    /// Turns that an edit has rewound, or may have.
    pub(crate) rewound_turns: BTreeSet<TurnId>,
}

impl TrackedTask {
    /// A task without a turn.
    pub(crate) fn new(name: String) -> Self {
        let (changed, final_ts) = (watch::Sender::new(0), watch::Sender::new(None));
        Self { name, state: Mutex::default(), changed, final_ts }
    }

    /// Locks the current view.
    pub(crate) fn view(&self) -> MutexGuard<'_, TaskView> {
        self.state.lock()
    }

    /// Subscribes to the newest `ts`.
    pub(crate) fn subscribe(&self) -> watch::Receiver<i64> {
        self.changed.subscribe()
    }

    /// Records that a client saw `event`. Returns the trigger's name of the event if it is new.
    pub(crate) fn observe(&self, event: &SentEvent) -> Option<&'static str> {
        let mut view = self.view();
        if event.ts <= view.last_ts {
            return None;
        }
        view.apply(event);
        drop(view);
        self.changed.send_replace(event.ts);
        Some(trigger_event(&event.event))
    }
}

impl TaskView {
    fn apply(&mut self, event: &SentEvent) {
        self.last_ts = event.ts;
        match &event.event {
            Event::ThreadLifecycle(Lifecycle::Started { message_id }) => {
                self.open_turn = Some(event.turn_id);
                self.messages.push((*message_id, event.turn_id));
            }
            Event::HitlRequest(request) => self.pending = Some(request.clone()),
            Event::HitlResolved(_) => self.pending = None,
            _ => {}
        }
        if event.event.ends_turn() {
            (self.open_turn, self.pending) = (None, None);
            self.ended_turns += 1;
        }
    }

    /// The pending request that must be listed, because it cannot have been answered or ended.
    pub(crate) fn expected_pending(&self) -> Option<&HitlRequest> {
        let request = self.pending.as_ref()?;
        let cancelled = self.open_turn.is_none_or(|turn| self.acknowledged.attempted_cancels.contains(&turn));
        (!cancelled && !self.acknowledged.attempted_answers.contains(&request.request_id)).then_some(request)
    }
}

/// The trigger's name of an event: its type, or the phase.
fn trigger_event(event: &Event) -> &'static str {
    match event {
        Event::ThreadLifecycle(Lifecycle::Started { .. }) => "started",
        Event::ThreadLifecycle(Lifecycle::Completed { .. }) => "completed",
        Event::ThreadLifecycle(Lifecycle::Errored { .. }) => "errored",
        Event::ThreadLifecycle(Lifecycle::Resumed { .. }) => "resumed",
        Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => "retrying",
        Event::ThreadLifecycle(Lifecycle::Cancelled { .. }) => "cancelled",
        other => other.kind(),
    }
}
