//! A stream rendered in advance: all its bytes, and where its deltas and its end mark are.
//!
//! Rendering first keeps the provider out of the measurements of those who use it: an answer without
//! pauses is one chunk of bytes however many deltas it has.

use std::ops::Range;

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

/// A complete stream of server-sent events or of lines.
#[derive(Debug)]
pub(crate) struct Transcript {
    bytes: Bytes,
    /// Where the first delta begins, then where each delta ends.
    delta_boundaries: Vec<Boundary>,
    end_mark: Boundary,
}

/// A place between two events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boundary {
    /// The bytes before it.
    pub(crate) offset: usize,
    /// The events before it, for the wires that number them.
    pub(crate) events: usize,
}

impl Transcript {
    /// The number of deltas.
    pub(crate) fn deltas(&self) -> usize {
        self.delta_boundaries.len().saturating_sub(1)
    }

    /// The place at which `deltas` deltas have been sent; behind the last one it is the end mark.
    pub(crate) fn boundary_after(&self, deltas: usize) -> Boundary {
        self.delta_boundaries.get(deltas).copied().unwrap_or(self.end_mark)
    }

    /// The offset of that place.
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

    /// Writes an event that is no delta.
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

    /// Writes a line of JSON that is a delta, for a wire of lines.
    pub(crate) fn delta_line(&mut self, data: &impl Serialize) {
        self.open_deltas();
        write_json(&mut self.bytes, data);
        self.bytes.push(b'\n');
        self.events += 1;
        self.delta_boundaries.push(self.boundary());
    }

    /// Writes the end mark, given as the whole event.
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

/// One event on its own.
pub(crate) fn single_event(name: Option<&str>, data: &Value) -> Bytes {
    let mut writer = TranscriptWriter::default();
    writer.event(name, data);
    writer.bytes.into()
}

/// One line of JSON on its own.
pub(crate) fn single_line(data: &impl Serialize) -> Bytes {
    let mut bytes = Vec::new();
    write_json(&mut bytes, data);
    bytes.push(b'\n');
    bytes.into()
}

fn write_json(bytes: &mut Vec<u8>, data: &impl Serialize) {
    let written = serde_json::to_writer(bytes, data);
    debug_assert!(written.is_ok(), "events are plain JSON and memory does not fail to be written");
}
