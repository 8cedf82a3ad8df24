//! Splits the body of an answer into events, independent of its chunks.
//!
//! This is not a library's parser because input that the standard says to ignore, such as an unknown field, must
//! not break off an answer, and because events are read in place.

use bytes::Bytes;
use memchr::{memchr, memchr2};

/// The maximum length of a line and of an event, in bytes. No vendor's model writes as much in a whole answer; a
/// server that never ends a line must not exhaust the memory.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// The mark that may precede the first line, and is ignored.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How a provider delimits the events of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Framing {
    /// Server-sent events
    /// (<https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>).
    Sse,
    /// One JSON value per line, which is the data of an event.
    Ndjson,
}

/// Why the rest of a body cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FramingError {
    #[error("a line or an event is longer than {MAX_EVENT_BYTES} bytes")]
    TooLong,
    #[error("a line is not UTF-8")]
    NotUtf8,
}

/// Reads the events of a body. Only their data are used: the vendors repeat the type of an event there.
pub(super) struct EventReader {
    lines: LineReader,
    event: EventBuffer,
}

impl EventReader {
    pub(super) fn new(framing: Framing) -> Self {
        Self { lines: LineReader::new(framing), event: EventBuffer::new(framing) }
    }

    /// Adds a chunk of the body. [`EventReader::next_event`] must have consumed the previous one.
    pub(super) fn push(&mut self, chunk: Bytes) {
        self.lines.push(chunk);
    }

    /// Adds the end of the body: the last event may lack its own end.
    pub(super) fn finish(&mut self) {
        self.push(Bytes::from_static(b"\n\n"));
    }

    /// Returns the data of the next event, never blank; `None` if another chunk is needed.
    ///
    /// # Errors
    /// The event is too long or not UTF-8: see [`FramingError`].
    pub(super) fn next_event(&mut self) -> Result<Option<&str>, FramingError> {
        self.event.clear_emitted();
        while let Some(line) = self.lines.next_line()? {
            if self.event.push_line(line)? {
                return Ok(Some(&self.event.data));
            }
        }
        Ok(None)
    }
}

/// Reads the lines of a body.
struct LineReader {
    framing: Framing,
    chunk: Bytes,
    /// How much of the chunk has been read, in bytes.
    position: usize,
    /// The line that earlier chunks began.
    partial_line: Vec<u8>,
    /// Whether that line has been returned.
    is_partial_emitted: bool,
    /// Whether the last line ended with CR: a following LF belongs to it.
    after_cr: bool,
}

impl LineReader {
    const fn new(framing: Framing) -> Self {
        Self {
            framing,
            chunk: Bytes::new(),
            position: 0,
            partial_line: Vec::new(),
            is_partial_emitted: false,
            after_cr: false,
        }
    }

    fn push(&mut self, chunk: Bytes) {
        (self.chunk, self.position) = (chunk, 0);
    }

    /// Returns the next line without its end; `None` if the chunk contains no further line end.
    fn next_line(&mut self) -> Result<Option<&[u8]>, FramingError> {
        if std::mem::take(&mut self.is_partial_emitted) {
            self.partial_line.clear();
        }
        if let Some(first) = self.chunk.get(self.position)
            && std::mem::take(&mut self.after_cr)
            && *first == b'\n'
        {
            self.position += 1;
        }
        let rest = self.chunk.get(self.position..).unwrap_or_default();
        let end = match self.framing {
            Framing::Sse => memchr2(b'\n', b'\r', rest),
            Framing::Ndjson => memchr(b'\n', rest),
        };
        let line = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        if self.partial_line.len() + line.len() > MAX_EVENT_BYTES {
            return Err(FramingError::TooLong);
        }
        let Some(end) = end else {
            self.partial_line.extend_from_slice(line);
            self.position = self.chunk.len();
            return Ok(None);
        };
        self.after_cr = rest.get(end) == Some(&b'\r');
        self.position += end + 1;
        if self.partial_line.is_empty() {
            return Ok(Some(line));
        }
        self.partial_line.extend_from_slice(line);
        self.is_partial_emitted = true;
        Ok(Some(&self.partial_line))
    }
}

/// The event that is being read.
struct EventBuffer {
    framing: Framing,
    /// The data so far.
    data: String,
    /// Whether the event has been returned.
    is_emitted: bool,
    /// Whether no line has been read yet.
    is_first: bool,
    /// Whether this is JSON outside any field: some servers, such as Gemini's, report an error in this form after
    /// the stream has begun. The lines of the JSON are its data.
    is_bare_json: bool,
}

impl EventBuffer {
    const fn new(framing: Framing) -> Self {
        Self { framing, data: String::new(), is_emitted: false, is_first: true, is_bare_json: false }
    }

    fn clear_emitted(&mut self) {
        if std::mem::take(&mut self.is_emitted) {
            self.data.clear();
        }
    }

    /// Adds a line. Returns whether it completes an event that has data.
    fn push_line(&mut self, line: &[u8]) -> Result<bool, FramingError> {
        let is_first = std::mem::take(&mut self.is_first);
        let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| is_first).unwrap_or(line);
        match self.framing {
            Framing::Sse if line.is_empty() => (self.is_emitted, self.is_bare_json) = (true, false),
            Framing::Sse if self.is_bare_json || self.begins_bare_json(line) => {
                self.is_bare_json = true;
                self.push_data(line)?;
            }
            Framing::Sse => match line.strip_prefix(b"data") {
                Some([]) => self.push_data(b"")?,
                Some([b':', b' ', value @ ..] | [b':', value @ ..]) => self.push_data(value)?,
                // A comment, or a field that is not used here.
                Some(_) => {}
                None => {
                    if let Some(error) = error_field_value(line) {
                        // The error ends the answer, so the data of the event before it are dropped.
                        self.data.clear();
                        self.push_data(&[b"{\"error\":", error, b"}"].concat())?;
                    }
                }
            },
            Framing::Ndjson => {
                self.push_data(line)?;
                self.is_emitted = true;
            }
        }
        if self.is_emitted && self.data.trim().is_empty() {
            self.clear_emitted();
        }
        Ok(self.is_emitted)
    }

    fn begins_bare_json(&self, line: &[u8]) -> bool {
        self.data.is_empty() && matches!(line, [b'{' | b'[', ..])
    }

    /// Appends a line of data.
    fn push_data(&mut self, value: &[u8]) -> Result<(), FramingError> {
        if self.data.len() + value.len() >= MAX_EVENT_BYTES {
            return Err(FramingError::TooLong);
        }
        if !self.data.is_empty() {
            self.data.push('\n');
        }
        self.data.push_str(std::str::from_utf8(value).map_err(|_| FramingError::NotUtf8)?);
        Ok(())
    }
}

/// The value of a field `error`, in JSON: llama.cpp reported errors this way until September 2025
/// (<https://github.com/ggml-org/llama.cpp/pull/16109>).
fn error_field_value(line: &[u8]) -> Option<&[u8]> {
    line.strip_prefix(b"error:").map(<[u8]>::trim_ascii).filter(|error| error.starts_with(b"{"))
}

#[cfg(test)]
#[path = "../../tests/unit/http/framing.rs"]
mod tests;
