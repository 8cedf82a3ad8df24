//! Reads the posting lists of a question's words, from the rarest word on, and computes the weights of the
//! words.

use std::ops::{BitOr, Range};

use crate::numbers::{count, float, inverse_frequency};
use crate::postings::{Place, Postings};
use crate::relevance::can_be_relevant;
use crate::terms::{AskedWord, MAX_ASKED_WORDS, WordKind};

/// The most postings that one search uses. A commoner word than fits is left out: it would take the time of
/// all others together and tell little. A search holds 8 bytes for each, and at most as much again for the list that it
/// is reading.
pub(crate) const POSTING_BUDGET: usize = 24_000;
/// The weight in [`AskedWords::asked_mass`] of a piece that no message has. Most are no words but places
/// where two words meet; but if many are missing, then the question is about something else.
const ABSENT_PIECE_WEIGHT: f64 = 0.25;

/// The number of messages that a store is taken to have at least when the mass of a word is computed: in a store
/// of few messages every word is in a large part of them, which says nothing about the word.
const MIN_MESSAGES: u64 = 150;

/// The messages with a word of the question.
#[derive(Debug)]
pub(crate) struct WordPostings<'places> {
    /// In ascending order, each once.
    pub(crate) places: &'places [Place],
    /// How much the word says about a message: `idf` among at least 150 messages.
    pub(crate) mass: f64,
    /// Its share among the words, over messages: `w = idf / Σ idf`.
    pub(crate) share: f64,
    /// Its share among the words, over tasks: `w'`.
    pub(crate) task_share: f64,
}

/// The words of a question as the store knows them.
#[derive(Debug, Default)]
pub(crate) struct AskedWords<'places> {
    /// Those with postings, the rarest first.
    pub(crate) found: Vec<WordPostings<'places>>,
    /// The sum of the masses of the words of the question but the too common ones; a word that no message has
    /// counts as the rarest.
    pub(crate) asked_mass: f64,
    /// The number of words in `asked_mass` that are certainly words, or pieces that some message has.
    pub(crate) asked_count: u32,
    /// The mass of a word that two messages have.
    pub(crate) rare_mass: f64,
}

/// The posting list of a word of the question.
struct List<'word> {
    word: &'word AskedWord,
    /// The number of messages with the commonest of its terms. Of a word that is too common, no more than shows that.
    frequency: usize,
    /// Where its places are, in ascending order, each once; `None` if the word is too common beside the others.
    places: Option<Range<usize>>,
}

/// Reads the posting lists into `places`, one behind the other; none if only what is relevant is wanted and nothing can
/// be.
pub(crate) fn read<'places, P: Postings>(
    postings: &P,
    words: &[AskedWord],
    only_relevant: bool,
    places: &'places mut Vec<Place>,
) -> Result<AskedWords<'places>, P::Error> {
    let (messages, tasks) = (postings.message_count()?, postings.task_count()?);
    let many_messages = messages.max(MIN_MESSAGES);
    let lists = read_lists(postings, words, places)?;
    let all_places = places.as_slice();
    let mut asked = AskedWords { rare_mass: inverse_frequency(many_messages, 2), ..AskedWords::default() };
    let frequencies = lists.iter().map(|list| count(list.frequency)).filter(|frequency| *frequency > 0);
    let masses = frequencies.map(|frequency| inverse_frequency(many_messages, frequency));
    if only_relevant && !can_be_relevant(masses, asked.rare_mass) {
        return Ok(asked);
    }
    let (mut message_mass, mut task_mass) = (0.0, 0.0);
    let mut budget = POSTING_BUDGET;
    for List { word, frequency, places } in lists {
        if frequency == 0 {
            asked.count_absent(word.kind, many_messages);
            continue;
        }
        // The newest messages with the rarest word, if even that one is too common.
        let Some(places) = places.filter(|_| frequency <= budget || asked.found.is_empty()) else {
            break;
        };
        let limit = budget;
        let places = all_places.get(places).unwrap_or_default();
        let places = places.get(places.len().saturating_sub(limit)..).unwrap_or_default();
        budget -= places.len();
        let tasks_with_word = places.chunk_by(|one, other| one.task() == other.task()).count();
        // Of a list that is whole the number of places is exact, even if several terms have it.
        let frequency = if places.len() < limit { places.len() } else { places.len().max(frequency) };
        let (frequency, task_frequency) = (count(frequency), count(tasks_with_word));
        let mass = inverse_frequency(many_messages, frequency);
        let of_messages = inverse_frequency(messages, frequency);
        let of_tasks = inverse_frequency(tasks, task_frequency);
        asked.asked_mass += mass;
        asked.asked_count += 1;
        message_mass += of_messages;
        task_mass += of_tasks;
        // Their sums are known behind the last word only.
        asked.found.push(WordPostings { places, mass, share: of_messages, task_share: of_tasks });
    }
    for word in &mut asked.found {
        word.share /= message_mass;
        word.task_share /= task_mass;
    }
    Ok(asked)
}

/// Some of the words of a question that were found, by their position among them: at most 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WordSet(u64);

const _: () = assert!(MAX_ASKED_WORDS <= 64, "a word is a bit");

impl WordSet {
    pub(crate) const fn insert(&mut self, number: usize) {
        self.0 |= 1 << number;
    }

    pub(crate) const fn count(self) -> u32 {
        self.0.count_ones()
    }
}

impl BitOr for WordSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A word of the question, and messages of one task that have it.
pub(crate) struct WordInTask<'words> {
    pub(crate) word: &'words WordPostings<'words>,
    /// In ascending order, each once.
    pub(crate) places: &'words [Place],
}

impl WordPostings<'_> {
    /// The messages of a task with the word.
    pub(crate) fn in_task(&self, task: u64) -> WordInTask<'_> {
        let start = self.places.partition_point(|place| place.task() < task);
        let places = self.places.get(start..).unwrap_or_default();
        let length = places.partition_point(|place| place.task() == task);
        WordInTask { word: self, places: places.get(..length).unwrap_or_default() }
    }
}

impl WordInTask<'_> {
    /// The number of messages.
    pub(crate) fn count(&self) -> f64 {
        float(count(self.places.len()))
    }
}

impl AskedWords<'_> {
    /// The sum of the masses of some of the words.
    pub(crate) fn mass_of(&self, words: WordSet) -> f64 {
        let found = self.found.iter().enumerate().filter(|(number, _)| words.0 & (1 << number) != 0);
        found.map(|(_, word)| word.mass).sum()
    }

    /// Counts a word that no message has. It has no share in the scores, for it tells no message from
    /// another.
    fn count_absent(&mut self, kind: WordKind, messages: u64) {
        let weight = match kind {
            WordKind::Whole => 1.0,
            WordKind::Piece => ABSENT_PIECE_WEIGHT,
        };
        self.asked_mass += weight * inverse_frequency(messages, 0);
        self.asked_count += u32::from(kind == WordKind::Whole);
    }
}

/// The posting lists of the words, the rarest first. Those of the commonest that do not fit into the budget beside the
/// others are released as soon as that is known.
fn read_lists<'word, P: Postings>(
    postings: &P,
    words: &'word [AskedWord],
    places: &mut Vec<Place>,
) -> Result<Vec<List<'word>>, P::Error> {
    // What the lists that are kept and the one that is read take: memory that grows is copied.
    places.reserve_exact(2 * (POSTING_BUDGET + 1));
    let mut lists: Vec<List<'_>> = Vec::with_capacity(words.len());
    let mut held = 0;
    for word in words {
        let start = places.len();
        let frequency = read_list(postings, word, greatest_frequency(&lists, held) + 1, places)?;
        held += frequency;
        lists.push(List { word, frequency, places: Some(start..places.len()) });
        while held > POSTING_BUDGET {
            let lists_held = lists.iter_mut().filter(|list| list.frequency > 0 && list.places.is_some());
            let Some(commonest) = lists_held.max_by_key(|list| list.frequency) else { break };
            if commonest.frequency == held {
                break;
            }
            held -= commonest.frequency;
            if let Some(released) = commonest.places.take() {
                places.drain(released.clone());
                close_gap(&mut lists, &released);
            }
        }
    }
    lists.sort_by_key(|list| list.frequency);
    Ok(lists)
}

/// The greatest frequency with which a further list may be kept beside those that are held: there is room for it, or it is
/// rarer than another one. It only becomes less with each list, so a word that was too common stays so.
fn greatest_frequency(lists: &[List<'_>], held: usize) -> usize {
    let held_lists = lists.iter().filter(|list| list.places.is_some());
    let commonest = held_lists.map(|list| list.frequency).max().unwrap_or_default();
    POSTING_BUDGET.saturating_sub(held).max(commonest).min(POSTING_BUDGET)
}

/// Moves the lists behind places that are there no more.
fn close_gap(lists: &mut [List<'_>], released: &Range<usize>) {
    let places = lists.iter_mut().filter_map(|list| list.places.as_mut());
    for behind in places.filter(|places| places.start >= released.end) {
        behind.start -= released.len();
        behind.end -= released.len();
    }
}

/// Appends the posting list of one word, the places with any of its terms, of each at most `limit`. Returns the number
/// of messages with the commonest of its terms.
fn read_list<P: Postings>(
    postings: &P,
    word: &AskedWord,
    limit: usize,
    places: &mut Vec<Place>,
) -> Result<usize, P::Error> {
    let start = places.len();
    let mut frequency = 0;
    for term in &word.terms {
        let before = places.len();
        postings.read_places(term, limit, places)?;
        frequency = frequency.max(places.len() - before);
    }
    if word.terms.len() > 1 {
        // Sorted lists one after the other: the stable sort merges them.
        let mut merged = places.split_off(start);
        merged.sort();
        merged.dedup();
        places.append(&mut merged);
    }
    Ok(frequency)
}

#[cfg(test)]
#[path = "../tests/unit/word_postings.rs"]
mod tests;
