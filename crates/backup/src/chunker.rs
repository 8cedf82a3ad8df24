//! Cuts a stream into pieces, so that what has not changed makes the same pieces again.
//!
//! Large files, the brain above all, are cut at fixed places: SQLite writes pages in place. What lies between them,
//! headers and small files, is cut where the keyed hash of a header says so: a new file changes the pieces around it.

use bytes::{Bytes, BytesMut};

use crate::keys::DataKey;
use crate::stream::{BLOCK_BYTES, Entry, EntryKind, Frame};

/// The size from which a file has pieces of its own, in bytes.
const LARGE_FILE_BYTES: u64 = 64 * 1024;
/// The blocks of a piece of a large file: pieces are small enough that a change of a page costs little, and large
/// enough that a store with a price per request is not expensive.
const BLOCKS_PER_PIECE: usize = 4;
/// The length from which a piece is not extended any more, in bytes.
const TARGET_BYTES: usize = BLOCKS_PER_PIECE * BLOCK_BYTES;
/// The longest piece: one that had almost the target's length, and another frame.
pub(crate) const MAX_PIECE_BYTES: usize = TARGET_BYTES + 2 * BLOCK_BYTES;
/// One of so many headers of small entries begins a new piece.
const CUT_EVERY: u8 = 16;

/// Collects the frames of the next piece.
pub(crate) struct Chunker {
    piece: BytesMut,
    blocks: usize,
    in_large_file: bool,
}

impl Default for Chunker {
    fn default() -> Self {
        Self { piece: BytesMut::new(), blocks: 0, in_large_file: false }
    }
}

impl Chunker {
    /// Adds a frame. Calls `emit` with each piece that is complete.
    pub(crate) fn push(&mut self, key: &DataKey, frame: &Frame, bytes: &[u8], emit: &mut impl FnMut(Bytes)) {
        match frame {
            Frame::Entry(entry) => {
                let was_large = std::mem::replace(&mut self.in_large_file, is_large(entry));
                let cuts = key.cut_hash(&path_of(entry)).is_multiple_of(CUT_EVERY);
                if was_large || cuts || self.piece.len() >= TARGET_BYTES {
                    self.cut(emit);
                }
                self.piece.extend_from_slice(bytes);
                if self.in_large_file {
                    self.cut(emit);
                }
            }
            Frame::Data(_) => {
                let is_full = if self.in_large_file {
                    self.blocks >= BLOCKS_PER_PIECE
                } else {
                    self.piece.len() >= TARGET_BYTES
                };
                if is_full {
                    self.cut(emit);
                }
                self.blocks += 1;
                self.piece.extend_from_slice(bytes);
            }
            Frame::Start(_) => self.piece.extend_from_slice(bytes),
            Frame::End(_) => {
                self.cut(emit);
                self.piece.extend_from_slice(bytes);
                self.cut(emit);
            }
        }
    }

    fn cut(&mut self, emit: &mut impl FnMut(Bytes)) {
        self.blocks = 0;
        if !self.piece.is_empty() {
            emit(self.piece.split().freeze());
        }
    }
}

fn is_large(entry: &Entry) -> bool {
    match entry.kind {
        EntryKind::Brain | EntryKind::Registry => true,
        EntryKind::File { .. } => entry.size >= LARGE_FILE_BYTES,
        EntryKind::Folder { .. } | EntryKind::Link { .. } => false,
    }
}

fn path_of(entry: &Entry) -> Vec<u8> {
    match &entry.kind {
        EntryKind::Brain => b"brain".to_vec(),
        EntryKind::Registry => b"registry".to_vec(),
        EntryKind::Folder { path } | EntryKind::File { path } | EntryKind::Link { path, .. } => {
            [b"/", path.as_bytes()].concat()
        }
    }
}
