//! Pages of a folder's entries, sorted by name.

use std::collections::BinaryHeap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{AtFlags, Dir, statat};

use super::{FileError, FileInfo};
use crate::beneath::is_temporary;

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderEntry {
    /// The entry's name.
    pub name: OsString,
    /// What it is.
    pub info: FileInfo,
}

/// A page of a folder's entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderPage {
    /// The entries, by name in the order of its bytes.
    pub entries: Vec<FolderEntry>,
    /// Whether more follow.
    pub has_more: bool,
}

/// Returns at most `limit` entries whose names follow `after`. Reads all names, but holds only those of the
/// page.
pub(super) fn list(folder: &OwnedFd, after: Option<&OsStr>, limit: usize) -> Result<FolderPage, FileError> {
    let mut first = BinaryHeap::new();
    let mut has_more = false;
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." || is_temporary(name) || after.is_some_and(|after| name <= after) {
            continue;
        }
        if first.len() == limit {
            has_more = true;
            // The greatest of the names that would be on the page.
            if first.peek().is_none_or(|greatest: &OsString| **greatest <= *name) {
                continue;
            }
            first.pop();
        }
        first.push(name.to_owned());
    }
    let entries = first.into_sorted_vec().into_iter().filter_map(|name| {
        // It may have been removed meanwhile.
        let stat = statat(folder, &*name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(FolderEntry { name, info: FileInfo::from_stat(&stat) })
    });
    Ok(FolderPage { entries: entries.collect(), has_more })
}
