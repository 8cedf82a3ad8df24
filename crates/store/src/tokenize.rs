//! Parses a text into search terms: its significant words, the names among them, and the dates and periods that it
//! mentions. Pure.

use std::collections::HashSet;
use std::ops::{BitOr, Range};

use resources::text::first_chars;

use super::dates::{self, DateMention, Day};

/// The most words of a query that are used: a long message is searched by its beginning. At most the number of
/// bits in [`Coverage`].
const MAX_TERMS: usize = 24;
/// The minimum length of the common beginning of two inflections of a word, in letters.
const STEM_LETTERS: usize = 3;
/// The endings of inflected words, sorted.
const INFLECTION_SUFFIXES: &[&str] = &[
    "", "al", "d", "e", "ed", "er", "ers", "es", "ies", "ing", "ings", "ion", "ions", "ly", "ment", "ments",
    "s", "y",
];

/// Words that say nothing about the subject of a text, sorted.
const STOP_WORDS: &[&str] = &[
    "a", "about", "after", "all", "also", "am", "an", "and", "any", "are", "as", "at", "be", "because",
    "been", "before", "but", "by", "can", "could", "did", "do", "does", "doing", "done", "for", "from",
    "get", "go", "had", "has", "have", "he", "her", "here", "him", "his", "how", "i", "if", "in", "into",
    "is", "it", "its", "just", "know", "let", "like", "ll", "make", "may", "me", "might", "my", "no", "not",
    "now", "of", "on", "one", "only", "or", "our", "out", "please", "re", "s", "say", "shall", "she",
    "should", "so", "some", "such", "t", "tell", "than", "that", "the", "their", "them", "then", "there",
    "these", "they", "this", "those", "to", "too", "up", "us", "ve", "very", "was", "we", "were", "what",
    "when", "where", "which", "who", "whom", "whose", "why", "will", "with", "would", "yes", "you", "your",
];

/// A word to search for, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    word: String,
    /// Whether it looks like a name or a number, which no other word can replace.
    is_name: bool,
}

/// The terms of a query; empty if the text has no significant word or date.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueryTerms {
    words: Vec<Term>,
    /// Names of one or more words, each as a bit mask of word indexes.
    names: Vec<u32>,
    days: Vec<Day>,
    /// The periods that the query mentions, in Unix milliseconds.
    times: Vec<Range<i64>>,
}

/// Which words and days of a query a text contains, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    words: u32,
    days: u32,
}

impl Coverage {
    /// Whether it contains none of them.
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// The union of the coverage of two texts.
impl BitOr for Coverage {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self { words: self.words | other.words, days: self.days | other.days }
    }
}

impl QueryTerms {
    /// The significant words, without repetitions, in the order of the text. Any text is a valid query.
    pub(super) fn parse(text: &str) -> Self {
        Self::parse_excluding(text, STOP_WORDS)
    }

    /// Falls back to all words of the text if none of them is significant.
    pub(super) fn or_all_words(self, text: &str) -> Self {
        if self.is_empty() { Self::parse_excluding(text, &[]) } else { self }
    }

    /// Parses a text without the words in `stop_words`, which must be sorted.
    fn parse_excluding(text: &str, stop_words: &[&str]) -> Self {
        let words: Vec<(&str, &str)> = split_words_with_gaps(text).collect();
        let lower: Vec<String> = words.iter().map(|(_, word)| word.to_lowercase()).collect();
        let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
        let mut terms = Self::default();
        let mut name = None;
        let mut index = 0;
        while let (Some((gap, word)), Some(rest)) = (words.get(index), lower.get(index..)) {
            if terms.words.len() == MAX_TERMS {
                break;
            }
            if let Some((date, length)) = dates::parse_date_prefix(rest) {
                terms.add_date(date);
                name = None;
                index += length;
                continue;
            }
            // The first word of a sentence is capitalized anyway.
            let starts_sentence = index == 0 || gap.contains(['.', '!', '?', ':', '\n']);
            index += 1;
            let Some(lower) = rest.first().filter(|lower| stop_words.binary_search(lower).is_err()) else {
                name = None;
                continue;
            };
            let is_name = is_name(word, starts_sentence);
            // A name continues if only a space, a hyphen or an apostrophe separates its words.
            let continues_name = is_name && matches!(*gap, " " | "-" | "'" | "’");
            name = terms.add_word(lower, is_name, name.filter(|_| continues_name));
        }
        let mut seen = HashSet::new();
        terms.names.retain(|name| seen.insert(*name));
        terms
    }

    fn add_date(&mut self, date: DateMention) {
        if let DateMention::Day(day) = date
            && self.days.len() < MAX_TERMS
            && !self.days.contains(&day)
        {
            self.days.push(day);
        }
        self.times.extend(
            date.time_range().filter(|time| self.times.len() < MAX_TERMS && !self.times.contains(time)),
        );
    }

    /// Adds a word, appending it to the name before it if there is one. Returns the index of the name that it
    /// belongs to.
    fn add_word(&mut self, word: &str, is_name: bool, name: Option<usize>) -> Option<usize> {
        let index = self.words.iter().position(|term| term.word == word).unwrap_or_else(|| {
            self.words.push(Term { word: word.to_owned(), is_name });
            self.words.len() - 1
        });
        let bit = 1 << index;
        if !is_name {
            return None;
        }
        if let Some(before) = name.and_then(|name| self.names.get_mut(name)) {
            *before |= bit;
            return name;
        }
        self.names.push(bit);
        Some(self.names.len() - 1)
    }

    /// Whether there is nothing to search for.
    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty() && self.days.is_empty()
    }

    /// An FTS5 expression for each of the words.
    pub(super) fn match_expressions(&self) -> Vec<String> {
        // A word consists of letters and digits only, so it cannot end the quotation.
        self.words.iter().map(|term| format!("\"{}\"", term.word)).collect()
    }

    /// The word indexes of each name.
    pub(super) fn names(&self) -> impl Iterator<Item = Vec<usize>> {
        self.names.iter().map(|name| (0..self.words.len()).filter(|word| name & (1 << word) != 0).collect())
    }

    /// An FTS5 expression for texts that mention any of the days; `None` if there are none.
    pub(super) fn days_expression(&self) -> Option<String> {
        let days: Vec<String> = self.days.iter().map(|day| day.match_expression()).collect();
        (!days.is_empty()).then(|| days.join(" OR "))
    }

    /// The periods that the query mentions.
    pub(super) fn times(&self) -> &[Range<i64>] {
        &self.times
    }

    /// The terms that a text contains, in any inflection.
    pub(super) fn coverage(&self, text: &str) -> Coverage {
        let mut coverage = Coverage::default();
        for word in split_words(text) {
            let word = word.to_lowercase();
            let stem = stem(&word);
            let mut bit = 1;
            for term in &self.words {
                if coverage.words & bit == 0
                    && term.word.starts_with(stem)
                    && are_inflections(&term.word, &word)
                {
                    coverage.words |= bit;
                }
                bit <<= 1;
            }
        }
        Coverage { days: self.days_in(text), ..coverage }
    }

    fn days_in(&self, text: &str) -> u32 {
        if self.days.is_empty() {
            return 0;
        }
        let lower = text.to_lowercase();
        let words: Vec<&str> = split_words(&lower).collect();
        let mentions =
            (0..words.len()).filter_map(|start| words.get(start..).and_then(dates::parse_date_prefix));
        let days = mentions.filter_map(|(mention, _)| match mention {
            DateMention::Day(day) => Some(day),
            DateMention::Month { .. } => None,
        });
        days.fold(0, |found, day| {
            let bit_of = |(index, wanted): (usize, &Day)| if wanted.matches(day) { 1 << index } else { 0 };
            self.days.iter().enumerate().map(bit_of).fold(found, BitOr::bitor)
        })
    }

    /// The weight of a text with the given coverage: the sum of the weights of its words, of which `weights` has
    /// one each. A complete name counts again, and each day counts twice the highest weight.
    pub(super) fn weight(&self, coverage: Coverage, weights: &[f64]) -> f64 {
        let sum_of = |words: u32| -> f64 {
            let covered = weights.iter().enumerate().filter(|(index, _)| words & (1 << index) != 0);
            covered.map(|(_, weight)| weight).sum()
        };
        let heaviest = weights.iter().copied().fold(1.0, f64::max);
        let names = self.covered_names(coverage).map(sum_of).sum::<f64>();
        sum_of(coverage.words) + names + f64::from(coverage.days.count_ones()) * 2.0 * heaviest
    }

    /// The number of terms that a text contains; a complete name counts as one more.
    pub(super) fn count(&self, coverage: Coverage) -> usize {
        let bits = coverage.words.count_ones() + coverage.days.count_ones();
        usize::try_from(bits).unwrap_or(0) + self.covered_names(coverage).count()
    }

    fn covered_names(&self, coverage: Coverage) -> impl Iterator<Item = u32> {
        self.names.iter().copied().filter(move |name| coverage.words & name == *name)
    }

    /// Whether a text with this coverage is worth showing unasked: it contains half of the words (at most three
    /// are needed), or a complete name or a day together with half of the terms or with at least one other term. A
    /// name counts as one term and must be complete.
    pub(super) fn is_relevant(&self, coverage: Coverage) -> bool {
        let count = |bits: u32| usize::try_from(bits.count_ones()).unwrap_or(0);
        let half = |all: usize| all.div_ceil(2).clamp(1, 3);
        let name_words = self.names.iter().fold(0, |all, name| all | name);
        let plain = count(coverage.words & !name_words);
        let named = self.covered_names(coverage).count() + count(coverage.days);
        let other_words = self.words.len() - count(name_words);
        let all = other_words + self.names.len() + self.days.len();
        let covered = plain + named;
        plain >= half(self.words.len() + self.days.len())
            || (named > 0 && (covered >= 2 || covered >= half(all)))
    }
}

/// Whether a word looks like a name or a number. A word at the beginning of a sentence is capitalized anyway.
fn is_name(word: &str, starts_sentence: bool) -> bool {
    let capital = word.chars().next().is_some_and(char::is_uppercase);
    let inner_capital = word.chars().skip(1).any(char::is_uppercase);
    word.chars().any(char::is_numeric) || inner_capital || (capital && !starts_sentence)
}

fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// The words of a text, each with the text between it and the word before.
fn split_words_with_gaps(mut text: &str) -> impl Iterator<Item = (&str, &str)> {
    std::iter::from_fn(move || {
        let begin = text.find(char::is_alphanumeric)?;
        let (gap, rest) = text.split_at_checked(begin)?;
        let end = rest.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(rest.len());
        let (word, rest) = rest.split_at_checked(end)?;
        text = rest;
        Some((gap, word))
    })
}

/// The first [`STEM_LETTERS`] letters of a word.
fn stem(word: &str) -> &str {
    first_chars(word, STEM_LETTERS)
}

/// Whether two words are inflections of the same word: an approximation for texts that an index has found.
fn are_inflections(one: &str, other: &str) -> bool {
    let letters = one.char_indices().zip(other.chars());
    let same = letters.take_while(|((_, one), other)| one == other).map(|((at, one), _)| at + one.len_utf8());
    let same = same.last().unwrap_or(0);
    let ends =
        |word: &str| word.get(same..).is_some_and(|end| INFLECTION_SUFFIXES.binary_search(&end).is_ok());
    one == other || (ends(one) && ends(other))
}

#[cfg(test)]
#[path = "../tests/unit/tokenize.rs"]
mod tests;
