//! Takes the results out of scored blocks: again and again the run of messages with the most mass.
//!
//! The mass of a message is `e^score`, so one message that says much outweighs several that say little. What
//! has been taken has no mass any more. That alone spreads the results over the conversations: no rule for
//! repetition, age or variety is needed.
//!
//! What follows a message with a word of the question may be a result of its own, though it has none: the run with that
//! message may end before the answer, which came after a remark.

use std::ops::Range;

use crate::candidates::Block;
use crate::postings::{Place, Postings};
use crate::score::places_in;
use crate::search::{Request, RunFilter};
use crate::word_postings::WordPostings;

/// The most messages of a run: a question with its answer, and what is said around them. Longer runs find more
/// each, but less in the same room.
pub(crate) const MAX_RUN_MESSAGES: usize = 5;
/// The most characters of a run, unless its only message has more: what a reader takes in at a glance, and a
/// model for some 400 tokens.
pub(crate) const MAX_RUN_CHARACTERS: u32 = 1_500;

/// A run of messages of one task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) task: u64,
    pub(crate) indexes: Range<u32>,
    /// `ln(Σ e^score)` over its messages.
    pub(crate) score: f64,
}

/// A block with what is left of it.
pub(crate) struct Scored {
    block: Block,
    messages: Vec<Message>,
    /// Whether the characters of the messages have been read; until then they count as none.
    has_characters: bool,
    /// The best run that is left.
    best: Option<Best>,
}

#[derive(Clone, Copy)]
struct Message {
    mass: f64,
    characters: u32,
    /// Whether a run may be a result because it has this message.
    is_anchor: bool,
    is_taken: bool,
}

/// A run of a block, by the offsets of its messages.
#[derive(Clone, Copy)]
struct Best {
    first: usize,
    end: usize,
    mass: f64,
}

impl Scored {
    /// A block with the scores of its messages. Those that are hidden are taken already.
    ///
    /// A message with a word is an anchor, and with [`RunFilter::Near`] so are those that a run from it on would have.
    pub(crate) fn new(
        block: Block,
        scores: Vec<f64>,
        words: &[WordPostings<'_>],
        request: &Request<'_>,
    ) -> Self {
        let Request { hidden, filter, .. } = *request;
        let mut messages: Vec<Message> = scores
            .into_iter()
            .zip(block.indexes.clone())
            .map(|(score, index)| {
                let place = Place::new(block.task, index);
                let after = hidden.partition_point(|range| range.end <= place);
                let is_taken = hidden.get(after).is_some_and(|range| range.contains(&place));
                Message { mass: score.exp(), characters: 0, is_anchor: false, is_taken }
            })
            .collect();
        let anchors = if filter == RunFilter::Near { MAX_RUN_MESSAGES } else { 1 };
        for place in words.iter().flat_map(|word| places_in(word, &block)) {
            let offset = usize::try_from(place.index() - block.indexes.start).unwrap_or(usize::MAX);
            for message in messages.iter_mut().skip(offset).take(anchors) {
                message.is_anchor = true;
            }
        }
        let mut block = Self { block, messages, has_characters: false, best: None };
        block.find_best();
        block
    }

    /// Finds the best run that is left: of all that have an anchor, the one with the most mass; among equals
    /// the newest.
    fn find_best(&mut self) {
        let mut best: Option<Best> = None;
        for first in 0..self.messages.len() {
            let Some(run) = self.longest_run(first) else { continue };
            if best.is_none_or(|best| run.mass >= best.mass) {
                best = Some(run);
            }
        }
        self.best = best;
    }

    /// The longest run from a message on. A longer one always has more mass.
    fn longest_run(&self, first: usize) -> Option<Best> {
        let mut run = Best { first, end: first, mass: 0.0 };
        let mut characters = 0_u32;
        let mut has_anchor = false;
        for message in self.messages.get(first..)?.iter().take(MAX_RUN_MESSAGES) {
            characters = characters.saturating_add(message.characters);
            if message.is_taken || (run.end > first && characters > MAX_RUN_CHARACTERS) {
                break;
            }
            run.end += 1;
            run.mass += message.mass;
            has_anchor |= message.is_anchor;
        }
        has_anchor.then_some(run)
    }

    fn mass(&self) -> f64 {
        self.best.map_or(0.0, |best| best.mass)
    }

    /// Takes the best run.
    fn take_best(&mut self) -> Option<Run> {
        let best = self.best?;
        for message in self.messages.get_mut(best.first..best.end)? {
            message.is_taken = true;
        }
        self.find_best();
        let index = |offset: usize| {
            u32::try_from(offset).ok().map(|offset| self.block.indexes.start.saturating_add(offset))
        };
        let indexes = index(best.first)?..index(best.end)?;
        Some(Run { task: self.block.task, indexes, score: best.mass.ln() })
    }

    fn read_characters<P: Postings>(&mut self, postings: &P) -> Result<(), P::Error> {
        let mut characters = vec![0; self.messages.len()];
        postings.read_characters(self.block.task, self.block.indexes.start, &mut characters)?;
        for (message, characters) in self.messages.iter_mut().zip(characters) {
            message.characters = characters;
        }
        self.has_characters = true;
        self.find_best();
        Ok(())
    }
}

/// Takes runs until there are `count` or none with an anchor is left.
///
/// Without its characters a block promises at least the mass that it has with them. So they are read only
/// when a block promises the most, which spares reading those of nearly all candidates.
pub(crate) fn take<P: Postings>(
    postings: &P,
    blocks: &mut [Scored],
    count: usize,
) -> Result<Vec<Run>, P::Error> {
    let mut runs = Vec::new();
    while runs.len() < count {
        // The last of several with as much is the newest.
        let best = blocks.iter_mut().max_by(|one, other| one.mass().total_cmp(&other.mass()));
        let Some(block) = best.filter(|block| block.best.is_some()) else { break };
        if block.has_characters {
            runs.extend(block.take_best());
        } else {
            block.read_characters(postings)?;
        }
    }
    Ok(runs)
}
