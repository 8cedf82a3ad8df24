//! Attempts to break out of the leash, each a small program of its own: what it tries, what stops it, and how
//! it is tried. `breakout attempt NAME` tries one, wherever it is started: on the leash it must be refused,
//! and outside of it most succeed, which shows that they can.

mod attempts;
mod raw;
pub mod stage;
mod target;

use std::io;

use leash::Limits;

pub use crate::attempts::all;
pub use crate::target::Target;

/// The exit code of an attempt that succeeded: its output says in what.
pub const BROKE_OUT: u8 = 0;
/// The exit code of one that was refused: its output says how.
pub const REFUSED: u8 = 10;
/// The exit code of one that cannot be tried here: its output says why.
pub const UNABLE: u8 = 11;

/// An attempt.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Its name, by which it is run.
    pub name: &'static str,
    /// What it tries.
    pub tries: &'static str,
    /// What stops it.
    pub stopped_by: By,
    /// Whether it succeeds without a leash, and is harmless enough to show that.
    pub control: Control,
    /// Whether it is tried with the network on.
    pub network: bool,
    /// What it may take, where that is what stops it.
    pub limits: Option<fn(&mut Limits)>,
    /// Tries it, and says what it got.
    pub run: fn(&Target) -> Result<String, Stopped>,
}

/// What stops an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Landlock's rules for files.
    Files,
    /// Landlock's scopes, for signals and abstract sockets.
    Scopes,
    /// Landlock, for it lets nobody look into a process outside of its domain.
    Domain,
    /// seccomp.
    Calls,
    /// Mounts that are read-only, or else the helper, which puts it right.
    Attributes,
    /// The helper closes files that were inherited, and clears the environment.
    Clean,
    /// No capabilities, and no way to new ones.
    Privileges,
    /// A limit.
    Limit(Bound),
    /// The helper, which ends all descendants.
    Helper,
}

impl By {
    /// For the table.
    pub fn text(self) -> &'static str {
        match self {
            Self::Files => "Landlock (files)",
            Self::Scopes => "Landlock (scopes)",
            Self::Domain => "Landlock (domain)",
            Self::Calls => "seccomp",
            Self::Attributes => "read-only mounts, or put right at once",
            Self::Clean => "clean start",
            Self::Privileges => "no privileges",
            Self::Limit(bound) => bound.text(),
            Self::Helper => "helper",
        }
    }
}

/// The limit that an attempt runs into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Time.
    Time,
    /// What is read of a program, or else time: who does not read it stalls it.
    Output,
    /// Processes and threads.
    Processes,
    /// The size of a file.
    FileSize,
    /// Room left on the disk.
    Disk,
    /// The memory of one process.
    Memory,
    /// The memory of all. A container's own may be less, and counts what the helper cannot see.
    MemoryOfAll,
}

impl Bound {
    /// For the table.
    fn text(self) -> &'static str {
        match self {
            Self::Time => "limit: time",
            Self::Output => "limit: output (256 MiB of a tool), or time",
            Self::Processes => "limit: processes",
            Self::FileSize => "limit: size of a file (`RLIMIT_FSIZE`)",
            Self::Disk => "limit: room left on the disk",
            Self::Memory => "limit: memory (`RLIMIT_DATA`)",
            Self::MemoryOfAll => "limit: memory of all, or the container's",
        }
    }
}

/// What is known of an attempt without a leash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// It succeeds.
    Succeeds,
    /// It succeeds for root.
    SucceedsAsRoot,
    /// It is not tried, for this reason.
    NotTried(&'static str),
}

/// Why an attempt did not succeed.
#[derive(Debug)]
pub enum Stopped {
    /// It was refused.
    Refused(String),
    /// It cannot be tried here.
    Unable(String),
}

impl<E: Into<io::Error>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Self::Refused(error.into().to_string())
    }
}

impl Attempt {
    /// A line of the table in `docs/leash.md`.
    pub fn row(&self) -> String {
        format!("| `{}` | {} | {} |", self.name, self.tries, self.stopped_by.text())
    }
}
