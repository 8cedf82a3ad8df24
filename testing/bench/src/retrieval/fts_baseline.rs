//! The baseline of memory search: a plain FTS5 index ranked by bm25, which matches any word of a question. It
//! has no notion of places or dates.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};

use super::conversations::{Conversation, MessageNumber};
use super::score::Hit;

/// The tokenizer of the baselines.
pub(crate) const TOKENIZER: &str = "porter unicode61 remove_diacritics 2";

/// Function words of English: articles, pronouns, prepositions, conjunctions, auxiliaries, question words.
const STOP_WORDS: &[&str] = &[
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

/// The part of a conversation that is a row of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexUnit {
    Messages,
    /// Windows of six messages, each starting three after the previous one.
    Windows,
    Sessions,
}

impl IndexUnit {
    pub(crate) const ALL: [Self; 3] = [Self::Windows, Self::Messages, Self::Sessions];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Messages => "FTS5, messages",
            Self::Windows => "FTS5, windows",
            Self::Sessions => "FTS5, sessions",
        }
    }

    /// Returns the number of messages in a row, and the distance to the start of the next one.
    const fn width_and_stride(self) -> (usize, usize) {
        match self {
            Self::Messages => (1, 1),
            Self::Windows => (6, 3),
            Self::Sessions => (usize::MAX, usize::MAX),
        }
    }
}

/// A full-text index of a conversation.
pub(crate) struct FtsBaseline {
    connection: Connection,
    /// The messages in each row.
    rows: Vec<Range<MessageNumber>>,
}

impl FtsBaseline {
    /// Indexes a conversation in the new file `file`.
    pub(crate) fn new(file: &Path, conversation: &Conversation, unit: IndexUnit) -> anyhow::Result<Self> {
        let mut connection = Connection::open(file)?;
        let sessions = conversation.sessions.iter();
        let rows: Vec<_> = sessions.flat_map(|session| rows(session.messages.clone(), unit)).collect();
        let transaction = connection.transaction()?;
        transaction.execute_batch(&format!(
            "CREATE VIRTUAL TABLE texts USING fts5 (content, tokenize = '{TOKENIZER}')"
        ))?;
        {
            let mut insert = transaction.prepare("INSERT INTO texts (rowid, content) VALUES (?1, ?2)")?;
            for (row, messages) in rows.iter().enumerate() {
                insert.execute(params![i64::try_from(row)?, conversation.text(messages.clone())])?;
            }
        }
        transaction.commit()?;
        Ok(Self { connection, rows })
    }

    /// Returns the best rows for a question, and the time to load them with their texts.
    pub(crate) fn search(&self, text: &str, limit: usize) -> anyhow::Result<(Vec<Hit>, Duration)> {
        let began = Instant::now();
        let mut query = self
            .connection
            .prepare_cached("SELECT rowid, content FROM texts WHERE texts MATCH ?1 ORDER BY rank LIMIT ?2")?;
        let found = query.query_map(params![any_word_query(text), i64::try_from(limit)?], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
        })?;
        let found: Vec<_> = found.collect::<Result<_, _>>()?;
        let took = began.elapsed();
        let messages = |row: i64| usize::try_from(row).ok().and_then(|row| self.rows.get(row)).cloned();
        // The index has no notion of relevance.
        let hit = |(row, _)| Hit { messages: messages(row).unwrap_or_default().collect(), ..Hit::default() };
        Ok((found.into_iter().map(hit).collect(), took))
    }

    /// The size of the index without the copy of the texts, in bytes.
    pub(crate) fn index_bytes(&self) -> anyhow::Result<u64> {
        super::resources::table_bytes(&self.connection, &["texts_data", "texts_idx", "texts_docsize"])
    }
}

/// Splits the messages of a session into rows.
fn rows(session: Range<MessageNumber>, unit: IndexUnit) -> Vec<Range<MessageNumber>> {
    let (width, stride) = unit.width_and_stride();
    let mut rows = Vec::new();
    let mut first = session.start;
    while first < session.end {
        let end = session.end.min(first.saturating_add(width));
        rows.push(first..end);
        // A rest that the previous row already contains is not a row of its own.
        if end == session.end {
            break;
        }
        first += stride;
    }
    rows
}

/// Returns an FTS5 query that matches any of the content words.
fn any_word_query(text: &str) -> String {
    let mut seen = HashSet::new();
    let words = text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    let words = words.map(str::to_lowercase).filter(|word| STOP_WORDS.binary_search(&word.as_str()).is_err());
    let words: Vec<_> =
        words.filter(|word| seen.insert(word.clone())).map(|word| format!("\"{word}\"")).collect();
    words.join(" OR ")
}

#[cfg(test)]
mod tests {
    use super::super::generator;
    use super::*;

    #[test]
    fn a_conversation_is_indexed_by_messages_windows_or_as_a_whole() {
        let lengths = |unit| rows(10..20, unit).iter().map(Range::len).collect::<Vec<_>>();
        assert_eq!(lengths(IndexUnit::Messages), [1; 10]);
        assert_eq!(lengths(IndexUnit::Windows), [6, 6, 4]);
        assert_eq!(lengths(IndexUnit::Sessions), [10]);
    }

    #[test]
    fn stop_words_are_in_order_and_left_out() {
        assert!(STOP_WORDS.is_sorted());
        assert_eq!(any_word_query("What is the pet of Mara Lind, Mara?"), r#""pet" OR "mara" OR "lind""#);
    }

    #[test]
    fn what_is_indexed_is_found_with_its_place() {
        let conversation = generator::generate(2, 1_000);
        let folder = tempfile::tempdir().unwrap();
        for unit in IndexUnit::ALL {
            let index = FtsBaseline::new(&folder.path().join(unit.name()), &conversation, unit).unwrap();
            let question = &conversation.questions[0];
            let text = &conversation.messages[question.evidence[0]].text;
            let (hits, _) = index.search(text, 10).unwrap();
            assert!(hits.iter().any(|hit| hit.messages.contains(&question.evidence[0])), "{unit:?}");
            assert!(index.index_bytes().unwrap() > 10_000);
        }
    }
}
