//! What clients have been told of the model step under way, and how a repetition of it is told. Pure.
//!
//! When a provider breaks off, or the engine is killed, the step is repeated after some of it was shown. The new
//! answer is compared with what was shown: nothing is told while it repeats that, and then only what goes
//! beyond. Where it departs, or ends short, what was shown is void and the whole new answer is told anew.

use contract::event::{BlockType, Event, Lifecycle};

use crate::fault_injection::{self, Mutation};
use crate::llm::StreamEvent;

/// What to tell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Emit {
    /// This part.
    Event(StreamEvent),
    /// That what was shown of the step is void.
    Void,
}

/// A block as clients have it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SentBlock {
    kind: BlockType,
    text: String,
    ended: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamReconciler {
    /// What clients have of the step. All but the last block have ended.
    sent: Vec<SentBlock>,
    /// Set while an attempt repeats what is told.
    replaying: Option<Replaying>,
}

/// How far an attempt has repeated what is told.
#[derive(Clone, Debug, Default)]
struct Replaying {
    /// The block that comes next or is being repeated.
    block: usize,
    /// How much of its text has come.
    offset: usize,
    /// The parts so far, which are told if the attempt departs.
    buffered: Vec<StreamEvent>,
}

/// What a part is beside what is told.
enum Comparison {
    Same,
    Extends(StreamEvent),
    Diverges,
}

impl StreamReconciler {
    /// What clients have of a step, from the events after the last one that is on record.
    pub(super) fn from_events(events: impl IntoIterator<Item = Event>) -> Self {
        let mut telling = Self::default();
        for event in events {
            let inner = match &event {
                Event::AgentEvent(agent) => agent.inner(),
                _ => None,
            };
            match inner.unwrap_or(event) {
                Event::ContentBlockStart(start) => {
                    telling.record_sent(&StreamEvent::BlockStart(start.block_type));
                }
                Event::TextDelta(delta) | Event::ThinkingDelta(delta) => {
                    telling.record_sent(&StreamEvent::Delta(delta.text));
                }
                Event::ContentBlockStop(_) => telling.record_sent(&StreamEvent::BlockStop),
                Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => telling.sent.clear(),
                _ => {}
            }
        }
        telling
    }

    /// The output text that clients have of the step, if there is any.
    pub(super) fn sent_text(&self) -> Option<String> {
        let texts = self.sent.iter().filter(|block| block.kind == BlockType::Text);
        let text: String = texts.map(|block| block.text.as_str()).collect();
        (!text.trim().is_empty()).then_some(text)
    }

    /// The kind of the block that clients have seen begin and not end.
    pub(super) fn open_block(&self) -> Option<BlockType> {
        self.sent.last().filter(|block| !block.ended).map(|block| block.kind)
    }

    /// An attempt at the step begins.
    pub(super) fn begin_attempt(&mut self) {
        if fault_injection::active(Mutation::ForgetTold) {
            self.sent.clear();
        }
        self.replaying = (!self.sent.is_empty()).then(Replaying::default);
    }

    /// What to tell of `part`.
    pub(super) fn reconcile(&mut self, part: StreamEvent) -> Vec<Emit> {
        let Some(replaying) = &mut self.replaying else { return vec![self.emit(part)] };
        match replaying.compare(&self.sent, &part) {
            Comparison::Same => {
                replaying.buffered.push(part);
                Vec::new()
            }
            Comparison::Extends(rest) => {
                self.replaying = None;
                vec![self.emit(rest)]
            }
            Comparison::Diverges => self.diverge(Some(part)),
        }
    }

    /// What to tell at the end of a whole answer. The next step begins with nothing told.
    pub(super) fn finish(&mut self) -> Vec<Emit> {
        let short = self.replaying.as_ref().is_some_and(|replaying| replaying.block < self.sent.len());
        let tell = if short { self.diverge(None) } else { Vec::new() };
        *self = Self::default();
        tell
    }

    /// What to tell where no more of the step comes.
    pub(super) fn discard(&mut self) -> Vec<Emit> {
        if std::mem::take(self).sent.is_empty() { Vec::new() } else { vec![Emit::Void] }
    }

    fn diverge(&mut self, part: Option<StreamEvent>) -> Vec<Emit> {
        let held = self.replaying.take().map(|replaying| replaying.buffered).unwrap_or_default();
        self.sent.clear();
        let force_new = held.into_iter().chain(part).map(|part| self.emit(part));
        std::iter::once(Emit::Void).chain(force_new).collect()
    }

    fn emit(&mut self, part: StreamEvent) -> Emit {
        self.record_sent(&part);
        Emit::Event(part)
    }

    fn record_sent(&mut self, part: &StreamEvent) {
        match part {
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
    fn compare(&mut self, told: &[SentBlock], part: &StreamEvent) -> Comparison {
        let Some(block) = told.get(self.block) else { return Comparison::Extends(part.clone()) };
        let missing = block.text.get(self.offset..).unwrap_or_default();
        match part {
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
            // The end of the answer is not told as a part.
            StreamEvent::BlockStart(_)
            | StreamEvent::Delta(_)
            | StreamEvent::BlockStop
            | StreamEvent::Done(_) => Comparison::Diverges,
        }
    }
}

#[cfg(test)]
#[path = "stream_reconciler_tests.rs"]
mod tests;
