//! Standard input and output: one JSON-RPC message per line in both directions, and nothing else on the output.

use std::io::{self, BufRead};

use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The longest line, in bytes: as much as an engine takes in one request.
pub(super) const MAX_LINE_BYTES: usize = 32 * 1024 * 1024;
/// How many lines are read ahead.
const MAX_LINES_AHEAD: usize = 4;
/// How many messages wait for the client to read them. Whoever has more waits too.
const MAX_MESSAGES_AHEAD: usize = 256;

/// A line of the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Message(Vec<u8>),
    /// It is longer than [`MAX_LINE_BYTES`], and was skipped.
    TooLong,
}

/// Reads standard input on a thread of its own. The channel closes at the end of the input.
pub(super) fn spawn_reader() -> mpsc::Receiver<Line> {
    let (sender, lines) = mpsc::channel(MAX_LINES_AHEAD);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        while let Ok(Some(line)) = read_line(&mut input, MAX_LINE_BYTES) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Reads a line without its end; `None` at the end of the input. Of a line that is too long, nothing is kept.
fn read_line(input: &mut impl BufRead, max: usize) -> io::Result<Option<Line>> {
    let mut bytes = Vec::new();
    let mut is_too_long = false;
    let mut has_begun = false;
    loop {
        let read = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read.is_empty() && !has_begun {
            return Ok(None);
        }
        has_begun = true;
        let end = read.iter().position(|byte| *byte == b'\n');
        let (part, used) = match end {
            Some(end) => (read.get(..end).unwrap_or_default(), end + 1),
            None => (read, read.len()),
        };
        is_too_long = is_too_long || bytes.len() + part.len() > max;
        if is_too_long {
            bytes = Vec::new();
        } else {
            bytes.extend_from_slice(part);
        }
        let is_last = end.is_some() || used == 0;
        input.consume(used);
        if is_last {
            return Ok(Some(if is_too_long { Line::TooLong } else { Line::Message(bytes) }));
        }
    }
}

/// What is written.
enum Item {
    Line(String),
    /// Nothing follows.
    End,
}

/// Standard output.
#[derive(Clone)]
pub(super) struct Output {
    items: mpsc::Sender<Item>,
}

impl Output {
    /// Starts a task that writes. `client_gone` is cancelled if nobody reads any more.
    pub(super) fn spawn_writer(client_gone: CancellationToken) -> (Self, tokio::task::JoinHandle<()>) {
        let (sender, items) = mpsc::channel(MAX_MESSAGES_AHEAD);
        let writer = tokio::spawn(async move {
            if write_items(items).await.is_err() {
                client_gone.cancel();
            }
        });
        (Self { items: sender }, writer)
    }

    /// Writes a line. If the client has gone there is nobody to write to, and the program is about to end.
    pub(super) async fn write(&self, line: String) {
        let _ = self.items.send(Item::Line(line)).await;
    }

    /// Ends the writer once it has written everything.
    pub(super) async fn end(&self) {
        let _ = self.items.send(Item::End).await;
    }
}

async fn write_items(mut items: mpsc::Receiver<Item>) -> io::Result<()> {
    let mut output = tokio::io::stdout();
    while let Some(Item::Line(mut line)) = items.recv().await {
        line.push('\n');
        output.write_all(line.as_bytes()).await?;
        if items.is_empty() {
            output.flush().await?;
        }
    }
    output.flush().await
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn lines(input: &str, max: usize) -> Vec<Line> {
        // A small buffer, so that lines come in parts.
        let mut input = BufReader::with_capacity(3, input.as_bytes());
        std::iter::from_fn(|| read_line(&mut input, max).unwrap()).collect()
    }

    #[test]
    fn lines_are_read_whole_and_long_ones_are_skipped() {
        let message = |text: &str| Line::Message(text.into());
        assert_eq!(lines("", 5), []);
        assert_eq!(
            lines("a\n\n12345\nlast", 5),
            [message("a"), message(""), message("12345"), message("last")]
        );
        assert_eq!(lines("123456\nb\n1234567890", 5), [Line::TooLong, message("b"), Line::TooLong]);
    }
}
