//! Servers that are programs: on the leash, spoken to over their standard input and output.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use leash::{Child, Command, Ended, Excess, Leash, Limits};
use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::line::Line;
use super::{ClientError, MAX_MESSAGE};
use crate::assets::access::Access;
use crate::catalog::{Auth, KeyPlace, ServerSpec, Transport as Kind};

/// How long a program whose input has ended may take to end, before it is ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long the end of a program whose input or output has ended is waited for.
const END: Duration = Duration::from_millis(500);
/// How much of what a program writes to its standard error the log takes, in bytes, and of one line.
const MAX_LOGGED: usize = 64 * 1024;
const MAX_LINE: usize = 1024;

/// A program that is a server.
pub(super) struct Stdio {
    inner: AsyncRwTransport<RoleClient, Bounded<ChildStdout>, ChildStdin>,
    child: Child,
    line: Arc<Line>,
    /// Set when it takes nothing more, and when it is given up for that.
    deaf: CancellationToken,
    given_up: Option<Instant>,
    _log: AbortOnDropHandle<()>,
}

impl Stdio {
    /// Starts the program of a server.
    pub(super) async fn start(
        leash: Option<&Leash>,
        spec: &ServerSpec,
        access: &Access,
        line: &Arc<Line>,
    ) -> Result<Self, ClientError> {
        let failed = |reason: String| ClientError::Failed(reason);
        let Kind::Stdio { command, env, network } = &spec.transport else {
            return Err(failed("it is no program".into()));
        };
        let leash = leash.ok_or_else(|| failed("programs are not run here".into()))?;
        let mut env: Vec<_> =
            env.iter().map(|(name, value)| (name.into(), value.expose().to_owned().into())).collect();
        if let (Auth::ApiKey(KeyPlace::Variable(name)), Access::Key(key)) = (&spec.auth, access) {
            env.push((name.into(), key.expose_secret().into()));
        }
        let command = Command {
            argv: command.iter().map(|part| part.expose().to_owned().into()).collect(),
            folder: ".".into(),
            env,
            network: *network,
            limits: Limits { time: None, ..Limits::default() },
        };
        let mut child = leash.start(command).await.map_err(|error| failed(error.to_string()))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("it cannot be spoken to".into()));
        };
        let stdout = Bounded { inner: stdout, since_newline: 0, line: Arc::clone(line) };
        let inner = AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(2 * MAX_MESSAGE);
        let log = tokio::spawn(log(spec.name.clone(), stderr));
        let (line, deaf) = (Arc::clone(line), CancellationToken::new());
        Ok(Self { inner, child, line, deaf, given_up: None, _log: AbortOnDropHandle::new(log) })
    }
}

impl Transport<RoleClient> for Stdio {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (send, deaf) = (self.inner.send(item), self.deaf.clone());
        async move {
            let result = send.await;
            if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                // Most likely it has ended. How, its output's end tells.
                deaf.cancel();
                return Ok(());
            }
            result
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let given_up = async {
            self.deaf.cancelled().await;
            tokio::time::sleep_until(*self.given_up.get_or_insert_with(|| Instant::now() + END)).await;
        };
        let message = tokio::select! {
            biased;
            () = given_up => None,
            message = self.inner.receive() => message,
        };
        if message.is_none() {
            let ended = tokio::time::timeout(END, self.child.wait()).await;
            self.line.end(match ended {
                Ok(Ok(ended)) => format!("the server ended ({})", how(ended)),
                Ok(Err(error)) => format!("the server ended: {error}"),
                Err(_) if self.deaf.is_cancelled() => "the server closed its input".to_owned(),
                Err(_) => "the server closed its output".to_owned(),
            });
        }
        message
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        let last_words = async {
            // Its input ends by this, which asks it to end. One that does not read it could hold that up for ever.
            let _ = self.inner.close().await;
            self.child.wait().await
        };
        // The leash ends what is left, once this is dropped.
        let _ = tokio::time::timeout(LAST_WORDS, last_words).await;
        Ok(())
    }
}

fn how(ended: Ended) -> String {
    match ended {
        Ended::Exited(code) => format!("exit code {code}"),
        Ended::Signalled(signal) => format!("signal {signal}"),
        Ended::OverLimit(Excess::Time) => "it took too much time".into(),
        Ended::OverLimit(Excess::Memory) => "it took too much memory".into(),
        Ended::OverLimit(Excess::Processes) => "it took too many processes".into(),
        Ended::OverLimit(Excess::Disk) => "it left too little room on the disk".into(),
    }
}

/// Reads what a program says, and ends the line when a single message is too long.
struct Bounded<R> {
    inner: R,
    since_newline: usize,
    line: Arc<Line>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Bounded<R> {
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
        if self.since_newline > MAX_MESSAGE {
            let reason = format!("it sent a message of over {} MiB", MAX_MESSAGE >> 20);
            self.line.end(reason.clone());
            return Poll::Ready(Err(io::Error::other(reason)));
        }
        Poll::Ready(Ok(()))
    }
}

/// Drains what a program writes to its standard error; its beginning goes to the log.
async fn log(server: String, mut stderr: ChildStderr) {
    let mut buffer = vec![0; 4096];
    let (mut line, mut logged) = (Vec::new(), 0);
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        for byte in buffer.iter().take(count) {
            if *byte != b'\n' && line.len() < MAX_LINE {
                line.push(*byte);
                continue;
            }
            if logged < MAX_LOGGED {
                tracing::debug!(server, stderr = %String::from_utf8_lossy(&line), "A tool server says.");
            }
            logged += line.len() + 1;
            line.clear();
        }
    }
}

#[cfg(test)]
#[path = "stdio_tests.rs"]
mod tests;
