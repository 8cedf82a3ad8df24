//! Tests of the command line that need no binary to measure.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const BENCH: &str = env!("CARGO_BIN_EXE_bench");

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_missing_binary_is_named_with_the_way_to_build_it() {
    let output = Command::new(BENCH).args(["start", "--binary", "/nowhere/roundhouse"]).output().unwrap();
    let errors = stderr_of(&output);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(errors.contains("/nowhere/roundhouse") && errors.contains("cargo build --release"), "{errors}");
}

#[test]
fn a_binary_that_is_no_engine_is_an_error_and_no_figure() {
    let whats = [
        "start",
        "idle",
        "turn",
        "deltas",
        "parallel",
        "replay",
        "big-start",
        "many-turns",
        "bytes-per-turn",
        "admit",
        "list",
        "ledger",
        "provision",
        "fleet",
    ];
    for what in whats {
        let arguments = [what, "--binary", "/bin/false", "--rounds", "1", "--wait-s", "0"];
        let output = Command::new(BENCH).args(arguments).output().unwrap();
        let errors = stderr_of(&output);
        assert!(!output.status.success() && output.stdout.is_empty(), "{what}");
        assert!(errors.contains("ended by itself"), "{what}: {errors}");
    }
}

/// A child process that is killed at the end of the test, even if the test fails.
struct BaselineProcess(Child);

impl Drop for BaselineProcess {
    fn drop(&mut self) {
        // If it has exited by itself, the test has already failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_floor_is_a_process_that_answers() {
    for kind in ["bare", "sqlite", "admit", "registry", "replay"] {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let command =
            Command::new(BENCH).args(["floor", kind, "--port", &port, "--folder"]).arg(folder.path()).spawn();
        let _floor = BaselineProcess(command.unwrap());
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut stream = loop {
            match TcpStream::connect(format!("127.0.0.1:{port}")) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "{kind}: {error}"),
            }
            std::thread::park_timeout(Duration::from_millis(1));
        };
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""status":"ok""#), "{answer}");
    }
}

#[test]
fn conversations_that_somebody_brings_along_are_measured() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/conversations.example.json");
    let output = Command::new(BENCH).args(["retrieval", "--conversations", example]).output().unwrap();
    let tables = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", stderr_of(&output));
    for line in ["single fact (2)", "two facts (1)", "all with an answer (4)", "unanswerable (1)"] {
        assert!(tables.contains(line), "{tables}");
    }
    let output = Command::new(BENCH).args(["retrieval", "--conversations", "/nowhere"]).output().unwrap();
    assert!(!output.status.success() && stderr_of(&output).contains("/nowhere"));
}
