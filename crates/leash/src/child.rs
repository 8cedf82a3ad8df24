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

use crate::wire::{self, Answer, Job, LENGTH, Order, Reached};
use crate::{Ended, Helper, LeashError};

/// How long a helper may take until the program runs.
const START: Duration = Duration::from_secs(20);

/// How long a helper that was let go of may take to end everything, before it is ended itself.
const END: Duration = Duration::from_secs(30);

/// A program that runs. Dropped, it ends with all its descendants.
#[derive(Debug)]
pub struct Child {
    /// Its standard input. Dropped, it has ended.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, which must be read or it stalls.
    pub stdout: Option<ChildStdout>,
    /// Its standard error, likewise.
    pub stderr: Option<ChildStderr>,
    helper: Held,
    ended: Option<Ended>,
}

impl Child {
    /// Starts a helper, and has it start the program.
    pub(crate) async fn start(
        helper: &Helper,
        job: &Job,
        going: &Arc<Going>,
    ) -> Result<(Self, Reached), LeashError> {
        let broken = |error: io::Error| LeashError::Helper(error.to_string());
        let (theirs, [stdin, stdout, stderr]) = pipes().map_err(broken)?;
        let mut helper = Held::start(helper, going).map_err(broken)?;
        let order = wire::encode(&Order::Hold(job.clone())).map_err(broken)?;
        let answer = async {
            helper.order(&order, &theirs).await?;
            drop(theirs);
            helper.answer().await
        };
        let answer = tokio::time::timeout(START, answer)
            .await
            .map_err(|_| LeashError::Helper("the helper does not answer".into()))?
            .map_err(|error| LeashError::Helper(format!("the helper has gone: {error}")))?;
        let reached = match answer {
            Answer::Running(reached) => reached,
            Answer::NoProgram(reason) => {
                let program =
                    job.argv.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                return Err(LeashError::Program { program, reason });
            }
            Answer::Failed(reason) => return Err(LeashError::Helper(reason)),
            Answer::Confined(_) | Answer::Ended(_) => {
                return Err(LeashError::Helper("the helper answers out of turn".into()));
            }
        };
        let child = Self {
            stdin: Some(ChildStdin::from_std(std::process::ChildStdin::from(stdin)).map_err(broken)?),
            stdout: Some(ChildStdout::from_std(std::process::ChildStdout::from(stdout)).map_err(broken)?),
            stderr: Some(ChildStderr::from_std(std::process::ChildStderr::from(stderr)).map_err(broken)?),
            helper,
            ended: None,
        };
        Ok((child, reached))
    }

    /// Waits until it has ended, with all its descendants. It may be dropped and called again.
    ///
    /// # Errors
    /// The helper failed.
    pub async fn wait(&mut self) -> Result<Ended, LeashError> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        match self.helper.answer().await {
            Ok(Answer::Ended(ended)) => {
                self.ended = Some(ended);
                Ok(ended)
            }
            Ok(Answer::Failed(reason) | Answer::NoProgram(reason)) => Err(LeashError::Helper(reason)),
            Ok(_) => Err(LeashError::Helper("the helper answers out of turn".into())),
            Err(error) => Err(LeashError::Helper(format!("the helper has gone: {error}"))),
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
struct Held {
    /// The life line. Closed, the helper ends what it holds.
    socket: UnixStream,
    /// What came over it and is no whole message yet.
    heard: Vec<u8>,
    life: Arc<Life>,
}

impl Held {
    /// Starts a helper. A task of its own waits for its end, so that nothing is left of it either.
    fn start(helper: &Helper, going: &Arc<Going>) -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut process = tokio::process::Command::new(&helper.program)
            .args(&helper.args)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let life = Arc::new(Life { phase: watch::Sender::new(Phase::Held), going: Arc::clone(going) });
        let held = Self { socket: UnixStream::from_std(ours)?, heard: Vec::new(), life: Arc::clone(&life) };
        tokio::spawn(async move {
            let mut phases = life.phase.subscribe();
            let let_go = async move {
                // Its sender lives as long as this task.
                let _ = phases.wait_for(|phase| *phase == Phase::LetGo).await;
                tokio::time::sleep(END).await;
            };
            tokio::select! {
                _ = process.wait() => {}
                () = let_go => {
                    tracing::warn!("a program's helper does not end and is killed");
                    // It may have ended this very moment.
                    let _ = process.kill().await;
                }
            }
            life.over();
        });
        Ok(held)
    }

    /// Tells the helper what to run.
    async fn order(&mut self, order: &[u8], [stdin, stdout, stderr]: &[OwnedFd; 3]) -> io::Result<()> {
        let (length, rest) = order.split_at(LENGTH.min(order.len()));
        self.socket.writable().await?;
        wire::send_pipes(self.socket.as_fd(), length, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
        self.socket.write_all(rest).await
    }

    /// The helper's next answer. It may be dropped and called again.
    async fn answer(&mut self) -> io::Result<Answer> {
        loop {
            if let Some((answer, length)) = wire::decode(&self.heard)? {
                self.heard.drain(..length);
                return Ok(answer);
            }
            if self.socket.read_buf(&mut self.heard).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.life.let_go();
    }
}

/// Where a helper is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    LetGo,
    Over,
}

/// A helper's life, known to who holds it and to who waits for its end.
#[derive(Debug)]
struct Life {
    phase: watch::Sender<Phase>,
    going: Arc<Going>,
}

impl Life {
    fn let_go(&self) {
        self.phase.send_if_modified(|phase| {
            if *phase != Phase::Held {
                return false;
            }
            *phase = Phase::LetGo;
            self.going.add(1);
            true
        });
    }

    fn over(&self) {
        self.phase.send_if_modified(|phase| {
            if *phase == Phase::LetGo {
                self.going.add(-1);
            }
            *phase = Phase::Over;
            true
        });
    }
}

/// How many helpers were let go of and are not gone yet.
#[derive(Debug, Default)]
pub(crate) struct Going {
    count: watch::Sender<isize>,
}

impl Going {
    fn add(&self, change: isize) {
        self.count.send_modify(|count| *count += change);
    }

    /// Waits until there are none.
    pub(crate) async fn gone(&self) {
        // Its sender lives as long as this.
        let _ = self.count.subscribe().wait_for(|count| *count <= 0).await;
    }
}
