//! Reads the last lines of a container's log.
//!
//! The daemon sends the two output streams in chunks that do not respect line boundaries, so the lines of
//! each stream are assembled separately.

use std::collections::VecDeque;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::query_parameters::LogsOptionsBuilder;
use futures::TryStreamExt as _;

use super::daemon::{Daemon, REQUEST_TIMEOUT};

/// How much of a line is returned: 10,000 lines, the most that callers request, must fit into memory.
const MAX_LINE_BYTES: usize = 4 * 1024;

/// Returns the last lines of the log of the container `id`, at most `lines`; empty if there is no such container.
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

/// Assembles lines from chunks, and keeps the last ones.
struct LogTail {
    max_lines: usize,
    lines: VecDeque<String>,
    /// The incomplete last lines of standard output and of standard error.
    partial: [PartialLine; 2],
}

#[derive(Default)]
struct PartialLine {
    bytes: Vec<u8>,
    truncated: bool,
}

impl LogTail {
    fn new(max_lines: usize) -> Self {
        Self { max_lines, lines: VecDeque::new(), partial: Default::default() }
    }

    fn add(&mut self, chunk: &LogOutput) {
        let [stdout, stderr] = &mut self.partial;
        let (partial, bytes) = match chunk {
            LogOutput::StdErr { message } => (stderr, message),
            LogOutput::StdOut { message } | LogOutput::StdIn { message } | LogOutput::Console { message } => {
                (stdout, message)
            }
        };
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, complete) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            partial.extend(text);
            if complete {
                self.lines.push_back(std::mem::take(partial).into_line());
                if self.lines.len() > self.max_lines {
                    self.lines.pop_front();
                }
            }
        }
    }

    fn finish(self) -> Vec<String> {
        let Self { max_lines, mut lines, partial } = self;
        lines.extend(partial.into_iter().filter(|line| !line.bytes.is_empty()).map(PartialLine::into_line));
        let surplus = lines.len().saturating_sub(max_lines);
        lines.into_iter().skip(surplus).collect()
    }
}

impl PartialLine {
    fn extend(&mut self, text: &[u8]) {
        let capacity = MAX_LINE_BYTES.saturating_sub(self.bytes.len());
        let fitting = text.get(..capacity).unwrap_or(text);
        self.bytes.extend_from_slice(fitting);
        self.truncated |= fitting.len() < text.len();
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

    fn tail(max_lines: usize, chunks: &[&str]) -> Vec<String> {
        let mut tail = LogTail::new(max_lines);
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
