//! The log in an engine's folder: of a process, which writes it itself, and of a container, whose last lines
//! are saved there before the container is removed.
//!
//! A process's log is rotated by copying and truncating it, so that it cannot fill the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use rustix::fs::OFlags;

use super::engine_folder::EngineFolder;

/// The size at which a process's log is rotated. The log and its rotated part together take at most twice as
/// much, plus what the engine writes between two checks.
pub(super) const MAX_LOG_BYTES: u64 = 16 * 1024 * 1024;

/// The most lines that are saved of a removed container's log; [`MAX_SAVED_BYTES`] limits their size.
pub(super) const MAX_SAVED_LINES: usize = 2_000;
const MAX_SAVED_BYTES: usize = 1024 * 1024;

impl EngineFolder {
    /// Returns the path of the rotated, older part of the log.
    pub(super) fn rotated_log_path(&self) -> PathBuf {
        self.path().join("engine.log.1")
    }

    /// Rotates the log if it is larger than `max_bytes`: copies it to the rotated part, replacing the
    /// previous one, and truncates it. The engine keeps appending through its own descriptor; lines that it
    /// writes during the copy may be lost.
    pub(super) fn rotate_log(&self, max_bytes: u64) -> io::Result<()> {
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.log_path());
        let mut log = match opened {
            Ok(log) => log,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let metadata = log.metadata()?;
        if !metadata.is_file() || metadata.size() <= max_bytes {
            return Ok(());
        }
        self.replace_file(&self.rotated_log_path(), |rotated| io::copy(&mut log, rotated).map(drop))?;
        log.set_len(0)
    }

    /// Saves the last lines of a container that is about to be removed as the engine's log.
    pub(super) fn save_log(&self, lines: &[String]) -> io::Result<()> {
        let mut bytes = 0;
        let newest = lines.iter().rev().take_while(|line| {
            bytes += line.len() + 1;
            bytes <= MAX_SAVED_BYTES
        });
        let skipped = lines.len() - newest.count();
        self.replace_file(&self.log_path(), |log| {
            for line in lines.iter().skip(skipped) {
                writeln!(log, "{line}")?;
            }
            Ok(())
        })
    }

    /// Replaces a file atomically. If the file is a link, the link itself is replaced.
    fn replace_file(
        &self,
        file: &std::path::Path,
        write: impl FnOnce(&mut io::BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let unfinished = self.path().join("engine.log.new");
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        let mut new = io::BufWriter::new(new);
        write(&mut new)?;
        new.flush()?;
        fs::rename(unfinished, file)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use api::EngineId;

    use super::super::engine_folder::EngineFolders;
    use super::*;

    fn folder() -> (tempfile::TempDir, EngineFolder) {
        let root = tempfile::tempdir().unwrap();
        let folder = EngineFolders::new(root.path().to_owned()).folder(EngineId::new());
        folder.prepare(true).unwrap();
        (root, folder)
    }

    #[test]
    fn a_log_is_bounded_while_its_engine_writes_and_the_tail_reads_over_both_parts() {
        let (_root, folder) = folder();
        // The descriptor of a process that was launched before any rotation.
        let mut engine = folder.open_log().unwrap();
        let mut written = 0;
        for round in 1..=3 {
            for _ in 0..100 {
                writeln!(engine, "line {written}").unwrap();
                written += 1;
            }
            folder.rotate_log(500).unwrap();
            assert_eq!(fs::metadata(folder.log_path()).unwrap().size(), 0, "{round}");
        }
        writeln!(engine, "line {written}").unwrap();
        folder.rotate_log(500).unwrap();
        let tail = folder.log_tail(10_000).unwrap();
        let expected: Vec<_> = (200..=300).map(|line| format!("line {line}")).collect();
        assert_eq!(tail, expected);
        assert_eq!(folder.log_tail(2).unwrap(), expected[99..]);
        assert_eq!(folder.log_tail(1).unwrap(), expected[100..]);
    }

    #[test]
    fn the_last_lines_of_a_container_are_kept_and_no_more() {
        let (root, folder) = folder();
        let outside = root.path().join("outside");
        fs::write(&outside, "precious").unwrap();
        symlink(&outside, folder.log_path()).unwrap();
        let lines: Vec<_> =
            (0..MAX_SAVED_LINES).map(|line| format!("{line} {}", "x".repeat(1_000))).collect();
        folder.save_log(&lines).unwrap();
        let saved = folder.log_tail(10_000).unwrap();
        assert_eq!(saved.last(), lines.last());
        assert!(saved.len() < lines.len() && saved.len() > 900, "{}", saved.len());
        assert_eq!(fs::read_to_string(outside).unwrap(), "precious");
    }
}
