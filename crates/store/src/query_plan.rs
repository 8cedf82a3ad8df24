//! Plans the queries of a search against a full-text index: which words are selective, and how much each query
//! counts.

use std::ops::Range;

use api::memory::MemoryKind;
use rusqlite::{Connection, Error, params};

use super::doc_freq::CommonWordCache;
use super::tokenize::QueryTerms;

/// A word is common if half of the records of its kind contain it. The threshold is at least the first and at most
/// the second number of records.
pub(super) const COMMON_WORD_THRESHOLDS: (i64, i64) = (64, 1_000);
/// The approximate number of matching records that an index ranks for a query; each takes a microsecond or two.
const MAX_RANKED_RECORDS: i64 = 2_000;
/// The weights of the queries for any of the words, for a name, for a name together with another word, for a day,
/// and for a period of time that is mentioned.
const WORDS_WEIGHT: f64 = 1.0;
const NAME_WEIGHT: f64 = 1.0;
const NAME_AND_WORD_WEIGHT: f64 = 1.0;
const DAY_WEIGHT: f64 = 2.0;
const TIME_WEIGHT: f64 = 2.0;

/// The document frequency of each word among the records of a kind, and the number of records.
pub(super) struct DocFrequencies {
    record_count: i64,
    common_threshold: i64,
    frequencies: Vec<i64>,
}

/// A query against a full-text index.
pub(super) struct IndexQuery {
    pub(super) match_expression: String,
    /// The period in which the record was created, in Unix milliseconds.
    pub(super) time: Option<Range<i64>>,
    /// The weight of the results.
    pub(super) weight: f64,
}

impl DocFrequencies {
    /// Counts the words. Returns `None` if there are no records of the kind.
    pub(super) fn load(
        reader: &Connection,
        common_words: &CommonWordCache,
        kind: MemoryKind,
        terms: &QueryTerms,
    ) -> Result<Option<Self>, Error> {
        let (max_row, table, index) = match kind {
            MemoryKind::Knowledge => (
                "SELECT MAX(record) FROM knowledge",
                "SELECT COUNT(*) FROM (SELECT 1 FROM knowledge LIMIT ?1)",
                "SELECT COUNT(*) FROM (SELECT 1 FROM knowledge_words WHERE knowledge_words MATCH ?1 LIMIT ?2)",
            ),
            MemoryKind::Episode => (
                "SELECT MAX(episode) FROM episodes",
                "SELECT COUNT(*) FROM (SELECT 1 FROM episodes LIMIT ?1)",
                "SELECT COUNT(*) FROM (SELECT 1 FROM episode_words WHERE episode_words MATCH ?1 LIMIT ?2)",
            ),
            MemoryKind::Message => (
                "SELECT MAX(window) FROM windows",
                "SELECT COUNT(*) FROM (SELECT 1 FROM windows LIMIT ?1)",
                "SELECT COUNT(*) FROM (SELECT 1 FROM window_words WHERE window_words MATCH ?1 LIMIT ?2)",
            ),
        };
        // The highest row number is an upper bound of the number of records, and costs nothing.
        let max_row: Option<i64> = reader.prepare_cached(max_row)?.query_row([], |row| row.get(0))?;
        let Some(record_count) = max_row else { return Ok(None) };
        let threshold_for =
            |record_count: i64| (record_count / 2).clamp(COMMON_WORD_THRESHOLDS.0, COMMON_WORD_THRESHOLDS.1);
        let mut count = reader.prepare_cached(index)?;
        let words = terms.match_expressions().into_iter();
        let frequencies = words.map(|word| {
            let max_count = threshold_for(record_count);
            if common_words.contains(kind, &word, record_count) {
                return Ok(max_count);
            }
            let frequency = count.query_row(params![word, max_count], |row| row.get(0))?;
            if frequency == max_count {
                common_words.insert(kind, &word, record_count);
            }
            Ok(frequency)
        });
        let frequencies: Vec<i64> = frequencies.collect::<Result<_, Error>>()?;
        // The exact number of records matters only if a count lies between the minimum threshold and the one
        // derived from the upper bound.
        let uncertain = COMMON_WORD_THRESHOLDS.0..threshold_for(record_count);
        let common_threshold = if frequencies.iter().any(|frequency| uncertain.contains(frequency)) {
            threshold_for(
                reader.prepare_cached(table)?.query_row([2 * COMMON_WORD_THRESHOLDS.1], |row| row.get(0))?,
            )
        } else {
            threshold_for(record_count)
        };
        Ok(Some(Self { record_count, common_threshold, frequencies }))
    }

    /// The weight of each word (inverse document frequency): the fewer records contain it, the higher.
    #[expect(clippy::cast_precision_loss, reason = "a weight need not be exact")]
    pub(super) fn weights(&self) -> Vec<f64> {
        self.frequencies
            .iter()
            .map(|frequency| (1.0 + self.record_count as f64 / (*frequency).max(1) as f64).ln())
            .collect()
    }

    /// The queries against the index: for records with any of the selective words, with each name, with any of the
    /// days, and for records of each period of time. If no word is selective, an unasked search returns nothing,
    /// and an explicit one returns the records that contain all words.
    pub(super) fn index_queries(&self, terms: &QueryTerms, unasked: bool) -> Vec<IndexQuery> {
        let words = terms.match_expressions();
        let join_words = |indexes: &[usize], operator: &str| {
            let selected = indexes.iter().filter_map(|index| words.get(*index)).map(String::as_str);
            selected.collect::<Vec<_>>().join(operator)
        };
        let rare_words = self.rare_words();
        let is_known = |word: &usize| self.frequencies.get(*word).is_some_and(|frequency| *frequency > 0);
        let any_word = if rare_words.is_empty() {
            let common: Vec<usize> = (0..words.len()).filter(is_known).collect();
            (!unasked && !common.is_empty()).then(|| join_words(&common, " AND "))
        } else {
            Some(join_words(&rare_words, " OR "))
        };
        let rare_names = || terms.names().filter(|name| name.iter().any(|word| rare_words.contains(word)));
        let names: Vec<String> = rare_names().map(|name| join_words(&name, " AND ")).collect();
        // Together with a name a common word is informative too, and costs little.
        let names_with_words = rare_names().zip(&names).filter_map(|(in_name, name)| {
            let others: Vec<usize> =
                (0..words.len()).filter(|word| is_known(word) && !in_name.contains(word)).collect();
            (!others.is_empty()).then(|| format!("({name}) AND ({})", join_words(&others, " OR ")))
        });
        let index_query = |expression: &String, weight| IndexQuery {
            match_expression: expression.clone(),
            time: None,
            weight,
        };
        let mut queries: Vec<IndexQuery> =
            any_word.iter().map(|words| index_query(words, WORDS_WEIGHT)).collect();
        // For a query of a single name, the first query is that query already.
        queries.extend(
            names
                .iter()
                .filter(|name| Some(*name) != any_word.as_ref())
                .map(|name| index_query(name, NAME_WEIGHT)),
        );
        queries.extend(names_with_words.map(|expression| index_query(&expression, NAME_AND_WORD_WEIGHT)));
        queries.extend(terms.days_expression().map(|days| index_query(&days, DAY_WEIGHT)));
        for time in terms.times() {
            // A period says something only about records that match the subject.
            if let Some(about) = names.first().or(any_word.as_ref()) {
                queries.push(IndexQuery { time: Some(time.clone()), ..index_query(about, TIME_WEIGHT) });
            }
        }
        queries
    }

    /// The indexes of the selective words in ascending order: those in few records, as many as an index can rank
    /// in time. A word that very many records contain says little and costs much.
    fn rare_words(&self) -> Vec<usize> {
        let indexed = self.frequencies.iter().copied().enumerate();
        let mut rare_words: Vec<(usize, i64)> =
            indexed.filter(|(_, frequency)| (1..self.common_threshold).contains(frequency)).collect();
        rare_words.sort_by_key(|(_, frequency)| *frequency);
        let mut total = 0;
        rare_words.retain(|(_, frequency)| {
            total += frequency;
            total <= MAX_RANKED_RECORDS
        });
        let mut rare_words: Vec<usize> = rare_words.into_iter().map(|(index, _)| index).collect();
        rare_words.sort_unstable();
        rare_words
    }
}
