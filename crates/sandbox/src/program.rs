//! The program-to-be: it narrows itself until it holds nothing that the program may not have, and becomes it.

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
use crate::protocol::{self, AppliedIsolation, HelperResponse, ProcessCounter, ProgramSpec};
use crate::{mounts, seccomp, signals};

/// How many files a program may have open at once: what is usual, and what it may raise that to.
const OPEN_FILES_LIMIT: (u64, u64) = (1024, 4096);

/// How far a program stands behind engines and helpers for the processor, by setpriority(2).
const NICE_VALUE: i32 = 10;

/// How much a program may lock in memory, in bytes.
const LOCKED_MEMORY_BYTES: u64 = 8 << 20;

/// Becomes the program. It returns only where that fails, and has said so.
pub(crate) fn exec_program(socket: &mut UnixStream, job: &ProgramSpec, pipes: [OwnedFd; 3]) {
    signals::reset_ignored();
    let answer = match confine(job).and_then(|reached| redirect_stdio(pipes).map(|()| reached)) {
        Ok(reached) => match protocol::send(socket, &HelperResponse::Confined(reached)) {
            Ok(()) => HelperResponse::NoProgram(exec_error_message(job, &exec(job))),
            Err(error) => HelperResponse::Failed(error.to_string()),
        },
        Err(reason) => HelperResponse::Failed(reason),
    };
    // Without a helper there is nobody to tell.
    let _ = protocol::send(socket, &answer);
}

/// Gives up everything. The order matters: what comes later would forbid what comes before.
fn confine(job: &ProgramSpec) -> Result<AppliedIsolation, String> {
    let isolation = if job.confined {
        mounts::isolate(&job.workspace)
    } else {
        mounts::Isolation { mounts: false, user_namespace: false }
    };
    let counting = match (job.counted, isolation.user_namespace) {
        (true, _) => ProcessCounter::Cgroup,
        (false, true) => ProcessCounter::UserNamespace,
        (false, false) => ProcessCounter::Helper,
    };
    // Should memory run out, it is not the engine that goes first.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    // Nor does it compute first: who must end it needs the processor more.
    let _ = rustix::process::setpriority_process(None, NICE_VALUE);
    set_rlimits(job, counting)?;
    if job.confined {
        drop_capabilities()?;
        AccessProfile::new(&job.workspace, (&job.readable, &job.hidden), job.network).enforce()?;
        seccomp::enforce(job.network)?;
    }
    // Should the helper be killed from outside, the program goes with it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| error.to_string())?;
    Ok(AppliedIsolation { counting, mounts: isolation.mounts })
}

/// Sets the limits that the kernel watches by process.
fn set_rlimits(job: &ProgramSpec, counting: ProcessCounter) -> Result<(), String> {
    let set = |resource: Resource, soft: u64, hard: u64| {
        // Who may have less than this already keeps that.
        let most = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let limits = Rlimit { current: Some(soft.min(most)), maximum: Some(hard.min(most)) };
        rustix::process::setrlimit(resource, limits)
            .map_err(|error| format!("{resource:?} cannot be set: {error}"))
    };
    set(Resource::Core, 0, 0)?;
    set(Resource::Fsize, job.limits.file_size, job.limits.file_size)?;
    set(Resource::Nofile, OPEN_FILES_LIMIT.0, OPEN_FILES_LIMIT.1)?;
    set(Resource::Memlock, LOCKED_MEMORY_BYTES, LOCKED_MEMORY_BYTES)?;
    set(Resource::Msgqueue, 0, 0)?;
    if counting == ProcessCounter::UserNamespace {
        let processes = u64::from(job.limits.processes);
        set(Resource::Nproc, processes, processes)?;
    }
    set(Resource::Data, job.limits.memory, job.limits.memory)
}

/// Drops what makes root more than another user, for good.
fn drop_capabilities() -> Result<(), String> {
    let failed = |error: rustix::io::Errno| format!("capabilities cannot be dropped: {error}");
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    let own = rustix::thread::capabilities(None).map_err(failed)?;
    if own.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().iter() {
            // A kernel may know fewer.
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

/// Makes the pipes its standard input, output and error. The socket stays, and closes once the program
/// begins.
fn redirect_stdio([stdin, stdout, stderr]: [OwnedFd; 3]) -> Result<(), String> {
    rustix::stdio::dup2_stdin(stdin)
        .and_then(|()| rustix::stdio::dup2_stdout(stdout))
        .and_then(|()| rustix::stdio::dup2_stderr(stderr))
        .map_err(|error| format!("the pipes cannot be taken: {error}"))
}

/// Why a program was not run. Of one that may not be, where those must lie that may.
fn exec_error_message(job: &ProgramSpec, error: &io::Error) -> String {
    if !job.confined || error.kind() != io::ErrorKind::PermissionDenied {
        return error.to_string();
    }
    let folders =
        landlock::PROGRAM_PATHS.iter().map(Path::new).chain(job.readable.iter().map(PathBuf::as_path));
    let folders = folders.filter(|folder| folder.is_dir()).map(|folder| folder.display().to_string());
    let folders: Vec<String> = folders.chain([job.workspace.display().to_string()]).collect();
    format!("{error}; programs can be run that lie, with what they load, in {}", folders.join(", "))
}

/// Becomes the program, or says why not.
fn exec(job: &ProgramSpec) -> io::Error {
    let mut argv = job.argv.iter();
    let Some(program) = argv.next() else { return io::Error::other("no program is named") };
    if let Err(error) = std::env::set_current_dir(&job.folder) {
        return io::Error::new(
            error.kind(),
            format!("its folder {} cannot be entered: {error}", job.folder.display()),
        );
    }
    Command::new(program).args(argv).env_clear().envs(job.env.iter().cloned()).exec()
}
