//! The search: from the text of a question to runs of messages.

use std::collections::BTreeMap;
use std::ops::{BitOr as _, Range, RangeInclusive};

use crate::candidates;
use crate::dates::{DateMention, mentioned_dates};
use crate::postings::{Place, Postings};
use crate::relevance::{MAX_EXCERPT_MESSAGES, is_relevant};
use crate::runs::{self, Run, Scored};
use crate::score::{mean_task_length, score_block};
use crate::terms::{AskedWord, all_words, content_words};
use crate::word_postings::{self, AskedWords, WordSet};

/// The most results of one page.
pub const MAX_LIMIT: usize = 100;

/// What a text asks for. Any text is a question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query {
    /// The words to look up.
    pub words: Vec<AskedWord>,
    /// Whether the text has words of content. If it has none, `words` are all its words, and nothing is
    /// relevant to it.
    pub has_content: bool,
    /// The words of a date are among `words` too, for messages state dates.
    pub dates: Vec<DateMention>,
}

impl Query {
    /// Parses a text.
    pub fn parse(text: &str) -> Self {
        let words = content_words(text);
        let has_content = !words.is_empty();
        let words = if has_content { words } else { all_words(text) };
        Self { words, has_content, dates: mentioned_dates(text) }
    }
}

/// A page of results.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// How many results come before the page.
    pub offset: usize,
    /// The size of the page, at most [`MAX_LIMIT`].
    pub limit: usize,
    /// Messages that the reader has before them, as sorted ranges that do not overlap. They are in no result,
    /// but what they say counts for the messages beside them.
    pub hidden: &'a [Range<Place>],
    /// Which runs are results.
    pub filter: RunFilter,
}

/// Which runs are results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunFilter {
    /// Those with a word of the question, and those that closely follow one: an answer often has none of the words of
    /// what it answers.
    #[default]
    Near,
    /// Those with a word of the question.
    Matched,
    /// Those that are relevant. A question to which nothing can be costs nearly nothing.
    Relevant,
}

/// A run of messages of one task.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The number of the task.
    pub task: u64,
    /// The index of its first message.
    pub first: u32,
    /// The index of its last message.
    pub last: u32,
    /// The indexes of its messages that have a word of the question, in ascending order. None in a run that only
    /// follows one.
    pub matched: Vec<u32>,
    /// Those of at most three adjacent messages that have most of the question.
    pub excerpt: RangeInclusive<u32>,
    /// `ln(Σ e^score)` over its messages. Comparable within one search only.
    pub score: f64,
    /// Whether its excerpt is worth telling a model that did not ask for it.
    pub is_relevant: bool,
}

/// Searches; the best results first. No message is in two of them.
pub fn search<P: Postings>(postings: &P, query: &Query, request: &Request<'_>) -> Result<Vec<Hit>, P::Error> {
    let only_relevant = request.filter == RunFilter::Relevant;
    let mut places = Vec::new();
    let asked = word_postings::read(postings, &query.words, only_relevant, &mut places)?;
    if asked.found.is_empty() || (only_relevant && !query.has_content) {
        return Ok(Vec::new());
    }
    let mean_length = mean_task_length(postings)?;
    let mut blocks = Vec::new();
    for block in candidates::choose(postings, &asked.found, request.hidden)? {
        let scores = score_block(postings, &asked.found, &query.dates, mean_length, &block)?;
        blocks.push(Scored::new(block, scores, &asked.found, request));
    }
    let count = request.offset.saturating_add(request.limit.min(MAX_LIMIT));
    let runs = runs::take(postings, &mut blocks, count)?;
    let hits = runs.into_iter().skip(request.offset).map(|run| hit(query, &asked, &run));
    Ok(hits.filter(|hit| hit.is_relevant || !only_relevant).collect())
}

fn hit(query: &Query, asked: &AskedWords<'_>, run: &Run) -> Hit {
    let found = words_of_messages(asked, run);
    let words_at = |index: u32| found.get(&index).copied().unwrap_or_default();
    let last = run.indexes.end.saturating_sub(1);
    let latest_first = (last + 1).saturating_sub(MAX_EXCERPT_MESSAGES).max(run.indexes.start);
    let excerpts = (run.indexes.start..=latest_first).map(|first| {
        let excerpt = first..=(first + MAX_EXCERPT_MESSAGES - 1).min(last);
        let words = excerpt.clone().map(words_at).fold(WordSet::default(), WordSet::bitor);
        (excerpt, words)
    });
    // Of equals the last one, for an answer follows its question.
    let best = excerpts.max_by(|(_, one), (_, other)| asked.mass_of(*one).total_cmp(&asked.mass_of(*other)));
    let (excerpt, words) = best.unwrap_or((run.indexes.start..=last, WordSet::default()));
    Hit {
        task: run.task,
        first: run.indexes.start,
        last,
        matched: found.into_keys().collect(),
        excerpt,
        score: run.score,
        is_relevant: query.has_content && is_relevant(asked, words),
    }
}

/// The words of the question in each message of a run that has one.
fn words_of_messages(asked: &AskedWords<'_>, run: &Run) -> BTreeMap<u32, WordSet> {
    let (first, end) = (Place::new(run.task, run.indexes.start), Place::new(run.task, run.indexes.end));
    let mut found: BTreeMap<u32, WordSet> = BTreeMap::new();
    for (number, word) in asked.found.iter().enumerate() {
        let start = word.places.partition_point(|place| *place < first);
        let places = word.places.get(start..).unwrap_or_default();
        for place in places.iter().take_while(|place| **place < end) {
            found.entry(place.index()).or_default().insert(number);
        }
    }
    found
}

#[cfg(test)]
#[path = "../tests/unit/search.rs"]
mod tests;
