//! Processes of this machine, found by their environment or command line and signalled by their id.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// The living processes whose environment contains `text`.
pub(crate) fn with_environment_text(text: &OsStr) -> Vec<Pid> {
    // The environment of a zombie is empty, that of another user's process cannot be read.
    by_proc_file("environ", |environment| contains(environment, text.as_bytes()))
}

/// The processes whose command line contains `text`.
pub(crate) fn with_command_line_text(text: &OsStr) -> Vec<Pid> {
    by_proc_file("cmdline", |line| contains(line, text.as_bytes()))
}

/// The living processes in a cgroup of this name, or below it.
pub(crate) fn in_cgroup(name: &str) -> Vec<Pid> {
    let part = format!("/{name}/");
    by_proc_file("cgroup", |groups| contains(groups, part.as_bytes()))
}

/// The living processes in a container, including those with which the daemon starts others in it.
pub(crate) fn in_container(container: &str) -> Vec<Pid> {
    by_proc_file("cgroup", |groups| contains(groups, container.as_bytes()))
}

/// Whether a process is the first one of its container.
pub(crate) fn is_first_in_its_container(process: Pid) -> bool {
    let status = fs::read_to_string(proc_folder(process).join("status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.and_then(|numbers| numbers.split_whitespace().last()) == Some("1")
}

/// The folder of a process in `/proc`.
pub(crate) fn proc_folder(process: Pid) -> PathBuf {
    Path::new("/proc").join(process.as_raw_nonzero().to_string())
}

/// The child processes of a process.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let line = format!("\nPPid:\t{}\n", parent.as_raw_nonzero());
    by_proc_file("status", |status| contains(status, line.as_bytes()))
}

/// The processes whose file of this name in `/proc` matches.
fn by_proc_file(file: &str, matches: impl Fn(&[u8]) -> bool) -> Vec<Pid> {
    let found = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let entry = entry.ok()?;
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let content = fs::read(entry.path().join(file)).ok()?;
        matches(&content).then_some(pid)
    });
    found.collect()
}

/// The engines of a deployment: those whose brain is in its folder.
pub(crate) fn engines_in(folder: &Path) -> Vec<Pid> {
    engines_in_folder(&folder.join("engines"))
}

/// The engines whose brain is below this folder.
pub(crate) fn engines_in_folder(folder: &Path) -> Vec<Pid> {
    let mut variable = OsStr::new("SQLITE_DB_PATH=").to_owned();
    variable.push(folder);
    with_environment_text(&variable)
}

/// Whether `bytes` contains `part`.
pub(crate) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Whether a process exists and has not exited. A zombie does not count as alive.
pub(crate) fn is_alive(pid: Pid) -> bool {
    pidfd_open(pid, PidfdFlags::empty()).is_ok_and(|process| !has_exited(&process, 0))
}

/// Sends a signal.
pub(crate) fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap();
}

/// Kills a process and waits for its end.
pub(crate) fn kill(pid: Pid) {
    // A process that cannot be opened is gone.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let _ = pidfd_send_signal(&process, Signal::KILL);
    assert!(has_exited(&process, 10), "process {pid:?} outlived SIGKILL");
}

/// Kills every process whose environment contains `text`, including processes that are just being started.
pub(crate) fn kill_all_mentioning(text: &OsStr) {
    loop {
        let found = with_environment_text(text);
        if found.is_empty() {
            return;
        }
        for pid in found {
            kill(pid);
        }
    }
}

/// Waits for the exit of a process; returns whether it came in time.
pub(crate) fn exits_within(pid: Pid, seconds: i64) -> bool {
    pidfd_open(pid, PidfdFlags::empty()).is_ok_and(|process| has_exited(&process, seconds))
}

fn has_exited(process: &OwnedFd, within_seconds: i64) -> bool {
    let timeout = Timespec { tv_sec: within_seconds, tv_nsec: 0 };
    let mut waited_for = [PollFd::new(process, PollFlags::IN)];
    // SIGCHLD interrupts the wait.
    retry_on_intr(|| poll(&mut waited_for, Some(&timeout))).is_ok_and(|ready| ready == 1)
}
