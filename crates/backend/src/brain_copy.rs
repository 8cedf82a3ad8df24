//! Copies a brain within its engine's folder before another version of the engine opens it, and restores the
//! copy if that version fails.
//!
//! The engine is stopped meanwhile. There is at most one copy; the next one replaces it. A copy holds the
//! user's data like the brain itself, so the engine removes it after a week, or when data that it still
//! contains is deleted.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, lchown};
use std::path::Path;

use resources::removal::{ignore_not_found, remove_if_exists};
use rustix::fs::OFlags;

use super::engine_folder::{BRAIN_FILE, EngineFolder};
use super::{BrainCopy, BrainFormats};

/// The folder of the copy, within the engine's folder.
const COPY_FOLDER: &str = "brain.before";
/// The folder of a copy that is still being made.
const UNFINISHED_COPY_FOLDER: &str = "brain.before.new";
/// A file in the copy's folder that exists while the copy is being restored.
const RESTORE_MARKER_FILE: &str = "restoring";
/// The brain's write-ahead log. It exists only if the engine did not shut down cleanly.
const WAL_FILE: &str = "brain.sqlite-wal";
/// The log's shared-memory index, which SQLite rebuilds from the log.
const SHM_FILE: &str = "brain.sqlite-shm";
/// The brain while it is being restored.
const RESTORED_BRAIN_FILE: &str = "brain.sqlite.restored";

/// Byte offset in SQLite's header of `user_version`, which is the brain's format:
/// <https://www.sqlite.org/fileformat.html#user_version_number>.
const FORMAT_OFFSET: u64 = 60;

impl EngineFolder {
    /// Copies the brain, replacing any earlier copy.
    pub(super) fn copy_brain(&self) -> io::Result<BrainCopy> {
        self.finish_restore()?;
        let (copy, unfinished) = (self.path().join(COPY_FOLDER), self.path().join(UNFINISHED_COPY_FOLDER));
        remove_if_exists(&unfinished)?;
        DirBuilder::new().mode(0o700).create(&unfinished)?;
        copy_file(&self.path().join(BRAIN_FILE), &unfinished.join(BRAIN_FILE))?;
        copy_if_exists(&self.path().join(WAL_FILE), &unfinished.join(WAL_FILE))?;
        for path in [unfinished.join(BRAIN_FILE), unfinished.join(WAL_FILE), unfinished.clone()] {
            self.chown_to_owner(&path)?;
        }
        fsync_folder(&unfinished)?;
        let format = read_format(&unfinished.join(BRAIN_FILE))?;
        remove_if_exists(&copy)?;
        fs::rename(&unfinished, &copy)?;
        fsync_folder(self.path())?;
        Ok(BrainCopy { format })
    }

    /// Replaces the brain by its copy. The copy is kept.
    pub(super) fn restore_brain(&self) -> io::Result<()> {
        let copy = self.path().join(COPY_FOLDER);
        reject_symlink(&copy)?;
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(copy.join(RESTORE_MARKER_FILE))?
            .sync_all()?;
        fsync_folder(&copy)?;
        self.finish_restore()
    }

    /// Returns the formats of the brain and of its copy. That of a brain whose engine did not shut down cleanly is
    /// unknown: the write-ahead log may have another one.
    pub(super) fn brain_formats(&self) -> io::Result<BrainFormats> {
        self.finish_restore()?;
        let copy = match read_format(&self.path().join(COPY_FOLDER).join(BRAIN_FILE)) {
            Ok(format) => Some(BrainCopy { format }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let has_log = fs::symlink_metadata(self.path().join(WAL_FILE)).is_ok_and(|log| log.len() > 0);
        let brain = if has_log { None } else { read_format(&self.path().join(BRAIN_FILE))? };
        Ok(BrainFormats { brain, copy })
    }

    /// Completes a restore that was interrupted: until then the brain is a mixture of two versions.
    pub(super) fn finish_restore(&self) -> io::Result<()> {
        let copy = self.path().join(COPY_FOLDER);
        if !fs::exists(copy.join(RESTORE_MARKER_FILE))? {
            return Ok(());
        }
        reject_symlink(&copy)?;
        let restored = self.path().join(RESTORED_BRAIN_FILE);
        remove_file_if_exists(&restored)?;
        copy_file(&copy.join(BRAIN_FILE), &restored)?;
        for file in [WAL_FILE, SHM_FILE] {
            remove_file_if_exists(&self.path().join(file))?;
        }
        copy_if_exists(&copy.join(WAL_FILE), &self.path().join(WAL_FILE))?;
        for path in [&restored, &self.path().join(WAL_FILE)] {
            self.chown_to_owner(path)?;
        }
        fs::rename(restored, self.path().join(BRAIN_FILE))?;
        fsync_folder(self.path())?;
        fs::remove_file(copy.join(RESTORE_MARKER_FILE))?;
        fsync_folder(&copy)
    }

    /// Gives a file or folder, if it exists, the same owner and group as the engine's folder. Only root can; whoever
    /// else copies a brain is the engines' user already.
    fn chown_to_owner(&self, path: &Path) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let (wanted, current) = match fs::symlink_metadata(path) {
            Ok(current) => (fs::symlink_metadata(self.path())?, current),
            Err(error) => return ignore_not_found(Err(error)),
        };
        if (current.uid(), current.gid()) == (wanted.uid(), wanted.gid()) {
            return Ok(());
        }
        lchown(path, Some(wanted.uid()), Some(wanted.gid()))
    }
}

/// Fails if the copy's folder is a link, which could lead out of the engine's folder.
fn reject_symlink(copy: &Path) -> io::Result<()> {
    if fs::symlink_metadata(copy)?.is_dir() {
        return Ok(());
    }
    Err(io::Error::other(format!("{} is not a folder, so it is not the brain's copy", copy.display())))
}

/// Opens a file for reading. Links are not followed: the engine controls the folder's contents.
fn open_no_follow(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::other(format!("{} is not a file: remove it by hand", path.display())))
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = open_no_follow(from)?;
    let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    io::copy(&mut from, &mut to)?;
    to.sync_all()
}

fn copy_if_exists(from: &Path, to: &Path) -> io::Result<()> {
    ignore_not_found(copy_file(from, to))
}

fn remove_file_if_exists(path: &Path) -> io::Result<()> {
    ignore_not_found(fs::remove_file(path))
}

/// Makes creations and renames in a folder durable.
fn fsync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Returns the format of a brain; `None` if the file is too short for an SQLite database.
fn read_format(brain: &Path) -> io::Result<Option<u32>> {
    let mut brain = open_no_follow(brain)?;
    brain.seek(SeekFrom::Start(FORMAT_OFFSET))?;
    let mut format = [0; 4];
    match brain.read_exact(&mut format) {
        Ok(()) => Ok(Some(u32::from_be_bytes(format))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use api::EngineId;

    use super::super::engine_folder::EngineFolders;
    use super::*;

    struct Fixture {
        folder: EngineFolder,
        root: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let folder = EngineFolders::new(root.path().to_owned()).folder(EngineId::new());
            folder.prepare(true).unwrap();
            let this = Self { folder, root };
            this.write(BRAIN_FILE, "old brain");
            this
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.folder.path().join(file), text).unwrap();
        }

        fn read(&self, file: &str) -> Option<String> {
            fs::read_to_string(self.folder.path().join(file)).ok()
        }
    }

    #[test]
    fn the_formats_of_a_brain_and_its_copy_tell_what_a_migration_changed() {
        let brain = Fixture::new();
        let format = |number: u8| {
            let mut file = vec![0; 100];
            file[63] = number;
            file
        };
        fs::write(brain.folder.path().join(BRAIN_FILE), format(7)).unwrap();
        assert_eq!(brain.folder.brain_formats().unwrap(), BrainFormats { brain: Some(7), copy: None });
        brain.folder.copy_brain().unwrap();
        fs::write(brain.folder.path().join(BRAIN_FILE), format(8)).unwrap();
        let copy = Some(BrainCopy { format: Some(7) });
        assert_eq!(brain.folder.brain_formats().unwrap(), BrainFormats { brain: Some(8), copy });
        brain.write(WAL_FILE, "what was not applied");
        assert_eq!(brain.folder.brain_formats().unwrap(), BrainFormats { brain: None, copy });
        brain.folder.restore_brain().unwrap();
        assert_eq!(brain.folder.brain_formats().unwrap(), BrainFormats { brain: Some(7), copy });
    }

    #[test]
    fn a_copy_is_put_back_with_its_log_and_nothing_of_what_came_after() {
        let brain = Fixture::new();
        brain.write(WAL_FILE, "old log");
        brain.folder.copy_brain().unwrap();
        brain.write(BRAIN_FILE, "new brain");
        brain.write(WAL_FILE, "new log");
        brain.write(SHM_FILE, "new index");
        brain.folder.restore_brain().unwrap();
        assert_eq!(brain.read(BRAIN_FILE).unwrap(), "old brain");
        assert_eq!(brain.read(WAL_FILE).unwrap(), "old log");
        assert_eq!(brain.read(SHM_FILE), None);
        // The next copy replaces this one; it has no log, because the brain has none.
        fs::remove_file(brain.folder.path().join(WAL_FILE)).unwrap();
        brain.folder.copy_brain().unwrap();
        brain.write(WAL_FILE, "new log");
        brain.folder.restore_brain().unwrap();
        assert_eq!(brain.read(WAL_FILE), None);
    }

    #[test]
    fn a_restore_that_was_cut_off_is_finished_before_anything_else_is_done() {
        type Action = fn(&EngineFolder) -> io::Result<()>;
        let actions: [Action; 2] = [|folder| folder.prepare(false), |folder| folder.copy_brain().map(drop)];
        for action in actions {
            let brain = Fixture::new();
            brain.folder.copy_brain().unwrap();
            brain.write(BRAIN_FILE, "new brain");
            brain.write(RESTORED_BRAIN_FILE, "half of it");
            fs::write(brain.folder.path().join(COPY_FOLDER).join(RESTORE_MARKER_FILE), "").unwrap();
            action(&brain.folder).unwrap();
            assert_eq!(brain.read(BRAIN_FILE).unwrap(), "old brain");
            assert!(!fs::exists(brain.folder.path().join(COPY_FOLDER).join(RESTORE_MARKER_FILE)).unwrap());
        }
    }

    #[test]
    fn a_copy_tells_the_format_and_is_made_anew_after_one_that_was_cut_off() {
        let brain = Fixture::new();
        assert_eq!(brain.folder.copy_brain().unwrap().format, None);
        let mut header = vec![0; 100];
        header[60..64].copy_from_slice(&7_u32.to_be_bytes());
        fs::write(brain.folder.path().join(BRAIN_FILE), header).unwrap();
        fs::create_dir(brain.folder.path().join(UNFINISHED_COPY_FOLDER)).unwrap();
        fs::write(brain.folder.path().join(UNFINISHED_COPY_FOLDER).join(BRAIN_FILE), "half").unwrap();
        assert_eq!(brain.folder.copy_brain().unwrap().format, Some(7));
    }

    #[test]
    fn links_are_not_followed() {
        let brain = Fixture::new();
        let outside = brain.root.path().join("outside");
        fs::write(&outside, "precious").unwrap();
        symlink(&outside, brain.folder.path().join(WAL_FILE)).unwrap();
        assert!(brain.folder.copy_brain().is_err());
        fs::remove_file(brain.folder.path().join(WAL_FILE)).unwrap();
        symlink(brain.root.path(), brain.folder.path().join(COPY_FOLDER)).unwrap();
        brain.folder.copy_brain().unwrap();
        assert!(fs::symlink_metadata(brain.folder.path().join(COPY_FOLDER)).unwrap().is_dir());
        assert_eq!(fs::read_to_string(outside).unwrap(), "precious");
    }
}
