//! The comparison of two texts in words, in every script. Pure, and of bounded effort.

use std::collections::HashMap;

use api::cassettes::{DiffOp, DiffPart};
use similar::{Algorithm, capture_diff_slices};

/// The most words of each text that are compared one by one. Of longer texts only the words that they share are counted.
const MAX_COMPARED_WORDS: usize = 2_000;
/// The most words into which a text is split. What follows them counts as one.
const MAX_WORDS: usize = 150_000;

/// Two texts compared.
#[derive(Debug, PartialEq)]
pub(super) struct Comparison {
    /// How similar they are, from 0 to 1.
    pub(super) similarity: f64,
    /// The parts of both in order; empty if they are equal.
    pub(super) parts: Vec<DiffPart>,
}

/// Compares a text with a newer one.
pub(super) fn compare(old: &str, new: &str) -> Comparison {
    if old == new {
        return Comparison { similarity: 1.0, parts: Vec::new() };
    }
    let (old, new) = (words(old), words(new));
    let start = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (old.get(start..).unwrap_or_default(), new.get(start..).unwrap_or_default());
    let end = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old_middle, tail) = old_rest.split_at(old_rest.len().saturating_sub(end));
    let new_middle = new_rest.get(..new_rest.len().saturating_sub(end)).unwrap_or_default();
    let mut parts = Parts::default();
    let head = old.get(..start).unwrap_or_default();
    parts.push(DiffOp::Equal, head);
    let shared = if old_middle.len().max(new_middle.len()) <= MAX_COMPARED_WORDS {
        parts.push_differences(old_middle, new_middle)
    } else {
        parts.push(DiffOp::Delete, old_middle);
        parts.push(DiffOp::Insert, new_middle);
        shared_words(old_middle, new_middle)
    };
    parts.push(DiffOp::Equal, tail);
    let shared = shared + count(head) + count(tail);
    Comparison { similarity: ratio(2 * shared, count(&old) + count(&new)), parts: parts.0 }
}

/// `part` of `whole`, rounded to four decimals; 1 of nothing.
#[expect(clippy::cast_precision_loss, reason = "no text has as many words as a double cannot count")]
pub(super) fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 1.0 } else { round(part as f64 / whole as f64) }
}

/// Rounds a score to four decimals.
pub(super) fn round(score: f64) -> f64 {
    (score * 10_000.0).round() / 10_000.0
}

#[derive(Default)]
struct Parts(Vec<DiffPart>);

impl Parts {
    /// Appends words of one text or of both.
    fn push(&mut self, op: DiffOp, words: &[&str]) {
        if words.is_empty() {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.op == op => last.text.extend(words.iter().copied()),
            _ => self.0.push(DiffPart { op, text: words.concat() }),
        }
    }

    /// Appends the differences of two texts. Returns the number of words that they share.
    fn push_differences(&mut self, old: &[&str], new: &[&str]) -> usize {
        let mut shared = 0;
        for op in capture_diff_slices(Algorithm::Myers, old, new) {
            let old = old.get(op.old_range()).unwrap_or_default();
            if op.tag() == similar::DiffTag::Equal {
                shared += count(old);
                self.push(DiffOp::Equal, old);
            } else {
                self.push(DiffOp::Delete, old);
                self.push(DiffOp::Insert, new.get(op.new_range()).unwrap_or_default());
            }
        }
        shared
    }
}

/// The number of words without the white space between them.
fn count(words: &[&str]) -> usize {
    words.iter().filter(|word| is_word(word)).count()
}

fn is_word(word: &str) -> bool {
    !word.trim().is_empty()
}

/// How many words two texts share in any order.
fn shared_words(old: &[&str], new: &[&str]) -> usize {
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in old.iter().filter(|word| is_word(word)) {
        *left.entry(word).or_default() += 1;
    }
    let is_left = |word: &&&str| match left.get_mut(**word) {
        Some(number) if *number > 0 => {
            *number -= 1;
            true
        }
        _ => false,
    };
    new.iter().filter(|word| is_word(word)).filter(is_left).count()
}

/// Splits a text into words, white space, and single characters: signs, and letters of scripts without spaces. Of a long
/// text only the beginning is split.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if words.len() == MAX_WORDS {
            words.push(rest);
            break;
        }
        let kind = Kind::of(first);
        let length = match kind {
            Kind::Single => first.len_utf8(),
            kind => rest.find(|next| Kind::of(next) != kind).unwrap_or(rest.len()),
        };
        let (word, after) = rest.split_at(length);
        words.push(word);
        rest = after;
    }
    words
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Space,
    Letter,
    Single,
}

impl Kind {
    fn of(character: char) -> Self {
        // Thai, Lao, Burmese and Khmer; kana and Han.
        let has_no_spaces = matches!(
            character,
            '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
            | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{3ffff}'
        );
        match character {
            space if space.is_whitespace() => Self::Space,
            // Marks of a letter follow it.
            letter if !has_no_spaces && (letter.is_alphanumeric() || !letter.is_ascii()) => Self::Letter,
            _ => Self::Single,
        }
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/agent/cassettes/text_diff.rs"]
mod tests;
