//! The agent's workspace: how the tools for files reach what is in it, and nothing outside it.
//!
//! Paths are resolved by the kernel with `RESOLVE_BENEATH`: neither `..`, nor an absolute path, nor a symbolic
//! link, nor one swapped in at the last moment leads out of the workspace. What is changed is then named by its
//! opened folder and its bare name, so nothing is resolved a second time.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use uuid::Uuid;

use super::{ToolError, ToolOutput, ToolStep, spill};
use crate::threads::{FILE_THREADS, Lane};

/// A folder that is only passed through.
const FOLDER_FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::PATH);
/// What a file is read with. NONBLOCK: a pipe without a writer would be waited for.
const READ_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);
/// What a file made here may be used for, as far as the process's mask lets it.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
/// The same for a folder.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);
/// The part of a mode that a replaced file hands on. The set-user-id bits are none of it: as for any write,
/// they speak for the content that was.
const PRESERVED_MODE: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO);
/// What the name of a file that will replace another begins with.
const TEMPORARY_PREFIX: &str = ".writing-";
/// And what it ends with.
const TEMPORARY_SUFFIX: &str = ".tmp";

/// The folder that the file tools work in.
#[derive(Clone)]
pub(super) struct Workspace {
    root: PathBuf,
    /// Held while a file is changed: of two edits at once, one would undo the other.
    write_lock: Arc<Mutex<()>>,
    /// Where files are read and written: a disk may hang.
    lane: Lane,
}

/// Where a file of the workspace is, or will be.
pub(super) struct FileLocation<'a> {
    folder: OwnedFd,
    name: &'a str,
    /// As the model wrote it, for what it is told.
    path: &'a str,
}

impl Workspace {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), write_lock: Arc::default(), lane: Lane::new(FILE_THREADS) }
    }

    /// Opens `path` to read it.
    pub(super) fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, ToolError> {
        open_beneath(&self.open_root()?, path, READ_FLAGS | flags).map_err(|error| cannot_open(path, error))
    }

    /// The place of `path`, in a folder that must be there.
    pub(super) fn locate<'a>(&self, path: &'a str) -> Result<FileLocation<'a>, ToolError> {
        self.locate_with(path, |root, folder| open_beneath(root, folder, FOLDER_FLAGS))
    }

    /// The place of `path`, in a folder that is made where it is missing.
    pub(super) fn locate_creating_folders<'a>(&self, path: &'a str) -> Result<FileLocation<'a>, ToolError> {
        self.locate_with(path, make_folder)
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

    /// Whether `path` leads to nothing, its folder perhaps included.
    pub(super) fn is_missing(&self, path: &str) -> bool {
        self.open_root().is_ok_and(|root| open_beneath(&root, path, FOLDER_FLAGS).err() == Some(Errno::NOENT))
    }

    fn open_root(&self) -> Result<OwnedFd, ToolError> {
        let unusable = |error: io::Error| ToolError(format!("the workspace cannot be used: {error}"));
        std::fs::create_dir_all(&self.root).map_err(unusable)?;
        rustix::fs::open(&self.root, FOLDER_FLAGS | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| unusable(error.into()))
    }

    /// Keeps other changes off until it is dropped.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        // Nothing is left half done by a panic: a file is replaced whole or not at all.
        self.write_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where files are read and written.
    pub(super) fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Runs `work` where it may block.
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
    /// The file's whole content, if that is at most `max` bytes of text.
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

    /// Whether there is something.
    pub(super) fn exists(&self) -> Result<bool, ToolError> {
        self.existing_mode().map(|mode| mode.is_some())
    }

    /// Replaces the file, or makes it. Who reads it sees the old content or the new, never a part.
    pub(super) fn replace(&self, content: &str) -> Result<(), ToolError> {
        let mode = self.existing_mode()?;
        let failed = |error: io::Error| ToolError(format!("`{}` cannot be written: {error}", self.path));
        let temporary = temporary_name();
        let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, &temporary, create, FILE_MODE)
            .map_err(|error| failed(error.into()))?;
        self.write_and_rename(file.into(), &temporary, content, mode).map_err(|error| {
            // One that cannot be removed is as harmless as one that a crash leaves.
            let _ = rustix::fs::unlinkat(&self.folder, &temporary, AtFlags::empty());
            failed(error)
        })
    }

    /// Makes the file anew, to be written bit by bit. One that is there is removed, whatever it is but a folder.
    pub(super) fn create(&self) -> Result<File, ToolError> {
        let failed =
            |error: Errno| ToolError(format!("`{}` cannot be made: {}", self.path, io::Error::from(error)));
        match rustix::fs::unlinkat(&self.folder, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        // Between the two nothing can be put there that is followed: it must be new.
        let create = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(&self.folder, self.name, create, FILE_MODE).map(File::from).map_err(failed)
    }

    /// The names and sizes of the files in the same folder whose names are `wanted`.
    pub(super) fn siblings(&self, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<(String, u64)>> {
        let folder = open_beneath(&self.folder, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut files = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().ok().filter(|name| wanted(name)) else { continue };
            // It may be gone by now.
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

    /// Fills the temporary file and puts it where the file belongs.
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
        // The journal will say that it was written: after a power loss it must not be empty.
        file.sync_all()?;
        Ok(rustix::fs::renameat(&self.folder, temporary, &self.folder, self.name)?)
    }

    /// The mode of the file that is there, if one is. Anything that is not a file is refused.
    fn existing_mode(&self) -> Result<Option<Mode>, ToolError> {
        let stat = match rustix::fs::statat(&self.folder, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(cannot_open(self.path, error)),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(Mode::from_raw_mode(stat.st_mode) & PRESERVED_MODE)),
            // To replace it would cut the link, to follow it would change a file that the call does not name.
            FileType::Symlink => Err(ToolError(format!("`{}` is a symbolic link", self.path))),
            _ => Err(not_a_file(self.path)),
        }
    }
}

/// How many times an open is repeated that other renames on the machine got in the way of.
const MAX_OPEN_ATTEMPTS: usize = 100;

/// Opens `path` beneath `folder`. If anything is renamed anywhere on the machine while the kernel follows a `..`, it
/// cannot rule out an escape and answers EAGAIN: then it is asked again
/// (<https://man7.org/linux/man-pages/man2/openat2.2.html>).
fn open_beneath(folder: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let open = || rustix::fs::openat2(&folder, path, flags | OFlags::CLOEXEC, Mode::empty(), beneath);
    let mut attempts = std::iter::repeat_with(open).take(MAX_OPEN_ATTEMPTS);
    attempts.find(|opened| !matches!(opened, Err(Errno::AGAIN))).unwrap_or(Err(Errno::AGAIN))
}

/// Opens the folder `path` beneath `root`, and makes what is missing of it. Each new one is made by its bare name
/// in an opened folder, and opened beneath that. As deep as the longest path that the kernel takes.
fn make_folder(root: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let path = path.trim_end_matches('/');
    match open_beneath(root, path, FOLDER_FLAGS) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    let (parent, name) = match path.rsplit_once('/') {
        // It would make a folder only to leave it again.
        Some((_, "..")) => return Err(Errno::NOENT),
        Some((parent, name)) => (make_folder(root, parent)?, name),
        None => (open_beneath(root, ".", FOLDER_FLAGS)?, path),
    };
    match rustix::fs::mkdirat(&parent, name, FOLDER_MODE) {
        // Two writers may make it at once.
        Ok(()) | Err(Errno::EXIST) => open_beneath(parent, name, FOLDER_FLAGS),
        Err(error) => Err(error),
    }
}

/// The name of a file that will replace another. It does not hold the other's name, which may be as long as
/// names can be.
fn temporary_name() -> String {
    format!("{TEMPORARY_PREFIX}{}{TEMPORARY_SUFFIX}", Uuid::now_v7().simple())
}

/// Whether a file of this name is one that a crash left behind.
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with(TEMPORARY_PREFIX) && name.ends_with(TEMPORARY_SUFFIX)
}

fn cannot_open(path: &str, error: Errno) -> ToolError {
    let why = match error {
        Errno::NOENT => {
            spill::eviction_notice(path).unwrap_or_else(|| "there is no such file or folder".to_owned())
        }
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
#[path = "files_tests.rs"]
mod tests;
