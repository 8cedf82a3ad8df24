//! The sandbox: runs a program so that it can reach only what it was given, takes only its share of the
//! machine, and ends with all its descendants when its caller lets go of it, however that comes about.

mod cgroup;
mod child;
mod descendants;
mod helper;
mod landlock;
mod metadata_guard;
mod mounts;
mod program;
mod protocol;
mod seccomp;
mod signals;
mod usage;

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::child::PendingTeardowns;
use crate::protocol::{AppliedIsolation, ProcessCounter, ProgramSpec};

pub use crate::child::Child;
pub use crate::helper::helper_main;

/// The argument with which `roundhouse` is a helper.
pub const HELPER_ARG: &str = "__sandbox";

/// How to start the helper that stands between an engine and what it runs: a program that calls
/// [`helper_main`] when it is started with these arguments.
#[derive(Clone, Debug)]
pub struct HelperCommand {
    /// The program, such as `/proc/self/exe`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

impl HelperCommand {
    /// This very program, which is `roundhouse`.
    pub fn current_exe() -> Self {
        Self { program: "/proc/self/exe".into(), args: vec![HELPER_ARG.into()] }
    }
}

/// What holds for all that is run in one sandbox.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How to start the helper.
    pub helper: HelperCommand,
    /// The folder that may be read and written, made where it is missing. Temporary files go into it too.
    pub workspace: PathBuf,
    /// Folders that may be read and executed beside the system's programs.
    pub readable: Vec<PathBuf>,
    /// Files in those folders that may not be read all the same.
    pub hidden: Vec<HiddenFiles>,
    /// Whether programs run although this kernel cannot confine them.
    pub allow_unconfined: bool,
}

/// The files of a folder whose names end in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenFiles {
    /// The folder.
    pub folder: PathBuf,
    /// What the names end with.
    pub ending: String,
}

/// How far this machine lets programs be confined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// For the log and for telemetry, such as `landlock, seccomp, processes by cgroup, mounts read-only`.
    /// What comes after the second is known once a program has run.
    pub level: String,
    /// Whether what the sandbox promises about files, sockets and signals holds.
    pub enforced: bool,
}

/// A program to run.
#[derive(Clone, Debug)]
pub struct Command {
    /// The program and its arguments. A bare name is looked for in the sandbox's `PATH`.
    pub argv: Vec<OsString>,
    /// The folder it begins in, relative to the workspace or absolute.
    pub folder: PathBuf,
    /// What its environment has beside what every program gets (`PATH`, `HOME`, `TMPDIR`, `LANG`).
    pub env: Vec<(OsString, OsString)>,
    /// Whether it may open network connections.
    pub network: bool,
    /// What it may take.
    pub limits: Limits,
}

/// What a program and all its descendants may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// How long it may run; none for a server, which runs until it is let go of.
    pub time: Option<Duration>,
    /// How much memory, in bytes, all together.
    pub memory: u64,
    /// How large a file may become, in bytes.
    pub file_size: u64,
    /// How many processes and threads there may be at once.
    pub processes: u32,
    /// How much room it must leave on the workspace's file system, in bytes.
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
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// It took more than it may.
    OverLimit(ExceededLimit),
}

/// What a program took too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExceededLimit {
    /// Time.
    Time,
    /// Memory.
    Memory,
    /// Processes.
    Processes,
    /// Room on the disk.
    Disk,
}

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// This machine cannot confine it, and nobody has allowed that it runs all the same.
    #[error("programs cannot be confined on this machine ({0}), so none are run")]
    Unconfined(String),
    /// There is no such program, or it may not be executed.
    #[error("`{program}` cannot be run: {reason}")]
    Program {
        /// The program.
        program: String,
        /// Why.
        reason: String,
    },
    /// The sandbox itself failed.
    #[error("the sandbox failed: {0}")]
    Helper(String),
}

/// See the module.
#[derive(Debug)]
pub struct Sandbox {
    settings: Settings,
    /// Further folders that may be read and executed.
    executable: Mutex<Vec<PathBuf>>,
    /// Why this machine cannot confine programs, where it cannot.
    unsupported_reason: Option<String>,
    applied_isolation: OnceLock<AppliedIsolation>,
    pending_teardowns: Arc<PendingTeardowns>,
}

/// Where programs are looked for.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The folder for temporary files, in the workspace.
const TEMP_DIR: &str = ".tmp";
/// What the workspace's owner must be able to do with it.
const OWNER_RWX: u32 = 0o700;

impl Sandbox {
    /// A sandbox, once it is known what this machine can confine. It asks the kernel, and starts nothing.
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

    /// Folders that programs may read and execute from now on, beside those of the settings.
    pub fn set_executable(&self, folders: Vec<PathBuf>) {
        *self.executable.lock().unwrap_or_else(PoisonError::into_inner) = folders;
    }

    /// All folders that may be read and executed beside the system's.
    fn readable(&self) -> Vec<PathBuf> {
        let executable = self.executable.lock().unwrap_or_else(PoisonError::into_inner);
        self.settings.readable.iter().chain(executable.iter()).cloned().collect()
    }

    /// How far programs are confined.
    pub fn confinement(&self) -> Confinement {
        let mut level = match &self.unsupported_reason {
            None => "landlock, seccomp".to_owned(),
            Some(missing) => format!("unconfined (Landlock: {missing})"),
        };
        if let Some(reached) = self.applied_isolation.get() {
            level.push_str(match reached.counting {
                ProcessCounter::Cgroup => ", processes by cgroup",
                ProcessCounter::UserNamespace => ", processes by user namespace",
                ProcessCounter::Helper => ", processes by helper",
            });
            if reached.mounts {
                level.push_str(", mounts read-only");
            }
        }
        Confinement { level, enforced: self.unsupported_reason.is_none() }
    }

    /// Whether programs are run at all.
    pub fn is_usable(&self) -> bool {
        self.unsupported_reason.is_none() || self.settings.allow_unconfined
    }

    /// Starts a program. Dropped halfway, nothing is left of it.
    ///
    /// # Errors
    /// See [`SandboxError`].
    pub async fn start(&self, command: Command) -> Result<Child, SandboxError> {
        if let Some(missing) = self.unsupported_reason.as_ref().filter(|_| !self.settings.allow_unconfined) {
            return Err(SandboxError::Unconfined(missing.clone()));
        }
        let workspace =
            self.prepare_workspace().await.map_err(|error| SandboxError::Helper(error.to_string()))?;
        let job = self.program_spec(command, workspace);
        let (child, reached) = Child::start(&self.settings.helper, &job, &self.pending_teardowns).await?;
        if self.applied_isolation.set(reached).is_ok() {
            tracing::info!(confinement = self.confinement().level, "a first program was confined");
        }
        Ok(child)
    }

    /// Waits until programs that were let go of are gone with all their descendants, `patience` at most.
    pub async fn wait_for_teardown(&self, patience: Duration) {
        // What is not gone by then has been told to go all the same.
        let _ = tokio::time::timeout(patience, self.pending_teardowns.drained()).await;
    }

    /// The workspace, by its real path, with its folder for temporary files.
    async fn prepare_workspace(&self) -> std::io::Result<PathBuf> {
        let workspace = &self.settings.workspace;
        tokio::fs::create_dir_all(workspace).await?;
        let workspace = tokio::fs::canonicalize(workspace).await?;
        // A program may have shut itself out, and no other could undo that.
        let permissions = tokio::fs::metadata(&workspace).await?.permissions();
        if permissions.mode() & OWNER_RWX != OWNER_RWX {
            let usable = Permissions::from_mode(permissions.mode() | OWNER_RWX);
            tokio::fs::set_permissions(&workspace, usable).await?;
        }
        // What a program has put in the folder's place is its own loss.
        let _ = tokio::fs::create_dir_all(workspace.join(TEMP_DIR)).await;
        Ok(workspace)
    }

    fn program_spec(&self, command: Command, workspace: PathBuf) -> ProgramSpec {
        let mut env: Vec<(OsString, OsString)> = vec![
            ("PATH".into(), SEARCH_PATH.into()),
            ("HOME".into(), workspace.clone().into()),
            ("TMPDIR".into(), workspace.join(TEMP_DIR).into()),
            ("LANG".into(), "C.UTF-8".into()),
            // The host's own settings of git may hold credentials, so they cannot be read here; unless it is told that
            // there are none, git takes that for an error and does nothing at all.
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
            readable: self.readable(),
            hidden: self.settings.hidden.clone(),
            confined: self.unsupported_reason.is_none(),
            counted: false,
            #[cfg(feature = "sabotage")]
            let_go: std::env::var("ROUNDHOUSE_SABOTEUR").is_ok_and(|name| name == "let_go"),
        }
    }
}
