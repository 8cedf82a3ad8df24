//! The score of a message: how much the words of the question say that it answers.
//!
//! ```text
//! score = Σ over words  2·w·[the message has the word]
//!                     + 8·w·sat(Σ over distances d ≤ 8 within the task, e^(−d/2)·[the word is there])
//!                     + 6·w'·sat(messages of the task with the word / (1 − b + b·length / mean length))
//!       + what its date adds
//! ```

use jiff::civil::Date;

use crate::candidates::Block;
use crate::dates::{DateMention, date_score};
use crate::numbers::{float, saturate};
use crate::postings::{Place, Postings};
use crate::word_postings::{WordInTask, WordPostings};

/// The message's own words: the answer more often has them than the remark before it.
const OWN_WEIGHT: f64 = 2.0;
/// The words around it, and its own again: in a conversation the subject is named in one message and the
/// answer given in the next.
pub(crate) const AROUND_WEIGHT: f64 = 8.0;
/// The words of its task: what the conversation is about need not be repeated beside each answer.
pub(crate) const TASK_WEIGHT: f64 = 6.0;
/// How far a word reaches, in messages. At eight it counts for less than a fiftieth.
const REACH: u32 = 8;
/// The messages in its reach, with the one that has it.
const MESSAGES_AROUND: usize = 17;
/// `b` of BM25 at its usual value: long tasks have every word sooner or later.
const LENGTH_NORMALIZATION: f64 = 0.75;

/// The score of each message of a block.
pub(crate) fn score_block<P: Postings>(
    postings: &P,
    words: &[WordPostings<'_>],
    mentions: &[DateMention],
    mean_task_length: f64,
    block: &Block,
) -> Result<Vec<f64>, P::Error> {
    let size = usize::try_from(block.indexes.end - block.indexes.start).unwrap_or_default();
    let reach = reach_by_distance();
    let words: Vec<WordInTask<'_>> = words.iter().map(|word| word.in_task(block.task)).collect();
    let of_task = task_score(&words, mean_task_length, block);
    let mut scores = vec![of_task; size];
    let mut around = vec![0.0; size];
    for WordInTask { word, places } in words {
        around.fill(0.0);
        for place in places_within(places, block, REACH) {
            let index = place.index();
            let first = index.saturating_sub(REACH).max(block.indexes.start);
            let end = (index + REACH + 1).min(block.indexes.end);
            let Some(reached) = slice_of(&mut around, block, first, end) else { continue };
            // From the farthest message before it to the farthest behind it, as far as they are in the block.
            let skipped = usize::try_from(first + REACH - index).unwrap_or_default();
            for (sum, reach) in reached.iter_mut().zip(reach.iter().skip(skipped)) {
                *sum += reach;
            }
            if let Some([score]) = slice_of(&mut scores, block, index, index + 1) {
                *score += OWN_WEIGHT * word.share;
            }
        }
        for (score, around) in scores.iter_mut().zip(&around) {
            *score += AROUND_WEIGHT * word.share * saturate(*around);
        }
    }
    if !mentions.is_empty() {
        let mut dates: Vec<Option<Date>> = vec![None; size];
        postings.read_dates(block.task, block.indexes.start, &mut dates)?;
        for (score, date) in scores.iter_mut().zip(dates) {
            *score += date.map_or(0.0, |date| date_score(mentions, date));
        }
    }
    Ok(scores)
}

/// The places of a block with a word.
pub(crate) fn places_in<'word>(word: &WordPostings<'word>, block: &Block) -> &'word [Place] {
    places_within(word.places, block, 0)
}

/// `Σ over words 6·w'·sat(count / (1 − b + b·length / mean length))`.
fn task_score(words: &[WordInTask<'_>], mean_task_length: f64, block: &Block) -> f64 {
    let relative_length = f64::from(block.task_length) / mean_task_length.max(1.0);
    let norm = 1.0 - LENGTH_NORMALIZATION + LENGTH_NORMALIZATION * relative_length;
    words.iter().map(|in_task| TASK_WEIGHT * in_task.word.task_share * saturate(in_task.count() / norm)).sum()
}

/// `e^(−d/2)` for the messages around one, from [`REACH`] before it to [`REACH`] behind it.
fn reach_by_distance() -> [f64; MESSAGES_AROUND] {
    std::array::from_fn(|offset| {
        let distance = REACH.abs_diff(u32::try_from(offset).unwrap_or(u32::MAX));
        (-f64::from(distance) / 2.0).exp()
    })
}

/// The mean length of a task, in messages.
pub(crate) fn mean_task_length<P: Postings>(postings: &P) -> Result<f64, P::Error> {
    Ok(float(postings.message_count()?) / float(postings.task_count()?.max(1)))
}

/// The places in a posting list from `margin` before a block to `margin` after it.
fn places_within<'word>(places: &'word [Place], block: &Block, margin: u32) -> &'word [Place] {
    let first = Place::new(block.task, block.indexes.start.saturating_sub(margin));
    let last = Place::new(block.task, (block.indexes.end + margin).saturating_sub(1));
    let start = places.partition_point(|place| *place < first);
    let end = places.partition_point(|place| *place <= last);
    places.get(start..end).unwrap_or_default()
}

/// The values of the messages from `first` to before `end`.
fn slice_of<'values>(
    values: &'values mut [f64],
    block: &Block,
    first: u32,
    end: u32,
) -> Option<&'values mut [f64]> {
    let offset = |index: u32| usize::try_from(index.checked_sub(block.indexes.start)?).ok();
    values.get_mut(offset(first)?..offset(end)?)
}
