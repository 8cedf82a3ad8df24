//! The archive that a DOCX or XLSX is. Only the parts that are asked for are unpacked, each up to a limit.

use std::io::{self, BufReader, Cursor, Read};

use zip::result::ZipError;

use crate::DocumentError;
use crate::limits::{MAX_ARCHIVE_ENTRIES, MAX_PART_BYTES};

/// An archive in memory.
pub(crate) struct Archive<'a>(zip::ZipArchive<Cursor<&'a [u8]>>);

impl<'a> Archive<'a> {
    /// Reads the directory of an archive.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, DocumentError> {
        let archive = zip::ZipArchive::new(Cursor::new(bytes)).map_err(DocumentError::broken)?;
        if archive.len() > MAX_ARCHIVE_ENTRIES {
            return Err(DocumentError::Expands(format!("it has more than {MAX_ARCHIVE_ENTRIES} parts")));
        }
        Ok(Self(archive))
    }

    /// Opens a part; `None` if there is none of this name.
    pub(crate) fn part(&mut self, name: &str) -> Result<Option<BufReader<impl Read>>, DocumentError> {
        match self.0.by_name(name) {
            Ok(part) if part.encrypted() => Err(DocumentError::Encrypted),
            Ok(part) => Ok(Some(BufReader::new(Bounded { part, left: MAX_PART_BYTES }))),
            Err(ZipError::FileNotFound) => Ok(None),
            Err(error) => Err(DocumentError::broken(error)),
        }
    }

    /// Checks the size that the directory claims of a part. A part that is larger than that is broken.
    pub(crate) fn check_size(&mut self, name: &str) -> Result<(), DocumentError> {
        match self.0.by_name(name) {
            Ok(part) if part.size() > MAX_PART_BYTES => Err(too_large()),
            Ok(_) | Err(ZipError::FileNotFound) => Ok(()),
            Err(error) => Err(DocumentError::broken(error)),
        }
    }
}

fn too_large() -> DocumentError {
    DocumentError::Expands(format!("it is longer than {} MiB", MAX_PART_BYTES >> 20))
}

/// A part that fails where it is longer than the limit, whatever the directory says.
struct Bounded<R> {
    part: R,
    left: u64,
}

/// The error of a part that is too long, which [`part_error`] recognises.
#[derive(Debug, thiserror::Error)]
#[error("the part is too long")]
struct PartTooLong;

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.part.read(buffer)?;
        self.left = self
            .left
            .checked_sub(u64::try_from(read).unwrap_or(u64::MAX))
            .ok_or_else(|| io::Error::other(PartTooLong))?;
        Ok(read)
    }
}

/// The error of reading a part.
pub(crate) fn part_error(error: &io::Error) -> DocumentError {
    if error.get_ref().and_then(|inner| inner.downcast_ref::<PartTooLong>()).is_some() {
        too_large()
    } else {
        DocumentError::broken(error)
    }
}
