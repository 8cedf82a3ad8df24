//! Deletion of files and folders.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use resources::removal::remove_all;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::{Condition, FileError, FileInfo, FilePath, UserFiles, permit};
use crate::beneath::{FOLDER_FLAGS, open_beneath};

impl UserFiles {
    /// Deletes a file, a link or a folder. A folder must be empty, unless `recursive` is set; it then
    /// vanishes at once, and its contents are deleted from the disk afterwards.
    pub async fn remove(
        &self,
        path: FilePath,
        recursive: bool,
        condition: Condition,
    ) -> Result<(), FileError> {
        if path.is_root() {
            return Err(FileError::Conflict("the workspace itself cannot be deleted"));
        }
        let permit = permit(&self.inner.removal_permits)?;
        let trash = self.run(move |files| {
            let _changing = files.inner.write_lock.lock();
            let folder = open_beneath(&files.root()?, path.folder(), FOLDER_FLAGS)
                .map_err(|error| if error == Errno::NOTDIR { FileError::NotFound } else { error.into() })?;
            let stat = statat(&folder, path.name(), AtFlags::SYMLINK_NOFOLLOW)?;
            condition.check(Some(&FileInfo::from_stat(&stat)))?;
            let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let trash = if is_folder && recursive {
                Some(files.move_to_trash(&folder, path.name())?)
            } else {
                let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                unlinkat(&folder, path.name(), flags)?;
                None
            };
            files.inner.quota.forget_measurement();
            Ok(trash)
        });
        let Some(trash) = trash.await? else { return Ok(()) };
        let lane = self.inner.lane.clone();
        // On its own: it may take long, and goes on if the client does not wait. What a stop of the engine
        // interrupts is removed at the next start.
        tokio::spawn(async move {
            let removed = lane.run(move || remove_all(&trash)).await;
            drop(permit);
            if let Some(Err(error)) = removed {
                tracing::warn!(%error, "A deleted folder cannot be removed from the disk.");
            }
        });
        Ok(())
    }

    /// Moves a folder out of the workspace, and returns where it is.
    fn move_to_trash(&self, parent: &OwnedFd, name: &OsStr) -> Result<PathBuf, FileError> {
        let trash = self.inner.staging.trash_path()?;
        match renameat(parent, name, CWD, &trash) {
            // A folder that changes its parent must itself be writable.
            Err(Errno::ACCESS) => {
                let folder = openat(parent, name, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
                let mode = Mode::from_raw_mode(fstat(&folder)?.st_mode);
                fchmod(&folder, mode | Mode::RWXU)?;
                renameat(parent, name, CWD, &trash)?;
            }
            moved => moved?,
        }
        Ok(trash)
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
