//! The baseline of memory search: a plain FTS5 index with the same tokenizer, ranked by bm25, which matches any
//! word of a question. It has no notion of names or of superseded records.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rusqlite::{Connection, params};

use super::corpus::{Corpus, Session, SourceRef, Speaker};
use super::score::Hit;
use super::stemming::{STOP_WORDS, TOKENIZER};

/// The unit of conversation that is a row of the index. In addition, each knowledge record is a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexUnit {
    Messages,
    /// Windows of six messages, each starting three after the previous one, as in the engine.
    Windows,
    Sessions,
}

impl IndexUnit {
    pub(crate) const ALL: [Self; 3] = [Self::Messages, Self::Windows, Self::Sessions];

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

/// A full-text index of a corpus.
pub(crate) struct FtsBaseline {
    connection: Connection,
    /// The sources in each row.
    row_sources: Vec<Vec<SourceRef>>,
}

impl FtsBaseline {
    /// Indexes a corpus in the new file `file`.
    pub(crate) fn new(file: &Path, corpus: &Corpus, unit: IndexUnit) -> anyhow::Result<Self> {
        let mut connection = Connection::open(file)?;
        let mut rows = Vec::new();
        let transaction = connection.transaction()?;
        transaction.execute_batch(&format!(
            "CREATE VIRTUAL TABLE texts USING fts5 (content, tokenize = '{TOKENIZER}')"
        ))?;
        {
            let mut insert = transaction.prepare("INSERT INTO texts (rowid, content) VALUES (?1, ?2)")?;
            let mut add = |sources: Vec<SourceRef>| -> anyhow::Result<()> {
                let texts: Option<Vec<&str>> = sources.iter().map(|source| corpus.text(*source)).collect();
                let text = texts.context("a source is missing")?.join("\n\n");
                insert.execute(params![i64::try_from(rows.len())?, text])?;
                rows.push(sources);
                Ok(())
            };
            for (number, session) in corpus.sessions.iter().enumerate() {
                session_rows(number, session, unit).into_iter().try_for_each(&mut add)?;
            }
            (0..corpus.knowledge.len()).try_for_each(|number| add(vec![SourceRef::Knowledge(number)]))?;
        }
        transaction.commit()?;
        Ok(Self { connection, row_sources: rows })
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
        let hit = |(row, content): (i64, String)| {
            let sources = usize::try_from(row)
                .ok()
                .and_then(|row| self.row_sources.get(row))
                .cloned()
                .unwrap_or_default();
            // The index has no notion of relevance.
            Hit { told: Some(sources.clone()), sources, characters: content.chars().count() }
        };
        Ok((found.into_iter().map(hit).collect(), took))
    }
}

/// Splits the messages of a conversation into rows.
fn session_rows(number: usize, session: &Session, unit: IndexUnit) -> Vec<Vec<SourceRef>> {
    let sources: Vec<SourceRef> = (0..session.turns.len())
        .flat_map(|turn| {
            [Speaker::User, Speaker::Agent].map(|speaker| SourceRef::Message {
                session: number,
                turn,
                speaker,
            })
        })
        .collect();
    let (width, stride) = unit.width_and_stride();
    let mut units = Vec::new();
    let mut from = 0;
    while let Some(rest) = sources.get(from..).filter(|rest| !rest.is_empty()) {
        units.push(rest.iter().take(width).copied().collect());
        // A rest that the previous row already contains is not a row of its own.
        if rest.len() <= width {
            break;
        }
        from += stride;
    }
    units
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
    use super::super::corpus::Turn;
    use super::*;

    #[test]
    fn a_conversation_is_indexed_by_messages_windows_or_as_a_whole() {
        let turn = Turn { user: "Hello".into(), agent: "Hi".into() };
        let session = Session { started_ms: 0, turns: vec![turn; 5] };
        let lengths = |unit| session_rows(0, &session, unit).iter().map(Vec::len).collect::<Vec<_>>();
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
        let corpus = Corpus::generate(2, 1_000).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for unit in IndexUnit::ALL {
            let file = folder.path().join(unit.name());
            let index = FtsBaseline::new(&file, &corpus, unit).unwrap();
            let source = SourceRef::Message { session: 3, turn: 0, speaker: Speaker::User };
            let (hits, _) = index.search(corpus.text(source).unwrap(), 10).unwrap();
            assert!(hits.iter().any(|hit| hit.sources.contains(&source)), "{unit:?}");
        }
    }
}
