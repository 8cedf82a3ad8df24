//! Standard input, line by line: each line is the next message, or the answer to a request of the agent.

use std::collections::VecDeque;
use std::io::{self, BufRead, IsTerminal as _};
use std::time::Instant;

use tokio::sync::mpsc;

/// How many lines are read ahead: more than a person types while a turn runs.
const MAX_LINES_READ_AHEAD: usize = 64;

/// The longest line of a terminal that takes whole lines: what is typed beyond is lost (`termios(3)`, canonical mode).
const MAX_TERMINAL_LINE_BYTES: usize = 4_095;

/// Lines read from standard input, either as messages or as answers.
pub(super) struct LineInput {
    lines: mpsc::Receiver<TimedLine>,
    /// Messages typed while an answer was awaited.
    messages: VecDeque<InputLine>,
    /// Whether a person types, who can only answer a question already shown.
    is_terminal: bool,
}

struct TimedLine {
    text: InputLine,
    read_at: Instant,
}

/// A line of input.
pub(super) type InputLine = Result<String, InputError>;

/// Why a line could not be read. The text is shown to the person.
#[derive(Debug, thiserror::Error)]
pub(super) enum InputError {
    /// The line is not valid UTF-8.
    #[error("This line is not UTF-8 and was not sent.")]
    InvalidUtf8,
    /// The terminal may have cut off the line.
    #[error(
        "This line is as long as this terminal can read one, {MAX_TERMINAL_LINE_BYTES} bytes, so its end may be \
         missing. It was not sent: please split it, with \\ at the end of each line but the last."
    )]
    MayBeCut,
    /// Reading failed; there is no more input.
    #[error("The input cannot be read: {0}.")]
    Io(io::Error),
}

impl LineInput {
    /// Starts reading on a thread of its own.
    pub(super) fn spawn_reader() -> Self {
        let (sender, lines) = mpsc::channel(MAX_LINES_READ_AHEAD);
        let is_terminal = io::stdin().is_terminal();
        std::thread::spawn(move || {
            let mut input = io::stdin().lock();
            while let Some(text) = read_line(&mut input, is_terminal) {
                let is_last = matches!(text, Err(InputError::Io(_)));
                let is_open = sender.blocking_send(TimedLine { text, read_at: Instant::now() }).is_ok();
                if is_last || !is_open {
                    return;
                }
            }
        });
        Self { lines, messages: VecDeque::new(), is_terminal }
    }

    /// The next message, or `None` at the end of the input.
    pub(super) async fn next_message(&mut self) -> Option<InputLine> {
        match self.messages.pop_front() {
            Some(message) => Some(message),
            None => self.lines.recv().await.map(|line| line.text),
        }
    }

    /// The next answer to the question shown at `asked_at`, or `None` at the end of the input. Without an open
    /// question it never resolves.
    pub(super) async fn next_answer(&mut self, asked_at: Option<Instant>) -> Option<InputLine> {
        let Some(asked_at) = asked_at else { return std::future::pending().await };
        loop {
            let line = self.lines.recv().await?;
            if self.is_terminal && line.read_at < asked_at {
                self.messages.push_back(line.text);
            } else {
                return Some(line.text);
            }
        }
    }
}

/// Reads the next line, without its line ending; `None` at the end of the input.
fn read_line(input: &mut impl BufRead, is_terminal: bool) -> Option<InputLine> {
    let mut bytes = Vec::new();
    match input.read_until(b'\n', &mut bytes) {
        Ok(0) => return None,
        Ok(_) => {}
        Err(error) => return Some(Err(InputError::Io(error))),
    }
    let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    if is_terminal && text.len() >= MAX_TERMINAL_LINE_BYTES {
        return Some(Err(InputError::MayBeCut));
    }
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    Some(String::from_utf8(text.to_owned()).map_err(|_| InputError::InvalidUtf8))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_a_person_wrote_before_a_question_does_not_answer_it() {
        for terminal in [true, false] {
            let (sender, lines) = mpsc::channel(9);
            let mut input = LineInput { lines, messages: VecDeque::new(), is_terminal: terminal };
            let asked_at = Instant::now();
            let before = asked_at.checked_sub(Duration::from_millis(1)).unwrap();
            for (text, read_at) in [("y", before), ("n", asked_at), ("thanks", asked_at)] {
                sender.send(TimedLine { text: Ok(text.into()), read_at }).await.unwrap();
            }
            drop(sender);
            let text = |line: Option<InputLine>| line.map(Result::unwrap);
            let answer = text(input.next_answer(Some(asked_at)).await);
            assert_eq!(answer.as_deref(), Some(if terminal { "n" } else { "y" }));
            let next = text(input.next_message().await);
            assert_eq!(next.as_deref(), Some(if terminal { "y" } else { "n" }));
            assert_eq!(text(input.next_message().await).as_deref(), Some("thanks"));
            assert!(
                input.next_message().await.is_none() && input.next_answer(Some(asked_at)).await.is_none()
            );
        }
    }

    #[test]
    fn a_line_that_is_no_text_is_told_and_the_next_one_is_read() {
        let mut input = &b"one\r\n\xff\n\nlast"[..];
        assert_eq!(read_line(&mut input, false).unwrap().unwrap(), "one");
        assert!(matches!(read_line(&mut input, false), Some(Err(InputError::InvalidUtf8))));
        assert_eq!(read_line(&mut input, false).unwrap().unwrap(), "");
        assert_eq!(read_line(&mut input, false).unwrap().unwrap(), "last");
        assert!(read_line(&mut input, false).is_none());
    }

    #[test]
    fn a_line_that_a_terminal_may_have_cut_is_not_taken() {
        let line = |size: usize| format!("{}\n", "x".repeat(size));
        for (size, is_terminal, is_taken) in [(4_094, true, true), (4_095, true, false), (9_999, false, true)]
        {
            let read = read_line(&mut line(size).as_bytes(), is_terminal).unwrap();
            assert_eq!(read.is_ok(), is_taken, "{size} {is_terminal}");
        }
    }
}
