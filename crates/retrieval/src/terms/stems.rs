//! The terms of one word: its stem.
//!
//! The language of a message cannot be known reliably, and a word must meet itself in a message of whatever
//! length. Therefore **the first term of a word is a function of the word alone**: its script decides the
//! stemmer, and for Latin letters that is the English one over folded letters, which changes few words of
//! other languages. Where the text shows another language ([`Language::detect`]), the stem in that language
//! is a second term of the same word. A question asks for either, so `Wohnungen` finds itself always, and
//! `Wohnung` wherever the language of one of the two texts is known.

use snowball_stemmers_rs::{Algorithm, Stemmer};

use super::bounded;
use super::compounds;
use super::fold::fold;
use super::language::Language;
use super::script::Script;

/// How many letters of a Semitic word must be left of it: most roots have three.
const ROOT_LETTERS: usize = 3;

/// What Arabic writes before a noun: and, in, like, for, the. The longest first.
const ARABIC_PREFIXES: &[&str] = &["وبال", "وال", "بال", "كال", "فال", "ولل", "لل", "ال", "و"];
/// Plurals, duals, feminine forms and possessives of Arabic, folded. The longest first.
const ARABIC_SUFFIXES: &[&str] = &[
    "تها", "تنا", "تهم", "هما", "تي", "ته", "تك", "ها", "هم", "نا", "ان", "ات", "ون", "ين", "يه", "ه", "ي",
    "ك",
];
/// What Hebrew writes before a noun: and, the, in, to, from, as, that.
const HEBREW_PREFIXES: &[char] = &['ו', 'ה', 'ב', 'ל', 'מ', 'כ', 'ש'];
/// The plurals of Hebrew, folded.
const HEBREW_SUFFIXES: &[&str] = &["ימ", "ות"];
/// Hebrew seldom writes more prefixes than two, and a third one would be of the root.
const MAX_HEBREW_PREFIXES: usize = 2;

/// Which terms of a word are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Those under which the word is found: the parts of a compound too.
    Index,
    /// Those that mean the word in a question.
    Ask,
}

/// The terms of a word, which is as it is written.
pub(super) fn stems(word: &str, script: Script, language: Option<Language>, purpose: Purpose) -> Vec<String> {
    let folded = bounded(fold(word));
    match script {
        Script::Latin => latin_stems(word, &folded, language, purpose),
        Script::Cyrillic => vec![stem(Algorithm::Russian, &folded)],
        Script::Greek => vec![stem(Algorithm::Greek, &folded)],
        Script::Armenian => vec![stem(Algorithm::Armenian, &folded)],
        Script::Devanagari => vec![stem(Algorithm::Hindi, &folded)],
        Script::Tamil => vec![stem(Algorithm::Tamil, &folded)],
        Script::Arabic => vec![arabic_stem(&folded).to_owned()],
        Script::Hebrew => vec![hebrew_stem(&folded).to_owned()],
        Script::Digit | Script::Other => vec![folded],
    }
}

/// The term that depends on the word alone, then those in its language.
fn latin_stems(word: &str, folded: &str, language: Option<Language>, purpose: Purpose) -> Vec<String> {
    let mut terms = vec![latin_base(folded)];
    let Some(language) = language else { return terms };
    push_new(&mut terms, stem_in(language, word));
    if purpose == Purpose::Index && language.has_compounds() {
        for part in compounds::parts(folded) {
            push_new(&mut terms, latin_base(part));
            push_new(&mut terms, stem_in(language, part));
        }
    }
    terms
}

/// The term of a word in Latin letters that depends on nothing but the word.
fn latin_base(folded: &str) -> String {
    stem(Algorithm::English, folded)
}

/// The stem of a written word in a language. Diacritics are folded after it, because endings are told apart
/// by them.
fn stem_in(language: Language, word: &str) -> String {
    // Turkish has two letters I.
    let word = if language == Language::Turkish {
        word.replace('I', "ı").replace('İ', "i").to_lowercase()
    } else {
        word.to_lowercase()
    };
    fold(&stem(language.stemmer(), &bounded(word)))
}

/// The stem, or the word itself if nothing would be left of it.
fn stem(algorithm: Algorithm, word: &str) -> String {
    let stem = Stemmer::create(algorithm).stem(word);
    bounded(if stem.is_empty() { word.to_owned() } else { stem.into_owned() })
}

/// A light stem: at most one prefix and one suffix, which for retrieval is as good as a root and errs less.
fn arabic_stem(word: &str) -> &str {
    let word = strip(word, ARABIC_PREFIXES, |word, prefix| word.strip_prefix(prefix));
    strip(word, ARABIC_SUFFIXES, |word, suffix| word.strip_suffix(suffix))
}

/// The plural is taken off before the prefixes, for it is the surer of the two.
fn hebrew_stem(word: &str) -> &str {
    let mut word = strip(word, HEBREW_SUFFIXES, |word, suffix| word.strip_suffix(suffix));
    for _ in 0..MAX_HEBREW_PREFIXES {
        match word.strip_prefix(HEBREW_PREFIXES) {
            Some(rest) if has_root(rest) => word = rest,
            _ => break,
        }
    }
    word
}

/// The word without the first of the affixes that leaves a root.
fn strip<'word>(
    word: &'word str,
    affixes: &[&str],
    strip: impl Fn(&'word str, &str) -> Option<&'word str>,
) -> &'word str {
    affixes.iter().find_map(|affix| strip(word, affix).filter(|rest| has_root(rest))).unwrap_or(word)
}

fn has_root(word: &str) -> bool {
    word.chars().count() >= ROOT_LETTERS
}

fn push_new(terms: &mut Vec<String>, term: String) {
    if !terms.contains(&term) {
        terms.push(term);
    }
}
