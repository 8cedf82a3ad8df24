//! A measured child process: its start, memory, processor time and exit.
//!
//! Waiting blocks the thread and polls in short pauses, because the measured times are a few milliseconds and the
//! runtime's timers have a resolution of one.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

/// The time between two polls.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// The time within which a process must exit after SIGTERM.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How much of a failed process's log is shown, in bytes.
const LOG_TAIL_BYTES: usize = 2_000;
/// `USER_HZ`, the unit of the kernel's processor times: 100 on every supported architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// A running child. Dropped, it gets SIGTERM, and is killed if it does not exit.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

/// Mapped memory of a process. A page that several processes map is divided among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Memory {
    /// The total. Most of it is code, which the kernel maps in larger pieces than requested.
    pub(crate) pss_mib: f64,
    /// Memory without a file behind it: heap, stacks, modified data.
    pub(crate) anonymous_mib: f64,
    /// What no other process maps: what one more of them costs.
    pub(crate) private_mib: f64,
}

/// Returns a port of the loopback interface that was free at the time of the call.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

impl Process {
    /// Starts `command`. Its output goes to the file `log`, whose end is shown if the process fails.
    pub(crate) fn spawn(mut command: Command, name: &str, log: PathBuf) -> anyhow::Result<Self> {
        let file = File::create(&log).with_context(|| format!("{} cannot be written", log.display()))?;
        let errors = file.try_clone().context("the log file's descriptor cannot be duplicated")?;
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child = command.spawn().with_context(|| format!("{name} could not be started"))?;
        Ok(Self { child, name: name.to_owned(), log })
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process's name in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the end of the process's output.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let tail = log.get(log.len().saturating_sub(LOG_TAIL_BYTES)..).unwrap_or_default();
        String::from_utf8_lossy(tail).trim().to_owned()
    }

    /// Fails if the process has exited.
    pub(crate) fn ensure_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("a child cannot be waited for")? {
            None => Ok(()),
            Some(status) => {
                bail!("{} ended by itself ({status}). Its output:\n{}", self.name, self.log_tail())
            }
        }
    }

    /// Sends SIGTERM and returns the time until the process had exited.
    ///
    /// # Errors
    /// The process did not exit within [`STOP_TIMEOUT`], or its exit status is not 0.
    pub(crate) fn stop(&mut self) -> anyhow::Result<Duration> {
        self.stop_within(STOP_TIMEOUT)
    }

    /// As [`Process::stop`], with another timeout.
    pub(crate) fn stop_within(&mut self, at_most: Duration) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.terminate()?;
        match self.wait(at_most)? {
            Some(status) if status.success() => Ok(began.elapsed()),
            Some(status) => bail!("{} ended with {status}. Its output:\n{}", self.name, self.log_tail()),
            None => bail!("{} did not end within {} s of SIGTERM", self.name, at_most.as_secs()),
        }
    }

    /// Kills the process, as in a crash.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.ensure_running()?;
        self.child.kill().with_context(|| format!("{} cannot be killed", self.name))?;
        self.child.wait().context("a child cannot be waited for").map(drop)
    }

    /// Returns the process's share of the memory that it maps.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        let path = format!("/proc/{}/smaps_rollup", self.pid());
        let text = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
        Memory::parse(&text).with_context(|| format!("{path} has an unknown format"))
    }

    /// Returns the processor time of all the process's threads.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Duration> {
        let path = format!("/proc/{}/stat", self.pid());
        let text = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
        let ticks = cpu_ticks(&text).with_context(|| format!("{path} has an unknown format"))?;
        Ok(Duration::from_secs_f64(f64::from(ticks) / TICKS_PER_SECOND))
    }

    fn terminate(&self) -> anyhow::Result<()> {
        let pid =
            i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("a process id is out of range")?;
        kill_process(pid, Signal::TERM).with_context(|| format!("{} cannot be signalled", self.name))
    }

    fn wait(&mut self, at_most: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + at_most;
        loop {
            if let Some(status) = self.child.try_wait().context("a child cannot be waited for")? {
                return Ok(Some(status));
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            thread::park_timeout(POLL_INTERVAL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors are ignored: nothing can be done about them here. Usually the child has already exited.
        if matches!(self.child.try_wait(), Ok(None)) {
            let stopped = self.terminate().and_then(|()| self.wait(STOP_TIMEOUT));
            if !matches!(stopped, Ok(Some(_))) {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}

impl Memory {
    /// Parses `smaps_rollup` as described in `proc_pid_smaps(5)`.
    fn parse(smaps_rollup: &str) -> Option<Self> {
        let mib = |name: &str| {
            let line = smaps_rollup.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u32 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(f64::from(kib) / 1_024.0)
        };
        Some(Self {
            pss_mib: mib("Pss:")?,
            anonymous_mib: mib("Pss_Anon:")?,
            private_mib: mib("Private_Clean:")? + mib("Private_Dirty:")?,
        })
    }
}

/// Returns `utime` plus `stime` as described in `proc_pid_stat(5)`. The name before them may contain any
/// character.
fn cpu_ticks(stat: &str) -> Option<u32> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let utime: u32 = fields.next()?.parse().ok()?;
    let stime: u32 = fields.next()?.parse().ok()?;
    Some(utime + stime)
}

/// Returns the log file of the process `name` in `folder`.
pub(crate) fn log_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (Process, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        (Process::spawn(command, "a shell", log_file(folder.path(), "shell")).unwrap(), folder)
    }

    #[test]
    fn a_child_that_ends_by_itself_is_an_error_with_its_words() {
        let (mut process, _folder) = shell("echo 'no such port' >&2; exit 3");
        process.wait(STOP_TIMEOUT).unwrap();
        let error = process.ensure_running().unwrap_err().to_string();
        assert!(
            error.contains("a shell") && error.contains("no such port") && error.contains('3'),
            "{error}"
        );
    }

    #[test]
    fn a_clean_end_is_timed_and_another_is_an_error() {
        let ready = |process: &Process| {
            while !process.log_tail().contains("ready") {
                thread::park_timeout(POLL_INTERVAL);
            }
        };
        let (mut clean, _folder) = shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        ready(&clean);
        assert!(clean.stop().unwrap() < STOP_TIMEOUT);
        let (mut dirty, _folder) = shell("trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done");
        ready(&dirty);
        assert!(dirty.stop().unwrap_err().to_string().contains('9'));
    }

    #[test]
    fn memory_and_time_are_read_as_the_manual_pages_say() {
        let rollup = "7f00-7fff ---p [rollup]\nRss:   9000 kB\nPss:    5120 kB\nPss_Anon:    512 kB\n\
                      Private_Clean:   1024 kB\nPrivate_Dirty:    256 kB\n";
        let memory = Memory { pss_mib: 5.0, anonymous_mib: 0.5, private_mib: 1.25 };
        assert_eq!(Memory::parse(rollup), Some(memory));
        assert_eq!(Memory::parse("Rss: 1 kB"), None);
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 100 0 0 0 17 5 0 0 20 0 3 0 100 1 1";
        assert_eq!(cpu_ticks(stat), Some(22));
        let (process, _folder) = shell("sleep 5");
        assert!(process.memory().unwrap().pss_mib > 0.0);
        assert!(process.cpu_time().unwrap() < Duration::from_secs(1));
    }
}
