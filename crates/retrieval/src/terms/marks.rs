//! Finds the words of a question in a text that is shown to a person, to mark them.

use std::collections::HashSet;
use std::ops::Range;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::fold::{continues_word, fold};
use super::script::Unspaced;
use super::stems::{Purpose, stems};
use super::tokens::{Token, tokens};
use super::{AskedWord, bounded, hangul_terms, is_word, language_of};

/// The places of the words in a text, as ranges of its bytes: sorted, and none touches another inside a run without
/// spaces. A word is found as it is by a search, in another form and with another spelling too.
pub fn marked_words(words: &[AskedWord], text: &str) -> Vec<Range<usize>> {
    let asked: HashSet<&str> = words.iter().flat_map(|word| &word.terms).map(String::as_str).collect();
    let Normalized { text: normalized, starts } = Normalized::new(text);
    let found = tokens(&normalized);
    let language = language_of(&found);
    let mut marks: Vec<Range<usize>> = Vec::new();
    for token in &found {
        let has_asked = |terms: Vec<String>| terms.iter().any(|term| asked.contains(term.as_str()));
        let part = match token {
            // Its words are tokens by themselves.
            Token::Chain(..) => continue,
            Token::Word(word, _) | Token::Hangul(word) | Token::Symbol(word) => *word,
            Token::Unspaced(run, _) => *run,
        };
        let start = part.as_ptr().addr().saturating_sub(normalized.as_ptr().addr());
        let is_marked = match token {
            Token::Word(word, script) => has_asked(stems(word, *script, language, Purpose::Index)),
            Token::Hangul(word) => has_asked(hangul_terms(&fold(word))),
            Token::Symbol(symbol) => asked.contains(fold(symbol).as_str()),
            Token::Unspaced(run, script) => {
                let parts = unspaced_marks(run, *script, &asked);
                marks.extend(parts.into_iter().map(|range| start + range.start..start + range.end));
                false
            }
            Token::Chain(..) => false,
        };
        if is_marked {
            let end = start + part.len();
            let behind = normalized.get(end..).unwrap_or_default();
            // The skin tone of an emoji would be shown as a patch of colour beside the mark.
            let end = end + behind.len() - behind.trim_start_matches(continues_word).len();
            marks.push(start..end);
        }
    }
    let original = |at: usize| starts.get(at).copied().unwrap_or(text.len());
    let mut marks: Vec<Range<usize>> = marks
        .into_iter()
        .map(|range| original(range.start)..original(range.end))
        .filter(|range| !range.is_empty())
        .collect();
    marks.sort_unstable_by_key(|range| range.start);
    marks.dedup_by(|later, earlier| {
        let overlaps = later.start < earlier.end;
        if overlaps {
            earlier.end = earlier.end.max(later.end);
        }
        overlaps
    });
    marks
}

/// The parts of a run without spaces that are asked for: its pairs of characters, and single characters that are
/// words. Adjacent ones are one.
fn unspaced_marks(run: &str, script: Unspaced, asked: &HashSet<&str>) -> Vec<Range<usize>> {
    let mut units: Vec<(Range<usize>, String)> = Vec::new();
    for (start, letter) in run.char_indices() {
        let end = start + letter.len_utf8();
        let folded = fold(letter.encode_utf8(&mut [0; 4]));
        match units.last_mut() {
            Some((range, unit)) if script != Unspaced::Cjk && continues_word(letter) => {
                unit.push_str(&folded);
                range.end = end;
            }
            Some((range, _)) if folded.is_empty() => range.end = end,
            _ => units.push((start..end, folded)),
        }
    }
    let is_asked = |term: &str| asked.contains(term);
    let mut is_marked = vec![false; units.len()];
    for (index, (_, unit)) in units.iter().enumerate() {
        if (units.len() == 1 || is_word(unit)) && is_asked(unit) {
            is_marked.iter_mut().skip(index).take(1).for_each(|marked| *marked = true);
        }
    }
    for (index, pair) in units.windows(2).enumerate() {
        let pair: String = pair.iter().map(|(_, unit)| unit.as_str()).collect();
        if is_asked(&bounded(pair)) {
            is_marked.iter_mut().skip(index).take(2).for_each(|marked| *marked = true);
        }
    }
    let mut marks: Vec<Range<usize>> = Vec::new();
    for ((range, _), _) in units.into_iter().zip(is_marked).filter(|(_, is_marked)| *is_marked) {
        match marks.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => marks.push(range),
        }
    }
    marks
}

/// A text in NFKC, with the place in the original of each of its bytes.
struct Normalized {
    text: String,
    starts: Vec<usize>,
}

impl Normalized {
    /// Normalizes each character with the marks behind it, which is all that belongs together.
    fn new(original: &str) -> Self {
        let mut normalized = Self { text: String::with_capacity(original.len()), starts: Vec::new() };
        let mut start = 0;
        for (at, letter) in original.char_indices() {
            if at > 0 && !is_combining_mark(letter) {
                normalized.push(original, start..at);
                start = at;
            }
        }
        normalized.push(original, start..original.len());
        normalized
    }

    fn push(&mut self, original: &str, part: Range<usize>) {
        let start = part.start;
        self.text.extend(original.get(part).unwrap_or_default().nfkc());
        self.starts.resize(self.text.len(), start);
    }
}

#[cfg(test)]
#[path = "../../tests/unit/terms/marks.rs"]
mod tests;
