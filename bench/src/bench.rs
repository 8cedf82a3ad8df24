//! What every measurement is given: the binary, a folder that goes away afterwards, how many rounds.

use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::binary;

/// See the module.
pub(crate) struct Bench {
    /// The binary under test.
    pub(crate) binary: PathBuf,
    /// This program, which serves the floors.
    pub(crate) floors: PathBuf,
    pub(crate) rounds: usize,
    /// How long an idle process is left alone before its memory is read.
    pub(crate) wait: Duration,
    scratch: TempDir,
    folders: Cell<usize>,
}

impl Bench {
    /// Copies the binaries, so that a build meanwhile changes nothing.
    pub(crate) fn new(binary: &Path, rounds: usize, wait: Duration) -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir().context("no temporary folder can be made")?;
        Ok(Self {
            floors: binary::copy(&binary::this()?, scratch.path().join("floors"))?,
            binary: binary::copy(binary, scratch.path().join("roundhouse"))?,
            rounds,
            wait,
            scratch,
            folders: Cell::new(0),
        })
    }

    /// A new empty folder.
    pub(crate) fn folder(&self) -> anyhow::Result<PathBuf> {
        let number = self.folders.replace(self.folders.get() + 1);
        let folder = self.scratch.path().join(number.to_string());
        fs::create_dir(&folder).context("no temporary folder can be made")?;
        Ok(folder)
    }

    /// Tells the person who waits how far a measurement is.
    pub(crate) fn progress(&self, what: &str, round: usize) {
        // Nobody there to read it is no reason to stop.
        let _ = writeln!(std::io::stderr(), "{what}: round {} of {}", round + 1, self.rounds);
    }
}
