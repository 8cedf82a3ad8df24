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
    pub(crate) fn choose<T>(self, bounded: T, full: T) -> T {
        match self {
            Self::Bounded => bounded,
            Self::Full => full,
        }
    }
}

/// The state that all measurements share.
pub(crate) struct BenchContext {
    /// The binary under test.
    pub(crate) binary: PathBuf,
    /// Another build of it, to measure in turn with it.
    pub(crate) comparison_binary: Option<PathBuf>,
    /// This program, which serves the floors.
    pub(crate) baseline_program: PathBuf,
    pub(crate) rounds: usize,
    /// How long an idle process is left alone before its memory is read.
    pub(crate) idle_wait: Duration,
    pub(crate) size: Size,
    scratch: TempDir,
    folder_count: Cell<usize>,
}

impl BenchContext {
    /// Copies the binaries, so that a build meanwhile changes nothing.
    pub(crate) fn new(
        binary: &Path,
        beside: Option<&Path>,
        rounds: usize,
        wait: Duration,
        size: Size,
    ) -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir().context("no temporary folder can be made")?;
        let copy = |binary: &Path, name| binary::copy_private(binary, scratch.path().join(name));
        Ok(Self {
            baseline_program: copy(&binary::current_program()?, "floors")?,
            binary: copy(binary, "roundhouse")?,
            comparison_binary: beside.map(|beside| copy(beside, "beside")).transpose()?,
            rounds,
            idle_wait: wait,
            size,
            scratch,
            folder_count: Cell::new(0),
        })
    }

    /// A new empty folder.
    pub(crate) fn new_folder(&self) -> anyhow::Result<PathBuf> {
        let number = self.folder_count.replace(self.folder_count.get() + 1);
        let folder = self.scratch.path().join(number.to_string());
        fs::create_dir(&folder).context("no temporary folder can be made")?;
        Ok(folder)
    }

    /// Tells the person who waits how far a measurement is.
    pub(crate) fn report_round(&self, what: &str, round: usize) {
        log_progress(&format!("{what}: round {} of {}", round + 1, self.rounds));
    }
}

/// Tells the person who waits what is being done.
pub(crate) fn log_progress(what: &str) {
    // Nobody there to read it is no reason to stop.
    let _ = writeln!(std::io::stderr(), "{what}");
}
