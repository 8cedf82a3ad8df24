//! The engine's end: a helper started, told what to run, heard, and let go of.

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

/// How long a helper may take until the program runs.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a helper that was let go of may take to end everything, before it is ended itself.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// A program that runs. Dropped, it ends with all its descendants.
#[derive(Debug)]
pub struct Child {
    /// Its standard input. Dropped, it has ended.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, which must be read or it stalls.
    pub stdout: Option<ChildStdout>,
    /// Its standard error, likewise.
    pub stderr: Option<ChildStderr>,
    helper: HelperProcess,
    exit_status: Option<ExitStatus>,
}

impl Child {
    /// Starts a helper, and has it start the program.
    pub(crate) async fn start(
        helper: &HelperCommand,
        job: &ProgramSpec,
        going: &Arc<PendingTeardowns>,
    ) -> Result<(Self, AppliedIsolation), SandboxError> {
        let broken = |error: io::Error| SandboxError::Helper(error.to_string());
        let (theirs, [stdin, stdout, stderr]) = pipes().map_err(broken)?;
        let mut helper = HelperProcess::spawn(helper, going).map_err(broken)?;
        let order = protocol::encode(&HelperRequest::Hold(job.clone())).map_err(broken)?;
        let answer = async {
            helper.send_request(&order, &theirs).await?;
            drop(theirs);
            helper.next_response().await
        };
        let answer = tokio::time::timeout(START_TIMEOUT, answer)
            .await
            .map_err(|_| SandboxError::Helper("the helper does not answer".into()))?
            .map_err(|error| SandboxError::Helper(format!("the helper has gone: {error}")))?;
        let reached = match answer {
            HelperResponse::Running(reached) => reached,
            HelperResponse::NoProgram(reason) => {
                let program =
                    job.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                return Err(SandboxError::Program { program, reason });
            }
            HelperResponse::Failed(reason) => return Err(SandboxError::Helper(reason)),
            HelperResponse::Confined(_) | HelperResponse::Ended(_) => {
                return Err(SandboxError::Helper("the helper answers out of turn".into()));
            }
        };
        let child = Self {
            stdin: Some(ChildStdin::from_std(std::process::ChildStdin::from(stdin)).map_err(broken)?),
            stdout: Some(ChildStdout::from_std(std::process::ChildStdout::from(stdout)).map_err(broken)?),
            stderr: Some(ChildStderr::from_std(std::process::ChildStderr::from(stderr)).map_err(broken)?),
            helper,
            exit_status: None,
        };
        Ok((child, reached))
    }

    /// Waits until it has ended, with all its descendants. It may be dropped and called again.
    ///
    /// # Errors
    /// The helper failed.
    pub async fn wait(&mut self) -> Result<ExitStatus, SandboxError> {
        if let Some(ended) = self.exit_status {
            return Ok(ended);
        }
        match self.helper.next_response().await {
            Ok(HelperResponse::Ended(ended)) => {
                self.exit_status = Some(ended);
                Ok(ended)
            }
            Ok(HelperResponse::Failed(reason) | HelperResponse::NoProgram(reason)) => {
                Err(SandboxError::Helper(reason))
            }
            Ok(_) => Err(SandboxError::Helper("the helper answers out of turn".into())),
            Err(error) => Err(SandboxError::Helper(format!("the helper has gone: {error}"))),
        }
    }
}

/// The three pipes of a program: its ends, and ours.
fn pipes() -> io::Result<([OwnedFd; 3], [OwnedFd; 3])> {
    let (stdin, our_stdin): (PipeReader, PipeWriter) = io::pipe()?;
    let (our_stdout, stdout) = io::pipe()?;
    let (our_stderr, stderr) = io::pipe()?;
    Ok((
        [stdin.into(), stdout.into(), stderr.into()],
        [our_stdin.into(), our_stdout.into(), our_stderr.into()],
    ))
}

/// A helper that holds a program as long as this is held.
#[derive(Debug)]
struct HelperProcess {
    /// The life line. Closed, the helper ends what it holds.
    socket: UnixStream,
    /// What came over it and is no whole message yet.
    read_buffer: Vec<u8>,
    state: Arc<HelperState>,
}

impl HelperProcess {
    /// Starts a helper. A task of its own waits for its end, so that nothing is left of it either.
    fn spawn(helper: &HelperCommand, going: &Arc<PendingTeardowns>) -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut process = tokio::process::Command::new(&helper.program)
            .args(&helper.args)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let life = Arc::new(HelperState {
            phase: watch::Sender::new(Phase::Running),
            pending_teardowns: Arc::clone(going),
        });
        let held =
            Self { socket: UnixStream::from_std(ours)?, read_buffer: Vec::new(), state: Arc::clone(&life) };
        tokio::spawn(async move {
            let mut phases = life.phase.subscribe();
            let let_go = async move {
                // Its sender lives as long as this task.
                let _ = phases.wait_for(|phase| *phase == Phase::Released).await;
                tokio::time::sleep(TEARDOWN_TIMEOUT).await;
            };
            tokio::select! {
                _ = process.wait() => {}
                () = let_go => {
                    tracing::warn!("a program's helper does not end and is killed");
                    // It may have ended this very moment.
                    let _ = process.kill().await;
                }
            }
            life.mark_exited();
        });
        Ok(held)
    }

    /// Tells the helper what to run.
    async fn send_request(&mut self, order: &[u8], [stdin, stdout, stderr]: &[OwnedFd; 3]) -> io::Result<()> {
        let (length, rest) = order.split_at(LENGTH_PREFIX_BYTES.min(order.len()));
        self.socket.writable().await?;
        protocol::send_pipes(self.socket.as_fd(), length, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
        self.socket.write_all(rest).await
    }

    /// The helper's next answer. It may be dropped and called again.
    async fn next_response(&mut self) -> io::Result<HelperResponse> {
        loop {
            if let Some((answer, length)) = protocol::decode(&self.read_buffer)? {
                self.read_buffer.drain(..length);
                return Ok(answer);
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

/// Where a helper is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Released,
    Exited,
}

/// A helper's life, known to who holds it and to who waits for its end.
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

/// How many helpers were let go of and are not gone yet.
#[derive(Debug, Default)]
pub(crate) struct PendingTeardowns {
    count: watch::Sender<isize>,
}

impl PendingTeardowns {
    fn add(&self, change: isize) {
        self.count.send_modify(|count| *count += change);
    }

    /// Waits until there are none.
    pub(crate) async fn drained(&self) {
        // Its sender lives as long as this.
        let _ = self.count.subscribe().wait_for(|count| *count <= 0).await;
    }
}
