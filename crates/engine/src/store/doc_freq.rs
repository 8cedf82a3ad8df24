//! Words that are in very many records: counted once in a while, for to count them costs the most.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use contract::memory::MemoryKind;

/// How many words are known at most. Beyond that none are until the next time that all are forgotten.
const MAX_CACHED_WORDS: usize = 4_096;
/// By how much the records of a kind may become more until its words are counted again: a quarter.
const RECOUNT_GROWTH_DIVISOR: i64 = 4;

/// See the module. What is known is no more than a guess: it saves work, and changes no more than how much a word
/// counts.
#[derive(Debug, Default)]
pub(super) struct CommonWordCache(Mutex<HashMap<MemoryKind, KindCache>>);

#[derive(Debug, Default)]
struct KindCache {
    /// How many records there were, about, when the first of these words was counted.
    record_count: i64,
    words: HashSet<String>,
}

impl CommonWordCache {
    /// Whether a word was common when it was counted, and there are neither many more records now nor fewer.
    pub(super) fn contains(&self, kind: MemoryKind, word: &str, all: i64) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&kind).is_some_and(|of_kind| of_kind.is_fresh(all) && of_kind.words.contains(word))
    }

    /// A word was found to be common among so many records.
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
    /// Whether what is known holds among so many records.
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
