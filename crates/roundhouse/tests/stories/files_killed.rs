//! The user's files over kills at each step of an upload and of a deletion: what was there is there whole, or what is
//! to be, and nothing is left over.

#![cfg(target_arch = "x86_64")]

use std::fs;

use reqwest::Method;
use rustix::process::Signal;

use crate::files::{
    UPLOADED_FIELDS, append, assert_nothing_staged, content, create_upload, put, staged, upload_offset,
};
use crate::support::http::send;
use crate::support::{Engine, Program, StandaloneEngine, with_deadline};

// The system calls of the steps, and one that each thread makes soon after its last one.
const CLOSE: u32 = 3;
const FSYNC: u32 = 74;
const UNLINK: u32 = 87;
const MKDIRAT: u32 = 258;
const UNLINKAT: u32 = 263;
const RENAMEAT: u32 = 264;
const RENAMEAT2: u32 = 316;

/// The quota of the workspace in bytes.
const QUOTA: usize = 1 << 20;

fn setup() -> StandaloneEngine {
    StandaloneEngine::new().with_env("ENGINE_WORKSPACE_QUOTA_MB", "1")
}

/// Stops the engine and starts it so that it is killed at the last of `calls`.
async fn start_killed_at(
    setup: StandaloneEngine,
    program: Program,
    calls: &[u32],
) -> (StandaloneEngine, Program, Engine) {
    program.signal_and_wait(Signal::TERM).await.assert_success();
    let setup = setup.killed_at(calls);
    let (program, engine) = setup.start().await;
    (setup, program, engine)
}

/// Waits for the kill, and starts the engine again.
async fn start_again(setup: StandaloneEngine, program: Program) -> (StandaloneEngine, Program, Engine) {
    assert_eq!(program.wait().await.code, None);
    let setup = setup.killed_at(&[]);
    let (program, engine) = setup.start().await;
    (setup, program, engine)
}

/// Asserts that exactly `used` bytes of the quota are taken.
async fn assert_used(engine: &Engine, used: usize, when: &str) {
    let room = QUOTA - used;
    let refused = put(engine, "/workspace/probe", vec![0; room + 1]).await;
    assert_eq!(refused.status, 507, "{when}: {}", refused.body);
    let accepted = put(engine, "/workspace/probe", vec![0; room]).await;
    assert_eq!(accepted.status, 201, "{when}: {}", accepted.body);
    engine.delete("/workspace/probe").await.assert_ok("status:text");
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Old,
    New,
}

/// A step of an upload: when the kill comes, at which calls, where the file is, whether it must be new, and which
/// one is there after the kill.
type UploadStep = (&'static str, &'static [u32], &'static str, bool, Outcome);

const UPLOAD_STEPS: [UploadStep; 9] = [
    ("before a folder is made", &[MKDIRAT], "new/folder/a", false, Outcome::Old),
    ("between two folders", &[MKDIRAT, MKDIRAT], "new/folder/a", false, Outcome::Old),
    ("after the folders", &[MKDIRAT, MKDIRAT, RENAMEAT], "new/folder/a", false, Outcome::Old),
    ("before the folders are durable", &[RENAMEAT, FSYNC, FSYNC], "new/folder/a", false, Outcome::New),
    ("before the replacement", &[RENAMEAT], "a", false, Outcome::Old),
    ("before the replacement is durable", &[RENAMEAT, FSYNC], "a", false, Outcome::New),
    ("before the answer", &[RENAMEAT, FSYNC, CLOSE], "a", false, Outcome::New),
    ("before the file that must be new", &[RENAMEAT2], "b", true, Outcome::Old),
    ("after the file that must be new", &[RENAMEAT2, FSYNC], "b", true, Outcome::New),
];

#[tokio::test]
async fn a_kill_at_each_step_leaves_the_old_file_or_the_new_one() {
    if !StandaloneEngine::can_be_killed_at() {
        return;
    }
    let (old, new) = (vec![b'o'; 300 << 10], vec![b'n'; 600 << 10]);
    let mut setup = setup();
    let (mut program, mut engine) = setup.start().await;
    for (when, calls, path, must_be_new, outcome) in UPLOAD_STEPS {
        let url = format!("/workspace/{path}");
        let is_replaced = path == "a";
        if is_replaced {
            put(&engine, &url, old.clone()).await.assert_fields_of(201, UPLOADED_FIELDS);
        }
        let upload = |engine: &Engine| {
            let request = engine.request(Method::PUT, &url).body(new.clone());
            if must_be_new { request.header("if-none-match", "*") } else { request }
        };
        (setup, program, engine) = start_killed_at(setup, program, calls).await;
        let answer = with_deadline("the engine is killed", upload(&engine).send()).await;
        assert!(answer.is_err(), "{when}: {answer:?}");
        (setup, program, engine) = start_again(setup, program).await;

        let expected = match outcome {
            Outcome::New => Some(&new),
            Outcome::Old => is_replaced.then_some(&old),
        };
        match expected {
            Some(expected) => assert!(content(&engine, &url).await == *expected, "{when}"),
            None => drop(engine.get(&url).await.assert_error(404, "FILE_NOT_FOUND")),
        }
        assert_nothing_staged(&setup).await;
        assert_used(&engine, expected.map_or(0, Vec::len), when).await;

        // Sent again, it succeeds, or says that the file is there.
        let again = send(upload(&engine)).await;
        let status = match (must_be_new, expected.is_some()) {
            (true, true) => 412,
            (false, true) => 200,
            (_, false) => 201,
        };
        assert_eq!(again.status, status, "{when}: {}", again.body);
        assert!(content(&engine, &url).await == new, "{when}");
        assert_used(&engine, new.len(), when).await;
        let top = path.split('/').next().unwrap();
        engine.delete(&format!("/workspace/{top}?recursive=true")).await.assert_ok("status:text");
        assert_nothing_staged(&setup).await;
    }
}

/// What an upload that is cancelled has received.
const PART: &str = "0123456789";

/// A step of a deletion: when the kill comes, at which calls, what is deleted, whether it is there after the kill, and
/// whether something of it is left to be removed by the next start.
type DeletionStep = (&'static str, &'static [u32], &'static str, bool, bool);

const DELETION_STEPS: [DeletionStep; 8] = [
    ("before a file is deleted", &[UNLINKAT], "file", true, false),
    ("after a file is deleted", &[UNLINKAT, CLOSE], "file", false, false),
    ("before an empty folder is deleted", &[UNLINKAT], "empty", true, false),
    ("after an empty folder is deleted", &[UNLINKAT, CLOSE], "empty", false, false),
    ("before a folder leaves the workspace", &[RENAMEAT], "tree?recursive=true", true, false),
    ("after a folder left the workspace", &[RENAMEAT, CLOSE], "tree?recursive=true", false, true),
    ("before its first file is removed", &[UNLINKAT], "tree?recursive=true", false, true),
    ("amid its files", &[UNLINKAT, UNLINKAT, UNLINKAT], "tree?recursive=true", false, true),
];

const TREE: [&str; 4] = ["tree/a", "tree/b", "tree/deep/c", "tree/deep/d"];

#[tokio::test]
async fn a_kill_in_a_deletion_leaves_all_of_it_or_nothing() {
    if !StandaloneEngine::can_be_killed_at() {
        return;
    }
    let bytes = vec![b'x'; 60 << 10];
    let mut setup = setup();
    let (mut program, mut engine) = setup.start().await;
    for (when, calls, deleted, is_there, is_left) in DELETION_STEPS {
        let name = deleted.split('?').next().unwrap();
        fs::create_dir_all(setup.workspace().join("empty")).unwrap();
        for path in ["file"].iter().chain(&TREE) {
            let written = put(&engine, &format!("/workspace/{path}"), bytes.clone()).await;
            assert!([200, 201].contains(&written.status), "{when}: {}", written.body);
        }
        let delete = format!("/workspace/{deleted}");
        (setup, program, engine) = start_killed_at(setup, program, calls).await;
        // What was moved out of the workspace is gone to the client, who may hear so before the kill.
        let answer =
            with_deadline("the engine is killed", engine.request(Method::DELETE, &delete).send()).await;
        assert!(answer.is_err() || !is_there, "{when}: {answer:?}");
        assert_eq!(program.wait().await.code, None, "{when}");
        assert_eq!(!staged(&setup).is_empty(), is_left, "{when}");
        setup = setup.killed_at(&[]);
        (program, engine) = setup.start().await;

        let below = |path: &str| path == name || path.starts_with(&format!("{name}/"));
        let mut used = 0;
        for path in ["file"].iter().chain(&TREE) {
            let url = format!("/workspace/{path}");
            if is_there || !below(path) {
                assert!(content(&engine, &url).await == bytes, "{when}: {path}");
                used += bytes.len();
            } else {
                engine.get(&url).await.assert_error(404, "FILE_NOT_FOUND");
            }
        }
        assert_eq!(setup.workspace().join(name).exists(), is_there, "{when}");
        assert_nothing_staged(&setup).await;
        assert_used(&engine, used, when).await;

        let again = engine.delete(&delete).await;
        if is_there {
            again.assert_ok("status:text");
        } else {
            again.assert_error(404, "FILE_NOT_FOUND");
        }
        assert!(!setup.workspace().join(name).exists(), "{when}");
        let kept = ["file"].iter().chain(&TREE).filter(|path| !below(path)).count();
        assert_used(&engine, kept * bytes.len(), when).await;
        assert_nothing_staged(&setup).await;
    }
}

#[tokio::test]
async fn a_kill_in_the_cancellation_of_an_upload_leaves_all_of_it_or_nothing() {
    if !StandaloneEngine::can_be_killed_at() {
        return;
    }
    let mut setup = setup();
    let (mut program, mut engine) = setup.start().await;
    let steps: [(_, &[u32], _); 3] = [
        ("before the record is removed", &[UNLINK], true),
        ("after the record is removed", &[UNLINK, UNLINK], false),
        ("before the data are removed", &[UNLINK, UNLINK, UNLINK], false),
    ];
    for (when, calls, is_there) in steps {
        let upload = create_upload(&engine, "/workspace/a", PART).await;
        (setup, program, engine) = start_killed_at(setup, program, calls).await;
        let answer =
            with_deadline("the engine is killed", engine.request(Method::DELETE, &upload).send()).await;
        assert!(answer.is_err(), "{when}: {answer:?}");
        (setup, program, engine) = start_again(setup, program).await;

        engine.get("/workspace/a").await.assert_error(404, "FILE_NOT_FOUND");
        if is_there {
            assert_eq!(upload_offset(&engine, &upload).await, PART.len(), "{when}");
        } else {
            assert_nothing_staged(&setup).await;
            assert_eq!(send(engine.request(Method::HEAD, &upload)).await.status, 404, "{when}");
        }
        assert_used(&engine, if is_there { PART.len() } else { 0 }, when).await;
        let again = engine.delete(&upload).await;
        assert_eq!(again.status, if is_there { 204 } else { 404 }, "{when}: {}", again.body);
        assert_nothing_staged(&setup).await;
        assert_used(&engine, 0, when).await;
    }
}

/// A resumable upload is there until the file is, and then as a file.
#[tokio::test]
async fn a_kill_at_the_end_of_a_resumable_upload_loses_nothing() {
    if !StandaloneEngine::can_be_killed_at() {
        return;
    }
    let mut setup = setup();
    let (mut program, mut engine) = setup.start().await;
    let steps: [(_, &[u32], _); 4] = [
        ("before the file is placed", &[RENAMEAT], false),
        ("before it is durable", &[RENAMEAT, FSYNC], true),
        ("before the record is removed", &[RENAMEAT, FSYNC, UNLINK], true),
        ("before the answer", &[RENAMEAT, FSYNC, UNLINK, CLOSE], true),
    ];
    for (when, calls, is_placed) in steps {
        let upload = create_upload(&engine, "/workspace/a", "0123").await;
        (setup, program, engine) = start_killed_at(setup, program, calls).await;
        let last = append(&engine, &upload, 4, true).body("4567");
        let answer = with_deadline("the engine is killed", last.send()).await;
        assert!(answer.is_err(), "{when}: {answer:?}");
        (setup, program, engine) = start_again(setup, program).await;
        if is_placed {
            send(append(&engine, &upload, 8, true)).await.assert_error(404, "UPLOAD_NOT_FOUND");
        } else {
            assert_eq!(upload_offset(&engine, &upload).await, 8);
            engine.get("/workspace/a").await.assert_error(404, "FILE_NOT_FOUND");
            send(append(&engine, &upload, 8, true)).await.assert_fields_of(201, UPLOADED_FIELDS);
        }
        assert_eq!(content(&engine, "/workspace/a").await, "01234567", "{when}");
        assert_eq!(send(engine.request(Method::HEAD, &upload)).await.status, 404, "{when}");
        assert_nothing_staged(&setup).await;
        assert_used(&engine, 8, when).await;
        engine.delete("/workspace/a").await.assert_ok("status:text");
    }
}
