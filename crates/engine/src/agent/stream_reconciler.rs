//! Reconciles a repeated model step with what clients have already received of it. Pure.
//!
//! When a provider's stream breaks off or the engine is killed, the step is repeated after part of it was sent.
//! The new answer is compared with that part: while it matches nothing is sent, then only what goes beyond it.
//! If it diverges or ends early, what was sent is voided and the whole new answer is sent.

use api::event::{BlockType, Event, Lifecycle};
use llm::StreamEvent;

/// An instruction for what to send to clients.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Emit {
    /// Send this stream event.
    Event(StreamEvent),
    /// Declare void what was sent of the step.
    Void,
}

/// A block as clients received it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SentBlock {
    kind: BlockType,
    text: String,
    ended: bool,
}

/// What clients have received of the current model step, and the state of the comparison.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamReconciler {
    /// What clients have received of the step. All blocks except the last have ended.
    sent: Vec<SentBlock>,
    /// Set while an attempt repeats what was sent.
    replaying: Option<Replaying>,
}

/// How far an attempt has repeated what was sent.
#[derive(Clone, Debug, Default)]
struct Replaying {
    /// The index of the block that comes next or is being repeated.
    block: usize,
    /// The length of its text received so far.
    offset: usize,
    /// The stream events so far, which are sent if the attempt diverges.
    buffered: Vec<StreamEvent>,
}

/// The comparison of a stream event with what was sent.
enum Comparison {
    Same,
    Extends(StreamEvent),
    Diverges,
}

impl StreamReconciler {
    /// Restores what clients have received of a step from the events after the last recorded step.
    pub(super) fn from_events(events: impl IntoIterator<Item = Event>) -> Self {
        let mut reconciler = Self::default();
        for event in events {
            let inner = match &event {
                Event::AgentEvent(agent) => agent.inner(),
                _ => None,
            };
            match inner.unwrap_or(event) {
                Event::ContentBlockStart(start) => {
                    reconciler.record_sent(&StreamEvent::BlockStart(start.block_type));
                }
                Event::TextDelta(delta) | Event::ThinkingDelta(delta) => {
                    reconciler.record_sent(&StreamEvent::Delta(delta.text));
                }
                Event::ContentBlockStop(_) => reconciler.record_sent(&StreamEvent::BlockStop),
                Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => reconciler.sent.clear(),
                _ => {}
            }
        }
        reconciler
    }

    /// The output text that clients have received of the step, if any.
    pub(super) fn sent_text(&self) -> Option<String> {
        let texts = self.sent.iter().filter(|block| block.kind == BlockType::Text);
        let text: String = texts.map(|block| block.text.as_str()).collect();
        (!text.trim().is_empty()).then_some(text)
    }

    /// The type of the block that clients have seen begin but not end.
    pub(super) fn open_block(&self) -> Option<BlockType> {
        self.sent.last().filter(|block| !block.ended).map(|block| block.kind)
    }

    /// Begins an attempt at the step.
    pub(super) fn begin_attempt(&mut self) {
        self.replaying = (!self.sent.is_empty()).then(Replaying::default);
    }

    /// Returns what to send for a stream event.
    pub(super) fn reconcile(&mut self, event: StreamEvent) -> Vec<Emit> {
        let Some(replaying) = &mut self.replaying else { return vec![self.emit(event)] };
        match replaying.compare(&self.sent, &event) {
            Comparison::Same => {
                replaying.buffered.push(event);
                Vec::new()
            }
            Comparison::Extends(rest) => {
                self.replaying = None;
                vec![self.emit(rest)]
            }
            Comparison::Diverges => self.diverge(Some(event)),
        }
    }

    /// Returns what to send at the end of a complete answer. The next step begins with nothing sent.
    pub(super) fn finish(&mut self) -> Vec<Emit> {
        let is_short = self.replaying.as_ref().is_some_and(|replaying| replaying.block < self.sent.len());
        let emits = if is_short { self.diverge(None) } else { Vec::new() };
        *self = Self::default();
        emits
    }

    /// Returns what to send if the step will not be completed.
    pub(super) fn discard(&mut self) -> Vec<Emit> {
        if std::mem::take(self).sent.is_empty() { Vec::new() } else { vec![Emit::Void] }
    }

    fn diverge(&mut self, event: Option<StreamEvent>) -> Vec<Emit> {
        let buffered = self.replaying.take().map(|replaying| replaying.buffered).unwrap_or_default();
        self.sent.clear();
        let restarted = buffered.into_iter().chain(event).map(|event| self.emit(event));
        std::iter::once(Emit::Void).chain(restarted).collect()
    }

    fn emit(&mut self, event: StreamEvent) -> Emit {
        self.record_sent(&event);
        Emit::Event(event)
    }

    fn record_sent(&mut self, event: &StreamEvent) {
        match event {
            StreamEvent::BlockStart(kind) => {
                self.sent.push(SentBlock { kind: *kind, text: String::new(), ended: false });
            }
            StreamEvent::Delta(text) => {
                if let Some(block) = self.sent.last_mut() {
                    block.text.push_str(text);
                }
            }
            StreamEvent::BlockStop => {
                if let Some(block) = self.sent.last_mut() {
                    block.ended = true;
                }
            }
            StreamEvent::Done(_) => {}
        }
    }
}

impl Replaying {
    fn compare(&mut self, sent: &[SentBlock], event: &StreamEvent) -> Comparison {
        let Some(block) = sent.get(self.block) else { return Comparison::Extends(event.clone()) };
        let missing = block.text.get(self.offset..).unwrap_or_default();
        match event {
            StreamEvent::BlockStart(kind) if *kind == block.kind => Comparison::Same,
            StreamEvent::Delta(text) if missing.starts_with(text.as_str()) => {
                self.offset += text.len();
                Comparison::Same
            }
            StreamEvent::Delta(text) if !block.ended => match text.strip_prefix(missing) {
                Some(rest) => Comparison::Extends(StreamEvent::Delta(rest.to_owned())),
                None => Comparison::Diverges,
            },
            StreamEvent::BlockStop if missing.is_empty() && block.ended => {
                (self.block, self.offset) = (self.block + 1, 0);
                Comparison::Same
            }
            StreamEvent::BlockStop if missing.is_empty() => Comparison::Extends(StreamEvent::BlockStop),
            // The end of the answer is not sent as a stream event.
            StreamEvent::BlockStart(_)
            | StreamEvent::Delta(_)
            | StreamEvent::BlockStop
            | StreamEvent::Done(_) => Comparison::Diverges,
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/agent/stream_reconciler.rs"]
mod tests;
