//! The signals that ask a process to end.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Which signal asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownSignal {
    /// SIGINT: Ctrl-C at a terminal.
    Interrupt,
    /// SIGTERM: a supervisor.
    Terminate,
    /// SIGHUP: the terminal went away.
    Hangup,
}

/// Listens for SIGINT, SIGTERM and SIGHUP from the moment it is made, so that none is missed before
/// [`ShutdownSignals::recv`] is awaited.
pub struct ShutdownSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl ShutdownSignals {
    /// Begins to listen.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits until this process is asked to end.
    pub async fn recv(&mut self) -> ShutdownSignal {
        tokio::select! {
            _ = self.interrupt.recv() => ShutdownSignal::Interrupt,
            _ = self.terminate.recv() => ShutdownSignal::Terminate,
            _ = self.hangup.recv() => ShutdownSignal::Hangup,
        }
    }

    /// Runs `serving` until this process is asked to end; then cancels `shutdown` and waits for `serving` to
    /// finish.
    pub async fn run_until_shutdown<T>(
        &mut self,
        serving: impl Future<Output = T>,
        shutdown: &CancellationToken,
    ) -> T {
        tokio::pin!(serving);
        let asked = tokio::select! {
            served = &mut serving => return served,
            asked = self.recv() => asked,
        };
        tracing::info!(?asked, "Asked to end.");
        shutdown.cancel();
        serving.await
    }
}
