//! What the user taught: corrections of answers, and lessons that were drawn from them. A turn is told what its
//! conversation does not show yet, unasked, as the user's own word.

use std::time::Instant;

use contract::memory::MemoryKind;

use super::recall::PATIENCE;
use crate::brain::steps::Base;
use crate::brain::{Brain, Found, MemoryQuery, TaskRow, Taught};
use crate::remembered::{day, quoted};

/// The most that a turn is told, in tokens, and as a share of the model's context window in percent.
pub(super) const MAX_TOKENS: u64 = 3_000;
pub(super) const MAX_SHARE: u64 = 5;
/// The most corrections that one turn is told, and the most lessons.
const MAX_CORRECTIONS: usize = 8;
const MAX_LESSONS: usize = 12;
/// How much of it a conversation shows before it is told only what bears on its messages.
const ENOUGH: usize = 32;
/// Less room than this is none, in bytes.
const LEAST_ITEM: usize = 120;
/// How many records a search for what bears on a message gives.
const LOOKED_FOR: usize = 40;

/// What the model is told before it all.
const HEADING: &str = "[What the user taught you: corrections of earlier answers, and lessons drawn from them. They hold \
                       from now on wherever they apply, in this answer too. What the user says later counts more.";

/// What a turn is told that goes on from `base` with a `message`, in at most `budget` bytes. Where it cannot be read,
/// nothing is. Blocks.
pub(super) fn look(brain: &Brain, task: TaskRow, (base, message): (Base, &str), budget: usize) -> Vec<Found> {
    let taught = match brain.taught(task, base) {
        Ok(taught) => taught,
        Err(error) => {
            tracing::error!(%error, "What the user taught could not be read; the turn begins without.");
            return Vec::new();
        }
    };
    if fits(&taught, budget) {
        let Taught { corrections, lessons, .. } = taught;
        return fitting(corrections.into_iter().chain(lessons).collect(), budget);
    }
    let relevant = relevant(brain, message.to_owned());
    fitting(chosen(taught, &relevant), budget)
}

/// What the model is told; none where there is nothing.
pub(super) fn note(taught: &[Found]) -> Option<String> {
    let items: String = taught.iter().map(item).collect();
    (!taught.is_empty()).then(|| format!("{HEADING}{items}]"))
}

/// One thing taught, as the model is told.
fn item(found: &Found) -> String {
    format!("\n{}:{}", day(found), quoted(&found.excerpt))
}

/// Whether all of it can be told at once.
fn fits(taught: &Taught, budget: usize) -> bool {
    let Taught { corrections, lessons, shown } = taught;
    let bytes: usize = corrections.iter().chain(lessons).map(size).sum();
    let count = corrections.len() + lessons.len();
    let few = corrections.len() <= MAX_CORRECTIONS && lessons.len() <= MAX_LESSONS;
    few && (count == 0 || shown + count <= ENOUGH) && HEADING.len() + bytes <= budget
}

/// What bears on a message, the best first. Blocks.
fn relevant(brain: &Brain, text: String) -> Vec<String> {
    let kinds = &[MemoryKind::Knowledge];
    let query =
        MemoryQuery { text, kinds, limit: LOOKED_FOR, at_hand: None, until: Instant::now() + PATIENCE };
    let found = brain.search(&query).unwrap_or_default();
    found.into_iter().filter(|found| found.is_relevant).map(|found| found.id).collect()
}

/// What is told where that cannot be all: the newest correction, then what bears on the message, then the newest, which
/// a conversation that shows enough is not told.
fn chosen(taught: Taught, relevant: &[String]) -> Vec<Found> {
    let Taught { corrections, lessons, shown } = taught;
    let place = |found: &Found| relevant.iter().position(|id| *id == found.id).unwrap_or(usize::MAX);
    let choose = |mut all: Vec<Found>, first: usize, most: usize| {
        if let Some(rest) = all.get_mut(first..) {
            rest.sort_by_key(place);
        }
        let mut all: Vec<Found> = all
            .into_iter()
            .enumerate()
            .filter(|(at, found)| *at < first || shown < ENOUGH || place(found) != usize::MAX)
            .map(|(_, found)| found)
            .collect();
        all.truncate(most);
        all
    };
    let mut chosen = choose(corrections, 1, MAX_CORRECTIONS);
    chosen.extend(choose(lessons, 0, MAX_LESSONS));
    chosen
}

/// As much as there is room for, the last of it cut.
fn fitting(chosen: Vec<Found>, budget: usize) -> Vec<Found> {
    let mut left = budget.saturating_sub(HEADING.len());
    let mut fitting = Vec::new();
    for mut found in chosen {
        // The newest is told in any case.
        if left < LEAST_ITEM && !fitting.is_empty() {
            break;
        }
        let room = left.max(LEAST_ITEM);
        if size(&found) > room {
            found.excerpt.truncate(found.excerpt.floor_char_boundary(room.saturating_sub(20)));
            found.excerpt.push('…');
        }
        left = left.saturating_sub(size(&found));
        fitting.push(found);
    }
    fitting
}

/// How many bytes the model is told of it.
fn size(found: &Found) -> usize {
    // The day, and a mark before each line.
    12 + found.excerpt.len() + 3 * found.excerpt.lines().count()
}

#[cfg(test)]
#[path = "taught_tests.rs"]
mod tests;
