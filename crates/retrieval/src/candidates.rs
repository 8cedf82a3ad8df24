//! Chooses the parts of the conversations that are worth scoring exactly.
//!
//! Places are taken in runs of eight. The best runs by a cheap sum and the two runs beside each make blocks:
//! the exact score of a message depends on no message farther away than that, but for the words of its task.

use std::ops::Range;

use crate::numbers::saturate;
use crate::postings::{Place, Postings};
use crate::score::{AROUND_WEIGHT, TASK_WEIGHT};
use crate::word_postings::{WordInTask, WordPostings};

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

/// A run with one of the words, and its cheap sum.
struct ScoredRun {
    /// `place / 8`, of the first of its places.
    run: u64,
    score: f64,
}

/// The best runs so far.
#[derive(Default)]
struct BestRuns(Vec<ScoredRun>);

/// The blocks to score, in ascending order. Of runs that are in `hidden`, sorted ranges of places, none is worth it.
pub(crate) fn choose<P: Postings>(
    postings: &P,
    words: &[WordPostings<'_>],
    hidden: &[Range<Place>],
) -> Result<Vec<Block>, P::Error> {
    let runs = best_runs(words, hidden);
    let mut blocks: Vec<Block> = Vec::new();
    for task_runs in runs.chunk_by(|one, other| task_of(*one) == task_of(*other)) {
        let (Some(first), Some(last)) = (task_runs.first(), task_runs.last()) else { continue };
        let task = task_of(*first);
        // A posting proves that its place exists, whatever the length says.
        let task_length = postings.task_length(task)?.max(last_place(words, task, *last));
        for run in task_runs {
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

/// The runs to score exactly, in ascending order. The lists of all words are read side by side, task by task.
fn best_runs(words: &[WordPostings<'_>], hidden: &[Range<Place>]) -> Vec<u64> {
    let mut best = BestRuns::default();
    let mut unread: Vec<&[Place]> = words.iter().map(|word| word.places).collect();
    let mut in_task: Vec<WordInTask<'_>> = Vec::with_capacity(words.len());
    while let Some(task) = unread.iter().filter_map(|places| places.first()).map(|place| place.task()).min() {
        in_task.clear();
        for (word, unread) in words.iter().zip(&mut unread) {
            let places = split_off_first(unread, |place| place.task() == task);
            if !places.is_empty() {
                in_task.push(WordInTask { word, places });
            }
        }
        score_runs(&mut in_task, |run| {
            if !is_hidden(run.run, hidden) {
                best.insert(run);
            }
        });
    }
    best.into_runs()
}

/// Computes the sum of each run of a task, in ascending order: `Σ over its words 8·w·sat(count in the run) + Σ over the
/// words of its task 6·w'·sat(count in the task)`. It leaves out distances, the runs beside, and the lengths of tasks.
fn score_runs(unread: &mut [WordInTask<'_>], mut found: impl FnMut(ScoredRun)) {
    let of_task: f64 =
        unread.iter().map(|in_task| TASK_WEIGHT * in_task.word.task_share * saturate(in_task.count())).sum();
    while let Some(run) = unread.iter().filter_map(|word| word.places.first().copied()).map(run_of).min() {
        let in_run = unread.iter_mut().map(|WordInTask { word, places }| {
            let places = split_off_first(places, |place| run_of(place) == run);
            WordInTask { word, places }
        });
        let of_run: f64 =
            in_run.map(|in_run| AROUND_WEIGHT * in_run.word.share * saturate(in_run.count())).sum();
        found(ScoredRun { run, score: of_run + of_task });
    }
}

/// Takes the places at the beginning that a condition holds for.
fn split_off_first<'places>(
    places: &mut &'places [Place],
    holds: impl Fn(Place) -> bool,
) -> &'places [Place] {
    let length = places.iter().take_while(|place| holds(**place)).count();
    places.split_off(..length).unwrap_or_default()
}

impl BestRuns {
    fn insert(&mut self, run: ScoredRun) {
        self.0.push(run);
        if self.0.len() >= 2 * MAX_RUNS {
            self.keep_best();
        }
    }

    fn keep_best(&mut self) {
        if self.0.len() > MAX_RUNS {
            // Among equals the newest.
            self.0.select_nth_unstable_by(MAX_RUNS - 1, |one, other| {
                other.score.total_cmp(&one.score).then(other.run.cmp(&one.run))
            });
            self.0.truncate(MAX_RUNS);
        }
    }

    /// The best runs in ascending order.
    fn into_runs(mut self) -> Vec<u64> {
        self.keep_best();
        let mut runs: Vec<u64> = self.0.iter().map(|run| run.run).collect();
        runs.sort_unstable();
        runs
    }
}

/// Whether all places of a run are hidden.
fn is_hidden(run: u64, hidden: &[Range<Place>]) -> bool {
    let (first, end) = (Place(run << RUN_BITS), Place((run + 1) << RUN_BITS));
    let after = hidden.partition_point(|range| range.end <= first);
    hidden.get(after).is_some_and(|range| range.start <= first && end <= range.end)
}

const fn run_of(place: Place) -> u64 {
    place.0 >> RUN_BITS
}

const fn task_of(run: u64) -> u64 {
    run >> RUNS_PER_TASK_BITS
}

/// The index behind the last place with a word in a run.
fn last_place(words: &[WordPostings<'_>], task: u64, run: u64) -> u32 {
    let end = Place((run + 1) << RUN_BITS);
    let last = words.iter().filter_map(|word| {
        let after = word.places.partition_point(|place| *place < end);
        word.places.get(after.checked_sub(1)?).filter(|place| place.task() == task)
    });
    last.map(|place| place.index() + 1).max().unwrap_or_default()
}
