//! Compares two texts by their content words, stemmed as in the engine's index.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::dates::MONTHS;

/// The tokenizer of the engine's indexes.
pub(crate) const TOKENIZER: &str = "porter unicode61 remove_diacritics 2";

/// Function words of English: articles, pronouns, prepositions, conjunctions, auxiliaries, question words.
pub(crate) const STOP_WORDS: &[&str] = &[
    "a", "about", "after", "again", "all", "am", "an", "and", "any", "are", "as", "at", "be", "been",
    "before", "being", "both", "but", "by", "can", "could", "d", "did", "do", "does", "during", "each",
    "ever", "every", "for", "from", "had", "has", "have", "he", "her", "hers", "him", "his", "how", "i",
    "if", "in", "into", "is", "it", "its", "just", "ll", "may", "me", "might", "mine", "more", "most",
    "must", "my", "no", "not", "now", "of", "off", "on", "once", "only", "or", "other", "our", "out", "over",
    "own", "s", "same", "shall", "she", "should", "so", "some", "such", "t", "than", "that", "the", "their",
    "theirs", "them", "then", "there", "these", "they", "this", "those", "through", "to", "too", "under",
    "until", "up", "us", "ve", "very", "was", "we", "were", "what", "when", "where", "which", "while", "who",
    "whom", "whose", "why", "will", "with", "would", "you", "your",
];

/// Stems words with an in-memory FTS5 index.
pub(crate) struct Stemmer {
    index: Connection,
    stop: BTreeSet<String>,
}

impl Stemmer {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let index = Connection::open_in_memory()?;
        index.execute_batch(&format!(
            "CREATE VIRTUAL TABLE texts USING fts5 (content, tokenize = '{TOKENIZER}');
             CREATE VIRTUAL TABLE stems USING fts5vocab (texts, row);"
        ))?;
        let mut stemmer = Self { index, stop: BTreeSet::new() };
        stemmer.stop = stemmer.stems(&STOP_WORDS.join(" "))?;
        Ok(stemmer)
    }

    fn stems(&self, text: &str) -> anyhow::Result<BTreeSet<String>> {
        self.index.execute("DELETE FROM texts", [])?;
        self.index.execute("INSERT INTO texts VALUES (?1)", [text])?;
        let mut stems = self.index.prepare_cached("SELECT term FROM stems")?;
        let stems = stems.query_map([], |row| row.get(0))?;
        Ok(stems.collect::<Result<_, _>>()?)
    }

    /// Returns the stems of the content words that two texts share, except for those in `names` and the parts of
    /// dates: numbers, months and ordinals.
    pub(crate) fn shared_words(
        &self,
        one: &str,
        other: &str,
        names: &str,
    ) -> anyhow::Result<BTreeSet<String>> {
        let (other, names) = (self.stems(other)?, self.stems(names)?);
        let months = self.stems(&MONTHS.join(" "))?;
        let mut shared = self.stems(one)?;
        shared.retain(|stem| {
            let is_number = stem.starts_with(|letter: char| letter.is_ascii_digit());
            let is_ignored = self.stop.contains(stem) || names.contains(stem);
            other.contains(stem) && !is_ignored && !is_number && !months.contains(stem)
        });
        Ok(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_shared_in_any_form_but_for_names_dates_and_what_says_nothing() {
        let stemmer = Stemmer::new().unwrap();
        let shared = |one, other| stemmer.shared_words(one, other, "Mara Lind").unwrap();
        let text = "Mara Lind adopted a greyhound on the 2nd of March 2024.";
        assert!(shared("What is the pet of Mara Lind, since 2 March 2024?", text).is_empty());
        assert_eq!(shared("Was it Mara who was adopting?", text), BTreeSet::from(["adopt".to_owned()]));
    }
}
