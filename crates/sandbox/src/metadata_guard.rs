//! Permissions and times beside the workspace, put right. Where a program could not be given mounts of its own, it
//! can change those of files that it can neither read nor write: shut its engine out of its own brain, or make the
//! brain look as if it had not been written to, so that a copy that goes by times leaves it out.

use std::collections::HashMap;
use std::fs::{self, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};

/// What a file's owner must be able to do with it, and with a folder.
const FILE_OWNER_MODE: u32 = 0o600;
const FOLDER_OWNER_MODE: u32 = 0o700;

/// How far another machine's clock, which a file system of the network goes by, may be ahead.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(1);

/// The permissions and times of the folder that the workspace is in, and of all that lies in it.
#[derive(Debug)]
pub(crate) struct MetadataGuard {
    folder: PathBuf,
    workspace: PathBuf,
    known: HashMap<PathBuf, KnownMetadata>,
}

/// What is known of a file.
#[derive(Clone, Copy, Debug)]
struct KnownMetadata {
    /// Its permissions, when it was first seen.
    mode: u32,
    /// When it was written to, as last seen, but no later than that.
    modified: SystemTime,
}

impl KnownMetadata {
    /// None where the file system keeps no such time.
    fn from_metadata(about: &Metadata) -> Option<Self> {
        let written = about.modified().ok()?.min(SystemTime::now());
        Some(Self { mode: about.mode() & 0o7777, modified: written })
    }
}

impl MetadataGuard {
    /// As they are now.
    pub(crate) fn snapshot(workspace: &Path) -> Self {
        let folder = workspace.parent().unwrap_or(Path::new("/")).to_owned();
        let known = list_entries(folder.clone(), workspace.to_owned());
        let known =
            known.filter_map(|(path, about)| Some((path, KnownMetadata::from_metadata(&about)?))).collect();
        Self { folder, workspace: workspace.to_owned(), known }
    }

    /// Puts right what has changed. Permissions become again what they were; what has come since must be its
    /// owner's to use. A time of writing that went back or lies ahead is none: it becomes the present, which is no
    /// earlier than any write, whoever writes meanwhile.
    pub(crate) fn restore(&mut self) {
        for (path, about) in list_entries(self.folder.clone(), self.workspace.clone()) {
            let (Some(found), Ok(written)) = (KnownMetadata::from_metadata(&about), about.modified()) else {
                continue;
            };
            let known = self.known.entry(path.clone()).or_insert(found);
            // What another program had done to it when this one began is no reason to keep its owner out.
            let mode = known.mode | if about.is_dir() { FOLDER_OWNER_MODE } else { FILE_OWNER_MODE };
            // It may have gone, or belong to another: then the program could not change it either.
            if mode != found.mode {
                let _ = fs::set_permissions(&path, Permissions::from_mode(mode));
            }
            if written < known.modified || written > SystemTime::now() + MAX_CLOCK_SKEW {
                let _ = touch(&path);
            } else {
                known.modified = found.modified;
            }
        }
    }
}

/// A folder, and what lies in it but the workspace. The folder comes first: without its own permissions nothing in
/// it can be reached.
fn list_entries(folder: PathBuf, workspace: PathBuf) -> impl Iterator<Item = (PathBuf, Metadata)> {
    let inside = {
        let folder = folder.clone();
        std::iter::once(()).flat_map(move |()| fs::read_dir(&folder).into_iter().flatten().flatten())
    };
    std::iter::once(folder)
        .chain(inside.map(|entry| entry.path()).filter(move |path| *path != workspace))
        .filter_map(|path| {
            let about = fs::symlink_metadata(&path).ok().filter(|about| !about.is_symlink())?;
            Some((path, about))
        })
}

/// Gives a file the present as its times, without opening it.
fn touch(path: &Path) -> rustix::io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
}

#[cfg(test)]
#[path = "metadata_guard_tests.rs"]
mod tests;
