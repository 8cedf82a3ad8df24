//! Finds messages in long conversations by arithmetic on posting lists, in every script. Pure: a store
//! implements [`Postings`].
//!
//! There is one index, of single messages. What stands around a message and what its task is about are
//! neighbourhoods of places, computed while searching:
//!
//! 1. [`Query`]: the words of the question without those that say nothing, and the dates that it names.
//! 2. `word_postings`: their posting lists, from the rarest word on, to a budget.
//! 3. `candidates`: the runs of eight places in which the words are densest.
//! 4. `score`: the score of every message of these runs.
//! 5. `runs`: the runs of at most five messages with the most mass, one after the other.
//! 6. `relevance`: whether a run is worth telling a model that did not ask for it.
//!
//! The weights are round numbers around which the results hardly change; none is fitted to a data set.

mod candidates;
mod dates;
mod numbers;
mod postings;
mod relevance;
mod runs;
mod score;
mod search;
mod stop_words;
mod terms;
mod word_postings;

pub use dates::{DateMention, date_score, mentioned_dates};
pub use postings::{Place, Postings};
pub use search::{Hit, MAX_LIMIT, Query, Request, RunFilter, search};
pub use terms::{
    AskedWord, MAX_ASKED_WORDS, MAX_TERM_BYTES, WordKind, all_words, content_words, count_words, index_text,
    marked_words,
};

#[cfg(test)]
#[path = "../tests/unit/fixture.rs"]
mod fixture;
