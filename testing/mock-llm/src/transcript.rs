//! A stream that is rendered in advance: all its bytes, and the boundaries of its deltas and its end mark.
//!
//! Rendering in advance keeps the provider's cost out of benchmarks: an answer without pauses is a single chunk of
//! bytes, however many deltas it has.

use std::ops::Range;

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

/// A complete stream of server-sent events or of lines.
#[derive(Debug)]
pub(crate) struct Transcript {
    bytes: Bytes,
    /// The start of the first delta, then the end of each delta.
    delta_boundaries: Vec<Boundary>,
    end_mark: Boundary,
}

/// A position between two events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boundary {
    /// The number of bytes before it.
    pub(crate) offset: usize,
    /// The number of events before it, for wires that number them.
    pub(crate) events: usize,
}

impl Transcript {
    /// The number of deltas.
    pub(crate) fn deltas(&self) -> usize {
        self.delta_boundaries.len().saturating_sub(1)
    }

    /// The position after `deltas` deltas. If there are fewer, the end mark.
    pub(crate) fn boundary_after(&self, deltas: usize) -> Boundary {
        self.delta_boundaries.get(deltas).copied().unwrap_or(self.end_mark)
    }

    /// The offset of [`Self::boundary_after`].
    pub(crate) fn offset_after(&self, deltas: usize) -> usize {
        self.boundary_after(deltas).offset
    }

    /// The offset of the end mark.
    pub(crate) fn end_mark(&self) -> usize {
        self.end_mark.offset
    }

    /// The offset of the end.
    pub(crate) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// A part of the stream.
    pub(crate) fn slice(&self, range: Range<usize>) -> Bytes {
        self.bytes.slice(range)
    }
}

/// Writes a [`Transcript`] event by event.
#[derive(Debug, Default)]
pub(crate) struct TranscriptWriter {
    bytes: Vec<u8>,
    delta_boundaries: Vec<Boundary>,
    events: usize,
}

impl TranscriptWriter {
    /// The number of events so far.
    pub(crate) fn events(&self) -> usize {
        self.events
    }

    /// Writes an event that is not a delta.
    pub(crate) fn event(&mut self, name: Option<&str>, data: &impl Serialize) {
        if let Some(name) = name {
            self.bytes.extend_from_slice(b"event: ");
            self.bytes.extend_from_slice(name.as_bytes());
            self.bytes.push(b'\n');
        }
        self.bytes.extend_from_slice(b"data: ");
        write_json(&mut self.bytes, data);
        self.bytes.extend_from_slice(b"\n\n");
        self.events += 1;
    }

    /// Writes an event that is a delta.
    pub(crate) fn delta(&mut self, name: Option<&str>, data: &impl Serialize) {
        self.open_deltas();
        self.event(name, data);
        self.delta_boundaries.push(self.boundary());
    }

    /// Writes a line of JSON that is a delta, for wires whose streams are lines.
    pub(crate) fn delta_line(&mut self, data: &impl Serialize) {
        self.open_deltas();
        write_json(&mut self.bytes, data);
        self.bytes.push(b'\n');
        self.events += 1;
        self.delta_boundaries.push(self.boundary());
    }

    /// Writes the end mark, given as a complete event.
    pub(crate) fn finish(mut self, end_mark: impl AsRef<[u8]>) -> Transcript {
        let boundary = self.boundary();
        self.bytes.extend_from_slice(end_mark.as_ref());
        Transcript { bytes: self.bytes.into(), delta_boundaries: self.delta_boundaries, end_mark: boundary }
    }

    fn open_deltas(&mut self) {
        if self.delta_boundaries.is_empty() {
            self.delta_boundaries.push(self.boundary());
        }
    }

    fn boundary(&self) -> Boundary {
        Boundary { offset: self.bytes.len(), events: self.events }
    }
}

/// Renders a single event.
pub(crate) fn single_event(name: Option<&str>, data: &Value) -> Bytes {
    let mut writer = TranscriptWriter::default();
    writer.event(name, data);
    writer.bytes.into()
}

/// Renders a single line of JSON.
pub(crate) fn single_line(data: &impl Serialize) -> Bytes {
    let mut bytes = Vec::new();
    write_json(&mut bytes, data);
    bytes.push(b'\n');
    bytes.into()
}

fn write_json(bytes: &mut Vec<u8>, data: &impl Serialize) {
    let result = serde_json::to_writer(bytes, data);
    debug_assert!(result.is_ok(), "events are plain JSON, and writing to memory cannot fail");
}
