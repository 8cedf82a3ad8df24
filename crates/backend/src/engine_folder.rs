//! An engine's folder, which holds its brain and its log and is its home directory.
//!
//! The engine's own programs can write to the folder, so nothing here trusts its contents: links are never
//! followed, and what is read from it is limited in size.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use api::{EngineId, Timestamp};
use resources::removal::remove_all;
use rustix::fs::OFlags;

use super::{CooperativeYield, DataListing};

/// The folder that holds one folder per engine.
pub(super) struct EngineFolders {
    root: PathBuf,
}

/// One engine's folder, which may not exist.
pub(super) struct EngineFolder {
    path: PathBuf,
}

/// The name of the brain's file in the engine's folder, fixed by the container contract.
pub(super) const BRAIN_FILE: &str = "brain.sqlite";

/// Error text when the brain of a running engine should be copied or restored.
pub(super) const STILL_RUNNING_MESSAGE: &str =
    "the engine is running: stop it before its brain is copied or restored";

/// How much of the end of a log is searched for its last lines.
const MAX_TAIL_BYTES: u64 = 64 * 1024 * 1024;
/// How much of a line is returned: 10,000 lines, the most that callers request, must fit into memory.
const MAX_LINE_BYTES: u64 = 4 * 1024;

impl EngineFolders {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Returns the folder of `engine_id`. An id is a fixed prefix and hexadecimal digits, so it names an
    /// entry of the root and cannot lead out of it.
    pub(super) fn folder(&self, engine_id: EngineId) -> EngineFolder {
        EngineFolder { path: self.root.join(engine_id.to_string()) }
    }

    /// Lists the data of all engines, or of one. What has no engine's name is no engine's.
    pub(super) fn list(&self, engine_id: Option<EngineId>) -> io::Result<Vec<DataListing>> {
        let mut names = Vec::new();
        match engine_id {
            Some(engine_id) => names.push(engine_id),
            None => {
                for entry in fs::read_dir(&self.root)? {
                    names.extend(entry?.file_name().to_str().and_then(|name| name.parse::<EngineId>().ok()));
                }
            }
        }
        let mut listed = Vec::with_capacity(names.len());
        for engine_id in names {
            // It may have been removed since its name was read.
            listed.extend(self.folder(engine_id).listing(engine_id)?);
        }
        Ok(listed)
    }
}

impl EngineFolder {
    /// The folder at `path`, wherever that is.
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Prepares the folder for a launch. The `first` launch of an engine creates it, private to this user.
    /// Any other launch fails if it is missing, because the engine would start with an empty brain.
    pub(super) fn prepare(&self, first: bool) -> io::Result<()> {
        if first {
            return self.create();
        }
        self.reject_symlink()?;
        self.finish_restore()
    }

    fn create(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.reject_symlink(),
            created => created,
        }
    }

    /// Whether the folder contains a brain. An empty folder may be the mount point of a disk that is not mounted.
    pub(super) fn has_brain(&self) -> io::Result<bool> {
        fs::exists(self.path.join(BRAIN_FILE))
    }

    /// Returns what is known of the data in the folder; `None` if there is no folder.
    fn listing(&self, engine_id: EngineId) -> io::Result<Option<DataListing>> {
        let Some(mut changed) = modified(&self.path)? else { return Ok(None) };
        let brain = modified(&self.path.join(BRAIN_FILE))?;
        let has_brain = brain.is_some();
        let wal = modified(&self.path.join(format!("{BRAIN_FILE}-wal")))?;
        let log = modified(&self.log_path())?;
        for other in [brain, wal, log].into_iter().flatten() {
            changed = changed.max(other);
        }
        let since_epoch = changed.duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed_at = Timestamp::from_unix_ms(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX));
        Ok(Some(DataListing { engine_id, has_brain, changed_at }))
    }

    /// Sets the folder's owner and group, unless they are already set.
    pub(super) fn chown(&self, uid: u32, gid: u32) -> io::Result<()> {
        let current = fs::symlink_metadata(&self.path)?;
        if (current.uid(), current.gid()) == (uid, gid) {
            return Ok(());
        }
        lchown(&self.path, Some(uid), Some(gid))
    }

    /// Removes the folder and its contents. Links are removed, never followed.
    pub(super) fn remove(&self) -> io::Result<()> {
        match self.reject_symlink().and_then(|()| remove_all(&self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Fails if the folder is a link, which could lead out of the root. Only an operator may remove it.
    fn reject_symlink(&self) -> io::Result<()> {
        if fs::symlink_metadata(&self.path)?.is_dir() {
            return Ok(());
        }
        let message = format!("{} is not a folder: remove it by hand", self.path.display());
        Err(io::Error::new(io::ErrorKind::NotADirectory, message))
    }

    /// Opens the log for appending, and creates it if it is missing.
    pub(super) fn open_log(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // A link would direct the engine's output into any file that it names.
        options.append(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        options.open(self.log_path())
    }

    /// Returns the last lines of the log and its rotated part, at most `lines`; empty if there is no log.
    pub(super) fn log_tail(&self, lines: usize) -> io::Result<Vec<String>> {
        let newer = file_tail(&self.log_path(), lines)?;
        let missing = lines.saturating_sub(newer.len());
        if missing == 0 {
            return Ok(newer);
        }
        let mut tail = file_tail(&self.rotated_log_path(), missing)?;
        tail.extend(newer);
        Ok(tail)
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.path.join("engine.log")
    }
}

/// Returns when a file or folder was last written to; `None` if it does not exist. Links are not followed.
fn modified(path: &Path) -> io::Result<Option<SystemTime>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.modified().map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the last lines of a file, at most `lines`; empty if it does not exist.
fn file_tail(file: &Path, lines: usize) -> io::Result<Vec<String>> {
    // Links are not followed: an engine must not choose which file is shown as its log.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut log = match OpenOptions::new().read(true).custom_flags(flags).open(file) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let start = tail_start(&mut log, lines)?;
    log.seek(SeekFrom::Start(start))?;
    let (mut log, mut cooperative_yield) = (BufReader::new(log), CooperativeYield::default());
    let mut tail = Vec::new();
    // The log may have grown since its start was found, so the lines are counted again.
    while tail.len() < lines {
        let Some(line) = next_line(&mut log)? else { break };
        cooperative_yield.advance(line.len());
        tail.push(line);
    }
    Ok(tail)
}

/// Returns the byte offset at which the last `lines` lines of `log` begin.
fn tail_start(log: &mut File, lines: usize) -> io::Result<u64> {
    const BLOCK: u64 = 64 * 1024;
    let end = log.seek(SeekFrom::End(0))?;
    let first = end.saturating_sub(MAX_TAIL_BYTES);
    let (mut at, mut found) = (end, 0);
    while at > first {
        let begin = at.saturating_sub(BLOCK).max(first);
        let mut block = Vec::new();
        log.seek(SeekFrom::Start(begin))?;
        log.by_ref().take(at - begin).read_to_end(&mut block)?;
        for byte in block.iter().rev() {
            // A line break at the end of the file terminates the last line and begins no other.
            if *byte == b'\n' && at < end {
                found += 1;
                if found == lines {
                    return Ok(at);
                }
            }
            at -= 1;
        }
        at = begin;
    }
    Ok(first)
}

/// Reads the next line, truncated to [`MAX_LINE_BYTES`]; `None` at the end of the file.
fn next_line(log: &mut BufReader<File>) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    if log.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let complete = line.pop_if(|byte| *byte == b'\n').is_some();
    let truncated = !complete && log.skip_until(b'\n')? > 1;
    let line = String::from_utf8_lossy(&line);
    let line = line.strip_suffix('\r').unwrap_or(&line);
    Ok(Some(if truncated { format!("{line}…") } else { line.to_owned() }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn folder() -> (tempfile::TempDir, EngineFolder) {
        let root = tempfile::tempdir().unwrap();
        let folder = EngineFolders::new(root.path().to_owned()).folder(EngineId::new());
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
    fn regression_o14_removal_follows_no_link_and_leaves_the_root_alone() {
        let (root, folder) = folder();
        let outside = root.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "data").unwrap();
        folder.create().unwrap();
        symlink(&outside, folder.path().join("link")).unwrap();
        folder.remove().unwrap();
        assert!(!folder.path().exists());
        // A second removal does nothing and succeeds.
        folder.remove().unwrap();
        symlink(&outside, folder.path()).unwrap();
        assert!(folder.remove().is_err() && folder.create().is_err());
        assert!(outside.join("precious").exists());
    }

    #[test]
    fn folders_are_listed_with_their_last_change() {
        let (root, folder) = folder();
        let folders = EngineFolders::new(root.path().to_owned());
        assert_eq!(folders.list(None).unwrap(), []);
        folder.create().unwrap();
        fs::create_dir(root.path().join("lost+found")).unwrap();
        let engine_id = folder.path().file_name().unwrap().to_str().unwrap().parse().unwrap();
        let [empty] = folders.list(None).unwrap()[..] else { panic!("one folder") };
        assert!((empty.engine_id, empty.has_brain) == (engine_id, false));
        let brain = File::create(folder.path().join(BRAIN_FILE)).unwrap();
        let old = UNIX_EPOCH + std::time::Duration::from_secs(1_000);
        brain.set_modified(old).unwrap();
        File::open(folder.path()).unwrap().set_modified(old).unwrap();
        let listed =
            DataListing { engine_id, has_brain: true, changed_at: Timestamp::from_unix_ms(1_000_000) };
        assert_eq!(folders.list(None).unwrap(), [listed]);
        assert_eq!(folders.list(Some(engine_id)).unwrap(), [listed]);
        assert_eq!(folders.list(Some(EngineId::new())).unwrap(), []);
        File::create(folder.log_path())
            .unwrap()
            .set_modified(old + std::time::Duration::from_secs(9))
            .unwrap();
        File::open(folder.path()).unwrap().set_modified(old).unwrap();
        assert_eq!(folders.list(None).unwrap()[0].changed_at, Timestamp::from_unix_ms(1_009_000));
    }

    #[test]
    fn the_tail_has_the_last_lines() {
        let (_root, folder) = folder();
        assert!(folder.log_tail(5).unwrap().is_empty());
        folder.create().unwrap();
        let padding = "x".repeat(1_000);
        let lines: Vec<_> = (0..1_000).map(|line| format!("{line} {padding}")).collect();
        fs::write(folder.log_path(), lines.join("\n")).unwrap();
        for end in ["", "\n"] {
            fs::write(folder.log_path(), lines.join("\n") + end).unwrap();
            assert_eq!(folder.log_tail(2).unwrap(), lines[998..]);
            assert_eq!(folder.log_tail(1_000).unwrap(), lines);
            assert_eq!(folder.log_tail(1_001).unwrap(), lines);
        }
    }

    #[test]
    fn ten_thousand_lines_are_shown_if_there_are_as_many() {
        let (_root, folder) = folder();
        folder.create().unwrap();
        let lines: Vec<_> = (0..10_050).map(|line| format!("{line} {}", "x".repeat(300))).collect();
        fs::write(folder.log_path(), lines.join("\r\n")).unwrap();
        assert_eq!(folder.log_tail(10_000).unwrap(), lines[50..]);
    }

    #[test]
    fn endless_lines_are_cut_off_and_empty_ones_kept() {
        let (_root, folder) = folder();
        folder.create().unwrap();
        let (longest, too_long) = ("x".repeat(4_096), "y".repeat(100_000));
        fs::write(folder.log_path(), format!("first\n\n{longest}\n{too_long}\n\nlast")).unwrap();
        let truncated = format!("{}…", &too_long[..4_096]);
        assert_eq!(folder.log_tail(9).unwrap(), ["first", "", &longest, &truncated, "", "last"]);
        assert_eq!(folder.log_tail(3).unwrap(), [&truncated, "", "last"]);
    }

    #[test]
    fn a_log_that_is_one_endless_line_is_searched_to_a_limit() {
        let (_root, folder) = folder();
        folder.create().unwrap();
        let log = fs::File::create(folder.log_path()).unwrap();
        // A sparse file, which takes no space on the disk.
        log.set_len(1 << 40).unwrap();
        assert_eq!(folder.log_tail(10).unwrap().len(), 1);
    }
}
