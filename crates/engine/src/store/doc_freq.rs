//! A cache of common words. Counting the records that contain a common word is the most expensive part of a
//! search, so such words are recounted only when the number of records has changed considerably.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use api::memory::MemoryKind;

/// The most words that are cached per kind. Further words are not cached until the next reset.
const MAX_CACHED_WORDS: usize = 4_096;
/// The growth in records after which the words of a kind are counted again: a quarter.
const RECOUNT_GROWTH_DIVISOR: i64 = 4;

/// The words known to be common, by kind of memory. An entry is an estimate: it saves work and affects only the
/// weight of a word.
#[derive(Debug, Default)]
pub(super) struct CommonWordCache(Mutex<HashMap<MemoryKind, KindCache>>);

#[derive(Debug, Default)]
struct KindCache {
    /// The approximate number of records when the first of these words was counted.
    record_count: i64,
    words: HashSet<String>,
}

impl CommonWordCache {
    /// Whether the word was common when it was counted, and the number of records has neither fallen nor grown
    /// much since.
    pub(super) fn contains(&self, kind: MemoryKind, word: &str, all: i64) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&kind).is_some_and(|of_kind| of_kind.is_fresh(all) && of_kind.words.contains(word))
    }

    /// Remembers that a word is common among `all` records.
    pub(super) fn insert(&self, kind: MemoryKind, word: &str, all: i64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_kind = known.entry(kind).or_default();
        if !of_kind.is_fresh(all) {
            *of_kind = KindCache { record_count: all, words: HashSet::new() };
        }
        if of_kind.words.len() < MAX_CACHED_WORDS {
            of_kind.words.insert(word.to_owned());
        }
    }
}

impl KindCache {
    /// Whether the cached words are still valid for `all` records.
    fn is_fresh(&self, all: i64) -> bool {
        (self.record_count..=self.record_count + self.record_count / RECOUNT_GROWTH_DIVISOR).contains(&all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_word_is_known_until_there_are_many_more_records_or_fewer() {
        let known = CommonWordCache::default();
        let kind = MemoryKind::Episode;
        known.insert(kind, "the", 1_000);
        for (all, holds) in [(999, false), (1_000, true), (1_250, true), (1_251, false)] {
            assert_eq!(known.contains(kind, "the", all), holds, "{all}");
        }
        assert!(!known.contains(kind, "a", 1_000) && !known.contains(MemoryKind::Message, "the", 1_000));
        known.insert(kind, "a", 1_300);
        assert_eq!((known.contains(kind, "the", 1_300), known.contains(kind, "a", 1_300)), (false, true));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let known = CommonWordCache::default();
        for word in 0..MAX_CACHED_WORDS + 10 {
            known.insert(MemoryKind::Episode, &word.to_string(), 1_000);
        }
        assert_eq!(known.0.lock().unwrap()[&MemoryKind::Episode].words.len(), MAX_CACHED_WORDS);
    }
}
