//! A folder as a ZIP archive, which is made while it is sent.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use resources::threads::Lane;
use rustix::fs::{Access, AtFlags, FileType, Mode, accessat, fstat};
use rustix::io::Errno;
use zip::write::{SimpleFileOptions, StreamWriter};
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::FileError;
use super::info::{modified_ns, size};
use super::path::encode;
use super::reading::Version;
use super::walk::{Unreadable, open_without_links, walk};
use crate::beneath::READ_FLAGS;

/// The most entries of an archive. Their names are held in memory until its end.
const MAX_ENTRIES: usize = 10_000;
/// The most bytes that their names may have together.
const MAX_NAME_BYTES: usize = 4 << 20;
/// The most bytes in the files of an archive.
const MAX_BYTES: u64 = 16 << 30;
/// The size of a chunk in bytes.
const CHUNK_BYTES: usize = 256 * 1024;
/// The size from which a file gets the fields for large files: with room for what compression adds.
const LARGE_FILE_BYTES: u64 = 0xf000_0000;
/// The level of compression: the fastest one.
const COMPRESSION_LEVEL: i64 = 1;

/// The entries of a folder, from which an archive is made.
pub(super) struct Archive {
    folder: OwnedFd,
    /// The paths, last first.
    paths: Vec<OsString>,
    writer: Option<ZipWriter<StreamWriter<Output>>>,
    output: Output,
    current: Option<(File, Version, u64)>,
}

/// What has been written and not sent yet.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Archive {
    /// Lists what is in `folder`. Links, pipes, sockets and devices are left out. Blocks.
    pub(super) fn open(folder: OwnedFd) -> Result<Self, FileError> {
        let (mut paths, mut name_bytes, mut bytes) = (Vec::<OsString>::new(), 0_usize, 0_u64);
        walk(&folder, Unreadable::Fail, |path, stat| {
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => bytes = bytes.saturating_add(size(stat)),
                FileType::Directory => {}
                _ => return Ok(()),
            }
            name_bytes = name_bytes.saturating_add(path.len());
            if paths.len() == MAX_ENTRIES || name_bytes > MAX_NAME_BYTES || bytes > MAX_BYTES {
                return Err(FileError::TooLarge(format!(
                    "an archive has at most {MAX_ENTRIES} entries and {MAX_BYTES} bytes; request the subfolders"
                )));
            }
            paths.push(path.to_owned());
            Ok(())
        })?;
        // Said now, because later it could only cut off the archive.
        if paths.iter().any(|path| is_unreadable(&folder, path)) {
            return Err(FileError::NotAccessible("a file in the folder cannot be read"));
        }
        paths.sort_unstable_by(|one, other| other.cmp(one));
        let output = Output::default();
        let writer = Some(ZipWriter::new_stream(output.clone()));
        Ok(Self { folder, paths, writer, output, current: None })
    }

    /// Makes the archive.
    pub(super) fn into_stream(
        self,
        lane: Lane,
    ) -> impl Stream<Item = Result<Bytes, FileError>> + Send + 'static {
        futures::stream::try_unfold((Box::new(self), lane), |(mut archive, lane)| async move {
            // Each chunk is made in a piece of work of its own, so that a slow client occupies no thread.
            let made = lane.run(move || archive.next_chunk().map(|chunk| (chunk, archive))).await;
            let (chunk, archive) = made.ok_or(FileError::Stopping)??;
            Ok(chunk.map(|chunk| (chunk, (archive, lane))))
        })
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>, FileError> {
        while self.output.0.lock().len() < CHUNK_BYTES {
            let Some(mut writer) = self.writer.take() else { break };
            if self.current.is_some() {
                self.copy_some(&mut writer)?;
            } else if let Some(path) = self.paths.pop() {
                self.begin_entry(&mut writer, &path)?;
            } else {
                writer.finish().map_err(io::Error::from)?;
                break;
            }
            self.writer = Some(writer);
        }
        let chunk = std::mem::take(&mut *self.output.0.lock());
        Ok(if chunk.is_empty() { None } else { Some(chunk.into()) })
    }

    /// Copies a part of the current file.
    fn copy_some(&mut self, writer: &mut impl Write) -> Result<(), FileError> {
        let Some((mut file, version, left)) = self.current.take() else { return Ok(()) };
        let mut buffer = vec![0; CHUNK_BYTES];
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let read = file.read(buffer.get_mut(..room).unwrap_or_default())?;
        writer.write_all(buffer.get(..read).unwrap_or_default())?;
        version.check(&file)?;
        let left = left.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX));
        if read > 0 && left > 0 {
            self.current = Some((file, version, left));
        }
        Ok(())
    }

    /// Begins the next entry, unless it has vanished or become a link.
    fn begin_entry(
        &mut self,
        writer: &mut ZipWriter<StreamWriter<Output>>,
        path: &OsStr,
    ) -> Result<(), FileError> {
        let opened = match open_without_links(&self.folder, path, READ_FLAGS) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            opened => opened?,
        };
        let file = File::from(opened);
        let stat = fstat(&file)?;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(COMPRESSION_LEVEL))
            .unix_permissions((Mode::from_raw_mode(stat.st_mode) & PERMISSIONS).bits())
            .last_modified_time(zip_time(modified_ns(&stat)))
            .large_file(size(&stat) >= LARGE_FILE_BYTES);
        let name = entry_name(path);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => writer.add_directory(name, options).map_err(io::Error::from)?,
            FileType::RegularFile => {
                writer.start_file(name, options).map_err(io::Error::from)?;
                let (version, info) = Version::of(&file)?;
                if info.size > 0 {
                    self.current = Some((file, version, info.size));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The permissions that an archive records.
const PERMISSIONS: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO);

/// Whether the permissions of a file or folder forbid to read it.
fn is_unreadable(folder: &OwnedFd, path: &OsStr) -> bool {
    accessat(folder, path, Access::READ_OK, AtFlags::empty()).is_err_and(|error| error == Errno::ACCESS)
}

/// Returns the name of an entry. A name of its path that is not UTF-8, that other systems take for a path, or that
/// looks as if it were encoded, is percent-encoded: no two entries have the same name.
fn entry_name(path: &OsStr) -> String {
    let names = path.as_bytes().split(|byte| *byte == b'/').map(|name| {
        let name = OsStr::from_bytes(name);
        name.to_str().filter(|text| is_plain(text)).map_or_else(|| encode(name), str::to_owned)
    });
    names.collect::<Vec<_>>().join("/")
}

fn is_plain(name: &str) -> bool {
    let is_escape = |part: &str| part.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    !name.contains(['\\', ':']) && !name.contains(char::is_control) && !name.split('%').skip(1).any(is_escape)
}

/// Returns a time in UTC as archives record it; the earliest possible one for a time that they cannot record.
fn zip_time(modified_ns: i128) -> DateTime {
    let time = jiff::Timestamp::from_nanosecond(modified_ns).ok().and_then(|time| {
        let time = time.to_zoned(jiff::tz::TimeZone::UTC).datetime();
        let part = |part: i8| u8::try_from(part).ok();
        DateTime::from_date_and_time(
            u16::try_from(time.year()).ok()?,
            part(time.month())?,
            part(time.day())?,
            part(time.hour())?,
            part(time.minute())?,
            part(time.second())?,
        )
        .ok()
    });
    time.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mean_something_else_elsewhere_are_encoded_each_by_itself() {
        for (path, name) in [
            ("a b/ü.txt", "a b/ü.txt"),
            ("a\\b/c:d/e", "a%5Cb/c%3Ad/e"),
            ("a%5Cb", "a%255Cb"),
            ("100%", "100%"),
            ("100% sure", "100% sure"),
            ("x\ny", "x%0Ay"),
        ] {
            assert_eq!(entry_name(OsStr::new(path)), name);
        }
        assert_eq!(entry_name(OsStr::from_bytes(b"d/\xff")), "d/%FF");
    }
}
