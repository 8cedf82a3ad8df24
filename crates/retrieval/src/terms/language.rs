//! The language of a text in Latin letters, as far as a stemmer needs it.
//!
//! One message is often too short to tell. So a language only ever adds: see [`mod@super::stems`] for how a word
//! meets itself whatever its texts are taken for.

use snowball_stemmers_rs::Algorithm;

use crate::stop_words::{List, lists_with};

/// A language in Latin letters other than English.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    German,
    French,
    Spanish,
    Portuguese,
    Italian,
    Dutch,
    Swedish,
    Polish,
    Turkish,
}

const LANGUAGES: [Language; 9] = [
    Language::German,
    Language::French,
    Language::Spanish,
    Language::Portuguese,
    Language::Italian,
    Language::Dutch,
    Language::Swedish,
    Language::Polish,
    Language::Turkish,
];

/// A long text shows its language by its first words.
const MAX_WORDS: usize = 200;
/// One word of a list may be a word of another language; two seldom are.
const MIN_SIGNS: usize = 2;

impl Language {
    /// The language with the most signs: words of its list, and words with a letter that few others have.
    /// `None` if there are fewer than two of them or no more than words of the English list. `words` gives
    /// each word as it is written and folded.
    pub(super) fn detect<'word>(words: impl Iterator<Item = (&'word str, &'word str)>) -> Option<Self> {
        let mut signs = [0_usize; LANGUAGES.len()];
        let mut english_signs = 0;
        for (written, folded) in words.take(MAX_WORDS) {
            let lists: Vec<List> = lists_with(folded).collect();
            english_signs += usize::from(lists.contains(&List::English));
            for (signs, language) in signs.iter_mut().zip(LANGUAGES) {
                let has_letter = !written.is_ascii() && written.contains(language.letters());
                *signs += usize::from(lists.contains(&language.stop_words())) + usize::from(has_letter);
            }
        }
        let most = signs.iter().copied().max().filter(|most| *most >= MIN_SIGNS && *most > english_signs)?;
        signs.iter().zip(LANGUAGES).find_map(|(signs, language)| (*signs == most).then_some(language))
    }

    /// The words that say nothing, by which the language is also known.
    pub(super) const fn stop_words(self) -> List {
        match self {
            Self::German => List::German,
            Self::French => List::French,
            Self::Spanish => List::Spanish,
            Self::Portuguese => List::Portuguese,
            Self::Italian => List::Italian,
            Self::Dutch => List::Dutch,
            Self::Swedish => List::Swedish,
            Self::Polish => List::Polish,
            Self::Turkish => List::Turkish,
        }
    }

    /// Letters that English does not have.
    const fn letters(self) -> &'static [char] {
        match self {
            Self::German => &['ä', 'ö', 'ü', 'ß', 'Ä', 'Ö', 'Ü'],
            Self::French => &['à', 'â', 'ç', 'è', 'é', 'ê', 'ë', 'î', 'ï', 'ô', 'û', 'œ', 'É', 'À'],
            Self::Spanish => &['á', 'é', 'í', 'ñ', 'ó', 'ú'],
            Self::Portuguese => &['á', 'â', 'ã', 'ç', 'é', 'ê', 'í', 'ó', 'ô', 'õ', 'ú'],
            Self::Italian => &['à', 'è', 'é', 'ì', 'ò', 'ù'],
            Self::Dutch => &['ë', 'ĳ'],
            Self::Swedish => &['å', 'ä', 'ö', 'Å', 'Ä', 'Ö'],
            Self::Polish => &['ą', 'ć', 'ę', 'ł', 'ń', 'ó', 'ś', 'ź', 'ż', 'Ł', 'Ś', 'Ż'],
            Self::Turkish => &['ç', 'ğ', 'ı', 'ö', 'ş', 'ü', 'İ', 'Ş', 'Ç'],
        }
    }

    pub(super) const fn stemmer(self) -> Algorithm {
        match self {
            Self::German => Algorithm::German,
            Self::French => Algorithm::French,
            Self::Spanish => Algorithm::Spanish,
            Self::Portuguese => Algorithm::Portuguese,
            Self::Italian => Algorithm::Italian,
            Self::Dutch => Algorithm::Dutch,
            Self::Swedish => Algorithm::Swedish,
            Self::Polish => Algorithm::Polish,
            Self::Turkish => Algorithm::Turkish,
        }
    }

    /// Whether the language writes compounds of nouns as one word, with the joints of [`super::compounds`].
    pub(super) const fn has_compounds(self) -> bool {
        matches!(self, Self::German | Self::Dutch | Self::Swedish)
    }
}
