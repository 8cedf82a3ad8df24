//! Servers that are programs: they run in the sandbox and communicate over standard input and output.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use catalog::{ApiKeyLocation, Auth, McpServerSpec, Transport as Kind};
use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use sandbox::{Child, Command, ExceededLimit, ExitStatus, Limits, Sandbox};
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::transport_guard::TransportState;
use super::{ClientError, MAX_MESSAGE_BYTES};
use crate::request_auth::RequestAuth;

/// How long a program may take to exit after its input is closed, before it is killed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for the exit of a program whose input or output has been closed.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// How much of a program's standard error is logged, in bytes, and of one line.
const MAX_LOGGED_BYTES: usize = 64 * 1024;
const MAX_LOG_LINE_BYTES: usize = 1024;

/// The transport to a server that is a program.
pub(super) struct StdioTransport {
    inner: AsyncRwTransport<RoleClient, BoundedReader<ChildStdout>, ChildStdin>,
    child: Child,
    transport_state: Arc<TransportState>,
    /// Cancelled when the program accepts no more input, and is given up for that.
    input_closed: CancellationToken,
    exit_deadline: Option<Instant>,
    _log: AbortOnDropHandle<()>,
}

impl StdioTransport {
    /// Starts the program of a server.
    pub(super) async fn start(
        sandbox: Option<&Sandbox>,
        spec: &McpServerSpec,
        access: &RequestAuth,
        transport_state: &Arc<TransportState>,
    ) -> Result<Self, ClientError> {
        let failed = |reason: String| ClientError::Failed(reason);
        let Kind::Stdio { command, env, network } = &spec.transport else {
            return Err(failed("it is not a program".into()));
        };
        let sandbox = sandbox.ok_or_else(|| failed("this engine runs no programs".into()))?;
        let mut env: Vec<_> =
            env.iter().map(|(name, value)| (name.into(), value.expose().to_owned().into())).collect();
        if let (Auth::ApiKey(ApiKeyLocation::EnvVar(name)), RequestAuth::ApiKey(key)) = (&spec.auth, access) {
            env.push((name.into(), key.expose_secret().into()));
        }
        let command = Command {
            argv: command.iter().map(|part| part.expose().to_owned().into()).collect(),
            folder: ".".into(),
            env,
            network: *network,
            limits: Limits { time: None, ..Limits::default() },
        };
        let mut child = sandbox.start(command).await.map_err(|error| failed(error.to_string()))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("its standard streams are missing".into()));
        };
        let stdout =
            BoundedReader { inner: stdout, since_newline: 0, transport_state: Arc::clone(transport_state) };
        let inner = AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(2 * MAX_MESSAGE_BYTES);
        let log = tokio::spawn(log_stderr(spec.name.clone(), stderr));
        let (transport_state, input_closed) = (Arc::clone(transport_state), CancellationToken::new());
        Ok(Self {
            inner,
            child,
            transport_state,
            input_closed,
            exit_deadline: None,
            _log: AbortOnDropHandle::new(log),
        })
    }
}

impl Transport<RoleClient> for StdioTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (send, input_closed) = (self.inner.send(item), self.input_closed.clone());
        async move {
            let result = send.await;
            if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                // It has most likely exited; the end of its output gives the reason.
                input_closed.cancel();
                return Ok(());
            }
            result
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let exit_timeout = async {
            self.input_closed.cancelled().await;
            tokio::time::sleep_until(
                *self.exit_deadline.get_or_insert_with(|| Instant::now() + EXIT_TIMEOUT),
            )
            .await;
        };
        let message = tokio::select! {
            biased;
            () = exit_timeout => None,
            message = self.inner.receive() => message,
        };
        if message.is_none() {
            let ended = tokio::time::timeout(EXIT_TIMEOUT, self.child.wait()).await;
            self.transport_state.end(match ended {
                Ok(Ok(ended)) => format!("the server ended ({})", describe_exit(ended)),
                Ok(Err(error)) => format!("the server ended: {error}"),
                Err(_) if self.input_closed.is_cancelled() => "the server closed its input".to_owned(),
                Err(_) => "the server closed its output".to_owned(),
            });
        }
        message
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        let exit = async {
            // Closing the input asks the program to exit. One that does not read could block that forever.
            let _ = self.inner.close().await;
            self.child.wait().await
        };
        // The sandbox kills what is left, once this is dropped.
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, exit).await;
        Ok(())
    }
}

fn describe_exit(ended: ExitStatus) -> String {
    match ended {
        ExitStatus::Exited(code) => format!("exit code {code}"),
        ExitStatus::Signalled(signal) => format!("signal {signal}"),
        ExitStatus::OverLimit(ExceededLimit::Time) => "it exceeded its time limit".into(),
        ExitStatus::OverLimit(ExceededLimit::Memory) => "it exceeded its memory limit".into(),
        ExitStatus::OverLimit(ExceededLimit::Processes) => "it started too many processes".into(),
        ExitStatus::OverLimit(ExceededLimit::Disk) => "it left too little disk space".into(),
    }
}

/// Reads a program's output, and ends the transport if a single message is too long.
struct BoundedReader<R> {
    inner: R,
    since_newline: usize,
    transport_state: Arc<TransportState>,
}

impl<R: AsyncRead + Unpin> AsyncRead for BoundedReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        self.since_newline = match read.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => read.len() - at - 1,
            None => self.since_newline + read.len(),
        };
        if self.since_newline > MAX_MESSAGE_BYTES {
            let reason = format!("it sent a message of over {} MiB", MAX_MESSAGE_BYTES >> 20);
            self.transport_state.end(reason.clone());
            return Poll::Ready(Err(io::Error::other(reason)));
        }
        Poll::Ready(Ok(()))
    }
}

/// Drains a program's standard error; the beginning is logged.
async fn log_stderr(server: String, mut stderr: ChildStderr) {
    let mut buffer = vec![0; 4096];
    let (mut line, mut logged) = (Vec::new(), 0);
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        for byte in buffer.iter().take(count) {
            if *byte != b'\n' && line.len() < MAX_LOG_LINE_BYTES {
                line.push(*byte);
                continue;
            }
            if logged < MAX_LOGGED_BYTES {
                tracing::debug!(server, stderr = %String::from_utf8_lossy(&line), "A tool server wrote to standard error.");
            }
            logged += line.len() + 1;
            line.clear();
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/clients/stdio.rs"]
mod tests;
