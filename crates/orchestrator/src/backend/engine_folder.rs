//! An engine's folder: its brain, its log, its home.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, lchown};
use std::path::{Path, PathBuf};

use api::EngineId;
use rustix::fs::OFlags;

use super::CooperativeYield;
use super::removal::remove_all;
use crate::fault_injection::{self, Mutation};

/// The folder that holds one folder per engine.
pub(super) struct EngineFolders {
    root: PathBuf,
}

/// One engine's folder, there or not.
pub(super) struct EngineFolder {
    path: PathBuf,
}

/// The file of an engine's brain in its folder: the container contract names it.
pub(super) const BRAIN_FILE: &str = "brain.sqlite";

/// Why nothing is done to the brain of an engine that runs.
pub(super) const STILL_RUNNING_MESSAGE: &str = "the engine runs, and its brain is left alone";

/// How much of a log's end is searched for its last lines.
const MAX_TAIL_BYTES: u64 = 64 * 1024 * 1024;
/// How much of a line is shown: 10,000 lines, the most that are asked for, must fit into memory.
const MAX_LINE_BYTES: u64 = 4 * 1024;

impl EngineFolders {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The folder of `engine_id`. An id is a fixed prefix and hexadecimal digits: it names one entry of the
    /// root and nothing else.
    pub(super) fn folder(&self, engine_id: EngineId) -> EngineFolder {
        EngineFolder { path: self.root.join(engine_id.to_string()) }
    }
}

impl EngineFolder {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that the folder is there for a launch: the `first` one of an engine makes it, for this user alone.
    /// Any other finds it, or the engine would begin anew with nothing.
    pub(super) fn prepare(&self, first: bool) -> io::Result<()> {
        if first || fault_injection::active(Mutation::EmptyFolder) {
            return self.create();
        }
        self.reject_symlink()?;
        self.finish_restore()
    }

    fn create(&self) -> io::Result<()> {
        if fault_injection::active(Mutation::EmptyFolder) {
            self.remove()?;
        }
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.reject_symlink(),
            made => made,
        }
    }

    /// Whether an engine's brain is in it. An empty folder may be the place of a disk that is not mounted.
    pub(super) fn has_brain(&self) -> io::Result<bool> {
        fs::exists(self.path.join(BRAIN_FILE))
    }

    /// Makes the folder the property of a user and a group, unless it is already.
    pub(super) fn chown(&self, uid: u32, gid: u32) -> io::Result<()> {
        let is = fs::symlink_metadata(&self.path)?;
        if (is.uid(), is.gid()) == (uid, gid) {
            return Ok(());
        }
        lchown(&self.path, Some(uid), Some(gid))
    }

    /// Removes the folder with all that is in it. Links are removed, never followed.
    pub(super) fn remove(&self) -> io::Result<()> {
        if fault_injection::active(Mutation::KeepFolder) {
            return Ok(());
        }
        match self.reject_symlink().and_then(|()| remove_all(&self.path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// A link in the folder's place leads out of the root: whoever put it there has to take it away.
    fn reject_symlink(&self) -> io::Result<()> {
        let follows = fault_injection::active(Mutation::FollowLink);
        let what = if follows { fs::metadata(&self.path)? } else { fs::symlink_metadata(&self.path)? };
        if what.is_dir() {
            return Ok(());
        }
        let what = format!("{} is not a folder: remove it by hand", self.path.display());
        Err(io::Error::new(io::ErrorKind::NotADirectory, what))
    }

    /// The log, open for appending.
    pub(super) fn open_log(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // A link in its place would let the engine's output into whatever it names.
        options.append(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        options.open(self.log_path())
    }

    /// The last lines of the log, at most `lines`, over both its parts; none if there is no log.
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

/// The last lines of a file, at most `lines`; none if it is not there.
fn file_tail(file: &Path, lines: usize) -> io::Result<Vec<String>> {
    // A link in its place is not followed: an engine must not choose what is shown as its log.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut log = match OpenOptions::new().read(true).custom_flags(flags).open(file) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let start = tail_start(&mut log, lines)?;
    log.seek(SeekFrom::Start(start))?;
    let (mut log, mut pace) = (BufReader::new(log), CooperativeYield::default());
    let mut tail = Vec::new();
    // It may have grown meanwhile.
    while tail.len() < lines {
        let Some(line) = next_line(&mut log)? else { break };
        pace.advance(line.len());
        tail.push(line);
    }
    Ok(tail)
}

/// Where the last `lines` lines of `log` begin.
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
            // The line break at the very end ends the last line.
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

/// The next line, cut off where it is too long; none at the end.
fn next_line(log: &mut BufReader<File>) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    if log.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let whole = line.pop_if(|byte| *byte == b'\n').is_some();
    let cut = !whole && log.skip_until(b'\n')? > 1;
    let line = String::from_utf8_lossy(&line);
    let line = line.strip_suffix('\r').unwrap_or(&line);
    Ok(Some(if cut { format!("{line}…") } else { line.to_owned() }))
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
    fn lesson_o14_removal_follows_no_link_and_leaves_the_root_alone() {
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
        let (just, over) = ("x".repeat(4_096), "y".repeat(100_000));
        fs::write(folder.log_path(), format!("first\n\n{just}\n{over}\n\nlast")).unwrap();
        let cut = format!("{}…", &over[..4_096]);
        assert_eq!(folder.log_tail(9).unwrap(), ["first", "", &just, &cut, "", "last"]);
        assert_eq!(folder.log_tail(3).unwrap(), [&cut, "", "last"]);
    }

    #[test]
    fn a_log_that_is_one_endless_line_is_searched_to_a_limit() {
        let (_root, folder) = folder();
        folder.create().unwrap();
        let log = fs::File::create(folder.log_path()).unwrap();
        // A hole: nothing is stored.
        log.set_len(1 << 40).unwrap();
        assert_eq!(folder.log_tail(10).unwrap().len(), 1);
    }
}
