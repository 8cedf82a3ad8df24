//! Folds spellings of a word that a person does not tell apart: case, compatibility forms, diacritics, vowel
//! marks.
//!
//! Folding is a function of the word alone, and folding twice is folding once.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Folds a text: NFKC, full case folding, diacritics and vowel marks removed, variants of a letter united.
///
/// Case is folded as `lower(upper(lower(c)))`, which is full case folding for all letters that matter here: ß
/// and ẞ become `ss`, a final ς becomes σ, and all four of the Turkish I, ı, İ and i become `i`.
pub(super) fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let mut folded = String::with_capacity(text.len());
    let mut previous = ' ';
    for letter in text.nfkc().nfd() {
        // The breve of й distinguishes two letters of which one is in most endings of Russian.
        let is_short_i = letter == '\u{306}' && matches!(previous, 'и' | 'И');
        previous = letter;
        if is_ignored(letter) && !is_short_i {
            continue;
        }
        for letter in letter.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase) {
            push_united(&mut folded, letter);
        }
    }
    folded.nfc().collect()
}

/// Whether a character says nothing about which word it is in: diacritics of Latin, Greek and Cyrillic, vowel
/// marks of Arabic and Hebrew, nuktas, the Arabic tatweel, joiners, and marks of direction or of
/// presentation.
///
/// The vowel signs of Indic scripts and the marks of Thai stay: there they are letters.
pub(super) fn is_ignored(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}'
        | '\u{591}'..='\u{5bd}' | '\u{5bf}' | '\u{5c1}' | '\u{5c2}' | '\u{5c4}' | '\u{5c5}' | '\u{5c7}'
        | '\u{610}'..='\u{61a}' | '\u{640}' | '\u{64b}'..='\u{65f}' | '\u{670}'
        | '\u{6d6}'..='\u{6dc}' | '\u{6df}'..='\u{6e4}' | '\u{6e7}' | '\u{6e8}' | '\u{6ea}'..='\u{6ed}'
        | '\u{8d3}'..='\u{8e1}' | '\u{8e3}'..='\u{8ff}'
        | '\u{93c}' | '\u{9bc}' | '\u{a3c}' | '\u{abc}' | '\u{b3c}' | '\u{cbc}'
        | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20ff}'
        | '\u{fe20}'..='\u{fe2f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{1f3fb}'..='\u{1f3ff}' | '\u{e0000}'..='\u{e01ef}')
}

/// Whether a character belongs to the word of the character before it.
pub(super) fn continues_word(letter: char) -> bool {
    is_combining_mark(letter) || is_ignored(letter)
}

/// Appends a letter in the form in which its variants meet.
fn push_united(folded: &mut String, letter: char) {
    let united = match letter {
        'æ' => return folded.push_str("ae"),
        'œ' => return folded.push_str("oe"),
        'þ' => return folded.push_str("th"),
        'đ' | 'ð' => 'd',
        'ħ' => 'h',
        'ł' => 'l',
        'ø' => 'o',
        // Arabic and Persian keyboards have different letters for the same sounds.
        'ى' | 'ی' => 'ي',
        'ک' => 'ك',
        'ة' | 'ہ' | 'ە' => 'ه',
        'ٱ' => 'ا',
        // The forms of Hebrew letters at the end of a word, which an ending turns into the usual ones.
        'ך' => 'כ',
        'ם' => 'מ',
        'ן' => 'נ',
        'ף' => 'פ',
        'ץ' => 'צ',
        // Hindi writes the same nasal in two ways.
        'ँ' => 'ं',
        '٠'..='٩' => digit(letter, '٠'),
        '۰'..='۹' => digit(letter, '۰'),
        '०'..='९' => digit(letter, '०'),
        '০'..='৯' => digit(letter, '০'),
        '๐'..='๙' => digit(letter, '๐'),
        other => other,
    };
    folded.push(united);
}

/// The ASCII digit of a digit in a script whose zero is `zero`.
fn digit(letter: char, zero: char) -> char {
    char::from_digit(u32::from(letter).saturating_sub(u32::from(zero)), 10).unwrap_or(letter)
}
