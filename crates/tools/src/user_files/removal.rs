//! Deletion of files and folders.

use resources::removal::remove_all;
use rustix::fs::{AtFlags, CWD, FileType, renameat, statat, unlinkat};

use super::{Condition, FileError, FileInfo, FilePath, UserFiles};
use crate::beneath::{FOLDER_FLAGS, open_beneath};

impl UserFiles {
    /// Deletes a file, a link or a folder. A folder must be empty, unless `recursive` is set; it then
    /// vanishes at once, and its contents are deleted afterwards.
    pub async fn remove(
        &self,
        path: FilePath,
        recursive: bool,
        condition: Condition,
    ) -> Result<(), FileError> {
        if path.is_root() {
            return Err(FileError::Conflict("the workspace itself cannot be deleted"));
        }
        let trash = self.run(move |files| {
            let _changing = files.inner.write_lock.lock();
            let folder = open_beneath(&files.root()?, path.folder(), FOLDER_FLAGS).map_err(|error| {
                if error == rustix::io::Errno::NOTDIR { FileError::NotFound } else { error.into() }
            })?;
            let stat = statat(&folder, path.name(), AtFlags::SYMLINK_NOFOLLOW)?;
            condition.check(Some(&FileInfo::from_stat(&stat).etag))?;
            let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            files.inner.quota.after(|| match (is_folder, recursive) {
                (false, _) => {
                    unlinkat(&folder, path.name(), AtFlags::empty()).map(|()| None).map_err(FileError::from)
                }
                (true, false) => {
                    unlinkat(&folder, path.name(), AtFlags::REMOVEDIR).map(|()| None).map_err(FileError::from)
                }
                (true, true) => {
                    let trash = files.inner.staging.trash_path()?;
                    renameat(&folder, path.name(), CWD, &trash)?;
                    Ok(Some(trash))
                }
            })
        });
        let Some(trash) = trash.await? else { return Ok(()) };
        self.run(move |_| remove_all(&trash).map_err(|error| FileError::Io(std::io::Error::other(error))))
            .await
    }
}
