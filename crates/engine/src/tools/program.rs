//! Programs that tools run on the leash: fed, drained and waited for at once, so that neither a program that never
//! reads nor one that never stops writing holds anything up.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use contract::CallId;
use leash::{Command, Ended, Excess, Leash, LeashError};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::ToolError;
use super::spill::{Outputs, Spool};

/// The longest time that a program may be given.
pub(super) const MAX_TIME: Duration = Duration::from_mins(10);
/// How long past its time a program may be at most, if the leash does not end it.
const GRACE: Duration = Duration::from_secs(3);
/// How long what a program has written may take to come once it has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// How much a program may write before it is taken for one that never stops.
const MAX_WRITTEN: u64 = 256 * 1024 * 1024;
/// How much of what a program writes apart from its result is kept: the end, in bytes.
const MAX_ASIDE: usize = 4 * 1024;
/// How many programs run at once; those that are too many wait for their turn.
const MAX_AT_ONCE: usize = 32;
/// How much is read at once.
const CHUNK: usize = 16 * 1024;

/// The places of programs that run at once. Clones share them.
#[derive(Clone, Debug)]
pub struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_AT_ONCE)))
    }
}

/// What runs programs, and where their long output goes.
#[derive(Clone)]
pub(super) struct Programs {
    leash: Arc<Leash>,
    outputs: Outputs,
    places: Places,
}

/// What becomes of what a program writes to its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stderr {
    /// It is part of the output, in the order in which it comes.
    Joined,
    /// Its end is kept apart.
    Apart,
}

/// A program that has ended.
pub(super) struct Ran {
    /// How.
    pub(super) ended: Outcome,
    /// What it wrote, bounded.
    pub(super) output: String,
    /// The end of what it wrote to its standard error, where that is apart.
    pub(super) aside: String,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As the leash says.
    Ended(Ended),
    /// It was stopped, because it had written too much.
    Flooded,
}

impl Programs {
    pub(super) fn new(leash: Arc<Leash>, outputs: Outputs, places: Places) -> Self {
        Self { leash, outputs, places }
    }

    /// Runs a program to its end, with `input` on its standard input. Dropped, it ends the program.
    pub(super) async fn run(
        &self,
        call_id: CallId,
        command: Command,
        input: Vec<u8>,
        stderr: Stderr,
    ) -> Result<Ran, ToolError> {
        // It is never closed.
        let _place = self.places.0.acquire().await;
        let time = command.limits.time.unwrap_or(MAX_TIME).saturating_add(GRACE);
        let mut child = timeout(time, self.leash.start(command)).await.map_err(|_| too_slow())??;
        let (stdin, stdout, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut collected = Collected::new(self.outputs.spool(call_id), stderr);
        let ended = {
            let feed = async move {
                if let Some(mut stdin) = stdin {
                    // A program need not read what it is given.
                    let _ = stdin.write_all(&input).await;
                }
            };
            let mut feed_and_drain = pin!(feed_and_drain(feed, collected.drain(stdout, errors)));
            let mut wait = pin!(timeout(time, child.wait()));
            let mut drained = None;
            loop {
                tokio::select! {
                    all = &mut feed_and_drain, if drained.is_none() => {
                        drained = Some(all);
                        if all == Drained::TooMuch {
                            break Outcome::Flooded;
                        }
                    }
                    ended = &mut wait => {
                        if drained.is_none() {
                            // What is left of it, if something it began still holds its output, is not waited for.
                            let _ = timeout(LAST_OUTPUT, &mut feed_and_drain).await;
                        }
                        break match ended {
                            Ok(ended) => Outcome::Ended(ended?),
                            Err(_) => Outcome::Ended(Ended::OverLimit(Excess::Time)),
                        };
                    }
                }
            }
        };
        drop(child);
        let Collected { output, aside, .. } = collected;
        let aside = String::from_utf8_lossy(&aside).trim().to_owned();
        Ok(Ran { ended, output: output.finish().await, aside })
    }
}

/// Does both at once, until all is read and written, or too much was read.
async fn feed_and_drain(feed: impl Future<Output = ()>, drain: impl Future<Output = Drained>) -> Drained {
    let (mut feed, mut drain) = (pin!(feed), pin!(drain));
    tokio::select! {
        drained = &mut drain => {
            if drained == Drained::ToEnd {
                feed.await;
            }
            drained
        }
        () = &mut feed => drain.await,
    }
}

impl From<LeashError> for ToolError {
    fn from(error: LeashError) -> Self {
        Self(error.to_string())
    }
}

fn too_slow() -> ToolError {
    ToolError("the program could not be started in time".into())
}

impl Outcome {
    /// What the model is told of a program that did not end by itself, after `time` at most.
    pub(super) fn broken_off(self, time: Duration) -> Option<String> {
        let of = match self {
            Self::Ended(Ended::Exited(_)) => return None,
            Self::Ended(Ended::Signalled(signal)) => format!("it was ended by signal {signal}"),
            Self::Ended(Ended::OverLimit(Excess::Time)) => {
                format!("it was stopped after {} s, all the time that it had", time.as_secs())
            }
            Self::Ended(Ended::OverLimit(Excess::Memory)) => {
                "it was stopped because it took more memory than it may".into()
            }
            Self::Ended(Ended::OverLimit(Excess::Processes)) => {
                "it was stopped because it began more processes than it may".into()
            }
            Self::Ended(Ended::OverLimit(Excess::Disk)) => {
                "it was stopped because it left too little room on the disk".into()
            }
            Self::Flooded => format!("it was stopped because it wrote over {MAX_WRITTEN} bytes"),
        };
        Some(of)
    }
}

/// How far a program's output was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drained {
    ToEnd,
    TooMuch,
}

/// What was read of a program so far.
struct Collected {
    stderr: Stderr,
    output: Spool,
    aside: Vec<u8>,
    aside_total: u64,
}

impl Collected {
    fn new(output: Spool, stderr: Stderr) -> Self {
        Self { stderr, output, aside: Vec::new(), aside_total: 0 }
    }

    /// Reads both to their ends, in the order in which something comes. Dropped, it keeps what it has read.
    async fn drain(
        &mut self,
        mut stdout: Option<impl AsyncRead + Unpin>,
        mut stderr: Option<impl AsyncRead + Unpin>,
    ) -> Drained {
        let (mut from_stdout, mut from_stderr) = (vec![0; CHUNK], vec![0; CHUNK]);
        while stdout.is_some() || stderr.is_some() {
            tokio::select! {
                read = read(&mut stdout, &mut from_stdout), if stdout.is_some() => match read {
                    0 => stdout = None,
                    len => self.output.push(from_stdout.get(..len).unwrap_or_default()).await,
                },
                read = read(&mut stderr, &mut from_stderr), if stderr.is_some() => match read {
                    0 => stderr = None,
                    len => self.take_error(from_stderr.get(..len).unwrap_or_default()).await,
                },
            }
            if self.output.total().saturating_add(self.aside_total) > MAX_WRITTEN {
                return Drained::TooMuch;
            }
        }
        Drained::ToEnd
    }

    async fn take_error(&mut self, bytes: &[u8]) {
        match self.stderr {
            Stderr::Joined => self.output.push(bytes).await,
            Stderr::Apart => {
                self.aside_total = self.aside_total.saturating_add(u64::try_from(bytes.len()).unwrap_or(0));
                self.aside.extend_from_slice(bytes);
                let over = self.aside.len().saturating_sub(MAX_ASIDE);
                self.aside.drain(..over);
            }
        }
    }
}

/// How many bytes were read; none at the end, or where nothing can be read any more.
async fn read(source: &mut Option<impl AsyncRead + Unpin>, buffer: &mut [u8]) -> usize {
    match source {
        Some(source) => source.read(buffer).await.unwrap_or(0),
        None => 0,
    }
}
