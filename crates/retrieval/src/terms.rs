//! Turns a text into terms, in every script: those under which a message is indexed, and those that a
//! question asks.
//!
//! Both sides cut and fold alike, so a word meets itself:
//!
//! - Spelling is folded: compatibility forms, case, diacritics, vowel marks ([`mod@fold`]).
//! - Words between spaces are stemmed by their script and language ([`mod@stems`]); numbers stay as they are.
//! - Scripts without spaces are cut into overlapping pairs of characters. A Chinese character is a term by
//!   itself too, because it often is a word; a kana or a Thai letter only where it stands alone.
//! - A Korean word is a term as a whole and in pairs, which meet below its particles.
//! - An emoji or another pictogram is a term, whatever its skin tone and style of presentation.
//! - Words that connectors join (`foo_bar`, `ABC-123`, addresses) are terms by themselves and as one.
//!
//! Simplified and traditional Chinese characters are different characters: no maintained crate unites them.
//!
//! A term has at most [`MAX_TERM_BYTES`] bytes and no ASCII characters but lower-case letters and digits. So
//! the tokenizer `ascii` of FTS5 takes the text of [`index_text`] apart exactly where it was put together.

mod compounds;
mod fold;
pub(crate) mod language;
mod marks;
mod script;
mod stems;
mod tokens;

use std::collections::HashSet;

use unicode_normalization::UnicodeNormalization;

use crate::stop_words::{List, contains};
use fold::fold;
use language::Language;
pub use marks::marked_words;
use script::{Script, Unspaced, is_han, is_hiragana};
use stems::{Purpose, stems};
use tokens::{Token, tokens};

/// The most bytes of a term; what is longer is cut, in the index and in questions.
pub const MAX_TERM_BYTES: usize = 64;
/// The most words of a question that are looked up: a long message is searched by its beginning.
pub const MAX_ASKED_WORDS: usize = 64;

/// The particles of Korean that follow a noun of one syllable, the longer ones first.
const KOREAN_PARTICLES: &[&str] = &[
    "에서", "에게", "까지", "부터", "으로", "한테", "은", "는", "이", "가", "을", "를", "의", "에", "도",
    "로", "와", "과", "만",
];
/// The particles of Japanese that are no part of a word beside a Chinese character.
const JAPANESE_PARTICLES: &[char] = &['の', 'は', 'が', 'を', 'に', 'で', 'と', 'も', 'へ', 'や', 'か'];

/// A word of a question.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedWord {
    /// The terms that mean it: a message with one of them has the word. At least one.
    pub terms: Vec<String>,
    /// How sure it is that it is a word.
    pub kind: WordKind,
}

/// How sure it is that a word of a question is a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordKind {
    /// A word between spaces. If no message has it, then nobody ever said it.
    Whole,
    /// A pair of characters, a Chinese character among grammar, a Korean word with its particles, or words as
    /// one. If no message has it, then it may be nothing that anybody says: the end of one word and the
    /// beginning of the next.
    Piece,
}

/// The terms of a message, each once, separated by spaces: what a full-text index of single messages is fed.
pub fn index_text(text: &str) -> String {
    let text: String = text.nfkc().collect();
    let tokens = tokens(&text);
    let language = language_of(&tokens);
    let mut terms = Vec::new();
    for token in &tokens {
        match token {
            Token::Word(word, script) => {
                terms.extend(stems(word, *script, language, Purpose::Index));
            }
            Token::Chain(word, script) => terms.extend(stems(word, *script, language, Purpose::Ask)),
            Token::Hangul(word) => terms.extend(hangul_terms(&fold(word))),
            Token::Symbol(symbol) => terms.push(fold(symbol)),
            Token::Unspaced(run, script) => {
                let units = units(run, *script);
                terms.extend(
                    units.iter().filter(|unit| units.len() == 1 || is_word(unit)).cloned().map(bounded),
                );
                terms.extend(pairs(&units));
            }
        }
    }
    terms.retain(|term| !term.is_empty());
    terms.sort_unstable();
    terms.dedup();
    terms.join(" ")
}

/// The words of a question without those that say nothing. Each once.
pub fn content_words(text: &str) -> Vec<AskedWord> {
    collect_words(text, true)
}

/// All words of a question, for one that has no others. Each once.
pub fn all_words(text: &str) -> Vec<AskedWord> {
    collect_words(text, false)
}

/// The number of words that a text has.
pub fn count_words(words: &[AskedWord], text: &str) -> usize {
    let terms = index_text(text);
    let terms: HashSet<&str> = terms.split(' ').collect();
    words.iter().filter(|word| word.terms.iter().any(|term| terms.contains(term.as_str()))).count()
}

fn collect_words(text: &str, leave_out: bool) -> Vec<AskedWord> {
    let text: String = text.nfkc().collect();
    let tokens = tokens(&text);
    let language = language_of(&tokens);
    let mut words: Vec<AskedWord> = Vec::new();
    for token in &tokens {
        if words.len() >= MAX_ASKED_WORDS {
            break;
        }
        let mut ask = |terms: Vec<String>, kind| {
            let is_new = terms.first().is_some_and(|term| !term.is_empty())
                && words.iter().all(|word| word.terms.first() != terms.first());
            if is_new && words.len() < MAX_ASKED_WORDS {
                words.push(AskedWord { terms, kind });
            }
        };
        match token {
            Token::Word(word, script) => {
                if !(leave_out && is_stop_word(&fold(word), *script, language)) {
                    ask(stems(word, *script, language, Purpose::Ask), WordKind::Whole);
                }
            }
            Token::Chain(word, script) => {
                ask(stems(word, *script, language, Purpose::Ask), WordKind::Piece);
            }
            Token::Hangul(word) => {
                let word = fold(word);
                if !(leave_out && contains(List::Korean, &word)) {
                    for term in hangul_terms(&word) {
                        ask(vec![term], WordKind::Piece);
                    }
                }
            }
            Token::Symbol(symbol) => ask(vec![fold(symbol)], WordKind::Whole),
            Token::Unspaced(run, script) => {
                for (term, kind) in unspaced_words(&units(run, *script), leave_out) {
                    ask(vec![term], kind);
                }
            }
        }
    }
    words
}

/// The language of the words in Latin letters.
fn language_of(tokens: &[Token<'_>]) -> Option<Language> {
    let words: Vec<(&str, String)> = tokens
        .iter()
        .filter_map(|token| match token {
            Token::Word(word, Script::Latin) => Some((*word, fold(word))),
            _ => None,
        })
        .collect();
    Language::detect(words.iter().map(|(written, folded)| (*written, folded.as_str())))
}

/// Whether a folded word says nothing. Only the lists of its own language count: the German article is an
/// English verb.
fn is_stop_word(word: &str, script: Script, language: Option<Language>) -> bool {
    let list = match script {
        Script::Latin => language.map_or(List::English, Language::stop_words),
        Script::Cyrillic => List::Russian,
        Script::Arabic => List::Arabic,
        Script::Hebrew => List::Hebrew,
        Script::Devanagari => List::Hindi,
        Script::Greek | Script::Armenian | Script::Tamil | Script::Digit | Script::Other => return false,
    };
    contains(list, word)
}

/// The terms of a Korean word: itself, its pairs of syllables, and a single syllable before a particle.
fn hangul_terms(word: &str) -> Vec<String> {
    let syllables: Vec<String> = word.chars().map(String::from).collect();
    let mut terms = vec![bounded(word.to_owned())];
    if syllables.len() > 2 {
        terms.extend(pairs(&syllables));
    }
    let noun = KOREAN_PARTICLES.iter().find_map(|particle| word.strip_suffix(particle));
    terms.extend(noun.filter(|noun| noun.chars().count() == 1).map(str::to_owned));
    terms
}

/// The characters of a run without spaces, each with the marks that belong to it.
fn units(run: &str, script: Unspaced) -> Vec<String> {
    let mut units: Vec<String> = Vec::new();
    for letter in fold(run).chars() {
        match units.last_mut() {
            Some(unit) if script != Unspaced::Cjk && fold::continues_word(letter) => unit.push(letter),
            _ => units.push(letter.to_string()),
        }
    }
    units
}

fn pairs(units: &[String]) -> impl Iterator<Item = String> {
    units.windows(2).map(|pair| bounded(pair.concat()))
}

/// Whether a character can be a word by itself.
fn is_word(unit: &str) -> bool {
    unit.starts_with(is_han)
}

/// What a question asks of a run without spaces. `leave_out` leaves out what is grammar.
fn unspaced_words(units: &[String], leave_out: bool) -> Vec<(String, WordKind)> {
    let says_nothing = grammar(units, leave_out);
    if let ([unit], [says_nothing]) = (units, says_nothing.as_slice()) {
        return if *says_nothing { Vec::new() } else { vec![(unit.clone(), WordKind::Whole)] };
    }
    let mut words = Vec::new();
    let mut has_partner = false;
    for (index, (unit, is_grammar)) in units.iter().zip(&says_nothing).enumerate() {
        let next = units.get(index + 1).filter(|next| !(leave_out && is_grammar_pair(unit, next)));
        if let Some(next) = next {
            words.push((bounded([unit.as_str(), next].concat()), WordKind::Piece));
        }
        // A character of content with grammar on both sides is a question of one character.
        let has_next = next.is_some() && says_nothing.get(index + 1) == Some(&false);
        if is_word(unit) && !is_grammar && !has_partner && !has_next {
            words.push((unit.clone(), WordKind::Piece));
        }
        has_partner = has_next && !is_grammar;
    }
    words
}

/// Which characters are grammar, by themselves or as a part of a pair.
fn grammar(units: &[String], leave_out: bool) -> Vec<bool> {
    let mut grammar: Vec<bool> =
        units.iter().map(|unit| leave_out && contains(List::CjkCharacters, unit)).collect();
    for (index, pair) in units.windows(2).enumerate() {
        if leave_out && contains(List::CjkPairs, &pair.concat()) {
            grammar.iter_mut().skip(index).take(2).for_each(|is_grammar| *is_grammar = true);
        }
    }
    grammar
}

/// Whether a pair of characters is grammar, or part of it is: then it is no word either.
fn is_grammar_pair(first: &str, second: &str) -> bool {
    let is_joint = |particle: &str, other: &str| {
        particle.starts_with(JAPANESE_PARTICLES) && !other.starts_with(is_hiragana)
    };
    contains(List::CjkPairs, &[first, second].concat())
        || is_joint(first, second)
        || is_joint(second, first)
        || [first, second].iter().any(|unit| contains(List::CjkParticles, unit))
}

/// Cuts a term to the most bytes that one may have, behind a whole character.
fn bounded(mut term: String) -> String {
    term.truncate(term.floor_char_boundary(MAX_TERM_BYTES));
    term
}

#[cfg(test)]
#[path = "../tests/unit/terms.rs"]
mod tests;
