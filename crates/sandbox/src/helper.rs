//! The helper: it stands outside of what it starts, watches it, and ends it with all its descendants once the
//! program has ended, has taken too much, or the engine has let go, be it by dying.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open};

use crate::cgroup::Cgroup;
use crate::metadata_guard::MetadataGuard;
use crate::protocol::{self, AppliedIsolation, HelperRequest, HelperResponse, ProgramSpec};
use crate::usage::UsageMonitor;
use crate::{ExitStatus, descendants, program};

/// How long the program-to-be may take to become it.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// Where a program is started as a helper, this is all it does: it obeys the one who holds the other end of
/// its standard input, which is a socket. Started otherwise, it fails.
///
/// It closes all other files first, so it must come before whatever opens any.
pub fn helper_main() -> ExitCode {
    close_inherited_fds();
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let mut socket = UnixStream::from(socket);
    match protocol::receive_with_pipes::<HelperRequest>(&mut socket) {
        Ok((HelperRequest::Hold(job), pipes)) => supervise(&mut socket, job, pipes),
        Ok((HelperRequest::Become(job), pipes)) => {
            program::exec_program(&mut socket, &job, pipes);
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Closes all files but the standard ones: an engine's may have been inherited by accident, and must not go
/// on to the program.
fn close_inherited_fds() {
    let listed = std::fs::read_dir("/proc/self/fd").map(|entries| {
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .collect::<Vec<_>>()
    });
    for file in listed.unwrap_or_else(|_| (3..1024).collect()) {
        if file > 2 {
            // The list's own file is closed already.
            let _ = nix::unistd::close(file);
        }
    }
}

/// Holds one program from its start to its end.
fn supervise(socket: &mut UnixStream, job: ProgramSpec, pipes: [OwnedFd; 3]) -> ExitCode {
    // An engine's terminal and group are not the program's. The first in a session of its own has it already.
    let _ = rustix::process::setsid();
    let answer = match run_program(socket, job, pipes) {
        Ok(ended) => HelperResponse::Ended(ended),
        Err(answer) => answer,
    };
    match protocol::send(socket, &answer) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody wants to know any more.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Runs it. Whatever comes of it, none of it is left.
fn run_program(
    socket: &mut UnixStream,
    mut job: ProgramSpec,
    pipes: [OwnedFd; 3],
) -> Result<ExitStatus, HelperResponse> {
    let failed = |error: io::Error| HelperResponse::Failed(error.to_string());
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| failed(error.into()))?;
    let cgroup = Cgroup::new(job.limits.processes);
    job.counted = cgroup.is_some();
    let mut guard = None;
    let outcome = spawn_self().map_err(failed).and_then(|(child, theirs)| {
        if let Some(cgroup) = &cgroup {
            cgroup.add_process(child.id()).map_err(failed)?;
        }
        let attributes = MetadataGuard::snapshot(&job.workspace);
        let reached = launch_program(theirs, &job, pipes)?;
        guard = (job.confined && !reached.mounts).then_some(attributes);
        protocol::send(socket, &HelperResponse::Running(reached)).map_err(failed)?;
        monitor(socket, &child, &job, guard.as_mut()).map_err(failed)
    });
    #[cfg(feature = "sabotage")]
    if job.let_go {
        return outcome;
    }
    if let Some(cgroup) = &cgroup {
        cgroup.forbid_forks();
    }
    descendants::kill_all();
    if let Some(attributes) = &mut guard {
        attributes.restore();
    }
    outcome
}

/// Starts this very program again, to become the one that is wanted.
fn spawn_self() -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(START_TIMEOUT))?;
    ours.set_write_timeout(Some(START_TIMEOUT))?;
    let child = Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A signal to the program's group is not for the helper.
        .process_group(0)
        .spawn()?;
    Ok((child, ours))
}

/// Has it become the program, and waits until that runs: the socket closes then. The pipes are its alone from
/// here on.
fn launch_program(
    mut socket: UnixStream,
    job: &ProgramSpec,
    pipes: [OwnedFd; 3],
) -> Result<AppliedIsolation, HelperResponse> {
    let failed = |error: io::Error| HelperResponse::Failed(error.to_string());
    let [stdin, stdout, stderr] = &pipes;
    let order = HelperRequest::Become(job.clone());
    protocol::send_with_pipes(&mut socket, &order, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])
        .map_err(failed)?;
    drop(pipes);
    let mut reached = None;
    loop {
        match protocol::receive(&mut socket) {
            Ok(Some(HelperResponse::Confined(how_far))) => reached = Some(how_far),
            Ok(Some(refusal)) => return Err(refusal),
            Ok(None) => {
                return reached.ok_or_else(|| HelperResponse::Failed("what confines a program died".into()));
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Watches the program until it ends, takes too much, or is let go of.
fn monitor(
    socket: &UnixStream,
    child: &Child,
    job: &ProgramSpec,
    mut guard: Option<&mut MetadataGuard>,
) -> io::Result<ExitStatus> {
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let mut watch = UsageMonitor::new(&job.limits, &job.workspace);
    loop {
        let pause = match watch.check() {
            Ok(pause) => pause,
            Err(excess) => return Ok(ExitStatus::OverLimit(excess)),
        };
        let mut events =
            [PollFd::new(&handle, PollFlags::IN), PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
        match poll(&mut events, Some(&timespec(pause))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [ended, let_go] = events.map(|event| !event.revents().is_empty());
        if ended && let Some(ended) = try_wait(pid)? {
            return Ok(ended);
        }
        if let_go {
            return Ok(ExitStatus::Signalled(libc::SIGKILL));
        }
        reap_orphans(pid);
        if let Some(attributes) = &mut guard {
            attributes.restore();
        }
    }
}

/// How the program ended, if it has.
fn try_wait(pid: Pid) -> io::Result<Option<ExitStatus>> {
    let Some((_, status)) = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG)? else {
        return Ok(None);
    };
    Ok(status
        .exit_status()
        .map(ExitStatus::Exited)
        .or_else(|| status.terminating_signal().map(ExitStatus::Signalled)))
}

/// Waits for what the program's children left behind, but not for the program itself.
fn reap_orphans(program: Pid) {
    let program = program.as_raw_nonzero().get();
    for process in descendants::own_child_pids() {
        if process != program
            && let Some(pid) = Pid::from_raw(process)
        {
            // It may still run.
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn timespec(pause: Duration) -> Timespec {
    // A pause is a fraction of a second.
    Timespec {
        tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(pause.subsec_nanos()),
    }
}
