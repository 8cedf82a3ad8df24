//! The last lines that a container wrote.

use std::collections::VecDeque;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::query_parameters::LogsOptionsBuilder;
use futures::TryStreamExt as _;

use super::daemon::{Daemon, REQUEST_TIMEOUT};

/// How much of a line is shown: 10,000 lines, the most that are asked for, must fit into memory.
const MAX_LINE_BYTES: usize = 4 * 1024;

/// The last lines of the log of the container `id`, at most `lines`; none if it is not there.
pub(super) async fn tail(daemon: &Daemon, id: &str, lines: usize) -> Result<Vec<String>, Error> {
    let options = LogsOptionsBuilder::new().stdout(true).stderr(true).tail(&lines.to_string()).build();
    let read = daemon.request(REQUEST_TIMEOUT, |docker| async move {
        let mut tail = LogTail::new(lines);
        let mut log = Box::pin(docker.logs(id, Some(options)));
        while let Some(chunk) = log.try_next().await? {
            tail.add(&chunk);
        }
        Ok(tail.finish())
    });
    match read.await {
        Err(error) if super::error::is_status(&error, 404) => Ok(Vec::new()),
        read => read,
    }
}

/// Lines put together from pieces, the last of them kept.
struct LogTail {
    max_lines: usize,
    lines: VecDeque<String>,
    /// What has no line break yet, of standard output and of standard error.
    partial: [PartialLine; 2],
}

#[derive(Default)]
struct PartialLine {
    bytes: Vec<u8>,
    truncated: bool,
}

impl LogTail {
    fn new(most: usize) -> Self {
        Self { max_lines: most, lines: VecDeque::new(), partial: Default::default() }
    }

    fn add(&mut self, chunk: &LogOutput) {
        let [output, errors] = &mut self.partial;
        let (open, bytes) = match chunk {
            LogOutput::StdErr { message } => (errors, message),
            LogOutput::StdOut { message } | LogOutput::StdIn { message } | LogOutput::Console { message } => {
                (output, message)
            }
        };
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, whole) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            open.extend(text);
            if whole {
                self.lines.push_back(std::mem::take(open).into_line());
                if self.lines.len() > self.max_lines {
                    self.lines.pop_front();
                }
            }
        }
    }

    fn finish(self) -> Vec<String> {
        let Self { max_lines: most, mut lines, partial: open } = self;
        lines.extend(open.into_iter().filter(|open| !open.bytes.is_empty()).map(PartialLine::into_line));
        let surplus = lines.len().saturating_sub(most);
        lines.into_iter().skip(surplus).collect()
    }
}

impl PartialLine {
    fn extend(&mut self, text: &[u8]) {
        let room = MAX_LINE_BYTES.saturating_sub(self.bytes.len());
        let fits = text.get(..room).unwrap_or(text);
        self.bytes.extend_from_slice(fits);
        self.truncated |= fits.len() < text.len();
    }

    fn into_line(self) -> String {
        let line = String::from_utf8_lossy(&self.bytes);
        let line = line.strip_suffix('\r').unwrap_or(&line);
        if self.truncated { format!("{line}…") } else { line.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(most: usize, chunks: &[&str]) -> Vec<String> {
        let mut tail = LogTail::new(most);
        for chunk in chunks {
            tail.add(&LogOutput::StdOut { message: (*chunk).to_owned().into() });
        }
        tail.finish()
    }

    #[test]
    fn lines_are_put_together_whatever_their_pieces() {
        assert_eq!(tail(9, &["a\nb", "c\r\n", "\nd"]), ["a", "bc", "", "d"]);
        assert_eq!(tail(2, &["a\nb\nc\n"]), ["b", "c"]);
        assert_eq!(tail(2, &["a\nb\nc"]), ["b", "c"]);
        assert!(tail(2, &[]).is_empty());
    }

    #[test]
    fn the_two_streams_do_not_cut_into_each_others_lines() {
        let mut tail = LogTail::new(9);
        tail.add(&LogOutput::StdOut { message: "begun ".into() });
        tail.add(&LogOutput::StdErr { message: "oops\n".into() });
        tail.add(&LogOutput::StdOut { message: "and done\n".into() });
        assert_eq!(tail.finish(), ["oops", "begun and done"]);
    }

    #[test]
    fn an_endless_line_is_cut_off() {
        let lines = tail(9, &[&"x".repeat(3_000), &"x".repeat(3_000), "\nnext"]);
        assert_eq!(lines, [format!("{}…", "x".repeat(MAX_LINE_BYTES)), "next".to_owned()]);
    }
}
