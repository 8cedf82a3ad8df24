//! A process held by its pidfd: watched and signalled without ever meaning another one.

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::Mutex;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Child;

use super::identity::ProcessIdentity;
use crate::backend::Instance;

/// A process that is ours to watch.
pub(super) struct WatchedProcess {
    identity: ProcessIdentity,
    generation: i64,
    pidfd: AsyncFd<OwnedFd>,
    /// The process as our own child, which has to be reaped; none for one that an earlier orchestrator began.
    child: Mutex<Option<Child>>,
}

impl WatchedProcess {
    /// Takes hold of a process that this orchestrator has just begun. It may have ended already.
    pub(super) fn from_child(mut child: Child, generation: i64) -> io::Result<Self> {
        match open_child(&child) {
            Ok((identity, pidfd)) => Ok(Self { identity, generation, pidfd, child: Mutex::new(Some(child)) }),
            Err(error) => {
                // What cannot be watched must not run.
                child.start_kill()?;
                Err(error)
            }
        }
    }

    /// Takes hold of a process found running; none if it has ended meanwhile.
    pub(super) fn adopt(identity: ProcessIdentity, generation: i64) -> io::Result<Option<Self>> {
        let pidfd = match open_pidfd(identity.pid) {
            Ok(pidfd) => pidfd,
            Err(error) if super::identity::is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Compared after the pidfd is open: if the number still names it now, the pidfd is it.
        let still = ProcessIdentity::of_running(identity.pid)?.as_ref() == Some(&identity);
        Ok(still.then(|| Self { identity, generation, pidfd, child: Mutex::new(None) }))
    }

    pub(super) fn instance(&self) -> Instance {
        self.identity.instance()
    }

    pub(super) const fn pid(&self) -> i32 {
        self.identity.pid
    }

    /// The change of the engine's row that it was launched for.
    pub(super) const fn generation(&self) -> i64 {
        self.generation
    }

    /// Sends `signal`. To one that has ended, nothing is sent.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(self.pidfd.get_ref(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it has ended. A zombie has.
    pub(super) async fn exited(&self) {
        // A pidfd is readable from its process's end on. Should the runtime refuse to watch it, it is ending
        // itself.
        let _ = self.pidfd.ready(Interest::READABLE).await;
    }

    /// Waits until it has ended, reaps it if it is ours, and says how it ended if that can be known.
    pub(super) async fn wait(&self) -> Option<String> {
        self.exited().await;
        let child = self.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let status: Option<ExitStatus> = child?.wait().await.ok();
        status.map(|status| status.to_string())
    }
}

fn open_child(child: &Child) -> io::Result<(ProcessIdentity, AsyncFd<OwnedFd>)> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.ok_or_else(|| io::Error::other("the child has no pid"))?;
    // Until it is reaped nobody else gets its number, so no identity needs to be compared.
    Ok((ProcessIdentity::of_child(pid)?, open_pidfd(pid)?))
}

#[expect(
    deprecated,
    reason = "the successor of `with_interest` is unsafe, for the sake of descriptors that may change under \
              it; an `OwnedFd` that is never lent out mutably does not"
)]
fn open_pidfd(pid: i32) -> io::Result<AsyncFd<OwnedFd>> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("pid 0 is no engine"))?;
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    AsyncFd::with_interest(pidfd, Interest::READABLE)
}
