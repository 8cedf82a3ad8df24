//! What a search reads: posting lists and a few numbers, from whatever store keeps them.

use jiff::civil::Date;

/// How many bits of a [`Place`] say which message of its task it is.
const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// Where a message is: its task and its index in the task, as one number by which posting lists are sorted.
/// Later tasks have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u64);

impl Place {
    /// The greatest index of a message within its task. The one after it ends ranges.
    pub const MAX_INDEX: u32 = INDEX_MASK - 1;

    /// `task · 2²⁰ + index`; an index that is too great is taken for the one after [`Self::MAX_INDEX`].
    pub fn new(task: u64, index: u32) -> Self {
        Self(task << INDEX_BITS | u64::from(index.min(INDEX_MASK)))
    }

    /// The number of the task.
    pub const fn task(self) -> u64 {
        self.0 >> INDEX_BITS
    }

    /// The index of the message within the task, from 0.
    pub fn index(self) -> u32 {
        u32::try_from(self.0 & u64::from(INDEX_MASK)).unwrap_or(INDEX_MASK)
    }
}

/// The posting lists of single messages, and what a search has to know of tasks and of candidates.
///
/// The messages of a task have the indexes from 0 to its length − 1. A gap among them, such as an erased
/// message, counts as a message without words.
pub trait Postings {
    /// Why the store could not be read.
    type Error;

    /// The number of messages that are indexed.
    fn message_count(&self) -> Result<u64, Self::Error>;

    /// The number of tasks that have messages.
    fn task_count(&self) -> Result<u64, Self::Error>;

    /// Appends the places of the messages with a term in ascending order; if there are more than `limit`, the
    /// newest.
    fn read_places(&self, term: &str, limit: usize, places: &mut Vec<Place>) -> Result<(), Self::Error>;

    /// The number of messages of a task. Asked for the tasks of candidates only: at most 300 per search.
    fn task_length(&self, task: u64) -> Result<u32, Self::Error>;

    /// Sets the number of characters of each message from the index `first` on; those of a gap are left at
    /// zero. Asked for a run that is shown, and its surroundings.
    fn read_characters(&self, task: u64, first: u32, characters: &mut [u32]) -> Result<(), Self::Error>;

    /// Sets the date in effect of each message from the index `first` on, as far as it has one: when it was
    /// said, in an imported transcript the date that the transcript states. Asked for all candidates, and
    /// only if the question names a date.
    fn read_dates(&self, task: u64, first: u32, dates: &mut [Option<Date>]) -> Result<(), Self::Error>;
}
