//! Runs attempts, and plays the other roles that the tests need: the sandbox helper, an engine, and a set-user-id
//! program.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use sandbox::{Command, HelperCommand, Limits, Sandbox, Settings};
use sandbox_escapes::{AttemptError, BROKE_OUT, NOT_APPLICABLE, REFUSED, Target};

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    if program.ends_with("set_user_id") {
        return print_capabilities();
    }
    match (arguments.next().as_deref(), arguments.next()) {
        (Some(sandbox::HELPER_ARG), _) => sandbox::helper_main(),
        (Some("attempt"), Some(name)) => run_attempt(&name, &Target::new(arguments)),
        (Some("victim"), Some(brain)) => exit_code(run_mock_engine(&brain)),
        (Some("engine"), Some(workspace)) => exit_code(run_program_in_sandbox(workspace.into())),
        (Some("reach"), Some(first)) => reach(std::iter::once(first).chain(arguments)),
        (Some("list"), _) => list_attempts(),
        _ => {
            print_line("sandbox-escapes list | attempt NAME [TARGET=VALUE…]");
            ExitCode::FAILURE
        }
    }
}

/// Runs an attempt, prints its result, and exits with the matching code.
fn run_attempt(name: &str, target: &Target) -> ExitCode {
    let Some(attempt) = sandbox_escapes::all_attempts().into_iter().find(|attempt| attempt.name == name)
    else {
        print_line(&format!("there is no attempt `{name}`"));
        return ExitCode::from(NOT_APPLICABLE);
    };
    let (code, result) = match (attempt.run)(target) {
        Ok(obtained) => (BROKE_OUT, format!("broke out: {obtained}")),
        Err(AttemptError::Refused(error)) => (REFUSED, format!("refused: {error}")),
        Err(AttemptError::NotApplicable(reason)) => (NOT_APPLICABLE, format!("cannot be tried: {reason}")),
    };
    print_line(&result);
    // Remaining threads must not delay the exit.
    std::process::exit(code.into())
}

/// The role of a worker: tries to read, to list and to write what is at these paths, and to reach the
/// network, and prints whatever it could.
fn reach(paths: impl Iterator<Item = String>) -> ExitCode {
    for path in paths {
        if std::fs::read(&path).is_ok() {
            print_line(&format!("read {path}"));
        }
        if std::fs::read_dir(&path).is_ok() {
            print_line(&format!("listed {path}"));
        }
        if File::options().write(true).open(&path).is_ok() || File::create_new(format!("{path}.new")).is_ok()
        {
            print_line(&format!("wrote {path}"));
        }
    }
    if std::net::UdpSocket::bind("127.0.0.1:0").is_ok() || std::net::TcpListener::bind("127.0.0.1:0").is_ok()
    {
        print_line("opened a socket");
    }
    let input = std::io::stdin().lines().map_while(Result::ok).collect::<String>();
    print_line(&format!("done with {input}"));
    ExitCode::SUCCESS
}

/// Prints the rows of the table in `docs/sandbox.md`.
fn list_attempts() -> ExitCode {
    for attempt in sandbox_escapes::all_attempts() {
        print_line(&attempt.table_row());
    }
    ExitCode::SUCCESS
}

/// Keeps the brain open, prints the address of a key in its memory, and waits until its input ends.
fn run_mock_engine(brain: &str) -> std::io::Result<()> {
    let _brain = File::open(brain)?;
    let memory = b"a key in memory".to_vec();
    print_line(&format!("{:p}", memory.as_ptr()));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(std::hint::black_box(memory));
    Ok(())
}

/// Runs a long-running program in a sandbox, with a descendant that hides.
fn run_program_in_sandbox(workspace: PathBuf) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mark = workspace.display().to_string();
        let helper = HelperCommand::current_exe();
        let sandbox = Sandbox::new(Settings {
            helper,
            workspace,
            readable: Vec::new(),
            hidden: Vec::new(),
            allow_unconfined: true,
        });
        let script = "trap '' TERM HUP; (setsid perl -e 'sleep 600' left-behind \"$0\" &); echo ready; \
                      perl -e 'sleep 600' left-behind \"$0\"; sleep 600";
        let argv = ["sh", "-c", script, &mark].map(Into::into).to_vec();
        let limits = Limits { disk_left: 0, ..Limits::default() };
        let command = Command { argv, folder: ".".into(), env: Vec::new(), network: false, limits };
        let mut child = sandbox.start(command).await.map_err(std::io::Error::other)?;
        if let Some(stdout) = &mut child.stdout {
            let mut line = [0; 6];
            tokio::io::AsyncReadExt::read_exact(stdout, &mut line).await?;
        }
        print_line("ready");
        tokio::time::sleep(Duration::from_mins(10)).await;
        Ok(())
    })
}

/// Prints the effective capabilities: the role of the set-user-id program.
fn print_capabilities() -> ExitCode {
    let Ok(capabilities) = rustix::thread::capabilities(None) else { return ExitCode::FAILURE };
    print_line(&format!("{:016x}", capabilities.effective.bits()));
    ExitCode::SUCCESS
}

fn exit_code(result: std::io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn print_line(line: &str) {
    let mut output = std::io::stdout().lock();
    // The exit code matters even if nobody reads the output.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}
