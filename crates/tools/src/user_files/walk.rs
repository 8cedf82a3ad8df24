//! Visits everything in a folder, without following links and with one open folder at a time.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat2, statat};
use rustix::io::Errno;

use super::FileError;
use crate::beneath::is_temporary;

/// What happens at a folder that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Skip,
    Fail,
}

/// The most bytes in the paths of the folders that are still to be visited.
const MAX_PENDING_BYTES: usize = 16 << 20;

/// Calls `visit` with each entry below `root`, by its path relative to it. Entries that vanish meanwhile are
/// skipped.
pub(super) fn walk(
    root: &OwnedFd,
    unreadable: Unreadable,
    mut visit: impl FnMut(&OsStr, &Stat) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let (mut folders, mut pending_bytes) = (vec![OsString::new()], 0_usize);
    while let Some(folder) = folders.pop() {
        pending_bytes = pending_bytes.saturating_sub(folder.len());
        let opened = match open_without_links(root, &folder, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(_) if unreadable == Unreadable::Skip => continue,
            Err(error) => return Err(error.into()),
        };
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || is_temporary(name) {
                continue;
            }
            let Ok(stat) = statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let path = join(&folder, name);
            visit(&path, &stat)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                pending_bytes = pending_bytes.saturating_add(path.len());
                if pending_bytes > MAX_PENDING_BYTES {
                    return Err(FileError::TooLarge("the folder has too many subfolders".into()));
                }
                folders.push(path);
            }
        }
    }
    Ok(())
}

/// Opens a path below `root` on which there is no link.
pub(super) fn open_without_links(root: &OwnedFd, path: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { OsStr::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(root, path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty(), resolve)
}

fn join(folder: &OsStr, name: &OsStr) -> OsString {
    let mut path = folder.to_owned();
    if !path.is_empty() {
        path.push("/");
    }
    path.push(name);
    path
}
