//! Restores the permissions and times of files next to the workspace. A program without mounts of its own can
//! change those of files that it can neither read nor write. It could lock its engine out of the brain, or make
//! the brain look unchanged, so that a time-based backup skips it.

use std::collections::HashMap;
use std::fs::{self, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};

/// The permissions that the owner of a file or folder always keeps.
const FILE_OWNER_MODE: u32 = 0o600;
const FOLDER_OWNER_MODE: u32 = 0o700;

/// How far a modification time may lie in the future: a network file system uses the clock of its server.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(1);

/// The known permissions and times of the workspace's parent folder and of the entries in it, except for the
/// workspace.
#[derive(Debug)]
pub(crate) struct MetadataGuard {
    folder: PathBuf,
    workspace: PathBuf,
    known: HashMap<PathBuf, KnownMetadata>,
}

/// The known metadata of a file.
#[derive(Clone, Copy, Debug)]
struct KnownMetadata {
    /// Its permissions when it was first seen.
    mode: u32,
    /// Its modification time at the last check, but not later than that check.
    modified: SystemTime,
}

impl KnownMetadata {
    /// `None` if the file system has no modification times.
    fn from_metadata(metadata: &Metadata) -> Option<Self> {
        let modified = metadata.modified().ok()?.min(SystemTime::now());
        Some(Self { mode: metadata.mode() & 0o7777, modified })
    }
}

impl MetadataGuard {
    /// Records the metadata as it is now.
    pub(crate) fn snapshot(workspace: &Path) -> Self {
        let folder = workspace.parent().unwrap_or(Path::new("/")).to_owned();
        let entries = list_entries(folder.clone(), workspace.to_owned());
        let known = entries
            .filter_map(|(path, metadata)| Some((path, KnownMetadata::from_metadata(&metadata)?)))
            .collect();
        Self { folder, workspace: workspace.to_owned(), known }
    }

    /// Restores what has changed. Permissions are set back to their known values, and owners always keep access.
    /// A modification time that went backwards or lies in the future cannot be that of a write. It is set to the
    /// present, which is not earlier than any real write, even a concurrent one.
    pub(crate) fn restore(&mut self) {
        for (path, metadata) in list_entries(self.folder.clone(), self.workspace.clone()) {
            let (Some(current), Ok(modified)) =
                (KnownMetadata::from_metadata(&metadata), metadata.modified())
            else {
                continue;
            };
            let known = self.known.entry(path.clone()).or_insert(current);
            // Another program may have taken the owner's permissions before the snapshot.
            let mode = known.mode | if metadata.is_dir() { FOLDER_OWNER_MODE } else { FILE_OWNER_MODE };
            // This fails if the file is gone or belongs to another user, whose files no program could change.
            if mode != current.mode {
                let _ = fs::set_permissions(&path, Permissions::from_mode(mode));
            }
            if modified < known.modified || modified > SystemTime::now() + MAX_CLOCK_SKEW {
                let _ = touch(&path);
            } else {
                known.modified = current.modified;
            }
        }
    }
}

/// A folder and its entries except for the workspace and symbolic links. The folder comes first: its entries
/// cannot be reached unless its own permissions are restored.
fn list_entries(folder: PathBuf, workspace: PathBuf) -> impl Iterator<Item = (PathBuf, Metadata)> {
    let entries = {
        let folder = folder.clone();
        std::iter::once(()).flat_map(move |()| fs::read_dir(&folder).into_iter().flatten().flatten())
    };
    std::iter::once(folder)
        .chain(entries.map(|entry| entry.path()).filter(move |path| *path != workspace))
        .filter_map(|path| {
            let metadata = fs::symlink_metadata(&path).ok().filter(|metadata| !metadata.is_symlink())?;
            Some((path, metadata))
        })
}

/// Sets the access and modification times of a file to the present, without opening it.
fn touch(path: &Path) -> rustix::io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
}

#[cfg(test)]
#[path = "../tests/unit/metadata_guard.rs"]
mod tests;
