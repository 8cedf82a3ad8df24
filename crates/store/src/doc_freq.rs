//! A cache of common words. Counting the records that contain a common word is the most expensive part of a
//! search, so such words are recounted only when the number of records has changed considerably.

use std::collections::{HashMap, HashSet};

use api::memory::MemoryKind;
use parking_lot::Mutex;

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
    pub(super) fn contains(&self, kind: MemoryKind, word: &str, record_count: i64) -> bool {
        let cache = self.0.lock();
        cache
            .get(&kind)
            .is_some_and(|kind_cache| kind_cache.is_fresh(record_count) && kind_cache.words.contains(word))
    }

    /// Remembers that a word is common among `record_count` records.
    pub(super) fn insert(&self, kind: MemoryKind, word: &str, record_count: i64) {
        let mut cache = self.0.lock();
        let kind_cache = cache.entry(kind).or_default();
        if !kind_cache.is_fresh(record_count) {
            *kind_cache = KindCache { record_count, words: HashSet::new() };
        }
        if kind_cache.words.len() < MAX_CACHED_WORDS {
            kind_cache.words.insert(word.to_owned());
        }
    }
}

impl KindCache {
    /// Whether the cached words are still valid for `record_count` records.
    fn is_fresh(&self, record_count: i64) -> bool {
        (self.record_count..=self.record_count + self.record_count / RECOUNT_GROWTH_DIVISOR)
            .contains(&record_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_word_is_known_until_there_are_many_more_records_or_fewer() {
        let cache = CommonWordCache::default();
        let kind = MemoryKind::Episode;
        cache.insert(kind, "the", 1_000);
        for (record_count, expected) in [(999, false), (1_000, true), (1_250, true), (1_251, false)] {
            assert_eq!(cache.contains(kind, "the", record_count), expected, "{record_count}");
        }
        assert!(!cache.contains(kind, "a", 1_000) && !cache.contains(MemoryKind::Message, "the", 1_000));
        cache.insert(kind, "a", 1_300);
        assert_eq!((cache.contains(kind, "the", 1_300), cache.contains(kind, "a", 1_300)), (false, true));
    }

    #[test]
    fn what_is_known_is_bounded() {
        let cache = CommonWordCache::default();
        for word in 0..MAX_CACHED_WORDS + 10 {
            cache.insert(MemoryKind::Episode, &word.to_string(), 1_000);
        }
        assert_eq!(cache.0.lock()[&MemoryKind::Episode].words.len(), MAX_CACHED_WORDS);
    }
}
