//! What every measurement is given: the binary, a folder that goes away afterwards, how many rounds.

use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::binary;

/// How much is measured where the full size takes minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Bounded,
    Full,
}

impl Size {
    /// Which of the two.
    pub(crate) fn of<T>(self, bounded: T, full: T) -> T {
        match self {
            Self::Bounded => bounded,
            Self::Full => full,
        }
    }
}

/// See the module.
pub(crate) struct Bench {
    /// The binary under test.
    pub(crate) binary: PathBuf,
    /// Another build of it, to measure in turn with it.
    pub(crate) beside: Option<PathBuf>,
    /// This program, which serves the floors.
    pub(crate) floors: PathBuf,
    pub(crate) rounds: usize,
    /// How long an idle process is left alone before its memory is read.
    pub(crate) wait: Duration,
    pub(crate) size: Size,
    scratch: TempDir,
    folders: Cell<usize>,
}

impl Bench {
    /// Copies the binaries, so that a build meanwhile changes nothing.
    pub(crate) fn new(
        binary: &Path,
        beside: Option<&Path>,
        rounds: usize,
        wait: Duration,
        size: Size,
    ) -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir().context("no temporary folder can be made")?;
        let copy = |binary: &Path, name| binary::copy(binary, scratch.path().join(name));
        Ok(Self {
            floors: copy(&binary::this()?, "floors")?,
            binary: copy(binary, "roundhouse")?,
            beside: beside.map(|beside| copy(beside, "beside")).transpose()?,
            rounds,
            wait,
            size,
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
        note(&format!("{what}: round {} of {}", round + 1, self.rounds));
    }
}

/// Tells the person who waits what is being done.
pub(crate) fn note(what: &str) {
    // Nobody there to read it is no reason to stop.
    let _ = writeln!(std::io::stderr(), "{what}");
}
