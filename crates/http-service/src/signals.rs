//! The signals that request the shutdown of a process.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The signal that requested the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownSignal {
    /// SIGINT: Ctrl-C at a terminal.
    Interrupt,
    /// SIGTERM: a process supervisor.
    Terminate,
    /// SIGHUP: the terminal went away.
    Hangup,
}

/// A listener for SIGINT, SIGTERM and SIGHUP. It listens from its creation on, so that no signal is missed before
/// [`ShutdownSignals::recv`] is awaited.
pub struct ShutdownSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl ShutdownSignals {
    /// Starts listening.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a shutdown signal.
    pub async fn recv(&mut self) -> ShutdownSignal {
        tokio::select! {
            _ = self.interrupt.recv() => ShutdownSignal::Interrupt,
            _ = self.terminate.recv() => ShutdownSignal::Terminate,
            _ = self.hangup.recv() => ShutdownSignal::Hangup,
        }
    }

    /// Runs `serving` until a shutdown signal arrives; then cancels `shutdown` and waits for `serving` to finish.
    pub async fn run_until_shutdown<T>(
        &mut self,
        serving: impl Future<Output = T>,
        shutdown: &CancellationToken,
    ) -> T {
        tokio::pin!(serving);
        let received = tokio::select! {
            result = &mut serving => return result,
            received = self.recv() => received,
        };
        tracing::info!(signal = ?received, "A shutdown signal was received.");
        shutdown.cancel();
        serving.await
    }
}
