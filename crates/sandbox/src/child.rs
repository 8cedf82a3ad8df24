//! The caller's side of a sandboxed program: starts a helper, sends it the program, receives its responses, and
//! waits in the background for its exit.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::watch;

use crate::protocol::{
    self, AppliedIsolation, HelperRequest, HelperResponse, LENGTH_PREFIX_BYTES, ProgramSpec,
};
use crate::{ExitStatus, HelperCommand, SandboxError};

/// How long a helper may take to start the program.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a released helper may take to end all processes before it is killed.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// A running program. Dropping it ends the program with all its descendants; see
/// [`crate::Sandbox::wait_for_teardown`].
#[derive(Debug)]
pub struct Child {
    /// The write end of its standard input. Dropping it ends the input.
    pub stdin: Option<ChildStdin>,
    /// The read end of its standard output. The program blocks unless it is read.
    pub stdout: Option<ChildStdout>,
    /// The read end of its standard error. The program blocks unless it is read.
    pub stderr: Option<ChildStderr>,
    helper: HelperProcess,
    exit_status: Option<ExitStatus>,
}

impl Child {
    /// Starts a helper, and returns once the helper has started the program.
    pub(crate) async fn start(
        helper: &HelperCommand,
        spec: &ProgramSpec,
        pending_teardowns: &Arc<PendingTeardowns>,
    ) -> Result<(Self, AppliedIsolation), SandboxError> {
        let failed = |error: io::Error| SandboxError::Helper(error.to_string());
        let (program_ends, [stdin, stdout, stderr]) = pipes().map_err(failed)?;
        let mut helper = HelperProcess::spawn(helper, pending_teardowns).map_err(failed)?;
        let request = protocol::encode(&HelperRequest::Hold(spec.clone())).map_err(failed)?;
        let response = async {
            helper.send_request(&request, &program_ends).await?;
            drop(program_ends);
            helper.next_response().await
        };
        let response = tokio::time::timeout(START_TIMEOUT, response)
            .await
            .map_err(|_| SandboxError::Helper("the helper did not respond in time".into()))?
            .map_err(|error| SandboxError::Helper(format!("the helper exited: {error}")))?;
        let isolation = match response {
            HelperResponse::Running(isolation) => isolation,
            HelperResponse::NoProgram(reason) => {
                let program =
                    spec.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                return Err(SandboxError::Program { program, reason });
            }
            HelperResponse::Failed(reason) => return Err(SandboxError::Helper(reason)),
            HelperResponse::Confined(_) | HelperResponse::Ended(_) => {
                return Err(SandboxError::Helper("the helper sent an unexpected response".into()));
            }
        };
        let child = Self {
            stdin: Some(ChildStdin::from_std(std::process::ChildStdin::from(stdin)).map_err(failed)?),
            stdout: Some(ChildStdout::from_std(std::process::ChildStdout::from(stdout)).map_err(failed)?),
            stderr: Some(ChildStderr::from_std(std::process::ChildStderr::from(stderr)).map_err(failed)?),
            helper,
            exit_status: None,
        };
        Ok((child, isolation))
    }

    /// Waits until the program has ended with all its descendants. Cancel safe; further calls return the same
    /// status.
    ///
    /// # Errors
    /// [`SandboxError::Helper`] if the helper failed or was killed.
    pub async fn wait(&mut self) -> Result<ExitStatus, SandboxError> {
        if let Some(status) = self.exit_status {
            return Ok(status);
        }
        match self.helper.next_response().await {
            Ok(HelperResponse::Ended(status)) => {
                self.exit_status = Some(status);
                Ok(status)
            }
            Ok(HelperResponse::Failed(reason) | HelperResponse::NoProgram(reason)) => {
                Err(SandboxError::Helper(reason))
            }
            Ok(_) => Err(SandboxError::Helper("the helper sent an unexpected response".into())),
            Err(error) => Err(SandboxError::Helper(format!("the helper exited: {error}"))),
        }
    }
}

/// Creates the three pipes of a program. Returns the program's ends, then ours, each in the order of standard
/// input, output and error.
fn pipes() -> io::Result<([OwnedFd; 3], [OwnedFd; 3])> {
    let (stdin, our_stdin): (PipeReader, PipeWriter) = io::pipe()?;
    let (our_stdout, stdout) = io::pipe()?;
    let (our_stderr, stderr) = io::pipe()?;
    Ok((
        [stdin.into(), stdout.into(), stderr.into()],
        [our_stdin.into(), our_stdout.into(), our_stderr.into()],
    ))
}

/// A running helper. Dropping it makes the helper end its program and exit.
#[derive(Debug)]
struct HelperProcess {
    /// The connection to the helper, which ends its program when this end closes.
    socket: UnixStream,
    /// Received bytes that do not form a complete message yet.
    read_buffer: Vec<u8>,
    state: Arc<HelperState>,
}

impl HelperProcess {
    /// Starts a helper, and a task that reaps it.
    fn spawn(helper: &HelperCommand, pending_teardowns: &Arc<PendingTeardowns>) -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut process = tokio::process::Command::new(&helper.program)
            .args(&helper.args)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let state = Arc::new(HelperState {
            phase: watch::Sender::new(Phase::Running),
            pending_teardowns: Arc::clone(pending_teardowns),
        });
        let helper_process =
            Self { socket: UnixStream::from_std(ours)?, read_buffer: Vec::new(), state: Arc::clone(&state) };
        tokio::spawn(async move {
            let mut phases = state.phase.subscribe();
            let teardown_timeout = async move {
                // The sender is in `state`, so this cannot fail.
                let _ = phases.wait_for(|phase| *phase == Phase::Released).await;
                tokio::time::sleep(TEARDOWN_TIMEOUT).await;
            };
            tokio::select! {
                _ = process.wait() => {}
                () = teardown_timeout => {
                    tracing::warn!("A sandbox helper did not exit in time and is killed.");
                    // It may have exited in the meantime.
                    let _ = process.kill().await;
                }
            }
            state.mark_exited();
        });
        Ok(helper_process)
    }

    /// Sends an encoded request together with the program's ends of the pipes.
    async fn send_request(
        &mut self,
        request: &[u8],
        [stdin, stdout, stderr]: &[OwnedFd; 3],
    ) -> io::Result<()> {
        let (length, rest) = request.split_at(LENGTH_PREFIX_BYTES.min(request.len()));
        self.socket.writable().await?;
        protocol::send_pipes(self.socket.as_fd(), length, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
        self.socket.write_all(rest).await
    }

    /// Receives the helper's next response. Cancel safe.
    async fn next_response(&mut self) -> io::Result<HelperResponse> {
        loop {
            if let Some((response, length)) = protocol::decode(&self.read_buffer)? {
                self.read_buffer.drain(..length);
                return Ok(response);
            }
            if self.socket.read_buf(&mut self.read_buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        self.state.release();
    }
}

/// The phase of a helper's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Released,
    Exited,
}

/// The state of a helper, shared between its [`HelperProcess`] and the task that reaps it.
#[derive(Debug)]
struct HelperState {
    phase: watch::Sender<Phase>,
    pending_teardowns: Arc<PendingTeardowns>,
}

impl HelperState {
    fn release(&self) {
        self.phase.send_if_modified(|phase| {
            if *phase != Phase::Running {
                return false;
            }
            *phase = Phase::Released;
            self.pending_teardowns.add(1);
            true
        });
    }

    fn mark_exited(&self) {
        self.phase.send_if_modified(|phase| {
            if *phase == Phase::Released {
                self.pending_teardowns.add(-1);
            }
            *phase = Phase::Exited;
            true
        });
    }
}

/// The number of helpers that were released and have not exited yet.
#[derive(Debug, Default)]
pub(crate) struct PendingTeardowns {
    count: watch::Sender<isize>,
}

impl PendingTeardowns {
    fn add(&self, change: isize) {
        self.count.send_modify(|count| *count += change);
    }

    /// Waits until the number is zero.
    pub(crate) async fn drained(&self) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.count.subscribe().wait_for(|count| *count <= 0).await;
    }
}
