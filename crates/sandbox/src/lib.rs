//! Runs programs in a sandbox. A program reaches only the files, sockets and processes that it was given, stays
//! within its resource limits, and ends with all its descendants when its [`Child`] is dropped or the caller's
//! process dies.
//!
//! The caller starts a helper process, which stays outside of the sandbox, watches the program and ends it.
//! `docs/sandbox.md` describes the mechanisms and the known gaps.

mod cgroup;
mod child;
mod descendants;
mod helper;
mod landlock;
mod metadata_guard;
mod mounts;
mod priority;
mod program;
mod protocol;
mod seccomp;
mod signals;
mod usage;

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::child::PendingTeardowns;
use crate::protocol::{AppliedIsolation, FileAccess, ProcessCounter, ProgramSpec};

pub use crate::child::Child;
pub use crate::helper::helper_main;
pub use crate::priority::{ENGINE_NICE, lower_process_priority, lower_session_priority};

/// The hidden subcommand that makes `roundhouse` run as a sandbox helper.
pub const HELPER_ARG: &str = "__sandbox";

/// How to start the helper process between an engine and a sandboxed program: a program that calls
/// [`helper_main`] when it is started with these arguments.
#[derive(Clone, Debug)]
pub struct HelperCommand {
    /// The executable, such as `/proc/self/exe`.
    pub program: PathBuf,
    /// The arguments that follow the program's name.
    pub args: Vec<OsString>,
}

impl HelperCommand {
    /// The running executable, called with [`HELPER_ARG`]. Only for executables that handle that argument.
    pub fn current_exe() -> Self {
        Self { program: "/proc/self/exe".into(), args: vec![HELPER_ARG.into()] }
    }
}

/// The settings shared by all programs of one [`Sandbox`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// How to start the helper.
    pub helper: HelperCommand,
    /// The folder that programs may read, write and execute. It is created if missing, and also holds
    /// temporary files.
    pub workspace: PathBuf,
    /// Further folders that programs may read and execute, besides those of the system.
    pub readable: Vec<PathBuf>,
    /// Files in `readable` that programs may not read.
    pub hidden: Vec<HiddenFiles>,
    /// Whether programs run even if this kernel cannot confine them.
    pub allow_unconfined: bool,
}

/// The files of one folder whose names have a given ending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenFiles {
    /// The folder. Files in its subfolders are not included.
    pub folder: PathBuf,
    /// The last characters of the names, such as `.json`.
    pub ending: String,
}

/// Whether this machine's kernel can confine programs.
///
/// # Errors
/// What it lacks.
pub fn check_kernel() -> Result<(), String> {
    landlock::check_supported()
}

/// The isolation that this machine supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// The level for logs and telemetry, such as `landlock, seccomp, processes by cgroup, mounts read-only`.
    /// The items after the second are known once a program has run.
    pub level: String,
    /// Whether the guarantees about files, sockets and signals hold.
    pub enforced: bool,
}

/// A program to run.
#[derive(Clone, Debug)]
pub struct Command {
    /// The program and its arguments. A bare name is looked up in the sandbox's `PATH`.
    pub argv: Vec<OsString>,
    /// The working directory, absolute or relative to the workspace.
    pub folder: PathBuf,
    /// Environment variables in addition to those that every program gets (`PATH`, `HOME`, `TMPDIR`, `LANG`,
    /// `GIT_CONFIG_NOSYSTEM`).
    pub env: Vec<(OsString, OsString)>,
    /// Whether the program may open network connections.
    pub network: bool,
    /// The limits of the program and its descendants.
    pub limits: Limits,
}

/// The resource limits of a program and all its descendants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The maximum run time. `None` for a server, which runs until its [`Child`] is dropped.
    pub time: Option<Duration>,
    /// The memory of all processes together, in bytes.
    pub memory: u64,
    /// The size of each file written, in bytes.
    pub file_size: u64,
    /// The number of processes and threads at one time.
    pub processes: u32,
    /// The free space that must remain on the workspace's file system, in bytes.
    pub disk_left: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            time: Some(Duration::from_mins(2)),
            memory: 2 << 30,
            file_size: 1 << 30,
            processes: 256,
            disk_left: 256 << 20,
        }
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It exited with this code.
    Exited(i32),
    /// It was terminated by this signal.
    Signalled(i32),
    /// It exceeded a limit and was ended by the helper.
    OverLimit(ExceededLimit),
}

/// The limit that a program exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExceededLimit {
    /// [`Limits::time`].
    Time,
    /// [`Limits::memory`].
    Memory,
    /// [`Limits::processes`].
    Processes,
    /// [`Limits::disk_left`].
    Disk,
}

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// This machine cannot confine programs, and [`Settings::allow_unconfined`] is off.
    #[error("programs cannot be confined on this machine ({0}), so none are run")]
    Unconfined(String),
    /// The program does not exist, or may not be executed.
    #[error("`{program}` cannot be run: {reason}")]
    Program {
        /// The name or path from the command.
        program: String,
        /// The system's error, with advice where there is any.
        reason: String,
    },
    /// The sandbox itself failed.
    #[error("the sandbox failed: {0}")]
    Helper(String),
}

/// Starts programs that are confined to one workspace.
#[derive(Debug)]
pub struct Sandbox {
    settings: Settings,
    /// The folders of [`Self::set_executable`].
    executable: Mutex<Vec<PathBuf>>,
    /// Why this machine cannot confine programs. `None` if it can.
    unsupported_reason: Option<String>,
    applied_isolation: OnceLock<AppliedIsolation>,
    pending_teardowns: Arc<PendingTeardowns>,
}

/// The `PATH` of programs.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The folder for temporary files, in the workspace.
const TEMP_DIR: &str = ".tmp";
/// The permissions on the workspace that its owner always keeps.
const OWNER_RWX: u32 = 0o700;

impl Sandbox {
    /// Checks whether this kernel can confine programs. It starts no process.
    pub fn new(settings: Settings) -> Self {
        let missing = landlock::check_supported().err();
        Self {
            settings,
            executable: Mutex::default(),
            unsupported_reason: missing,
            applied_isolation: OnceLock::new(),
            pending_teardowns: Arc::default(),
        }
    }

    /// Sets the folders that programs started from now on may read and execute, besides those of the settings.
    pub fn set_executable(&self, folders: Vec<PathBuf>) {
        *self.executable.lock() = folders;
    }

    /// All folders besides the system's that programs may read and execute.
    fn readable(&self) -> Vec<PathBuf> {
        let executable = self.executable.lock();
        self.settings.readable.iter().chain(executable.iter()).cloned().collect()
    }

    /// Returns the isolation level of programs.
    pub fn confinement(&self) -> Confinement {
        let mut level = match &self.unsupported_reason {
            None => "landlock, seccomp".to_owned(),
            Some(missing) => format!("unconfined (Landlock: {missing})"),
        };
        if let Some(isolation) = self.applied_isolation.get() {
            level.push_str(match isolation.counting {
                ProcessCounter::Cgroup => ", processes by cgroup",
                ProcessCounter::UserNamespace => ", processes by user namespace",
                ProcessCounter::Helper => ", processes by helper",
            });
            if isolation.mounts {
                level.push_str(", mounts read-only");
            }
        }
        Confinement { level, enforced: self.unsupported_reason.is_none() }
    }

    /// Whether [`Self::start`] runs programs on this machine at all.
    pub fn is_usable(&self) -> bool {
        self.unsupported_reason.is_none() || self.settings.allow_unconfined
    }

    /// Starts a program. If the future is dropped, whatever it has started ends.
    ///
    /// # Errors
    /// See [`SandboxError`].
    pub async fn start(&self, command: Command) -> Result<Child, SandboxError> {
        self.start_spec(|workspace| self.program_spec(command, workspace)).await
    }

    /// Starts the program that `spec` describes for the workspace's real path.
    async fn start_spec(&self, spec: impl FnOnce(PathBuf) -> ProgramSpec) -> Result<Child, SandboxError> {
        if let Some(missing) = self.unsupported_reason.as_ref().filter(|_| !self.settings.allow_unconfined) {
            return Err(SandboxError::Unconfined(missing.clone()));
        }
        let workspace =
            self.prepare_workspace().await.map_err(|error| SandboxError::Helper(error.to_string()))?;
        let (child, isolation) =
            Child::start(&self.settings.helper, &spec(workspace), &self.pending_teardowns).await?;
        if self.applied_isolation.set(isolation).is_ok() {
            tracing::info!(confinement = self.confinement().level, "The first program runs in the sandbox.");
        }
        Ok(child)
    }

    /// Waits until all programs whose [`Child`] was dropped have ended with their descendants, at most for
    /// `timeout`.
    pub async fn wait_for_teardown(&self, timeout: Duration) {
        // The helpers continue the teardown after the timeout.
        let _ = tokio::time::timeout(timeout, self.pending_teardowns.drained()).await;
    }

    /// Creates the workspace and its folder for temporary files, and returns the workspace's real path.
    async fn prepare_workspace(&self) -> std::io::Result<PathBuf> {
        let workspace = &self.settings.workspace;
        tokio::fs::create_dir_all(workspace).await?;
        let workspace = tokio::fs::canonicalize(workspace).await?;
        // A program may have removed its own permissions on the workspace, and no later one could restore them.
        let permissions = tokio::fs::metadata(&workspace).await?.permissions();
        if permissions.mode() & OWNER_RWX != OWNER_RWX {
            let usable = Permissions::from_mode(permissions.mode() | OWNER_RWX);
            tokio::fs::set_permissions(&workspace, usable).await?;
        }
        // If a program has put a file in its place, its successors do without temporary files.
        let _ = tokio::fs::create_dir_all(workspace.join(TEMP_DIR)).await;
        Ok(workspace)
    }

    /// Starts the helper's own executable with these arguments, as a program that reaches no file of the user
    /// and no network: it has its standard input and output. If the future is dropped, it ends.
    ///
    /// # Errors
    /// See [`SandboxError`].
    pub async fn start_worker(&self, args: Vec<OsString>, limits: Limits) -> Result<Child, SandboxError> {
        self.start_spec(|workspace| ProgramSpec {
            argv: std::iter::once(self.settings.helper.program.clone().into()).chain(args).collect(),
            folder: "/".into(),
            env: Vec::new(),
            network: false,
            limits,
            workspace,
            files: FileAccess::ExecutableOnly,
            readable: Vec::new(),
            hidden: Vec::new(),
            confined: self.unsupported_reason.is_none(),
            counted: false,
        })
        .await
    }

    fn program_spec(&self, command: Command, workspace: PathBuf) -> ProgramSpec {
        let mut env: Vec<(OsString, OsString)> = vec![
            ("PATH".into(), SEARCH_PATH.into()),
            ("HOME".into(), workspace.clone().into()),
            ("TMPDIR".into(), workspace.join(TEMP_DIR).into()),
            ("LANG".into(), "C.UTF-8".into()),
            // The host's git configuration may hold credentials, so it cannot be read here. Without this variable
            // git treats the unreadable file as an error and refuses to work.
            ("GIT_CONFIG_NOSYSTEM".into(), "1".into()),
        ];
        env.extend(command.env);
        ProgramSpec {
            argv: command.argv,
            folder: workspace.join(command.folder),
            env,
            network: command.network,
            limits: command.limits,
            workspace,
            files: FileAccess::Workspace,
            readable: self.readable(),
            hidden: self.settings.hidden.clone(),
            confined: self.unsupported_reason.is_none(),
            counted: false,
        }
    }
}
