//! What is known of a file without reading it.

use api::Timestamp;
use rustix::fs::{FileType, Stat};

/// What an entry of a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe, a socket or a device.
    Other,
}

/// What is known of a file or folder without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// What it is.
    pub kind: EntryKind,
    /// The size of a file in bytes.
    pub size: u64,
    /// When its content was last changed.
    pub modified: Timestamp,
    /// Distinguishes the versions of a file, without quotation marks. It consists of the file's number, size
    /// and times of change, which programs cannot set back all together.
    pub etag: String,
}

impl FileInfo {
    pub(super) fn from_stat(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Folder,
            FileType::Symlink => EntryKind::Link,
            _ => EntryKind::Other,
        };
        let (modified, changed) = (modified_ns(stat), nanoseconds(stat.st_ctime, stat.st_ctime_nsec));
        let modified_ms = i64::try_from(modified.div_euclid(1_000_000)).unwrap_or(i64::MAX);
        Self {
            kind,
            size: size(stat),
            modified: Timestamp::from_unix_ms(modified_ms),
            etag: format!("{:x}-{:x}-{modified:x}-{changed:x}", stat.st_ino, size(stat)),
        }
    }
}

/// The size of a file in bytes.
pub(super) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// The time of the last change of a file's content, in nanoseconds since the epoch.
pub(super) fn modified_ns(stat: &Stat) -> i128 {
    nanoseconds(stat.st_mtime, stat.st_mtime_nsec)
}

fn nanoseconds(seconds: impl Into<i128>, nanoseconds: impl Into<i128>) -> i128 {
    seconds.into() * 1_000_000_000 + nanoseconds.into()
}
