//! Standard input, line by line: each line is the next message, or the answer to what the agent asks.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, IsTerminal as _};
use std::time::Instant;

use tokio::sync::mpsc;

/// How many lines are read ahead: more than a person writes while a turn runs.
const READ_AHEAD: usize = 64;

/// See the module.
pub(super) struct Input {
    lines: mpsc::Receiver<Line>,
    /// Messages that were written while something else was asked.
    messages: VecDeque<String>,
    /// Whether a person writes, who must have seen a question to answer it.
    terminal: bool,
}

struct Line {
    text: String,
    read_at: Instant,
}

impl Input {
    /// Begins to read, on a thread of its own.
    pub(super) fn read() -> Self {
        let (sender, lines) = mpsc::channel(READ_AHEAD);
        std::thread::spawn(move || {
            for line in io::stdin().lock().lines() {
                let Ok(text) = line else { return };
                if sender.blocking_send(Line { text, read_at: Instant::now() }).is_err() {
                    return;
                }
            }
        });
        Self { lines, messages: VecDeque::new(), terminal: io::stdin().is_terminal() }
    }

    /// The next message; none at the end.
    pub(super) async fn message(&mut self) -> Option<String> {
        match self.messages.pop_front() {
            Some(message) => Some(message),
            None => self.lines.recv().await.map(|line| line.text),
        }
    }

    /// The next answer to what was asked at `asked_at`; none at the end. Where nothing is asked, it never comes.
    pub(super) async fn answer(&mut self, asked_at: Option<Instant>) -> Option<String> {
        let Some(asked_at) = asked_at else { return std::future::pending().await };
        loop {
            let line = self.lines.recv().await?;
            if self.terminal && line.read_at < asked_at {
                self.messages.push_back(line.text);
            } else {
                return Some(line.text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_a_person_wrote_before_a_question_does_not_answer_it() {
        for terminal in [true, false] {
            let (sender, lines) = mpsc::channel(9);
            let mut input = Input { lines, messages: VecDeque::new(), terminal };
            let asked_at = Instant::now();
            let before = asked_at.checked_sub(Duration::from_millis(1)).unwrap();
            for (text, read_at) in [("y", before), ("n", asked_at), ("thanks", asked_at)] {
                sender.send(Line { text: text.into(), read_at }).await.unwrap();
            }
            drop(sender);
            let answer = input.answer(Some(asked_at)).await;
            assert_eq!(answer.as_deref(), Some(if terminal { "n" } else { "y" }));
            let next = input.message().await;
            assert_eq!(next.as_deref(), Some(if terminal { "y" } else { "n" }));
            assert_eq!(input.message().await.as_deref(), Some("thanks"));
            assert_eq!(input.message().await, None);
            assert_eq!(input.answer(Some(asked_at)).await, None);
        }
    }
}
