//! Permissions beside the workspace, put back. Where a program could not be given mounts of its own, it can
//! change the permissions of files that it can neither read nor write, and so shut its engine out of its own
//! brain.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What a file's owner must be able to do with it, and with a folder.
const FILE: u32 = 0o600;
const FOLDER: u32 = 0o700;

/// The permissions of the folder that the workspace is in, and of all that lies in it.
#[derive(Debug)]
pub(crate) struct Modes {
    folder: PathBuf,
    workspace: PathBuf,
    known: HashMap<PathBuf, u32>,
}

impl Modes {
    /// As they are now.
    pub(crate) fn beside(workspace: &Path) -> Self {
        let folder = workspace.parent().unwrap_or(Path::new("/")).to_owned();
        let mut modes = Self { folder, workspace: workspace.to_owned(), known: HashMap::new() };
        modes.known = modes.now().map(|(path, mode, _)| (path, mode)).collect();
        modes
    }

    /// Puts back what has changed. What has come since must be its owner's to use.
    pub(crate) fn restore(&self) {
        for (path, mode, least) in self.now() {
            // What another program had done to it when this one began is no reason to keep its owner out.
            let wanted = self.known.get(&path).copied().unwrap_or(mode) | least;
            if wanted != mode {
                // It may have gone, or belong to another: then the program could not change it either.
                let _ = fs::set_permissions(&path, Permissions::from_mode(wanted));
            }
        }
    }

    /// Each of them, with its mode and the least that its owner needs. The folder comes first: without its
    /// own permissions nothing in it can be reached.
    fn now(&self) -> impl Iterator<Item = (PathBuf, u32, u32)> {
        let inside =
            std::iter::once(()).flat_map(|()| fs::read_dir(&self.folder).into_iter().flatten().flatten());
        std::iter::once(self.folder.clone())
            .chain(inside.map(|entry| entry.path()).filter(|path| *path != self.workspace))
            .filter_map(|path| {
                let about = fs::symlink_metadata(&path).ok().filter(|about| !about.is_symlink())?;
                Some((path, about.mode() & 0o7777, if about.is_dir() { FOLDER } else { FILE }))
            })
    }
}

#[cfg(test)]
#[path = "modes_tests.rs"]
mod tests;
