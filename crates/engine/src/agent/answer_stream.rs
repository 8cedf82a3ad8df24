//! The streamed answers of a turn as clients have received them: the blocks of the turn and of its
//! sub-agents, and the part of the current model step that was sent. Pure.

use api::event::{Event, Lifecycle};
use llm::StreamEvent;
use store::BlockCounts;

use super::stream::Blocks;
use super::stream_reconciler::{Emit, StreamReconciler};

/// What clients have received of a turn's streamed answers.
#[derive(Default)]
pub(super) struct AnswerStream {
    /// What they have received of the current model step. Only one step runs at a time: the turn's own or a
    /// sub-agent's.
    reconciler: StreamReconciler,
    /// Whether that part came from a sub-agent.
    sent_by_sub_agent: bool,
    /// The blocks of the turn's stream.
    blocks: Blocks,
    /// The blocks of its sub-agents' streams, numbered across the whole turn.
    sub_agent_blocks: Blocks,
}

impl AnswerStream {
    /// Restores the stream from the events after the last recorded step and the numbers of blocks so far.
    pub(super) fn from_events(events: Vec<Event>, counts: BlockCounts) -> Self {
        let sent_by_sub_agent = events.iter().any(|event| matches!(event, Event::AgentEvent(_)));
        let reconciler = StreamReconciler::from_events(events);
        let open = reconciler.open_block();
        Self {
            blocks: Blocks::after(counts.started, open.filter(|_| !sent_by_sub_agent)),
            sub_agent_blocks: Blocks::after(counts.agents_started, open.filter(|_| sent_by_sub_agent)),
            reconciler,
            sent_by_sub_agent,
        }
    }

    /// Begins or repeats a model step. What was sent of a sub-agent's step is none of the turn's own.
    pub(super) fn begin_step(&mut self, by_sub_agent: bool) {
        let was_sub_agent = std::mem::replace(&mut self.sent_by_sub_agent, by_sub_agent);
        if was_sub_agent && !by_sub_agent {
            self.reconciler = StreamReconciler::default();
        }
    }

    /// Begins an attempt at the step.
    pub(super) fn begin_attempt(&mut self) {
        self.reconciler.begin_attempt();
    }

    /// Returns what to send for a stream event. `retrying` says that what was sent of the step is void.
    pub(super) fn receive(&mut self, event: StreamEvent, retrying: &Lifecycle) -> Vec<Event> {
        let emits = self.reconciler.reconcile(event);
        self.translate(emits, retrying)
    }

    /// Returns what to send at the end of a complete answer. The next step begins with nothing sent.
    pub(super) fn finish(&mut self, retrying: &Lifecycle) -> Vec<Event> {
        let emits = self.reconciler.finish();
        self.translate(emits, retrying)
    }

    /// Returns what to send if the step will not be completed.
    pub(super) fn discard(&mut self, retrying: &Lifecycle) -> Vec<Event> {
        let emits = self.reconciler.discard();
        self.translate(emits, retrying)
    }

    fn translate(&mut self, emits: Vec<Emit>, retrying: &Lifecycle) -> Vec<Event> {
        let blocks = if self.sent_by_sub_agent { &mut self.sub_agent_blocks } else { &mut self.blocks };
        let mut events = Vec::new();
        for emit in emits {
            match emit {
                Emit::Event(StreamEvent::BlockStart(kind)) => events.push(blocks.start(kind)),
                Emit::Event(StreamEvent::Delta(text)) => events.extend(blocks.delta(text)),
                Emit::Event(StreamEvent::BlockStop) => events.extend(blocks.stop()),
                Emit::Event(StreamEvent::Done(_)) => {}
                Emit::Void => {
                    events.extend(blocks.stop());
                    events.push(Event::ThreadLifecycle(retrying.clone()));
                }
            }
        }
        events
    }

    /// The text of the turn's own answer that clients have received of the current step, if any.
    pub(super) fn own_text(&self) -> Option<String> {
        self.reconciler.sent_text().filter(|_| !self.sent_by_sub_agent)
    }

    /// Forgets what was sent of a sub-agent's step, because that sub-agent has ended.
    pub(super) fn forget_sub_agent_step(&mut self) {
        self.reconciler = StreamReconciler::default();
        self.sent_by_sub_agent = false;
    }

    /// Ends the open block of the turn's stream; `None` if none is open.
    pub(super) fn stop_block(&mut self) -> Option<Event> {
        self.blocks.stop()
    }

    /// Ends the open block of the sub-agents' streams; `None` if none is open.
    pub(super) fn stop_sub_agent_block(&mut self) -> Option<Event> {
        self.sub_agent_blocks.stop()
    }
}
