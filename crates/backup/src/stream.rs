//! The content of a backup: a stream of frames, which an engine sends and a restored engine receives.
//!
//! A frame is `kind ‖ length ‖ payload`. The first one is the start; then each entry has a header, followed by its
//! content in full blocks and a shorter last one; the end has the SHA-256 of all bytes before it and of the number of files left out, so a stream that was
//! cut off or changed is noticed by whoever reads it. The same content always has the same frames.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::{Buf as _, Bytes, BytesMut};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The version of streams that is written, and the latest that is read.
pub const STREAM_VERSION: u32 = 1;
/// The length of a full block of content, in bytes.
pub const BLOCK_BYTES: usize = 64 * 1024;
/// The longest payload of a frame.
const MAX_PAYLOAD_BYTES: usize = BLOCK_BYTES;
/// The length of a frame without its payload.
const FRAME_HEADER_BYTES: usize = 5;
/// The longest path in a stream, in bytes: that of Linux.
const MAX_PATH_BYTES: usize = 4_096;

/// Why a stream is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// It ends too early.
    #[error("it is cut off")]
    CutOff,
    /// Its digest is not that of its content.
    #[error("it was changed on the way")]
    Changed,
    /// A frame is not valid, or not where it may be.
    #[error("it has an invalid frame: {0}")]
    Invalid(&'static str),
    /// A later version wrote it.
    #[error("it was written by a later version of roundhouse (format {found})")]
    NewerVersion {
        /// Its version.
        found: u32,
    },
}

/// The first frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The version of the stream.
    pub version: u32,
    /// The version of the program that wrote it.
    pub program: String,
}

/// The header of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What it is.
    #[serde(flatten)]
    pub kind: EntryKind,
    /// Its size when it was opened. Its content may have become longer or shorter.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size: u64,
    /// The permissions.
    #[serde(default)]
    pub mode: u32,
    /// The time of the last change, in nanoseconds since 1970.
    #[serde(default)]
    pub modified_ns: i64,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EntryKind {
    /// The brain: a SQLite database.
    Brain,
    /// The registry: its rows.
    Registry,
    /// A folder of the workspace.
    Folder {
        /// Its path in the workspace; empty for the workspace itself.
        path: EntryPath,
    },
    /// A file of the workspace.
    File {
        /// Its path in the workspace.
        path: EntryPath,
    },
    /// A symbolic link in the workspace.
    Link {
        /// Its path in the workspace.
        path: EntryPath,
        /// What it names, which nobody follows.
        target: EntryPath,
    },
}

impl EntryKind {
    /// Whether frames with content may follow.
    const fn has_content(&self) -> bool {
        match self {
            Self::Brain | Self::Registry | Self::File { .. } => true,
            Self::Folder { .. } | Self::Link { .. } => false,
        }
    }
}

/// The bytes of a path, which need not be text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryPath(Vec<u8>);

impl EntryPath {
    /// Wraps a path.
    pub const fn new(path: Vec<u8>) -> Self {
        Self(path)
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is a path below a folder: relative, and without `..`.
    fn is_below(&self) -> bool {
        self.0.len() <= MAX_PATH_BYTES
            && !self.0.contains(&0)
            && self.0.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b".."))
    }
}

impl fmt::Debug for EntryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("path…")
    }
}

impl Serialize for EntryPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD_NO_PAD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for EntryPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD_NO_PAD.decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// The last frame, without the digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// How many entries there are.
    pub entries: u64,
    /// The bytes of their content.
    pub bytes: u64,
    /// Files that could not be read, or are neither files, folders nor links.
    pub skipped: u64,
}

/// The last frame.
#[derive(Serialize, Deserialize)]
struct End {
    #[serde(flatten)]
    summary: Summary,
    sha256: String,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first one.
    Start(Start),
    /// The header of an entry.
    Entry(Entry),
    /// A block of an entry's content.
    Data(Bytes),
    /// The last one.
    End(Summary),
}

const START: u8 = 1;
const ENTRY: u8 = 2;
const DATA: u8 = 3;
const END: u8 = 4;

/// Writes a stream.
pub struct Encoder {
    digest: Context,
    summary: Summary,
}

impl Encoder {
    /// Begins a stream, and returns its first bytes.
    pub fn start(program: &str) -> (Self, Bytes) {
        let mut this = Self { digest: Context::new(&SHA256), summary: Summary::default() };
        let start = Start { version: STREAM_VERSION, program: program.to_owned() };
        let bytes = this.json_frame(START, &start);
        (this, bytes)
    }

    /// Begins an entry.
    pub fn entry(&mut self, entry: &Entry) -> Bytes {
        self.summary.entries += 1;
        self.json_frame(ENTRY, entry)
    }

    /// Adds content of the entry: a full block, or the last one.
    pub fn data(&mut self, block: &[u8]) -> Bytes {
        self.summary.bytes += u64::try_from(block.len()).unwrap_or(u64::MAX);
        self.frame(DATA, block)
    }

    /// Counts a file that is left out.
    pub const fn skip(&mut self) {
        self.summary.skipped += 1;
    }

    /// Ends the stream.
    pub fn end(self) -> (Summary, Bytes) {
        let Self { mut digest, summary } = self;
        // The other numbers follow from the frames.
        digest.update(&summary.skipped.to_be_bytes());
        let end = End { summary, sha256: hex::encode(digest.finish()) };
        (summary, encode_frame(END, &serde_json::to_vec(&end).unwrap_or_default()))
    }

    fn json_frame(&mut self, kind: u8, payload: &impl Serialize) -> Bytes {
        self.frame(kind, &serde_json::to_vec(payload).unwrap_or_default())
    }

    fn frame(&mut self, kind: u8, payload: &[u8]) -> Bytes {
        let frame = encode_frame(kind, payload);
        self.digest.update(&frame);
        frame
    }
}

fn encode_frame(kind: u8, payload: &[u8]) -> Bytes {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut frame = BytesMut::with_capacity(FRAME_HEADER_BYTES + payload.len());
    frame.extend_from_slice(&[kind]);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(payload);
    frame.freeze()
}

/// Where a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Begin,
    /// After an entry that has content or not, and whether the last block was a full one.
    Entry {
        has_content: bool,
        may_continue: bool,
    },
    End,
}

/// Reads a stream, and checks all of it.
pub struct Decoder {
    buffer: BytesMut,
    digest: Context,
    summary: Summary,
    position: Position,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            buffer: BytesMut::new(),
            digest: Context::new(&SHA256),
            summary: Summary::default(),
            position: Position::Begin,
        }
    }
}

impl Decoder {
    /// Adds bytes that have arrived. Take all frames before the next call: then no more than these bytes and a frame
    /// are held.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next frame and its bytes; `None` if more has to arrive first.
    pub fn next_frame(&mut self) -> Result<Option<(Frame, Bytes)>, StreamError> {
        let Some(([kind], length)) =
            self.buffer.get(..FRAME_HEADER_BYTES).and_then(|head| head.split_first_chunk::<1>())
        else {
            return Ok(None);
        };
        let (kind, length) =
            (*kind, length.first_chunk::<4>().map_or(u32::MAX, |length| u32::from_be_bytes(*length)));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if self.position == Position::End {
            return Err(StreamError::Invalid("something follows the end"));
        }
        if length > MAX_PAYLOAD_BYTES {
            return Err(StreamError::Invalid("it is too long"));
        }
        if self.buffer.len() < FRAME_HEADER_BYTES + length {
            return Ok(None);
        }
        let bytes = self.buffer.split_to(FRAME_HEADER_BYTES + length).freeze();
        let mut payload = bytes.clone();
        payload.advance(FRAME_HEADER_BYTES);
        let frame = self.accept(kind, payload)?;
        if !matches!(frame, Frame::End(_)) {
            self.digest.update(&bytes);
        }
        Ok(Some((frame, bytes)))
    }

    /// Checks that the stream is complete, and returns its summary.
    pub fn finish(self) -> Result<Summary, StreamError> {
        if self.position == Position::End && self.buffer.is_empty() {
            Ok(self.summary)
        } else {
            Err(StreamError::CutOff)
        }
    }

    fn accept(&mut self, kind: u8, payload: Bytes) -> Result<Frame, StreamError> {
        match (kind, self.position) {
            (START, Position::Begin) => {
                let start: Start = parse(&payload)?;
                if start.version > STREAM_VERSION {
                    return Err(StreamError::NewerVersion { found: start.version });
                }
                self.position = Position::Entry { has_content: false, may_continue: false };
                Ok(Frame::Start(start))
            }
            (ENTRY, Position::Entry { .. }) => {
                let entry: Entry = parse(&payload)?;
                check_paths(&entry.kind)?;
                self.summary.entries += 1;
                let has_content = entry.kind.has_content();
                self.position = Position::Entry { has_content, may_continue: has_content };
                Ok(Frame::Entry(entry))
            }
            (DATA, Position::Entry { has_content: true, may_continue: true }) if !payload.is_empty() => {
                self.summary.bytes += u64::try_from(payload.len()).unwrap_or(u64::MAX);
                let may_continue = payload.len() == BLOCK_BYTES;
                self.position = Position::Entry { has_content: true, may_continue };
                Ok(Frame::Data(payload))
            }
            (END, Position::Entry { .. }) => {
                let End { summary, sha256 } = parse(&payload)?;
                let mut digest = std::mem::replace(&mut self.digest, Context::new(&SHA256));
                digest.update(&summary.skipped.to_be_bytes());
                let digest = digest.finish();
                let counted = Summary { skipped: summary.skipped, ..self.summary };
                if hex::encode(digest) != sha256 || counted != summary {
                    return Err(StreamError::Changed);
                }
                (self.summary, self.position) = (summary, Position::End);
                Ok(Frame::End(summary))
            }
            _ => Err(StreamError::Invalid("it does not belong there")),
        }
    }
}

fn parse<T: for<'de> Deserialize<'de>>(payload: &[u8]) -> Result<T, StreamError> {
    serde_json::from_slice(payload).map_err(|_| StreamError::Invalid("its header cannot be read"))
}

fn check_paths(kind: &EntryKind) -> Result<(), StreamError> {
    let is_valid = match kind {
        EntryKind::Brain | EntryKind::Registry => true,
        EntryKind::Folder { path } => path.as_bytes().is_empty() || path.is_below(),
        EntryKind::File { path } => path.is_below(),
        EntryKind::Link { path, target } => {
            let target = target.as_bytes();
            path.is_below() && (1..=MAX_PATH_BYTES).contains(&target.len()) && !target.contains(&0)
        }
    };
    if is_valid { Ok(()) } else { Err(StreamError::Invalid("its path leads out of the workspace")) }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}
