//! Runs every attempt with and without the sandbox, and checks further guarantees of the helper.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandbox::{HelperCommand, Limits, Sandbox, Settings};
use sandbox_escapes::environment::{Programs, TestEnvironment, Verdict};
use sandbox_escapes::{Attempt, Control};
use tokio::io::AsyncReadExt;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox-escapes");

fn helper() -> HelperCommand {
    HelperCommand { program: PROGRAM.into(), args: vec![sandbox::HELPER_ARG.into()] }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reports that something is skipped. Panics if `ROUNDHOUSE_REQUIRE_ALL` forbids that.
fn skip(what: &str) {
    assert_ne!(std::env::var("ROUNDHOUSE_REQUIRE_ALL").as_deref(), Ok("1"), "required: {what}");
    eprintln!("skipped: {what}");
}

/// Whether Perl and Python, which attempts need, are installed. If not, reports that the test is skipped.
fn has_interpreters() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed =
        |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let missing = ["perl", "python3"].into_iter().find(|program| !is_installed(program));
    if let Some(missing) = missing {
        skip(&format!("{missing}, which is not installed"));
    }
    missing.is_none()
}

fn report_verdict(attempt: &Attempt, verdict: &Verdict) {
    eprintln!("{:28} {verdict:?}", attempt.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_breaks_out() {
    if !has_interpreters() {
        return;
    }
    let programs = Programs::new(Path::new(PROGRAM)).unwrap();
    let mut failures = Vec::new();
    let only = std::env::var("SANDBOX_ESCAPES_ONLY").ok();
    for attempt in sandbox_escapes::all_attempts() {
        if only.as_ref().is_some_and(|only| !attempt.name.contains(only)) {
            continue;
        }
        let environment = TestEnvironment::new(&programs).unwrap();
        let sandbox = environment.sandbox(helper());
        if !sandbox.is_usable() {
            return skip(&sandbox.confinement().level);
        }
        let verdict = environment.run_sandboxed(&sandbox, &attempt).await.unwrap();
        report_verdict(&attempt, &verdict);
        match verdict {
            Verdict::Stopped(_) => {}
            Verdict::BrokeOut(effect) => failures.push(format!("{} broke out: {effect}", attempt.name)),
            Verdict::NotApplicable(reason) => {
                failures.push(format!("{} proves nothing: {reason}", attempt.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn without_a_sandbox_they_succeed() {
    if !has_interpreters() {
        return;
    }
    let programs = Programs::new(Path::new(PROGRAM)).unwrap();
    let mut failures = Vec::new();
    for attempt in sandbox_escapes::all_attempts() {
        match attempt.control {
            Control::NotTried(_) => continue,
            Control::SucceedsAsRoot if !is_root() => continue,
            Control::Succeeds | Control::SucceedsAsRoot => {}
        }
        let verdict = TestEnvironment::new(&programs).unwrap().run_unconfined(&attempt).unwrap();
        if matches!(verdict, Verdict::BrokeOut(_)) {
            continue;
        }
        if is_root() {
            failures.push(format!("{}: {verdict:?}", attempt.name));
        } else {
            // A container has its own restrictions, which take effect before those of the sandbox.
            skip(&format!("{} without a sandbox: {verdict:?}", attempt.name));
        }
    }
    assert!(failures.is_empty(), "these prove nothing:\n{}", failures.join("\n"));
}

#[test]
fn nothing_outlives_an_engine_that_is_killed() {
    if !has_interpreters() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let mark = home.path().join("workspace").display().to_string();
    let mut engine = Command::new(PROGRAM).args(["engine", &mark]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(engine.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let survives = || {
        fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            fs::read(entry.path().join("cmdline")).is_ok_and(|line| {
                let line = String::from_utf8_lossy(&line).into_owned();
                line.contains("left-behind") && line.contains(&mark)
            })
        })
    };
    assert!(survives());
    engine.kill().unwrap();
    engine.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while survives() {
        assert!(Instant::now() < deadline, "a process outlived the engine");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_worker_has_its_input_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let (workspace, secret) = (home.path().join("workspace"), home.path().join("brain.db"));
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("notes.txt"), "mine").unwrap();
    fs::write(&secret, "secret").unwrap();
    let sandbox = Sandbox::new(Settings {
        helper: helper(),
        workspace: workspace.clone(),
        readable: vec![home.path().to_owned()],
        hidden: Vec::new(),
        allow_unconfined: false,
    });
    if !sandbox.is_usable() {
        return skip(&sandbox.confinement().level);
    }
    let notes = workspace.join("notes.txt");
    let paths = [home.path(), &workspace, &notes, &secret, Path::new("/etc/passwd"), Path::new("/dev/null")];
    let args = std::iter::once("reach".into()).chain(paths.iter().map(|path| path.as_os_str().to_owned()));
    let limits = Limits { disk_left: 0, file_size: 0, ..Limits::default() };
    let mut child = sandbox.start_worker(args.collect(), limits).await.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"the document").await.unwrap();
    drop(stdin);
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).await.unwrap();
    assert_eq!(output, "done with the document\n");
    assert_eq!(child.wait().await.unwrap(), sandbox::ExitStatus::Exited(0));
}

#[tokio::test]
async fn what_an_engines_starter_ignores_its_programs_do_not() {
    let home = tempfile::tempdir().unwrap();
    // The shell executes the helper, which inherits the ignored signals.
    let helper_script = "trap '' HUP INT QUIT TERM XFSZ USR1; exec \"$0\" \"$@\"";
    let sandbox = Sandbox::new(Settings {
        helper: HelperCommand {
            program: "/bin/sh".into(),
            args: ["-c", helper_script, PROGRAM, sandbox::HELPER_ARG].map(Into::into).to_vec(),
        },
        workspace: home.path().join("workspace"),
        readable: Vec::new(),
        hidden: Vec::new(),
        allow_unconfined: true,
    });
    let limits = Limits { disk_left: 0, ..Limits::default() };
    // A shell cannot trap signals that were ignored when it started.
    let script =
        "for name in HUP INT QUIT TERM XFSZ USR1; do trap \"echo $name\" $name; kill -s $name $$; done";
    let argv = ["sh", "-c", script].map(Into::into).to_vec();
    let command = sandbox::Command { argv, folder: ".".into(), env: Vec::new(), network: false, limits };
    let mut child = sandbox.start(command).await.unwrap();
    let mut caught = String::new();
    child.stdout.take().unwrap().read_to_string(&mut caught).await.unwrap();
    child.wait().await.unwrap();
    assert_eq!(caught.split_whitespace().collect::<Vec<_>>(), ["HUP", "INT", "QUIT", "TERM", "XFSZ", "USR1"]);
}

#[test]
fn the_table_and_the_suite_agree() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sandbox.md");
    let docs = fs::read_to_string(docs).unwrap();
    let documented: BTreeSet<&str> = docs.lines().filter(|line| line.starts_with("| `")).collect();
    let rows: Vec<String> = sandbox_escapes::all_attempts().iter().map(Attempt::table_row).collect();
    let implemented: BTreeSet<&str> = rows.iter().map(String::as_str).collect();
    assert_eq!(implemented.len(), sandbox_escapes::all_attempts().len(), "two attempts have the same name");
    let missing: Vec<_> = implemented.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&implemented).collect();
    assert!(missing.is_empty() && stale.is_empty(), "missing: {missing:#?}\nstale: {stale:#?}");
}
