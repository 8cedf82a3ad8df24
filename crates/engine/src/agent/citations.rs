//! Finds what an answer cites: marks such as `[1]` or `[1, 3]` that name pages of the task. Pure.
//!
//! Everything else in brackets is text: code, links, numbers that name no page.

use api::citations::{Citation, TextRange};

use super::citable_pages::CitablePages;

/// The most marks of an answer that are read.
const MAX_MARKS: usize = 1_000;
/// The most numbers in a mark, and the most digits of a number.
const MAX_NUMBERS: usize = 32;
const MAX_DIGITS: usize = 6;
/// The longest inline code, in characters: a single backtick is just that.
const MAX_CODE_CHARS: usize = 2_000;

/// A mark and the numbers in it.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    numbers: Vec<u32>,
    range: TextRange,
}

/// The pages that a text names, in the order in which it names them first.
pub(super) fn of_answer(text: &str, pages: &CitablePages) -> Vec<Citation> {
    let mut citations: Vec<Citation> = Vec::new();
    for Mark { numbers, range } in find_marks(text) {
        for page in numbers.iter().filter_map(|n| pages.get(*n)) {
            match citations.iter_mut().find(|citation| citation.n == page.n) {
                Some(known) if known.ranges.last() == Some(&range) => {}
                Some(known) => known.ranges.push(range),
                None => citations.push(Citation {
                    n: page.n,
                    url: page.url.clone(),
                    title: page.title.clone(),
                    ranges: vec![range],
                }),
            }
        }
    }
    citations
}

/// Finds the marks in a Markdown text, outside code.
fn find_marks(text: &str) -> Vec<Mark> {
    let text: Vec<char> = text.chars().collect();
    let (mut marks, mut at, mut is_line_start) = (Vec::new(), 0, true);
    while let Some(character) = text.get(at) {
        if is_line_start && let Some(end) = fenced_code_end(&text, at) {
            at = end;
            continue;
        }
        is_line_start = *character == '\n';
        match character {
            '\\' => at += 2,
            '`' => at = inline_code_end(&text, at),
            '[' => match parse_mark(&text, at) {
                Some(mark) => {
                    at = usize::try_from(mark.range.end).unwrap_or(usize::MAX);
                    marks.push(mark);
                    if marks.len() == MAX_MARKS {
                        return marks;
                    }
                }
                None => at += 1,
            },
            _ => at += 1,
        }
    }
    marks
}

/// The length of the run of a character.
fn run_length(text: &[char], at: usize, character: char) -> usize {
    text.iter().skip(at).take_while(|found| **found == character).count()
}

/// The end of the fenced code that begins with the line at `at`; `None` if the line begins none.
fn fenced_code_end(text: &[char], at: usize) -> Option<usize> {
    let fence = at + text.iter().skip(at).take_while(|c| matches!(c, ' ' | '\t')).count();
    let character = *text.get(fence).filter(|c| matches!(c, '`' | '~'))?;
    let length = run_length(text, fence, character);
    let next_line = |at: usize| at + text.iter().skip(at).take_while(|c| **c != '\n').count() + 1;
    let mut line = next_line(fence);
    let info = text.get(fence + length..line.min(text.len())).unwrap_or_default();
    // Backticks behind a run of them are inline code.
    if length < 3 || (character == '`' && info.contains(&'`')) {
        return None;
    }
    while line < text.len() {
        let start = line + text.iter().skip(line).take_while(|c| matches!(c, ' ' | '\t')).count();
        line = next_line(start);
        if run_length(text, start, character) >= length {
            return Some(line);
        }
    }
    Some(text.len())
}

/// The end of the inline code that begins with the backticks at `at`, or of the backticks if it has no end in its
/// paragraph.
fn inline_code_end(text: &[char], at: usize) -> usize {
    let length = run_length(text, at, '`');
    let inside = at + length;
    let mut end = inside;
    while end < text.len().min(inside + MAX_CODE_CHARS) {
        match run_length(text, end, '`') {
            0 if is_end_of_paragraph(text, end) => break,
            0 => end += 1,
            found if found == length => return end + found,
            found => end += found,
        }
    }
    inside
}

/// Whether the line that ends at `at` is followed by a blank one.
fn is_end_of_paragraph(text: &[char], at: usize) -> bool {
    let is_blank = |character: &&char| matches!(**character, ' ' | '\t' | '\r');
    text.get(at) == Some(&'\n') && text.iter().skip(at + 1).find(|c| !is_blank(c)) == Some(&'\n')
}

/// Reads the mark that begins at `start`. What is followed by an address is a link.
fn parse_mark(text: &[char], start: usize) -> Option<Mark> {
    let (mut numbers, mut at) = (Vec::new(), start + 1);
    let skip_spaces = |at: usize| at + run_length(text, at, ' ').min(2);
    loop {
        at = skip_spaces(at);
        let digits: String =
            text.iter().skip(at).take(MAX_DIGITS + 1).take_while(|c| c.is_ascii_digit()).collect();
        if digits.is_empty() || digits.len() > MAX_DIGITS || digits.starts_with('0') {
            return None;
        }
        numbers.push(digits.parse().ok()?);
        at = skip_spaces(at + digits.len());
        match text.get(at)? {
            ']' => break,
            ',' if numbers.len() < MAX_NUMBERS => at += 1,
            _ => return None,
        }
    }
    let end = at + 1;
    let is_link = matches!(text.get(end..), Some(['(', ..] | [']', '(', ..]));
    let range = TextRange { start: u32::try_from(start).ok()?, end: u32::try_from(end).ok()? };
    (!is_link).then_some(Mark { numbers, range })
}

#[cfg(test)]
#[path = "../../tests/unit/agent/citations.rs"]
mod tests;
