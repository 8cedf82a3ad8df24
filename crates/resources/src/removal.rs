//! Removes a folder and its contents, whatever the programs of an engine have put into it.
//!
//! `std::fs::remove_dir_all` fails at the first directory without write permission, which ordinary programs
//! create all the time (Go's module cache, for example), and it needs a descriptor and a stack frame per
//! level. This implementation first restores the owner's permissions on each directory, follows no link, and
//! uses the same memory at any depth: it moves subdirectories up into the folder itself before it empties
//! them.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

/// How many entries of a directory are held in memory at a time.
const BATCH_SIZE: usize = 1_024;

/// Removes what is at `path`, if there is anything: a directory with its contents, or a file, but not what a link leads to.
/// Blocks.
///
/// # Errors
/// Those of [`remove_all`].
pub fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => remove_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => ignore_not_found(Err(error)),
    }
}

/// Removes the directory at `path`. Blocks. The error names the entry that cannot be removed; a later call
/// continues where this one failed.
pub fn remove_all(path: &Path) -> io::Result<()> {
    // Errors show paths relative to the folder's parent: they reach products, which must not learn where it is.
    let shown = Path::new(path.file_name().unwrap_or(path.as_os_str()));
    let root = open_dir(CWD, path).map_err(|error| with_path(shown, error))?;
    let mut moved = 0_u64;
    // Directories that an earlier, interrupted removal moved up are emptied like any other.
    loop {
        let batch = read_batch(&root).map_err(|error| with_path(shown, error))?;
        if batch.is_empty() {
            break;
        }
        for (name, is_dir) in batch {
            let removed = if is_dir {
                empty_directory(root.as_fd(), &name, &mut moved)
                    .and_then(|()| unlinkat(&root, &*name, AtFlags::REMOVEDIR).map_err(io::Error::from))
            } else {
                unlinkat(&root, &*name, AtFlags::empty()).map_err(io::Error::from)
            };
            ignore_not_found(removed)
                .map_err(|error| with_path(&shown.join(name.to_string_lossy().as_ref()), error))?;
        }
    }
    fs::remove_dir(path).map_err(|error| with_path(shown, error))
}

/// Empties the directory `name` of `root`: removes its files and moves its subdirectories into `root`.
fn empty_directory(root: BorrowedFd<'_>, name: &CStr, moved: &mut u64) -> io::Result<()> {
    let dir = open_dir(root, name)?;
    loop {
        let batch = read_batch(&dir)?;
        if batch.is_empty() {
            return Ok(());
        }
        for (name, is_dir) in batch {
            if !is_dir {
                ignore_not_found(unlinkat(&dir, &*name, AtFlags::empty()).map_err(io::Error::from))?;
                continue;
            }
            // Moving a directory requires write permission on it, because its `..` entry changes.
            ignore_not_found(open_dir(dir.as_fd(), &*name).map(drop))?;
            loop {
                let unique = CString::new(format!(".removed-{moved}"))?;
                *moved += 1;
                match renameat(&dir, &*name, root, &*unique) {
                    // The name is in use: an earlier removal left it behind.
                    Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                    renamed => break ignore_not_found(renamed.map_err(io::Error::from))?,
                }
            }
        }
    }
}

/// Opens the directory `name` and gives its owner all permissions on it. Links are not followed.
fn open_dir(parent: BorrowedFd<'_>, name: impl rustix::path::Arg + Copy) -> io::Result<OwnedFd> {
    let directory = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // `O_PATH` needs no permission on the directory, and its descriptor cannot come to name another directory.
    let handle = openat(parent, name, OFlags::PATH | directory, Mode::empty())?;
    let stat = rustix::fs::fstat(&handle)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if !mode.contains(Mode::RWXU) {
        let proc_path = format!("/proc/self/fd/{}", handle.as_raw_fd());
        rustix::fs::chmod(&*proc_path, mode | Mode::RWXU)?;
    }
    Ok(openat(&handle, c".", OFlags::RDONLY | directory, Mode::empty())?)
}

/// Returns up to [`BATCH_SIZE`] entries of a directory, each with whether it is a directory; empty if it has none.
fn read_batch(dir: &OwnedFd) -> io::Result<Vec<(CString, bool)>> {
    let mut entries = Vec::new();
    // The directory has changed since it was last read.
    let mut reader = Dir::read_from(dir)?;
    reader.rewind();
    for entry in reader {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            kind => kind,
        };
        entries.push((name.to_owned(), kind == FileType::Directory));
        if entries.len() == BATCH_SIZE {
            break;
        }
    }
    Ok(entries)
}

/// Treats what is missing as removed.
pub fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn with_path(path: &Path, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    if error.kind() == io::ErrorKind::NotFound {
        return error;
    }
    io::Error::new(error.kind(), format!("{} cannot be removed: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use rustix::fs::mkdirat;

    use super::*;

    fn lock(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Also passes as root, whom permissions do not bind. The binary's end-to-end tests cover an ordinary
    /// user's deployment.
    #[test]
    fn directories_without_permissions_are_no_obstacle_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        let root = folder.path().join("engine");
        let deep = root.join("workspace/go/pkg/mod/x@v1");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "").unwrap();
        fs::create_dir(root.join(".removed-0")).unwrap();
        fs::write(root.join(".removed-0/left"), "").unwrap();
        fs::write(root.join(".removed-1"), "a file of that name").unwrap();
        symlink(&outside, deep.join("link")).unwrap();
        symlink("/nowhere", root.join("dangling")).unwrap();
        for (path, mode) in [(&deep, 0o555), (&deep.parent().unwrap().to_owned(), 0), (&root, 0o500)] {
            lock(path, mode);
        }
        remove_all(&root).unwrap();
        assert!(!root.exists());
        assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "kept");
        assert_eq!(fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn a_tree_of_any_depth_and_width_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("engine");
        fs::create_dir(&root).unwrap();
        // Deeper than the limit on descriptors, and than the longest possible path.
        let mut dir = open_dir(CWD, &*root).unwrap();
        for _ in 0..5_000 {
            mkdirat(&dir, c"d", Mode::RWXU).unwrap();
            dir = openat(&dir, c"d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        drop(dir);
        for number in 0..2_500 {
            fs::write(root.join(format!("file-{number}")), "").unwrap();
        }
        remove_all(&root).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn what_is_not_there_is_told_from_what_cannot_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let missing = remove_all(&folder.path().join("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = remove_all(&file).unwrap_err().to_string();
        assert!(error.starts_with("file cannot be removed"), "{error}");
    }
}
