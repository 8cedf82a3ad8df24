//! How the body of an answer is cut into events, in whatever pieces it comes.
//!
//! Ours and not a library's: what a standard says to pass over, such as a field that nobody knows, must not break an
//! answer off, and an event is read where it lies.

use bytes::Bytes;
use memchr::{memchr, memchr2};

/// The longest line of a body and the longest event, in bytes. No vendor's models write that much in a whole answer; a
/// server that does not end them must not fill the memory.
const MAX_EVENT: usize = 16 * 1024 * 1024;

/// It may stand before the first line, and says nothing.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How a provider marks where an event of its stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Framing {
    /// Server-sent events
    /// (<https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>).
    Sse,
    /// A JSON value on each line, which is the data of an event.
    Lines,
}

/// Why a body cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("a line or an event has more than {MAX_EVENT} bytes")]
    TooLong,
    #[error("a line is not UTF-8")]
    NotUtf8,
}

/// The events of a body. Only their data counts: the vendors name the type of an event in it too.
pub(super) struct Events {
    lines: Lines,
    event: Event,
}

impl Events {
    pub(super) fn new(framing: Framing) -> Self {
        Self { lines: Lines::new(framing), event: Event::new(framing) }
    }

    /// Adds a piece of the body, once [`Events::next`] has no more of the one before.
    pub(super) fn add(&mut self, piece: Bytes) {
        self.lines.add(piece);
    }

    /// Adds the end of the body: the last event may lack its own.
    pub(super) fn end(&mut self) {
        self.add(Bytes::from_static(b"\n\n"));
    }

    /// The data of the next event, never blank; none before another piece is added.
    ///
    /// # Errors
    /// See [`Fault`].
    pub(super) fn next(&mut self) -> Result<Option<&str>, Fault> {
        self.event.forget_told();
        while let Some(line) = self.lines.next()? {
            if self.event.is_whole_with(line)? {
                return Ok(Some(&self.event.data));
            }
        }
        Ok(None)
    }
}

/// The lines of a body.
struct Lines {
    framing: Framing,
    piece: Bytes,
    /// How much of the piece has been read.
    read: usize,
    /// The line that earlier pieces began.
    begun: Vec<u8>,
    /// Whether that line was given out.
    is_told: bool,
    /// Whether the last line ended with CR: an LF that follows belongs to it.
    after_cr: bool,
}

impl Lines {
    const fn new(framing: Framing) -> Self {
        let piece = Bytes::new();
        Self { framing, piece, read: 0, begun: Vec::new(), is_told: false, after_cr: false }
    }

    fn add(&mut self, piece: Bytes) {
        (self.piece, self.read) = (piece, 0);
    }

    /// The next line, without its end; none where the piece has no more ends.
    fn next(&mut self) -> Result<Option<&[u8]>, Fault> {
        if std::mem::take(&mut self.is_told) {
            self.begun.clear();
        }
        if let Some(first) = self.piece.get(self.read)
            && std::mem::take(&mut self.after_cr)
            && *first == b'\n'
        {
            self.read += 1;
        }
        let rest = self.piece.get(self.read..).unwrap_or_default();
        let end = match self.framing {
            Framing::Sse => memchr2(b'\n', b'\r', rest),
            Framing::Lines => memchr(b'\n', rest),
        };
        let line = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        if self.begun.len() + line.len() > MAX_EVENT {
            return Err(Fault::TooLong);
        }
        let Some(end) = end else {
            self.begun.extend_from_slice(line);
            self.read = self.piece.len();
            return Ok(None);
        };
        self.after_cr = rest.get(end) == Some(&b'\r');
        self.read += end + 1;
        if self.begun.is_empty() {
            return Ok(Some(line));
        }
        self.begun.extend_from_slice(line);
        self.is_told = true;
        Ok(Some(&self.begun))
    }
}

/// The event that is being read.
struct Event {
    framing: Framing,
    /// Its data so far.
    data: String,
    /// Whether it was given out.
    is_told: bool,
    /// Whether no line has come yet.
    is_first: bool,
    /// Whether it is JSON that no field names: so some servers, such as Gemini's, tell an error in a stream that has
    /// begun. What there is of it is its data.
    is_bare: bool,
}

impl Event {
    const fn new(framing: Framing) -> Self {
        Self { framing, data: String::new(), is_told: false, is_first: true, is_bare: false }
    }

    fn forget_told(&mut self) {
        if std::mem::take(&mut self.is_told) {
            self.data.clear();
        }
    }

    /// Takes a line. Whether the event is whole with it, and says something.
    fn is_whole_with(&mut self, line: &[u8]) -> Result<bool, Fault> {
        let is_first = std::mem::take(&mut self.is_first);
        let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| is_first).unwrap_or(line);
        match self.framing {
            Framing::Sse if line.is_empty() => (self.is_told, self.is_bare) = (true, false),
            Framing::Sse if self.is_bare || self.begins_bare(line) => {
                self.is_bare = true;
                self.add(line)?;
            }
            Framing::Sse => match line.strip_prefix(b"data") {
                Some([]) => self.add(b"")?,
                Some([b':', b' ', value @ ..] | [b':', value @ ..]) => self.add(value)?,
                // A comment, or a field that says nothing to us.
                Some(_) => {}
                None => {
                    if let Some(error) = error_told_by(line) {
                        // It ends the answer: what came of the event before it says nothing more.
                        self.data.clear();
                        self.add(&[b"{\"error\":", error, b"}"].concat())?;
                    }
                }
            },
            Framing::Lines => {
                self.add(line)?;
                self.is_told = true;
            }
        }
        if self.is_told && self.data.trim().is_empty() {
            self.forget_told();
        }
        Ok(self.is_told)
    }

    fn begins_bare(&self, line: &[u8]) -> bool {
        self.data.is_empty() && matches!(line, [b'{' | b'[', ..])
    }

    /// Adds a line of data.
    fn add(&mut self, value: &[u8]) -> Result<(), Fault> {
        if self.data.len() + value.len() >= MAX_EVENT {
            return Err(Fault::TooLong);
        }
        if !self.data.is_empty() {
            self.data.push('\n');
        }
        self.data.push_str(std::str::from_utf8(value).map_err(|_| Fault::NotUtf8)?);
        Ok(())
    }
}

/// The error that a field of its own tells, in JSON: so llama.cpp did until September 2025
/// (<https://github.com/ggml-org/llama.cpp/pull/16109>).
fn error_told_by(line: &[u8]) -> Option<&[u8]> {
    line.strip_prefix(b"error:").map(<[u8]>::trim_ascii).filter(|error| error.starts_with(b"{"))
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
