//! Attempts to escape from the sandbox. Each has a description, the mechanism that must stop it, and the code that
//! tries it. `sandbox-escapes attempt NAME` runs one wherever it is started: in the sandbox it must be refused;
//! outside most succeed, which proves that the attempt works.

mod attempts;
pub mod environment;
mod raw_syscall;
mod target;

use std::io;

use sandbox::Limits;

pub use crate::attempts::all_attempts;
pub use crate::target::Target;

/// The exit code of an attempt that succeeded. Its output says what it obtained.
pub const BROKE_OUT: u8 = 0;
/// The exit code of an attempt that was refused. Its output is the error.
pub const REFUSED: u8 = 10;
/// The exit code of an attempt that cannot be tried here. Its output says why.
pub const NOT_APPLICABLE: u8 = 11;

/// An attempt to escape from the sandbox.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// The name by which it is run.
    pub name: &'static str,
    /// What it tries, for the table in `docs/sandbox.md`.
    pub description: &'static str,
    /// The mechanism that must stop it.
    pub mechanism: Mechanism,
    /// The expected result without a sandbox.
    pub control: Control,
    /// Whether it is tried with the network on.
    pub needs_network: bool,
    /// Changes the limits of the sandbox, for attempts that a limit must stop.
    pub limits: Option<fn(&mut Limits)>,
    /// Runs the attempt. Returns what it obtained.
    pub run: fn(&Target) -> Result<String, AttemptError>,
}

/// A mechanism that stops attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Landlock's rules for files.
    LandlockFiles,
    /// Landlock's scopes, for signals and abstract sockets.
    LandlockScopes,
    /// Landlock's domains: a process cannot inspect processes outside of its domain.
    LandlockDomain,
    /// seccomp.
    Seccomp,
    /// Read-only mounts, or otherwise the helper, which restores the metadata.
    MetadataGuard,
    /// The helper, which closes inherited files and clears the environment.
    CleanedEnvironment,
    /// The lack of capabilities and of ways to gain new ones.
    Privileges,
    /// A resource limit.
    Limit(LimitKind),
    /// The helper, which ends all descendants of the program.
    HelperCleanup,
}

impl Mechanism {
    /// The text in the table of `docs/sandbox.md`.
    pub fn label(self) -> &'static str {
        match self {
            Self::LandlockFiles => "Landlock (files)",
            Self::LandlockScopes => "Landlock (scopes)",
            Self::LandlockDomain => "Landlock (domain)",
            Self::Seccomp => "seccomp",
            Self::MetadataGuard => "read-only mounts, or restored at once",
            Self::CleanedEnvironment => "clean start",
            Self::Privileges => "no privileges",
            Self::Limit(limit) => limit.label(),
            Self::HelperCleanup => "helper",
        }
    }
}

/// The limit that stops an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// The run time.
    Time,
    /// The amount of output that is read. If nobody reads it, the program blocks until its time is over.
    Output,
    /// The number of processes and threads.
    Processes,
    /// The size of a file.
    FileSize,
    /// The free space on the disk.
    Disk,
    /// The memory of one process.
    Memory,
    /// The memory of all processes together. A container's own limit may be lower, and includes memory that the
    /// helper cannot see.
    TotalMemory,
}

impl LimitKind {
    /// The text in the table of `docs/sandbox.md`.
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
    /// It succeeds only for root.
    SucceedsAsRoot,
    /// It is not tried, for example because it would do harm. The text says why.
    NotTried(&'static str),
}

/// Why an attempt did not succeed.
#[derive(Debug)]
pub enum AttemptError {
    /// It was refused with this error.
    Refused(String),
    /// It cannot be tried here, for this reason.
    NotApplicable(String),
}

impl<E: Into<io::Error>> From<E> for AttemptError {
    fn from(error: E) -> Self {
        Self::Refused(error.into().to_string())
    }
}

impl Attempt {
    /// The row of the attempt in the table of `docs/sandbox.md`.
    pub fn table_row(&self) -> String {
        format!("| `{}` | {} | {} |", self.name, self.description, self.mechanism.label())
    }
}
