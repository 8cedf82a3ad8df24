//! An engine's folder: its brain, its log, its home.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use contract::EngineId;

/// The folder that holds one folder per engine.
pub(super) struct Folders {
    root: PathBuf,
}

/// One engine's folder, there or not.
pub(super) struct Folder {
    path: PathBuf,
}

/// How much of a log's end is read for its last lines.
const TAIL_BYTES: u64 = 256 * 1024;

impl Folders {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The folder of `engine_id`. An id is a fixed prefix and hexadecimal digits: it names one entry of the
    /// root and nothing else.
    pub(super) fn of(&self, engine_id: EngineId) -> Folder {
        Folder { path: self.root.join(engine_id.to_string()) }
    }
}

impl Folder {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder if it is missing, for this user alone.
    pub(super) fn create(&self) -> io::Result<()> {
        if let Some(root) = self.path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.refuse_link(),
            made => made,
        }
    }

    /// Removes the folder with all that is in it. Links are removed, never followed.
    pub(super) fn remove(&self) -> io::Result<()> {
        match self.refuse_link().and_then(|()| fs::remove_dir_all(&self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// A link in the folder's place leads out of the root: whoever put it there has to take it away.
    fn refuse_link(&self) -> io::Result<()> {
        if fs::symlink_metadata(&self.path)?.is_dir() {
            return Ok(());
        }
        let what = format!("{} is not a folder: remove it by hand", self.path.display());
        Err(io::Error::new(io::ErrorKind::NotADirectory, what))
    }

    /// The log, open for appending.
    pub(super) fn open_log(&self) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).open(self.log())
    }

    /// The last lines of the log, at most `lines`; none if there is no log.
    pub(super) fn log_tail(&self, lines: usize) -> io::Result<Vec<String>> {
        let mut log = match File::open(self.log()) {
            Ok(log) => log,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let length = log.metadata()?.len();
        log.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut end = Vec::new();
        log.take(TAIL_BYTES).read_to_end(&mut end)?;
        let end = String::from_utf8_lossy(&end);
        let mut tail: Vec<String> = end.lines().rev().take(lines).map(str::to_owned).collect();
        tail.reverse();
        Ok(tail)
    }

    fn log(&self) -> PathBuf {
        self.path.join("engine.log")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let root = tempfile::tempdir().unwrap();
        let folder = Folders::new(root.path().join("engines")).of(EngineId::new());
        (root, folder)
    }

    #[test]
    fn a_folder_is_private_and_made_once() {
        let (_root, folder) = folder();
        folder.create().unwrap();
        folder.create().unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn removal_follows_no_link_and_leaves_the_root_alone() {
        let (root, folder) = folder();
        let outside = root.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "data").unwrap();
        folder.create().unwrap();
        symlink(&outside, folder.path().join("link")).unwrap();
        folder.remove().unwrap();
        assert!(!folder.path().exists());
        // A second removal has nothing to do.
        folder.remove().unwrap();
        symlink(&outside, folder.path()).unwrap();
        assert!(folder.remove().is_err() && folder.create().is_err());
        assert!(outside.join("precious").exists());
    }

    #[test]
    fn the_tail_has_the_last_lines() {
        let (_root, folder) = folder();
        assert!(folder.log_tail(5).unwrap().is_empty());
        folder.create().unwrap();
        let padding = "x".repeat(1_000);
        let lines: Vec<_> = (0..1_000).map(|line| format!("{line} {padding}")).collect();
        fs::write(folder.log(), lines.join("\n")).unwrap();
        let tail = folder.log_tail(2).unwrap();
        assert!(tail.len() == 2 && tail[0].starts_with("998 ") && tail[1].starts_with("999 "), "{tail:?}");
    }
}
