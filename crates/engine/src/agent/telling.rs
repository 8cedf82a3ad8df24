//! What clients have been told of the model step under way, and how a repetition of it is told. Pure.
//!
//! When a provider breaks off, or the engine is killed, the step is repeated after some of it was shown. The new
//! answer is compared with what was shown: nothing is told while it repeats that, and then only what goes
//! beyond. Where it departs, or ends short, what was shown is void and the whole new answer is told anew.

use contract::event::{BlockType, Event, Lifecycle};

use crate::models::Part;
use crate::sabotage::{self, Saboteur};

/// What to tell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tell {
    /// This part.
    Show(Part),
    /// That what was shown of the step is void.
    Void,
}

/// A block as clients have it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    kind: BlockType,
    text: String,
    ended: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Telling {
    /// What clients have of the step. All but the last block have ended.
    told: Vec<Told>,
    /// Set while an attempt repeats what is told.
    repeating: Option<Repeating>,
}

/// How far an attempt has repeated what is told.
#[derive(Clone, Debug, Default)]
struct Repeating {
    /// The block that comes next or is being repeated.
    block: usize,
    /// How much of its text has come.
    offset: usize,
    /// The parts so far, which are told if the attempt departs.
    held: Vec<Part>,
}

/// What a part is beside what is told.
enum Compared {
    Same,
    Beyond(Part),
    Departs,
}

impl Telling {
    /// What clients have of a step, from the events after the last one that is on record.
    pub(super) fn of_events(events: impl IntoIterator<Item = Event>) -> Self {
        let mut telling = Self::default();
        for event in events {
            let inner = match &event {
                Event::AgentEvent(agent) => agent.inner(),
                _ => None,
            };
            match inner.unwrap_or(event) {
                Event::ContentBlockStart(start) => telling.note(&Part::Start(start.block_type)),
                Event::TextDelta(delta) | Event::ThinkingDelta(delta) => {
                    telling.note(&Part::Delta(delta.text));
                }
                Event::ContentBlockStop(_) => telling.note(&Part::Stop),
                Event::ThreadLifecycle(Lifecycle::Retrying { .. }) => telling.told.clear(),
                _ => {}
            }
        }
        telling
    }

    /// The output text that clients have of the step, if there is any.
    pub(super) fn text(&self) -> Option<String> {
        let texts = self.told.iter().filter(|block| block.kind == BlockType::Text);
        let text: String = texts.map(|block| block.text.as_str()).collect();
        (!text.trim().is_empty()).then_some(text)
    }

    /// The kind of the block that clients have seen begin and not end.
    pub(super) fn open_block(&self) -> Option<BlockType> {
        self.told.last().filter(|block| !block.ended).map(|block| block.kind)
    }

    /// An attempt at the step begins.
    pub(super) fn begin_attempt(&mut self) {
        if sabotage::by(Saboteur::ForgetTold) {
            self.told.clear();
        }
        self.repeating = (!self.told.is_empty()).then(Repeating::default);
    }

    /// What to tell of `part`.
    pub(super) fn tell(&mut self, part: Part) -> Vec<Tell> {
        let Some(repeating) = &mut self.repeating else { return vec![self.show(part)] };
        match repeating.compare(&self.told, &part) {
            Compared::Same => {
                repeating.held.push(part);
                Vec::new()
            }
            Compared::Beyond(rest) => {
                self.repeating = None;
                vec![self.show(rest)]
            }
            Compared::Departs => self.depart(Some(part)),
        }
    }

    /// What to tell at the end of a whole answer. The next step begins with nothing told.
    pub(super) fn finish(&mut self) -> Vec<Tell> {
        let short = self.repeating.as_ref().is_some_and(|repeating| repeating.block < self.told.len());
        let tell = if short { self.depart(None) } else { Vec::new() };
        *self = Self::default();
        tell
    }

    /// What to tell where no more of the step comes.
    pub(super) fn give_up(&mut self) -> Vec<Tell> {
        if std::mem::take(self).told.is_empty() { Vec::new() } else { vec![Tell::Void] }
    }

    fn depart(&mut self, part: Option<Part>) -> Vec<Tell> {
        let held = self.repeating.take().map(|repeating| repeating.held).unwrap_or_default();
        self.told.clear();
        let anew = held.into_iter().chain(part).map(|part| self.show(part));
        std::iter::once(Tell::Void).chain(anew).collect()
    }

    fn show(&mut self, part: Part) -> Tell {
        self.note(&part);
        Tell::Show(part)
    }

    fn note(&mut self, part: &Part) {
        match part {
            Part::Start(kind) => self.told.push(Told { kind: *kind, text: String::new(), ended: false }),
            Part::Delta(text) => {
                if let Some(block) = self.told.last_mut() {
                    block.text.push_str(text);
                }
            }
            Part::Stop => {
                if let Some(block) = self.told.last_mut() {
                    block.ended = true;
                }
            }
            Part::Done(_) => {}
        }
    }
}

impl Repeating {
    fn compare(&mut self, told: &[Told], part: &Part) -> Compared {
        let Some(block) = told.get(self.block) else { return Compared::Beyond(part.clone()) };
        let missing = block.text.get(self.offset..).unwrap_or_default();
        match part {
            Part::Start(kind) if *kind == block.kind => Compared::Same,
            Part::Delta(text) if missing.starts_with(text.as_str()) => {
                self.offset += text.len();
                Compared::Same
            }
            Part::Delta(text) if !block.ended => match text.strip_prefix(missing) {
                Some(rest) => Compared::Beyond(Part::Delta(rest.to_owned())),
                None => Compared::Departs,
            },
            Part::Stop if missing.is_empty() && block.ended => {
                (self.block, self.offset) = (self.block + 1, 0);
                Compared::Same
            }
            Part::Stop if missing.is_empty() => Compared::Beyond(Part::Stop),
            // The end of the answer is not told as a part.
            Part::Start(_) | Part::Delta(_) | Part::Stop | Part::Done(_) => Compared::Departs,
        }
    }
}

#[cfg(test)]
#[path = "telling_tests.rs"]
mod tests;
