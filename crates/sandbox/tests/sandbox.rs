//! Tests of the sandbox with real programs: process termination, limits and failures. Attempts to escape are in
//! the crate `sandbox-escapes`.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "tests fail as tests do")]

use std::path::Path;
use std::time::{Duration, Instant};

use sandbox::{
    Child, Command, ExceededLimit, ExitStatus, HelperCommand, Limits, Sandbox, SandboxError, Settings,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The test that turns this test executable into a helper, when it is run alone with [`sandbox::HELPER_ARG`].
const HELPER_TEST: &str = "is_a_helper_where_it_is_started_as_one";

#[test]
fn is_a_helper_where_it_is_started_as_one() {
    if std::env::args().any(|argument| argument == sandbox::HELPER_ARG) {
        sandbox::helper_main();
    }
}

fn helper() -> HelperCommand {
    let args = [HELPER_TEST, sandbox::HELPER_ARG, "--exact", "--nocapture", "--test-threads=1"];
    HelperCommand { program: std::env::current_exe().unwrap(), args: args.map(Into::into).to_vec() }
}

/// Whether `python3`, which some of the tests' programs need, is installed. If not, those tests are skipped.
fn has_python() -> bool {
    let has_python = ["/usr/local/bin", "/usr/bin", "/bin"]
        .iter()
        .any(|folder| Path::new(folder).join("python3").exists());
    let required = std::env::var("ROUNDHOUSE_REQUIRE_ALL").as_deref() == Ok("1");
    assert!(has_python || !required, "required: python3");
    if !has_python {
        eprintln!("skipped: python3 is not installed");
    }
    has_python
}

/// A sandbox with a workspace of its own. It may be unconfined, because these tests do not depend on confinement.
fn sandbox() -> (TempDir, Sandbox) {
    let home = tempfile::tempdir().unwrap();
    let sandbox = sandbox_with(helper(), home.path());
    (home, sandbox)
}

fn sandbox_with(helper: HelperCommand, home: &Path) -> Sandbox {
    Sandbox::new(Settings {
        helper,
        workspace: home.join("workspace"),
        readable: vec![],
        hidden: Vec::new(),
        allow_unconfined: true,
    })
}

fn shell(script: &str) -> Command {
    limited(script, Limits { disk_left: 0, ..Limits::default() })
}

fn limited(script: &str, limits: Limits) -> Command {
    let argv = ["sh", "-c", script].map(Into::into).to_vec();
    Command { argv, folder: ".".into(), env: vec![], network: false, limits }
}

/// Runs a program to its end, with empty input. Returns its status, standard output and standard error.
async fn run(sandbox: &Sandbox, command: Command) -> (ExitStatus, String, String) {
    finish(sandbox.start(command).await.unwrap()).await
}

async fn finish(mut child: Child) -> (ExitStatus, String, String) {
    drop(child.stdin.take());
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut out, mut err) = (String::new(), String::new());
    let read = async { tokio::try_join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err)) };
    tokio::time::timeout(Duration::from_mins(1), read).await.expect("its output ends in time").unwrap();
    let status =
        tokio::time::timeout(Duration::from_mins(1), child.wait()).await.expect("it ends in time").unwrap();
    (status, out, err)
}

/// Whether a process is running whose command line contains `mark`.
fn is_running(mark: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).replace('\0', " ").contains(mark))
    })
}

/// Polls until the condition holds. Returns `false` if it does not within `limit`.
async fn within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

#[tokio::test]
async fn input_output_environment_and_code_are_the_programs() {
    let (home, sandbox) = sandbox();
    let mut command = shell("cat; echo oops >&2; echo $GREETING $HOME; pwd; exit 7");
    command.env = vec![("GREETING".into(), "hello".into())];
    let mut child = sandbox.start(command).await.unwrap();
    child.stdin.as_mut().unwrap().write_all(b"in\n").await.unwrap();
    let (status, out, err) = finish(child).await;
    let workspace = home.path().join("workspace").canonicalize().unwrap().display().to_string();
    assert_eq!((status, err.as_str()), (ExitStatus::Exited(7), "oops\n"));
    assert_eq!(out, format!("in\nhello {workspace}\n{workspace}\n"));
}

#[tokio::test]
async fn the_environment_is_clean() {
    let (_home, sandbox) = sandbox();
    let (_, out, _) = run(&sandbox, shell("env | cut -d= -f1 | sort | tr '\\n' ' '")).await;
    assert_eq!(out, "GIT_CONFIG_NOSYSTEM HOME LANG PATH PWD TMPDIR ");
}

#[tokio::test]
async fn the_network_is_there_where_it_is_granted() {
    if !has_python() {
        return;
    }
    let (_home, sandbox) = sandbox();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let script = format!(
        "python3 -c 'import socket; socket.create_connection((\"localhost\", {port}), 5).sendall(b\"hello\")'"
    );
    let (status, _, err) = run(&sandbox, Command { network: true, ..shell(&script) }).await;
    assert_eq!((status, err.as_str()), (ExitStatus::Exited(0), ""));
    let (mut connection, _) = server.accept().unwrap();
    let mut received = String::new();
    std::io::Read::read_to_string(&mut connection, &mut received).unwrap();
    assert_eq!(received, "hello");
}

#[tokio::test]
async fn usual_work_is_done() {
    if !has_python() {
        return;
    }
    let (_home, sandbox) = sandbox();
    let script = "set -e
        mkdir -p a/b; echo one > a/b/c; cp -a a d; mv d e; ln -s e/b/c f; cat f; ln e/b/c g; rm -r a
        printf '#!/bin/sh\necho ran $1\n' > run; chmod +x run; ./run it; tar cf t.tar e; tar xf t.tar
        cp /bin/echo own; ./own copied; mktemp > name; test -f \"$(cat name)\"; echo two > /dev/null
        date > /dev/stderr; (echo sub) | cat; kill -TERM $(sh -c 'sleep 30 > /dev/null 2>&1 & echo $!')
        python3 -c 'import subprocess, threading, ssl
t = threading.Thread(target=print, args=(\"thread\",))
t.start()
t.join()
print(subprocess.check_output([\"echo\", \"sub\"]).decode().strip() == \"sub\")'";
    let (status, out, err) = run(&sandbox, shell(script)).await;
    assert_eq!(
        (status, out.as_str()),
        (ExitStatus::Exited(0), "one\nran it\ncopied\nsub\nthread\nTrue\n"),
        "{err}"
    );
}

#[tokio::test]
async fn a_signal_is_told() {
    let (_home, sandbox) = sandbox();
    assert_eq!(run(&sandbox, shell("kill -TERM $$")).await.0, ExitStatus::Signalled(15));
}

#[tokio::test]
async fn what_is_no_program_is_refused_with_its_name() {
    let (_home, sandbox) = sandbox();
    let mut command = shell("");
    command.argv = vec!["no-such-program".into()];
    match sandbox.start(command).await {
        Err(SandboxError::Program { program, reason }) => {
            assert_eq!(program, "no-such-program");
            assert!(reason.contains("No such file"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let mut command = shell("true");
    command.folder = "no-such-folder".into();
    assert!(matches!(sandbox.start(command).await, Err(SandboxError::Program { .. })));
    sandbox.wait_for_teardown(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn descendants_end_with_the_program() {
    let (_home, sandbox) = sandbox();
    let script = "setsid nohup sleep 7654.1 >/dev/null 2>&1 </dev/null &
        (trap '' TERM HUP; (sleep 7654.2 >/dev/null 2>&1 &)); echo done";
    let (status, out, _) = run(&sandbox, shell(script)).await;
    assert_eq!((status, out.as_str()), (ExitStatus::Exited(0), "done\n"));
    assert!(!is_running("sleep 7654."), "a descendant outlived the program");
}

#[tokio::test]
async fn all_ends_with_who_lets_go() {
    let (_home, sandbox) = sandbox();
    let child = sandbox
        .start(shell("(setsid sleep 7655.1 &) ; trap '' TERM; sleep 7655.2; sleep 7655.3"))
        .await
        .unwrap();
    assert!(
        within(Duration::from_secs(10), || is_running("sleep 7655.1") && is_running("sleep 7655.2")).await
    );
    drop(child);
    sandbox.wait_for_teardown(Duration::from_secs(10)).await;
    assert!(!is_running("sleep 7655."), "a descendant outlived its `Child`");
}

#[tokio::test]
async fn a_start_that_is_dropped_halfway_leaves_nothing() {
    let (_home, sandbox) = sandbox();
    for timeout in (0..30).map(Duration::from_millis) {
        let _ = tokio::time::timeout(timeout, sandbox.start(shell("sleep 7656.1"))).await;
    }
    sandbox.wait_for_teardown(Duration::from_secs(20)).await;
    assert!(!is_running("sleep 7656."), "a program outlived its start");
}

#[tokio::test]
async fn time_is_limited() {
    let (_home, sandbox) = sandbox();
    let limits = Limits { time: Some(Duration::from_millis(300)), disk_left: 0, ..Limits::default() };
    let started_at = Instant::now();
    assert_eq!(
        run(&sandbox, limited("sleep 7657", limits)).await.0,
        ExitStatus::OverLimit(ExceededLimit::Time)
    );
    assert!(started_at.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn memory_is_limited_for_all_together() {
    if !has_python() {
        return;
    }
    let (_home, sandbox) = sandbox();
    let limits = Limits { memory: 96 << 20, disk_left: 0, ..Limits::default() };
    let script =
        "for i in 1 2 3 4; do python3 -c 'import time; x = bytearray(40 << 20); time.sleep(60)' & done; wait";
    assert_eq!(run(&sandbox, limited(script, limits)).await.0, ExitStatus::OverLimit(ExceededLimit::Memory));
}

#[tokio::test]
async fn the_disk_keeps_room() {
    let (home, sandbox) = sandbox();
    let disk = rustix::fs::statvfs(home.path()).unwrap();
    let disk_left = (disk.f_bavail * disk.f_frsize).saturating_sub(16 << 20);
    let limits = Limits { disk_left, ..Limits::default() };
    let script = "head -c 200000000 /dev/zero > big; sleep 7658";
    assert_eq!(run(&sandbox, limited(script, limits)).await.0, ExitStatus::OverLimit(ExceededLimit::Disk));
}

#[tokio::test]
async fn on_a_nearly_full_disk_a_program_may_still_make_room() {
    let (_home, sandbox) = sandbox();
    let limits = Limits { disk_left: u64::MAX, ..Limits::default() };
    assert_eq!(run(&sandbox, limited("sleep 0.3", limits)).await.0, ExitStatus::Exited(0));
}

#[tokio::test]
async fn a_file_is_limited() {
    let (home, sandbox) = sandbox();
    let limits = Limits { file_size: 1 << 20, disk_left: 0, ..Limits::default() };
    let (status, ..) = run(&sandbox, limited("exec head -c 100000000 /dev/zero > big", limits)).await;
    assert_eq!(status, ExitStatus::Signalled(libc::SIGXFSZ));
    assert_eq!(std::fs::metadata(home.path().join("workspace/big")).unwrap().len(), 1 << 20);
}

#[tokio::test]
async fn a_fork_bomb_ends() {
    let (_home, sandbox) = sandbox();
    let limits =
        Limits { time: Some(Duration::from_secs(3)), processes: 64, disk_left: 0, ..Limits::default() };
    let (status, ..) = run(&sandbox, limited("bomb() { bomb | bomb & }; bomb; sleep 7659.1", limits)).await;
    assert!(
        matches!(
            status,
            ExitStatus::OverLimit(ExceededLimit::Processes | ExceededLimit::Time) | ExitStatus::Exited(_)
        ),
        "{status:?}"
    );
    assert!(!is_running("sleep 7659.1") && !is_running("bomb | bomb"), "a process of the bomb outlived it");
}

#[tokio::test]
async fn a_helper_that_is_missing_or_wrong_is_told() {
    let home = tempfile::tempdir().unwrap();
    for (program, args) in [
        ("/no/such/helper", vec![]),
        ("/bin/false", vec![]),
        ("/bin/sh", vec!["-c".into(), "kill -SEGV $$".into()]),
    ] {
        let sandbox = sandbox_with(HelperCommand { program: program.into(), args }, home.path());
        let outcome = sandbox.start(shell("true")).await;
        assert!(matches!(outcome, Err(SandboxError::Helper(_))), "{program}: {outcome:?}");
        sandbox.wait_for_teardown(Duration::from_secs(10)).await;
    }
}

#[tokio::test]
async fn what_fails_on_its_way_to_the_program_is_told_and_leaves_nothing() {
    let (_home, sandbox) = sandbox();
    // Too little memory even for the process to confine itself.
    let limits = Limits { memory: 4096, disk_left: 0, ..Limits::default() };
    match sandbox.start(limited("sleep 7661.1", limits)).await {
        Err(SandboxError::Helper(reason)) => assert!(!reason.is_empty()),
        Err(other) => panic!("{other}"),
        Ok(child) => {
            let status = finish(child).await.0;
            assert!(
                matches!(status, ExitStatus::Signalled(_) | ExitStatus::OverLimit(ExceededLimit::Memory)),
                "{status:?}"
            );
        }
    }
    sandbox.wait_for_teardown(Duration::from_secs(10)).await;
    assert!(!is_running("sleep 7661.1"));
}

#[tokio::test]
async fn a_helper_that_is_killed_is_told_and_takes_the_program_along() {
    let (_home, sandbox) = sandbox();
    let mut child = sandbox.start(shell("echo $PPID; exec sleep 7660.1")).await.unwrap();
    let mut line = [0; 16];
    let read = child.stdout.as_mut().unwrap().read(&mut line).await.unwrap();
    let helper: i32 = std::str::from_utf8(&line[..read]).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(helper).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    assert!(matches!(child.wait().await, Err(SandboxError::Helper(_))));
    assert!(within(Duration::from_secs(10), || !is_running("sleep 7660.1")).await);
}
