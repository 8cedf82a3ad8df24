//! An environment to run the binary in: a folder and ports, with the guarantee that no process is left behind.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;
use tokio::process::{Child, ChildStdin, Command};

use super::ports::Ports;
use super::{DEADLINE, eventually, processes};

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_roundhouse");

/// A temporary folder with ports. Dropping it kills every process whose environment contains the folder: the
/// programs that it started, and their descendants.
#[derive(Debug)]
pub(crate) struct TestEnv {
    folder: TempDir,
    pub(crate) ports: Ports,
    programs: AtomicU32,
}

/// A started program, with its standard output and standard error in one file.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    output: PathBuf,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct ProgramExit {
    /// The exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// All of its output.
    pub(crate) output: String,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        let folder = TempDir::with_prefix("roundhouse-e2e-").unwrap();
        Self { folder, ports: Ports::claim(), programs: AtomicU32::new(0) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs the binary. Its environment has only `variables`, `PATH` and `HOME`.
    pub(crate) fn run(&self, arguments: &[&str], variables: &BTreeMap<String, String>) -> Program {
        self.spawn(self.command(BINARY).args(arguments).envs(variables))
    }

    /// Runs another program, with its arguments, in the same environment.
    pub(crate) fn run_program(&self, line: &[&str], variables: &BTreeMap<String, String>) -> Program {
        self.spawn(self.command(line[0]).args(&line[1..]).envs(variables))
    }

    /// Runs a line in a shell.
    pub(crate) fn run_shell(&self, line: &str) -> Program {
        self.spawn(self.command("sh").args(["-c", line]))
    }

    /// Runs a line in a shell with `input` as standard input.
    pub(crate) fn run_shell_with_input(&self, line: &str, input: &str) -> Program {
        let file = self.path().join("input");
        fs::write(&file, input).unwrap();
        self.spawn(self.command("sh").args(["-c", line]).stdin(File::open(file).unwrap()))
    }

    /// Runs the binary with `variables`; returns it with its standard input.
    pub(crate) fn run_interactive(
        &self,
        arguments: &[&str],
        variables: &BTreeMap<String, String>,
    ) -> (Program, ChildStdin) {
        self.run_program_interactive(&[&[BINARY], arguments].concat(), variables)
    }

    /// Runs another program, with its arguments, in the same way.
    pub(crate) fn run_program_interactive(
        &self,
        line: &[&str],
        variables: &BTreeMap<String, String>,
    ) -> (Program, ChildStdin) {
        let mut command = self.command(line[0]);
        let mut program = self.spawn(command.args(&line[1..]).envs(variables).stdin(Stdio::piped()));
        let input = program.child.stdin.take().unwrap();
        (program, input)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path());
        command
    }

    fn spawn(&self, command: &mut Command) -> Program {
        let number = self.programs.fetch_add(1, Ordering::Relaxed);
        let output = self.path().join(format!("output-{number}"));
        let file = File::create(&output).unwrap();
        let child = command
            .stdout(Stdio::from(file.try_clone().unwrap()))
            .stderr(Stdio::from(file))
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Program { child, output }
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        processes::kill_all_mentioning(self.folder.path().as_os_str());
    }
}

impl Program {
    /// Its output so far.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Waits until its output contains `words`; returns the output, or the exit if it ended without them.
    pub(crate) async fn wait_for_output(&mut self, words: &str) -> Result<String, ProgramExit> {
        eventually(&format!("the program prints {words:?}"), async || {
            let status = self.child.try_wait().unwrap();
            let output = self.output();
            match status {
                _ if output.contains(words) => Some(Ok(output)),
                Some(status) => Some(Err(ProgramExit { code: status.code(), output })),
                None => None,
            }
        })
        .await
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Pid {
        let id = self.child.id().expect("the program runs");
        Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
    }

    /// Waits until it ends by itself.
    pub(crate) async fn wait(mut self) -> ProgramExit {
        let status = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        let Ok(status) = status else {
            panic!("the program has not ended within {DEADLINE:?}; its output:\n{}", self.output())
        };
        ProgramExit { code: status.unwrap().code(), output: self.output() }
    }

    /// Sends it a signal and waits for its exit.
    pub(crate) async fn signal_and_wait(self, signal: Signal) -> ProgramExit {
        processes::signal(self.pid(), signal);
        self.wait().await
    }

    /// Whether it is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl ProgramExit {
    /// Asserts that it exited with 0; returns the output.
    #[track_caller]
    pub(crate) fn assert_success(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.output);
        self.output
    }

    /// Asserts that it exited with `code` and printed all of `words`; returns the output.
    #[track_caller]
    pub(crate) fn assert_failure(self, code: i32, words: &[&str]) -> String {
        assert_eq!(self.code, Some(code), "{}", self.output);
        for word in words {
            assert!(self.output.contains(word), "no {word:?} in: {}", self.output);
        }
        self.output
    }
}
