//! Runs programs for tools in the sandbox. Feeding input, draining output and waiting for the exit happen
//! concurrently, so that neither a program that never reads nor one that never stops writing blocks anything.

use std::ffi::OsString;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::CallId;
use sandbox::{Child, Command, ExceededLimit, ExitStatus, Limits, Sandbox, SandboxError};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::ToolError;
use super::spill::{SpillDir, Spool};

/// The longest time limit that a program may be given.
pub(super) const MAX_TIMEOUT: Duration = Duration::from_mins(10);
/// How long after its time limit a program is aborted here if the sandbox has not ended it.
const KILL_GRACE: Duration = Duration::from_secs(3);
/// How long to wait for the remaining output after a program has exited.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum output of a program; one that writes more is considered endless and is stopped.
const MAX_OUTPUT_BYTES: u64 = 256 * 1024 * 1024;
/// How much of the end of a separate standard error is kept, in bytes.
const MAX_STDERR_TAIL_BYTES: usize = 4 * 1024;
/// How many programs may run at the same time; further ones wait.
const MAX_CONCURRENT_PROCESSES: usize = 32;
/// The size of one read, in bytes.
const READ_CHUNK_BYTES: usize = 16 * 1024;

/// The semaphore that limits how many programs run at the same time. Clones share it.
#[derive(Clone, Debug)]
pub struct ProcessPermits(Arc<Semaphore>);

impl ProcessPermits {
    /// Permits for so many programs at a time.
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most)))
    }
}

impl Default for ProcessPermits {
    fn default() -> Self {
        Self::new(MAX_CONCURRENT_PROCESSES)
    }
}

/// Runs programs and spills their long output.
#[derive(Clone)]
pub(super) struct ProcessRunner {
    sandbox: Arc<Sandbox>,
    spill_dir: SpillDir,
    permits: ProcessPermits,
}

/// How a program's standard error is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StderrMode {
    /// It is part of the output, interleaved as it arrives.
    Merged,
    /// Its end is kept separately.
    Separate,
}

/// The result of a program that has ended.
pub(super) struct ProcessOutput {
    /// How the program ended.
    pub(super) outcome: ProcessOutcome,
    /// Its output, bounded.
    pub(super) output: String,
    /// The end of its standard error, if that is separate.
    pub(super) stderr_tail: String,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessOutcome {
    /// As the sandbox reports.
    Ended(ExitStatus),
    /// It was stopped because it had written too much.
    OutputLimitExceeded,
}

/// A program to run.
enum Program {
    /// One that a tool runs.
    Command(Command),
    /// This executable with these arguments, without any files.
    Worker(Vec<OsString>, Limits),
}

impl Program {
    fn limits(&self) -> &Limits {
        match self {
            Self::Command(command) => &command.limits,
            Self::Worker(_, limits) => limits,
        }
    }

    async fn start(self, sandbox: &Sandbox) -> Result<Child, SandboxError> {
        match self {
            Self::Command(command) => sandbox.start(command).await,
            Self::Worker(args, limits) => sandbox.start_worker(args, limits).await,
        }
    }
}

impl ProcessRunner {
    pub(super) fn new(sandbox: Arc<Sandbox>, outputs: SpillDir, permits: ProcessPermits) -> Self {
        Self { sandbox, spill_dir: outputs, permits }
    }

    /// Runs a program to its end, with `input` on its standard input. Dropping the future kills the program.
    pub(super) async fn run(
        &self,
        call_id: CallId,
        command: Command,
        input: Vec<u8>,
        stderr: StderrMode,
    ) -> Result<ProcessOutput, ToolError> {
        let output = OutputSink::Spool(Box::new(self.spill_dir.spool(call_id)));
        let (outcome, collected) = self
            .collect(Program::Command(command), input, OutputCollector::new(output, MAX_OUTPUT_BYTES, stderr))
            .await?;
        let stderr_tail = collected.stderr_text();
        Ok(ProcessOutput { outcome, output: collected.output.finish().await, stderr_tail })
    }

    /// Runs this executable with these arguments as a program that reaches no files, like
    /// [`ProcessRunner::run_bounded`].
    pub(super) async fn run_worker(
        &self,
        (args, limits): (Vec<OsString>, Limits),
        input: impl AsRef<[u8]>,
        max_bytes: u64,
    ) -> Result<ProcessOutput, ToolError> {
        self.run_in_memory(Program::Worker(args, limits), input, max_bytes).await
    }

    /// Runs a program to its end like [`ProcessRunner::run`], but keeps its output in memory only. A program that
    /// writes more than `max_bytes` is stopped.
    pub(super) async fn run_bounded(
        &self,
        command: Command,
        input: Vec<u8>,
        max_bytes: u64,
    ) -> Result<ProcessOutput, ToolError> {
        self.run_in_memory(Program::Command(command), input, max_bytes).await
    }

    async fn run_in_memory(
        &self,
        program: Program,
        input: impl AsRef<[u8]>,
        max_bytes: u64,
    ) -> Result<ProcessOutput, ToolError> {
        let collector = OutputCollector::new(OutputSink::Buffer(Vec::new()), max_bytes, StderrMode::Separate);
        let (outcome, collected) = self.collect(program, input, collector).await?;
        let stderr_tail = collected.stderr_text();
        Ok(ProcessOutput { outcome, output: collected.output.finish().await, stderr_tail })
    }

    async fn collect(
        &self,
        program: Program,
        input: impl AsRef<[u8]>,
        mut collected: OutputCollector,
    ) -> Result<(ProcessOutcome, OutputCollector), ToolError> {
        // The semaphore is never closed.
        let _place = self.permits.0.acquire().await;
        let time = program.limits().time.unwrap_or(MAX_TIMEOUT).saturating_add(KILL_GRACE);
        let mut child =
            timeout(time, program.start(&self.sandbox)).await.map_err(|_| start_timed_out())??;
        let (stdin, stdout, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let ended = {
            let feed = async move {
                if let Some(mut stdin) = stdin {
                    // A program need not read its input.
                    let _ = stdin.write_all(input.as_ref()).await;
                }
            };
            let mut feed_and_drain = pin!(feed_and_drain(feed, collected.drain(stdout, errors)));
            let mut wait = pin!(timeout(time, child.wait()));
            let mut drained = None;
            loop {
                tokio::select! {
                    all = &mut feed_and_drain, if drained.is_none() => {
                        drained = Some(all);
                        if all == DrainResult::OutputLimitExceeded {
                            break ProcessOutcome::OutputLimitExceeded;
                        }
                    }
                    ended = &mut wait => {
                        if drained.is_none() {
                            // If a descendant still holds the output open, the rest is not waited for.
                            let _ = timeout(DRAIN_TIMEOUT, &mut feed_and_drain).await;
                        }
                        break match ended {
                            Ok(ended) => ProcessOutcome::Ended(ended?),
                            Err(_) => ProcessOutcome::Ended(ExitStatus::OverLimit(ExceededLimit::Time)),
                        };
                    }
                }
            }
        };
        drop(child);
        Ok((ended, collected))
    }
}

/// Feeds and drains concurrently, until everything is written and read or the output limit is exceeded.
async fn feed_and_drain(
    feed: impl Future<Output = ()>,
    drain: impl Future<Output = DrainResult>,
) -> DrainResult {
    let (mut feed, mut drain) = (pin!(feed), pin!(drain));
    tokio::select! {
        drained = &mut drain => {
            if drained == DrainResult::Eof {
                feed.await;
            }
            drained
        }
        () = &mut feed => drain.await,
    }
}

impl From<SandboxError> for ToolError {
    fn from(error: SandboxError) -> Self {
        Self(error.to_string())
    }
}

fn start_timed_out() -> ToolError {
    ToolError("the program could not be started in time".into())
}

impl ProcessOutcome {
    /// Returns the message for the model about a program that was aborted, after `time` at most.
    pub(super) fn abort_reason(self, time: Duration) -> Option<String> {
        let reason = match self {
            Self::Ended(ExitStatus::Exited(_)) => return None,
            Self::Ended(ExitStatus::Signalled(signal)) => format!("it was ended by signal {signal}"),
            Self::Ended(ExitStatus::OverLimit(ExceededLimit::Time)) => {
                format!("it was stopped after {} s, its time limit", time.as_secs())
            }
            Self::Ended(ExitStatus::OverLimit(ExceededLimit::Memory)) => {
                "it was stopped because it exceeded its memory limit".into()
            }
            Self::Ended(ExitStatus::OverLimit(ExceededLimit::Processes)) => {
                "it was stopped because it exceeded its process limit".into()
            }
            Self::Ended(ExitStatus::OverLimit(ExceededLimit::Disk)) => {
                "it was stopped because it left too little room on the disk".into()
            }
            Self::OutputLimitExceeded => {
                format!("it was stopped because it wrote over {MAX_OUTPUT_BYTES} bytes")
            }
        };
        Some(reason)
    }
}

/// Why draining a program's output stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainResult {
    Eof,
    OutputLimitExceeded,
}

/// Where a program's output is kept.
enum OutputSink {
    /// In a spill file, if it is long.
    Spool(Box<Spool>),
    /// In memory.
    Buffer(Vec<u8>),
}

impl OutputSink {
    async fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Spool(spool) => spool.push(bytes).await,
            Self::Buffer(buffer) => buffer.extend_from_slice(bytes),
        }
    }

    fn total_bytes(&self) -> u64 {
        match self {
            Self::Spool(spool) => spool.total_bytes(),
            Self::Buffer(buffer) => u64::try_from(buffer.len()).unwrap_or(u64::MAX),
        }
    }

    async fn finish(self) -> String {
        match self {
            Self::Spool(spool) => spool.finish().await,
            Self::Buffer(buffer) => String::from_utf8_lossy(&buffer).into_owned(),
        }
    }
}

/// The output read of a program so far.
struct OutputCollector {
    stderr_mode: StderrMode,
    output: OutputSink,
    max_bytes: u64,
    stderr_tail: Vec<u8>,
    stderr_bytes: u64,
}

impl OutputCollector {
    fn new(output: OutputSink, max_bytes: u64, stderr: StderrMode) -> Self {
        Self { stderr_mode: stderr, output, max_bytes, stderr_tail: Vec::new(), stderr_bytes: 0 }
    }

    fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr_tail).trim().to_owned()
    }

    /// Reads both streams to their ends, in order of arrival. When dropped, the collector keeps what was read.
    async fn drain(
        &mut self,
        mut stdout: Option<impl AsyncRead + Unpin>,
        mut stderr: Option<impl AsyncRead + Unpin>,
    ) -> DrainResult {
        let (mut from_stdout, mut from_stderr) = (vec![0; READ_CHUNK_BYTES], vec![0; READ_CHUNK_BYTES]);
        while stdout.is_some() || stderr.is_some() {
            tokio::select! {
                read = read_some(&mut stdout, &mut from_stdout), if stdout.is_some() => match read {
                    0 => stdout = None,
                    len => self.output.push(from_stdout.get(..len).unwrap_or_default()).await,
                },
                read = read_some(&mut stderr, &mut from_stderr), if stderr.is_some() => match read {
                    0 => stderr = None,
                    len => self.push_stderr(from_stderr.get(..len).unwrap_or_default()).await,
                },
            }
            if self.output.total_bytes().saturating_add(self.stderr_bytes) > self.max_bytes {
                return DrainResult::OutputLimitExceeded;
            }
        }
        DrainResult::Eof
    }

    async fn push_stderr(&mut self, bytes: &[u8]) {
        match self.stderr_mode {
            StderrMode::Merged => self.output.push(bytes).await,
            StderrMode::Separate => {
                self.stderr_bytes = self.stderr_bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(0));
                self.stderr_tail.extend_from_slice(bytes);
                let over = self.stderr_tail.len().saturating_sub(MAX_STDERR_TAIL_BYTES);
                self.stderr_tail.drain(..over);
            }
        }
    }
}

/// Returns the number of bytes read; 0 at the end, or if nothing more can be read.
async fn read_some(source: &mut Option<impl AsyncRead + Unpin>, buffer: &mut [u8]) -> usize {
    match source {
        Some(source) => source.read(buffer).await.unwrap_or(0),
        None => 0,
    }
}
