//! Chooses the parts of the conversations that are worth scoring exactly.
//!
//! Places are taken in runs of eight. The best runs by a cheap sum and the two runs beside each make blocks:
//! the exact score of a message depends on no message farther away than that, but for the words of its task.

use std::ops::Range;

use crate::numbers::saturate;
use crate::postings::{Place, Postings};
use crate::score::{AROUND_WEIGHT, TASK_WEIGHT};
use crate::word_postings::WordPostings;

/// How many runs are scored exactly. More would change a result only where 300 runs by the cheap sum hold
/// none of the best by the exact one; each costs some microseconds.
const MAX_RUNS: usize = 300;
/// `log2` of the number of places of a run: as far as a word reaches in the exact score.
const RUN_BITS: u32 = 3;
/// The runs of one task are numbered alike in all tasks.
const RUNS_PER_TASK_BITS: u32 = 20 - RUN_BITS;

/// Messages of one task that stand side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) task: u64,
    pub(crate) task_length: u32,
    pub(crate) indexes: Range<u32>,
}

/// A run with one of the words.
#[derive(Clone, Copy)]
struct WordRun {
    /// `place / 8`, of the first of its places.
    run: u64,
    word: u16,
    count: u16,
}

/// The blocks to score, in ascending order. Of runs that are in `hidden`, sorted ranges of places, none is worth it.
pub(crate) fn choose<P: Postings>(
    postings: &P,
    words: &[WordPostings],
    hidden: &[Range<Place>],
) -> Result<Vec<Block>, P::Error> {
    let mut runs = cheap_scores(words);
    runs.retain(|(run, _)| !is_hidden(*run, hidden));
    if runs.len() > MAX_RUNS {
        // Among equals the newest.
        runs.select_nth_unstable_by(MAX_RUNS - 1, |(run, score), (other, other_score)| {
            other_score.total_cmp(score).then(other.cmp(run))
        });
        runs.truncate(MAX_RUNS);
        runs.sort_unstable_by_key(|(run, _)| *run);
    }
    let mut blocks: Vec<Block> = Vec::new();
    for task_runs in runs.chunk_by(|(run, _), (other, _)| task_of(*run) == task_of(*other)) {
        let (Some((first, _)), Some((last, _))) = (task_runs.first(), task_runs.last()) else { continue };
        let task = task_of(*first);
        // A posting proves that its place exists, whatever the length says.
        let task_length = postings.task_length(task)?.max(last_place(words, task, *last));
        for (run, _) in task_runs {
            let start = Place(run << RUN_BITS).index();
            let size = 1 << RUN_BITS;
            let indexes = start.saturating_sub(size)..start.saturating_add(2 * size).min(task_length);
            match blocks.last_mut() {
                Some(block) if block.task == task && indexes.start <= block.indexes.end => {
                    block.indexes.end = block.indexes.end.max(indexes.end);
                }
                _ => blocks.push(Block { task, task_length, indexes }),
            }
        }
    }
    Ok(blocks)
}

/// The sum of a run: `Σ over its words 8·w·sat(count in the run) + Σ over the words of its task
/// 6·w'·sat(count in the task)`. It leaves out distances, the runs beside, and the lengths of tasks.
fn cheap_scores(words: &[WordPostings]) -> Vec<(u64, f64)> {
    let mut word_runs = Vec::with_capacity(words.iter().map(|word| word.places.len()).sum());
    for (word, postings) in (0_u16..).zip(words) {
        for places in postings.places.chunk_by(|one, other| one.0 >> RUN_BITS == other.0 >> RUN_BITS) {
            if let (Some(first), Ok(count)) = (places.first(), u16::try_from(places.len())) {
                word_runs.push(WordRun { run: first.0 >> RUN_BITS, word, count });
            }
        }
    }
    word_runs.sort_unstable_by_key(|word_run| (word_run.run, word_run.word));
    let mut scores = Vec::with_capacity(word_runs.len());
    let mut counts = vec![0_u32; words.len()];
    for in_task in word_runs.chunk_by(|one, other| task_of(one.run) == task_of(other.run)) {
        counts.fill(0);
        for word_run in in_task {
            if let Some(count) = counts.get_mut(usize::from(word_run.word)) {
                *count += u32::from(word_run.count);
            }
        }
        let of_task: f64 = counts
            .iter()
            .zip(words)
            .map(|(count, word)| TASK_WEIGHT * word.task_share * saturate(f64::from(*count)))
            .sum();
        for in_run in in_task.chunk_by(|one, other| one.run == other.run) {
            let of_run: f64 = in_run
                .iter()
                .filter_map(|word_run| {
                    let word = words.get(usize::from(word_run.word))?;
                    Some(AROUND_WEIGHT * word.share * saturate(f64::from(word_run.count)))
                })
                .sum();
            scores.extend(in_run.first().map(|word_run| (word_run.run, of_run + of_task)));
        }
    }
    scores
}

/// Whether all places of a run are hidden.
fn is_hidden(run: u64, hidden: &[Range<Place>]) -> bool {
    let (first, end) = (Place(run << RUN_BITS), Place((run + 1) << RUN_BITS));
    let after = hidden.partition_point(|range| range.end <= first);
    hidden.get(after).is_some_and(|range| range.start <= first && end <= range.end)
}

const fn task_of(run: u64) -> u64 {
    run >> RUNS_PER_TASK_BITS
}

/// The index behind the last place with a word in a run.
fn last_place(words: &[WordPostings], task: u64, run: u64) -> u32 {
    let end = Place((run + 1) << RUN_BITS);
    let last = words.iter().filter_map(|word| {
        let after = word.places.partition_point(|place| *place < end);
        word.places.get(after.checked_sub(1)?).filter(|place| place.task() == task)
    });
    last.map(|place| place.index() + 1).max().unwrap_or_default()
}
