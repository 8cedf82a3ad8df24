//! The agent's workspace: gives the file tools access to what is inside it, and to nothing else.
//!
//! The kernel resolves paths with `RESOLVE_BENEATH`: neither `..`, nor an absolute path, nor a symbolic link,
//! nor one swapped in at the last moment leads out of the workspace. A change then uses the opened folder and
//! the bare file name, so that nothing is resolved a second time.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use resources::threads::{FILE_THREADS, Lane};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::beneath::{
    FILE_MODE, FOLDER_FLAGS, PRESERVED_MODE, READ_FLAGS, make_folder, open_beneath, open_root, temporary_name,
};
use super::spill_name::eviction_notice;
use super::{ToolError, ToolOutput, ToolStep};

/// Held while a file of the workspace is changed: of two concurrent edits, one would undo the other.
/// Everything that changes files of one workspace has a clone of the same lock.
#[derive(Clone, Default)]
pub struct WorkspaceLock(Arc<Mutex<()>>);

impl WorkspaceLock {
    /// Excludes other changes until the guard is dropped.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        // A panic leaves nothing half done: a file is replaced whole or not at all.
        self.0.lock()
    }
}

/// The folder that the file tools work in.
#[derive(Clone)]
pub(super) struct Workspace {
    root: PathBuf,
    write_lock: WorkspaceLock,
    /// The worker that reads and writes files, because a disk may hang.
    lane: Lane,
}

/// The location of an existing or future file in the workspace.
pub(super) struct FileLocation<'a> {
    folder: OwnedFd,
    name: &'a str,
    /// The path as the model wrote it, for messages to the model.
    path: &'a str,
}

impl Workspace {
    pub(super) fn new(root: &Path) -> Self {
        Self::with_lock(root, WorkspaceLock::default())
    }

    /// Like [`Workspace::new`], for one whose files are also changed elsewhere under `write_lock`.
    pub(super) fn with_lock(root: &Path, write_lock: WorkspaceLock) -> Self {
        Self { root: root.to_owned(), write_lock, lane: Lane::new(FILE_THREADS) }
    }

    /// Opens `path` for reading.
    pub(super) fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, ToolError> {
        open_beneath(&self.open_root()?, path, READ_FLAGS | flags).map_err(|error| cannot_open(path, error))
    }

    /// Returns the location of `path`, whose folder must exist.
    pub(super) fn locate<'a>(&self, path: &'a str) -> Result<FileLocation<'a>, ToolError> {
        self.locate_with(path, |root, folder| open_beneath(root, folder, FOLDER_FLAGS))
    }

    /// Returns the location of `path`, creating its folder if necessary.
    pub(super) fn locate_creating_folders<'a>(&self, path: &'a str) -> Result<FileLocation<'a>, ToolError> {
        self.locate_with(path, |root, folder| make_folder(root, OsStr::new(folder)))
    }

    fn locate_with<'a>(
        &self,
        path: &'a str,
        open: fn(&OwnedFd, &str) -> Result<OwnedFd, Errno>,
    ) -> Result<FileLocation<'a>, ToolError> {
        if path.starts_with('/') {
            return Err(cannot_open(path, Errno::XDEV));
        }
        let (folder, name) = path.rsplit_once('/').unwrap_or((".", path));
        if matches!(name, "" | "." | "..") {
            return Err(ToolError(format!("`{path}` does not name a file")));
        }
        let folder = open(&self.open_root()?, folder).map_err(|error| cannot_open(path, error))?;
        Ok(FileLocation { folder, name, path })
    }

    /// Whether `path`, or a folder on the way to it, does not exist.
    pub(super) fn is_missing(&self, path: &str) -> bool {
        self.open_root().is_ok_and(|root| open_beneath(&root, path, FOLDER_FLAGS).err() == Some(Errno::NOENT))
    }

    fn open_root(&self) -> Result<OwnedFd, ToolError> {
        open_root(&self.root).map_err(|error| ToolError(format!("the workspace cannot be used: {error}")))
    }

    /// Excludes other changes until the guard is dropped.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.write_lock.lock()
    }

    /// Returns the worker that reads and writes files.
    pub(super) fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Runs `work` on a thread that may block.
    pub(super) async fn run_blocking(
        &self,
        work: impl FnOnce(Self) -> Result<String, ToolError> + Send + 'static,
    ) -> Result<ToolStep, ToolError> {
        let workspace = self.clone();
        let text = self.lane.run(move || work(workspace)).await;
        let text = text.ok_or_else(|| ToolError("the tool failed".into()))??;
        Ok(ToolStep::Done(ToolOutput { text, ..ToolOutput::default() }))
    }
}

impl FileLocation<'_> {
    /// Returns the whole content of the file if it is text of at most `max` bytes.
    pub(super) fn read(&self, max: u64) -> Result<String, ToolError> {
        self.existing_mode()?;
        let opened = open_beneath(&self.folder, self.name, READ_FLAGS | OFlags::NOFOLLOW);
        let file = File::from(opened.map_err(|error| cannot_open(self.path, error))?);
        if !file.metadata().map_err(|error| cannot_read(self.path, &error))?.is_file() {
            return Err(not_a_file(self.path));
        }
        let mut bytes = Vec::new();
        file.take(max.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|error| cannot_read(self.path, &error))?;
        if u64::try_from(bytes.len()).is_ok_and(|len| len <= max) {
            String::from_utf8(bytes).map_err(|_| ToolError(format!("`{}` is not UTF-8 text", self.path)))
        } else {
            Err(ToolError(format!("`{}` is over {max} bytes", self.path)))
        }
    }

    /// Whether something exists at this location.
    pub(super) fn exists(&self) -> Result<bool, ToolError> {
        self.existing_mode().map(|mode| mode.is_some())
    }

    /// Replaces or creates the file atomically: a reader sees the old content or the new, never a part.
    pub(super) fn replace(&self, content: &str) -> Result<(), ToolError> {
        let mode = self.existing_mode()?;
        let failed = |error: io::Error| ToolError(format!("`{}` cannot be written: {error}", self.path));
        let temporary = temporary_name();
        let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, &temporary, create, FILE_MODE)
            .map_err(|error| failed(error.into()))?;
        self.write_and_rename(file.into(), &temporary, content, mode).map_err(|error| {
            // A file that cannot be removed is as harmless as one that a crash leaves.
            let _ = rustix::fs::unlinkat(&self.folder, &temporary, AtFlags::empty());
            failed(error)
        })
    }

    /// Creates the file for incremental writing. Whatever is there is removed, unless it is a folder.
    pub(super) fn create(&self) -> Result<File, ToolError> {
        let failed = |error: Errno| {
            ToolError(format!("`{}` cannot be created: {}", self.path, io::Error::from(error)))
        };
        match rustix::fs::unlinkat(&self.folder, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        // Nothing put there in between is followed, because the file must be new.
        let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(&self.folder, self.name, create, FILE_MODE).map(File::from).map_err(failed)
    }

    /// Returns the names and sizes of the files in the same folder whose names satisfy `wanted`.
    pub(super) fn siblings(&self, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<(String, u64)>> {
        let folder = open_beneath(&self.folder, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut files = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().ok().filter(|name| wanted(name)) else { continue };
            // It may have been removed meanwhile.
            let Ok(stat) = rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                files.push((name.to_owned(), u64::try_from(stat.st_size).unwrap_or(0)));
            }
        }
        Ok(files)
    }

    /// Removes a file of the same folder.
    pub(super) fn remove_sibling(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the temporary file and renames it to the target.
    fn write_and_rename(
        &self,
        mut file: File,
        temporary: &str,
        content: &str,
        mode: Option<Mode>,
    ) -> io::Result<()> {
        file.write_all(content.as_bytes())?;
        if let Some(mode) = mode {
            rustix::fs::fchmod(&file, mode)?;
        }
        // The journal will say that the file was written, so it must not be empty after a power loss.
        file.sync_all()?;
        Ok(rustix::fs::renameat(&self.folder, temporary, &self.folder, self.name)?)
    }

    /// Returns the mode of the existing file, if any. Anything that is not a regular file is refused.
    fn existing_mode(&self) -> Result<Option<Mode>, ToolError> {
        let stat = match rustix::fs::statat(&self.folder, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(cannot_open(self.path, error)),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(Mode::from_raw_mode(stat.st_mode) & PRESERVED_MODE)),
            // Replacing it would break the link; following it would change a file that the call does not
            // name.
            FileType::Symlink => Err(ToolError(format!("`{}` is a symbolic link", self.path))),
            _ => Err(not_a_file(self.path)),
        }
    }
}

fn cannot_open(path: &str, error: Errno) -> ToolError {
    let why = match error {
        Errno::NOENT => eviction_notice(path).unwrap_or_else(|| "there is no such file or folder".to_owned()),
        Errno::XDEV | Errno::LOOP => "it leads out of the workspace".to_owned(),
        other => io::Error::from(other).to_string(),
    };
    ToolError(format!("`{path}` cannot be opened: {why}"))
}

pub(super) fn cannot_read(path: &str, error: &io::Error) -> ToolError {
    ToolError(format!("`{path}` cannot be read: {error}"))
}

pub(super) fn not_a_file(path: &str) -> ToolError {
    ToolError(format!("`{path}` is not a file"))
}

#[cfg(test)]
#[path = "../tests/unit/files.rs"]
mod tests;
