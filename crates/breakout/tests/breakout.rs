//! Every attempt, on the leash and without.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use breakout::stage::{Kit, Stage, Verdict};
use breakout::{Attempt, By, Control};
use leash::Helper;

const BREAKOUT: &str = env!("CARGO_BIN_EXE_breakout");

fn helper() -> Helper {
    Helper { program: BREAKOUT.into(), args: vec![leash::HELPER.into()] }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says what was skipped, unless nothing may be.
fn skip(what: &str) {
    assert_ne!(std::env::var("ROUNDHOUSE_REQUIRE_ALL").as_deref(), Ok("1"), "required: {what}");
    eprintln!("skipped: {what}");
}

fn told(attempt: &Attempt, verdict: &Verdict) {
    eprintln!("{:28} {verdict:?}", attempt.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_breaks_out() {
    let kit = Kit::new(Path::new(BREAKOUT)).unwrap();
    let mut failures = Vec::new();
    let only = std::env::var("BREAKOUT_ONLY").ok();
    for attempt in breakout::all() {
        if only.as_ref().is_some_and(|only| !attempt.name.contains(only)) {
            continue;
        }
        let stage = Stage::new(&kit).unwrap();
        let leash = stage.leash(helper());
        if !leash.is_usable() {
            return skip(&leash.confinement().level);
        }
        let verdict = stage.leashed(&leash, &attempt).await.unwrap();
        told(&attempt, &verdict);
        let mounts = leash.confinement().level.contains("mounts");
        match verdict {
            Verdict::Stopped(_) => {}
            Verdict::BrokeOut(_) if attempt.stopped_by == By::Mounts && !mounts => {
                skip(&format!("{}: this machine lets the leash have no mounts", attempt.name));
            }
            Verdict::BrokeOut(effect) => failures.push(format!("{} broke out: {effect}", attempt.name)),
            Verdict::Unable(why) => failures.push(format!("{} proves nothing: {why}", attempt.name)),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn without_a_leash_they_succeed() {
    let kit = Kit::new(Path::new(BREAKOUT)).unwrap();
    let mut failures = Vec::new();
    for attempt in breakout::all() {
        match attempt.control {
            Control::NotTried(_) => continue,
            Control::SucceedsAsRoot if !is_root() => continue,
            Control::Succeeds | Control::SucceedsAsRoot => {}
        }
        let verdict = Stage::new(&kit).unwrap().free(&attempt).unwrap();
        if matches!(verdict, Verdict::BrokeOut(_)) {
            continue;
        }
        if is_root() {
            failures.push(format!("{}: {verdict:?}", attempt.name));
        } else {
            // A container has walls of its own, which stand before those of the leash.
            skip(&format!("{} without a leash: {verdict:?}", attempt.name));
        }
    }
    assert!(failures.is_empty(), "these prove nothing:\n{}", failures.join("\n"));
}

#[test]
fn nothing_outlives_an_engine_that_is_killed() {
    let home = tempfile::tempdir().unwrap();
    let mark = home.path().join("workspace").display().to_string();
    let mut engine = Command::new(BREAKOUT).args(["engine", &mark]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(engine.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let left = || {
        fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            fs::read(entry.path().join("cmdline")).is_ok_and(|line| {
                let line = String::from_utf8_lossy(&line).into_owned();
                line.contains("left-behind") && line.contains(&mark)
            })
        })
    };
    assert!(left());
    engine.kill().unwrap();
    engine.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while left() {
        assert!(Instant::now() < deadline, "something outlived the engine");
        std::thread::yield_now();
    }
}

#[test]
fn the_table_and_the_suite_agree() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/leash.md");
    let docs = fs::read_to_string(docs).unwrap();
    let written: BTreeSet<&str> = docs.lines().filter(|line| line.starts_with("| `")).collect();
    let rows: Vec<String> = breakout::all().iter().map(Attempt::row).collect();
    let tried: BTreeSet<&str> = rows.iter().map(String::as_str).collect();
    assert_eq!(tried.len(), breakout::all().len(), "two attempts have one name");
    let missing: Vec<_> = tried.difference(&written).collect();
    let stale: Vec<_> = written.difference(&tried).collect();
    assert!(missing.is_empty() && stale.is_empty(), "missing: {missing:#?}\nstale: {stale:#?}");
}
