//! Results of a search over conversations: of each run its best message, with the words of the question marked.

use std::ops::Range;

use api::conversations::{ConversationHit, Match, Snippet};
use api::engine::Role;
use resources::text::first_bytes;
use retrieval::{AskedWord, Hit, Query, count_words, marked_words};
use rusqlite::{Connection, Error};

use crate::TaskRow;
use crate::conversations::conversation;
use crate::message_text::{MessageText, Speaker};
use crate::queries::timestamp;
use crate::search_index::{Indexed, MAX_INDEXED_BYTES};

/// The most characters of a snippet.
const MAX_SNIPPET_CHARS: usize = 240;
/// How much of that is before the first mark, if the message has so much.
const CHARS_BEFORE_MARK: usize = 60;

/// Loads a result; `None` if nothing of it has text.
pub(super) fn load(reader: &Connection, asked: &Query, hit: &Hit) -> Result<Option<ConversationHit>, Error> {
    let task = i64::try_from(hit.task).unwrap_or(i64::MAX);
    let Indexed::Message { task, .. } = Indexed::new(task, 0) else { return Ok(None) };
    let mut query = reader.prepare_cached(
        "SELECT body, at FROM said JOIN steps USING (step) WHERE said.task = ?1 AND nth = ?2",
    )?;
    let mut best: Option<(usize, MessageText, api::Timestamp)> = None;
    for index in hit.matched.iter().filter(|index| hit.excerpt.contains(index)) {
        let mut rows = query.query([task, i64::from(*index)])?;
        let Some(row) = rows.next()? else { continue };
        let Some(message) = MessageText::from_stored(row.get_ref(0)?.as_str()?) else { continue };
        let words = count_words(&asked.words, first_bytes(&message.text, MAX_INDEXED_BYTES));
        if best.as_ref().is_none_or(|(most, ..)| words > *most) {
            best = Some((words, message, timestamp(row, 1)?));
        }
    }
    let (Some((_, message, created_at)), Some(conversation)) = (best, conversation(reader, TaskRow(task))?)
    else {
        return Ok(None);
    };
    Ok(Some(ConversationHit {
        task_id: conversation.task_id,
        title: conversation.title,
        archived: conversation.archived,
        message_id: message.message_id,
        role: match message.speaker {
            Speaker::User => Role::User,
            Speaker::Agent => Role::Assistant,
        },
        created_at,
        snippet: snippet(&message.text, &asked.words),
    }))
}

/// The part of a text that has most of the words, with these marked.
fn snippet(text: &str, words: &[AskedWord]) -> Snippet {
    let marked = marked_words(words, first_bytes(text, MAX_INDEXED_BYTES));
    // A message may be large, and nothing behind what is indexed is marked.
    let looked_at = first_bytes(text, MAX_INDEXED_BYTES + 4 * MAX_SNIPPET_CHARS);
    let chars: Vec<(usize, char)> = looked_at.char_indices().collect();
    let char_at = |byte: usize| chars.partition_point(|(start, _)| *start < byte);
    let marks: Vec<Range<usize>> =
        marked.into_iter().map(|range| char_at(range.start)..char_at(range.end)).collect();
    let shown = window(&marks, chars.len(), |at| chars.get(at).is_some_and(|(_, one)| one.is_whitespace()));
    let matches = marks.iter().filter(|mark| shown.start <= mark.start && mark.end <= shown.end);
    let index = |at: usize| u32::try_from(at - shown.start).unwrap_or(u32::MAX);
    Snippet {
        text: chars.get(shown.clone()).unwrap_or_default().iter().map(|(_, one)| one).collect(),
        matches: matches.map(|mark| Match { start: index(mark.start), end: index(mark.end) }).collect(),
        cut_before: shown.start > 0,
        cut_after: shown.end < chars.len() || looked_at.len() < text.len(),
    }
}

/// The characters to show of a text of `length` characters: those around the first of the marks that have the most
/// others near them. It begins and ends between words where that is near.
fn window(marks: &[Range<usize>], length: usize, is_space: impl Fn(usize) -> bool) -> Range<usize> {
    let room = MAX_SNIPPET_CHARS - CHARS_BEFORE_MARK;
    let near = |first: &Range<usize>| {
        marks.iter().filter(|mark| first.start <= mark.start && mark.end <= first.start + room).count()
    };
    // Of equals the first one.
    let best = marks.iter().rev().max_by_key(|mark| near(mark)).map_or(0, |mark| mark.start);
    let end = (best.saturating_sub(CHARS_BEFORE_MARK) + MAX_SNIPPET_CHARS).min(length);
    let start = end.saturating_sub(MAX_SNIPPET_CHARS).min(best.saturating_sub(CHARS_BEFORE_MARK));
    let begins_word = |at: &usize| *at == 0 || is_space(at - 1);
    let start = (start..best).find(begins_word).filter(|at| at - start < 20).unwrap_or(start);
    let ends_word = |at: &usize| *at == length || is_space(*at);
    let last = marks.iter().filter(|mark| mark.end <= end).map(|mark| mark.end).max().unwrap_or(best);
    let end = (last..=end).rev().find(ends_word).filter(|at| end - at < 20).unwrap_or(end);
    start..end
}

#[cfg(test)]
#[path = "../../tests/unit/search/snippets.rs"]
mod tests;
