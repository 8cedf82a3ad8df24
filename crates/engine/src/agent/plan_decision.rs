//! Decides, without a model, whether a new message is worth a plan. Pure.
//!
//! A plan costs a model call before the answer begins. It pays for work of several parts, and is wasted on small
//! talk and on questions that one answer settles. The decision knows no words of any language. It looks at what
//! shows in every script: the amount of text, its clauses, lists, references to files and pages, and attachments. A
//! message that is wrongly left unplanned loses little, because its model can delegate without a plan.

/// The amounts from which text is worth a plan, in letters of an alphabetic script.
struct Thresholds {
    /// A text of this length, whatever its structure.
    long: usize,
    /// A text of this length that has several clauses.
    several_clauses: usize,
}

/// For the first message of a task.
const FIRST_MESSAGE: Thresholds = Thresholds { long: 160, several_clauses: 90 };
/// For a message in a conversation: its plan exists, or it is a remark, an answer or thanks.
const LATER_MESSAGE: Thresholds = Thresholds { long: 300, several_clauses: 150 };
/// The number of clauses that count as several.
const SEVERAL_CLAUSES: usize = 3;
/// The length of a part between two marks that counts as a clause: more than a greeting or an interjection.
const MIN_CLAUSE_LETTERS: usize = 10;
/// The length of a text from which it is more than a question about its one attachment.
const MIN_LETTERS_WITH_ATTACHMENT: usize = 60;
/// The length of a text from which its references count: it says what to do with them.
const MIN_LETTERS_WITH_REFERENCES: usize = 30;

/// The marks that end a clause wherever they stand.
const CLAUSE_MARKS: &str = "!?;\n…。！？；，、．｡､؟؛،۔।॥։՝።፣፤፧";
/// The marks that end a clause before a space or at the end; elsewhere they belong to a number or a name.
const CLAUSE_MARKS_BEFORE_SPACE: &str = ".,";
/// The marks at the beginning of a line that make it an item of a list.
const BULLETS: &str = "-*+•‣◦▪●○■□・※";
/// The marks that follow the number of a list's item.
const NUMBER_MARKS: &str = ".)）、．:：";

/// Whether a message with that many attachments is worth a plan. `continues` tells whether the task had messages
/// before it.
pub(super) fn is_worth_planning(message: &str, attachments: usize, continues: bool) -> bool {
    let Thresholds { long, several_clauses } = if continues { LATER_MESSAGE } else { FIRST_MESSAGE };
    let Size { letters, clauses } = Size::of(message, long);
    letters >= long
        || (letters >= several_clauses && clauses >= SEVERAL_CLAUSES)
        || attachments >= 2
        || (attachments == 1 && letters >= MIN_LETTERS_WITH_ATTACHMENT)
        || list_items(message) >= 2
        || (letters >= MIN_LETTERS_WITH_REFERENCES && references(message) >= 2)
}

/// The amount of text in a message.
struct Size {
    letters: usize,
    clauses: usize,
}

impl Size {
    /// Measures a text, up to `limit` letters.
    fn of(text: &str, limit: usize) -> Self {
        let (mut letters, mut clauses, mut in_clause) = (0, 0, 0);
        let mut before = ' ';
        let mut chars = text.chars().peekable();
        while let Some(at) = chars.next() {
            let weight = letter_weight(at);
            letters += weight;
            in_clause += weight;
            if letters >= limit {
                break;
            }
            let before_space = chars.peek().is_none_or(|next| next.is_whitespace());
            let ends = CLAUSE_MARKS.contains(at)
                || (before_space && CLAUSE_MARKS_BEFORE_SPACE.contains(at))
                || (at.is_whitespace() && has_no_word_spaces(before));
            if ends {
                clauses += usize::from(in_clause >= MIN_CLAUSE_LETTERS);
                in_clause = 0;
            }
            before = at;
        }
        clauses += usize::from(in_clause >= MIN_CLAUSE_LETTERS);
        Self { letters, clauses }
    }
}

/// How many letters of an alphabetic script say as much as this character.
fn letter_weight(at: char) -> usize {
    match at {
        '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}' => 3,
        // Kana, and the syllables of Hangul.
        '\u{3041}'..='\u{30ff}' | '\u{ac00}'..='\u{d7a3}' => 2,
        _ => usize::from(at.is_alphabetic()),
    }
}

/// Whether a character is of a script that has spaces between clauses instead of words: Thai, Lao, Tibetan,
/// Myanmar, Khmer.
fn has_no_word_spaces(at: char) -> bool {
    matches!(at, '\u{e00}'..='\u{fff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}')
}

/// The number of a message's items in lists, on lines of their own or within the text.
fn list_items(message: &str) -> usize {
    let lines = message.lines().filter(|line| is_list_item(line.trim_start())).count();
    let within = message.split_whitespace().filter(|word| is_number_in_brackets(word)).count();
    let circled = message.chars().filter(|at| is_circled_number(*at)).count();
    lines.max(within).max(circled)
}

fn is_list_item(line: &str) -> bool {
    let mut chars = line.chars();
    let Some(first) = chars.next() else { return false };
    if BULLETS.contains(first) {
        return chars.next().is_some_and(char::is_whitespace);
    }
    let after = line.trim_start_matches(char::is_numeric);
    let digits = line.chars().count().saturating_sub(after.chars().count());
    let mut after = after.chars();
    let marked = after.next().is_some_and(|mark| NUMBER_MARKS.contains(mark));
    // A time or a decimal number at the beginning of a line is none.
    (1..=2).contains(&digits) && marked && !after.next().is_some_and(char::is_numeric)
}

/// Whether a word begins like `1)` or `(1)`.
fn is_number_in_brackets(word: &str) -> bool {
    let number = word.trim_start_matches(['(', '（']);
    let after = number.trim_start_matches(char::is_numeric);
    // A longer number is a year.
    let digits = number.chars().count().saturating_sub(after.chars().count());
    (1..=2).contains(&digits) && after.starts_with([')', '）'])
}

fn is_circled_number(at: char) -> bool {
    matches!(at, '\u{2460}'..='\u{2473}')
}

/// The number of files and pages that a message names.
fn references(message: &str) -> usize {
    let is_separator = |at: char| at.is_whitespace() || !at.is_ascii() || "()[]<>\"'`,;".contains(at);
    message.split(is_separator).filter(|word| is_reference(word)).count()
}

/// Whether a word is an address, or has a file's extension.
fn is_reference(word: &str) -> bool {
    if word.contains("://") {
        return true;
    }
    let word = word.trim_matches(|at: char| at.is_ascii_punctuation());
    let Some((name, extension)) = word.rsplit_once('.') else { return false };
    name.len() >= 2
        && (2..=5).contains(&extension.len())
        && extension.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && extension.bytes().any(|byte| byte.is_ascii_alphabetic())
}

#[cfg(test)]
#[path = "../../tests/unit/agent/plan_decision.rs"]
mod tests;
