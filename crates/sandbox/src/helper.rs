//! The helper process. It stays outside of the sandbox, starts the program, watches it, and ends all its
//! descendants when the program ends or exceeds a limit, or when the engine closes the socket or dies.

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
use crate::priority::{self, PROGRAM_NICE};
use crate::protocol::{self, AppliedIsolation, HelperRequest, HelperResponse, ProgramSpec};
use crate::usage::UsageMonitor;
use crate::{ExitStatus, descendants, program};

/// How long the forked helper may take to confine itself and execute the program.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// The main function of a process that was started as a helper. It takes its request from its standard input,
/// which must be a socket, and returns an error code otherwise.
///
/// It first closes all file descriptors but the standard ones, so it must be called before any are opened.
pub fn helper_main() -> ExitCode {
    close_inherited_fds();
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let mut socket = UnixStream::from(socket);
    match protocol::receive_with_pipes::<HelperRequest>(&mut socket) {
        Ok((HelperRequest::Hold(spec), pipes)) => supervise(&mut socket, spec, pipes),
        Ok((HelperRequest::Become(spec), pipes)) => {
            program::exec_program(&mut socket, &spec, pipes);
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Closes all file descriptors but the standard ones: the engine's may have been inherited by accident, and
/// must not reach the program.
fn close_inherited_fds() {
    let listed = std::fs::read_dir("/proc/self/fd").map(|entries| {
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .collect::<Vec<_>>()
    });
    for file in listed.unwrap_or_else(|_| (3..1024).collect()) {
        if file > 2 {
            // The descriptor that listed the folder is closed already.
            let _ = nix::unistd::close(file);
        }
    }
}

/// Runs one program from its start to its end, and reports the end.
fn supervise(socket: &mut UnixStream, spec: ProgramSpec, pipes: [OwnedFd; 3]) -> ExitCode {
    // The program must not share the engine's terminal and process group. This fails only for a process group
    // leader, which has its own.
    if rustix::process::setsid().is_ok() {
        priority::lower_session_priority(PROGRAM_NICE);
    }
    let response = match run_program(socket, spec, pipes) {
        Ok(status) => HelperResponse::Ended(status),
        Err(response) => response,
    };
    match protocol::send(socket, &response) {
        Ok(()) => ExitCode::SUCCESS,
        // The engine has closed the socket.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Runs the program, and ends all its descendants whatever the outcome.
fn run_program(
    socket: &mut UnixStream,
    mut spec: ProgramSpec,
    pipes: [OwnedFd; 3],
) -> Result<ExitStatus, HelperResponse> {
    let failed = |error: io::Error| HelperResponse::Failed(error.to_string());
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| failed(error.into()))?;
    let cgroup = Cgroup::new(spec.limits.processes);
    spec.counted = cgroup.is_some();
    let mut guard = None;
    let outcome = spawn_self().map_err(failed).and_then(|(child, child_socket)| {
        if let Some(cgroup) = &cgroup {
            cgroup.add_process(child.id()).map_err(failed)?;
        }
        let snapshot = MetadataGuard::snapshot(&spec.workspace);
        let isolation = launch_program(child_socket, &spec, pipes)?;
        guard = (spec.confined && !isolation.mounts).then_some(snapshot);
        protocol::send(socket, &HelperResponse::Running(isolation)).map_err(failed)?;
        monitor(socket, &child, &spec, guard.as_mut()).map_err(failed)
    });
    if let Some(cgroup) = &cgroup {
        cgroup.forbid_forks();
    }
    descendants::kill_all();
    if let Some(guard) = &mut guard {
        guard.restore();
    }
    outcome
}

/// Starts this executable once more, as the process that confines itself and executes the program. Returns it
/// with the helper's end of a socket to it.
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
        // A signal to the program's process group must not reach the helper.
        .process_group(0)
        .spawn()?;
    Ok((child, ours))
}

/// Sends the program's specification to the forked helper and waits until it executes the program, which closes
/// the socket. The helper's copies of the pipes are closed.
fn launch_program(
    mut socket: UnixStream,
    spec: &ProgramSpec,
    pipes: [OwnedFd; 3],
) -> Result<AppliedIsolation, HelperResponse> {
    let failed = |error: io::Error| HelperResponse::Failed(error.to_string());
    let [stdin, stdout, stderr] = &pipes;
    let request = HelperRequest::Become(spec.clone());
    protocol::send_with_pipes(&mut socket, &request, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])
        .map_err(failed)?;
    drop(pipes);
    let mut isolation = None;
    loop {
        match protocol::receive(&mut socket) {
            Ok(Some(HelperResponse::Confined(applied))) => isolation = Some(applied),
            Ok(Some(failure)) => return Err(failure),
            Ok(None) => {
                return isolation
                    .ok_or_else(|| HelperResponse::Failed("the process died while confining itself".into()));
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Watches the program until it ends or exceeds a limit, or the engine closes the socket.
fn monitor(
    socket: &UnixStream,
    child: &Child,
    spec: &ProgramSpec,
    mut guard: Option<&mut MetadataGuard>,
) -> io::Result<ExitStatus> {
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let mut usage = UsageMonitor::new(&spec.limits, &spec.workspace);
    loop {
        let pause = match usage.check() {
            Ok(pause) => pause,
            Err(exceeded) => return Ok(ExitStatus::OverLimit(exceeded)),
        };
        let mut events =
            [PollFd::new(&handle, PollFlags::IN), PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
        match poll(&mut events, Some(&timespec(pause))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [exited, released] = events.map(|event| !event.revents().is_empty());
        if exited && let Some(status) = try_wait(pid)? {
            return Ok(status);
        }
        if released {
            return Ok(ExitStatus::Signalled(libc::SIGKILL));
        }
        reap_orphans(pid);
        if let Some(guard) = &mut guard {
            guard.restore();
        }
    }
}

/// Returns how the program ended, or `None` while it runs.
fn try_wait(pid: Pid) -> io::Result<Option<ExitStatus>> {
    let Some((_, status)) = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG)? else {
        return Ok(None);
    };
    Ok(status
        .exit_status()
        .map(ExitStatus::Exited)
        .or_else(|| status.terminating_signal().map(ExitStatus::Signalled)))
}

/// Reaps ended orphans of the program's descendants, but not the program itself.
fn reap_orphans(program: Pid) {
    let program = program.as_raw_nonzero().get();
    for process in descendants::own_child_pids() {
        if process != program
            && let Some(pid) = Pid::from_raw(process)
        {
            // A child that still runs is reaped later.
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

fn timespec(pause: Duration) -> Timespec {
    // Pauses are shorter than a second, so the conversion never saturates.
    Timespec {
        tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(pause.subsec_nanos()),
    }
}
