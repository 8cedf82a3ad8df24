//! The script of a character, as far as it decides how a text is cut into words.

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use super::fold::continues_word;

/// What a character means for the words around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A letter or a digit of a word.
    Word(Script),
    /// A letter of a script that writes no spaces between words.
    Unspaced(Unspaced),
    Hangul,
    /// An emoji or another pictogram: a word of its own.
    Symbol,
    /// Belongs to the character before it.
    Mark,
    /// Ends a word.
    Gap,
}

/// The scripts of words between spaces; each but `Other` has a stemmer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Latin,
    Greek,
    Cyrillic,
    Armenian,
    Hebrew,
    Arabic,
    Devanagari,
    Tamil,
    /// Decimal digits, which take the script of the letters beside them.
    Digit,
    Other,
}

/// The scripts without spaces between words. Chinese characters and both kana are one of them, for they share
/// words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unspaced {
    Cjk,
    Thai,
    Lao,
    Myanmar,
    Khmer,
}

/// Classifies a character.
pub(super) fn classify(letter: char) -> Class {
    if letter.is_ascii() {
        return match letter {
            '0'..='9' => Class::Word(Script::Digit),
            'a'..='z' | 'A'..='Z' => Class::Word(Script::Latin),
            _ => Class::Gap,
        };
    }
    if continues_word(letter) {
        return Class::Mark;
    }
    if letter.is_alphanumeric() {
        return classify_alphanumeric(letter);
    }
    match letter.general_category() {
        GeneralCategory::OtherSymbol => Class::Symbol,
        _ => Class::Gap,
    }
}

fn classify_alphanumeric(letter: char) -> Class {
    match u32::from(letter) {
        0x00aa..=0x024f
        | 0x0250..=0x02af
        | 0x1d00..=0x1dbf
        | 0x1e00..=0x1eff
        | 0x2c60..=0x2c7f
        | 0xa720..=0xa7ff
        | 0xab30..=0xab6f => Class::Word(Script::Latin),
        0x0370..=0x03ff | 0x1f00..=0x1fff => Class::Word(Script::Greek),
        0x0400..=0x052f | 0x1c80..=0x1c8f | 0xa640..=0xa69f => Class::Word(Script::Cyrillic),
        0x0530..=0x058f => Class::Word(Script::Armenian),
        0x0590..=0x05ff => Class::Word(Script::Hebrew),
        0x0660..=0x0669 | 0x06f0..=0x06f9 | 0x0966..=0x096f => Class::Word(Script::Digit),
        0x0600..=0x06ff | 0x0750..=0x077f | 0x0870..=0x08ff => Class::Word(Script::Arabic),
        0x0900..=0x097f => Class::Word(Script::Devanagari),
        0x0b80..=0x0bff => Class::Word(Script::Tamil),
        0x0e00..=0x0e7f => Class::Unspaced(Unspaced::Thai),
        0x0e80..=0x0eff => Class::Unspaced(Unspaced::Lao),
        0x1000..=0x109f | 0xa9e0..=0xa9ff | 0xaa60..=0xaa7f => Class::Unspaced(Unspaced::Myanmar),
        0x1780..=0x17ff => Class::Unspaced(Unspaced::Khmer),
        0x1100..=0x11ff | 0x3130..=0x318f | 0xa960..=0xa97f | 0xac00..=0xd7ff => Class::Hangul,
        0x3005..=0x3007
        | 0x3021..=0x3029
        | 0x3031..=0x303c
        | 0x3040..=0x30ff
        | 0x31f0..=0x31ff
        | 0x3400..=0x4dbf
        | 0x4e00..=0x9fff
        | 0xf900..=0xfaff
        | 0x1b000..=0x1b16f
        | 0x20000..=0x3ffff => Class::Unspaced(Unspaced::Cjk),
        _ => Class::Word(Script::Other),
    }
}

/// Whether a character is Chinese, which can be a word by itself; a kana hardly is.
pub(super) fn is_han(letter: char) -> bool {
    matches!(u32::from(letter),
        0x3005..=0x3007 | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x20000..=0x3ffff)
}

/// Whether a character is Hiragana, in which Japanese writes its grammar.
pub(super) fn is_hiragana(letter: char) -> bool {
    matches!(letter, '\u{3041}'..='\u{309f}')
}

/// Whether a character is one half of a flag, which two of them make.
pub(super) fn is_regional_indicator(letter: char) -> bool {
    matches!(letter, '\u{1f1e6}'..='\u{1f1ff}')
}
