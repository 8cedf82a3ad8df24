//! The process that becomes the program: it gives up everything that the program may not have, and then executes
//! the program. The helper starts it as a copy of itself.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::landlock::{self, AccessProfile};
use crate::priority::{self, PROGRAM_NICE};
use crate::protocol::{self, AppliedIsolation, FileAccess, HelperResponse, ProcessCounter, ProgramSpec};
use crate::{mounts, seccomp, signals};

/// The soft and hard limit of a program's open files.
const OPEN_FILES_LIMIT: (u64, u64) = (1024, 4096);

/// The memory that a program may lock, in bytes.
const LOCKED_MEMORY_BYTES: u64 = 8 << 20;

/// Confines this process and executes the program. Returns only if that fails, after reporting why.
pub(crate) fn exec_program(socket: &mut UnixStream, spec: &ProgramSpec, pipes: [OwnedFd; 3]) {
    signals::reset_ignored();
    let response = match confine(spec).and_then(|isolation| redirect_stdio(pipes).map(|()| isolation)) {
        Ok(isolation) => match protocol::send(socket, &HelperResponse::Confined(isolation)) {
            Ok(()) => HelperResponse::NoProgram(exec_error_message(spec, &exec(spec))),
            Err(error) => HelperResponse::Failed(error.to_string()),
        },
        Err(reason) => HelperResponse::Failed(reason),
    };
    // This fails only if the helper is gone.
    let _ = protocol::send(socket, &response);
}

/// Applies all restrictions. The order matters: later steps forbid earlier ones.
fn confine(spec: &ProgramSpec) -> Result<AppliedIsolation, String> {
    let isolation = if spec.confined {
        mounts::isolate((spec.files == FileAccess::Workspace).then_some(&spec.workspace))
    } else {
        mounts::Isolation { mounts: false, user_namespace: false }
    };
    let counting = match (spec.counted, isolation.user_namespace) {
        (true, _) => ProcessCounter::Cgroup,
        (false, true) => ProcessCounter::UserNamespace,
        (false, false) => ProcessCounter::Helper,
    };
    // If memory runs out, the kernel kills the program before the engine.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    priority::lower_process_priority(PROGRAM_NICE);
    set_rlimits(spec, counting)?;
    if spec.confined {
        drop_capabilities()?;
        access_profile(spec).enforce()?;
        seccomp::enforce(spec.network)?;
    }
    // If the helper is killed from outside, the kernel kills the program too.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| error.to_string())?;
    Ok(AppliedIsolation { counting, mounts: isolation.mounts })
}

/// The files that the program may access.
fn access_profile(spec: &ProgramSpec) -> AccessProfile {
    match spec.files {
        FileAccess::Workspace => {
            AccessProfile::new(&spec.workspace, (&spec.readable, &spec.hidden), spec.network)
        }
        FileAccess::ExecutableOnly => AccessProfile::execute_only(spec.argv.first().map(PathBuf::from)),
    }
}

/// Sets the limits that the kernel enforces for each process.
fn set_rlimits(spec: &ProgramSpec, counting: ProcessCounter) -> Result<(), String> {
    let set = |resource: Resource, soft: u64, hard: u64| {
        // A lower limit that is in force already stays.
        let ceiling = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let limits = Rlimit { current: Some(soft.min(ceiling)), maximum: Some(hard.min(ceiling)) };
        rustix::process::setrlimit(resource, limits)
            .map_err(|error| format!("{resource:?} cannot be set: {error}"))
    };
    set(Resource::Core, 0, 0)?;
    set(Resource::Fsize, spec.limits.file_size, spec.limits.file_size)?;
    set(Resource::Nofile, OPEN_FILES_LIMIT.0, OPEN_FILES_LIMIT.1)?;
    set(Resource::Memlock, LOCKED_MEMORY_BYTES, LOCKED_MEMORY_BYTES)?;
    set(Resource::Msgqueue, 0, 0)?;
    if counting == ProcessCounter::UserNamespace {
        let processes = u64::from(spec.limits.processes);
        set(Resource::Nproc, processes, processes)?;
    }
    set(Resource::Data, spec.limits.memory, spec.limits.memory)
}

/// Drops all capabilities, and with them root's privileges, for good.
fn drop_capabilities() -> Result<(), String> {
    let failed = |error: rustix::io::Errno| format!("capabilities cannot be dropped: {error}");
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    let own = rustix::thread::capabilities(None).map_err(failed)?;
    if own.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().iter() {
            // An older kernel does not know all of them.
            let _ = rustix::thread::remove_capability_from_bounding_set(capability);
        }
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).map_err(failed)?;
    rustix::thread::clear_ambient_capability_set().map_err(failed)
}

/// Makes the pipes this process's standard input, output and error. The socket stays open until the program is
/// executed.
fn redirect_stdio([stdin, stdout, stderr]: [OwnedFd; 3]) -> Result<(), String> {
    rustix::stdio::dup2_stdin(stdin)
        .and_then(|()| rustix::stdio::dup2_stdout(stdout))
        .and_then(|()| rustix::stdio::dup2_stderr(stderr))
        .map_err(|error| format!("standard input and output cannot be redirected: {error}"))
}

/// Describes why a program could not be executed. If permission was denied, the text names the folders from which
/// programs can be run.
fn exec_error_message(spec: &ProgramSpec, error: &io::Error) -> String {
    if !spec.confined || error.kind() != io::ErrorKind::PermissionDenied {
        return error.to_string();
    }
    let folders =
        landlock::PROGRAM_PATHS.iter().map(Path::new).chain(spec.readable.iter().map(PathBuf::as_path));
    let folders = folders.filter(|folder| folder.is_dir()).map(|folder| folder.display().to_string());
    let folders: Vec<String> = folders.chain([spec.workspace.display().to_string()]).collect();
    format!("{error}; programs can be run that lie, with what they load, in {}", folders.join(", "))
}

/// Executes the program. Returns only if that fails.
fn exec(spec: &ProgramSpec) -> io::Error {
    let mut argv = spec.argv.iter();
    let Some(program) = argv.next() else { return io::Error::other("the command is empty") };
    if let Err(error) = std::env::set_current_dir(&spec.folder) {
        return io::Error::new(
            error.kind(),
            format!("its working directory {} cannot be entered: {error}", spec.folder.display()),
        );
    }
    Command::new(program).args(argv).env_clear().envs(spec.env.iter().cloned()).exec()
}
