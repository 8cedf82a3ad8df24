//! Resolves paths beneath the workspace, for everything that accesses its files.
//!
//! The kernel resolves them with `RESOLVE_BENEATH`: neither `..`, nor an absolute path, nor a symbolic link,
//! nor one swapped in at the last moment leads out of the workspace.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;
use uuid::Uuid;

/// The flags for a folder that is only traversed.
pub(super) const FOLDER_FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::PATH);
/// The flags for reading a file. NONBLOCK, because opening a pipe without a writer would block.
pub(super) const READ_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);
/// The mode of a new file, before the process's umask.
pub(super) const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
/// The mode of a new folder, before the process's umask.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);
/// The part of the mode that a replaced file passes on. It excludes the set-user-id bits: as with any write,
/// they applied to the old content.
pub(super) const PRESERVED_MODE: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO);
/// The prefix of the name of a temporary file, which will replace another.
const TEMPORARY_PREFIX: &str = ".writing-";
/// The suffix of that name.
const TEMPORARY_SUFFIX: &str = ".tmp";

/// Opens the workspace itself, and creates it if it is missing.
pub(super) fn open_root(root: &Path) -> io::Result<OwnedFd> {
    std::fs::create_dir_all(root)?;
    Ok(rustix::fs::open(root, FOLDER_FLAGS | OFlags::CLOEXEC, Mode::empty())?)
}

/// How many times an open is repeated that other renames on the machine got in the way of.
const MAX_OPEN_ATTEMPTS: usize = 100;

/// Opens `path` beneath `folder`. If anything is renamed anywhere on the machine while the kernel follows a
/// `..`, it cannot rule out an escape and answers EAGAIN: then it is asked again
/// (<https://man7.org/linux/man-pages/man2/openat2.2.html>).
pub(super) fn open_beneath(
    folder: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let open = || rustix::fs::openat2(&folder, path, flags | OFlags::CLOEXEC, Mode::empty(), beneath);
    let mut attempts = std::iter::repeat_with(open).take(MAX_OPEN_ATTEMPTS);
    attempts.find(|opened| !matches!(opened, Err(Errno::AGAIN))).unwrap_or(Err(Errno::AGAIN))
}

/// Opens the folder `path` beneath `root` and creates the missing parts. Each new folder is created by its
/// bare name in an opened folder and opened beneath that. The depth is bounded by the longest path that the
/// kernel accepts.
pub(super) fn make_folder(root: &OwnedFd, path: &OsStr) -> Result<OwnedFd, Errno> {
    let bytes = path.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let path = OsStr::from_bytes(bytes.get(..end).unwrap_or_default());
    match open_beneath(root, path, FOLDER_FLAGS) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    let (parent, name) = match split_last(path) {
        // That would create a folder only to leave it again.
        (Some(_), name) if name == ".." => return Err(Errno::NOENT),
        (Some(parent), name) => (make_folder(root, parent)?, name),
        (None, name) => (open_beneath(root, ".", FOLDER_FLAGS)?, name),
    };
    match rustix::fs::mkdirat(&parent, name, FOLDER_MODE) {
        // Two writers may create it at the same time.
        Ok(()) | Err(Errno::EXIST) => open_beneath(parent, name, FOLDER_FLAGS),
        Err(error) => Err(error),
    }
}

/// Splits a path into the folder, if it names one, and the last name.
pub(super) fn split_last(path: &OsStr) -> (Option<&OsStr>, &OsStr) {
    let bytes = path.as_bytes();
    match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (
            bytes.get(..at).map(OsStr::from_bytes),
            OsStr::from_bytes(bytes.get(at + 1..).unwrap_or_default()),
        ),
        None => (None, path),
    }
}

/// Returns the name of a temporary file. It does not contain the target's name, which may already have the
/// maximum length.
pub(super) fn temporary_name() -> String {
    format!("{TEMPORARY_PREFIX}{}{TEMPORARY_SUFFIX}", Uuid::now_v7().simple())
}

/// Whether this is the name of a temporary file, such as a crash may leave behind.
pub(super) fn is_temporary(name: impl AsRef<OsStr>) -> bool {
    let name = name.as_ref().as_bytes();
    name.starts_with(TEMPORARY_PREFIX.as_bytes()) && name.ends_with(TEMPORARY_SUFFIX.as_bytes())
}
