//! Attempts to escape from the sandbox, each a small program of its own: what it tries, what stops it, and how it
//! is run. `sandbox-escapes attempt NAME` runs one, wherever it is started: in the sandbox it must be refused, and
//! outside most succeed, which shows that they can.

mod attempts;
pub mod environment;
mod raw_syscall;
mod target;

use std::io;

use sandbox::Limits;

pub use crate::attempts::all_attempts;
pub use crate::target::Target;

/// The exit code of an attempt that succeeded: its output says in what.
pub const BROKE_OUT: u8 = 0;
/// The exit code of one that was refused: its output says how.
pub const REFUSED: u8 = 10;
/// The exit code of one that cannot be tried here: its output says why.
pub const NOT_APPLICABLE: u8 = 11;

/// An attempt to escape from the sandbox.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Its name, by which it is run.
    pub name: &'static str,
    /// What it tries.
    pub description: &'static str,
    /// What stops it.
    pub mechanism: Mechanism,
    /// Whether it succeeds without a sandbox, and is harmless enough to show that.
    pub control: Control,
    /// Whether it is tried with the network on.
    pub needs_network: bool,
    /// What it may take, where that is what stops it.
    pub limits: Option<fn(&mut Limits)>,
    /// Tries it, and says what it got.
    pub run: fn(&Target) -> Result<String, AttemptError>,
}

/// What stops an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Landlock's rules for files.
    LandlockFiles,
    /// Landlock's scopes, for signals and abstract sockets.
    LandlockScopes,
    /// Landlock, for it lets nobody look into a process outside of its domain.
    LandlockDomain,
    /// seccomp.
    Seccomp,
    /// Read-only mounts, or else the helper, which restores the metadata.
    MetadataGuard,
    /// The helper closes files that were inherited, and clears the environment.
    CleanedEnvironment,
    /// No capabilities, and no way to new ones.
    Privileges,
    /// A limit.
    Limit(LimitKind),
    /// The helper, which ends all descendants.
    HelperCleanup,
}

impl Mechanism {
    /// For the table.
    pub fn label(self) -> &'static str {
        match self {
            Self::LandlockFiles => "Landlock (files)",
            Self::LandlockScopes => "Landlock (scopes)",
            Self::LandlockDomain => "Landlock (domain)",
            Self::Seccomp => "seccomp",
            Self::MetadataGuard => "read-only mounts, or put right at once",
            Self::CleanedEnvironment => "clean start",
            Self::Privileges => "no privileges",
            Self::Limit(bound) => bound.label(),
            Self::HelperCleanup => "helper",
        }
    }
}

/// The limit that an attempt runs into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
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
    TotalMemory,
}

impl LimitKind {
    /// For the table.
    fn label(self) -> &'static str {
        match self {
            Self::Time => "limit: time",
            Self::Output => "limit: output (256 MiB of a tool), or time",
            Self::Processes => "limit: processes",
            Self::FileSize => "limit: size of a file (`RLIMIT_FSIZE`)",
            Self::Disk => "limit: room left on the disk",
            Self::Memory => "limit: memory (`RLIMIT_DATA`)",
            Self::TotalMemory => "limit: memory of all, or the container's",
        }
    }
}

/// The expected result of an attempt without a sandbox.
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
pub enum AttemptError {
    /// It was refused.
    Refused(String),
    /// It cannot be tried here.
    NotApplicable(String),
}

impl<E: Into<io::Error>> From<E> for AttemptError {
    fn from(error: E) -> Self {
        Self::Refused(error.into().to_string())
    }
}

impl Attempt {
    /// A line of the table in `docs/sandbox.md`.
    pub fn table_row(&self) -> String {
        format!("| `{}` | {} | {} |", self.name, self.description, self.mechanism.label())
    }
}
