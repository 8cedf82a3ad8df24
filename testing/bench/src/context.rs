//! The input of every measurement: the binaries, a temporary folder, and the number and size of the rounds.

use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::binary;

/// The size of measurements whose full size takes minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Bounded,
    Full,
}

impl Size {
    /// Returns the value for this size.
    pub(crate) fn choose<T>(self, bounded: T, full: T) -> T {
        match self {
            Self::Bounded => bounded,
            Self::Full => full,
        }
    }
}

/// The settings that all measurements share.
pub(crate) struct BenchContext {
    /// The binary under test.
    pub(crate) binary: PathBuf,
    /// Another build of the binary, measured alternately with it.
    pub(crate) comparison_binary: Option<PathBuf>,
    /// A copy of this program, which runs the baselines.
    pub(crate) baseline_program: PathBuf,
    pub(crate) rounds: usize,
    /// How long a process idles before its memory is read.
    pub(crate) idle_wait: Duration,
    pub(crate) size: Size,
    scratch: TempDir,
    folder_count: Cell<usize>,
}

impl BenchContext {
    /// Copies the binaries, so that a build in the meantime has no effect.
    pub(crate) fn new(
        binary: &Path,
        comparison: Option<&Path>,
        rounds: usize,
        wait: Duration,
        size: Size,
    ) -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir().context("no temporary folder can be created")?;
        let copy = |binary: &Path, name| binary::copy_private(binary, scratch.path().join(name));
        Ok(Self {
            baseline_program: copy(&binary::current_program()?, "floors")?,
            binary: copy(binary, "roundhouse")?,
            comparison_binary: comparison.map(|comparison| copy(comparison, "beside")).transpose()?,
            rounds,
            idle_wait: wait,
            size,
            scratch,
            folder_count: Cell::new(0),
        })
    }

    /// Creates a new empty folder.
    pub(crate) fn new_folder(&self) -> anyhow::Result<PathBuf> {
        let number = self.folder_count.replace(self.folder_count.get() + 1);
        let folder = self.scratch.path().join(number.to_string());
        fs::create_dir(&folder).context("no temporary folder can be created")?;
        Ok(folder)
    }

    /// Prints the progress of a measurement.
    pub(crate) fn report_round(&self, what: &str, round: usize) {
        log_progress(&format!("{what}: round {} of {}", round + 1, self.rounds));
    }
}

/// Prints a progress message to standard error.
pub(crate) fn log_progress(what: &str) {
    // A closed standard error is no reason to stop.
    let _ = writeln!(std::io::stderr(), "{what}");
}
