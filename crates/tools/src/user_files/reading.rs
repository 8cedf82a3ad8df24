//! Files that are read in chunks.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use resources::threads::Lane;
use rustix::fs::fstat;

use super::info::{modified_ns, size};
use super::{FileError, FileInfo};

/// The size of a chunk in bytes: large enough that the way to the thread that reads it costs little.
const CHUNK_BYTES: u64 = 256 * 1024;

/// A file that was opened for reading.
pub struct OpenFile {
    pub(super) file: File,
    pub(super) version: Version,
    pub(super) info: FileInfo,
    pub(super) lane: Lane,
}

/// The version of an open file's content. Replacing or deleting the file does not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    size: u64,
    modified_ns: i128,
}

impl Version {
    pub(super) fn of(file: &File) -> Result<(Self, FileInfo), FileError> {
        let stat = fstat(file)?;
        let version = Self { size: size(&stat), modified_ns: modified_ns(&stat) };
        Ok((version, FileInfo::from_stat(&stat)))
    }

    /// Fails if the file has been changed since.
    pub(super) fn check(self, file: &File) -> Result<(), FileError> {
        if Self::of(file)?.0 == self { Ok(()) } else { Err(FileError::Changed) }
    }
}

impl OpenFile {
    /// What is known of the file.
    pub fn info(&self) -> &FileInfo {
        &self.info
    }

    /// Reads `range` of the content, which must be within the file. The stream fails if a program changes the
    /// file before it has been read.
    pub fn read(self, range: Range<u64>) -> impl Stream<Item = Result<Bytes, FileError>> + Send + 'static {
        let Self { file, version, info: _, lane } = self;
        let file = Arc::new(file);
        let begins = std::iter::successors(Some(range.start), |begin| begin.checked_add(CHUNK_BYTES));
        let chunks = begins.take_while(move |begin| *begin < range.end);
        let chunks = chunks.map(move |begin| (begin, (range.end - begin).min(CHUNK_BYTES)));
        let read = move |(begin, length)| {
            let (lane, file) = (lane.clone(), Arc::clone(&file));
            async move {
                let read = lane.run(move || read_chunk(&file, version, begin, length)).await;
                read.unwrap_or(Err(FileError::Stopping))
            }
        };
        // One after the other, each only when it is asked for: a read that waits for a thread while nobody polls it
        // would keep the thread from all others.
        futures::stream::iter(chunks).then(read)
    }
}

fn read_chunk(file: &File, version: Version, begin: u64, length: u64) -> Result<Bytes, FileError> {
    let mut chunk = BytesMut::zeroed(usize::try_from(length).unwrap_or_default());
    file.read_exact_at(&mut chunk, begin).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => FileError::Changed,
        _ => error.into(),
    })?;
    // After the chunk, so that nothing was changed before it was read.
    version.check(file)?;
    Ok(chunk.freeze())
}
