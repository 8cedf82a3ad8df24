//! Tries attempts, and plays the parts that they need.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use breakout::{BROKE_OUT, REFUSED, Stopped, Target, UNABLE};
use leash::{Command, Helper, Leash, Limits, Settings};

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let own = arguments.next().unwrap_or_default();
    if own.ends_with("set_user_id") {
        return rights();
    }
    match (arguments.next().as_deref(), arguments.next()) {
        (Some(leash::HELPER), _) => leash::helper_main(),
        (Some("attempt"), Some(name)) => attempt(&name, &Target::new(arguments)),
        (Some("victim"), Some(brain)) => outcome(victim(&brain)),
        (Some("engine"), Some(workspace)) => outcome(engine(workspace.into())),
        (Some("list"), _) => list(),
        _ => {
            say("breakout list | attempt NAME [TARGET=VALUE…]");
            ExitCode::FAILURE
        }
    }
}

/// Tries one, says what came of it, and ends with the code that says so too.
fn attempt(name: &str, target: &Target) -> ExitCode {
    let Some(attempt) = breakout::all().into_iter().find(|attempt| attempt.name == name) else {
        say(&format!("there is no attempt `{name}`"));
        return ExitCode::from(UNABLE);
    };
    let (code, words) = match (attempt.run)(target) {
        Ok(got) => (BROKE_OUT, format!("broke out: {got}")),
        Err(Stopped::Refused(how)) => (REFUSED, format!("refused: {how}")),
        Err(Stopped::Unable(why)) => (UNABLE, format!("cannot be tried: {why}")),
    };
    say(&words);
    // Threads that are left must not keep it.
    std::process::exit(code.into())
}

/// The names and what they try.
fn list() -> ExitCode {
    for attempt in breakout::all() {
        say(&attempt.row());
    }
    ExitCode::SUCCESS
}

/// Holds the brain open, tells where its memory is, and waits until its input ends.
fn victim(brain: &str) -> std::io::Result<()> {
    let _open = File::open(brain)?;
    let memory = b"a key in memory".to_vec();
    say(&format!("{:p}", memory.as_ptr()));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(std::hint::black_box(memory));
    Ok(())
}

/// Runs a program on a leash that would go on for long, with a descendant that hides.
fn engine(workspace: PathBuf) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mark = workspace.display().to_string();
        let helper = Helper::own();
        let leash = Leash::new(Settings {
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
        let mut child = leash.start(command).await.map_err(std::io::Error::other)?;
        if let Some(stdout) = &mut child.stdout {
            let mut line = [0; 6];
            tokio::io::AsyncReadExt::read_exact(stdout, &mut line).await?;
        }
        say("ready");
        tokio::time::sleep(Duration::from_mins(10)).await;
        Ok(())
    })
}

/// What a program that belongs to root may do as it stands.
fn rights() -> ExitCode {
    let Ok(rights) = rustix::thread::capabilities(None) else { return ExitCode::FAILURE };
    say(&format!("{:016x}", rights.effective.bits()));
    ExitCode::SUCCESS
}

fn outcome(result: std::io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn say(words: &str) {
    let mut output = std::io::stdout().lock();
    // Nobody there to read it changes nothing.
    let _ = writeln!(output, "{words}").and_then(|()| output.flush());
}
