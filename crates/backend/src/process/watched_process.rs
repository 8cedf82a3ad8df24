//! A process held by its pidfd, so that it can be watched and signalled without ever affecting another process.

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Child;

use super::identity::ProcessIdentity;
use crate::Instance;

/// An engine's process that this orchestrator watches.
pub(super) struct WatchedProcess {
    identity: ProcessIdentity,
    generation: i64,
    pidfd: AsyncFd<OwnedFd>,
    /// The process as this orchestrator's child, which must be reaped; `None` if another orchestrator started it.
    child: Mutex<Option<Child>>,
}

impl WatchedProcess {
    /// Watches a process that this orchestrator has just spawned. It may have exited already.
    pub(super) fn from_child(mut child: Child, generation: i64) -> io::Result<Self> {
        match open_child(&child) {
            Ok((identity, pidfd)) => Ok(Self { identity, generation, pidfd, child: Mutex::new(Some(child)) }),
            Err(error) => {
                // A process that cannot be watched must not run.
                child.start_kill()?;
                Err(error)
            }
        }
    }

    /// Watches a process that was found running; returns `None` if it has exited meanwhile.
    pub(super) fn adopt(identity: ProcessIdentity, generation: i64) -> io::Result<Option<Self>> {
        let pidfd = match open_pidfd(identity.pid) {
            Ok(pidfd) => pidfd,
            Err(error) if super::identity::is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Compared after the pidfd was opened: if the pid still has this identity, so has the pidfd.
        let is_same = ProcessIdentity::of_running(identity.pid)?.as_ref() == Some(&identity);
        Ok(is_same.then(|| Self { identity, generation, pidfd, child: Mutex::new(None) }))
    }

    pub(super) fn instance(&self) -> Instance {
        self.identity.instance()
    }

    pub(super) const fn pid(&self) -> i32 {
        self.identity.pid
    }

    /// Returns the generation of the engine's row for which the process was launched.
    pub(super) const fn generation(&self) -> i64 {
        self.generation
    }

    /// Sends `signal`. Does nothing if the process has exited.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(self.pidfd.get_ref(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the process has exited. A zombie counts as exited.
    pub(super) async fn exited(&self) {
        // A pidfd becomes readable when its process exits. The runtime fails to watch it only while the
        // runtime shuts down.
        let _ = self.pidfd.ready(Interest::READABLE).await;
    }

    /// Waits until the process has exited, and reaps it if it is a child. Returns its exit status as text if
    /// known.
    pub(super) async fn wait(&self) -> Option<String> {
        self.exited().await;
        let child = self.child.lock().take();
        let status: Option<ExitStatus> = child?.wait().await.ok();
        status.map(|status| status.to_string())
    }
}

fn open_child(child: &Child) -> io::Result<(ProcessIdentity, AsyncFd<OwnedFd>)> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.ok_or_else(|| io::Error::other("the child has no pid"))?;
    // The pid is not reused until the child is reaped, so there is no identity to compare.
    Ok((ProcessIdentity::of_child(pid)?, open_pidfd(pid)?))
}

#[expect(
    deprecated,
    reason = "the successor of `with_interest` is unsafe, because a descriptor might change while it is \
              registered; an `OwnedFd` that is never borrowed mutably does not"
)]
fn open_pidfd(pid: i32) -> io::Result<AsyncFd<OwnedFd>> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("0 is not the pid of an engine"))?;
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    AsyncFd::with_interest(pidfd, Interest::READABLE)
}
