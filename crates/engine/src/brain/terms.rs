//! What a text is searched by: its words without those that say nothing, and which of them are names. Pure.

use std::collections::HashSet;
use std::ops::BitOr;

/// The most words of a query that are looked up: a long message is searched by its beginning. No more than
/// [`Coverage`] has bits.
const MAX_TERMS: usize = 24;
/// How many letters two forms of one word begin with alike, at least.
const STEM: usize = 3;
/// What forms of one word end with.
const ENDINGS: &[&str] = &[
    "", "al", "d", "e", "ed", "er", "ers", "es", "ies", "ing", "ings", "ion", "ions", "ly", "ment", "ments",
    "s", "y",
];

/// Words that say nothing about what a text is about.
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

/// A word that is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    /// In lower case.
    word: String,
    /// Whether it looks like a name, a number or a date: what it means no other word says.
    is_name: bool,
}

/// What a query looks for. Empty where it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms(Vec<Term>);

/// Which of a query's words a text has, and which of its names: a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    words: u32,
    names: u32,
}

impl Coverage {
    /// How many of the words.
    pub(super) const fn words(self) -> u32 {
        self.words.count_ones()
    }

    /// How many of the names.
    pub(super) const fn names(self) -> u32 {
        self.names.count_ones()
    }
}

/// What two texts have together.
impl BitOr for Coverage {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self { words: self.words | other.words, names: self.names | other.names }
    }
}

impl Terms {
    /// The words that say something, each once, in the order of the text. Any text is a query.
    pub(super) fn of(text: &str) -> Self {
        Self::but(text, STOP_WORDS)
    }

    /// All words, where none of them says something.
    pub(super) fn or_all(self, text: &str) -> Self {
        if self.is_empty() { Self::but(text, &[]) } else { self }
    }

    /// The words of a text but those `left_out`, which are sorted.
    fn but(text: &str, left_out: &[&str]) -> Self {
        let mut seen = HashSet::new();
        let mut begins = true;
        let mut terms = Vec::new();
        for word in words(text) {
            let lower = word.to_lowercase();
            let capital = word.chars().next().is_some_and(char::is_uppercase);
            let shouted = word.chars().skip(1).any(char::is_uppercase);
            let is_name = word.chars().any(char::is_numeric) || shouted || (capital && !begins);
            begins = false;
            if left_out.binary_search(&lower.as_str()).is_err() && seen.insert(lower.clone()) {
                terms.push(Term { word: lower, is_name });
            }
            if terms.len() == MAX_TERMS {
                break;
            }
        }
        Self(terms)
    }

    /// Whether there is nothing to look for.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An index's expression for each of the words, and whether it is a name.
    pub(super) fn expressions(&self) -> Vec<(String, bool)> {
        // A word is letters and digits alone, so nothing in it can end the quotation.
        self.0.iter().map(|term| (format!("\"{}\"", term.word), term.is_name)).collect()
    }

    /// How much of them a text has, in whatever form.
    pub(super) fn coverage(&self, text: &str) -> Coverage {
        let mut coverage = Coverage::default();
        for word in words(text) {
            let word = word.to_lowercase();
            let stem = stem(&word);
            let mut bit = 1;
            for term in &self.0 {
                if coverage.words & bit == 0 && term.word.starts_with(stem) && alike(&term.word, &word) {
                    coverage.words |= bit;
                    coverage.names |= if term.is_name { bit } else { 0 };
                }
                bit <<= 1;
            }
        }
        coverage
    }

    /// Whether a text with so much of them is worth showing to somebody who did not ask for it: half of the words,
    /// three at most, or a name and something beside it.
    pub(super) fn is_relevant(&self, coverage: Coverage) -> bool {
        let half = u32::try_from(self.0.len().div_ceil(2)).unwrap_or(u32::MAX).clamp(1, 3);
        coverage.words() >= half || (coverage.names() > 0 && coverage.words() >= 2)
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// The first letters of a word.
fn stem(word: &str) -> &str {
    word.char_indices().nth(STEM).and_then(|(end, _)| word.get(..end)).unwrap_or(word)
}

/// Whether two words are forms of one: near enough to judge a text that an index has found.
fn alike(one: &str, other: &str) -> bool {
    let letters = one.char_indices().zip(other.chars());
    let same = letters.take_while(|((_, one), other)| one == other).map(|((at, one), _)| at + one.len_utf8());
    let same = same.last().unwrap_or(0);
    let ends = |word: &str| word.get(same..).is_some_and(|end| ENDINGS.binary_search(&end).is_ok());
    one == other || (ends(one) && ends(other))
}

#[cfg(test)]
#[path = "terms_tests.rs"]
mod tests;
