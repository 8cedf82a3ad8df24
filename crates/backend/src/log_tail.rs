//! Assembles the last lines of a log from the chunks in which it is read.
//!
//! Chunks do not respect line boundaries, so the lines of each output stream are assembled separately.

use std::collections::VecDeque;

/// How much of a line is returned: 10,000 lines, the most that callers request, must fit into memory.
const MAX_LINE_BYTES: usize = 4 * 1024;

/// Assembles lines from chunks, and keeps the last ones.
pub(super) struct LogTail {
    max_lines: usize,
    lines: VecDeque<String>,
    /// The incomplete last lines of standard output and of standard error.
    partial: [PartialLine; 2],
}

/// The stream to which something was written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Output {
    Stdout,
    Stderr,
}

#[derive(Default)]
struct PartialLine {
    bytes: Vec<u8>,
    truncated: bool,
}

impl LogTail {
    /// Creates a tail of at most `max_lines`.
    pub(super) fn new(max_lines: usize) -> Self {
        Self { max_lines, lines: VecDeque::new(), partial: Default::default() }
    }

    /// Adds the next chunk that the engine wrote.
    pub(super) fn add(&mut self, output: Output, bytes: &[u8]) {
        let [stdout, stderr] = &mut self.partial;
        let partial = match output {
            Output::Stdout => stdout,
            Output::Stderr => stderr,
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

    /// Returns the last lines.
    pub(super) fn finish(self) -> Vec<String> {
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
            tail.add(Output::Stdout, chunk.as_bytes());
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
        tail.add(Output::Stdout, b"begun ");
        tail.add(Output::Stderr, b"oops\n");
        tail.add(Output::Stdout, b"and done\n");
        assert_eq!(tail.finish(), ["oops", "begun and done"]);
    }

    #[test]
    fn an_endless_line_is_cut_off() {
        let lines = tail(9, &[&"x".repeat(3_000), &"x".repeat(3_000), "\nnext"]);
        assert_eq!(lines, [format!("{}…", "x".repeat(MAX_LINE_BYTES)), "next".to_owned()]);
    }
}
